"""The metrics of the agent, under the kubelet's names where the kubelet has one.

Each metric is a `Row` of a table: its name, its help, and the function that counts. `Metrics` goes through the rows; the
tables of the guide are made from them. This module is loaded only where `metricsBindAddress` is set.

Source: names, labels and help of kubelet v1.36 pkg/kubelet/metrics/metrics.go, and `kubelet_cpu_manager_*` as
pkg/kubelet/cm/cpumanager/policy_static.go, initializeMetrics; the `kubelet_` prefix is kept so that dashboards and alerts
only change the job.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Generic, TypeVar, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin import __version__
from nri_plugin.agent.observing.admission_counts import (
    POD_LEVEL_SERIES,
    Admission,
    PodLevel,
    admission_of,
    resource_counts,
)
from nri_plugin.agent.observing.noise_metrics import NoiseReadings
from nri_plugin.agent.repair.affinity import RESULTS as AFFINITY_RESULTS
from nri_plugin.agent.repair.drift_watch import DriftReport, DriftWatch
from nri_plugin.agent.repair.interrupts_thread import QuietCPUsThread
from nri_plugin.agent.repair.kernel_settings import KernelSettingsReconciler, NoticedBy
from nri_plugin.agent.repair.other_owners import OwnerEvidence
from nri_plugin.agent.repair.unreported import UnreportedContainers
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.link import RuntimeLink
from nri_plugin.agent.serving.observe_only import EXCLUSIVE, KINDS, POD_SHARED, SHARED, ObservedWatch, kind_of
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.agent.serving.pod_facts import RESULTS as ANSWERS
from nri_plugin.core.drift import Cause
from nri_plugin.core.engine import DECIDED
from nri_plugin.core.hint_providers import tables_of
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.host.cpu_noise import NoiseKind
from nri_plugin.host.kernel_counters import ContainerFiles, CounterFiles
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.records import ContainerRecord, Phase, is_whole_pod
from nri_plugin.model.state import State
from nri_plugin.policy.alignment import Fragmentation, by_cache, by_numa_node
from nri_plugin.process.http_server import PROMETHEUS_TEXT, Page, one_at_a_time
from nri_plugin.wire.nri import events as nri

From = TypeVar("From")

Amounts = Mapping[tuple[str, ...], float]
"""By the values of the labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Row(Generic[From]):
    """A metric; one whose name ends in `_total` is a counter.

    Attributes:
        help: one sentence.
        count: what a source counts or shows: a number, amounts by labels, or None where there is none. A counter
            without it is counted by `Metrics` itself.
        labels: their names.
        series: the values of the labels of a counter that are shown before anything was counted.
        counts: a counter of another name.
        see: the part of the guide that explains more, as a link.
    """

    help: str
    count: Callable[[From], float | Amounts | None] = lambda _source: None
    labels: Sequence[str] = ()
    series: Sequence[tuple[str, ...]] = ((),)
    counts: bool = False
    see: str = ""

    def family(self, name: str, amounts: float | Amounts) -> Metric:
        """Return the metric with these amounts."""
        by_labels: Amounts = amounts if isinstance(amounts, Mapping) else {(): amounts}
        if self.counts:  # the library would add `_total` to the name of a counter
            metric = Metric(name, self.help, "unknown")
            for values, amount in by_labels.items():
                metric.add_sample(name, dict(zip(self.labels, values, strict=True)), amount)
            return metric
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, self.help, labels=self.labels)
        for values, amount in by_labels.items():
            family.add_metric(values, amount)
        return family


Table = Mapping[str, Row[From]]
"""Rows by the names of the metrics."""


class Shown(Collector, Generic[From]):
    """Shows what a source has at the moment of a scrape.

    Args:
        rows: the metrics.
        read: returns the source; safe from any thread. None while there is none: what has no labels is 0 then.
    """

    def __init__(self, rows: Table[From], read: Callable[[], From | None] = lambda: None) -> None:
        self._rows, self.read = rows, read

    def collect(self) -> Iterator[Metric]:
        """All rows that have a value."""
        source = self.read()
        for name, row in self._rows.items():
            amounts = row.count(source) if source is not None else None if row.labels else 0
            if amounts is not None:
                yield row.family(name, amounts)


