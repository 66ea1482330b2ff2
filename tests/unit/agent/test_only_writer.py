"""Only `nri_plugin.agent.cpusets` writes cpusets and partitions, and nothing that the validator has not passed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import nri_plugin
from nri_plugin.agent import cpusets
from nri_plugin.agent.cpusets import PartitionWriter, check, open_slices, release
from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.drift import MachineChanged
from nri_plugin.core.kernel_settings import Partition
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.host.partitions import Partitions
from nri_plugin.model.errors import InvariantError
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.agent_fakes import FakeCgroups, recording_log
from tests.builders import cpus, node

ROOT = Path(nri_plugin.__file__).parent
DOOR = {"agent/cpusets.py", "host/cgroup_write.py", "host/partitions.py"}
WRITING_MODULES = {"nri_plugin.host.cgroup_write", "nri_plugin.host.partitions"}
WRITING_NAMES = {
    "write_cpus",
    "make_room",
    "change_with_children",
    "widen_above",
    "return_files",
    "CheckedWrites",
}
FILES = ("cpuset.cpus", "cpuset.mems")
STAND_INS = ("simulator/",)
"""The simulator writes the files of its own machines, never those of a node."""


def product() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in DOOR and not name.startswith(STAND_INS) and "_pb" not in name:
            yield name, ast.parse(path.read_text())


def imports(tree: ast.AST) -> Iterator[str]:
    for found in ast.walk(tree):
        if isinstance(found, ast.ImportFrom) and found.module:
            yield found.module
            yield from (f"{found.module}.{alias.name}" for alias in found.names)
        elif isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)


def called(tree: ast.AST) -> Iterator[str]:
    for found in ast.walk(tree):
        if isinstance(found, ast.Call):
            function = found.func
            yield function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def opens_for_writing(tree: ast.AST) -> bool:
    """Whether it opens any file for writing by itself."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Attribute) and found.attr in {
            "O_WRONLY",
            "O_RDWR",
            "write_text",
            "write_bytes",
        }:
            return True
        if isinstance(found, ast.Call) and getattr(found.func, "id", "") == "open":
            modes = [*found.args[1:2], *(word.value for word in found.keywords if word.arg == "mode")]
            if any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes):
                return True
    return False


def names_a_cpuset_file(tree: ast.AST) -> bool:
    return any(
        isinstance(found, ast.Constant)
        and isinstance(found.value, str)
        and any(_is_path_of(found.value, name) for name in FILES)
        for found in ast.walk(tree)
    )


def _is_path_of(text: str, name: str) -> bool:
    """Whether a text is such a file's name, or ends a path, as in `f"{folder}/cpuset.cpus"`; prose has blanks."""
    return " " not in text and (text.startswith(name) or f"/{name}" in text)


def test_no_other_module_of_the_product_imports_the_writers() -> None:
    assert [name for name, tree in product() if WRITING_MODULES & set(imports(tree))] == []


def test_no_other_module_of_the_product_calls_a_write() -> None:
    found = {name for name, tree in product() if WRITING_NAMES & set(called(tree))}
    assert found == set()


def test_no_other_module_that_names_a_cpuset_file_opens_files_for_writing() -> None:
    found = {name for name, tree in product() if names_a_cpuset_file(tree) and opens_for_writing(tree)}
    assert found == set()


def test_the_guards_notice_a_write() -> None:
    tree = ast.parse(
        "from nri_plugin.host import partitions\n"
        "def f(c, r): c.write_cpus(r, 1); open(r + 'x', 'w'); return 'cpuset.cpus'"
    )
    assert WRITING_MODULES & set(imports(tree))
    assert WRITING_NAMES & set(called(tree))
    assert opens_for_writing(tree)
    assert names_a_cpuset_file(tree)
    assert names_a_cpuset_file(ast.parse("open(f'{folder}/cpuset.cpus', 'w')"))


NODE = node()
OWN = CgroupRef("/kubepods/podp", "/kubepods/podp/own")
STATE = State(
    pods={"p": PodRecord("p", "s", "web", "default", cgroup_parent="/kubepods/podp")},
    containers={"own": ContainerRecord("own", "p", "own", Phase.RUNNING, OWN)},
    allocations={"p/own": Allocation(CPUSet.parse("2-3"))},
)


@pytest.fixture
def cgroups() -> FakeCgroups:
    return FakeCgroups([])


