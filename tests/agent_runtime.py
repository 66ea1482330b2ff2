"""A runtime for the agent's connection, single-threaded and without waiting: the agent's loop and the runtime's
session take turns on one socketpair until neither has anything left to say."""

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from nri_plugin.agent.agent import PluginIdentity
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.link import ReconnectBackoff, RuntimeAbsentError, RuntimeLink
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import NRIEvent
from nri_plugin.wire.nri.messages import Container, Pod
from tests.agent_fakes import Bench
from tests.lab.runtime.profile import (
    CONTAINERD_2_1,
    Answered,
    Configured,
    ConnectionLost,
    PluginRegistered,
    RuntimeEvent,
    RuntimeProfile,
    Synchronized,
)
from tests.lab.runtime.session import RuntimeSession


@dataclass
class Peer:
    """The runtime's end of one connection."""

    sock: socket.socket
    session: RuntimeSession
    events: list[RuntimeEvent] = field(default_factory=list)
    is_closed: bool = False

    def of(self, kind: type) -> list[RuntimeEvent]:
        return [event for event in self.events if isinstance(event, kind)]


class Rig:
    """A `RuntimeLink` and as many runtime connections as it makes."""

    def __init__(
        self,
        bench: Bench,
        *,
        profile: RuntimeProfile = CONTAINERD_2_1,
        identity: PluginIdentity | None = None,
        prepare: Callable[[str], Handler] | None = None,
        config: str = "",
        launched_as: tuple[str, str] | None = None,
    ) -> None:
        self.bench = bench
        self.profile = profile
        self.config = config
        self.launched_as = launched_as
        self.peers: list[Peer] = []
        self.is_up = True
        self.serves = True
        self.synchronizes = True
        self.listed: tuple[tuple[Pod, ...], tuple[Container, ...]] = ((), ())
        self.loop = Loop(bench.clock)
        identity = identity or PluginIdentity("nri-pin", "90")
        self.link = RuntimeLink(
            self.loop,
            open_socket=self._open,
            new_session=identity.session,
            handler=None if prepare else bench.handler,
            prepare=prepare,
            can_reconnect=launched_as is None,
            log=bench.log,
            backoff=ReconnectBackoff(draw=lambda: 0.0),
        )

    @property
    def peer(self) -> Peer:
        """The newest connection."""
        return self.peers[-1]

    def close(self) -> None:
        self.link.close()
        self.loop.close()
        for peer in self.peers:
            peer.sock.close()

    def start(self) -> None:
        """Connect and let the runtime do what it does up to Synchronize."""
        self.link.connect()
        self.settle()

    def turn(self) -> None:
        """One round of the agent's loop that never waits."""
        self.loop.post(lambda: None)
        self.loop.run_once()

    def settle(self) -> None:
        """Take turns until nothing moves."""
        self.turn()
        while True:
            moved = [self._pump(peer) for peer in tuple(self.peers)]
            if not any(moved) and not self._agent_has_work():
                break
            self.turn()
        self.turn()

    def _agent_has_work(self) -> bool:
        """Whether bytes wait for the agent, which reads a bounded number in a turn."""
        connection = self.link._connection
        return connection is not None and bool(select.select([connection.transport.sock], [], [], 0)[0])

    def pass_time(self, seconds: float) -> None:
        self.bench.clock.now += seconds
        self.settle()

    def ask(self, event: NRIEvent) -> Answered | None:
        """The answer the runtime got to `event`; None when the plugin was not asked."""
        peer = self.peer
        call = peer.session.call(event, self.bench.clock.now)
        self.settle()
        return next((a for a in peer.of(Answered) if a.call == call), None)  # type: ignore[attr-defined, return-value]

    def send_raw(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            self.peer.sock.sendall(data)
        self.settle()

    def kill(self) -> None:
        """End the newest connection as a killed runtime does."""
        self._close(self.peer)

    def _open(self) -> socket.socket:
        if not self.is_up:
            raise RuntimeAbsentError("/run/nri.sock", "no such file or directory")
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        session = RuntimeSession(self.profile, launched_as=self.launched_as)
        session.accept(self.bench.clock.now)
        self.peers.append(Peer(theirs, session))
        return ours

    def _pump(self, peer: Peer) -> bool:
        """One round of the runtime; returns whether anything moved."""
        if peer.is_closed or not self.serves:
            return False
        moved = False
        for event in peer.session.overdue(self.bench.clock.now):
            moved = True
            self._react(peer, event)
        while not peer.is_closed and select.select([peer.sock], [], [], 0)[0]:
            moved = True
            self._take(peer, peer.sock.recv(1 << 20))
        data = peer.session.data_to_send()
        if data and not peer.is_closed:
            moved = True
            self._send(peer, data)
        return moved

    def _send(self, peer: Peer, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[peer.sock.send(view) :]
            except BlockingIOError:
                self.turn()

    def _take(self, peer: Peer, data: bytes) -> None:
        for event in peer.session.receive_data(data, self.bench.clock.now):
            self._react(peer, event)
        if not data:
            self._close(peer)

    def _react(self, peer: Peer, event: RuntimeEvent) -> None:
        peer.events.append(event)
        now = self.bench.clock.now
        if isinstance(event, PluginRegistered):
            peer.session.configure(now, self.config)
        elif isinstance(event, Configured) and not self.synchronizes:
            peer.session.is_ready = True
        elif isinstance(event, Configured):
            peer.session.synchronize(*self.listed, now)
        elif isinstance(event, ConnectionLost):
            self._close(peer)

    def _close(self, peer: Peer) -> None:
        peer.is_closed = True
        peer.sock.close()


def is_synchronized(peer: Peer) -> bool:
    return bool(peer.of(Synchronized))
