"""What the exporter counts, and when it calls itself ready."""

import http.client
import logging
import socket
from collections.abc import Sequence
from contextlib import closing

import pytest

from nri_plugin.agent.observing.status_client import AgentStatus
from nri_plugin.exporter.exporter import Exporter, ExportOptions
from nri_plugin.exporter.monitoring import STUCK_S, metrics_page, probe_pages, unready
from nri_plugin.exporter.process import serve_http
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.http_server import Server
from tests.builders import machine
from tests.kube_api_server import KubeAPI

STATUS = AgentStatus(Node(machine(), Options(), CPUSet.parse("0")), State())


@pytest.fixture
def exporter(client: KubeClient) -> Exporter:
    options = ExportOptions("n1", "", pause_s=0.0)
    return Exporter(options, client, logging.getLogger("under test"), lambda: 1000.0)


def says(exporter: Exporter) -> None:
    exporter.tell(STATUS)
    exporter.step(STATUS)


def figures(exporter: Exporter) -> str:
    return metrics_page(exporter).body.decode()


def test_all_series_are_there_from_the_start(exporter: Exporter) -> None:
    text = figures(exporter)
    for result in ("written", "unchanged", "failed"):
        assert f'nri_pin_export_publish_total{{result="{result}"}} 0' in text
    assert 'nri_pin_export_events_total{reason="other",result="failed"} 0' in text
    assert 'nri_pin_export_rejections_total{result="failed-pod"} 0' in text
    assert "nri_pin_export_last_success_timestamp_seconds 0.0" in text
    assert "nri_pin_export_agent_connected 0" in text
    assert "nri_pin_export_pods_known 0" in text


def test_what_is_said_twice_is_written_once(exporter: Exporter) -> None:
    says(exporter)
    says(exporter)
    text = figures(exporter)
    assert 'nri_pin_export_publish_total{result="written"} 1' in text
    assert 'nri_pin_export_publish_total{result="unchanged"} 1' in text
    assert "nri_pin_export_agent_connected 1" in text
    assert "nri_pin_export_last_success_timestamp_seconds 0.0" not in text


def test_ready_is_who_hears_the_agent_and_has_published(exporter: Exporter) -> None:
    assert unready(exporter) == "the agent is not connected; see its log"
    exporter.tell(STATUS)
    assert unready(exporter) == "nothing published yet"
    exporter.step(STATUS)
    assert unready(exporter) == ""
    exporter.agent_lost()
    assert unready(exporter)


def test_who_cannot_publish_is_not_ready_and_says_why(exporter: Exporter, api: KubeAPI) -> None:
    api.close()
    says(exporter)
    assert unready(exporter)
    assert unready(exporter).startswith("not published: ")
    assert 'nri_pin_export_publish_total{result="failed"} 1' in figures(exporter)


def test_an_exporter_whose_node_is_gone_is_not_ready(exporter: Exporter, api: KubeAPI) -> None:
    says(exporter)
    exporter.owner.reference = {"uid": "u"}
    exporter.owner.doubt()
    assert unready(exporter) == "not published: the node is not registered in the cluster"
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    exporter.owner.look()
    assert unready(exporter) == ""


@pytest.mark.parametrize(("after_s", "status"), [(STUCK_S - 1, 200), (STUCK_S, 503)])
def test_a_loop_that_stands_still_is_not_alive(exporter: Exporter, after_s: float, status: int) -> None:
    assert probe_pages(exporter, lambda: 1000.0 + after_s)["/healthz"]().status == status


def served(exporter: Exporter, **addresses: tuple[str, int]) -> Sequence[Server]:
    options = ExportOptions("n1", "", **addresses)  # type: ignore[arg-type]
    return serve_http(options, exporter, logging.getLogger("under test"), lambda: 1000.0)


def test_metrics_and_probes_have_a_port_each(exporter: Exporter) -> None:
    anywhere = ("127.0.0.1", 0)
    assert not served(exporter)
    probes, metrics = served(exporter, metrics_bind_address=anywhere, health_probe_bind_address=anywhere)
    assert status_of(probes, "/healthz") == status_of(metrics, "/healthz") == 200
    assert (status_of(probes, "/metrics"), status_of(metrics, "/metrics")) == (404, 200)
    for server in (probes, metrics):
        server.close()


def test_an_exporter_whose_port_another_program_has_publishes_all_the_same(exporter: Exporter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        (server,) = served(exporter, metrics_bind_address=other.getsockname())
        says(exporter)
        assert unready(exporter) == ""
        assert server.port == 0
        server.close()


def test_slow_clients_of_the_metrics_do_not_reach_the_probes(exporter: Exporter) -> None:
    anywhere = ("127.0.0.1", 0)
    probes, metrics = served(exporter, metrics_bind_address=anywhere, health_probe_bind_address=anywhere)
    slow = []
    for _ in range(4 * metrics.connections.limits.connections):
        slow.append(socket.create_connection(("127.0.0.1", metrics.port), timeout=60))
        slow[-1].sendall(b"G")
    assert status_of(probes, "/healthz") == status_of(metrics, "/metrics") == 200
    assert len(metrics.connections) <= metrics.connections.limits.connections
    for closable in (*slow, probes, metrics):
        closable.close()


def status_of(server: Server, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status
