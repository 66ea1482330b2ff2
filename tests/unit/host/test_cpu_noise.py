"""Differences of two readings: offline CPUs, wraps, lines that come and go, and what cannot be told."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nri_plugin.host.cpu_noise import (
    MOST_PER_SECOND,
    CPUNoise,
    NoiseKind,
    NoiseRow,
    Unseen,
    counted,
    kind_of,
    loudest,
    noise_of,
    resolution_us,
)
from nri_plugin.host.kernel_counters import (
    TICK_US,
    ContainerCounters,
    CPUTime,
    LineID,
    NodeCounters,
    ThreadCounters,
)
from nri_plugin.model.sets import CPUSet, NodeMask

CPUS = CPUSet.parse("2-3")
DISK = LineID("36", "PCI-MSIX-0000:00:02.0 1-edge nvme0q1", "nvme0q1", "0000:00:02.0")
TICK = LineID("LOC", "Local timer interrupts", "Local timer interrupts")


def reading(
    at_s: float = 0.0,
    interrupts: Mapping[LineID, Mapping[int, int]] | None = None,
    busy: Mapping[int, int] | None = None,
    **more: object,
) -> NodeCounters:
    """A reading of CPUs 2 and 3; `busy` are milliseconds."""
    times = {cpu: CPUTime(ms * 1000, 0) for cpu, ms in (busy or {2: 0, 3: 0}).items()}
    return NodeCounters(at_s, CPUS, interrupts or {}, {}, times, **more)  # type: ignore[arg-type]


def row(noise: CPUNoise, kind: NoiseKind, name: str = "") -> NoiseRow:
    (found,) = [one for one in noise.rows if one.kind is kind and name in {one.name, ""}]
    return found


def test_counts_are_told_by_cpu_and_as_a_sum() -> None:
    before = reading(1.0, {DISK: {2: 5, 3: 0}, TICK: {2: 10, 3: 20}})
    after = reading(11.0, {DISK: {2: 15, 3: 1}, TICK: {2: 11, 3: 22}})
    noise = noise_of(CPUS, before, after)
    assert noise.seconds == 10.0
    assert row(noise, NoiseKind.DEVICE) == NoiseRow(
        NoiseKind.DEVICE, "nvme0q1", 11, {2: 10, 3: 1}, 36, "0000:00:02.0"
    )
    assert row(noise, NoiseKind.TICK).by_cpu == {2: 1, 3: 2}
    assert noise.total(NoiseKind.DEVICE, NoiseKind.TICK) == 14
    assert noise.total(NoiseKind.TICK, cpu=3) == 2
    assert loudest(noise) == [2, 3]


@pytest.mark.parametrize(
    ("before", "after", "rise"),
    [
        (5, 5, 0),
        (5, 9, 4),
        ((1 << 32) - 3, 4, 7),
        (500, 3, 3),  # began again: the line was freed and requested again
        (1 << 33, 3, 3),
    ],
)
def test_a_counter_goes_on_wraps_or_begins_again(before: int, after: int, rise: int) -> None:
    assert counted(before, after, MOST_PER_SECOND) == rise


def test_a_line_that_appears_began_at_0_and_one_that_vanished_is_not_told() -> None:
    noise = noise_of(CPUS, reading(0.0, {TICK: {2: 7, 3: 7}}), reading(1.0, {DISK: {2: 4, 3: 0}}))
    assert [(one.name, one.total) for one in noise.rows if one.kind is NoiseKind.DEVICE] == [("nvme0q1", 4)]
    assert noise.total(NoiseKind.TICK) is None


@pytest.mark.parametrize("gone_at", ["begin", "end"])
def test_a_cpu_that_is_offline_at_one_end_is_named_and_not_counted(gone_at: str) -> None:
    whole = reading(0.0, {TICK: {2: 10, 3: 20}}, {2: 0, 3: 0})
    part = reading(1.0, {TICK: {2: 12}}, {2: 500})
    own = ContainerCounters(used_us=1), ContainerCounters(used_us=2)
    noise = noise_of(CPUS, whole, part, own) if gone_at == "end" else noise_of(CPUS, part, whole, own)
    assert noise.uncounted == CPUSet.of(3)
    assert set(row(noise, NoiseKind.TICK).by_cpu) == {2}
    assert noise.total(NoiseKind.STRANGERS) is None  # what the container used on CPU 3 is not known


def test_of_cpus_that_are_all_offline_nothing_is_known() -> None:
    other = {TICK: {7: 1}}, {7: 0}
    noise = noise_of(CPUS, reading(0.0, *other), reading(1.0, *other))
    assert (noise.uncounted, noise.rows) == (CPUS, ())


def test_a_cpu_that_goes_between_two_files_of_one_reading_is_not_counted_from_0() -> None:
    before = reading(0.0, {TICK: {2: 10}}, {2: 0, 3: 0})
    after = reading(1.0, {TICK: {2: 11, 3: 4_000_000}}, {2: 0, 3: 0})
    noise = noise_of(CPUS, before, after)
    assert (noise.uncounted, noise.total(NoiseKind.TICK)) == (CPUSet.of(3), 1)


def test_strangers_are_what_was_busy_beside_the_container() -> None:
    before, after = reading(0.0, busy={2: 0, 3: 0}), reading(10.0, busy={2: 9000, 3: 1000})
    own = ContainerCounters(used_us=1_000_000), ContainerCounters(used_us=10_500_000)
    assert noise_of(CPUS, before, after, own).total(NoiseKind.STRANGERS) == 500_000
    more = own[0], ContainerCounters(used_us=12_000_000)  # the tick counted less than ran
    assert noise_of(CPUS, before, after, more).total(NoiseKind.STRANGERS) == 0
    assert resolution_us(CPUS) == 2 * TICK_US


def test_shootdowns_are_not_added_to_the_function_calls_that_they_may_be() -> None:
    lines = {name: LineID(name, name, name) for name in ("RES", "CAL", "TLB")}
    before = reading(0.0, {line: {2: 0, 3: 0} for line in lines.values()})
    after = reading(1.0, {lines["RES"]: {2: 1, 3: 0}, lines["CAL"]: {2: 5, 3: 0}, lines["TLB"]: {2: 3, 3: 0}})
    noise = noise_of(CPUS, before, after)
    assert noise.total(NoiseKind.IPI) == 6
    assert noise.total(NoiseKind.IPI, cpu=2) == 6


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (LineID("36", "", "nvme0q1"), NoiseKind.DEVICE),
        (LineID("11", "", "arch_timer"), NoiseKind.TICK),
        (LineID("LOC", "", ""), NoiseKind.TICK),
        (LineID("IPI3", "", "Rescheduling interrupts"), NoiseKind.IPI),
        (LineID("RES", "", ""), NoiseKind.IPI),
        (LineID("NMI", "", ""), NoiseKind.OTHER),
    ],
)
def test_kinds_of_lines(line: LineID, kind: NoiseKind) -> None:
    assert kind_of(line) is kind


OWN = ContainerCounters(0, 0, 0, 0, 0, 0, 0, {0: 5, 1: 7}, {})


def test_counters_of_the_cgroup_are_differences_and_foreign_memory_is_what_is_there() -> None:
    after = replace(OWN, throttled_us=5, cpu_pressure_us=6, numa_hint_faults=2, numa_pages_migrated=1)
    noise = noise_of(CPUS, reading(), reading(1.0), (OWN, after), NodeMask.of(0))
    kinds = (NoiseKind.THROTTLED, NoiseKind.PRESSURE, NoiseKind.HINT_FAULT, NoiseKind.PAGE, NoiseKind.MEMORY)
    assert [noise.total(kind) for kind in kinds] == [5, 6, 2, 1, 7]
    assert noise.unseen == (Unseen.QUEUE,)


def test_a_cgroup_that_was_made_anew_began_at_0() -> None:
    noise = noise_of(
        CPUS, reading(), reading(1.0), (replace(OWN, throttled_us=100), replace(OWN, throttled_us=3))
    )
    assert noise.total(NoiseKind.THROTTLED) == 3


def test_threads_that_are_new_or_reuse_a_number_began_at_0() -> None:
    before = {7: ThreadCounters(10, 5, 1), 8: ThreadCounters(1000, 500, 9), 9: ThreadCounters(1, 1, 1)}
    after = {7: ThreadCounters(30, 6, 1), 8: ThreadCounters(2, 3, 0), 10: ThreadCounters(4, 1, None)}
    own = replace(OWN, threads=before), replace(OWN, threads=after)
    noise = noise_of(CPUS, reading(), reading(1.0), own)
    kinds = (NoiseKind.WAIT, NoiseKind.INVOLUNTARY, NoiseKind.MIGRATION)
    assert [noise.total(kind) for kind in kinds] == [26, 5, 0]


def test_waits_in_the_run_queue_are_told_by_cpu() -> None:
    noise = noise_of(CPUS, reading(queue_us={2: 5, 3: 5}), reading(1.0, queue_us={2: 9, 3: 5}))
    assert row(noise, NoiseKind.QUEUE).by_cpu == {2: 4, 3: 0}


def test_what_cannot_be_seen_is_named_and_has_no_figure() -> None:
    nothing = NodeCounters(0.0, CPUS)
    noise = noise_of(CPUS, nothing, replace(nothing, at_s=1.0))
    assert noise.rows == ()
    assert noise.total(*NoiseKind) is None
    assert set(noise.unseen) == {
        Unseen.INTERRUPTS,
        Unseen.SOFTIRQS,
        Unseen.CPU_TIME,
        Unseen.QUEUE,
        Unseen.CGROUP,
    }
    partly = noise_of(CPUS, reading(), reading(1.0), (ContainerCounters(1), ContainerCounters(1)))
    assert set(partly.unseen) == {Unseen.QUEUE, Unseen.THREADS, Unseen.IRQ_PRESSURE, Unseen.NUMA_FAULTS}


def test_a_clock_that_stands_still_makes_no_negative_time() -> None:
    assert noise_of(CPUS, reading(5.0), reading(4.0)).seconds == 0.0
