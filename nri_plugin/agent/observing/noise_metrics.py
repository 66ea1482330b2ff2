"""Counters of the noise on exclusive CPUs; registered only where `cpuNoisePeriodSeconds` is set.

A scrape reads the kernel's counters, at most once in a period, and adds what rose since the reading before. A container counts from
the first reading that finds it, for as long as it has the same CPUs. Threads are not read: they cost a few files each.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nri_plugin.host.cpu_noise import TIMES, CPUNoise, NoiseKind, noise_of
from nri_plugin.host.kernel_counters import ContainerCounters, ContainerFiles, CounterFiles, NodeCounters
from nri_plugin.model.options import Node
from nri_plugin.model.records import ContainerRecord, Phase
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State

BY_KIND: Mapping[NoiseKind, str] = {
    NoiseKind.DEVICE: "device",
    NoiseKind.TICK: "timer",
    NoiseKind.IPI: "ipi",
    NoiseKind.OTHER: "other",
}
"""Values of the label `kind` of interrupts."""


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
        labels: namespace, pod and container.
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


class NoiseReadings:
    """The noise of each container with exclusive CPUs.

    Args:
        current: the node and state decisions are made from now; two reads of frozen values.
        counters: the files of the node.
        files: the files of containers; None without a cgroup tree.
        period_s: the least time between two readings.

    Attributes:
        readings: their number.
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
        self.readings = 0

    def read_when_due(self) -> "NoiseReadings":
        """Read once a period has passed; return the readings."""
        if self._node is None or self._counters.now() - self._node.at_s >= self._period_s:
            self._read()
        return self

    def totals(self, kind: NoiseKind) -> Mapping[tuple[str, ...], float]:
        """Return the sums of a kind by container: seconds where it is a time."""
        unit = 1e6 if kind in TIMES else 1
        return {one.labels: one.totals[kind] / unit for one in self._sums.values() if kind in one.totals}

    def interrupts(self) -> Mapping[tuple[str, ...], float]:
        """Return the interrupts by container and kind."""
        return {
            (*one.labels, label): one.totals[kind]
            for one in self._sums.values()
            for kind, label in BY_KIND.items()
            if kind in one.totals
        }

    def softirqs(self) -> Mapping[tuple[str, ...], float]:
        """Return the softirqs by container and kind."""
        return {
            (*one.labels, kind): count for one in self._sums.values() for kind, count in one.softirqs.items()
        }

    def foreign_memory(self) -> Mapping[tuple[str, ...], float]:
        """Return the bytes on foreign NUMA nodes, by container."""
        return {one.labels: one.memory_bytes for one in self._sums.values() if one.memory_bytes is not None}

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
            pod = state.pods.get(record.pod_uid)
            labels = (pod.namespace if pod else "", pod.name if pod else "", record.name)
            sums = self._sums.setdefault(record.id, Sums(labels))
            if self._node is not None and before is not None and before.cpus == own:
                pair = before.own, now.own
                sums.add(noise_of(own, self._node, counters, pair, node.topology.nodes_of(own)))
        self._node, self._followed, self.readings = counters, followed, self.readings + 1
        self._sums = {key: sums for key, sums in self._sums.items() if key in followed}


def _measured(state: State) -> Iterator[tuple[ContainerRecord, CPUSet]]:
    """Containers that exist and have exclusive CPUs, with these."""
    for record in state.containers.values():
        held = state.allocation_of(record)
        if held is not None and held.cpus and not held.is_pod_shared and record.phase is not Phase.STOPPED:
            yield record, held.in_force
