"""The HTTP server of agent, exporter and extender, with real sockets."""

import array
import fcntl
import http.client
import logging
import select
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.model.errors import ConfigError, KubeObjectError
from nri_plugin.process import http_server
from nri_plugin.process.http_server import (
    BACKLOG,
    HEAD_BYTES,
    Certificates,
    Limits,
    ListenAddress,
    Page,
    Post,
    Routes,
    Server,
    one_at_a_time,
    probe,
)
from tests.certificates import client_context, made_certificate, needs_openssl

LOG = logging.getLogger("test-http")
PATIENCE_S = 60.0


def refuse(_: bytes) -> bytes:
    raise KubeObjectError("no pod")


def fail(*_: object) -> Any:
    raise ZeroDivisionError("of ours")


ROUTES = Routes(
    {"/healthz": lambda: Page(b"ok\n"), "/metrics": lambda: Page(b"a 1\n"), "/broken": fail},
    {
        "/echo": Post(lambda body: body, 1000, "send less"),
        "/refuse": Post(refuse, 100),
        "/fail": Post(fail, 100),
    },
)
LIMITS = Limits(body_bytes=4000)

Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def started(
            routes: Routes = ROUTES,
            limits: Limits = LIMITS,
            host: str = "127.0.0.1",
            log: logging.Logger = LOG,
            **more: Any,
        ) -> Server:
            server = Server(ListenAddress("bindAddress", (host, 0), "pages"), routes, log, limits, **more)
            stack.callback(server.close)
            return server

        yield started


def ask(
    server: Server,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    if context is None:
        made: http.client.HTTPConnection = http.client.HTTPConnection(
            "127.0.0.1", server.port, timeout=PATIENCE_S
        )
    else:
        made = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_S, context=context)
    with closing(made) as connection:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def connected(server: Server, data: bytes = b"", context: ssl.SSLContext | None = None) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    if context is not None:
        client = context.wrap_socket(client, server_hostname="127.0.0.1")
    with suppress(OSError):  # closed for another
        client.sendall(data)
    return client


def answer_to(server: Server, data: bytes) -> bytes:
    """All that comes back until the server closes."""
    with connected(server, data) as client:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_pages_and_posts_are_answered_again_and_again_over_one_connection(serve: Serve):
    with closing(http.client.HTTPConnection("127.0.0.1", serve().port, timeout=PATIENCE_S)) as client:
        for method, path, body, wanted in (
            ("GET", "/metrics?name=a", None, b"a 1\n"),
            ("HEAD", "/metrics", None, b""),
            ("POST", "/echo", b"{}", b"{}"),
            ("GET", "/healthz", None, b"ok\n"),
        ):
            client.request(method, path, body)
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (200, wanted)
            assert client.sock is not None


def test_requests_may_arrive_together_and_in_pieces(serve: Serve):
    server = serve()
    both = b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}\r\nGET /healthz HTTP/1.0\r\n\r\n"
    whole = answer_to(server, both)
    assert whole.count(b"HTTP/1.1 200 OK\r\n") == 2
    with connected(server) as client:
        for at in range(len(both)):
            client.sendall(both[at : at + 1])
        assert b"".join(iter(lambda: client.recv(1 << 16), b"")).endswith(b"\r\n\r\nok\n")


def test_a_client_that_waits_before_it_sends_its_body_is_told_to_go_on(serve: Serve):
    with connected(
        serve(), b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    ) as client:
        assert client.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/nothing", 404, b"not found; there are /broken /echo /fail /healthz /metrics /refuse\n"),
        ("POST", "/nothing", 404, b"not found"),
        ("DELETE", "/metrics", 501, b"DELETE is not served"),
        ("POST", "/refuse", 400, b"no pod\n"),
        ("POST", "/fail", 500, b"internal error; see the log\n"),
        ("GET", "/broken", 500, b"internal error; see the log\n"),
    ],
)
def test_what_is_not_answered_says_why(serve: Serve, method: str, path: str, status: int, text: bytes):
    server = serve()
    found, body = ask(server, method, path, b"{}" if method == "POST" else None)
    assert (found, body[: len(text)]) == (status, text)
    assert ask(server, "GET", "/healthz") == (200, b"ok\n")


