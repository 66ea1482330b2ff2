"""What the agent counts and shows as metrics; loaded only where `metricsBindAddress` asks for it."""

import time
from collections.abc import Callable
from functools import partial

from nri_plugin.app.checkpoint_keeper import CheckpointStore
from nri_plugin.app.drift_report import DriftReport
from nri_plugin.app.drift_watch import DriftWatch
from nri_plugin.app.handler import Handler
from nri_plugin.app.http_pages import PROMETHEUS_TEXT, Page, one_at_a_time
from nri_plugin.app.kernel_side_keeper import KernelSideKeeper
from nri_plugin.app.metrics import Metrics, exposition
from nri_plugin.app.metrics_state import StateGauges
from nri_plugin.app.observing import KINDS, ObservedWatch
from nri_plugin.app.outcome import Outcome
from nri_plugin.app.quota_keeper import NoticedBy
from nri_plugin.app.rivals import Evidence
from nri_plugin.app.runtime_link import RuntimeLink
from nri_plugin.state import State


class Monitoring:
    """Counters from the first event on, a page once there is somebody to answer for.

    Attributes:
        registry: what is counted and shown.
    """

    def __init__(self) -> None:
        self._metrics = Metrics()
        self.registry = self._metrics.registry

    def __call__(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self._metrics(outcome)

    def drifted(self, report: DriftReport) -> None:
        """Count one drift."""
        self._metrics.drifted(report)

    def asked(self, result: str) -> None:
        """Count one question to the exporter."""
        self._metrics.asked(result)

    def count_rival(self, evidence: Evidence) -> None:
        """Count a sign of somebody else who pins CPUs."""
        self._metrics.rival_pins[evidence].inc()

    def count_quota(self, noticed_by: NoticedBy) -> None:
        """Count a CPU quota that somebody wrote back."""
        self._metrics.quotas_written_back[noticed_by].inc()

    def follow(self, drift: DriftWatch, keeper: KernelSideKeeper | None = None) -> None:
        """Show what is looked after, beside cpusets too, and what is fought over."""
        self._metrics.drift_watches.set_function(
            lambda: drift.watches + (keeper.watches if keeper is not None else 0)
        )
        self._metrics.drift_fights.set_function(lambda: drift.fights)
        self._metrics.drift_waiting.set_function(lambda: drift.waiting)
        if keeper is None:
            return
        self._metrics.quotas_lifted.set_function(lambda: keeper.lifted)
        self._metrics.partitions.set_function(lambda: keeper.partitions)
        self._metrics.partitions_refused.set_function(lambda: keeper.refused)

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
        """Show what the handler has allocated."""
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
