"""The HTTP server of agent, exporter and extender: pages by GET, answers by POST, TLS where there are certificates.

Each connection has a thread, and `Connections` bounds how many there are and how long a client may take. One more
thread accepts connections and closes those that are late; it sleeps while nobody is connected.

The agent serves containers from the same process. So the server takes a bounded number of descriptors and threads
whatever its clients do, and a port that another program has does not end the process.
"""

import errno
import logging
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from threading import BoundedSemaphore, Event, Thread
from typing import TYPE_CHECKING

from nri_plugin.model.errors import ConfigError, NriPinError
from nri_plugin.process.http_connections import Connection, Connections, Limits
from nri_plugin.process.http_pages import JSON, Page, Post, Routes, send_page
from nri_plugin.process.logs import say, say_trace

if TYPE_CHECKING:
    import ssl

    from nri_plugin.process.http_connections import Certificates


# The head of a request: its first line and the headers that the server acts on.
#
# Source: RFC 9110 and RFC 9112; the sections are named at each step. Bodies come with a length only: no client of ours
# sends chunks, and a length is what a server can bound.


HEAD_BYTES = 16 << 10
"""Longest head that is read. kube-scheduler, kubelet and Prometheus send less than 1 KiB."""

_FIRST_LINE = re.compile(rb"([A-Z]{1,16}) (\S{1,8192}) HTTP/1\.([01])\Z")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")  # RFC 9110, 5.6.2: a token
_LENGTH = re.compile(rb"[0-9]{1,15}\Z")


class RequestError(Exception):
    """A request that is not answered.

    Attributes:
        status: of the answer that says why.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """What a server acts on.

    Attributes:
        path: without the query.
        body_bytes: length of the body; None where the client does not say that there is one.
        keeps_alive: the client may send another request on this connection.
        expects_continue: the client waits for `100 Continue` before it sends the body.
    """

    method: str
    path: str
    body_bytes: int | None = None
    keeps_alive: bool = True
    expects_continue: bool = False


def parse_head(lines: Sequence[bytes]) -> Head:
    """The head made of `lines`, which carry no line ends.

    Raises:
        RequestError: the lines are no head that this server takes.
    """
    first = _FIRST_LINE.match(lines[0])
    if first is None:
        raise RequestError(400, "the first line is not METHOD PATH HTTP/1.1")
    headers = _headers(lines[1:])
    if b"transfer-encoding" in headers:
        raise RequestError(411, "a body needs a Content-Length")
    options = {option.strip().lower() for option in headers.get(b"connection", b"").split(b",")}
    is_new = first[3] == b"1"
    return Head(
        method=first[1].decode("ascii"),
        path=first[2].partition(b"?")[0].decode("latin-1"),
        body_bytes=_body_bytes(headers.get(b"content-length")),
        # RFC 9112, 9.3: HTTP/1.0 closes unless told otherwise, HTTP/1.1 the other way round.
        keeps_alive=b"close" not in options and (is_new or b"keep-alive" in options),
        expects_continue=is_new and headers.get(b"expect", b"").lower() == b"100-continue",
    )


def _headers(lines: Sequence[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        # RFC 9112, 5.1 and 5.2: no space before the colon, no folded lines.
        if not colon or not _NAME.match(name):
            raise RequestError(400, "a header is not NAME: VALUE")
        key, text = name.lower(), value.strip(b" \t")
        if key == b"content-length" and found.get(key, text) != text:
            raise RequestError(400, "two lengths of one body")  # RFC 9112, 6.3
        found[key] = text
    return found


def _body_bytes(text: bytes | None) -> int | None:
    if text is None:
        return None
    if not _LENGTH.match(text):
        raise RequestError(400, "Content-Length is no number of bytes")
    return int(text)


# Clients on the node itself: the kubelet that probes, a person on the node. The kubelet connects to a pod from an address
# of the node. The network plugin decides which one: the node's own (Calico, cloud networks), or that of the bridge or
# router in front of the pod, which is the pod's default gateway (bridge, flannel, Cilium). Another pod has neither.


HOST_IP = "HOST_IP"
"""Environment variable with the node's address, which a pod gets from `status.hostIP`."""

_MAPPED = "::ffff:"
_GATEWAY_FLAG = 0x2  # Source: linux/route.h, RTF_GATEWAY


@dataclass(frozen=True, slots=True)
class OwnNode:
    """The node's addresses, as a process in a pod sees them.

    Attributes:
        host_ip: of the node; empty outside of a pod.
        gateways: default gateways of our network.
    """

    host_ip: str = ""
    gateways: frozenset[str] = frozenset()

    @classmethod
    def read(cls, environment: Mapping[str, str], root: str = "/") -> "OwnNode":
        """What environment and kernel say."""
        found: set[str] = set()
        for file, gateways in (("proc/net/route", _gateways), ("proc/net/ipv6_route", _gateways_of_six)):
            with suppress(OSError, ValueError, struct.error):
                found.update(gateways(Path(root, file).read_text(encoding="ascii")))
        return cls(plain(environment.get(HOST_IP, "")), frozenset(found))

    def is_client(self, client: str, own: str) -> bool:
        """Whether `client`, connected to our address `own`, is the node or this pod.

        In the node's own network the gateway is a router, from which anybody's traffic may come.
        """
        if client == own or client.startswith("127.") or client == "::1":
            return True
        in_pod_network = bool(self.host_ip) and own != self.host_ip
        return in_pod_network and (client == self.host_ip or client in self.gateways)


