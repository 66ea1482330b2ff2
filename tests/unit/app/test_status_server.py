import http.client
import socket
from collections.abc import Iterator

import pytest

from nri_plugin.app.status_server import Page, StatusServer, verdict
from nri_plugin.errors import ConfigError


@pytest.fixture
def health() -> dict[str, bool]:
    return {"well": True}


@pytest.fixture
def connection(health: dict[str, bool]) -> Iterator[http.client.HTTPConnection]:
    pages = {
        "/metrics": lambda: Page(b"a 1\n"),
        "/readyz": verdict("ready", lambda: health["well"], "not connected"),
    }
    server = StatusServer(("127.0.0.1", 0), pages)
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    yield client
    client.close()
    server.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[int, bytes]:
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_page_is_served_again_and_again_over_one_connection(connection: http.client.HTTPConnection):
    assert ask(connection, "GET", "/metrics") == (200, b"a 1\n")
    assert ask(connection, "GET", "/metrics?name=a") == (200, b"a 1\n")


def test_head_answers_without_a_body(connection: http.client.HTTPConnection):
    assert ask(connection, "HEAD", "/metrics") == (200, b"")
    assert ask(connection, "GET", "/metrics") == (200, b"a 1\n")


def test_an_unknown_path_is_told_the_known_ones(connection: http.client.HTTPConnection):
    assert ask(connection, "GET", "/") == (404, b"not found; there are /metrics /readyz\n")


def test_a_probe_says_what_is_wrong(connection: http.client.HTTPConnection, health: dict[str, bool]):
    assert ask(connection, "GET", "/readyz") == (200, b"ready ok\n")
    health["well"] = False
    assert ask(connection, "GET", "/readyz") == (503, b"not connected\n")


def test_other_methods_are_not_served(connection: http.client.HTTPConnection):
    assert ask(connection, "DELETE", "/metrics")[0] == 501


def test_a_taken_port_is_a_configuration_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"metricsBindAddress: cannot listen on 127.0.0.1:{port}: address"
        ):
            StatusServer(("127.0.0.1", port), {})


def test_an_address_of_another_machine_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"cannot listen on \[2001:db8::1\]:9465"):
        StatusServer(("2001:db8::1", 9465), {})


def test_no_host_is_every_address():
    server = StatusServer(("", 0), {"/x": lambda: Page(b"x")})
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    assert ask(client, "GET", "/x") == (200, b"x")
    client.close()
    server.close()
