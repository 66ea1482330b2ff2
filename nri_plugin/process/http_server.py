"""The HTTP server of agent, exporter and extender: pages by GET, answers by POST, TLS where there are certificates.

`http.server` reads requests and writes answers; here are the bounds on clients. Each connection has a thread. One more
thread accepts connections and closes late ones; it sleeps while no client is connected.

A connection *waits* while its client has to send or to read something. It has a time limit then, and it is closed earlier
where a new connection needs its place. A connection whose request is complete *is answered*; it is not closed for another.

Invariant: a client that makes the server wait never keeps another client out.

The agent serves containers from the same process. So the server uses a bounded number of descriptors and threads, and a
port that another program has does not end the process.
"""

import errno
import io
import logging
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from nri_plugin.model.errors import ConfigError, NriPinError
from nri_plugin.process.logs import say, say_trace
from nri_plugin.process.loop import StartThread, start_thread

# Pages and posts


TEXT = "text/plain; charset=utf-8"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class Post:
    """The handler of posts to one path.

    Attributes:
        answer: returns the body of the answer, JSON, for the body of the request.
        body_bytes: the longest body that is read.
        advice: the remedy for a longer one.
    """

    answer: Callable[[bytes], bytes]
    body_bytes: int
    advice: str = "is this kube-scheduler?"


@dataclass(frozen=True, slots=True)
class Routes:
    """Answers by path."""

    pages: Mapping[str, Callable[[], Page]]
    posts: Mapping[str, Post] = field(default_factory=dict)


def probe(name: str, find_trouble: Callable[[], str]) -> Callable[[], Page]:
    """Return a page for a probe: 200 with the name, or 503 with the trouble that `find_trouble` returns."""

    def page() -> Page:
        trouble = find_trouble()
        return Page(f"{trouble}\n".encode(), 503) if trouble else Page(f"{name} ok\n".encode())

    return page


def one_at_a_time(make: Callable[[], Page]) -> Callable[[], Page]:
    """Return a page that is made for one client at a time, so that many clients do not slow the process down."""
    lock = threading.Lock()

    def made() -> Page:
        with lock:
            return make()

    return made


# Certificates


class Certificates:
    """A TLS context from files, loaded again when one of them changes.

    Args:
        certificate: PEM file of the chain.
        key: PEM file of its key.
        client_ca: PEM file of authorities. With it, a client that posts needs a certificate of one of them. Pages need
            none: Prometheus has no certificate.

    Attributes:
        ask_clients: whether a client that posts needs a certificate.

    Raises:
        ConfigError: the files do not make a context.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = [certificate, key] + ([client_ca] if client_ca else [])
        self.ask_clients = client_ca is not None
        self._seen = self._state()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; half-written files leave the former context in use."""
        state = self._state()
        if state != self._seen:
            with suppress(ConfigError):  # the next connection tries again
                self._context = self._load()
                self._seen = state
        return self._context

    @property
    def is_stale(self) -> bool:
        """Return whether the files have changed and cannot be used."""
        return self._state() != self._seen

    def _state(self) -> list[tuple[int, int]]:
        """Return what changes with the files; a missing one is left out."""
        found = []
        for path in self._files:
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_ino))
        return found

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._files[0], self._files[1])
            if self.ask_clients:
                context.load_verify_locations(self._files[2])
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(map(str, self._files))
            raise ConfigError("tls", f"{files} are no TLS certificate: {error}; check the files") from None
        return context


# The clients


REQUEST_S = 10.0
"""Time limit for a whole request with TLS handshake and body, and again for reading the answer."""

LOOK_S = 1.0
"""Seconds between two checks for late connections, while any are open."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds on all clients together.

    Attributes:
        connections: the most open connections; there are at most twice as many threads.
        idle_s: how long a connection may wait for its next request, in seconds.
        body_bytes: of all request bodies in memory at once; a body counts until its answer has been sent.
    """

    connections: int = 8
    idle_s: float = 10.0
    body_bytes: int = 0