class Counts(Collector):
    """Counts by rows; any thread may add."""

    def __init__(self, rows: Table[Any]) -> None:
        self._lock, self._rows = threading.Lock(), rows
        self._counts: dict[str, dict[tuple[str, ...], float]] = {
            name: dict.fromkeys(row.series, 0) for name, row in rows.items()
        }

    def inc(self, name: str, *labels: str) -> None:
        """Add one to a series of a metric."""
        with self._lock:
            self._counts[name][labels] += 1

    def add(self, name: str, amounts: float | Amounts | None) -> None:
        """Add amounts to a metric."""
        if amounts:
            with self._lock:
                for labels, amount in (amounts if isinstance(amounts, Mapping) else {(): amounts}).items():
                    self._counts[name][labels] += amount

    def collect(self) -> Iterator[Metric]:
        """All rows."""
        with self._lock:
            counts = {name: dict(counted) for name, counted in self._counts.items()}
        for name, row in self._rows.items():
            yield row.family(name, counts[name])


def _each(values: Iterable[str]) -> Sequence[tuple[str, ...]]:
    return [(value,) for value in values]


# Counters of the runtime's events

EVENTS = (*(kind.__name__ for kind in nri.EVENTS if kind in DECIDED), "other")
"""Values of the label `event`: a closed set, also for events of a newer runtime."""

RESULTS = ("answered", "refused", "failed")
REASONS = (
    "TopologyAffinityError",
    "SMTAlignmentError",
    "EmptyPodSharedPoolError",
    "UnexpectedAdmissionError",
)
SECONDS = tuple(0.00005 * 2**step for step in range(16))
"""50 us to 1.6 s, a little less than the runtimes' default limit of 2 s."""

MILLISECONDS = tuple(0.05 * 2**step for step in range(15))
"""Source: kubelet, ExponentialBuckets(.05, 2, 15)."""

ALIGNABLE = (
    ("container", "numa_node"),
    ("pod", "numa_node"),
    ("container", "physical_cpu"),
    ("container", "uncore_cache"),
)


def event_of(outcome: RequestOutcome) -> str:
    """Return the label `event`."""
    name = type(outcome.event).__name__
    return name if name in EVENTS else "other"


def result_of(outcome: RequestOutcome) -> str:
    """Return the label `result`: failed when the reason is not policy."""
    if outcome.failed:
        return "failed"
    return "refused" if outcome.refusal else "answered"


DECISION_S = "nri_pin_decision_duration_seconds"
HOOK_S = "nri_pin_hook_duration_seconds"
ADMISSION_MS = "kubelet_topology_manager_admission_duration_ms"
CHECKPOINT_S = "nri_pin_checkpoint_duration_seconds"
TIMINGS = {
    DECISION_S: ("Deciding one event, without I/O.", SECONDS, ("event",)),
    HOOK_S: ("Handling one event until its answer is ready; the runtime waits for it.", SECONDS, ("event",)),
    ADMISSION_MS: ("Duration in milliseconds to serve an admission request.", MILLISECONDS, ()),
    CHECKPOINT_S: ("Saving the state, or failing to.", SECONDS, ()),
}
"""Histograms: help, buckets and labels."""