def plain(address: str) -> str:
    """An address without the marks that sockets add: IPv4 seen through IPv6, the interface of a link-local one."""
    return address.removeprefix(_MAPPED).partition("%")[0]


def _gateways(text: str) -> Iterator[str]:
    for line in text.splitlines()[1:]:
        _, destination, gateway, flags, *_ = line.split()
        if int(destination, 16) == 0 and int(flags, 16) & _GATEWAY_FLAG:
            yield socket.inet_ntoa(struct.pack("=L", int(gateway, 16)))


def _gateways_of_six(text: str) -> Iterator[str]:
    for line in text.splitlines():
        destination, bits, _, _, gateway, _, _, _, flags, *_ = line.split()
        if int(bits, 16) == 0 and int(destination, 16) == 0 and int(flags, 16) & _GATEWAY_FLAG:
            yield socket.inet_ntop(socket.AF_INET6, bytes.fromhex(gateway))


RETRY_S = 5.0
"""A port that another program has is tried again so often."""

LOOK_S = 1.0
"""Late connections are looked for so often, while there are any."""

BACKLOG = 128
"""Connections that the kernel keeps until they are accepted."""

DISCARD_BYTES = 8 << 20
"""So much of a refused body is read and dropped, so that its client sees the answer and not a reset connection."""

SAID_AGAIN_S = 60.0
"""A refused request is logged once in this time for each reason: anybody can send one."""

_PASSING = {errno.EADDRINUSE, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Troubles that end by themselves. An address that this machine does not have is a wrong setting."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server listens.

    Attributes:
        setting: what an administrator sets it by.
        address: (host, port); an empty host is every address of the machine, port 0 any free one.
        what: that is served there, for the log.
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
        place: where.
        routes: what.
        log: says when it listens, and why not.
        limits: what all clients together may take.
        certificates: for TLS.
        keeps_trying: while another program has the port, wait for it rather than fail.

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
        Thread(target=self._serve, name=place.what, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens; 0 while it cannot."""
        listener = self._listener
        return int(listener.getsockname()[1]) if listener else 0

    def close(self, wait_s: float = 0.0) -> None:
        """Accept no further connection, let requests be answered for `wait_s`, end."""
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
            # Connections of a former life that are in TIME_WAIT do not keep the port. One that listens does.
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
        if self._closing.is_set():  # meanwhile
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
        except (OSError, RuntimeError):  # no descriptor, no thread
            if client is not None:
                client.close()
            self._closing.wait(LOOK_S)
        self.connections.close_late()

    def _receive(self, client: socket.socket, address: str) -> None:
        """Start a thread for `client` where there is a place; the thread gives back what was acquired."""
        is_received = False
        try:
            one = Connection(client, address, self._node.is_client(address, plain(client.getsockname()[0])))
            client.settimeout(None)  # `Connections` ends what takes too long
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.connections.admit(one):
                if self.certificates is None and _is_complete(client):
                    self.connections.answering(one)
                Thread(target=self._converse, args=(one,), name=self._place.what, daemon=True).start()
                is_received = True
        finally:
            if not is_received:
                self._threads.release()
                client.close()

    def _converse(self, one: Connection) -> None:
        try:
            self._secure(one)
            with one.socket.makefile("rb") as reader:
                while self._exchange(one, reader):
                    pass
        except (OSError, ValueError, AttributeError):  # closed by the client, or by us under its thread
            pass
        finally:
            self.connections.left(one)
            one.socket.close()
            self._threads.release()

    def _secure(self, one: Connection) -> None:
        """Speak TLS first where there are certificates; a client that shows one is known from then on."""
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
        """Read a request and answer it; whether another may follow."""
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
        """The next head; None where the client has gone."""
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
            elif lines:  # RFC 9112, 2.2: empty lines before the first are passed over
                return parse_head(lines)
        raise RequestError(431, f"the head is longer than {HEAD_BYTES} bytes")

    def _answer(self, one: Connection, reader: BufferedReader, head: Head) -> Page | None:
        """The answer; None where the connection was closed meanwhile.

        Raises:
            RequestError: there is none.
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
        except Exception:  # noqa: BLE001 - a fault of ours must not look like a broken network
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
        """The length of a body that may be read; nothing of it has been read yet."""
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
        return Page(b"this failed; the log says more\n", 500)

    def _unknown(self) -> RequestError:
        known = " ".join(sorted([*self._routes.posts, *self._routes.pages]))
        return RequestError(404, f"not found; there are {known}")

    def _refuse(self, one: Connection, error: RequestError) -> None:
        """Say why, and close after the client has had time to read it."""
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


def _is_complete(client: socket.socket) -> bool:
    """Whether all of a request without a body is here already, as of a probe that comes through a flood."""
    with suppress(OSError):
        data = client.recv(HEAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return data.startswith((b"GET ", b"HEAD ")) and b"\r\n\r\n" in data
    return False
