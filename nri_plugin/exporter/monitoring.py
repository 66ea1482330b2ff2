"""Metrics and probes of the exporter; loaded only if an address for them is given.

The exporter keeps plain figures. They are read when a scrape comes.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin.exporter.events import KNOWN_REASONS, OTHER
from nri_plugin.exporter.exporter import Exporter
from nri_plugin.exporter.refused_pods import RESULTS
from nri_plugin.process.http_server import PROMETHEUS_TEXT, Page, one_at_a_time, probe

STUCK_S = 300.0
"""Longest time without a round of the main loop, which runs every 30 s. Slow answers of the API server delay it by the
time limit of a few requests."""

Labels = TypeVar("Labels", bound=tuple[str, ...])

EVENT_RESULTS = ("created", "failed")


class ExporterFigures(Collector):
    """The exporter's figures as metrics, with a series for each possible label."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        exporter = self._exporter
        publisher, announcer = exporter.publisher, exporter.announcer
        results = {
            ("written",): publisher.writes,
            ("unchanged",): exporter.unchanged,
            ("failed",): publisher.failures,
        }
        yield _counter("publish", "Statuses of the agent, by result of publishing.", ("result",), results)
        events = {pair: announcer.events[pair] for pair in product((*KNOWN_REASONS, OTHER), EVENT_RESULTS)}
        yield _counter("events", "Events on pods, by reason.", ("reason", "result"), events)
        rejections = {(result,): announcer.rejections[result] for result in RESULTS}
        yield _counter(
            "rejections", "Refusals of pods that were to be set to Failed.", ("result",), rejections
        )
        yield _gauge(
            "last_success_timestamp_seconds",
            "When the object was last written; 0: never.",
            exporter.published_at,
        )
        faults = {(): exporter.faults}
        yield _counter("faults", "Unexpected errors; the work was tried again.", (), faults)
        yield _gauge("agent_connected", "Whether the agent is connected.", float(exporter.hears_agent))
        yield _gauge("pods_known", "Pods of this node whose facts are known.", float(exporter.pods.known))


def metrics_page(exporter: Exporter) -> Callable[[], Page]:
    """Return the page `/metrics`."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ExporterFigures(exporter))
    return one_at_a_time(
        lambda: Page(prometheus_client.generate_latest(registry), content_type=PROMETHEUS_TEXT)
    )


def probe_pages(exporter: Exporter, clock: Callable[[], float]) -> Mapping[str, Callable[[], Page]]:
    """Return the pages `/healthz` and `/readyz`."""
    return {
        "/healthz": probe("alive", lambda: lifeless(exporter, clock())),
        "/readyz": probe("ready", lambda: unready(exporter)),
    }


def lifeless(exporter: Exporter, now: float) -> str:
    """Return why the exporter must be restarted; empty if it need not be."""
    if now - exporter.came_round_at < STUCK_S:
        return ""
    return f"the main loop has made no round for {STUCK_S:g} s"


def unready(exporter: Exporter) -> str:
    """Return why the exporter is not ready; empty once the agent is connected and its status is published."""
    cases = (
        (not exporter.hears_agent, "the agent is not connected; see its log"),
        (exporter.owner.is_missing, "not published: the node is not registered in the cluster"),
        (exporter.is_faulty, "an unexpected error; see the log"),
        (bool(exporter.trouble), f"not published: {exporter.trouble}"),
        (not exporter.publisher.writes, "nothing published yet"),
    )
    return next((words for applies, words in cases if applies), "")


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily(f"nri_pin_export_{name}", text, labels=labels)
    for found, value in values.items():
        family.add_metric(found, value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"nri_pin_export_{name}", text, value=value)