OF_ADMISSIONS: Table[Admission] = {
    "kubelet_topology_manager_admission_requests_total": Row(
        "The number of admission requests where resources have to be aligned.", lambda _one: 1
    ),
    "kubelet_topology_manager_admission_errors_total": Row(
        "The number of admission request failures where resources could not be aligned.",
        lambda one: one.is_refused,
    ),
    "kubelet_container_aligned_compute_resources_count": Row(
        "Cumulative number of aligned compute resources allocated to containers, by alignment type.",
        lambda one: Counter(one.aligned),
        labels=("scope", "boundary"),
        series=ALIGNABLE,
        counts=True,
    ),
    "kubelet_container_aligned_compute_resources_failure_count": Row(
        "Cumulative number of failures to allocate aligned compute resources, by alignment type.",
        lambda one: Counter(one.unaligned),
        labels=("scope", "boundary"),
        # The kubelet knows no failure to stay in one uncore cache: it is a preference.
        series=ALIGNABLE[:-1],
        counts=True,
    ),
    "kubelet_cpu_manager_pinning_requests_total": Row(
        "The number of cpu core allocations which required pinning.", lambda one: one.asked_for_cpus
    ),
    "kubelet_cpu_manager_pinning_errors_total": Row(
        "The number of cpu core allocations which required pinning failed.", lambda one: one.cpus_failed
    ),
    "kubelet_memory_manager_pinning_requests_total": Row(
        "The number of memory pages allocations which required pinning.",
        lambda one: one.is_first_of_block + one.asked_for_memory,
    ),
    "kubelet_memory_manager_pinning_errors_total": Row(
        "The number of memory pages allocations which required pinning that failed.",
        lambda one: one.memory_failed,
    ),
    "nri_pin_refusals_total": Row(
        "Containers refused, or run without an allocation because of neverRefuse, by reason.",
        lambda one: {(one.reason,): 1} if one.is_refused else None,
        labels=("reason",),
        series=_each(REASONS),
    ),
    "nri_pin_refusals_from_memory_total": Row(
        "Refusals that repeat an earlier one without a decision, because nothing has changed since.",
        lambda one: one.outcome.from_memory,
    ),
    "nri_pin_inexact_decisions_total": Row(
        "Placements whose search ended before it was known to be the best.",
        lambda one: one.is_inexact,
        see="[limits](limits.md#more-than-8-numa-nodes)",
    ),
}

OF_POD_LEVEL: Table[Admission] = {
    "resource_manager_allocations_total": Row(
        "Allocations by the resource managers, out of the node or out of a pod.",
        lambda one: resource_counts(one)[PodLevel.ALLOCATIONS],
        ("resource_name", "source"),
        POD_LEVEL_SERIES[PodLevel.ALLOCATIONS],
    ),
    "resource_manager_allocation_errors_total": Row(
        "Allocations by the resource managers that failed.",
        lambda one: resource_counts(one)[PodLevel.ERRORS],
        ("resource_name", "source"),
        POD_LEVEL_SERIES[PodLevel.ERRORS],
    ),
    "resource_manager_container_assignments": Row(
        "Containers by how they got their resources.",
        lambda one: resource_counts(one)[PodLevel.ASSIGNMENTS],
        ("resource_name", "assignment_type"),
        POD_LEVEL_SERIES[PodLevel.ASSIGNMENTS],
        counts=True,
    ),
}
"""Only with the feature gate PodLevelResourceManagers. The kubelet's names of these have no `kubelet_` prefix."""

# Counters of the work between requests


def _by(label: str, values: Iterable[str], text: str, see: str = "") -> Row[None]:
    return Row(text, labels=(label,), series=_each(values), see=see)


RESULTS_OF_EVENTS = "nri_pin_events_total"
EXPORTER_ANSWERS = "nri_pin_exporter_answers_total"
DRIFTS = "nri_pin_drifts_total"
REPAIRS = "nri_pin_drift_repairs_total"
FAILED_REPAIRS = "nri_pin_drift_failures_total"
AFFINITIES = "nri_pin_inherited_affinities_total"
OTHER_OWNERS = "nri_pin_rival_pins_total"
QUOTAS_WRITTEN_BACK = "nri_pin_cpu_quotas_written_back_total"

