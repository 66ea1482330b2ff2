from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin import __version__
from nri_plugin.agent.observing.status_client import RuntimeRow
from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.checkpoint.file import OBSERVED_FILE_NAME, CheckpointFile
from nri_plugin.cli.doctor.agent import checkpoint
from nri_plugin.cli.doctor.evidence import Evidence, Paths, read_topology
from nri_plugin.cli.doctor.findings import fine
from nri_plugin.cli.doctor.settings import STATE_FILES
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.core.requests import QOSClass
from nri_plugin.host.irqbalance import IRQBalanceProcess
from nri_plugin.host.mounts import MountPoint
from nri_plugin.model.options import Isolation, Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.description import parse
from nri_plugin.simulator.machine.machine import build_sysfs
from nri_plugin.wire.nri.events import Configure
from tests.builders import machine

STATE = State(
    {"u1": PodRecord("u1", "s1", "web", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")},
    {
        "c1": ContainerRecord(
            "c1", "u1", "app", Phase.RUNNING, CgroupRef("/kubepods/podu1", "/kubepods/podu1/c1")
        )
    },
    {"u1/app": Allocation(CPUSet.parse("2-3"))},
)
NODE = Node(machine(nodes=2, cores=4), Options(), CPUSet.parse("0"))
NRI = """version = 3
[plugins.'io.containerd.nri.v1.nri']
  plugin_path = "{plugins}"
  plugin_config_path = "{drop_ins}"
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's files, and a path that is short enough for sockets."""
    monkeypatch.chdir(tmp_path)
    build_sysfs(parse("pack:1 l3:1 numa:2 core:4 pu:1", "test"), tmp_path)
    return tmp_path


def copy_of(root: Path, **asked: str) -> Evidence:
    return Evidence(NodeView(str(root), []), Paths(**asked))


def with_agent(root: Path, node: Node, state: State = STATE, *, observing: bool = False) -> Evidence:
    """What is seen of an agent that runs, which has ended again since."""
    (root / "state").mkdir(exist_ok=True)
    runtime = Configure("", "containerd", "v2.1.9", 5000, 2000)
    path = Path("state/agent.sock")
    socket = StatusSocket(path, lambda: (node, state), StatusFeed(), lambda: runtime, observing=observing)
    try:
        seen = copy_of(root, state_dir="/state")
        assert seen.status
    finally:
        socket.close()
    return seen


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def process(root: Path, pid: int, name: str, *words: str) -> None:
    write(root, f"proc/{pid}/comm", name + "\n")
    write(root, f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in words))


def test_a_copy_without_anything_of_runtime_kubelet_and_agent_tells_nothing_of_them(root: Path) -> None:
    seen = copy_of(root)
    for part in (seen.nri, seen.kubelet, seen.answer, seen.checkpoint):
        assert isinstance(part, Hidden)


def test_a_copy_may_have_neither_runtime_nor_kubelet_nor_agent(root: Path) -> None:
    for name in ("etc", "proc", "run", "var"):
        (root / name).mkdir(exist_ok=True)
    seen = copy_of(root)
    assert isinstance(seen.runtime_name, Hidden)  # a copy has no processes, so that nobody knows
    assert seen.kubelet is None
    assert seen.answer == "/run/nri-pin/agent.sock: there is no such socket"
    assert (seen.checkpoint, seen.is_in_memory, seen.exporter) == (None, None, None)
    assert isinstance(seen.topology, Topology)
    assert isinstance(seen.processes, Hidden)


def test_an_agent_that_runs_tells_of_itself_and_of_its_runtime(root: Path) -> None:
    seen = with_agent(root, NODE)
    assert seen.told == RuntimeRow("containerd", "v2.1.9", "", 2000, 5000)
    assert seen.status
    assert seen.status.agent == __version__
    assert seen.reserved == CPUSet.parse("0")
    assert (seen.allocated, seen.is_ours) == (CPUSet.parse("2-3"), True)


def test_of_an_agent_that_only_observes_nothing_counts_as_promised(root: Path) -> None:
    (root / "state").mkdir()
    CheckpointFile(str(root / "state"), NODE, durable=False, name=OBSERVED_FILE_NAME).save(STATE)
    seen = with_agent(root, NODE, observing=True)
    assert seen.is_observing
    assert (seen.allocated, seen.is_ours) == (CPUSet(), False)
    assert checkpoint(seen) == fine("sound, 1 container")


def test_a_checkpoint_is_judged_by_what_it_was_written_for(root: Path) -> None:
    (root / "run/nri-pin").mkdir(parents=True)
    file = CheckpointFile(str(root / "run/nri-pin"), NODE, durable=False)
    file.save(STATE)
    seen = copy_of(root)
    assert checkpoint(seen) == fine("sound, 1 container")
    assert seen.is_in_memory is not None
    Path(file.path).write_text("damaged")
    assert "cannot be used" in checkpoint(copy_of(root)).says


def test_the_configuration_is_that_of_the_agent_that_runs(root: Path) -> None:
    write(root, "etc/other.yaml", 'reservedSystemCPUs: "1"\n')
    process(root, 1, "init", "/sbin/init")
    process(
        root,
        9,
        "python3",
        "/opt/nri-pin/bin/python",
        "/opt/nri-pin/bin/nri-pin",
        "run",
        "--config",
        "/etc/other.yaml",
    )
    seen = copy_of(root)
    assert (seen.config.path, seen.config.error) == ("/etc/other.yaml", "")
    assert seen.reserved == CPUSet.parse("1")


@pytest.mark.parametrize(
    ("name", "reserved"), [("95-nri-pin.conf", "2"), ("nri-pin.conf", "3"), ("95-other.conf", None)]
)
def test_the_configuration_of_an_agent_that_the_runtime_starts_is_its_drop_in(
    root: Path, name: str, reserved: str | None
) -> None:
    write(root, "etc/containerd/config.toml", NRI.format(plugins="/p", drop_ins="/c"))
    write(root, "etc/nri-pin/config.yaml", 'reservedSystemCPUs: "1"\n')
    write(root, "p/95-nri-pin", "")
    write(root, f"c/{name}", f'reservedSystemCPUs: "{reserved}"\n')
    process(root, 1, "init", "/sbin/init")
    process(root, 9, "python3", "/opt/python", "-I", "/p/95-nri-pin")
    seen = copy_of(root)
    assert seen.plugin == "/p/95-nri-pin"
    if reserved is None:
        assert seen.config.path == "/c/95-nri-pin.conf"
        assert seen.config.first_lines
    else:
        assert (seen.config.path, seen.config.error) == (f"/c/{name}", "")
        assert seen.reserved == CPUSet.parse(reserved)


def test_a_named_configuration_is_judged_instead_of_the_drop_in(root: Path) -> None:
    write(root, "etc/containerd/config.toml", NRI.format(plugins="/p", drop_ins="/c"))
    write(root, "p/95-nri-pin", "")
    write(root, "c/95-nri-pin.conf", 'reservedSystemCPUs: "2"\n')
    write(root, "tomorrow.yaml", 'reservedSystemCPUs: "1"\n')
    seen = copy_of(root, config=str(root / "tomorrow.yaml"))
    assert seen.reserved == CPUSet.parse("1")
    assert seen.plugin == "/p/95-nri-pin"


def test_in_a_pod_the_agents_own_root_has_its_configuration(root: Path) -> None:
    (root / "usr").mkdir()
    (root / "etc").mkdir()
    process(root, 1, "init", "/sbin/init")
    process(root, 9, "nri-pin", "/usr/bin/nri-pin", "run")
    write(root, "proc/9/root/etc/nri-pin/config.yaml", 'reservedSystemCPUs: "2"\n')
    view = NodeView(str(root), [MountPoint(str(root), "ext4", ())], in_pod=True)
    assert Evidence(view).reserved == CPUSet.parse("2")


def test_programs_that_pin_are_named(root: Path) -> None:
    process(root, 1, "init", "/sbin/init")
    process(root, 5, "koordlet", "koordlet")
    process(root, 6, "irqbalance", "irqbalance")
    seen = copy_of(root)
    assert (seen.rivals, seen.runs_irqbalance) == (["koordlet"], True)


def test_irqbalance_is_asked_which_cpus_it_leaves_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "run/irqbalance/irqbalance6.sock", "")
    view = NodeView(str(root), [])
    assert Evidence(view).spared is None  # nobody listens
    monkeypatch.setattr(IRQBalanceProcess, "banned", lambda _: CPUSet.parse("2-3"))
    seen = Evidence(view)
    assert (str(seen.spared), seen.exclusive_cpus) == ("2-3", NO_CPUS)
    (root / "run/irqbalance/irqbalance6.sock").unlink()
    assert Evidence(view).spared is None


