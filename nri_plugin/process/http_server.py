"""The HTTP server of agent, exporter and extender: pages by GET, answers by POST, TLS where there are certificates.

Each connection has a thread; `Connections` bounds their number and the time that a client may take. One more thread
accepts connections and closes late ones; it sleeps while no client is connected.

The agent serves containers from the same process. So the server uses a bounded number of descriptors and threads, and a
port that another program has does not end the process.
"""

import errno
import logging
import os
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from threading import BoundedSemaphore, Event, Thread
from typing import TYPE_CHECKING

from nri_plugin.model.errors import ConfigError, NriPinError
from nri_plugin.process.http_connections import Connection, Connections, Limits, OwnNode, plain
from nri_plugin.process.http_messages import (
    HEAD_BYTES,
    JSON,
    Head,
    Page,
    Post,
    RequestError,
    Routes,
    parse_head,
    send_page,
)
from nri_plugin.process.logs import say, say_trace
from nri_plugin.process.loop import StartThread, start_thread

if TYPE_CHECKING:
    import ssl

    from nri_plugin.process.http_connections import Certificates


RETRY_S = 5.0
"""Seconds between two attempts at a port that another program has."""

LOOK_S = 1.0
"""Seconds between two checks for late connections, while any are open."""

AT_ONCE_MS = 200
"""Time for the request of a client, where no thread is left that could wait for it."""

