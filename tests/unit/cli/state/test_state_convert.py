"""`nri-pin state convert`: the same promises in another form."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.agent.serving_lease import lock_state_dir
from nri_plugin.checkpoint.file import CheckpointFile, read_checkpoint
from nri_plugin.checkpoint.kubelet_files import checksum, cpu_v1, cpu_v2, cpu_v3, load_refusal
from nri_plugin.cli.state.state import command
from nri_plugin.model.options import MemoryManagerPolicy
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Resize,
    Size,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from tests.builders import GIB, machine
from tests.builders import node as a_node

MACHINE = "pack:2 numa:1(memory=16GiB) l3:1 core:4 pu:2"
DB, WEB = Allocation(CPUSet.of(2, 3), cpu_milli=2000), Allocation(CPUSet.of(8, 9), cpu_milli=2000)
WITH_MEMORY = replace(DB, mems=NodeMask.of(0), memory=(MemoryBlock(NodeMask.of(0), "memory", GIB),))
PLAIN = State(allocations={"u1/db": DB, "u2/web": WEB})
CPU_RECORD = {"policyName": "static", "defaultCpuSet": "0-1,4-7,10-15"}
ENTRIES = {"u1": {"db": "2-3"}, "u2": {"web": "8-9"}}


def record_of(name: str) -> ContainerRecord:
    return ContainerRecord(f"id-{name}", "u1", name, Phase.RUNNING, CgroupRef("/p", f"/p/{name}"))


class Site:
    """A folder with a checkpoint in `state`, and its machine in `machine.txt`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "machine.txt").write_text(MACHINE)

    def save(self, state: State, *, knows_machine: bool = True) -> None:
        CheckpointFile(str(self.folder / "state"), a_node() if knows_machine else None, durable=False).save(
            state
        )

    def run(self, *words: str, stdin: bytes = b"") -> Result:
        words = tuple(word.replace("@", str(self.folder) + "/") for word in words)
        return CliRunner().invoke(command, ["convert", *words], input=io.BytesIO(stdin))

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def put(self, name: str, record: dict[str, object], render: object = cpu_v2) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record | {"checksum": checksum(render(record))}))  # type: ignore[operator]

    def promises(self, name: str) -> dict[str, str]:
        found = read_checkpoint(str(self.folder / name))
        assert found is not None
        return {key: str(one.cpus) for key, one in found.state.allocations.items()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_checkpoint_becomes_the_files_of_a_kubelet(site: Site) -> None:
    site.save(PLAIN)
    result = site.run("@state", "@kubelet/")
    assert (result.exit_code, result.output) == (0, f"written: {site.folder}/kubelet/cpu_manager_state\n")
    written = site.text("kubelet/cpu_manager_state")
    assert load_refusal(written.encode(), "cpu", "static") == ""
    assert json.loads(written)["entries"] == ENTRIES
    assert json.loads(written)["defaultCpuSet"] == "0-1,4-7,10-15"


def test_memory_needs_a_machine_that_tells_its_amounts(site: Site) -> None:
    site.save(replace(PLAIN, allocations={"u1/db": WITH_MEMORY}))
    refused = site.run("@state", "@kubelet/")
    assert (refused.exit_code, "name the machine with --machine" in refused.output) == (2, True)
    assert site.run("@state", "@kubelet/", "--machine", "@machine.txt").exit_code == 0
    written = site.text("kubelet/memory_manager_state")
    assert load_refusal(written.encode(), "memory", "Static") == ""
    (block,) = json.loads(written)["entries"]["u1"]["db"]
    assert block == {"numaAffinity": [0], "type": "memory", "size": GIB}


@pytest.mark.parametrize(("form", "pod_level"), [("cpu-v2", False), ("cpu-v3", True), ("cpu-v1", False)])
def test_every_version_of_the_cpu_file_is_one_a_kubelet_takes(
    site: Site, form: str, *, pod_level: bool
) -> None:
    site.save(
        State(
            {"u1": PodRecord("u1", "sb", "db-0", "shop", QOSClass.GUARANTEED)},
            {"id-db": record_of("db")},
            {"u1/db": DB},
        )
    )
    data = site.run("@state", "@out", "--to", form)
    assert data.exit_code == 0, data.output
    written = json.loads(site.text("out"))
    assert load_refusal(site.text("out").encode(), "cpu", "static", pod_level=pod_level) == ""
    assert written["entries"] == ({"id-db": "2-3"} if form == "cpu-v1" else {"u1": {"db": "2-3"}})


def test_version_2_of_the_memory_file_is_that_of_pod_level_managers(site: Site) -> None:
    site.save(State(allocations={"u1/db": replace(WITH_MEMORY, cpus=CPUSet())}))
    assert site.run("@state", "@out", "--to", "memory-v2", "--machine", "@machine.txt").exit_code == 0
    assert load_refusal(site.text("out").encode(), "memory", "Static", pod_level=True) == ""


KUBELETS = {"2": (cpu_v2, {}), "3": (cpu_v3, {"podEntries": {}})}


@pytest.mark.parametrize(("render", "more"), KUBELETS.values(), ids=KUBELETS)
def test_a_kubelets_directory_becomes_a_checkpoint(
    site: Site, render: object, more: dict[str, object]
) -> None:
    site.put("kubelet/cpu_manager_state", CPU_RECORD | {"entries": ENTRIES} | more, render)
    result = site.run("@kubelet", "@out.json", "--machine", "@machine.txt")
    assert result.exit_code == 0, result.output
    assert site.promises("out.json") == {"u1/db": "2-3", "u2/web": "8-9"}
    facts = read_checkpoint(str(site.folder / "out.json"))
    assert facts is not None
    assert str(facts.facts.online if facts.facts else "") == "0-15"


def test_what_a_checkpoint_does_not_keep_of_a_kubelets_file_is_said(site: Site) -> None:
    site.put("kubelet/cpu_manager_state", CPU_RECORD | {"entries": ENTRIES})
    result = site.run("@kubelet", "@out.json")
    assert result.exit_code == 0
    assert "not kept: defaultCpuSet 0-1,4-7,10-15: the shared pool follows from the machine" in result.output


def test_the_oldest_file_needs_somebody_who_knows_the_ids(site: Site) -> None:
    site.put("kubelet/cpu_manager_state", CPU_RECORD | {"entries": {"a1": "2-3"}}, cpu_v1)
    refused = site.run("@kubelet", "@out.json")
    assert (refused.exit_code, "--containers FILE" in refused.output) == (1, True)
    rows = [{"id": "a1", "metadata": {"name": "db"}, "labels": {"io.kubernetes.pod.uid": "u1"}}]
    (site.folder / "running.json").write_text(json.dumps({"containers": rows}))
    assert site.run("@kubelet", "@out.json", "--containers", "@running.json").exit_code == 0
    assert site.promises("out.json") == {"u1/db": "2-3"}


def test_cpus_of_an_ended_init_container_are_not_promised_twice(site: Site) -> None:
    both = {"u1": {"db": "2-3", "init": "2"}}
    site.put("kubelet/cpu_manager_state", {**CPU_RECORD, "defaultCpuSet": "0-1,4-15", "entries": both})
    result = site.run("@kubelet", "@out.json")
    assert (result.exit_code, "one of them has ended" in result.output) == (1, True)
    assert not (site.folder / "out.json").exists()


def test_pods_keep_the_cpus_that_they_hold_as_wholes(site: Site) -> None:
    more = {"entries": {"u1": {"db": "2-3"}}, "podEntries": {"u1": {"cpuSet": "2-5"}}}
    site.put("kubelet/cpu_manager_state", {**CPU_RECORD, "defaultCpuSet": "0-1,6-15"} | more, cpu_v3)
    assert site.run("@kubelet", "@out.json", "--machine", "@machine.txt").exit_code == 0
    assert site.promises("out.json") == {"u1/db": "2-3", "u1/": "2-5"}
    # Back again it is the same file: the form is chosen by what there is.
    assert site.run("@out.json", "@back").exit_code == 0
    assert site.text("back") == site.text("kubelet/cpu_manager_state").replace(": ", ":").replace(", ", ",")


LEVEL = State(
    {"u1": PodRecord("u1", "sb", "db-0", "shop", QOSClass.GUARANTEED, is_admitted=True)},
    {},
    {
        "u1/": Allocation(CPUSet.parse("2-6"), cpu_milli=5000),
        "u1/prepare": Allocation(CPUSet.parse("2-4"), cpu_milli=3000, is_init=True),
        "u1/db": Allocation(CPUSet.parse("2-3"), cpu_milli=2000),
        "u1/log": Allocation(CPUSet.parse("4-6"), is_pod_shared=True),
        "u1/proxy": Allocation(CPUSet.parse("4-6"), is_pod_shared=True),
    },
)


@pytest.mark.parametrize("form", ["checkpoint-v2", "checkpoint-v1"])
def test_older_releases_get_slices_with_one_owner_and_the_rest_is_named(site: Site, form: str) -> None:
    site.save(LEVEL)
    refused = site.run("@state", "@old.json", "--to", form)
    assert (refused.exit_code, (site.folder / "old.json").exists()) == (1, False)
    for text in (
        "CPUs 2-6 and 0 bytes of memory that pod shop/db-0 holds as a whole",
        "CPUs 4-6 that shop/db-0/log shares with other containers of its pod",
        "CPUs 4-6 that shop/db-0/proxy shares",
    ):
        assert text in refused.output
    done = site.run("@state", "@old.json", "--to", form, "--lossy")
    assert done.exit_code == 0
    assert "not kept: that pod shop/db-0 was admitted as a whole" in done.output
    assert "not kept: that shop/db-0/prepare is an init container" in done.output
    # CPU 4 is the init container's alone, as nothing else of it is left.
    assert site.promises("old.json") == {"u1/prepare": "4", "u1/db": "2-3"}
    assert not {"is_init", "is_pod_shared", "is_admitted"} & set(site.text("old.json").split('"'))


@pytest.mark.parametrize("form", ["cpu-v2", "cpu-v1"])
def test_older_forms_of_the_cpu_file_lack_pods_as_wholes(site: Site, form: str) -> None:
    site.save(LEVEL)
    refused = site.run("@state", "@out", "--to", form)
    assert (refused.exit_code, "that pod shop/db-0 holds as a whole" in refused.output) == (1, True)
    assert site.run("@state", "@out", "--to", form, "--lossy").exit_code == 0
    assert load_refusal(site.text("out").encode(), "cpu", "static") == ""
    # CPUs 2-4 are those of slices; the rest of the pod is in the shared pool again.
    assert json.loads(site.text("out"))["defaultCpuSet"] == "0-1,5-15"


def test_pods_as_wholes_are_in_the_forms_of_1_36_and_1_37(site: Site) -> None:
    site.save(LEVEL)
    for form in ("cpu", "cpu-v3", "cpu-v4"):
        assert site.run("@state", "@out", "--to", form, "--force").exit_code == 0
        record = json.loads(site.text("out"))
        whole = json.loads(record["data"]) if form == "cpu-v4" else record
        assert whole["podEntries"] == {"u1": {"cpuSet": "2-6"}}
        assert load_refusal(site.text("out").encode(), "cpu", "static", pod_level=True) == ""
    memory = site.run("@state", "@memory", "--to", "memory-v1", "--machine", "@machine.txt")
    assert (memory.exit_code, "that pod shop/db-0 holds as a whole" in memory.output) == (1, True)


def test_the_facts_that_a_kubelets_file_lacks_are_named(site: Site) -> None:
    blocks = (MemoryBlock(NodeMask.of(0), "memory", GIB),)
    alone = {
        "u1/": Allocation(CPUSet.parse("2-5"), NodeMask.of(0), blocks, 4000),
        "u1/db": Allocation(CPUSet.parse("2-3"), NodeMask.of(0)),
        "u1/log": Allocation(CPUSet.parse("4-5"), NodeMask.of(0), is_pod_shared=True),
    }
    site.save(replace(LEVEL, allocations=alone))
    done = site.run("@state", "@kubelet/", "--machine", "@machine.txt")
    assert done.exit_code == 0, done.output
    assert "not kept: how the containers of pod shop/db-0 divide its memory" in done.output
    assert "not kept: that log alone runs in the shared pool of pod shop/db-0" in done.output
    site.save(LEVEL)
    inits = site.run("@state", "@out", "--to", "cpu")
    assert "not kept: the marks of 1 init containers" in inits.output


def test_a_container_on_other_nodes_than_its_pod_is_named(site: Site) -> None:
    blocks = (MemoryBlock(NodeMask.of(0), "memory", GIB),)
    pods = {"u1/": Allocation(mems=NodeMask.of(0), memory=blocks), "u1/db": Allocation(mems=NodeMask.of(1))}
    site.save(State(allocations=pods))
    done = site.run("@state", "@out", "--to", "memory", "--machine", "@machine.txt")
    assert (done.exit_code, "that u1/db is bound to NUMA nodes 1" in done.output) == (1, True)


def test_stdin_and_stdout_are_a_dash(site: Site) -> None:
    site.save(PLAIN)
    there = site.run("-", "-", stdin=(site.folder / "state/state.json").read_bytes())
    assert there.exit_code == 0
    back = site.run("-", "@back.json", stdin=there.stdout_bytes)
    assert back.exit_code == 0, back.output
    assert site.promises("back.json") == {"u1/db": "2-3", "u2/web": "8-9"}


def test_versions_of_the_checkpoint_there_and_back(site: Site) -> None:
    site.save(PLAIN)
    assert site.run("@state", "@one.json", "--to", "checkpoint-v1").exit_code == 0
    assert '"version":1,' in site.text("one.json")
    assert site.run("@one.json", "@two.json", "--to", "checkpoint").exit_code == 0
    assert site.text("two.json") == site.text("state/state.json")


LOST: dict[str, tuple[State, str, str]] = {
    "a resize under way": (
        State(allocations={"u1/db": replace(DB, resize=Resize(Size(CPUSet.of(2)), Size(DB.cpus)))}),
        "checkpoint-v1",
        "the resize of u1/db under way, from CPUs 2 to 2-3",
    ),
    "memory, where only CPUs are written": (
        State(allocations={"u1/db": WITH_MEMORY}),
        "cpu",
        "memory of u1/db",
    ),
    "CPUs, where only memory is written": (
        State(allocations={"u1/db": WITH_MEMORY}),
        "memory",
        "CPUs 2-3 of u1/db",
    ),
    "memory nodes without an amount": (
        State(allocations={"u1/db": replace(DB, mems=NodeMask.of(1))}),
        "kubelet",
        "u1/db is bound to NUMA nodes 1",
    ),
    "a promise without a container, where ids are written": (
        PLAIN,
        "cpu-v1",
        "CPUs 2-3 of u1/db: version 1 goes by container ids",
    ),
}


@pytest.mark.parametrize(("state", "form", "text"), LOST.values(), ids=LOST)
def test_a_promise_that_would_be_lost_is_named_and_nothing_is_written(
    site: Site, state: State, form: str, text: str
) -> None:
    site.save(state)
    words = ("@state", "@out", "--to", form, "--machine", "@machine.txt")
    refused = site.run(*words)
    assert refused.exit_code == 1
    assert f"the form {form} cannot hold" in refused.output
    assert text in refused.output
    assert not (site.folder / "out").exists()
    forced = site.run(*words, "--lossy")
    assert (forced.exit_code, f"lost: {text}" in forced.output.replace("that u1", "u1")) == (0, True)


def test_facts_of_pods_are_said_to_be_left_out_of_version_1(site: Site) -> None:
    pod = PodRecord("u1", "sb", "db-0", "shop", facts=PodFacts("u1", QOSClass.GUARANTEED))
    site.save(State({"u1": pod}))
    result = site.run("@state", "@out", "--to", "checkpoint-v1")
    assert (result.exit_code, "not kept: the facts of the cluster on pod shop/db-0" in result.output) == (
        0,
        True,
    )


def test_what_is_newer_than_version_1_is_left_out_of_it_and_named(site: Site) -> None:
    pod = PodRecord(
        "u1",
        "sb",
        "db-0",
        "shop",
        devices_counted=True,
        is_admitted=True,
        limit_milli=2000,
        sandbox_path="/sb",
    )
    record = ContainerRecord(
        "id", "u1", "prepare", Phase.RUNNING, CgroupRef("", ""), limit_milli=1000, affinity=NodeMask.of(1)
    )
    prepared = Allocation(cpu_milli=1000, is_init=True)
    known = a_node(machine(nodes=2, memory=64 * GIB), memory_manager_policy=MemoryManagerPolicy.STATIC)
    state = State({"u1": pod}, {"id": record}, {"u1/prepare": prepared})
    CheckpointFile(str(site.folder / "state"), known, durable=False).save(state)
    result = site.run("@state", "@one.json", "--to", "checkpoint-v1")
    assert result.exit_code == 0
    assert [line.partition(": ")[2] for line in result.stderr.splitlines()] == [
        "that pod shop/db-0 was admitted as a whole",
        "that the hint of pod shop/db-0 counts the devices of all its containers",
        "the CPU limit of pod shop/db-0",
        "the cgroup of the sandbox of pod shop/db-0",
        "the CPU limit of container shop/db-0/prepare",
        "the hint of container shop/db-0/prepare",
        "that shop/db-0/prepare is an init container, and its CPUs that later containers of its pod hold",
        "how much memory each NUMA node has: it follows from the machine and the configuration",
    ]
    kept = json.loads(site.text("one.json"))
    rows = [kept["node"], *kept["pods"], *kept["containers"], *kept["allocations"]]
    newer = {"memory", "devices_counted", "is_admitted", "is_init", "limit_milli", "sandbox_path"}
    assert not any(newer & row.keys() for row in rows)
    assert not any("affinity" in row for row in kept["containers"])


def test_promises_that_a_kubelet_would_not_start_on_are_not_written(site: Site) -> None:
    site.save(State(allocations={"u1/db": Allocation(CPUSet.of(0, 100))}))
    result = site.run("@state", "@out/")
    assert (
        result.exit_code,
        "nothing was written: the kubelet's CPU Manager would say" in result.output,
    ) == (
        1,
        True,
    )


def test_nothing_is_overwritten_without_force(site: Site) -> None:
    site.save(PLAIN)
    (site.folder / "out").write_text("mine")
    refused = site.run("@state", "@out", "--to", "cpu")
    assert (refused.exit_code, site.text("out")) == (1, "mine")
    assert "--force" in refused.output
    assert site.run("@state", "@out", "--to", "cpu", "--force").exit_code == 0
    assert site.text("out").startswith("{")
    assert sorted(path.name for path in site.folder.iterdir()) == ["machine.txt", "out", "state"]


def test_the_checkpoint_of_a_running_agent_is_not_replaced(site: Site) -> None:
    site.save(PLAIN)
    site.put("kubelet/cpu_manager_state", CPU_RECORD | {"entries": ENTRIES})
    lock = lock_state_dir(str(site.folder / "state"))
    try:
        result = site.run("@kubelet", "@state", "--force")
    finally:
        os.close(lock)
    assert result.exit_code == 1
    assert f"the agent with process id {os.getpid()} works on it" in result.output


WRONG: dict[str, tuple[list[str], int, str]] = {
    "no such file": (["@nowhere", "-"], 2, "cannot be read"),
    "a directory without any": (["@", "-"], 2, "holds neither"),
    "something else": (["@machine.txt", "-"], 1, "is neither a checkpoint of nri-pin nor a state file"),
    "a damaged checkpoint": (["@damaged", "-"], 1, "nri-pin state repair"),
    "one kubelet's file from another": (["@cpu", "-", "--to", "memory"], 2, "convert to a checkpoint first"),
    "two files on standard output": (["@memory", "-", "--machine", "@machine.txt"], 2, "takes one file"),
    "another machine": (["@state", "-", "--machine", "demo"], 2, "another machine"),
    "a configuration without a machine": (["@state", "-", "--config", "@none"], 2, "needs a machine"),
    "no machine at all": (["@bare", "-"], 2, "does not tell its machine"),
}


@pytest.mark.parametrize(("words", "code", "text"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_converted_is_said_in_one_sentence(
    site: Site, words: list[str], code: int, text: str
) -> None:
    site.save(PLAIN, knows_machine=False)
    os.rename(site.folder / "state/state.json", site.folder / "bare")
    site.save(replace(PLAIN, allocations={"u1/db": WITH_MEMORY}))
    os.rename(site.folder / "state/state.json", site.folder / "memory")
    site.save(PLAIN)
    (site.folder / "damaged").write_bytes((site.folder / "state/state.json").read_bytes()[:-30])
    site.put("cpu", CPU_RECORD | {"entries": ENTRIES})
    result = site.run(*words)
    assert (result.exit_code, text in result.output) == (code, True), result.output
    assert len(result.output.splitlines()) == 1


def test_as_a_process_through_pipes(site: Site) -> None:
    site.save(PLAIN)
    words = [sys.executable, "-m", "nri_plugin", "state", "convert", "-", "-"]
    data = (site.folder / "state/state.json").read_bytes()
    done = subprocess.run(words, input=data, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert load_refusal(done.stdout, "cpu", "static") == ""