COUNTED: Table[None] = {
    RESULTS_OF_EVENTS: Row(
        "Events of the runtime, by result.",
        labels=("event", "result"),
        series=tuple(product(EVENTS, RESULTS)),
    ),
    EXPORTER_ANSWERS: _by(
        "result", ANSWERS, "Questions to the exporter about created containers, by result."
    ),
    DRIFTS: _by("cause", Cause, "Cpusets that had drifted, by likely cause.", "[drift](operate.md#drift)"),
    REPAIRS: _by(
        "noticed_by",
        ("watch", "sweep", "update"),
        "Cpusets that were repaired after or before a change by another writer, by how that was noticed.",
    ),
    FAILED_REPAIRS: _by(
        "noticed_by", ("watch", "sweep"), "Repairs that failed, by how the drift was noticed."
    ),
    AFFINITIES: _by(
        "result",
        AFFINITY_RESULTS,
        "Containers that ran on a part of their CPUs, because they have the CPU affinity of the runtime, by result.",
        "[CPU affinity of the runtime](operate.md#cpu-affinity-of-the-runtime)",
    ),
    OTHER_OWNERS: _by("seen_at", OwnerEvidence, "Evidence of another CPU manager, by where it was seen."),
    QUOTAS_WRITTEN_BACK: _by(
        "noticed_by",
        get_args(NoticedBy),
        "CPU quotas that were written back and lifted again, by how that was noticed.",
    ),
}
"""Rows that `Metrics` counts."""

# Gauges of the watches. They are 0 in an agent that only observes.


@dataclass(frozen=True, slots=True)
class Repairing:
    """The watches of an agent that repairs; `settings` is None where there is no cgroup tree."""

    drift: DriftWatch
    unreported: UnreportedContainers
    settings: KernelSettingsReconciler | None


OF_REPAIR: Table[Repairing] = {
    "nri_pin_drift_fights": Row(
        "Cgroups that another writer changes after every repair.", lambda of: of.drift.fights
    ),
    "nri_pin_drift_waiting": Row(
        "Cgroups that have drifted and wait for the end of their pause.", lambda of: of.drift.waiting
    ),
    "nri_pin_unreported_containers": Row(
        "Containers that run and that the runtime did not report; they are kept off exclusive CPUs.",
        lambda of: len(of.unreported.names),
        see="[drift](operate.md#drift)",
    ),
    "nri_pin_cgroup_watches": Row(
        "Directories that the kernel watches for the agent.",
        lambda of: of.drift.watches + (of.settings.watches if of.settings else 0),
    ),
    "nri_pin_cpu_quotas_lifted": Row(
        "Cgroups of containers with exclusive CPUs, and of their pods, that are kept without a CPU quota.",
        lambda of: of.settings.lifted if of.settings else 0,
    ),
    "nri_pin_partitions": Row(
        "Containers whose exclusive CPUs are a partition.",
        lambda of: of.settings.partitions if of.settings else 0,
        see="[partitions](configure.md#partitions)",
    ),
    "nri_pin_partitions_refused": Row(
        "Containers without the desired partition: the kernel refused it.",
        lambda of: of.settings.refused if of.settings else 0,
    ),
}
OF_QUIET: Table[QuietCPUsThread] = {
    "nri_pin_quiet_cpus": Row(
        "CPUs that device interrupts are kept off.",
        lambda quiet: len(quiet.report.quiet),
        see="[quiet CPUs](quiet-cpus.md)",
    ),
    "nri_pin_quiet_settings": Row(
        "Interrupts, masks and latencies that have a value of the agent.", lambda quiet: quiet.report.moved
    ),
    "nri_pin_quiet_settings_changed": Row(
        "Quiet settings that another program changed; the agent keeps the new value.",
        lambda quiet: quiet.report.changed,
    ),
    "nri_pin_quiet_reaching_interrupts": Row(
        "Interrupts that can still reach quiet CPUs; nri-pin doctor names them.",
        lambda quiet: len(quiet.report.reaches),
    ),
    "nri_pin_quiet_rivals": Row(
        "Quiet settings that another program changes repeatedly.", lambda quiet: len(quiet.report.rivals)
    ),
    "nri_pin_quiet_trouble": Row(
        "1 while nothing is kept quiet: a mount is missing, or originals cannot be stored.",
        lambda quiet: bool(quiet.report.trouble),
    ),
    "nri_pin_quiet_writes_total": Row(
        "Writes to interrupts, masks and latencies for quiet CPUs, by result and by kind of setting or errno.",
        lambda quiet: dict(sorted(quiet.counts.items())),
        labels=("result", "of"),
    ),
}
OF_OBSERVED: Table[ObservedWatch] = {
    "nri_pin_observed_containers": Row(
        "Running containers, by what they would have been given and whether they run on just that.",
        lambda watch: {kind: watch.count(kind) for kind in KINDS},
        labels=("would", "runs"),
        see="[only with `observe`](install.md#try-it-beside-what-pins-today)",
    ),
}

