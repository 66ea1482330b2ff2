"""The open connections of an HTTP server: their number, their time limits, and which one is closed for another.

A connection *waits* while its client has to send or to read something. It has a time limit then, and it is closed earlier
where a new connection needs its place. A connection whose request is complete *is answered*; it is not closed for another.

Invariant: a client that makes the server wait never keeps another client out.
"""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nri_plugin.model.errors import ConfigError


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
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
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
            raise ConfigError("tls", f"{files} are no TLS certificate: {error}; check the files") from None
        return context


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


# Clients on the node itself: the kubelet's probes, a person on the node. The kubelet connects to a pod from an address of
# the node. The network plugin decides which one: the node's own address (Calico, cloud networks), or that of the bridge or
# router in front of the pod, which is the pod's default gateway (bridge, flannel, Cilium). Other pods have neither.


HOST_IP = "HOST_IP"
"""Environment variable with the node's address; a pod gets it from `status.hostIP`."""

_MAPPED = "::ffff:"
_GATEWAY_FLAG = 0x2  # Source: linux/route.h, RTF_GATEWAY


@dataclass(frozen=True, slots=True)
class OwnNode:
    """The node's addresses, as a process in a pod sees them.

    Attributes:
        host_ip: the node's address; empty outside of a pod.
        gateways: the default gateways of this network namespace.
    """

    host_ip: str = ""
    gateways: frozenset[str] = frozenset()

    @classmethod
    def read(cls, environment: Mapping[str, str], root: str = "/") -> "OwnNode":
        """Read the addresses from environment and kernel."""
        found: set[str] = set()
        for file, gateways in (("proc/net/route", _gateways), ("proc/net/ipv6_route", _gateways_of_six)):
            with suppress(OSError, ValueError, struct.error):
                found.update(gateways(Path(root, file).read_text(encoding="ascii")))
        return cls(plain(environment.get(HOST_IP, "")), frozenset(found))

    def is_client(self, client: str, own: str) -> bool:
        """Return whether `client`, connected to the server's address `own`, is the node or this pod.

        In the node's network the gateway is a router that forwards the traffic of others, so it does not count.
        """
        if client == own or client.startswith("127.") or client == "::1":
            return True
        in_pod_network = bool(self.host_ip) and own != self.host_ip
        return in_pod_network and (client == self.host_ip or client in self.gateways)


def plain(address: str) -> str:
    """Return an address without the marks that sockets add: the prefix of mapped IPv4, the interface of link-local."""
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


REQUEST_S = 10.0
"""Time limit for a whole request with TLS handshake and body, and again for reading the answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds on all clients together.

    Attributes:
        strangers: the most connections of unknown clients; known clients have as many again.
        strangers_of_one: the most connections of unknown clients from one address.
        idle_s: how long a connection may wait for its next request, in seconds.
        body_bytes: of all request bodies in memory at once; a body counts until its answer has been sent.
    """

    strangers: int = 8
    strangers_of_one: int = 4
    idle_s: float = 10.0
    body_bytes: int = 0

    @property
    def threads(self) -> int:
        """Return the most threads: one for each connection, and one for each closed one whose thread still runs."""
        return 4 * self.strangers


@dataclass(eq=False, slots=True)
class Connection:
    """One client.

    Attributes:
        socket: the socket, or the TLS socket around it.
        address: of the client.
        is_known: the client is the node itself, or has a verified certificate; strangers never take its place.
        has_certificate: the client has a verified certificate.
        ends_at: the time at which it is closed if it still waits, in seconds of the clock.
        body_bytes: room taken for its body.
        is_busy: its request is complete, its answer not yet sent.
        is_used: it had an answer before.
        is_closed: it was closed for another connection, because it was late, or because it has ended.
    """

    socket: socket.socket
    address: str
    is_known: bool = False
    has_certificate: bool = False
    ends_at: float = 0.0
    body_bytes: int = 0
    is_busy: bool = False
    is_used: bool = False
    is_closed: bool = False


