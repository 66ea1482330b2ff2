"""The simulated runtime's end of a plugin connection: a socket, one thread, and a time limit on every wait."""

import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.wire.nri.events import (
    NRIEvent,
    NRIResponse,
    Synchronize,
)
from nri_plugin.wire.nri.messages import ContainerUpdate
from tests.lab.runtime.profile import (
    Answered,
    Configured,
    ConnectionLost,
    PluginRegistered,
    RegistrationRejected,
    RuntimeEvent,
    RuntimeProfile,
    Synchronized,
)
from tests.lab.runtime.runtime import PluginRefusedError, Runtime
from tests.lab.runtime.session import RuntimeSession

READ_BYTES = 1 << 16
ACCEPT_S = 30.0


class PluginLostError(NriPinError):
    """The plugin did not connect, or was lost before it was synchronized."""


class PluginLink:
    """One plugin, from its connection to its end.

    Args:
        sock: the connection.
        profile: which runtime to be.
        config: the text Configure carries; runtimes send one only to plugins they started.
        launched_as: (name, index) of the file, when the runtime started the plugin.

    Attributes:
        asked: every event that was sent, in order.
        took_s: how long the plugin took for each of them, in seconds.
    """

    def __init__(
        self,
        sock: socket.socket,
        profile: RuntimeProfile,
        *,
        config: str = "",
        launched_as: tuple[str, str] | None = None,
    ) -> None:
        self.session = RuntimeSession(profile, launched_as=launched_as)
        self.asked: list[NRIEvent] = []
        self.took_s: list[float] = []
        self._sock = sock
        self._config = config
        self._answers: dict[int, Answered] = {}
        self._updates: tuple[ContainerUpdate, ...] | None = None
        self._is_configured = False
        self.session.accept(time.monotonic())

    @property
    def is_alive(self) -> bool:
        """Whether the plugin can be called; checks for an unread end of the connection."""
        if self._sock.fileno() < 0:
            return False
        self._turn(0.0)
        return self.session.is_ready

    def join(self, truth: Callable[[], Synchronize]) -> tuple[ContainerUpdate, ...]:
        """Register, configure and synchronize the plugin; returns the updates it wants.

        Raises:
            PluginLostError: it was lost on the way.
        """
        self._run_until(lambda: self._is_configured)
        told = truth()
        self.session.synchronize(told.pods, told.containers, time.monotonic())
        self._run_until(lambda: self._updates is not None or self.session.is_zombie)
        if self.session.lost or self.session.is_zombie:
            self.close()
            raise PluginLostError(f"the plugin was lost before it was synchronized: {self.session.lost}")
        return self._updates or ()

    def ask(self, event: NRIEvent) -> NRIResponse | None:
        """The answer; None when it is not asked about such events or was lost.

        Raises:
            PluginRefusedError: it answered with an error.
        """
        began = time.monotonic()
        call = self.session.call(event, began)
        if call is None:
            return None
        self.asked.append(event)
        self._run_until(lambda: call in self._answers)
        self.took_s.append(time.monotonic() - began)
        answered = self._answers.pop(call)
        if answered.error:
            raise PluginRefusedError(answered.error)
        return answered.response

    def look(self) -> None:
        """Take what the plugin has sent by itself, such as its end."""
        self._turn(0.0)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        while not (is_done() or self.session.lost):
            self._send()
            check = self.session.next_check()
            self._turn(None if check is None else max(0.0, check - time.monotonic()))
        self._send()

    def _turn(self, timeout_s: float | None) -> None:
        """Wait for data, at most `timeout_s` seconds, and process it."""
        if self._sock.fileno() < 0:
            return
        readable, _, _ = select.select([self._sock], [], [], timeout_s)
        now = time.monotonic()
        found = self.session.receive_data(self._receive(), now) if readable else self.session.overdue(now)
        for event in found:
            self._note(event, now)

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(READ_BYTES)
        except OSError:
            return b""

    def _send(self) -> None:
        data = self.session.data_to_send()
        if not data or self._sock.fileno() < 0:
            return
        try:
            self._sock.sendall(data)
        except OSError:
            return  # the peer has closed; its last bytes and the end are read next

    def _note(self, event: RuntimeEvent, now: float) -> None:
        if isinstance(event, PluginRegistered):
            self.session.configure(now, self._config)
        elif isinstance(event, Configured):
            self._is_configured = True
        elif isinstance(event, Synchronized):
            self._updates = event.updates
        elif isinstance(event, Answered):
            self._answers[event.call] = event
        elif isinstance(event, RegistrationRejected):
            self._send()
            self.close()
            raise PluginLostError(f"the plugin was not registered: {event.reason}")
        elif isinstance(event, ConnectionLost):
            self._send()
            self.close()


class NRIServer:
    """A runtime's NRI socket and the one plugin behind it.

    Attributes:
        runtime: the runtime that asks.
        link: the plugin, None before the first came.
    """

    def __init__(self, runtime: Runtime, path: Path) -> None:
        self.runtime = runtime
        self.link: PluginLink | None = None
        self._path = path
        self._listener = _listen(path)

    def wait_for_plugin(self, timeout_s: float = ACCEPT_S) -> tuple[ContainerUpdate, ...]:
        """Accept the next plugin and apply the updates that it asks for; returns these.

        Raises:
            PluginLostError: none connected in time, or it was lost before it was synchronized.
        """
        self._listener.settimeout(timeout_s)
        try:
            sock, _ = self._listener.accept()
        except TimeoutError:
            raise PluginLostError(f"no plugin connected to {self._path} within {timeout_s:g} s") from None
        sock.settimeout(self.runtime.behaviour.profile.request_timeout)
        link = PluginLink(sock, self.runtime.behaviour.profile)
        if self.link is not None:
            self.link.close()
        self.link = link
        updates = link.join(self.runtime.truth)
        self.runtime.plugin = link
        self.runtime.apply(updates)
        self.runtime.absorb()
        return updates

    def settle(self) -> None:
        """Do the work of a runtime between requests: accept a waiting plugin, notice the end of the present one."""
        if self.link is not None and self.link.is_alive:
            self.link.look()
        elif select.select([self._listener], [], [], 0.0)[0]:
            self.wait_for_plugin(0.1)

    def restart(self) -> None:
        """Restart the runtime: connections end, the socket is removed and made again."""
        self.close()
        self.runtime.restart()
        self._listener = _listen(self._path)

    def close(self) -> None:
        """Close every connection and remove the socket."""
        if self.link is not None:
            self.link.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener.bind(str(path))
        listener.listen(8)
    except OSError as error:
        listener.close()
        raise HostError(str(path), f"no socket can be made: {error.strerror or error}") from error
    return listener
