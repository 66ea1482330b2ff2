"""Interrupts and kernel threads that can reach exclusive CPUs, each with its reason; nothing is written."""

import os
from pathlib import Path

import pytest

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.doctor.evidence import Evidence, Paths
from nri_plugin.cli.doctor.findings import Finding, Verdict, as_json, as_text
from nri_plugin.cli.doctor.machine import stem_of
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.host.kernel_work import KernelThread, ReachingInterrupt
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.description import parse
from nri_plugin.simulator.machine.machine import build_sysfs
from tests.doctor_evidence import findings as judged_findings

WEB = {"shop/web/app": CPUSet.parse("2-3")}
NO_MOUNT = Hidden("/proc", "/host/proc", "no processes here")


def interrupt(
    number: int, name: str, allowed: str, *, movable: bool, effective: str = ""
) -> ReachingInterrupt:
    return ReachingInterrupt(
        number, (name,), CPUSet.parse(allowed), CPUSet.parse(effective), is_movable=movable
    )


def thread(pid: int, name: str, allowed: str, *, bound: bool = True) -> KernelThread:
    return KernelThread(pid, name, CPUSet.parse(allowed), is_bound=bound)


def findings(
    interrupts: list[ReachingInterrupt] | Hidden,
    threads: list[KernelThread] | Hidden = NO_MOUNT,
    exclusive: dict[str, CPUSet] = WEB,
) -> dict[str, Finding]:
    shared = {"interrupts": interrupts, "kernel_threads": threads, "exclusive": exclusive}
    return judged_findings("exclusive CPUs", **shared)


def test_movable_interrupts_are_told_with_their_affinity_and_advice() -> None:
    found = findings(
        [interrupt(24, "rng", "0-3", movable=True, effective="2"), interrupt(25, "far", "0-1", movable=True)]
    )
    told = found["interrupts"]
    assert told.verdict is Verdict.ADVICE
    assert told.says == "1 interrupt can reach exclusive CPUs 2-3: 1 movable, 0 kernel-managed"
    assert told.items == ("24 rng: movable, its affinity is CPUs 0-3, now delivered to 2",)
    assert "irqs: exclusive" in told.do


def test_a_managed_interrupt_of_one_containers_queue_is_fine_and_a_shared_one_is_not() -> None:
    own = findings([interrupt(26, "nvme0q3", "2-3", movable=False)])["interrupts"]
    assert own.verdict is Verdict.OK
    assert own.items == ("26 nvme0q3: kernel-managed, fires only for I/O of CPUs 2-3, all of shop/web/app",)
    shared = findings([interrupt(26, "nvme0q3", "1-2", movable=False)])["interrupts"]
    assert shared.verdict is Verdict.ADVICE
    assert "isolcpus=managed_irq" in shared.do
    assert shared.items[0].endswith("CPUs 1-2, not all of one container")


def test_a_queue_of_two_containers_is_shared() -> None:
    two = {"shop/web/app": CPUSet.of(2), "shop/db/app": CPUSet.of(3)}
    found = findings([interrupt(26, "nvme0q3", "2-3", movable=False)], exclusive=two)
    assert found["interrupts"].verdict is Verdict.ADVICE


def test_kernel_threads_are_told_by_kind_with_their_reason() -> None:
    threads = [
        thread(15, "ksoftirqd/2", "2"),
        thread(16, "ksoftirqd/3", "3"),
        thread(17, "kworker/2:0H-kblockd", "2"),
        thread(18, "kworker/u8:1-flush", "0-3"),
        thread(19, "kworker/R-netns", "0-3"),
        thread(20, "kswapd0", "0-3", bound=False),
        thread(21, "irq/25-pciehp", "2", bound=False),
        thread(22, "ksoftirqd/0", "0"),
    ]
    told = findings([], threads)["kernel-threads"]
    assert told.verdict is Verdict.OK
    assert told.says == "7 kernel threads can reach exclusive CPUs 2-3: 2 movable, 5 bound"
    assert told.items == (
        "irq/25-pciehp on CPUs 2: handles an interrupt, and follows it",
        "ksoftirqd/N (2) on CPUs 2-3: bound, does the kernel's own work for this CPU",
        "kswapd0 on CPUs 2-3: movable, by its affinity (taskset -p)",
        "kworker/2:0H-kblockd on CPUs 2: bound, does the kernel's own work for this CPU",
        "kworker/R-netns on CPUs 2-3: bound, its affinity cannot be set",
        "kworker/u8:1-flush on CPUs 2-3: a worker of unbound workqueues, by /sys/devices/virtual/workqueue/cpumask",
    )


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("kworker/12:0H", "kworker/N:*"),
        ("kcompactd0", "kcompactd/N"),
        ("kauditd", "kauditd"),
        ("cpuhp/7", "cpuhp/N"),
    ],
)
def test_kinds_of_threads(name: str, stem: str) -> None:
    assert stem_of(name) == stem