def test_a_decision_with_a_foreign_cpu_is_not_checked_in() -> None:
    wrong = Decision(STATE, writes=(CpusetWrite(CgroupRef("/kubepods/burstable"), cpus("0-2")),))
    with pytest.raises(InvariantError, match="exclusive to others: 2"):
        check(NODE, STATE, MachineChanged(), wrong)


def test_a_sandbox_never_gets_exclusive_cpus(cgroups: FakeCgroups) -> None:
    writer = PartitionWriter(cgroups, Partitions("/nowhere"))
    with pytest.raises(InvariantError, match="exclusive to others: 2-3"):
        writer.write_sandbox(NODE, STATE, CgroupRef("/kubepods/podp", "/kubepods/podp/sb"), cpus("0-3"))
    assert cgroups.journal == []


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (Partition(OWN, cpus("2-4"), "root", "own"), "not exclusive to its container: 4"),
        (Partition(OWN, cpus(""), "root", "own"), "without CPUs"),
        (Partition(OWN, cpus("2-3"), "root", "another"), "not exclusive to its container: 2-3"),
        (
            Partition(CgroupRef("/kubepods/podp"), cpus("2-3"), "root", "own"),
            "not exclusive to its container",
        ),
    ],
)
def test_a_partition_is_made_of_the_exclusive_cpus_of_its_container_only(
    cgroups: FakeCgroups, tmp_path: Path, wanted: Partition, reason: str
) -> None:
    leaf = tmp_path / "kubepods/podp/own"
    leaf.mkdir(parents=True)
    (settled,) = PartitionWriter(cgroups, Partitions(str(tmp_path))).make(
        NODE, STATE, {wanted.target: wanted}
    )
    assert reason in settled.trouble
    assert list(leaf.iterdir()) == []


def test_two_partitions_share_no_cpu(cgroups: FakeCgroups) -> None:
    other = CgroupRef("/kubepods/podp", "/kubepods/podp/other")
    state = replace(
        STATE,
        containers={**STATE.containers, "other": ContainerRecord("other", "p", "own", Phase.RUNNING, other)},
    )
    wanted = {
        ref: Partition(ref, cpus("2-3"), "root", name) for ref, name in ((OWN, "own"), (other, "other"))
    }
    settled = {one.partition.target: one.trouble for one in _made(cgroups, state, wanted)}
    assert "of another one: 2-3" in settled[other]


def _made(cgroups: FakeCgroups, state: State, wanted: dict[CgroupRef, Partition]):
    return PartitionWriter(cgroups, Partitions("/nowhere")).make(NODE, state, wanted)


def test_release_and_lifting_are_judged_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpusets, "opening_violations", lambda _online, _state, _write: ["judged"])
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu\n")
    own = tmp_path / "kubepods/podp/own"
    own.mkdir(parents=True)
    (own / "cpuset.cpus").write_text("2-3")
    found = release(find_cpuset_tree(str(tmp_path)), STATE, cpus("0-15"))
    assert (found.widened, len(found.failures), (own / "cpuset.cpus").read_text()) == ([], 1, "2-3")

    class Tree(FakeCgroups):
        version = 2

        def read_cpus(self, ref: CgroupRef) -> CPUSet:
            return cpus("0-1,4-15")

    tree, (log, lines) = Tree([]), recording_log()
    open_slices(tree, node(pool_floor=False), STATE, log)
    assert tree.journal == []
    assert "pool floor not lifted" in lines.texts("WARNING")


@pytest.mark.parametrize(
    ("state", "write", "reason"),
    [
        (STATE, CpusetWrite(OWN, NODE.topology.online), "exclusive to others: 2-3"),
        (STATE, CpusetWrite(CgroupRef("/kubepods/burstable"), cpus("0-1")), "not all online CPUs"),
        (State(), CpusetWrite(OWN, cpus("0-16")), "not all online CPUs"),
        (STATE, CpusetWrite(CgroupRef("/kubepods/burstable"), NODE.topology.online), ""),
        (State(), CpusetWrite(OWN, NODE.topology.online), ""),
    ],
)
def test_only_slices_are_opened_while_something_is_exclusive(
    state: State, write: CpusetWrite, reason: str
) -> None:
    found = cpusets.opening_violations(NODE.topology.online, state, write)
    assert (reason in "; ".join(found)) if reason else found == []
