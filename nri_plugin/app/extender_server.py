"""The extender over HTTP or HTTPS: `/filter`, `/prioritize`, `/bind`, `/healthz`, `/readyz`, `/metrics`.

A thread per connection; kube-scheduler keeps a few. One lock guards the cache, taken for the milliseconds an
answer takes, never while anybody is waited for. Certificates are read again when their files change.
"""

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from nri_plugin.app.extender_connections import Connections, Peer
from nri_plugin.app.logs import LOGGER_NAME, say_trace
from nri_plugin.errors import ConfigError, NriPinError

IDLE_S = 120.0
"""Longer than kube-scheduler keeps an idle connection (90 s), so that it never writes into one we just closed."""

REQUEST_S = 10.0
"""A request, once begun, must arrive in pieces no further apart than this."""

CONNECTIONS = 64
"""At more, who has waited longest without a question is hung up on: kube-scheduler needs one or two."""

CONNECTIONS_OF_ONE = 32
"""Of one address: kube-scheduler binds several pods at once."""

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may cost: bytes of body."""

    body_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body and its type."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


Post = Callable[[bytes], bytes]
Get = Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Routes:
    """What is answered, by path."""

    posts: Mapping[str, Post]
    gets: Mapping[str, Get]


class Certificates:
    """A TLS context from files, made anew when one of them changes.

    Args:
        certificate: PEM file of the chain.
        key: PEM file of its key.
        client_ca: PEM file of authorities; with it, whoever asks a question must show a certificate of theirs. Pages
            are open to all: a kubelet that probes has none to show.

    Attributes:
        ask_clients: whether there are such authorities.

    Raises:
        ConfigError: the files do not make a context.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = [certificate, key] + ([client_ca] if client_ca else [])
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self.ask_clients = client_ca is not None
        self._seen = self._state()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection; files that are half written leave the former one in place."""
        state = self._state()
        if state != self._seen:
            with contextlib.suppress(ConfigError):  # the next connection tries again
                self._context = self._load()
                self._seen = state
        return self._context

    @property
    def is_stale(self) -> bool:
        """Whether the files have changed and could not be used."""
        return self._state() != self._seen

    def _state(self) -> list[tuple[int, int] | None]:
        return [_identity(path) for path in self._files]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(map(str, self._files))
            raise ConfigError("tls", f"{files} make no TLS certificate: {error}; check the files") from None
        return context


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


class ExtenderServer(ThreadingHTTPServer):
    """Listens from the moment it is made; `serve_forever` answers, `stop` ends that gracefully.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        routes: Routes,
        certificates: Certificates | None = None,
        limits: Limits | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self.routes, self.certificates, self.limits = routes, certificates, limits or Limits()
        self.log = log or logging.getLogger(LOGGER_NAME)
        self.connections = Connections(CONNECTIONS, CONNECTIONS_OF_ONE)
        self._busy = 0
        self._change = threading.Condition()
        host, port = address
        is_any = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if ":" in host or is_any else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError("listen", f"cannot listen on {host}:{port}: {error}; choose another") from None

    def server_bind(self) -> None:
        """Bind without asking a name server for our own name."""
        if self.address_family is socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def verify_request(self, request: socket.socket, client_address: Peer) -> bool:  # type: ignore[override]
        """Turn away what there is no room for."""
        return self.connections.admit(request, client_address[:2])

    def process_request_thread(self, request: socket.socket, client_address: Peer) -> None:  # type: ignore[override]
        """Answer one connection, in its own thread; the handshake happens here too."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.left(client_address[:2])

    def finish_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Speak TLS first where there are certificates."""
        request.settimeout(REQUEST_S)
        if self.certificates is not None:
            with self.certificates.context().wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, client_address)
        else:
            super().finish_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that broke is the client's matter."""

    def begun(self, change: int) -> None:
        """One more, or one less, request is being answered."""
        with self._change:
            self._busy += change
            self._change.notify_all()

    def stop(self, wait_s: float = 5.0) -> None:
        """Accept nothing more, let what is being answered be answered, close."""
        self.shutdown()
        self.server_close()
        with self._change:
            self._change.wait_for(lambda: self._busy == 0, wait_s)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S  # for the first question: who connects has one
    wbufsize = -1  # headers and body leave together
    disable_nagle_algorithm = True
    server: ExtenderServer

    def do_GET(self) -> None:
        """Answer with a page."""
        make = self.server.routes.gets.get(self.path.partition("?")[0])
        self._send(make() if make else self._unknown())

    def do_POST(self) -> None:
        """Answer a question of the scheduler."""
        self.server.begun(+1)
        try:
            self._send(self._posted())
        finally:
            self.server.begun(-1)

    def _posted(self) -> Answer:
        answer = self.server.routes.posts.get(self.path.partition("?")[0])
        if not self._may_ask():
            self.close_connection = True
            return Answer(b"show a certificate of the authorities in --tls-client-ca\n", 403)
        body = self._body()
        if isinstance(body, Answer):
            return body
        if answer is None:
            return self._unknown()
        self.server.connections.answering(self.client_address[:2])
        try:
            return Answer(answer(body), content_type=JSON)
        except NriPinError as error:
            return Answer(f"{error}\n".encode(), 400)
        except Exception:  # noqa: BLE001 - a fault of ours must not look like a broken network
            say_trace(self.server.log, "question not answered", path=self.path, body_bytes=len(body))
            return Answer(b"the extender failed on this; its log says more\n", 500)

    def _may_ask(self) -> bool:
        """A certificate that was shown has been verified; here it only has to be there."""
        certificates = self.server.certificates
        if certificates is None or not certificates.ask_clients:
            return True
        return isinstance(self.connection, ssl.SSLSocket) and bool(self.connection.getpeercert())

    def _body(self) -> bytes | Answer:
        length = self.headers.get("Content-Length", "")
        if not (length.isdecimal() and length.isascii()):
            self.close_connection = True
            return Answer(b"a length of the body is needed\n", 411)
        if int(length) > self.server.limits.body_bytes:
            self.close_connection = True
            most = self.server.limits.body_bytes
            return Answer(f"{length} bytes of body, at most {most} are read\n".encode(), 413)
        self.connection.settimeout(REQUEST_S)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return Answer(b"the body ended early\n", 400)
        return body

    def _unknown(self) -> Answer:
        known = " ".join(sorted([*self.server.routes.posts, *self.server.routes.gets]))
        return Answer(f"not found; there are {known}\n".encode(), 404)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)
        self.wfile.flush()
        self.server.connections.waiting(self.client_address[:2])
        self.connection.settimeout(IDLE_S)

    def version_string(self) -> str:
        """Say no more than needed."""
        return "nri-pin"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Keep questions out of the log; there are hundreds a second."""