def test_a_fault_of_ours_is_logged(serve: Serve, caplog: pytest.LogCaptureFixture):
    ask(serve(log=logging.getLogger("of-faults")), "POST", "/fail", b"{}")
    (record,) = [one for one in caplog.records if one.name == "of-faults"]
    assert record.getMessage() == "request not answered"
    assert record.fields["path"] == "/fail"  # type: ignore[attr-defined]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_a_probe_says_what_is_wrong(serve: Serve):
    health = {"is well": True}
    server = serve(Routes({"/readyz": probe("ready", lambda: "" if health["is well"] else "not connected")}))
    assert ask(server, "GET", "/readyz") == (200, b"ready ok\n")
    health["is well"] = False
    assert ask(server, "GET", "/readyz") == (503, b"not connected\n")


def test_a_page_that_is_dear_is_made_once_at_a_time():
    inside, most = [], []

    def make() -> Page:
        inside.append(1)
        most.append(len(inside))
        inside.pop()
        return Page(b"")

    page = one_at_a_time(make)
    threads = [threading.Thread(target=page) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert most == [1] * 8


def test_a_body_that_is_too_long_or_of_unknown_length_is_not_read(
    serve: Serve, caplog: pytest.LogCaptureFixture
):
    server = serve(log=logging.getLogger("of-bodies"))
    advice = b"1001 bytes of body, at most 1000 are read; send less\n"
    assert ask(server, "POST", "/echo", b"1" * 1001) == (413, advice)
    assert ask(server, "POST", "/echo", b"1" * 1000)[0] == 200
    assert ask(server, "POST", "/echo", iter([b"1"]), {"Transfer-Encoding": "chunked"})[0] == 411
    assert answer_to(server, b"POST /echo HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 411 ")
    refused = [one for one in caplog.records if one.name == "of-bodies"]
    assert {one.getMessage() for one in refused} == {"request refused"}
    assert [one.fields["status"] for one in refused] == [413, 411]  # type: ignore[attr-defined]


def test_the_client_of_a_refused_body_sees_why_although_it_still_sends(serve: Serve):
    server = serve()
    assert ask(server, "POST", "/echo", b"1" * (4 << 20))[0] == 413


def test_a_head_is_read_up_to_a_limit(serve: Serve):
    server = serve()
    fits = b"GET /healthz HTTP/1.0\r\n" + b"A: " + b"a" * (HEAD_BYTES - 100) + b"\r\n\r\n"
    assert answer_to(server, fits).startswith(b"HTTP/1.1 200 ")
    for endless in (
        b"A" * (2 * HEAD_BYTES),
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * HEAD_BYTES,
        b"\r\n" * HEAD_BYTES,
    ):
        assert answer_to(server, endless).startswith(b"HTTP/1.1 431 ")


def test_a_body_or_a_head_that_ends_early(serve: Serve):
    server = serve()
    with connected(server, b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc") as client:
        client.shutdown(socket.SHUT_WR)
        assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
    with connected(server, b"GET /healthz HTT") as client:
        client.shutdown(socket.SHUT_WR)
        assert client.recv(4096) == b""


def test_ending_lets_the_request_that_is_being_answered_be_answered():
    entered, go_on = threading.Event(), threading.Event()

    def slow(body: bytes) -> bytes:
        entered.set()
        go_on.wait(PATIENCE_S)
        return body

    server = Server(
        ListenAddress("b", ("127.0.0.1", 0), "x"), Routes({}, {"/slow": Post(slow, 10)}), LOG, LIMITS
    )
    got: list[tuple[int, bytes]] = []
    asking = threading.Thread(target=lambda: got.append(ask(server, "POST", "/slow", b"1")))
    asking.start()
    assert entered.wait(PATIENCE_S)
    ending = threading.Thread(target=server.close, args=(PATIENCE_S,))
    ending.start()
    go_on.set()
    asking.join(PATIENCE_S)
    ending.join(PATIENCE_S)
    assert got == [(200, b"1")]


def test_no_host_is_every_address_the_machine_has(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    for has_six in (True, False):
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda has_six=has_six: has_six)
        assert ask(serve(host=""), "GET", "/healthz") == (200, b"ok\n")


def test_an_address_in_use_is_refused_with_the_setting_that_names_it(serve: Serve):
    port = serve().port
    with pytest.raises(
        ConfigError, match=f"bindAddress: cannot listen on 127.0.0.1:{port}: address already in use"
    ):
        Server(ListenAddress("bindAddress", ("127.0.0.1", port), "pages"), ROUTES, LOG)


@pytest.mark.parametrize("address", [("a..b", 1), ("does-not-exist.invalid", 1)])
def test_an_address_that_cannot_be_is_a_configuration_error(address: tuple[str, int]):
    with pytest.raises(ConfigError, match="bindAddress: cannot listen on"):
        Server(ListenAddress("bindAddress", address, "x"), ROUTES, LOG, keeps_trying=True)


@pytest.mark.parametrize("keeps_trying", [True, False])
def test_a_wrong_address_is_a_configuration_error_however_patient_the_server(keeps_trying: bool):
    with pytest.raises(ConfigError, match=r"bindAddress: cannot listen on \[2001:db8::1\]:9465"):
        Server(
            ListenAddress("bindAddress", ("2001:db8::1", 9465), "x"), ROUTES, LOG, keeps_trying=keeps_trying
        )


def test_a_port_that_another_program_has_is_waited_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    log = logging.getLogger("of-ports")
    monkeypatch.setattr(http_server, "RETRY_S", 0.01)
    served, real = threading.Event(), Server._listening

    def listening(server: Server) -> socket.socket:
        listener = real(server)
        served.set()
        return listener

    monkeypatch.setattr(Server, "_listening", listening)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = Server(
            ListenAddress("bindAddress", ("127.0.0.1", port), "pages"), ROUTES, log, keeps_trying=True
        )
        assert server.port == 0
        said = [one.getMessage() for one in caplog.records if one.name == "of-ports"]
        assert said == ["not listening yet, will be tried again"]
    assert served.wait(PATIENCE_S)
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client:
        client.request("GET", "/healthz")
        assert client.getresponse().status == 200
    server.close()
    said = [one.getMessage() for one in caplog.records if one.name == "of-ports"]
    assert said == ["not listening yet, will be tried again", "serving pages"]


def test_a_server_that_still_waits_for_its_port_can_be_closed():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = Server(ListenAddress("b", ("127.0.0.1", port), "x"), ROUTES, LOG, keeps_trying=True)
        server.close()


@pytest.mark.parametrize(
    "request_line", [b"GET /healthz HTTP/1.0", b"GET /healthz HTTP/1.1\r\nConnection: close"]
)
def test_a_port_can_be_listened_on_again_right_after_the_server_closed_a_connection(request_line: bytes):
    """The side that closes first keeps the port in TIME_WAIT for a minute."""
    server = Server(ListenAddress("b", ("127.0.0.1", 0), "x"), ROUTES, LOG)
    port = server.port
    assert answer_to(server, request_line + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    server.close()
    again = Server(ListenAddress("b", ("127.0.0.1", port), "x"), ROUTES, LOG)
    assert again.port == port
    again.close()


SLOW = 8 * LIMITS.connections


@pytest.mark.parametrize(
    "begun",
    [b"", b"G", b"GET /healthz HTTP/1.1\r\nA: ", b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\n1"],
)
@pytest.mark.parametrize("has_tls", [False, pytest.param(True, marks=needs_openssl)])
def test_slow_clients_lock_nobody_out_and_take_few_threads(
    serve: Serve, tmp_path: Path, begun: bytes, has_tls: bool
):
    files = made_certificate(tmp_path, "server") if has_tls else ()
    server = serve(certificates=Certificates(*files) if has_tls else None)
    context = client_context(files[0]) if has_tls else None
    before = threading.active_count()
    slow = [connected(server, begun, context if begun else None) for _ in range(SLOW)]
    assert ask(server, "GET", "/healthz", context=context) == (200, b"ok\n")
    assert ask(server, "POST", "/echo", b"{}", context=context) == (200, b"{}")
    assert len(server.connections) <= LIMITS.connections
    assert threading.active_count() <= before + 2 * LIMITS.connections
    for one in slow:
        one.close()


def test_clients_that_are_late_are_closed_by_the_clock(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "LOOK_S", 0.01)
    server = serve(limits=Limits(idle_s=0.0))
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)) as idle:
        idle.request("GET", "/healthz")
        assert idle.getresponse().read() == b"ok\n"
        assert idle.sock is not None
        assert idle.sock.recv(1) == b""
    monkeypatch.setattr(http_server, "REQUEST_S", 0.0)
    with connected(server, b"GET /heal") as begun:
        assert begun.recv(1) == b""


def test_a_client_that_takes_no_answer_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "LOOK_S", 0.01)
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)
    large = Page(b"x" * (64 << 20))  # more than the kernel keeps for a client
    server = serve(Routes({"/large": lambda: large, **ROUTES.pages}))
    with connected(server, b"GET /large HTTP/1.1\r\n\r\n") as client:
        left = threading.Event()
        real = server.connections.left
        monkeypatch.setattr(server.connections, "left", lambda one: (real(one), left.set()))
        assert left.wait(PATIENCE_S)
        client.close()