def test_plugins_and_programs_that_may_collide_are_suspected(root: Path) -> None:
    write(root, "opt/nri/plugins/10-topology-aware", "")
    write(root, "opt/nri/plugins/90-nri-pin", "")
    process(root, 1, "init", "/sbin/init")
    process(root, 7, "koordlet", "/koordlet")
    seen = copy_of(root)
    assert (seen.other_plugins, seen.rivals) == (["10-topology-aware"], ["koordlet"])
    assert (seen.our_plugins, seen.runtime_unit) == (["90-nri-pin"], "containerd")


def test_the_runtimes_process_says_where_to_look(root: Path) -> None:
    process(root, 1, "init", "/sbin/init")
    process(root, 7, "containerd", "containerd", "--config", "/run/c.toml")
    write(
        root, "run/c.toml", 'version = 3\n[plugins."io.containerd.nri.v1.nri"]\nsocket_path = "/run/n.sock"\n'
    )
    write(root, "var/lib/kubelet/cpu_manager_state", '{"policyName":"static"}')
    seen = copy_of(root)
    assert (seen.runtime_name, seen.nri_answer) == ("containerd", "there is no such socket")
    assert seen.state_policies[STATE_FILES[0]] == "static"
    assert isinstance(seen.kubelet, Hidden)  # there is one, and it is set elsewhere