class Connections:
    """All open connections; safe to call from any thread.

    Args:
        limits: of connections and bytes.
        clock: seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock = limits, clock
        self._open: dict[Connection, None] = {}
        self._waiting: dict[Connection, None] = {}  # the longest waiting first
        self._bodies: dict[Connection, None] = {}  # also of closed ones, until their thread has ended
        self._change = threading.Condition()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, one: Connection) -> bool:
        """Add `one`, if necessary in the place of the longest waiting one; False where all others are being answered."""
        with self._change:
            if not self._make_place(one):
                return False
            one.ends_at = self._clock() + REQUEST_S
            self._open[one] = self._waiting[one] = None
            return True

    def verified(self, one: Connection) -> bool:
        """Count the client as known, because of its certificate; False where no place is left among known ones."""
        with self._change:
            one.has_certificate = True
            if one.is_known or one.is_closed:
                return not one.is_closed
            del self._open[one]
            one.is_known = True
            has_place = self._make_place(one)
            self._open[one] = None
            return has_place

    def secure(self, one: Connection, secured: socket.socket) -> None:
        """Use `secured`, the TLS socket, for `one` from now on."""
        with self._change:
            one.socket = secured
            if one.is_closed:
                _shut(secured)

    def request_begins(self, one: Connection) -> None:
        """Note the first byte of a request: the rest must follow within `REQUEST_S`.

        The time of the first request began when the connection was accepted.
        """
        with self._change:
            if one.is_used:
                one.ends_at = self._clock() + REQUEST_S

    def take_room(self, one: Connection, size: int) -> bool:
        """Wait until there is room for a body; close connections that have waited with theirs the longest.

        Returns:
            False where `one` was closed meanwhile: it was late, or another needed its place.
        """
        with self._change:
            while not one.is_closed and self._taken() + size > self.limits.body_bytes:
                if self._taken(of_closed=False) + size <= self.limits.body_bytes or not self._close_first(
                    other
                    for other in self._waiting
                    if other.body_bytes and (one.is_known or not other.is_known)
                ):
                    self._change.wait()  # until a closed one has ended, or an answer has been sent
            if not one.is_closed:
                one.body_bytes = size
                self._bodies[one] = None
            return not one.is_closed

    def answering(self, one: Connection) -> bool:
        """Note that the request of `one` is complete; False where it was closed before."""
        with self._change:
            self._waiting.pop(one, None)
            one.is_busy = not one.is_closed
            return one.is_busy

    def sending(self, one: Connection) -> None:
        """Note that the answer is ready: the client must read it within `REQUEST_S`."""
        with self._change:
            self._wait(one, REQUEST_S)

    def idle(self, one: Connection) -> None:
        """Note that the answer has been sent; the room of the request's body is free again."""
        with self._change:
            self._bodies.pop(one, None)
            one.is_busy, one.is_used, one.body_bytes = False, True, 0
            self._wait(one, self.limits.idle_s)
            self._change.notify_all()

    def left(self, one: Connection) -> None:
        """Note that the thread of `one` has ended."""
        with self._change:
            self._open.pop(one, None)
            self._waiting.pop(one, None)
            self._bodies.pop(one, None)
            one.is_busy, one.is_closed = False, True
            self._change.notify_all()

    def close_late(self) -> None:
        """Close all whose time limit has passed."""
        with self._change:
            now = self._clock()
            for one in [one for one in self._waiting if one.ends_at <= now]:
                self._close(one)

    def close_all(self, wait_s: float) -> None:
        """Close all connections, after waiting up to `wait_s` seconds for the answers."""
        with self._change:
            self._change.wait_for(lambda: not any(one.is_busy for one in self._open), wait_s)
            for one in list(self._open):
                self._close(one)

    def _wait(self, one: Connection, seconds: float) -> None:
        """Let `one` wait, behind all others that do."""
        self._waiting.pop(one, None)
        if not one.is_closed:
            one.ends_at = self._clock() + seconds
            self._waiting[one] = None

    def _make_place(self, newcomer: Connection) -> bool:
        alike = [one for one in self._open if one.is_known is newcomer.is_known]
        if not newcomer.is_known:
            neighbours = {one for one in alike if one.address == newcomer.address}
            if len(neighbours) >= self.limits.strangers_of_one and not self._close_first(
                one for one in self._waiting if one in neighbours
            ):
                return False
            alike = [one for one in alike if one in self._open]
        return len(alike) < self.limits.strangers or self._close_first(
            one for one in self._waiting if one in alike
        )

    def _taken(self, *, of_closed: bool = True) -> int:
        return sum(one.body_bytes for one in self._bodies if of_closed or not one.is_closed)

    def _close_first(self, candidates: Iterable[Connection]) -> bool:
        one = next(iter(candidates), None)
        if one is not None:
            self._close(one)
        return one is not None

    def _close(self, one: Connection) -> None:
        """Shut the socket down; the thread of `one` notices that and frees the rest."""
        one.is_closed = True
        self._open.pop(one, None)
        self._waiting.pop(one, None)
        _shut(one.socket)
        self._change.notify_all()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # the client has closed it
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # also of a TLS socket: without the TLS close