# Gauges of the handler and its state


@dataclass(frozen=True, slots=True)
class Serving:
    """The handler, its link, and the numbers of incomplete pods and of failed pieces of work."""

    handler: Handler
    link: RuntimeLink
    incomplete: Callable[[], int]
    failures: Callable[[], int]


OF_SERVING: Table[Serving] = {
    "nri_pin_incomplete_pods": Row(
        "Pods that run in part: a container was refused while others of the pod exist, or what the pod owns is lost.",
        lambda of: of.incomplete(),
    ),
    "nri_pin_unsaved_allocations": Row(
        "Allocations that only the memory holds: the checkpoint could not be saved since they were made.",
        lambda of: len(of.handler.checkpoint.unsaved(of.handler.state)),
    ),
    "nri_pin_checkpoint_trouble": Row(
        "1 while the checkpoint cannot be saved, or others may change its directory; the log says why.",
        lambda of: bool(of.handler.checkpoint.unready()),
    ),
    "nri_pin_connections_lost_total": Row(
        "Connections that had served the runtime and ended; containers created meanwhile are placed afterwards.",
        lambda of: of.link.lost,
    ),
    "nri_pin_internal_errors_total": Row(
        "Pieces of work between requests that failed with an internal error; the log has the traces.",
        lambda of: of.failures(),
    ),
    "nri_pin_connected": Row(
        "1 when registered and synchronized with the container runtime.", lambda of: of.link.is_synchronized
    ),
    "nri_pin_build_info": Row(
        "The version, as a label; always 1.", lambda _of: {(__version__,): 1}, labels=("version",)
    ),
}


@dataclass(frozen=True)
class Placed:
    """A node and its state; both are frozen, so a scrape in another thread needs no lock and no copy."""

    node: Node
    state: State

    @cached_property
    def live(self) -> Sequence[ContainerRecord]:
        """Containers that are created or run."""
        return [record for record in self.state.containers.values() if record.phase is not Phase.STOPPED]

    @cached_property
    def is_static(self) -> bool:
        """Whether containers can get exclusive CPUs."""
        return self.node.options.cpu_manager_policy is CPUManagerPolicy.STATIC

    def by_cpus(self) -> Amounts:
        """Count the live containers by the CPUs that they run on."""
        counts = Counter(kind_of(self.state.allocation_of(record)) for record in self.live)
        return {(kind,): counts[kind] for kind in (EXCLUSIVE, POD_SHARED, SHARED)}

    def numa_nodes(self, of: Callable[[Fragmentation], float]) -> Amounts | None:
        """Return a figure of each NUMA node."""
        found = by_numa_node(tables_of(self.node), self.node.allocatable, self.state.available(self.node))
        return {(str(one.id),): of(one) for one in found} if self.is_static else None

    def caches(self, of: Callable[[Fragmentation], float]) -> Amounts | None:
        """Return a figure of each uncore cache."""
        node, tables = self.node, tables_of(self.node)
        found = by_cache(tables, node.topology, node.allocatable, self.state.available(node))
        return {(str(one.id),): of(one) for one in found} if self.is_static else None


