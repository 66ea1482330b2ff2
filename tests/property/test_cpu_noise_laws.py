"""Whatever the counters are, their differences are those that a slow reader of the two texts finds."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.host.cpu_noise import MOST_PER_SECOND, CPUNoise, NoiseKind, noise_of
from nri_plugin.host.kernel_counters import (
    TICK_US,
    ContainerCounters,
    NodeCounters,
    parse_interrupts,
    parse_softirqs,
    parse_stat,
)
from nri_plugin.model.sets import CPUSet
from tests.oracles import kernel_counters as oracle

WRAP = 1 << 32
MOST_CPUS = 6
LABELS = ("24", "25", "131", "LOC", "RES", "CAL", "TLB", "NMI")
ABOUT = {
    "24": "PCI-MSIX-0000:00:02.0   0-edge      nvme0q0",
    "25": "PCI-MSI 32769-edge      nvme0q1, PCIe PME",
    "131": "IO-APIC   4-edge      ",
}
counts = st.integers(0, WRAP - 1) | st.integers(WRAP - 1000, WRAP - 1)
rises = st.integers(0, MOST_PER_SECOND)
cpu_sets = st.frozensets(st.integers(0, MOST_CPUS - 1), min_size=1)


@dataclass(frozen=True)
class Texts:
    """The three files at one moment."""

    interrupts: str
    softirqs: str
    stat: str

    def parsed(self, at_s: float, cpus: CPUSet) -> NodeCounters:
        return NodeCounters(
            at_s,
            cpus,
            parse_interrupts(self.interrupts, cpus),
            parse_softirqs(self.softirqs, cpus),
            parse_stat(self.stat, cpus),
        )


def lines(counters: dict[str, dict[int, int]], online: list[int], blanks: int) -> str:
    head = " " * 12 + "".join(f"CPU{cpu:<8}" for cpu in online)
    rows = [
        f"{label:>{4 + blanks}}: "
        + "".join(f"{by_cpu[cpu] % WRAP:>10} " for cpu in online)
        + f"{' ' * blanks}{ABOUT.get(label, '  Words of the kernel')}"
        for label, by_cpu in counters.items()
    ]
    return "\n".join([head, *rows, " ERR:          0", ""])


@st.composite
def two_texts(draw: st.DrawFn) -> tuple[Texts, Texts]:
    """The files before and after: counters of 32 bits go on, CPUs and lines come and go, the layout differs."""
    everything = list(range(MOST_CPUS))
    first = {label: {cpu: draw(counts) for cpu in everything} for label in LABELS}
    ticks = {cpu: [draw(st.integers(0, 1 << 40)) for _ in range(10)] for cpu in everything}
    added = {label: {cpu: draw(rises) for cpu in everything} for label in LABELS}
    blanks = draw(st.integers(0, 2))
    texts = []
    for number in range(2):
        shown = draw(st.lists(st.sampled_from(LABELS), unique=True))
        online = sorted(draw(cpu_sets))
        now = {
            label: {cpu: first[label][cpu] + number * added[label][cpu] for cpu in everything}
            for label in shown
        }
        stat = "\n".join(
            f"cpu{cpu} " + " ".join(str(value + number * cpu) for value in ticks[cpu]) for cpu in online
        )
        possible = lines({"TIMER": {cpu: first["LOC"][cpu] + number for cpu in everything}}, everything, 0)
        texts.append(Texts(lines(now, online, blanks), possible, f"cpu  1 2 3\n{stat}\nintr 5 5\n"))
    return texts[0], texts[1]


@given(two_texts(), cpu_sets)
def test_figures_are_those_of_the_slow_reader(texts: tuple[Texts, Texts], asked: frozenset[int]) -> None:
    before, after = texts
    cpus = CPUSet.from_ids(asked)
    noise = noise_of(cpus, before.parsed(0.0, cpus), after.parsed(1.0, cpus))
    for row in noise.rows:
        for cpu, value in row.by_cpu.items():
            assert value == slow(before, after, row.kind, label_of(row.name, row.interrupt), cpu)
        assert row.total == sum(row.by_cpu.values())
    told = {label_of(row.name, row.interrupt) for row in noise.rows}
    both = [label for label in LABELS if f" {label}:" in after.interrupts]
    assert set(both) <= told or cpus == noise.uncounted
    check_uncounted(noise, before, after)


def label_of(name: str, interrupt: int | None) -> str:
    return name if interrupt is None else str(interrupt)


def slow(before: Texts, after: Texts, kind: NoiseKind, label: str, cpu: int) -> int:
    if kind is NoiseKind.STEAL:
        first, last = oracle.ticks(before.stat, cpu), oracle.ticks(after.stat, cpu)
        assert first is not None
        assert last is not None
        return (last[1] - first[1]) * TICK_US
    is_softirq = kind is NoiseKind.SOFTIRQ
    then, now = (one.softirqs if is_softirq else one.interrupts for one in (before, after))
    found = oracle.rise(then, now, label, cpu)
    if found is not None:
        return found
    # A new line began at 0.
    count = oracle.cell(now, label, cpu)
    assert oracle.cell(then, label, cpu) is None
    assert count is not None
    return count


def check_uncounted(noise: CPUNoise, before: Texts, after: Texts) -> None:
    """A CPU is counted where it was online at both ends, and only there."""
    for cpu in noise.cpus:
        stayed = oracle.ticks(before.stat, cpu) is not None and oracle.ticks(after.stat, cpu) is not None
        assert (cpu in noise.uncounted) is not stayed


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_time_of_strangers_and_of_the_container_make_up_the_busy_time(
    began: int, own: int, others: int
) -> None:
    stat = "cpu0 {} 0 0 9 9 0 0 0 0 0\n"
    one = CPUSet.of(0)
    before, after = (
        NodeCounters(0.0, one, times=parse_stat(stat.format(t), one)) for t in (began, began + own + others)
    )
    used = ContainerCounters(used_us=7), ContainerCounters(used_us=7 + own * TICK_US)
    assert noise_of(one, before, after, used).total(NoiseKind.STRANGERS) == others * TICK_US
