"""What the agent counts and shows over HTTP; loaded only where `metricsBindAddress` asks for it."""

import threading
import time
from collections.abc import Callable
from functools import partial

from nri_plugin.app.drift_report import DriftReport
from nri_plugin.app.drift_watch import DriftWatch
from nri_plugin.app.handler import CheckpointStore, Handler
from nri_plugin.app.kernel_side_keeper import KernelSideKeeper
from nri_plugin.app.loop import Loop
from nri_plugin.app.metrics import Metrics, exposition
from nri_plugin.app.metrics_state import StateGauges
from nri_plugin.app.observing import KINDS, ObservedWatch
from nri_plugin.app.outcome import Outcome
from nri_plugin.app.rivals import Evidence
from nri_plugin.app.runtime_link import RuntimeLink
from nri_plugin.app.status_server import PROMETHEUS_TEXT, Page, StatusServer, verdict
from nri_plugin.state import State

ALIVE_WITHIN_S = 5.0
"""The loop that answers the runtime comes round in microseconds; a checkpoint on a slow disk holds it for a second."""


class Monitoring:
    """Counters from the first event on, a server once there is somebody to answer for.

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

    def follow(self, drift: DriftWatch) -> None:
        """Show what it looks after, and what it fights over."""
        self._metrics.drift_watches.set_function(lambda: drift.watches)
        self._metrics.drift_fights.set_function(lambda: drift.fights)
        self._metrics.drift_waiting.set_function(lambda: drift.waiting)

    def follow_kernel_side(self, keeper: KernelSideKeeper) -> None:
        """Show what it keeps beside cpusets."""
        self._metrics.quotas_lifted.set_function(lambda: keeper.lifted)
        self._metrics.partitions.set_function(lambda: keeper.partitions)
        self._metrics.partitions_refused.set_function(lambda: keeper.refused)

    def follow_observed(self, watch: ObservedWatch) -> None:
        """Show how what runs compares with what would, where the agent only observes."""
        gauge = self._metrics.observed_containers()
        for kind in KINDS:
            gauge.labels(*kind).set_function(partial(watch.count, kind))

    def timed(self, store: CheckpointStore) -> CheckpointStore:
        """`store`, the time of its saves measured."""
        return _TimedStore(store, self._metrics.checkpoint_took)

    def serve(
        self, address: tuple[str, int], handler: Handler, link: RuntimeLink, loop: Loop
    ) -> StatusServer:
        """Show all this at `address`.

        Raises:
            ConfigError: it cannot be listened on.
        """
        gauges = StateGauges(lambda: (handler.node, handler.state), lambda: link.is_synchronized)
        self.registry.register(gauges)
        pages = {
            "/metrics": lambda: Page(exposition(self.registry), content_type=PROMETHEUS_TEXT),
            "/healthz": verdict("alive", lambda: comes_round(loop), "the event loop does not come round"),
            "/readyz": verdict(
                "ready", lambda: link.is_synchronized, "not connected to the container runtime"
            ),
        }
        return StatusServer(address, pages)


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

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued."""
        return self._store.close(timeout_s)


def comes_round(loop: Loop) -> bool:
    """Whether the loop runs what it is given, soon."""
    seen = threading.Event()
    loop.post(seen.set)
    return seen.wait(ALIVE_WITHIN_S)
