"""Counters of the noise on exclusive CPUs; registered only where `cpuNoisePeriodSeconds` is set.

A scrape reads the kernel's counters, at most once in a period, and adds what rose since the reading before. A container counts from
the first reading that finds it, for as long as it has the same CPUs. Threads are not read: they cost a few files each.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin.host.cpu_noise import CPUNoise, NoiseKind, noise_of
from nri_plugin.host.kernel_counters import ContainerCounters, ContainerFiles, CounterFiles, NodeCounters
from nri_plugin.model.options import Node
from nri_plugin.model.records import ContainerRecord, Phase
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State

LABELS = ("namespace", "pod", "container")

INTERRUPTS = "nri_pin_cpu_noise_interrupts_total"
SOFTIRQS = "nri_pin_cpu_noise_softirqs_total"
MEMORY = "nri_pin_cpu_noise_foreign_memory_bytes"
READINGS = "nri_pin_cpu_noise_readings_total"

BY_KIND: Mapping[NoiseKind, str] = {
    NoiseKind.DEVICE: "device",
    NoiseKind.TICK: "timer",
    NoiseKind.IPI: "ipi",
    NoiseKind.OTHER: "other",
}
"""Values of the label `kind` of interrupts."""

SECONDS: Mapping[NoiseKind, tuple[str, str]] = {
    NoiseKind.STRANGERS: (
        "nri_pin_cpu_noise_foreign_seconds_total",
        "Run time of anything but the container on its exclusive CPUs, exact to a tick for each reading.",
    ),
    NoiseKind.STEAL: (
        "nri_pin_cpu_noise_steal_seconds_total",
        "Time that the host of a virtual machine kept from exclusive CPUs.",
    ),
    NoiseKind.QUEUE: (
        "nri_pin_cpu_noise_queue_seconds_total",
        "Time that threads waited in the run queues of exclusive CPUs.",
    ),
    NoiseKind.THROTTLED: (
        "nri_pin_cpu_noise_throttled_seconds_total",
        "Time that a CPU quota stopped a container with exclusive CPUs.",
    ),
    NoiseKind.PRESSURE: (
        "nri_pin_cpu_noise_cpu_pressure_seconds_total",
        "Time that a thread of a container with exclusive CPUs waited for a CPU.",
    ),
    NoiseKind.IRQ_PRESSURE: (
        "nri_pin_cpu_noise_irq_pressure_seconds_total",
        "Time that interrupts held up a container with exclusive CPUs.",
    ),
}

COUNTS: Mapping[NoiseKind, tuple[str, str]] = {
    NoiseKind.HINT_FAULT: (
        "nri_pin_cpu_noise_numa_hint_faults_total",
        "Page faults that NUMA balancing caused in containers with exclusive CPUs.",
    ),
    NoiseKind.PAGE: (
        "nri_pin_cpu_noise_numa_pages_migrated_total",
        "Pages of containers with exclusive CPUs that NUMA balancing moved.",
    ),
}


@dataclass(frozen=True, slots=True)
class Followed:
    """A container at the last reading.

    Attributes:
        cpus: its exclusive CPUs.
        own: its counters; None where its cgroup is not there.
    """

    cpus: CPUSet
    own: ContainerCounters | None


@dataclass(slots=True)
class Sums:
    """The noise of a container since it was first read.

    Attributes:
        labels: values of `LABELS`.
        totals: by kind.
        softirqs: by kind of softirq.
        memory_bytes: on foreign NUMA nodes now; None for unknown.
    """

    labels: tuple[str, ...]
    totals: dict[NoiseKind, int] = field(default_factory=dict)
    softirqs: dict[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None

    def add(self, noise: CPUNoise) -> None:
        """Add the noise of an interval."""
        totals = noise.totals()
        for kind, total in totals.items():
            self.totals[kind] = self.totals.get(kind, 0) + total
        for row in noise.rows:
            if row.kind is NoiseKind.SOFTIRQ:
                self.softirqs[row.name] = self.softirqs.get(row.name, 0) + row.total
        self.memory_bytes = totals.get(NoiseKind.MEMORY)


class NoiseCounts(Collector):
    """The noise of each container with exclusive CPUs.

    Args:
        current: the node and state decisions are made from now; two reads of frozen values.
        counters: the files of the node.
        files: the files of containers; None without a cgroup tree.
        period_s: the least time between two readings.
    """

    def __init__(
        self,
        current: Callable[[], tuple[Node, State]],
        counters: CounterFiles,
        files: ContainerFiles | None,
        period_s: float,
    ) -> None:
        self._current, self._counters, self._files, self._period_s = current, counters, files, period_s
        self._node: NodeCounters | None = None
        self._followed: dict[str, Followed] = {}
        self._sums: dict[str, Sums] = {}
        self._readings = 0

    def describe(self) -> Iterable[Metric]:
        """Nothing: there is no state yet when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All counters, after a reading where one is due."""
        if self._node is None or self._counters.now() - self._node.at_s >= self._period_s:
            self._read()
        yield self._interrupts()
        yield self._softirqs()
        for kind, (name, text) in (*SECONDS.items(), *COUNTS.items()):
            family = CounterMetricFamily(name, text, labels=LABELS)
            for one in self._sums.values():
                if kind in one.totals:
                    value = one.totals[kind]
                    family.add_metric(one.labels, value / 1e6 if kind in SECONDS else value)
            yield family
        memory = GaugeMetricFamily(
            MEMORY,
            "Memory of containers with exclusive CPUs on NUMA nodes that are not those of the CPUs.",
            labels=LABELS,
        )
        for one in self._sums.values():
            if one.memory_bytes is not None:
                memory.add_metric(one.labels, one.memory_bytes)
        yield memory
        readings = CounterMetricFamily(READINGS, "Readings of the kernel's counters for these metrics.")
        readings.add_metric((), self._readings)
        yield readings

    def _read(self) -> None:
        node, state = self._current()
        records = list(_measured(state))
        cpus = NO_CPUS
        for _, own in records:
            cpus |= own
        counters, followed = self._counters.read(cpus), {}
        for record, own in records:
            now = followed[record.id] = Followed(
                own, self._files.read(record.cgroup) if self._files else None
            )
            before = self._followed.get(record.id)
            sums = self._sums.setdefault(record.id, Sums(_labels(state, record)))
            if self._node is not None and before is not None and before.cpus == own:
                pair = before.own, now.own
                sums.add(noise_of(own, self._node, counters, pair, node.topology.nodes_of(own)))
        self._node, self._followed, self._readings = counters, followed, self._readings + 1
        self._sums = {key: sums for key, sums in self._sums.items() if key in followed}

    def _interrupts(self) -> Metric:
        family = CounterMetricFamily(
            INTERRUPTS, "Interrupts of exclusive CPUs, by kind.", labels=(*LABELS, "kind")
        )
        for one in self._sums.values():
            for kind, label in BY_KIND.items():
                if kind in one.totals:
                    family.add_metric((*one.labels, label), one.totals[kind])
        return family

    def _softirqs(self) -> Metric:
        family = CounterMetricFamily(
            SOFTIRQS, "Softirqs of exclusive CPUs, by the kernel's name.", labels=(*LABELS, "kind")
        )
        for one in self._sums.values():
            for kind, count in one.softirqs.items():
                family.add_metric((*one.labels, kind), count)
        return family


def _measured(state: State) -> Iterator[tuple[ContainerRecord, CPUSet]]:
    """Containers that exist and have exclusive CPUs, with these."""
    for record in state.containers.values():
        held = state.allocation_of(record)
        if held is not None and held.cpus and not held.is_pod_shared and record.phase is not Phase.STOPPED:
            yield record, held.in_force


def _labels(state: State, record: ContainerRecord) -> tuple[str, ...]:
    pod = state.pods.get(record.pod_uid)
    return (pod.namespace if pod else "", pod.name if pod else "", record.name)
