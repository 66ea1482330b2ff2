"""One connection to the runtime: its socket, its session, and the pauses between attempts to connect.

`SocketWatch` ends a pause when the runtime makes its socket.
`RuntimeConnection` does steps 1 and 8 of a request (see `handler.py`): bytes to events, and replies to bytes. The
session in `nri_plugin.wire.nri` knows the protocol and does no I/O; `Transport` does the I/O and never waits.
"""

import logging
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress

from nri_plugin.agent.serving.outcome import RequestReply, name_of
from nri_plugin.core.decision import EffectiveCheck
from nri_plugin.host.cgroup_watch import IN_CREATE, IN_DELETE_SELF, IN_MOVE_SELF, IN_MOVED_TO, Inotify
from nri_plugin.model.errors import HostError, LocalProtocolError, RemoteProtocolError
from nri_plugin.process.logs import say
from nri_plugin.wire.nri.events import NRIResponse, Request, SessionEvent
from nri_plugin.wire.nri.session import PluginSession

READ_BYTES = 64 << 10
"""The size of one read. A socket buffer holds about 200 kB, but allocating that much takes longer than a second read."""

MAX_UNSENT_BYTES = 16 << 20
"""The most bytes of replies that the runtime may leave unread: four of the largest possible ones."""

CONNECT_S = 2.0
"""Time limit of a connect. A local connection is made at once, or waits in a queue that does not move."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class RuntimeAbsentError(HostError):
    """No process listens at the runtime's socket: the runtime is down, or the path is wrong."""


