"""The metrics of the agent, under the kubelet's names where the kubelet has one.

`Metrics` holds the counters. Labelled children are bound once, so that the thread that answers the runtime only adds.
The gauges of the state are in `state_gauges.py`. This module is loaded only where `metricsBindAddress` is set.

Source: names, labels and help of kubelet v1.36 pkg/kubelet/metrics/metrics.go, and `kubelet_cpu_manager_*` as
pkg/kubelet/cm/cpumanager/policy_static.go, initializeMetrics; the `kubelet_` prefix is kept so that dashboards and alerts
only change the job.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin.agent.affinity import RESULTS as AFFINITY_RESULTS
from nri_plugin.agent.checkpoint_saver import CheckpointStore
from nri_plugin.agent.drift_watch import DriftReport, DriftWatch
from nri_plugin.agent.handler import Handler
from nri_plugin.agent.kernel_settings import KernelSettingsReconciler, NoticedBy
from nri_plugin.agent.noise_metrics import NoiseCounts
from nri_plugin.agent.observing import KINDS, ObservedWatch
from nri_plugin.agent.other_owners import OwnerEvidence
from nri_plugin.agent.outcome import RequestOutcome
from nri_plugin.agent.pod_facts import RESULTS as ANSWERS
from nri_plugin.agent.pod_level_metrics import ASSIGNMENTS, ResourceManagerCounts
from nri_plugin.agent.quiet_thread import QuietCPUsThread
from nri_plugin.agent.runtime_link import RuntimeLink
from nri_plugin.agent.state_gauges import StateGauges
from nri_plugin.agent.untold import UntoldContainers
from nri_plugin.core.drift import Cause
from nri_plugin.core.engine import DECIDED
from nri_plugin.core.requests import pod_uid
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.host.kernel_counters import ContainerFiles, CounterFiles
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Allocation, Kind, allocation_key
from nri_plugin.model.refusals import AdmissionRefusal, RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.alignment import is_in_one_cache
from nri_plugin.policy.pod_level import memory_claim
from nri_plugin.process.http_server import PROMETHEUS_TEXT, Page, one_at_a_time
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import CreateContainer

# The kubelet's resource manager counters.
#
# Source: kubelet v1.36 topologymanager/scope_*.go, cpumanager/policy_static.go, memorymanager/policy_static.go.
#
# Differs: the kubelet admits a pod once, with all its containers; here: each first creation of a container,
# and each refused try, is one admission request. Why: containers come one by one, and a refused one comes
# again. Option: none.


CPU_REFUSALS = (RefusalKind.SMT_ALIGNMENT, RefusalKind.CPUS, RefusalKind.UNCORE_CACHE)


@dataclass(frozen=True, slots=True)
class ContainerAlignment:
    """One rise of `container_aligned_compute_resources_count`, or of its failure count.

    Attributes:
        scope: `container` or `pod`.
        boundary: `numa_node`, `physical_cpu` or `uncore_cache`.
        ok: aligned, not failed.
    """

    scope: str
    boundary: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Admission:
    """The counts of one created container.

    Attributes:
        refused_by: why policy refuses it, also where `neverRefuse` let the container run in the shared pool.
        allocation: the new one; None for the shared pool, a refusal or an allocation that existed before.
        aligned: rises of the alignment counters.
        owns_pod_memory: it owns part of the memory of its pod, or is an init container of such a pod.
        is_first_of_block: the memory of its pod was allocated with it.
    """

    refused_by: AdmissionRefusal | None
    allocation: Allocation | None
    aligned: tuple[ContainerAlignment, ...]
    owns_pod_memory: bool = False
    is_first_of_block: bool = False

    @property
    def asked_for_cpus(self) -> bool:
        """Return whether exclusive CPUs were allocated, or could not be although hints allowed them."""
        return bool(_exclusive(self.allocation)) or self.cpus_failed

    @property
    def cpus_failed(self) -> bool:
        """Return whether they could not be allocated."""
        return self.refused_by is not None and self.refused_by.kind in CPU_REFUSALS

    @property
    def asked_for_memory(self) -> bool:
        """Return whether memory was allocated, or could not be although hints allowed it."""
        return bool(self.allocation and self.allocation.memory) or self.owns_pod_memory or self.memory_failed

    @property
    def memory_failed(self) -> bool:
        """Return whether it could not be allocated."""
        return self.refused_by is not None and self.refused_by.kind is RefusalKind.MEMORY


def admission_of(outcome: RequestOutcome) -> Admission | None:
    """Return the counts of `outcome`; None for other events and for containers that are only started again."""
    event, decision = outcome.event, outcome.decision
    if not isinstance(event, CreateContainer) or _is_known(outcome, event):
        return None
    error = decision.refusal or decision.overruled
    allocation = None
    if not outcome.refusal:
        record = decision.state.containers.get(event.container.id)
        allocation = decision.state.allocation_of(record) if record else None
    block = decision.state.allocations.get(allocation_key(pod_uid(event.pod), ""))
    has_memory = allocation is not None and block is not None and bool(block.memory)
    return Admission(
        error,
        allocation,
        tuple(_aligned(outcome, error, allocation)),
        owns_pod_memory=has_memory and _owns_memory(outcome, event),
        is_first_of_block=has_memory and "pod-resources" in decision.steps,
    )


def _exclusive(allocation: Allocation | None) -> CPUSet:
    return allocation.cpus if allocation and not allocation.is_pod_shared else CPUSet()


def _owns_memory(outcome: RequestOutcome, event: CreateContainer) -> bool:
    """Return whether the kubelet counts the container of a pod with memory of its own: each with a claim, each init."""
    facts = outcome.decision.state.pods[pod_uid(event.pod)].facts
    one = facts.container(event.container.name) if facts else None
    return facts is not None and one is not None and (one.kind is Kind.INIT or bool(memory_claim(facts, one)))


def _is_known(outcome: RequestOutcome, event: CreateContainer) -> bool:
    records = outcome.before.containers_of(pod_uid(event.pod))
    return any(record.name == event.container.name and not record.unplaced for record in records)


def _aligned(
    outcome: RequestOutcome, error: AdmissionRefusal | None, allocation: Allocation | None
) -> Iterator[ContainerAlignment]:
    options = outcome.node.options
    if options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _aligned_to_node(outcome, error)
    cpus = _exclusive(allocation)
    if options.full_pcpus_only and (cpus or (error is not None and error.kind in CPU_REFUSALS)):
        yield ContainerAlignment("container", "physical_cpu", ok=bool(cpus))
    if cpus and is_in_one_cache(outcome.node.topology, cpus):
        yield ContainerAlignment("container", "uncore_cache")


def _aligned_to_node(outcome: RequestOutcome, error: AdmissionRefusal | None) -> Iterator[ContainerAlignment]:
    """Only single-numa-node guarantees it; a pod counts once, with its first container."""
    scope = outcome.node.options.topology_manager_scope
    is_counted = scope is TopologyManagerScope.CONTAINER or "pod-scope" in outcome.decision.steps
    if error is not None and error.kind is RefusalKind.TOPOLOGY_AFFINITY:
        yield ContainerAlignment(scope, "numa_node", ok=False)
    elif error is None and not outcome.refusal and is_counted:
        yield ContainerAlignment(scope, "numa_node")


# The counters

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

ALIGNED = "kubelet_container_aligned_compute_resources_count"
NOT_ALIGNED = "kubelet_container_aligned_compute_resources_failure_count"


GAUGES = {
    "nri_pin_drift_fights": "Cgroups that another writer changes after every repair.",
    "nri_pin_drift_waiting": "Cgroups that have drifted and wait for the end of their pause.",
    "nri_pin_untold_containers": "Containers that run and that the runtime did not report; they are kept off exclusive CPUs.",
    "nri_pin_cgroup_watches": "Directories that the kernel watches for the agent.",
    "nri_pin_cpu_quotas_lifted": "Cgroups of containers with exclusive CPUs, and of their pods, that are kept without a "
    "CPU quota.",
    "nri_pin_partitions": "Containers whose exclusive CPUs are a partition.",
    "nri_pin_quiet_cpus": "CPUs that device interrupts are kept off.",
    "nri_pin_quiet_settings": "Interrupts, masks and latencies that have a value of the agent.",
    "nri_pin_quiet_settings_changed": "Quiet settings that another program changed; the agent keeps the new value.",
    "nri_pin_quiet_reaching_interrupts": "Interrupts that can still reach quiet CPUs; nri-pin doctor names them.",
    "nri_pin_quiet_rivals": "Quiet settings that another program changes repeatedly.",
    "nri_pin_quiet_trouble": "1 while nothing is kept quiet: a mount is missing, or originals cannot be stored.",
    "nri_pin_partitions_refused": "Containers without the desired partition: the kernel refused it.",
}
"""Values that the watches of the agent have at the moment of a scrape."""


class _QuietWrites(Collector):
    """Counts writes to the settings of quiet CPUs; they are made by another thread, which has its own counts."""

    def __init__(self, quiet: QuietCPUsThread) -> None:
        self._quiet = quiet

    def collect(self) -> Iterator[Metric]:
        """One series for each result, and for each kind of setting or errno."""
        text = "Writes to interrupts, masks and latencies for quiet CPUs, by result and by kind of setting or errno."
        family = CounterMetricFamily("nri_pin_quiet_writes_total", text, labels=["result", "of"])
        for pair, count in sorted(self._quiet.counts.items()):
            family.add_metric(list(pair), count)
        yield family


class _Counted(Collector):
    """A counter whose owner counts by itself, so that it needs no metrics."""

    def __init__(self, name: str, text: str, count: Callable[[], int]) -> None:
        self._name, self._text, self._count = name, text, count

    def collect(self) -> Iterator[Metric]:
        """One series."""
        family = CounterMetricFamily(self._name, self._text)
        family.add_metric([], self._count())
        yield family


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
        self._aligned = AlignmentCounts()
        self.registry.register(self._aligned)
        self._resource_managers = ResourceManagerCounts() if pod_level else None
        if self._resource_managers is not None:
            self.registry.register(self._resource_managers)
        counter = partial(Counter, registry=self.registry)
        self._admissions = counter(
            "kubelet_topology_manager_admission_requests_total",
            "The number of admission requests where resources have to be aligned.",
        )
        self._admission_errors = counter(
            "kubelet_topology_manager_admission_errors_total",
            "The number of admission request failures where resources could not be aligned.",
        )
        self._admission_ms = Histogram(
            "kubelet_topology_manager_admission_duration_ms",
            "Duration in milliseconds to serve an admission request.",
            buckets=MILLISECONDS,
            registry=self.registry,
        )
        self._cpu_pinnings = counter(
            "kubelet_cpu_manager_pinning_requests_total",
            "The number of cpu core allocations which required pinning.",
        )
        self._cpu_pinning_errors = counter(
            "kubelet_cpu_manager_pinning_errors_total",
            "The number of cpu core allocations which required pinning failed.",
        )
        self._memory_pinnings = counter(
            "kubelet_memory_manager_pinning_requests_total",
            "The number of memory pages allocations which required pinning.",
        )
        self._memory_pinning_errors = counter(
            "kubelet_memory_manager_pinning_errors_total",
            "The number of memory pages allocations which required pinning that failed.",
        )
        self._decision_s = self._by_event(
            "nri_pin_decision_duration_seconds", "Deciding one event, without I/O."
        )
        self._hook_s = self._by_event(
            "nri_pin_hook_duration_seconds",
            "Handling one event until its answer is ready; the runtime waits for it.",
        )
        events = counter("nri_pin_events_total", "Events of the runtime, by result.", ("event", "result"))
        self._events = {pair: events.labels(*pair) for pair in product(EVENTS, RESULTS)}
        self._refusals = self._by_label(
            "nri_pin_refusals_total",
            "Containers refused, or run without an allocation because of neverRefuse, by reason.",
            "reason",
            REASONS,
        )
        self._from_memory = counter(
            "nri_pin_refusals_from_memory_total",
            "Refusals that repeat an earlier one without a decision, because nothing has changed since.",
        )
        self._inexact = counter(
            "nri_pin_inexact_decisions_total",
            "Placements whose search ended before it was known to be the best.",
        )
        self._exporter_answers = self._by_label(
            "nri_pin_exporter_answers_total",
            "Questions to the exporter about created containers, by result.",
            "result",
            ANSWERS,
        )
        self._repaired = self._by_label(
            "nri_pin_drift_repairs_total",
            "Cpusets that were repaired after or before a change by another writer, by how that was noticed.",
            "noticed_by",
            ("watch", "sweep", "update"),
        )
        self._unrepaired = self._by_label(
            "nri_pin_drift_failures_total",
            "Repairs that failed, by how the drift was noticed.",
            "noticed_by",
            ("watch", "sweep"),
        )
        self._drift_causes = self._by_label(
            "nri_pin_drifts_total", "Cpusets that had drifted, by likely cause.", "cause", Cause
        )
        self._other_owners = self._by_label(
            "nri_pin_rival_pins_total",
            "Evidence of another CPU manager, by where it was seen.",
            "seen_at",
            OwnerEvidence,
        )
        self._affinities = self._by_label(
            "nri_pin_inherited_affinities_total",
            "Containers that ran on a part of their CPUs, because they have the CPU affinity of the runtime, by result.",
            "result",
            AFFINITY_RESULTS,
        )
        self._quotas_written_back = self._by_label(
            "nri_pin_cpu_quotas_written_back_total",
            "CPU quotas that were written back and lifted again, by how that was noticed.",
            "noticed_by",
            get_args(NoticedBy),
        )
        self._checkpoint_s = Histogram(
            "nri_pin_checkpoint_duration_seconds",
            "Saving the state, or failing to.",
            buckets=SECONDS,
            registry=self.registry,
        )
        # They are 0 in an agent that only observes.
        self._gauges = {name: Gauge(name, text, registry=self.registry) for name, text in GAUGES.items()}

    def _by_event(self, name: str, text: str) -> Mapping[str, Histogram]:
        histogram = Histogram(name, text, ("event",), buckets=SECONDS, registry=self.registry)
        return {event: histogram.labels(event) for event in EVENTS}

    def _by_label(self, name: str, text: str, label: str, values: Iterable[str]) -> Mapping[str, Counter]:
        counter = Counter(name, text, (label,), registry=self.registry)
        return {value: counter.labels(value) for value in values}

    def __call__(self, outcome: RequestOutcome) -> None:
        """Count one outcome."""
        name = type(outcome.event).__name__
        event = name if name in self._hook_s else "other"
        self._decision_s[event].observe(outcome.decide_s)
        self._hook_s[event].observe(outcome.total_s)
        self._events[event, result_of(outcome)].inc()
        if isinstance(outcome.event, nri.UpdateContainer) and "reasserted" in outcome.decision.steps:
            self._repaired["update"].inc()
        admission = admission_of(outcome)
        if admission is not None:
            self._count_admission(outcome, admission)

    def drifted(self, report: DriftReport) -> None:
        """Count one drift and its repair."""
        self._drift_causes[report.cause].inc()
        (self._unrepaired if report.error else self._repaired)[report.noticed_by].inc()

    def asked(self, result: str) -> None:
        """Count one question to the exporter."""
        self._exporter_answers[result].inc()

    def count_other_owner(self, evidence: OwnerEvidence) -> None:
        """Count evidence of another CPU manager."""
        self._other_owners[evidence].inc()

    def count_affinity(self, result: str) -> None:
        """Count a container with the CPU affinity of the runtime."""
        self._affinities[result].inc()

    def count_quota(self, noticed_by: NoticedBy) -> None:
        """Count a CPU quota that was written back."""
        self._quotas_written_back[noticed_by].inc()

    def follow(
        self,
        drift: DriftWatch,
        untold: UntoldContainers,
        reconciler: KernelSettingsReconciler | None = None,
    ) -> None:
        """Show the values of the drift watch, unknown containers and of the kernel settings at the moment of a scrape."""
        values: dict[str, Callable[[], float]] = {
            "nri_pin_cgroup_watches": lambda: drift.watches + (reconciler.watches if reconciler else 0),
            "nri_pin_drift_fights": lambda: drift.fights,
            "nri_pin_drift_waiting": lambda: drift.waiting,
            "nri_pin_untold_containers": lambda: len(untold.names),
        }
        if reconciler is not None:
            values |= {
                "nri_pin_cpu_quotas_lifted": lambda: reconciler.lifted,
                "nri_pin_partitions": lambda: reconciler.partitions,
                "nri_pin_partitions_refused": lambda: reconciler.refused,
            }
        for name, value in values.items():
            self._gauges[name].set_function(value)

    def follow_quiet(self, quiet: QuietCPUsThread) -> None:
        """Show the last pass over the settings of quiet CPUs at the moment of a scrape, and count its writes."""
        values: dict[str, Callable[[], float]] = {
            "nri_pin_quiet_cpus": lambda: len(quiet.report.quiet),
            "nri_pin_quiet_settings": lambda: quiet.report.moved,
            "nri_pin_quiet_settings_changed": lambda: quiet.report.changed,
            "nri_pin_quiet_reaching_interrupts": lambda: len(quiet.report.reaches),
            "nri_pin_quiet_rivals": lambda: len(quiet.report.rivals),
            "nri_pin_quiet_trouble": lambda: bool(quiet.report.trouble),
        }
        for name, value in values.items():
            self._gauges[name].set_function(value)
        self.registry.register(_QuietWrites(quiet))

    def follow_observed(self, watch: ObservedWatch) -> None:
        """Show how the CPUs of containers compare with the decided ones; only an agent that observes has this gauge."""
        gauge = Gauge(
            "nri_pin_observed_containers",
            "Running containers, by what they would have been given and whether they run on just that.",
            ("would", "runs"),
            registry=self.registry,
        )
        for kind in KINDS:
            gauge.labels(*kind).set_function(partial(watch.count, kind))

    def follow_state(
        self,
        handler: Handler,
        link: RuntimeLink,
        incomplete: Callable[[], int] = lambda: 0,
        failures: Callable[[], int] = lambda: 0,
    ) -> None:
        """Show the allocations of the handler, the checkpoint, the connection, failed work, and the number of incomplete pods."""
        Gauge(
            "nri_pin_incomplete_pods",
            "Pods that run in part: a container was refused while others of the pod exist, or what the pod owns is lost.",
            registry=self.registry,
        ).set_function(incomplete)
        Gauge(
            "nri_pin_unsaved_allocations",
            "Allocations that only the memory holds: the checkpoint could not be saved since they were made.",
            registry=self.registry,
        ).set_function(lambda: len(handler.checkpoint.unsaved(handler.state)))
        Gauge(
            "nri_pin_checkpoint_trouble",
            "1 while the checkpoint cannot be saved, or others may change its directory; the log says why.",
            registry=self.registry,
        ).set_function(lambda: bool(handler.checkpoint.unready()))
        self.registry.register(
            _Counted(
                "nri_pin_connections_lost_total",
                "Connections that had served the runtime and ended; containers created meanwhile are placed afterwards.",
                lambda: link.lost,
            )
        )
        self.registry.register(
            _Counted(
                "nri_pin_internal_errors_total",
                "Pieces of work between requests that failed with an internal error; the log has the traces.",
                failures,
            )
        )
        self.registry.register(
            StateGauges(lambda: (handler.node, handler.state), lambda: link.is_synchronized)
        )

    def follow_noise(self, handler: Handler, sysfs_root: str, cgroup_root: str, period_s: float) -> None:
        """Show the noise on exclusive CPUs, read at most once in a period."""
        try:
            files = ContainerFiles(Cgroups.open(cgroup_root))
        except HostError:
            files = None  # logged already
        counters = CounterFiles([sysfs_root, "/"], time.monotonic)
        self.registry.register(NoiseCounts(lambda: (handler.node, handler.state), counters, files, period_s))

    def timed(self, store: CheckpointStore) -> CheckpointStore:
        """Return `store` with the time of its saves measured."""
        return _TimedStore(store, self._checkpoint_s.observe)

    def page(self) -> Callable[[], Page]:
        """Return the page `/metrics`."""
        return one_at_a_time(lambda: Page(exposition(self.registry), content_type=PROMETHEUS_TEXT))

    def _count_admission(self, outcome: RequestOutcome, admission: Admission) -> None:
        self._admissions.inc()
        self._admission_ms.observe(outcome.decide_s * 1e3)
        error = admission.refused_by
        if outcome.refusal or error:
            self._admission_errors.inc()
            self._refusals[error.reason if error else "UnexpectedAdmissionError"].inc()
        if admission.asked_for_cpus:
            self._cpu_pinnings.inc()
            self._cpu_pinning_errors.inc(admission.cpus_failed)
        self._memory_pinnings.inc(admission.is_first_of_block)
        if admission.asked_for_memory:
            self._memory_pinnings.inc()
            self._memory_pinning_errors.inc(admission.memory_failed)
        if "inexact-hint" in outcome.decision.steps and not outcome.from_memory:
            self._inexact.inc()
        self._from_memory.inc(outcome.from_memory)
        self._aligned.add(admission.aligned)
        if self._resource_managers is not None:
            self._resource_managers.count(outcome, admission.allocation, error)


def result_of(outcome: RequestOutcome) -> str:
    """Return the label `result`: failed when the reason is not policy."""
    if outcome.failed:
        return "failed"
    return "refused" if outcome.refusal else "answered"


class AlignmentCounts(Collector):
    """The two counters whose names end in `_count`; the library would add `_total` to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {ContainerAlignment(*labels, ok=ok): 0 for labels in LABELS for ok in (True, False)}
        # The kubelet knows no failure to stay in one uncore cache: it is a preference.
        del self._counts[ContainerAlignment("container", "uncore_cache", ok=False)]

    def add(self, rises: Iterable[ContainerAlignment]) -> None:
        """Count each of `rises`."""
        for rise in rises:
            with self._lock:
                self._counts[rise] += 1

    def collect(self) -> Iterator[Metric]:
        """Both counters, with a series for each pair of labels there can be."""
        with self._lock:
            counts = dict(self._counts)
        for name, ok, text in (
            (ALIGNED, True, "Cumulative number of aligned compute resources allocated to containers"),
            (NOT_ALIGNED, False, "Cumulative number of failures to allocate aligned compute resources"),
        ):
            metric = Metric(name, f"{text}, by alignment type.", "unknown")
            for rise, count in counts.items():
                if rise.ok is ok:
                    metric.add_sample(name, {"scope": rise.scope, "boundary": rise.boundary}, count)
            yield metric


LABELS = (
    ("container", "numa_node"),
    ("pod", "numa_node"),
    ("container", "physical_cpu"),
    ("container", "uncore_cache"),
)


def exposition(registry: CollectorRegistry) -> bytes:
    """Return all metrics in Prometheus' text format, with the types of counters corrected whose names the library does not take."""
    text = prometheus_client.generate_latest(registry)
    for name in (ALIGNED, NOT_ALIGNED, ASSIGNMENTS):
        text = text.replace(f"# TYPE {name} untyped".encode(), f"# TYPE {name} counter".encode())
    return text


class _TimedStore:
    def __init__(self, store: CheckpointStore, took: Callable[[float], None]) -> None:
        self._store = store
        self._took = took

    def save(self, state: State, timeout_s: float) -> None:
        """Keep `state`; see `CheckpointStore`."""
        began = time.monotonic()
        try:
            self._store.save(state, timeout_s)
        finally:
            self._took(time.monotonic() - began)

    def is_intact(self) -> bool:
        """Return whether the file is still in its place."""
        return self._store.is_intact()

    def compact(self) -> None:
        """Compact the file if that is due."""
        self._store.compact()

    def close(self, timeout_s: float) -> None:
        """Finish what is queued."""
        self._store.close(timeout_s)
