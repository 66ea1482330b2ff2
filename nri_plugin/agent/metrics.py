"""Counters of the agent, under the kubelet's names where the kubelet has one.

Labelled children are bound once, so that the thread that answers the runtime only adds. Values that follow from the
state are gauges in `metrics_state`. Loaded only where `metricsBindAddress` is set.

Source: names, labels and help of kubelet v1.36 pkg/kubelet/metrics/metrics.go; the `kubelet_` prefix is kept so that
dashboards and alerts only change the job.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from nri_plugin.agent.checkpoint_saver import CheckpointStore
from nri_plugin.agent.drift_watch import DriftReport, DriftWatch
from nri_plugin.agent.handler import Handler
from nri_plugin.agent.kernel_settings import KernelSettingsReconciler, NoticedBy
from nri_plugin.agent.metrics_state import Admission, ContainerAlignment, StateGauges, admission_of
from nri_plugin.agent.observing import KINDS, ObservedWatch
from nri_plugin.agent.other_owners import OwnerEvidence
from nri_plugin.agent.outcome import RequestOutcome
from nri_plugin.agent.pod_facts import RESULTS as ANSWERS
from nri_plugin.agent.runtime_link import RuntimeLink
from nri_plugin.core.drift import Cause
from nri_plugin.model.state import State
from nri_plugin.process.http_pages import PROMETHEUS_TEXT, Page, one_at_a_time
from nri_plugin.wire.nri import events as nri

EVENTS = (
    "Synchronize",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdatePodSandbox",
    "other",
)
"""The label `event`: a closed set, whatever a runtime sends."""

RESULTS = ("answered", "refused", "failed")
REASONS = ("TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError")
SECONDS = tuple(0.00005 * 2**step for step in range(16))
"""50 us to 1.6 s, a little less than the runtimes' default limit of 2 s."""

MILLISECONDS = tuple(0.05 * 2**step for step in range(15))
"""Source: kubelet, ExponentialBuckets(.05, 2, 15)."""

ALIGNED = "kubelet_container_aligned_compute_resources_count"
NOT_ALIGNED = "kubelet_container_aligned_compute_resources_failure_count"


