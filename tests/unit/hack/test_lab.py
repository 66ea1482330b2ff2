"""The machine lab without a guest: what QEMU is told, what a guest is sent, what a kernel showed."""

import json
from pathlib import Path

import pytest

from nri_plugin.host.sysfs import read_topology
from nri_plugin.simulator.machine.machine import build_topology
from nri_plugin.simulator.machine.machine import parse as parse_machine
from tests.agent_fakes import Clock
from tests.e2e.inside import waiting
from tests.e2e.lab import __main__ as command
from tests.e2e.lab.cells import Cell, Listener
from tests.e2e.lab.embedded import play_embedded
from tests.e2e.lab.lab_files import (
    RECORDED,
    machine_named,
    machine_names,
    machine_text,
    scenario_named,
    scenarios_by_machine,
)
from tests.e2e.lab.plan import plan
from tests.e2e.lab.qemu_machine import guest_machine
from tests.e2e.lab.setting_up import CANNOT_RUN
from tests.e2e.lab.shell import LabError
from tests.lab.scenario.scenario import parse
from tests.oracles.recordings import RecordedFiles, read_recording

PLAYED = [(machine, name) for machine, names in scenarios_by_machine().items() for name in names]


def smp(text: str) -> str:
    arguments = guest_machine(text, "m").arguments
    return arguments[arguments.index("-smp") + 1]


def refusal(text: str) -> str:
    with pytest.raises(LabError) as caught:
        guest_machine(text, "m")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("pack:2 numa:1 l3:1 core:4 pu:2(indexes=core)", "16,sockets=2,dies=1,modules=1,cores=4,threads=2", id="plain"),
        pytest.param(
            "pack:2 numa:2 l3:1 core:4 pu:1",
            "16,sockets=2,dies=2,modules=1,cores=4,threads=1",
            id="a die for every node",
        ),
        pytest.param(
            "pack:1 numa:1 l3:4 core:4 pu:1", "16,sockets=1,dies=1,modules=4,cores=4,threads=1", id="split L3"
        ),
        pytest.param(
            "pack:2 numa:2 l3:2 core:2 pu:1",
            "16,sockets=2,dies=2,modules=2,cores=2,threads=1",
            id="split L3 in every node",
        ),
        pytest.param(
            "pack:2 l3:1 numa:2 core:4 pu:1",
            "16,sockets=2,dies=1,modules=1,cores=8,threads=1",
            id="an L3 over two nodes",
        ),
        pytest.param(
            "numa:1 pack:2 l3:1 core:4 pu:1",
            "8,sockets=2,dies=1,modules=1,cores=4,threads=1",
            id="a node over two sockets",
        ),
    ],
)  # fmt: skip
def test_a_shape_becomes_sockets_dies_modules_and_cores(text: str, expected: str) -> None:
    assert smp(text) == expected


def test_modules_share_their_l3_and_dies_need_not_say_so() -> None:
    assert guest_machine("pack:1 numa:1 l3:4 core:4 pu:1", "m").machine.endswith(
        "smp-cache.0.topology=module"
    )
    assert guest_machine("pack:2 numa:1 l3:1 core:4 pu:1", "m").machine == "q35"


def test_siblings_are_numbered_as_qemu_does_and_large_memory_is_cut() -> None:
    machine = guest_machine("pack:2 numa:1(memory=64GiB) l3:1 core:4 pu:2(indexes=core)", "m")
    assert [(core.cpus, core.node) for core in parse_machine(machine.text).cores[:2]] == [
        ((0, 1), 0),
        ((2, 3), 0),
    ]
    assert [node.memory_kb >> 10 for node in parse_machine(machine.text).nodes] == [1024, 1024]
    assert len(machine.notes) == 2


def test_what_qemu_cannot_be_told_is_refused_with_the_reason() -> None:
    assert "at most 64" in refusal("pack:2 numa:1 l3:1 core:64 pu:1")
    assert "same number of threads" in refusal(
        "topology: pack:1 numa:1 l3:1 core:4 pu:2(indexes=core)\nkinds: [{cores: 2, threads: 2}, {cores: 2, threads: 1}]"
    )
    assert "QEMU takes one" in refusal(
        "topology: pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:1\ndevices:\n  - {resource: a.b/c, count: 1, nodes: 0-1}"
    )


def test_devices_are_behind_a_bridge_of_their_node() -> None:
    words = " ".join(machine_named("hugepages-and-nics").arguments)
    assert words.count("pxb-pcie") == words.count("pcie-root-port") == words.count("virtio-serial-pci") == 2
    assert "bus_nr=96,numa_node=1,bus=pcie.0" in words


def test_huge_pages_and_isolated_cpus_are_told_to_the_kernel() -> None:
    text = "topology: pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:1\nnodes:\n  1: {hugepages: {2Mi: 4}}\nisolated: 3\nnohz_full: 1-2"
    assert guest_machine(text, "m").kernel == ("hugepagesz=2M hugepages=1:4", "isolcpus=3", "nohz_full=1-2")


def test_every_machine_of_the_lab_can_be_booted() -> None:
    assert all(machine_named(name).arguments for name in machine_names())


@pytest.mark.parametrize(("machine", "name"), PLAYED)
def test_the_embedded_runtime_meets_every_expectation(machine: str, name: str) -> None:
    text, described = machine_text(machine)
    _, scenario = scenario_named(name)
    assert play_embedded(scenario, guest_machine(text, described).text).problems == ()


@pytest.mark.parametrize(("machine", "name"), PLAYED)
def test_a_plan_is_made_of_plain_values(machine: str, name: str) -> None:
    _, scenario = scenario_named(name)
    made = plan(name, scenario, [None] * len(scenario.steps), [])
    assert json.loads(json.dumps(made)) == made


def test_a_step_of_a_plan_says_what_a_kubelet_would_send() -> None:
    text = 'machine: x\nconfig: {reservedSystemCPUs: "0"}\nsteps:\n  - run: a/b\n    containers: {c: {cpu: 2, memory: 1Mi}}\n'
    scenario = parse(text + "  - update: a/b/c\n    cpu: 3\n", "x.yaml")
    run, update = plan("x", scenario, [None, None], [])["steps"]
    assert run["pod"]["qos"] == "guaranteed"
    assert run["pod"]["containers"][0]["limit_milli"] == 2000
    assert update["resources"] == {"cpu_shares": 3072, "cpu_quota": 300_000, "cpu_period": 100_000}


def test_facts_of_a_guest_fill_the_cell_of_their_scenario(tmp_path: Path) -> None:
    cell = Cell("m", "s", "containerd-2")
    listener = Listener({"s": cell}, tmp_path / "log")
    for message in (
        {"kind": "fact", "scenario": "s", "fact": "it holds", "holds": True, "detail": ""},
        {"kind": "fact", "scenario": "s", "fact": "it does not", "holds": False, "detail": "seen 1"},
        {"kind": "end", "scenario": "s", "seconds": 2.5},
    ):
        listener.hear("@@" + json.dumps(message))
    listener.hear("something for people")
    assert (cell.passed, cell.failures, cell.seconds) == (1, ["it does not: seen 1"], 2.5)
    assert listener.ended == {"s"}


def hear(listener: Listener, kind: str, **values: object) -> None:
    listener.hear("@@" + json.dumps({"kind": kind, **values}))


def test_a_host_that_is_too_slow_is_no_fault_of_the_product(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = {name: Cell("m", name, "containerd-2") for name in ("s", "t")}
    listener = Listener(cells, tmp_path / "log")
    for name in cells:
        hear(listener, "begin", scenario=name)
        if name == "t":
            hear(listener, "slow", what="waited 60 s in vain until containerd is up")
        hear(listener, "fact", scenario=name, fact="it ran to its end", holds=False, detail="TimeoutError")
    assert [cell.verdict for cell in cells.values()] == ["FAILED", "TOO SLOW"]
    assert (
        cells["t"].reasons[0].startswith("the host is too slow: waited 60 s in vain until containerd is up; ")
    )
    assert command._conclude([*cells.values()], None) == 1
    assert "0 passed, 1 failed, 1 not judged because the host is too slow" in capsys.readouterr().out
    assert command._conclude([cells["t"]], None) == CANNOT_RUN


def test_a_runtime_that_was_never_up_on_a_slow_host_judges_no_scenario(tmp_path: Path) -> None:
    cells = {name: Cell("m", name, "containerd-2") for name in ("s", "t")}
    hear(Listener(cells, tmp_path / "log"), "slow", what="waited 60 s in vain until containerd is up")
    for cell in cells.values():
        assert cell.verdict == "ok"
        cell.failures.append("the player ended with status 1")
        assert cell.verdict == "TOO SLOW"


@pytest.mark.parametrize(("took_s", "told"), [(0.05, False), (2.5, True)])
def test_a_wait_that_ends_tells_whether_the_host_was_too_slow(
    took_s: float, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    def start_nothing(_words: list[str], **_options: object) -> None:
        clock.now += took_s

    monkeypatch.setattr(waiting.time, "monotonic", clock)
    monkeypatch.setattr(waiting.time, "sleep", sleep)
    monkeypatch.setattr(waiting.subprocess, "run", start_nothing)
    with pytest.raises(TimeoutError, match="waited 60 s in vain until it is up"):
        waiting.wait_for(lambda: False, 60, "it is up")
    assert ("a program that does nothing took 2.5 s" in capsys.readouterr().out) is told


def test_half_a_message_of_a_guest_is_an_error_that_shows_it(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is no message: @@"):
        Listener({}, tmp_path / "log").hear('@@{"kind"')


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name) for path in sorted(RECORDED.glob("lab-*.json.gz"))]
)
def test_a_real_kernel_shows_the_machine_that_was_described(path: Path) -> None:
    machine = machine_named(path.name.removeprefix("lab-").removesuffix(".json.gz"))
    seen = read_topology(RecordedFiles(read_recording(path)))
    described = build_topology(parse_machine(machine.text))
    for part in ("online", "offline", "isolated", "cores", "sockets", "caches_known"):
        assert getattr(seen, part) == getattr(described, part), part
    assert [cpus for _, cpus in seen.caches] == [cpus for _, cpus in described.caches]
    assert [(node.id, node.cpus) for node in seen.nodes] == [(node.id, node.cpus) for node in described.nodes]
    assert [node.distances for node in seen.nodes] == [node.distances for node in described.nodes]
    assert seen.nodes_with_memory == described.nodes_with_memory


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.name) for path in sorted(RECORDED.glob("lab-*.json.gz"))]
)
def test_a_real_kernel_keeps_a_little_of_every_node_s_memory_for_itself(path: Path) -> None:
    machine = machine_named(path.name.removeprefix("lab-").removesuffix(".json.gz"))
    seen = read_topology(RecordedFiles(read_recording(path)))
    described = build_topology(parse_machine(machine.text))
    total = sum(node.memory_bytes or 0 for node in described.nodes)
    assert 0.9 * total <= sum(node.memory_bytes or 0 for node in seen.nodes) <= total
    for node, wanted in zip(seen.nodes, described.nodes, strict=True):
        assert (node.memory_bytes or 0) <= (wanted.memory_bytes or 0)
        assert bool(node.memory_bytes) is bool(wanted.memory_bytes)
        assert [pages for size, pages in node.hugepages if size == 2048] in (
            [pages for size, pages in wanted.hugepages if size == 2048],
            [0],
        )
