"""What the exporter counts and shows over HTTP; loaded only where `--metrics-bind-address` asks for it.

The exporter keeps plain figures, read here when somebody asks.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin.app.exporter import Exporter
from nri_plugin.app.exporter_events import KNOWN_REASONS, OTHER
from nri_plugin.app.status_server import PROMETHEUS_TEXT, Page, StatusServer, verdict

STUCK_S = 300.0
"""The main loop comes round every 30 s; a cluster that answers slowly holds it for a request's limit, or a few."""

Labels = TypeVar("Labels", bound=tuple[str, ...])

EVENT_RESULTS = ("created", "failed")
REJECTION_RESULTS = ("failed-pod", "left")


class ExporterFigures(Collector):
    """The exporter's figures as metrics, with a series for each label there can be."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterator[Metric]:
        """All of them as they are now."""
        exporter = self._exporter
        publisher, announcer = exporter.publisher, exporter.announcer
        results = {
            ("written",): publisher.writes,
            ("unchanged",): exporter.unchanged,
            ("failed",): publisher.failures,
        }
        yield _counter("publish", "What came of what there was to publish.", ("result",), results)
        events = {pair: announcer.events[pair] for pair in product((*KNOWN_REASONS, OTHER), EVENT_RESULTS)}
        yield _counter("events", "Events on pods, by reason.", ("reason", "result"), events)
        rejections = {(result,): announcer.rejections[result] for result in REJECTION_RESULTS}
        yield _counter("rejections", "Refused pods that were to be set to Failed.", ("result",), rejections)
        yield _gauge(
            "last_success_timestamp_seconds",
            "When the object was last written; 0: never.",
            exporter.published_at,
        )
        yield _gauge("agent_connected", "Whether the agent is heard.", float(exporter.hears_agent))
        yield _gauge("pods_known", "Pods of this node whose facts are known.", float(exporter.pods.known))


def serve_status(address: tuple[str, int], exporter: Exporter, clock: Callable[[], float]) -> StatusServer:
    """Show all this at `address`.

    Raises:
        ConfigError: it cannot be listened on.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ExporterFigures(exporter))
    pages = {
        "/metrics": lambda: Page(prometheus_client.generate_latest(registry), content_type=PROMETHEUS_TEXT),
        "/healthz": verdict(
            "alive",
            lambda: clock() - exporter.came_round_at < STUCK_S,
            f"the main loop has not come round for {STUCK_S:g} s",
        ),
        "/readyz": lambda: ready(exporter),
    }
    return StatusServer(address, pages)


def ready(exporter: Exporter) -> Page:
    """Ready means: the agent is heard, and what it said was published."""
    cases = (
        (not exporter.hears_agent, "the agent is not heard; look at its log"),
        (bool(exporter.trouble), f"not published: {exporter.trouble}"),
        (not exporter.publisher.writes, "nothing published yet"),
    )
    wrong = next((words for applies, words in cases if applies), "")
    return verdict("ready", lambda: not wrong, wrong)()


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily(f"nri_pin_export_{name}", text, labels=labels)
    for found, value in values.items():
        family.add_metric(found, value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"nri_pin_export_{name}", text, value=value)