def test_what_reaches_none_of_them_is_fine() -> None:
    found = findings([interrupt(25, "far", "0-1", movable=True)], [thread(15, "ksoftirqd/0", "0")])
    assert {one.verdict for one in found.values()} == {Verdict.OK}
    assert not any(one.items for one in found.values())


def test_what_cannot_be_seen_is_never_fine() -> None:
    found = findings(Hidden("/proc/irq", why="cannot be listed"))
    assert {one.verdict for one in found.values()} == {Verdict.NOT_VISIBLE}
    assert found["kernel-threads"].mount_at == "/host/proc"


def test_without_exclusive_cpus_nothing_is_judged() -> None:
    assert findings([interrupt(24, "rng", "0-3", movable=True)], exclusive={}) == {}


def test_text_shows_some_items_and_json_all() -> None:
    found = findings([interrupt(number, "nic", "0-3", movable=True) for number in range(30, 130)])
    groups = {"nothing here": (), "exclusive CPUs": tuple(found.values())}
    lines = list(as_text(groups, 80, colour=False))
    assert sum(" nic: " in line for line in lines) == 12
    assert "           and 88 more; -o json has all" in lines
    assert "nothing here" not in lines
    assert as_json(groups, strict=False).count(" nic: ") == 100


def test_a_node_is_read_and_not_written(tmp_path: Path) -> None:
    build_sysfs(parse("pack:1 l3:1 numa:1 core:4 pu:1", "test"), str(tmp_path))
    for number, mode in ((24, 0o644), (25, 0o444)):
        folder = tmp_path / f"proc/irq/{number}"
        (folder / f"dev{number}").mkdir(parents=True)
        (folder / "smp_affinity_list").write_text("0-3\n")
        (folder / "smp_affinity_list").chmod(mode)
    (tmp_path / "proc/1").mkdir()
    (tmp_path / "proc/15").mkdir()
    (tmp_path / "proc/15/stat").write_text("15 (ksoftirqd/2) S 2 0 0 0 -1 69238848 0\n")
    (tmp_path / "proc/15/status").write_text("Cpus_allowed_list:\t2\n")
    pod = PodRecord("u1", "s1", "web", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")
    record = ContainerRecord(
        "c1", "u1", "app", Phase.RUNNING, CgroupRef("/kubepods/podu1", "/kubepods/podu1/c1")
    )
    state = State({"u1": pod}, {"c1": record}, {"u1/app": Allocation(CPUSet.parse("2-3"))})
    CheckpointFile(str(tmp_path / "run"), durable=False).save(state)
    before = snapshot(tmp_path / "proc")
    seen = Evidence(NodeView(str(tmp_path), []), Paths(state_dir="/run"))
    assert seen.exclusive == WEB
    assert not isinstance(seen.interrupts, Hidden)
    threads = seen.kernel_threads
    assert snapshot(tmp_path / "proc") == before
    assert [(one.number, one.is_movable) for one in seen.interrupts] == [(24, True), (25, False)]
    assert threads == [KernelThread(15, "ksoftirqd/2", CPUSet.of(2), is_bound=True)]


def snapshot(root: Path) -> dict[str, float]:
    return {
        os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_mtime_ns
        for folder, _, names in os.walk(root)
        for name in names
    }