OF_PLACED: Table[Placed] = {
    "kubelet_cpu_manager_shared_pool_size_millicores": Row(
        "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores, reserved CPUs not counted.",
        lambda of: 1000 * len(of.state.available(of.node)),
    ),
    "kubelet_cpu_manager_exclusive_cpu_allocation_count": Row(
        "The total number of CPUs exclusively allocated to containers running on this node.",
        lambda of: len(of.state.exclusive),
    ),
    "kubelet_cpu_manager_allocation_per_numa": Row(
        "Number of CPUs allocated per NUMA node.",
        lambda of: of.numa_nodes(lambda one: len(of.state.exclusive & one.cpus)),
        labels=("numa_node",),
    ),
    "nri_pin_shared_pool_cpus": Row(
        "CPUs that containers without exclusive CPUs run on, with reserved ones where they may be used.",
        lambda of: len(of.state.shared_pool(of.node)),
    ),
    "nri_pin_containers": Row("Containers that are created or run.", lambda of: len(of.live)),
    "nri_pin_unplaced_containers": Row(
        "Those in the shared pool although policy would have placed or refused them, or with the CPUs of before a resize.",
        lambda of: sum(1 for record in of.live if record.unplaced),
    ),
    "nri_pin_allocations_without_all_cpus": Row(
        "Those with exclusive CPUs that are not all online.",
        lambda of: sum(1 for key in of.state.lost(of.node) if not is_whole_pod(key)),
    ),
    "nri_pin_containers_by_cpus": Row(
        "Those by the CPUs that they run on: exclusive ones, the pod shared pool, or the shared pool.",
        lambda of: of.by_cpus(),
        labels=("cpus",),
    ),
    "nri_pin_pods_with_own_cpus": Row(
        "Pods that own CPUs as a whole, by resources of their own.",
        lambda of: sum(1 for key, one in of.state.allocations.items() if is_whole_pod(key) and one.cpus),
    ),
    "nri_pin_allocations": Row(
        "Containers with an allocation; it lasts as long as their pod.",
        lambda of: sum(1 for key in of.state.allocations if not is_whole_pod(key)),
    ),
    "nri_pin_numa_node_available_cpus": Row(
        "CPUs that can still become exclusive.",
        lambda of: of.numa_nodes(lambda one: len(one.available)),
        labels=("numa_node",),
    ),
    "nri_pin_numa_node_fragmentation_ratio": Row(
        "Share of the available CPUs that lie in uncore caches others use in part; 0 when there are none.",
        lambda of: of.numa_nodes(lambda one: one.ratio),
        labels=("numa_node",),
    ),
    "nri_pin_uncore_cache_available_cpus": Row(
        "CPUs that can still become exclusive.",
        lambda of: of.caches(lambda one: len(one.available)),
        labels=("uncore_cache",),
    ),
    "nri_pin_uncore_cache_fragmentation_ratio": Row(
        "Share of the available CPUs that lie in cores others use in part; 0 when there are none.",
        lambda of: of.caches(lambda one: one.ratio),
        labels=("uncore_cache",),
    ),
}

# The noise on exclusive CPUs; only with `cpuNoisePeriodSeconds`

OF_CONTAINER = ("namespace", "pod", "container")


def _noise(kind: NoiseKind, text: str) -> Row[NoiseReadings]:
    return Row(text, lambda of: of.totals(kind), OF_CONTAINER)