def wait_until_taken(client: socket.socket) -> None:
    """Until the other side's kernel has all that `client` sent."""
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(client, termios.TIOCOUTQ, left)


def test_a_request_that_came_whole_is_not_closed_for_those_that_come_after_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
):
    """A probe in the middle of a flood: connections are accepted faster than their threads begin."""
    opened, go_on = threading.Event(), threading.Event()
    converse, accept = Server._converse, Server._accept
    monkeypatch.setattr(Server, "_converse", lambda *given: (go_on.wait(PATIENCE_S), converse(*given)))
    monkeypatch.setattr(Server, "_accept", lambda *given: (opened.wait(PATIENCE_S), accept(*given)))
    server = serve()
    idle = connected(server)
    probe = connected(server, b"GET /healthz HTTP/1.0\r\n\r\n")
    wait_until_taken(probe)
    opened.set()
    flood = [connected(server, b"G") for _ in range(2 * LIMITS.connections - 2)]
    assert idle.recv(1) == b""
    assert flood[0].recv(1) == b""
    go_on.set()
    assert probe.recv(4096).startswith(b"HTTP/1.1 200 ")
    for one in [idle, probe, *flood]:
        one.close()


def test_bodies_in_memory_at_once_are_bounded_and_the_newest_is_answered(serve: Serve):
    server = serve(limits=Limits(connections=32, body_bytes=2000))
    start = b"POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + b"1" * 900
    slow = [connected(server, start) for _ in range(12)]
    for _ in range(10):  # two fit
        (closed, *_), _, _ = select.select(slow, [], [], PATIENCE_S)
        assert closed.recv(1) == b""
        slow.remove(closed)
        closed.close()
    assert ask(server, "POST", "/echo", b"2" * 1000) == (200, b"2" * 1000)
    assert sum(one.body_bytes for one in list(server.connections._present)) <= 2000
    for one in slow:
        one.close()


