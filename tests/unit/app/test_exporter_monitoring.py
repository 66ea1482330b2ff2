"""What the exporter counts, and when it calls itself ready."""

import http.client
import logging
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from nri_plugin.app.exporter import Exporter, ExportOptions
from nri_plugin.app.exporter_monitoring import STUCK_S, ExporterFigures, ready, serve_status
from nri_plugin.app.status_rows import Status
from nri_plugin.cpuset import CPUSet
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.options import Node, Options
from nri_plugin.state import State
from tests.builders import machine
from tests.kube_api_exchanges import crd
from tests.kube_api_server import KubeAPI

STATUS = Status(Node(machine(), Options(), CPUSet.parse("0")), State())


@pytest.fixture
def api() -> Iterator[KubeAPI]:
    server = KubeAPI([crd()])
    yield server
    server.close()


@pytest.fixture
def exporter(api: KubeAPI, tmp_path: Path) -> Iterator[Exporter]:
    client = KubeClient.connected(str(api.kubeconfig(tmp_path)))
    yield Exporter(
        ExportOptions("n1", "", pause_s=0.0), client, logging.getLogger("under test"), lambda: 1000.0
    )
    client.close()


def says(exporter: Exporter) -> None:
    exporter.tell(STATUS)
    exporter.step(STATUS)


def figures(exporter: Exporter) -> str:
    registry = CollectorRegistry()
    registry.register(ExporterFigures(exporter))
    return prometheus_client.generate_latest(registry).decode()


def test_all_series_are_there_from_the_start(exporter: Exporter) -> None:
    text = figures(exporter)
    for result in ("written", "unchanged", "failed"):
        assert f'nri_pin_export_publish_total{{result="{result}"}} 0.0' in text
    assert 'nri_pin_export_events_total{reason="other",result="failed"} 0.0' in text
    assert 'nri_pin_export_rejections_total{result="failed-pod"} 0.0' in text
    assert "nri_pin_export_last_success_timestamp_seconds 0.0" in text
    assert "nri_pin_export_agent_connected 0.0" in text
    assert "nri_pin_export_pods_known 0.0" in text


def test_what_is_said_twice_is_written_once(exporter: Exporter) -> None:
    says(exporter)
    says(exporter)
    text = figures(exporter)
    assert 'nri_pin_export_publish_total{result="written"} 1.0' in text
    assert 'nri_pin_export_publish_total{result="unchanged"} 1.0' in text
    assert "nri_pin_export_agent_connected 1.0" in text
    assert "nri_pin_export_last_success_timestamp_seconds 0.0" not in text


def test_ready_is_who_hears_the_agent_and_has_published(exporter: Exporter) -> None:
    assert ready(exporter).body == b"the agent is not heard; look at its log\n"
    exporter.tell(STATUS)
    assert ready(exporter).body == b"nothing published yet\n"
    exporter.step(STATUS)
    assert ready(exporter).status == 200
    exporter.agent_lost()
    assert ready(exporter).status == 503


def test_who_cannot_publish_is_not_ready_and_says_why(exporter: Exporter, api: KubeAPI) -> None:
    api.close()
    says(exporter)
    assert ready(exporter).status == 503
    assert ready(exporter).body.startswith(b"not published: ")
    assert 'nri_pin_export_publish_total{result="failed"} 1.0' in figures(exporter)


@pytest.mark.parametrize(("after_s", "status"), [(STUCK_S - 1, 200), (STUCK_S, 503)])
def test_a_loop_that_stands_still_is_not_alive(exporter: Exporter, after_s: float, status: int) -> None:
    server = serve_status(("127.0.0.1", 0), exporter, lambda: 1000.0 + after_s)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == status
    connection.close()
    server.close()
