"""The checks on the machine and its kernel."""

import pytest
from msgspec.structs import replace

from nri_plugin.cli.doctor.evidence import Kernel
from nri_plugin.cli.doctor.findings import Verdict
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.model.sets import CPUSet
from tests.builders import machine
from tests.doctor_evidence import TOPOLOGY, findings

GROUP = "kernel and machine"
CPUS = CPUSet.parse("2-3")
WEB = {"shop/web/app": CPUS}
BARE = replace(TOPOLOGY, nodes=(TOPOLOGY.nodes[0], replace(TOPOLOGY.nodes[1], memory_bytes=0)))
UNSEEN = Kernel("6.1", numa_balancing=Hidden("/proc/sys/kernel/numa_balancing", why="not copied"))


def isolated(reserved: str = "0", **options: CPUSet) -> dict[str, object]:
    return {"kernel": Kernel("6.1", options), "reserved": CPUSet.parse(reserved)}


@pytest.mark.parametrize(
    ("seen", "check", "verdict", "words"),
    [
        ({"topology": machine(threads=2)}, "reserved-cores", Verdict.ADVICE, "CPUs 1 are the other threads of their cores"),
        ({"topology": machine(threads=2)}, "reserved-cores", Verdict.ADVICE, 'reservedSystemCPUs: "0-1"'),
        ({"topology": machine(threads=2), "reserved": CPUSet.parse("0-1")}, "reserved-cores", Verdict.OK, ""),
        ({"kernel": Kernel("6.12.48-amd64")}, "kernel", Verdict.OK, ""),
        ({"kernel": Kernel("4.18.0-553.el8")}, "kernel", Verdict.ADVICE, "no cpusets in cgroup v2"),
        ({"kernel": Kernel("")}, "kernel", Verdict.NOT_VISIBLE, ""),
        (isolated(), "isolated-cpus", Verdict.OK, ""),
        (isolated(nohz_full=CPUS), "isolated-cpus", Verdict.OK, ""),
        (isolated(isolcpus=CPUS), "isolated-cpus", Verdict.ADVICE, ""),
        (isolated("0,2", isolcpus=CPUS), "isolated-cpus", Verdict.TO_DO, ""),
        ({"kernel": Kernel("6.1", unread={"isolcpus": "1-7:1/2"})}, "isolated-cpus", Verdict.NOT_VISIBLE, ""),
        ({"topology": replace(TOPOLOGY, isolated=CPUS)}, "isolated-cpus", Verdict.ADVICE, ""),
        ({"topology": replace(TOPOLOGY, offline=CPUSet.parse("90-91"))}, "offline-cpus", Verdict.ADVICE, "for c in 90 91; do echo 1 >"),
        ({"topology": BARE}, "numa-nodes", Verdict.ADVICE, "NUMA node 1 has no memory"),
        ({"kernel": Kernel("6.1", numa_balancing=True)}, "numa-balancing", Verdict.ADVICE, "sysctl -w kernel.numa_balancing=0"),
        ({"kernel": Kernel("6.1", numa_balancing=True), "topology": machine(nodes=1)}, "numa-balancing", Verdict.OK, ""),
        ({"kernel": UNSEEN}, "numa-balancing", Verdict.NOT_VISIBLE, ""),
        ({"runs_irqbalance": True}, "irqbalance", Verdict.ADVICE, ""),
        ({"runs_irqbalance": True, "spared": CPUSet.parse("3")}, "irqbalance", Verdict.ADVICE, ""),
        ({"runs_irqbalance": True, "spared": CPUSet.parse("2-4")}, "irqbalance", Verdict.OK, "runs, and leaves CPUs 2-4 alone"),
        ({"topology": "cpu0/topology: expected a number"}, "machine", Verdict.TO_DO, "expected a number"),
    ],
)  # fmt: skip
def test_machine_and_kernel_are_judged(
    seen: dict[str, object], check: str, verdict: Verdict, words: str
) -> None:
    answer = findings(GROUP, **{"exclusive": WEB, **seen})[check]
    assert answer.verdict is verdict
    assert words in f"{answer.says}\n{answer.do}\n{answer.command}"


def test_a_plain_machine_has_nothing_to_do() -> None:
    answers = findings(GROUP)
    assert {answer.verdict for answer in answers.values()} == {Verdict.OK}
    assert "irqbalance" not in answers
    assert "reserved-cores" not in findings(GROUP, reserved=CPUSet())


def test_evidence_that_cannot_be_seen_is_not_judged() -> None:
    hidden = Hidden("/sys", "/host/sys")
    answers = findings(GROUP, kernel=hidden, topology=hidden)
    assert {name: answer.verdict for name, answer in answers.items()} == {
        "machine": Verdict.NOT_VISIBLE,
        "kernel": Verdict.NOT_VISIBLE,
    }