OF_NOISE: Table[NoiseReadings] = {
    "nri_pin_cpu_noise_interrupts_total": Row(
        "Interrupts of exclusive CPUs, by kind.",
        lambda of: of.interrupts(),
        labels=(*OF_CONTAINER, "kind"),
    ),
    "nri_pin_cpu_noise_softirqs_total": Row(
        "Softirqs of exclusive CPUs, by the kernel's name.",
        lambda of: of.softirqs(),
        labels=(*OF_CONTAINER, "kind"),
    ),
    "nri_pin_cpu_noise_foreign_seconds_total": _noise(
        NoiseKind.STRANGERS,
        "Run time of anything but the container on its exclusive CPUs, exact to a tick for each reading.",
    ),
    "nri_pin_cpu_noise_steal_seconds_total": _noise(
        NoiseKind.STEAL, "Time that the host of a virtual machine kept from exclusive CPUs."
    ),
    "nri_pin_cpu_noise_queue_seconds_total": _noise(
        NoiseKind.QUEUE, "Time that threads waited in the run queues of exclusive CPUs."
    ),
    "nri_pin_cpu_noise_throttled_seconds_total": _noise(
        NoiseKind.THROTTLED, "Time that a CPU quota stopped a container with exclusive CPUs."
    ),
    "nri_pin_cpu_noise_cpu_pressure_seconds_total": _noise(
        NoiseKind.PRESSURE, "Time that a thread of a container with exclusive CPUs waited for a CPU."
    ),
    "nri_pin_cpu_noise_irq_pressure_seconds_total": _noise(
        NoiseKind.IRQ_PRESSURE, "Time that interrupts held up a container with exclusive CPUs."
    ),
    "nri_pin_cpu_noise_numa_hint_faults_total": _noise(
        NoiseKind.HINT_FAULT, "Page faults that NUMA balancing caused in containers with exclusive CPUs."
    ),
    "nri_pin_cpu_noise_numa_pages_migrated_total": _noise(
        NoiseKind.PAGE, "Pages of containers with exclusive CPUs that NUMA balancing moved."
    ),
    "nri_pin_cpu_noise_foreign_memory_bytes": Row(
        "Memory of containers with exclusive CPUs on NUMA nodes that are not those of the CPUs.",
        lambda of: of.foreign_memory(),
        labels=OF_CONTAINER,
    ),
    "nri_pin_cpu_noise_readings_total": Row(
        "Readings of the kernel's counters for these metrics.", lambda of: of.readings
    ),
}

ROWS: Table[Any] = {
    **OF_SERVING,
    **COUNTED,
    **OF_ADMISSIONS,
    **OF_POD_LEVEL,
    **OF_PLACED,
    **OF_REPAIR,
    **OF_QUIET,
    **OF_OBSERVED,
    **OF_NOISE,
}
"""All metrics but those of `TIMINGS`; the guide has them in this order."""