def test_a_machine_out_of_sight_is_not_guessed(tmp_path: Path) -> None:
    nothing = NodeView(str(tmp_path), [MountPoint(f"{tmp_path}/run/nri-pin", "tmpfs", ())])
    assert isinstance(read_topology(nothing), Hidden)
    seen = Evidence(nothing)
    assert isinstance(seen.runtime_name, Hidden)
    assert isinstance(seen.kubelet, Hidden)


def test_files_of_a_machine_that_make_no_sense_are_told(root: Path) -> None:
    write(root, "sys/devices/system/cpu/online", "many")
    assert "many" in str(read_topology(NodeView(str(root), [])))


def test_partitions_are_asked_for_by_the_configuration_or_by_what_the_agent_was_told(root: Path) -> None:
    write(root, "etc/nri-pin/config.yaml", 'reservedSystemCPUs: "1"\n')
    assert not copy_of(root).wants_partitions
    write(root, "etc/nri-pin/config.yaml", 'reservedSystemCPUs: "1"\nisolation: partition\n')
    assert copy_of(root).wants_partitions


@pytest.mark.parametrize(
    ("isolation", "annotation", "asks"),
    [
        (Isolation.PARTITION, "", True),
        (Isolation.NONE, "isolated", True),
        (Isolation.NONE, "none", False),
        (Isolation.NONE, "", False),
    ],
)
def test_an_agent_that_runs_tells_who_asks_for_partitions(
    root: Path, isolation: Isolation, annotation: str, asks: bool
) -> None:
    options = Options(isolation=isolation, annotation_namespaces=frozenset({"shop"}))
    given = (("nri-pin/isolation.container.app", annotation),) if annotation else ()
    state = replace(STATE, pods={"u1": replace(STATE.pods["u1"], annotations=given)})
    seen = with_agent(root, Node(NODE.topology, options, NODE.reserved), state)
    assert seen.wants_partitions is asks


def test_what_the_agent_may_is_seen_where_it_runs(root: Path) -> None:
    process(root, 1, "init", "/sbin/init")
    process(root, 9, "nri-pin", "/usr/bin/nri-pin", "run")
    write(root, "proc/9/status", "CapEff:\t0000000000000000\n")
    live = NodeView(str(root), [MountPoint(f"{root}/proc", "proc", ())])
    assert Evidence(live).may_partition is False
    assert copy_of(root).may_partition is None  # of a copy nobody knows