def connect(path: str) -> socket.socket:
    """Return a new connection to the runtime.

    Raises:
        RuntimeAbsentError: there is no socket, or no process listens there.
        HostError: it may not be opened.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:  # no descriptor is left
        raise HostError(path, words(error)) from None
    sock.settimeout(CONNECT_S)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        sock.close()
        detail = f"{words(error)}; is the container runtime running, with NRI enabled"
        raise RuntimeAbsentError(path, detail) from None
    except OSError as error:
        sock.close()
        raise HostError(path, words(error)) from None
    return sock


def adopt(descriptor: int) -> socket.socket:
    """Return the connection that the runtime opened before it started the agent; child processes do not inherit it.

    Raises:
        HostError: the descriptor is not an open socket.
    """
    try:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
    except OSError as error:
        detail = f"not the socket that the runtime announced: {words(error)}"
        raise HostError(f"file descriptor {descriptor}", detail) from None
    return sock


def words(error: OSError) -> str:
    """Return the reason of the error in lower case."""
    return (error.strerror or str(error)).lower()


class Transport:
    """A non-blocking socket with a bounded queue of what could not be sent yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._unsent = bytearray()
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)

    @property
    def has_unsent(self) -> bool:
        """Return whether bytes wait until the socket is writable."""
        return bool(self._unsent)

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived: empty for none, None when the peer closed or reset the connection."""
        try:
            count = self.sock.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            return None
        return bytes(self._view[:count]) if count else None

    def send(self, data: bytes) -> None:
        """Send now what the socket takes and keep the rest for `send(b"")` later.

        A closed connection is not an error here: the next `receive` reports it.

        Raises:
            RemoteProtocolError: the peer does not read and the queue is full.
        """
        self._unsent += data
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._unsent.clear()
                break
            del self._unsent[:sent]
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise RemoteProtocolError(
                f"the runtime left {len(self._unsent)} bytes of answers unread, more than {MAX_UNSENT_BYTES}"
            )

    def close(self) -> None:
        """Close the socket. A failure leaves nothing to be done, and the agent has to connect again."""
        with suppress(OSError):
            self.sock.close()


CODE_UNKNOWN = 2
"""The ttrpc status of a refusal; the runtimes pass its message on and look at no other code than 12."""


class RuntimeConnection:
    """One connection to the runtime; does steps 1 and 8 of a request.

    Attributes:
        checks: cpusets to read back (step 10) once all replies are sent.
        synchronized_at: when Synchronize was answered, None before; safe to read from any thread.
    """

    def __init__(
        self, session: PluginSession, transport: Transport, log: logging.Logger, clock: Callable[[], float]
    ) -> None:
        self.session, self.transport = session, transport
        self.checks: list[EffectiveCheck] = []
        self.synchronized_at: float | None = None
        self._log, self._clock = log, clock

    def receive(self) -> tuple[list[SessionEvent], bool]:
        """Step 1: read; return the events that are complete, and whether the runtime has closed the connection.

        Raises:
            RemoteProtocolError: the bytes are not ttrpc, or not NRI.
        """
        data = self.transport.receive()
        if data == b"":
            return [], False
        # The session takes empty bytes for the end of the connection, and checks whether a message was cut off.
        return self.session.receive_data(data or b"", self._clock()), data is None

    def reply(self, request: Request, reply: RequestReply) -> None:
        """Step 8: queue the reply to a request."""
        if reply.refusal:
            self._log_unsent(request, self.refuse(request, reply.refusal))
        else:
            self.respond(request, reply.response)
        self.checks += reply.checks

    def respond(self, request: Request, response: NRIResponse) -> None:
        """Queue a response. One that cannot be sent becomes an error, so that the runtime does not wait until its limit."""
        session = self.session
        try:
            problem = session.respond(request.call, response, self._clock())
        except LocalProtocolError as error:
            why = f"internal error: {error}"
            self._log_unsent(request, why)
            self.refuse(request, why)
            return
        self._log_unsent(request, problem)

    def refuse(self, request: Request, why: str) -> str:
        """Queue an error; return why that is impossible, empty when it was done."""
        return self.session.refuse(request.call, CODE_UNKNOWN, why, self._clock())

    def send(self) -> bool:
        """Send what is queued; return whether all of it was sent.

        Raises:
            RemoteProtocolError: the runtime does not read its replies.
        """
        self.transport.send(self.session.data_to_send())
        return not self.transport.has_unsent

    def _log_unsent(self, request: Request, problem: str) -> None:
        if problem:
            say(self._log, logging.ERROR, "answer not sent", event=name_of(request.event), err=problem)


class ReconnectBackoff:
    """Pauses between attempts to connect: none, then 0.1 s doubling to 5 s, each shortened by up to a quarter.

    The jitter keeps the plugins of one runtime from connecting at the same moments.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._tries = 0

    def next_pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        self._tries += 1
        if self._tries == 1:
            return 0.0
        whole = min(FIRST_PAUSE_S * 2.0 ** min(self._tries - 2, 16), LONGEST_PAUSE_S)
        return whole * (1 - self._draw() / 4)

    def reset(self) -> None:
        """Connect at once after the next loss: this connection served."""
        self._tries = 0


class SocketWatch:
    """Notices that the runtime's socket was made, also where its directory is missing or is replaced.

    Args:
        path: of the socket.

    Raises:
        HostError: the kernel has no watch left.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._inotify = Inotify()
        self._watch: int | None = None
        self._renew()

    def fileno(self) -> int:
        """The descriptor, readable after a change."""
        return self._inotify.fileno()

    def read(self) -> bool:
        """Read the changes; return whether the socket was made.

        Raises:
            HostError: the kernel has no watch left.
        """
        is_made = False
        while notices := self._inotify.read():
            is_made = is_made or os.path.basename(self._path) in {notice.name for notice in notices}
        before = self._watch
        self._renew()
        # In a directory that is new to the watch, the socket may have been made before the watch.
        return is_made or (self._watch != before and os.path.exists(self._path))

    def close(self) -> None:
        """Remove the watch."""
        self._inotify.close()

    def _renew(self) -> None:
        """Watch the socket's directory, or the nearest existing one above it, where the next one will be made."""
        made = missing = None
        while made is None or (
            missing is not None and os.path.isdir(missing)
        ):  # it was made since the look at it
            folder, missing = os.path.dirname(os.path.realpath(self._path)), None
            while (made := self._inotify.add(folder, _ON_THE_WAY)) is None:
                missing, folder = folder, os.path.dirname(folder)
        if self._watch is not None and self._watch != made:
            self._inotify.remove(self._watch)
        self._watch = made


_ON_THE_WAY = IN_CREATE | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF
