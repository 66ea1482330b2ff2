from dataclasses import replace

import pytest

from nri_plugin.cli.doctor.evidence import Kernel
from nri_plugin.cli.doctor.findings import Finding, Verdict
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from tests.builders import machine
from tests.doctor_evidence import findings

TWO_NODES = machine(nodes=2, cores=4, threads=1)
CPUS = CPUSet.parse("2-3")


def found(
    kernel: Kernel | Hidden = Kernel("6.12.1"),  # noqa: B008 - frozen
    topology: Topology | Hidden | str = TWO_NODES,
    reserved: str | None = "0",
    **seen: object,
) -> dict[str, Finding]:
    kept = None if reserved is None else CPUSet.parse(reserved)
    known = {"kernel": kernel, "topology": topology, "reserved": kept, "exclusive": {"shop/web/app": CPUS}}
    return findings("kernel and machine", **known, **seen)


def test_a_plain_machine_has_nothing_to_do() -> None:
    assert {answer.verdict for answer in found().values()} == {Verdict.OK}


def test_half_a_core_for_the_system_is_pointed_out() -> None:
    answer = found(topology=machine(threads=2))["reserved-cores"]
    assert answer.verdict is Verdict.ADVICE
    assert "CPUs 1 are the other threads of their cores" in answer.says
    assert 'reservedSystemCPUs: "0-1"' in answer.do
    assert found(topology=machine(threads=2), reserved="0-1")["reserved-cores"].verdict is Verdict.OK
    assert "reserved-cores" not in found(topology=machine(threads=2), reserved="")


def test_what_is_out_of_sight_is_not_judged() -> None:
    hidden = Hidden("/sys", "/host/sys")
    answers = found(hidden, hidden)
    assert {name: answer.verdict for name, answer in answers.items()} == {
        "machine": Verdict.NOT_VISIBLE,
        "kernel": Verdict.NOT_VISIBLE,
    }


@pytest.mark.parametrize(
    ("release", "verdict"),
    [("6.12.48-amd64", Verdict.OK), ("4.18.0-553.el8", Verdict.ADVICE), ("", Verdict.NOT_VISIBLE)],
)
def test_cpusets_of_cgroup_v2_came_with_linux_5(release: str, verdict: Verdict) -> None:
    assert found(Kernel(release))["kernel"].verdict is verdict


@pytest.mark.parametrize(
    ("kernel", "reserved", "verdict"),
    [
        (Kernel("6.1"), "0", Verdict.OK),
        (Kernel("6.1", {"nohz_full": CPUS}), "0", Verdict.OK),
        (Kernel("6.1", {"isolcpus": CPUS}), "0", Verdict.ADVICE),
        (Kernel("6.1", {"isolcpus": CPUS}), "0,2", Verdict.TO_DO),
        (Kernel("6.1", unread={"isolcpus": "1-7:1/2"}), "0", Verdict.NOT_VISIBLE),
    ],
)
def test_isolated_cpus_are_no_home_for_the_system(kernel: Kernel, reserved: str, verdict: Verdict) -> None:
    assert found(kernel, reserved=reserved)["isolated-cpus"].verdict is verdict


def test_cpus_that_the_kernel_says_are_isolated_count_too() -> None:
    assert found(topology=replace(TWO_NODES, isolated=CPUS))["isolated-cpus"].verdict is Verdict.ADVICE


def test_offline_cpus_are_brought_back_by_a_line() -> None:
    answer = found(topology=replace(TWO_NODES, offline=CPUSet.parse("90-91")))["offline-cpus"]
    assert answer.verdict is Verdict.ADVICE
    assert answer.command.startswith("for c in 90 91; do echo 1 >")


def test_a_node_without_memory_is_named() -> None:
    bare = replace(TWO_NODES, nodes=(TWO_NODES.nodes[0], replace(TWO_NODES.nodes[1], memory_bytes=0)))
    answer = found(topology=bare)["numa-nodes"]
    assert (answer.verdict, "NUMA node 1 has no memory" in answer.says) == (Verdict.ADVICE, True)


def test_balancing_matters_with_several_nodes_only() -> None:
    on = Kernel("6.1", numa_balancing=True)
    assert found(on)["numa-balancing"].command == "sysctl -w kernel.numa_balancing=0"
    assert found(on, machine(nodes=1, cores=4))["numa-balancing"].verdict is Verdict.OK
    unseen = Kernel("6.1", numa_balancing=Hidden("/proc/sys/kernel/numa_balancing", why="not copied"))
    assert found(unseen)["numa-balancing"].verdict is Verdict.NOT_VISIBLE


def test_irqbalance_is_a_hint() -> None:
    assert found(runs_irqbalance=True)["irqbalance"].verdict is Verdict.ADVICE
    assert "irqbalance" not in found()
    assert found(runs_irqbalance=True, spared=CPUSet.parse("3"))["irqbalance"].verdict is Verdict.ADVICE
    told = found(runs_irqbalance=True, spared=CPUSet.parse("2-4"))["irqbalance"]
    assert (told.verdict, told.says) == (Verdict.OK, "runs, and leaves CPUs 2-4 alone")


def test_files_that_make_no_sense_are_told() -> None:
    assert found(topology="cpu0/topology: expected a number")["machine"].verdict is Verdict.TO_DO