@dataclass(eq=False, slots=True)
class Connection:
    """One client.

    Attributes:
        socket: the socket, or the TLS socket around it.
        address: of the client.
        ends_at: the time at which it is closed if it still waits, in seconds of the clock.
        body_bytes: that have arrived of its body.
        has_certificate: the client has a verified certificate; others never take its place.
        is_waiting: its client has to send or to read something.
        is_owed: its request is complete, and its answer not sent yet.
        is_used: it had an answer before.
        is_last: its next answer is the last one.
        is_closed: it was closed for another connection, because it was late, or because it has ended.
    """

    socket: socket.socket
    address: str
    ends_at: float = 0.0
    body_bytes: int = 0
    has_certificate: bool = False
    is_waiting: bool = True
    is_owed: bool = False
    is_used: bool = False
    is_last: bool = False
    is_closed: bool = False


class Connections:
    """All open connections; safe to call from any thread.

    Args:
        limits: of connections and bytes.
        clock: seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock = limits, clock
        self._open: dict[Connection, None] = {}  # the longest waiting first
        self._present: set[Connection] = set()  # also closed ones, until their thread has ended
        self._is_ended = False
        self._change = threading.Condition()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, one: Connection) -> bool:
        """Add `one`, in the place of another if all are taken; `left` must be called for it.

        Where all others are being answered, this waits, so that nobody is turned away by a flood of requests.

        Returns:
            False where the server ends.
        """
        most = self.limits.connections
        with self._change:
            while not self._is_ended and (len(self._open) >= most or len(self._present) >= 2 * most):
                # Closed ones are present until their threads end; no further one has to make room for those.
                if len(self._open) < most or not self._close_first(self._open):
                    self._change.wait(LOOK_S)
                    self._close_late()
            if not self._is_ended:
                self._present.add(one)
                self._wait(one, REQUEST_S)
            return not self._is_ended

    def request_begins(self, one: Connection) -> None:
        """Note the first byte of a request: the rest must follow within `REQUEST_S`.

        The time of the first request began when the connection was accepted.
        """
        with self._change:
            if one.is_used:
                one.ends_at = self._clock() + REQUEST_S

    def arrived(self, one: Connection, size: int) -> None:
        """Count bytes of a body. Where all together are too many, those that have waited longest are closed.

        Where none of them waits, this does, until an answer has been sent or `one` is late.
        """
        with self._change:
            one.body_bytes += size
            while not one.is_closed and self._taken(self._present) > self.limits.body_bytes:
                others = [other for other in self._open if other.body_bytes and other is not one]
                if self._taken(self._open) <= self.limits.body_bytes or not self._close_first(others):
                    self._change.wait(LOOK_S)

    def answering(self, one: Connection) -> bool:
        """Note that the request of `one` is complete; False where it was closed before."""
        with self._change:
            one.is_waiting, one.is_owed = False, True
            return not one.is_closed

    def sending(self, one: Connection) -> None:
        """Note that the answer is ready: the client must read it within `REQUEST_S`."""
        with self._change:
            self._wait(one, REQUEST_S)

    def idle(self, one: Connection) -> None:
        """Note that the answer has been sent."""
        with self._change:
            one.is_used, one.is_owed, one.body_bytes = True, False, 0
            self._wait(one, self.limits.idle_s)

    def left(self, one: Connection) -> None:
        """Note that the thread of `one` has ended."""
        with self._change:
            self._present.discard(one)
            self._open.pop(one, None)
            one.is_closed = True
            self._change.notify_all()

    def close_late(self) -> None:
        """Close all whose time limit has passed."""
        with self._change:
            self._close_late()

    def close_all(self, wait_s: float) -> None:
        """Close all connections, after waiting up to `wait_s` seconds for the answers; admit no further one."""
        with self._change:
            self._change.wait_for(lambda: not any(one.is_owed for one in self._open), wait_s)
            self._is_ended = True
            for one in list(self._open):
                self._close(one)

    def _taken(self, clients: Collection[Connection]) -> int:
        return sum(one.body_bytes for one in clients)

    def _wait(self, one: Connection, seconds: float) -> None:
        """Let `one` wait, behind all others that do."""
        self._open.pop(one, None)
        one.is_waiting = True
        if not one.is_closed:
            one.ends_at = self._clock() + seconds
            self._open[one] = None
        self._change.notify_all()

    def _close_late(self) -> None:
        now = self._clock()
        for one in [one for one in self._open if one.is_waiting and one.ends_at <= now]:
            self._close(one)

    def _close_first(self, candidates: Collection[Connection]) -> bool:
        """Close the one that has waited longest, of the address with most; one without a certificate if there is any."""
        waiting = [one for one in candidates if one.is_waiting]
        waiting = [one for one in waiting if not one.has_certificate] or waiting
        count = Counter(one.address for one in waiting)
        first = max(waiting, key=lambda one: count[one.address], default=None)
        if first is not None:
            self._close(first)
        return first is not None

    def _close(self, one: Connection) -> None:
        """Shut the socket down; the thread of `one` notices that and frees the rest."""
        one.is_closed = True
        self._open.pop(one, None)
        with suppress(OSError):  # the client has closed it
            socket.socket.shutdown(
                one.socket, socket.SHUT_RDWR
            )  # also of a TLS socket: without the TLS close
        self._change.notify_all()


# The server


RETRY_S = 5.0
"""Seconds between two attempts at a port that another program has."""

AT_ONCE_S = 0.2
"""Time for the request of a client, where no thread is left that could wait for it."""

BACKLOG = 128
"""The most connections that wait in the kernel until they are accepted."""

HEAD_BYTES = 16 << 10
"""The longest head that is read. kube-scheduler, kubelet and Prometheus send less than 1 KiB."""

PIECE_BYTES = 1 << 16

DISCARD_BYTES = 8 << 20
"""The most bytes of a refused body that are read and dropped, so that its client sees the answer and not a reset."""

SAID_AGAIN_S = 60.0
"""Seconds between two log lines about refused requests with the same status: any client can send one."""

_PASSING = {errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors that pass. An address that this machine does not have is a wrong setting."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server listens.

    Attributes:
        setting: the name of the key or flag.
        address: (host, port); an empty host is every address of the machine, port 0 any free port.
        what: the content, for the log.
    """

    setting: str
    address: tuple[str, int]
    what: str

    def __str__(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Server:
    """Serves from the moment it is made until `close`.

    Args:
        place: the address.
        routes: the pages and posts.
        log: takes a line when the server listens, and why it cannot.
        limits: the bounds on all clients together.
        certificates: for TLS.
        keeps_trying: while another program has the port, wait for it rather than fail.
        start: starts the thread that accepts.

    Attributes:
        connections: the open ones.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self,
        place: ListenAddress,
        routes: Routes,
        log: logging.Logger,
        limits: Limits | None = None,
        *,
        certificates: Certificates | None = None,
        keeps_trying: bool = False,
        start: StartThread = start_thread,
    ) -> None:
        self.place, self.routes, self.log, self.certificates = place, routes, log, certificates
        self.connections = Connections(limits or Limits())
        self.closing = threading.Event()
        self._said_at: dict[int, float] = {}
        self._listener: socket.socket | None = None
        try:
            self._listener = self._listening()
        except OSError as error:
            # The text of `create_server` repeats the address; a resolver's error has a negative number.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            trouble = f"cannot listen on {place}: {str(why).lower()}; choose another address or port"
            if not keeps_trying or error.errno not in _PASSING:
                raise ConfigError(place.setting, trouble) from None
            say(log, logging.WARNING, "not listening yet, will be tried again", err=trouble)
        except UnicodeError as error:  # a host name that cannot be
            raise ConfigError(place.setting, f"cannot listen on {place}: {error}") from None
        start(threading.Thread(target=self._serve, name=place.what, daemon=True))

    @property
    def port(self) -> int:
        """Return the port; 0 while the server cannot listen."""
        listener = self._listener
        return int(listener.getsockname()[1]) if listener else 0

    def close(self, wait_s: float = 0.0) -> None:
        """Accept no further connection, wait up to `wait_s` seconds for answers, and end."""
        self.closing.set()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
        self.connections.close_all(wait_s)

    def refused(self, status: int, client: str, text: str) -> None:
        """Log that a request was refused, from time to time."""
        now = time.monotonic()
        if now - self._said_at.get(status, -SAID_AGAIN_S) >= SAID_AGAIN_S:
            self._said_at[status] = now
            level, at = logging.WARNING, self.place.what
            say(self.log, level, "request refused", at=at, status=status, client=client, err=text)

    def _listening(self) -> socket.socket:
        host, port = self.place.address
        is_any = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if ":" in host or is_any else socket.AF_INET
        # The port is free although connections of a former process are in TIME_WAIT. A listening one keeps it.
        listener = socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6
        )
        say(self.log, logging.INFO, f"serving {self.place.what}", port=listener.getsockname()[1])
        return listener

    def _serve(self) -> None:
        while self._listener is None:
            if self.closing.wait(RETRY_S):
                return
            with suppress(OSError):
                self._listener = self._listening()
        if self.closing.is_set():  # `close` has not seen this listener
            self._listener.close()
        while not self.closing.is_set():
            self._accept(self._listener)
            self.connections.close_late()

    def _accept(self, listener: socket.socket) -> None:
        """Start a thread for the next client, or return after a while without one."""
        try:
            listener.settimeout(LOOK_S if len(self.connections) else None)
            client, address = listener.accept()
        except (TimeoutError, ConnectionError):
            return
        except OSError:  # no descriptor is available
            self.closing.wait(LOOK_S)
            return
        one = Connection(client, str(address[0]))
        try:
            is_complete = self.certificates is None and _is_complete(client)
            client.settimeout(None)  # `Connections` closes late ones
            if self.certificates is not None:
                client.getpeername()  # fails where the client has gone; the wrapper would leave its socket open
                one.socket = self.certificates.context().wrap_socket(
                    client, server_side=True, do_handshake_on_connect=False
                )
        except (OSError, ValueError):  # the client has gone
            one.socket.close()
            return
        if not self.connections.admit(one):
            one.socket.close()
            return
        # A probe must succeed during a flood of connections: what has arrived is not closed for others.
        one.is_waiting = not is_complete
        self._start(one)

    def _start(self, one: Connection) -> None:
        """Start the thread of a connection. Where there is none left, this one answers a request that comes at once."""
        try:
            threading.Thread(target=self._converse, args=(one,), name=self.place.what, daemon=True).start()
        except RuntimeError:
            one.is_last = True
            if self.certificates is None and _is_complete(one.socket, AT_ONCE_S):
                one.socket.settimeout(LOOK_S)
                self._converse(one)
            else:
                self._leave(one)

    def _converse(self, one: Connection) -> None:
        try:
            if isinstance(one.socket, ssl.SSLSocket):
                one.socket.do_handshake()
                one.has_certificate = bool(one.socket.getpeercert())
            _Handler(one, self)
        except (OSError, ValueError):  # closed by the client, or by another thread of the server
            pass
        finally:
            self._leave(one)

    def _leave(self, one: Connection) -> None:
        self.connections.left(one)
        one.socket.close()


class _Handler(BaseHTTPRequestHandler):
    """Reads the requests of one connection and answers them, until one of the two closes it."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "nri-pin", ""
    disable_nagle_algorithm = True
    wbufsize = PIECE_BYTES
    server: Server  # type: ignore[assignment]

    def __init__(self, one: Connection, server: Server) -> None:
        self._one, self._all = one, server.connections
        super().__init__(one.socket, (one.address, 0), server)  # type: ignore[arg-type]

    def handle_one_request(self) -> None:
        """Read a request and answer it."""
        self.close_connection = True
        if not self.rfile.peek(1):  # type: ignore[attr-defined]
            return
        self._all.request_begins(self._one)
        self.request_version, self.command = "HTTP/1.1", ""
        head, stream = self._head(), self.rfile
        if not head:
            return
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        is_parsed = self.parse_request()
        self.rfile = stream
        if is_parsed:
            self._answer()

    def _head(self) -> bytes:
        """Return the head; empty where it is too long or ends early."""
        head, left = bytearray(), HEAD_BYTES
        while left > 0:
            line = self.rfile.readline(left)
            left -= len(line)
            if not line.endswith(b"\n") and left > 0:
                return b""
            if line.strip(b"\r\n"):
                head += line
            elif head:  # RFC 9112, 2.2: empty lines before the first are ignored
                return bytes(head + line)
        self.send_error(431, f"the head is longer than {HEAD_BYTES} bytes")
        return b""

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        routes = self.server.routes
        if self.command not in ("GET", "HEAD", "POST"):
            self.send_error(501, f"{self.command} is not served")
        elif path not in (routes.posts if self.command == "POST" else routes.pages):
            known = " ".join(sorted([*routes.posts, *routes.pages]))
            self.send_error(404, f"not found; there are {known}")
        elif self.command == "POST":
            self._posted(path, routes.posts[path])
        else:
            # A body that nobody reads would be taken for the next request.
            self.close_connection |= self.headers.get("Content-Length", "0") != "0"
            self.close_connection |= "Transfer-Encoding" in self.headers
            self._send(path, routes.pages[path])

    def _posted(self, path: str, post: Post) -> None:
        certificates, one = self.server.certificates, self._one
        lengths = {text.strip() for text in self.headers.get_all("Content-Length", ())}
        length = lengths.pop() if len(lengths) == 1 else ""
        size = int(length) if length.isascii() and length.isdecimal() and len(length) <= 15 else None
        if certificates is not None and certificates.ask_clients and not one.has_certificate:
            self.send_error(403, "show a certificate of the authorities in --tls-client-ca")
        # No client of this server sends chunks, and only a length can be bounded before the body is read.
        elif size is None or "Transfer-Encoding" in self.headers:
            self.send_error(411, "a body needs one Content-Length")
        elif size > post.body_bytes:
            text = f"{size} bytes of body, at most {post.body_bytes} are read; {post.advice}"
            self.send_error(413, text)
        else:
            if self.headers.get("Expect", "").lower() == "100-continue":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.wfile.flush()
            body = self._body(size)
            if len(body) < size:
                self.send_error(400, "the body ended early")
            else:
                self._send(path, lambda: _posted_page(post, body))

    def _body(self, size: int) -> bytes:
        pieces, left = [], size
        while left and (piece := self.rfile.read1(min(left, PIECE_BYTES))):
            self._all.arrived(self._one, len(piece))
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def _send(self, path: str, make: Callable[[], Page]) -> None:
        if not self._all.answering(self._one):
            self.close_connection = True
            return
        try:
            page = make()
        except Exception:  # noqa: BLE001 - a bug must not look like a broken network
            say_trace(self.server.log, "request not answered", path=path)
            page = Page(b"internal error; see the log\n", 500)
        self.close_connection |= self._one.is_last or self.server.closing.is_set()
        self._write(page)
        self._all.idle(self._one)

    def _write(self, page: Page) -> None:
        self._all.sending(self._one)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the reason, and close the connection after the client has had time to read it."""
        text = explain or message or ""
        self.server.refused(code, self._one.address, text)
        self.close_connection = True
        self._write(Page(f"{text}\n".encode(), code))
        socket.socket.shutdown(self._one.socket, socket.SHUT_WR)
        left = DISCARD_BYTES
        while left > 0 and (dropped := self._one.socket.recv(PIECE_BYTES)):
            left -= len(dropped)

    def handle_expect_100(self) -> bool:
        """Go on: the body is accepted once its length is known."""
        return True

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Log nothing: a line for each probe would hide the others."""


def _posted_page(post: Post, body: bytes) -> Page:
    try:
        return Page(post.answer(body), content_type=JSON)
    except NriPinError as error:
        return Page(f"{error}\n".encode(), 400)


def _is_complete(client: socket.socket, wait_s: float = 0.0) -> bool:
    """Return whether a whole request without a body has arrived."""
    with suppress(OSError):
        client.settimeout(wait_s)
        data = client.recv(HEAD_BYTES, socket.MSG_PEEK)
        return data.startswith((b"GET ", b"HEAD ")) and b"\r\n\r\n" in data
    return False
