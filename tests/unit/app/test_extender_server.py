"""The extender over HTTP and HTTPS."""

import http.client
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from nri_plugin.app.extender_server import CONNECTIONS, Answer, Certificates, ExtenderServer, Limits, Routes
from nri_plugin.errors import ConfigError, KubeObjectError

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl: apt install openssl")


def refuse(_):
    raise KubeObjectError("no pod")


def fail(_):
    raise ZeroDivisionError("of ours")


ROUTES = Routes(
    {"/echo": lambda body: body, "/refuse": refuse, "/fail": fail}, {"/healthz": lambda: Answer(b"ok\n")}
)


@pytest.fixture
def serve():
    servers = []

    def started(**kwargs):
        server = ExtenderServer(("127.0.0.1", 0), kwargs.pop("routes", ROUTES), **kwargs)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield started
    for server in servers:
        server.stop(1.0)


def ask(server, method, path, body=None, headers=None, context=None):
    made = http.client.HTTPSConnection if context else http.client.HTTPConnection
    extra = {"context": context} if context else {}
    connection = made("127.0.0.1", server.server_port, timeout=30, **extra)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_questions_and_pages_are_answered(serve):
    server = serve()
    assert ask(server, "POST", "/echo?x=1", b"{}") == (200, b"{}")
    assert ask(server, "GET", "/healthz") == (200, b"ok\n")
    assert ask(server, "POST", "/refuse", b"{}") == (400, b"no pod\n")
    assert ask(server, "GET", "/nothing")[0] == 404
    assert ask(server, "POST", "/nothing", b"")[0] == 404


def test_a_fault_of_ours_is_said_and_no_broken_connection(serve, caplog):
    server = serve()
    assert ask(server, "POST", "/fail", b"{}")[0] == 500
    (record,) = [one for one in caplog.records if one.getMessage() == "question not answered"]
    assert record.fields["path"] == "/fail"
    assert record.exc_info[0] is ZeroDivisionError
    assert ask(server, "GET", "/healthz") == (200, b"ok\n")


def test_a_connection_is_kept_for_the_next_question(serve):
    server = serve()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    for _ in range(3):
        connection.request("POST", "/echo", b"1")
        assert connection.getresponse().read() == b"1"
        first = connection.sock
        assert first is not None
    connection.close()


def test_a_body_that_is_too_long_or_of_unknown_length_is_not_read(serve):
    server = serve(limits=Limits(body_bytes=4))
    assert ask(server, "POST", "/echo", b"12345")[0] == 413
    assert ask(server, "POST", "/echo", b"1234") == (200, b"1234")
    assert ask(server, "POST", "/echo", iter([b"1"]), {"Transfer-Encoding": "chunked"})[0] == 411


def test_a_body_that_ends_early_is_said(serve):
    server = serve()
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as peer:
        peer.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        peer.shutdown(socket.SHUT_WR)
        assert b" 400 " in peer.recv(4096)


def test_stopping_lets_the_question_that_is_being_answered_be_answered(serve):
    entered, go_on = threading.Event(), threading.Event()

    def slow(body):
        entered.set()
        go_on.wait(10)
        return body

    server = serve(routes=Routes({"/slow": slow}, {}))
    got = []
    asking = threading.Thread(target=lambda: got.append(ask(server, "POST", "/slow", b"1")))
    asking.start()
    assert entered.wait(10)
    stopping = threading.Thread(target=server.stop, args=(10.0,))
    stopping.start()
    go_on.set()
    asking.join(30)
    stopping.join(30)
    assert got == [(200, b"1")]


def test_without_a_host_it_listens_on_every_address_the_machine_has(monkeypatch):
    for has_six in (True, False):
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda has_six=has_six: has_six)
        server = ExtenderServer(("", 0), ROUTES)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert ask(server, "GET", "/healthz") == (200, b"ok\n")
        server.stop(1.0)


def test_an_address_in_use_is_refused(serve):
    with pytest.raises(ConfigError, match="cannot listen"):
        ExtenderServer(("127.0.0.1", serve().server_port), ROUTES)


def made_certificate(folder, name):
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ]
        + ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate, key


@needs_openssl
def test_a_renewed_certificate_is_used_for_the_next_connection_and_a_broken_one_is_not(serve, tmp_path):
    certificate, key = made_certificate(tmp_path, "first")
    certificates = Certificates(certificate, key)
    server = serve(certificates=certificates)
    first = ssl.create_default_context(cafile=str(certificate))
    assert ask(server, "GET", "/healthz", context=first) == (200, b"ok\n")
    key.write_text("half a ke")
    assert ask(server, "GET", "/healthz", context=first)[0] == 200
    assert certificates.is_stale
    other, other_key = made_certificate(tmp_path, "second")
    other_key.replace(key)
    other.replace(certificate)
    with pytest.raises(ssl.SSLError):
        ask(server, "GET", "/healthz", context=first)
    second = ssl.create_default_context(cafile=str(certificate))
    assert ask(server, "GET", "/healthz", context=second)[0] == 200
    assert not certificates.is_stale


@needs_openssl
def test_with_client_authorities_who_asks_must_show_a_certificate_and_who_probes_need_not(serve, tmp_path):
    certificate, key = made_certificate(tmp_path, "server")
    client, client_key = made_certificate(tmp_path, "client")
    server = serve(certificates=Certificates(certificate, key, client))
    context = ssl.create_default_context(cafile=str(certificate))
    assert ask(server, "GET", "/healthz", context=context)[0] == 200
    assert ask(server, "POST", "/echo", b"{}", context=context)[0] == 403
    context.load_cert_chain(client, client_key)
    assert ask(server, "POST", "/echo", b"{}", context=context) == (200, b"{}")
    stranger = ssl.create_default_context(cafile=str(certificate))
    stranger.load_cert_chain(*made_certificate(tmp_path, "stranger"))
    with pytest.raises(OSError):
        ask(server, "POST", "/echo", b"{}", context=stranger)


def test_files_that_are_no_certificate_are_refused(tmp_path):
    (tmp_path / "x").write_text("x")
    with pytest.raises(ConfigError, match="no TLS certificate"):
        Certificates(tmp_path / "x", tmp_path / "missing")


def test_idle_connections_however_many_lock_nobody_out(serve):
    server = serve()
    idle = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(CONNECTIONS + 1)]
    assert ask(server, "POST", "/echo", b"{}") == (200, b"{}")
    for one in idle:
        one.close()