@needs_openssl
def test_a_renewed_certificate_is_used_for_the_next_connection_and_a_broken_one_is_not(
    serve: Serve, tmp_path: Path
):
    certificate, key = made_certificate(tmp_path, "first")
    certificates = Certificates(certificate, key)
    server = serve(certificates=certificates)
    first = client_context(certificate)
    assert ask(server, "GET", "/healthz", context=first) == (200, b"ok\n")
    key.write_text("half a ke")
    assert ask(server, "GET", "/healthz", context=first)[0] == 200
    assert certificates.is_stale
    other, other_key = made_certificate(tmp_path, "second")
    other_key.replace(key)
    other.replace(certificate)
    with pytest.raises(ssl.SSLError):
        ask(server, "GET", "/healthz", context=first)
    second = client_context(certificate)
    assert ask(server, "GET", "/healthz", context=second)[0] == 200
    assert not certificates.is_stale


@needs_openssl
def test_with_client_authorities_who_posts_must_show_a_certificate_and_who_reads_pages_need_not(
    serve: Serve, tmp_path: Path
):
    certificate, key = made_certificate(tmp_path, "server")
    client, client_key = made_certificate(tmp_path, "client")
    server = serve(certificates=Certificates(certificate, key, client))
    context = client_context(certificate)
    assert ask(server, "GET", "/healthz", context=context)[0] == 200
    assert ask(server, "POST", "/echo", b"{}", context=context)[0] == 403
    context.load_cert_chain(client, client_key)
    assert ask(server, "POST", "/echo", b"{}", context=context) == (200, b"{}")
    stranger = client_context(certificate, *made_certificate(tmp_path, "stranger"))
    with pytest.raises(OSError):
        ask(server, "POST", "/echo", b"{}", context=stranger)