class Metrics:
    """All counters, in a registry of their own.

    Attributes:
        registry: what is exposed.
    """

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._aligned = AlignmentCounts()
        self.registry.register(self._aligned)
        add = self.registry
        self._admissions = Counter(
            "kubelet_topology_manager_admission_requests_total",
            "The number of admission requests where resources have to be aligned.",
            registry=add,
        )
        self._admission_errors = Counter(
            "kubelet_topology_manager_admission_errors_total",
            "The number of admission request failures where resources could not be aligned.",
            registry=add,
        )
        self._admission_ms = Histogram(
            "kubelet_topology_manager_admission_duration_ms",
            "Duration in milliseconds to serve an admission request.",
            buckets=MILLISECONDS,
            registry=add,
        )
        self._cpu_pinnings = Counter(
            "kubelet_cpu_manager_pinning_requests_total",
            "The number of cpu core allocations which required pinning.",
            registry=add,
        )
        self._cpu_pinning_errors = Counter(
            "kubelet_cpu_manager_pinning_errors_total",
            "The number of cpu core allocations which required pinning failed.",
            registry=add,
        )
        self._memory_pinnings = Counter(
            "kubelet_memory_manager_pinning_requests_total",
            "The number of memory pages allocations which required pinning.",
            registry=add,
        )
        self._memory_pinning_errors = Counter(
            "kubelet_memory_manager_pinning_errors_total",
            "The number of memory pages allocations which required pinning that failed.",
            registry=add,
        )
        self._decision_s = self._by_event(
            "nri_pin_decision_duration_seconds", "Deciding one event, without I/O."
        )
        self._hook_s = self._by_event(
            "nri_pin_hook_duration_seconds",
            "One event until its answer is ready: what the runtime waits for.",
        )
        events = Counter(
            "nri_pin_events_total", "Events of the runtime, by result.", ("event", "result"), registry=add
        )
        self._events = {pair: events.labels(*pair) for pair in product(EVENTS, RESULTS)}
        refusals = Counter(
            "nri_pin_refusals_total",
            "Containers refused, or with neverRefuse run unplaced, by reason.",
            ("reason",),
            registry=add,
        )
        self._refusals = {reason: refusals.labels(reason) for reason in REASONS}
        self._inexact = Counter(
            "nri_pin_inexact_decisions_total",
            "Placements for which the search ended before it was sure that there is no better one.",
            registry=add,
        )
        answers = Counter(
            "nri_pin_exporter_answers_total",
            "What became of questions about devices and facts of containers that were created.",
            ("result",),
            registry=add,
        )
        self._exporter_answers = {result: answers.labels(result) for result in ANSWERS}
        repairs = Counter(
            "nri_pin_drift_repairs_total",
            "Cpusets that somebody else changed or was about to change, put right, by how that was noticed.",
            ("noticed_by",),
            registry=add,
        )
        self._repaired_at_update = repairs.labels("update")
        self._repaired = {way: repairs.labels(way) for way in ("watch", "sweep")}
        failures = Counter(
            "nri_pin_drift_failures_total",
            "Tries that left a cpuset other than it should be, by how the drift was noticed.",
            ("noticed_by",),
            registry=add,
        )
        self._unrepaired = {way: failures.labels(way) for way in self._repaired}
        causes = Counter(
            "nri_pin_drifts_total", "Cpusets found changed, by what it looks like.", ("cause",), registry=add
        )
        self._drift_causes = {cause: causes.labels(cause) for cause in Cause}
        other_owners = Counter(
            "nri_pin_rival_pins_total",
            "Signs of somebody else who gives CPUs to containers, by where they were seen.",
            ("seen_at",),
            registry=add,
        )
        self.other_pins = {evidence: other_owners.labels(evidence) for evidence in OwnerEvidence}
        self.drift_fights = Gauge(
            "nri_pin_drift_fights",
            "Cgroups that somebody else changes back after every repair.",
            registry=add,
        )
        self.drift_waiting = Gauge(
            "nri_pin_drift_waiting",
            "Cgroups that are not what they should be and are left so until their pause is over.",
            registry=add,
        )
        self.drift_watches = Gauge(
            "nri_pin_cgroup_watches", "Directories the kernel watches for us.", registry=add
        )
        self.quotas_lifted = Gauge(
            "nri_pin_cpu_quotas_lifted",
            "Cgroups of containers with exclusive CPUs, and of their pods, that are kept without a CPU quota.",
            registry=add,
        )
        written_back = Counter(
            "nri_pin_cpu_quotas_written_back_total",
            "CPU quotas that somebody wrote back and that were lifted again, by how that was noticed.",
            ("noticed_by",),
            registry=add,
        )
        self.quotas_written_back: Mapping[NoticedBy, Counter] = {
            way: written_back.labels(way) for way in get_args(NoticedBy)
        }
        self.partitions = Gauge(
            "nri_pin_partitions", "Containers whose exclusive CPUs are a partition.", registry=add
        )
        self.partitions_refused = Gauge(
            "nri_pin_partitions_refused",
            "Containers that should have a partition and that the kernel leaves with an ordinary cpuset.",
            registry=add,
        )
        self._checkpoint_s = Histogram(
            "nri_pin_checkpoint_duration_seconds",
            "Saving the state, or failing to.",
            buckets=SECONDS,
            registry=add,
        )

    def unsaved_allocations(self, count: Callable[[], float]) -> None:
        """Show the value of `count` at the moment of a scrape."""
        gauge = Gauge(
            "nri_pin_unsaved_allocations",
            "Allocations that only the memory holds: the checkpoint could not be saved since they were made.",
            registry=self.registry,
        )
        gauge.set_function(count)

    def _by_event(self, name: str, text: str) -> Mapping[str, Histogram]:
        histogram = Histogram(name, text, ("event",), buckets=SECONDS, registry=self.registry)
        return {event: histogram.labels(event) for event in EVENTS}

    def observed_containers(self) -> Gauge:
        """A gauge that is shown only where nothing is carried out."""
        return Gauge(
            "nri_pin_observed_containers",
            "Running containers, by what they would have been given and whether they run on just that.",
            ("would", "runs"),
            registry=self.registry,
        )

    def __call__(self, outcome: RequestOutcome) -> None:
        """Count one outcome."""
        name = type(outcome.event).__name__
        event = name if name in self._hook_s else "other"
        self._decision_s[event].observe(outcome.decide_s)
        self._hook_s[event].observe(outcome.total_s)
        self._events[event, result_of(outcome)].inc()
        if isinstance(outcome.event, nri.UpdateContainer) and "reasserted" in outcome.decision.steps:
            self._repaired_at_update.inc()
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

    def checkpoint_took(self, seconds: float) -> None:
        """Count one save."""
        self._checkpoint_s.observe(seconds)

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
        if admission.asked_for_memory:
            self._memory_pinnings.inc()
            self._memory_pinning_errors.inc(admission.memory_failed)
        if "inexact-hint" in outcome.decision.steps:
            self._inexact.inc()
        self._aligned.add(admission.aligned)


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
    """All metrics in Prometheus' text format, the types of the two `_count` counters put right."""
    text = prometheus_client.generate_latest(registry)
    for name in (ALIGNED, NOT_ALIGNED):
        text = text.replace(f"# TYPE {name} untyped".encode(), f"# TYPE {name} counter".encode())
    return text