class Metrics:
    """All metrics of the agent in one registry: counters from the first event on, gauges once there is a handler.

    Args:
        pod_level: the feature gate PodLevelResourceManagers is on, and its counters are shown.

    Attributes:
        registry: holds the metrics that are exposed.
    """

    def __init__(self, *, pod_level: bool = False) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._of_admissions = {**OF_ADMISSIONS, **OF_POD_LEVEL} if pod_level else OF_ADMISSIONS
        self._counts = Counts({**COUNTED, **self._of_admissions})
        self._repair, self._quiet = Shown(OF_REPAIR), Shown(OF_QUIET)
        for collector in (self._counts, self._repair, self._quiet):
            self.registry.register(collector)
        timers = {
            name: Histogram(name, text, labels, buckets=buckets, registry=self.registry)
            for name, (text, buckets, labels) in TIMINGS.items()
        }
        # Children are bound once, so that the thread that answers the runtime only adds.
        self._decision_s = {event: timers[DECISION_S].labels(event) for event in EVENTS}
        self._hook_s = {event: timers[HOOK_S].labels(event) for event in EVENTS}
        self._admission_ms, self._checkpoint_s = timers[ADMISSION_MS], timers[CHECKPOINT_S]

    def __call__(self, outcome: RequestOutcome) -> None:
        """Count one outcome."""
        event = event_of(outcome)
        self._decision_s[event].observe(outcome.decide_s)
        self._hook_s[event].observe(outcome.total_s)
        self._counts.inc(RESULTS_OF_EVENTS, event, result_of(outcome))
        if isinstance(outcome.event, nri.UpdateContainer) and "reasserted" in outcome.decision.steps:
            self._counts.inc(REPAIRS, "update")
        admission = admission_of(outcome)
        if admission is not None:
            self._admission_ms.observe(outcome.decide_s * 1e3)
            for name, row in self._of_admissions.items():
                self._counts.add(name, row.count(admission))

    def drifted(self, report: DriftReport) -> None:
        """Count one drift and its repair."""
        self._counts.inc(DRIFTS, report.cause)
        self._counts.inc(FAILED_REPAIRS if report.error else REPAIRS, report.noticed_by)

    def asked(self, result: str) -> None:
        """Count one question to the exporter."""
        self._counts.inc(EXPORTER_ANSWERS, result)

    def count_other_owner(self, evidence: OwnerEvidence) -> None:
        """Count evidence of another CPU manager."""
        self._counts.inc(OTHER_OWNERS, evidence)

    def count_affinity(self, result: str) -> None:
        """Count a container with the CPU affinity of the runtime."""
        self._counts.inc(AFFINITIES, result)

    def count_quota(self, noticed_by: NoticedBy) -> None:
        """Count a CPU quota that was written back."""
        self._counts.inc(QUOTAS_WRITTEN_BACK, noticed_by)

    def follow(
        self,
        drift: DriftWatch,
        unreported: UnreportedContainers,
        settings: KernelSettingsReconciler | None = None,
    ) -> None:
        """Show the values of the drift watch, unknown containers and of the kernel settings at the moment of a scrape."""
        self._repair.read = lambda: Repairing(drift, unreported, settings)

    def follow_quiet(self, quiet: QuietCPUsThread) -> None:
        """Show the last pass over the settings of quiet CPUs at the moment of a scrape, and its writes."""
        self._quiet.read = lambda: quiet

    def follow_observed(self, watch: ObservedWatch) -> None:
        """Show how the CPUs of containers compare with the decided ones; only an agent that observes has this gauge."""
        self.registry.register(Shown(OF_OBSERVED, lambda: watch))

    def follow_state(
        self,
        handler: Handler,
        link: RuntimeLink,
        incomplete: Callable[[], int] = lambda: 0,
        failures: Callable[[], int] = lambda: 0,
    ) -> None:
        """Show the allocations of the handler, the checkpoint, the connection, failed work, and the number of incomplete pods."""
        serving = Serving(handler, link, incomplete, failures)
        self.registry.register(Shown(OF_SERVING, lambda: serving))
        self.registry.register(Shown(OF_PLACED, lambda: Placed(handler.node, handler.state)))

    def follow_noise(self, handler: Handler, sysfs_root: str, cgroup_root: str, period_s: float) -> None:
        """Show the noise on exclusive CPUs, read at most once in a period."""
        try:
            files = ContainerFiles(Cgroups.open(cgroup_root))
        except HostError:
            files = None  # logged already
        counters = CounterFiles([sysfs_root, "/"], time.monotonic)
        readings = NoiseReadings(lambda: (handler.node, handler.state), counters, files, period_s)
        self.registry.register(Shown(OF_NOISE, readings.read_when_due))

    def saved(self, took_s: float) -> None:
        """Count one save of the state."""
        self._checkpoint_s.observe(took_s)

    def page(self) -> Callable[[], Page]:
        """Return the page `/metrics`."""
        return one_at_a_time(lambda: Page(exposition(self.registry), content_type=PROMETHEUS_TEXT))


def exposition(registry: CollectorRegistry) -> bytes:
    """Return all metrics in Prometheus' text format, with the types of counters corrected whose names the library does not take."""
    text = prometheus_client.generate_latest(registry)
    for name, row in ROWS.items():
        if row.counts:
            text = text.replace(f"# TYPE {name} untyped".encode(), f"# TYPE {name} counter".encode())
    return text