@needs_openssl
def test_slow_handshakes_take_no_place_of_a_client_that_showed_its_certificate(serve: Serve, tmp_path: Path):
    certificate, key = made_certificate(tmp_path, "server")
    client, client_key = made_certificate(tmp_path, "client")
    server = serve(certificates=Certificates(certificate, key, client))
    context = client_context(certificate, client, client_key)
    with closing(
        http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_S, context=context)
    ) as scheduler:
        scheduler.request("POST", "/echo", b"1")
        assert scheduler.getresponse().read() == b"1"
        kept = scheduler.sock
        slow = [connected(server, b"\x16") for _ in range(SLOW)]
        assert ask(server, "POST", "/echo", b"2", context=context) == (200, b"2")
        scheduler.request("POST", "/echo", b"3")
        assert scheduler.getresponse().read() == b"3"
        assert scheduler.sock is kept
    for one in slow:
        one.close()


def test_files_that_are_no_certificate_are_refused(tmp_path: Path):
    (tmp_path / "x").write_text("x")
    with pytest.raises(ConfigError, match="no TLS certificate"):
        Certificates(tmp_path / "x", tmp_path / "missing")


def test_the_kernel_keeps_a_burst_of_connections(serve: Serve):
    assert BACKLOG >= SLOW


def test_probes_are_answered_on_a_node_without_a_thread_left(serve: Serve, monkeypatch: pytest.MonkeyPatch):
    server = serve(limits=Limits(4, body_bytes=4000))
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "pages":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    for _ in range(12):
        assert ask(server, "GET", "/healthz") == (200, b"ok\n")
        with connected(server) as silent:
            assert silent.recv(1) == b""
    monkeypatch.undo()
    assert ask(server, "POST", "/echo", b"{}") == (200, b"{}")


@needs_openssl
def test_clients_that_reset_their_connection_delay_nobody(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_server, "LOOK_S", 2 * PATIENCE_S)
    certificate, key = made_certificate(tmp_path, "server")
    server = serve(certificates=Certificates(certificate, key))
    for _ in range(SLOW):
        client = connected(server)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert ask(server, "GET", "/healthz", context=client_context(certificate)) == (200, b"ok\n")