BACKLOG = 128
"""The most connections that wait in the kernel until they are accepted."""

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
        certificates: "Certificates | None" = None,
        keeps_trying: bool = False,
        start: StartThread = start_thread,
    ) -> None:
        self._place, self._routes, self._log = place, routes, log
        self.certificates = certificates
        self.connections = Connections(limits or Limits())
        self._threads = BoundedSemaphore(self.connections.limits.threads)
        self._node = OwnNode.read(os.environ)
        self._closing = Event()
        self._said_at: dict[int, float] = {}
        self._listener: socket.socket | None = None
        try:
            self._listener = self._listening()
        except OSError as error:
            if not keeps_trying or error.errno not in _PASSING:
                raise ConfigError(place.setting, self._trouble(error)) from None
            say(log, logging.WARNING, "not listening yet, will be tried again", err=self._trouble(error))
        except (OverflowError, UnicodeError) as error:  # a port or a host name that cannot be
            raise ConfigError(place.setting, f"cannot listen on {place}: {error}") from None
        start(Thread(target=self._serve, name=place.what, daemon=True))

    @property
    def port(self) -> int:
        """Return the port; 0 while the server cannot listen."""
        listener = self._listener
        return int(listener.getsockname()[1]) if listener else 0

    def close(self, wait_s: float = 0.0) -> None:
        """Accept no further connection, wait up to `wait_s` seconds for answers, and end."""
        self._closing.set()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
        self.connections.close_all(wait_s)

    def _trouble(self, error: OSError) -> str:
        why = (error.strerror or str(error)).lower()
        return f"cannot listen on {self._place}: {why}; choose another address or port"

    def _listening(self) -> socket.socket:
        host, port = self._place.address
        is_any = not host and socket.has_dualstack_ipv6()
        listener = socket.socket(socket.AF_INET6 if ":" in host or is_any else socket.AF_INET)
        try:
            # The port is free although connections of a former process are in TIME_WAIT. A listening one keeps it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if listener.family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        say(self._log, logging.INFO, f"serving {self._place.what}", port=listener.getsockname()[1])
        return listener

    def _serve(self) -> None:
        while self._listener is None:
            if self._closing.wait(RETRY_S):
                return
            with suppress(OSError):
                self._listener = self._listening()
        if self._closing.is_set():  # `close` has not seen this listener
            self._listener.close()
        while not self._closing.is_set():
            self._listener_turn(self._listener)

    def _listener_turn(self, listener: socket.socket) -> None:
        """Accept one connection, or close late ones while none arrives."""
        with suppress(OSError):
            listener.settimeout(LOOK_S if len(self.connections) else None)
        client = None
        try:
            client, address = listener.accept()
            self._threads.acquire()
            self._receive(client, plain(address[0]))
        except TimeoutError:
            pass
        except (OSError, RuntimeError):  # no descriptor or no thread is available
            if client is not None:
                client.close()
            self._closing.wait(LOOK_S)
        with suppress(OSError):
            self.connections.close_late()

    def _receive(self, client: socket.socket, address: str) -> None:
        """Start a thread for `client` where there is a place; the thread releases the semaphore."""
        is_received = False
        try:
            one = Connection(client, address, self._node.is_client(address, plain(client.getsockname()[0])))
            client.settimeout(None)  # `Connections` closes late ones
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.connections.admit(one):
                if self.certificates is None and _is_complete(client):
                    self.connections.answering(one)
                is_received = True
                self._start(one)
        finally:
            if not is_received:
                self._threads.release()
                client.close()

    def _start(self, one: Connection) -> None:
        """Start the thread of a connection. Where there is none left, this one answers a request that comes at once."""
        try:
            Thread(target=self._converse, args=(one,), name=self._place.what, daemon=True).start()
        except RuntimeError:
            is_complete = self.certificates is None and _is_complete(one.socket, AT_ONCE_MS)
            one.socket.settimeout(LOOK_S)
            self._converse(one, most=int(is_complete))

    def _converse(self, one: Connection, most: int | None = None) -> None:
        try:
            self._secure(one)
            with one.socket.makefile("rb") as reader:
                while most != 0 and self._exchange(one, reader):
                    most = None if most is None else most - 1
        except (
            OSError,
            ValueError,
            AttributeError,
        ):  # closed by the client, or by another thread of the server
            pass
        finally:
            self.connections.left(one)
            one.socket.close()
            self._threads.release()

    def _secure(self, one: Connection) -> None:
        """Do the TLS handshake where the server has certificates; a client with a certificate counts as known."""
        if self.certificates is None:
            return
        secured: ssl.SSLSocket = self.certificates.context().wrap_socket(
            one.socket, server_side=True, do_handshake_on_connect=False
        )
        self.connections.secure(one, secured)
        secured.do_handshake()
        if secured.getpeercert() and not self.connections.verified(one):
            raise ConnectionError

    def _exchange(self, one: Connection, reader: BufferedReader) -> bool:
        """Read a request and answer it; return whether another may follow."""
        try:
            head = self._head(one, reader)
            page = self._answer(one, reader, head) if head else None
        except RequestError as error:
            self._refuse(one, error)
            return False
        if head is None or page is None:
            return False
        is_read_whole = head.method == "POST" or not head.body_bytes
        keeps_alive = head.keeps_alive and is_read_whole and not self._closing.is_set()
        self.connections.sending(one)
        send_page(one.socket, page, keeps_alive=keeps_alive, with_body=head.method != "HEAD")
        self.connections.idle(one)
        return keeps_alive

    def _head(self, one: Connection, reader: BufferedReader) -> Head | None:
        """Return the next head; None where the client has closed the connection."""
        if not reader.peek(1):
            return None
        self.connections.request_begins(one)
        lines: list[bytes] = []
        left = HEAD_BYTES
        while left > 0:
            line = reader.readline(left)
            left -= len(line)
            if not line.endswith(b"\n"):
                if left > 0:
                    return None
            elif line.strip(b"\r\n"):
                lines.append(line.rstrip(b"\r\n"))
            elif lines:  # RFC 9112, 2.2: empty lines before the first are ignored
                return parse_head(lines)
        raise RequestError(431, f"the head is longer than {HEAD_BYTES} bytes")

    def _answer(self, one: Connection, reader: BufferedReader, head: Head) -> Page | None:
        """Return the answer; None where the connection was closed meanwhile.

        Raises:
            RequestError: the request is refused.
        """
        if head.method == "POST":
            return self._posted(one, reader, head)
        if head.method not in ("GET", "HEAD"):
            raise RequestError(501, f"{head.method} is not served")
        make = self._routes.pages.get(head.path)
        if make is None:
            raise self._unknown()
        if not self.connections.answering(one):
            return None
        try:
            return make()
        except Exception:  # noqa: BLE001 - a bug must not look like a broken network
            return self._fault(head)

    def _posted(self, one: Connection, reader: BufferedReader, head: Head) -> Page | None:
        post = self._routes.posts.get(head.path)
        if post is None:
            raise self._unknown()
        size = self._accepted_size(one, post, head)
        if not self.connections.take_room(one, size):
            return None
        if head.expects_continue:
            one.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = reader.read(size)
        if one.is_closed:
            return None
        if len(body) < size:
            raise RequestError(400, "the body ended early")
        if not self.connections.answering(one):
            return None
        try:
            return Page(post.answer(body), content_type=JSON)
        except NriPinError as error:
            return Page(f"{error}\n".encode(), 400)
        except Exception:  # noqa: BLE001 - see _answer
            return self._fault(head)

    def _accepted_size(self, one: Connection, post: Post, head: Head) -> int:
        """Return the length of the body; called before any of it is read."""
        if self.certificates is not None and self.certificates.ask_clients and not one.has_certificate:
            raise RequestError(403, "show a certificate of the authorities in --tls-client-ca")
        size = head.body_bytes
        if size is None:
            raise RequestError(411, "a body needs a Content-Length")
        if size > post.body_bytes:
            raise RequestError(
                413, f"{size} bytes of body, at most {post.body_bytes} are read; {post.advice}"
            )
        return size

    def _fault(self, head: Head) -> Page:
        say_trace(self._log, "request not answered", path=head.path, body_bytes=head.body_bytes)
        return Page(b"internal error; see the log\n", 500)

    def _unknown(self) -> RequestError:
        known = " ".join(sorted([*self._routes.posts, *self._routes.pages]))
        return RequestError(404, f"not found; there are {known}")

    def _refuse(self, one: Connection, error: RequestError) -> None:
        """Send the reason, and close the connection after the client has had time to read it."""
        now = time.monotonic()
        if now - self._said_at.get(error.status, -SAID_AGAIN_S) >= SAID_AGAIN_S:
            self._said_at[error.status] = now
            say(
                self._log,
                logging.WARNING,
                "request refused",
                at=self._place.what,
                status=error.status,
                client=one.address,
                err=error,
            )
        self.connections.sending(one)
        send_page(one.socket, Page(f"{error}\n".encode(), error.status), keeps_alive=False)
        socket.socket.shutdown(one.socket, socket.SHUT_WR)
        left = DISCARD_BYTES
        while left > 0 and (dropped := one.socket.recv(1 << 16)):
            left -= len(dropped)


def _is_complete(client: socket.socket, wait_ms: int = 0) -> bool:
    """Return whether a whole request without a body has arrived: a probe must succeed during a flood of connections."""
    with suppress(OSError):
        if wait_ms:
            arrival = select.poll()
            arrival.register(client, select.POLLIN)
            arrival.poll(wait_ms)
        data = client.recv(HEAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return data.startswith((b"GET ", b"HEAD ")) and b"\r\n\r\n" in data
    return False