class Monitoring:
    """Counters from the first event on; gauges once there is a handler.

    Attributes:
        registry: all metrics of the agent.
    """

    def __init__(self) -> None:
        self._metrics = Metrics()
        self.registry = self._metrics.registry

    def __call__(self, outcome: RequestOutcome) -> None:
        """Count one outcome."""
        self._metrics(outcome)

    def drifted(self, report: DriftReport) -> None:
        """Count one drift."""
        self._metrics.drifted(report)

    def asked(self, result: str) -> None:
        """Count one question to the exporter."""
        self._metrics.asked(result)

    def count_other_owner(self, evidence: OwnerEvidence) -> None:
        """Count evidence of another CPU manager."""
        self._metrics.other_pins[evidence].inc()

    def count_quota(self, noticed_by: NoticedBy) -> None:
        """Count a CPU quota that somebody wrote back."""
        self._metrics.quotas_written_back[noticed_by].inc()

    def follow(self, drift: DriftWatch, reconciler: KernelSettingsReconciler | None = None) -> None:
        """Show the watched cgroups, those that somebody else changes back, and the kernel settings."""
        self._metrics.drift_watches.set_function(
            lambda: drift.watches + (reconciler.watches if reconciler is not None else 0)
        )
        self._metrics.drift_fights.set_function(lambda: drift.fights)
        self._metrics.drift_waiting.set_function(lambda: drift.waiting)
        if reconciler is None:
            return
        self._metrics.quotas_lifted.set_function(lambda: reconciler.lifted)
        self._metrics.partitions.set_function(lambda: reconciler.partitions)
        self._metrics.partitions_refused.set_function(lambda: reconciler.refused)

    def follow_checkpoint(self, handler: Handler) -> None:
        """Show what only the memory holds."""
        self._metrics.unsaved_allocations(lambda: len(handler.checkpoint.unsaved(handler.state)))

    def follow_observed(self, watch: ObservedWatch) -> None:
        """Show how what runs compares with what would, where the agent only observes."""
        gauge = self._metrics.observed_containers()
        for kind in KINDS:
            gauge.labels(*kind).set_function(partial(watch.count, kind))

    def timed(self, store: CheckpointStore) -> CheckpointStore:
        """`store`, the time of its saves measured."""
        return _TimedStore(store, self._metrics.checkpoint_took)

    def follow_state(self, handler: Handler, link: RuntimeLink) -> None:
        """Show the allocations of the handler."""
        self.registry.register(
            StateGauges(lambda: (handler.node, handler.state), lambda: link.is_synchronized)
        )

    def page(self) -> Callable[[], Page]:
        """`/metrics`."""
        return one_at_a_time(lambda: Page(exposition(self.registry), content_type=PROMETHEUS_TEXT))


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
        """Whether the file is still in its place."""
        return self._store.is_intact()

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued."""
        return self._store.close(timeout_s)
