"""Metrics and probes of the exporter; loaded only if an address for them is given.

The exporter keeps plain figures. They are read when a scrape comes.
"""

from collections.abc import Callable, Mapping
from itertools import product

from nri_plugin.exporter.events import KNOWN_REASONS, OTHER
from nri_plugin.exporter.exporter import Exporter
from nri_plugin.exporter.refused_pods import RESULTS
from nri_plugin.process.figures import figure
from nri_plugin.process.http_server import PROMETHEUS_TEXT, Page, probe

STUCK_S = 300.0
"""Longest time without a round of the main loop, which runs every 30 s. Slow answers of the API server delay it by the
time limit of a few requests."""

EVENT_RESULTS = ("created", "failed")


def metrics_page(exporter: Exporter) -> Page:
    """Return the page `/metrics`, with a series for each possible label."""
    publisher, announcer = exporter.publisher, exporter.announcer
    results = {"written": publisher.writes, "unchanged": exporter.unchanged, "failed": publisher.failures}
    pairs = product((*KNOWN_REASONS, OTHER), EVENT_RESULTS)
    events = {",".join(pair): announcer.events[pair] for pair in pairs}
    rejections = {result: announcer.rejections[result] for result in RESULTS}
    written = "When the object was last written; 0: never."
    rows: tuple[tuple[str, str, float | dict[str, int], str], ...] = (
        ("nri_pin_export_publish_total", "Statuses, by result of publishing.", results, "result"),
        ("nri_pin_export_events_total", "Events on pods, by reason.", events, "reason,result"),
        ("nri_pin_export_rejections_total", "Refusals of pods to be set to Failed.", rejections, "result"),
        ("nri_pin_export_last_success_timestamp_seconds", written, exporter.published_at, ""),
        ("nri_pin_export_faults_total", "Unexpected errors; tried again.", exporter.faults, ""),
        ("nri_pin_export_agent_connected", "Whether the agent is connected.", int(exporter.hears_agent), ""),
        ("nri_pin_export_pods_known", "Pods of this node whose facts are known.", exporter.pods.known, ""),
    )
    body = "".join(figure(name, text, value, label) for name, text, value, label in rows)
    return Page(body.encode(), content_type=PROMETHEUS_TEXT)


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
