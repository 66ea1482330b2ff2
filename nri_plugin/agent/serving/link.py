"""The life of the connection to the runtime: connect, register, wait for bytes, notice a loss, connect again.

`handler.py` handles the requests that arrive. An ordinary agent connects again after every loss. It ends when it is
stopped, or when the runtime refuses its name. An agent that the runtime started ends with its connection, too: the
runtime opens no second one, and the supervisor starts an agent that connects itself.

`SocketWatch` ends a pause between two attempts when the runtime makes its socket. `RuntimeConnection` does steps 1 and 8 of
a request: bytes to events, and replies to bytes. The session in `nri_plugin.wire.nri` knows the protocol and does no I/O;
`Transport` does the I/O and never waits.

The loop calls `_readable` when bytes have arrived, `_writable` when unsent replies fit again, and `_check` at the next
deadline of the session. The probes of the kubelet are at the end of the file.
"""

import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestReply, name_of
from nri_plugin.core.decision import EffectiveCheck
from nri_plugin.host.cgroup_watch import IN_CREATE, IN_DELETE_SELF, IN_MOVE_SELF, IN_MOVED_TO, Inotify
from nri_plugin.model.errors import (
    HostError,
    LocalProtocolError,
    NriPinError,
    ProtocolError,
    RemoteProtocolError,
)
from nri_plugin.process.logs import LogRateLimit, say, say_trace
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.decode import Hears
from nri_plugin.wire.nri.events import (
    Configure,
    ConfigureResponse,
    EmptyResponse,
    NRIResponse,
    Registered,
    RegistrationRefused,
    Request,
    SessionEvent,
    Shutdown,
    Synchronize,
    empty_response,
)
from nri_plugin.wire.nri.session import PluginSession

if TYPE_CHECKING:
    from nri_plugin.process.http_server import Page

# One connection

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


# Its life

EXIT_STOPPED = 0
EXIT_CONNECTION_ENDED = 1
EXIT_CONFIGURATION = 2
HEALTHY_S = 1.0
"""After a connection that served this long the agent connects again at once, after a shorter one with growing pauses."""

UNNOTICED = "a new socket of the runtime is not noticed; the agent tries to connect by the clock"

MADE_PAUSE_S, MADE_TRIES = 0.005, 20
"""Between the call that makes a socket and the one that listens, a connection is refused."""


class RuntimeLink:
    """Connects, registers, passes requests on, and connects again.

    Args:
        loop: runs all work.
        open_socket: opens a connection; raises HostError when that fails.
        new_session: makes a session, from the predicate of namespaces whose annotations are read.
        handler: handles requests; may be set later.
        prepare: makes the handler from the configuration text that the runtime sends; returns None while another agent
            serves the runtime, raises NriPinError when the agent cannot run with the configuration. None where the
            agent has its own configuration.
        can_reconnect: False for an agent that the runtime started.
        log: takes lines about the connection.
        backoff: pauses between attempts that fail.
        made: ends a pause when the runtime makes its socket; None where nothing notices that.

    Attributes:
        handler: handles requests; None until the agent may serve.
        waits_for: why the agent does not connect: another agent serves the runtime. Empty otherwise.
        lost: how many connections ended that had served the runtime; an orderly end of the agent counts none.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        open_socket: Callable[[], socket.socket],
        new_session: Callable[[Hears], PluginSession],
        prepare: Callable[[str], Handler | None] | None = None,
        handler: Handler | None = None,
        can_reconnect: bool = True,
        log: logging.Logger,
        backoff: ReconnectBackoff | None = None,
        made: SocketWatch | None = None,
    ) -> None:
        self.handler = handler
        self.waits_for = ""
        self.lost = 0
        self._loop = loop
        self._open_socket = open_socket
        self._new_session = new_session
        self._prepare = prepare
        self._can_reconnect = can_reconnect
        self._log = log
        self._backoff = backoff or ReconnectBackoff()
        self._made, self._prompt_tries = made, 0
        self._connection: RuntimeConnection | None = None
        self._absence = LogRateLimit()
        self._loss = LogRateLimit()

    @property
    def is_synchronized(self) -> bool:
        """Return whether Synchronize was answered; safe to call from any thread."""
        connection = self._connection
        return connection is not None and connection.synchronized_at is not None

    @property
    def runtime(self) -> Configure | None:
        """Return the runtime as it introduced itself; None before its Synchronize. Safe to call from any thread."""
        connection = self._connection
        if connection is None or connection.synchronized_at is None:
            return None
        return connection.session.runtime

    # ------------------------------------------------------- connect, lose, connect again

    def connect(self) -> None:
        """Connect and register; a failure is tried again later, or when the runtime makes its socket."""
        if self._made is not None:
            self._loop.watch(self._made, self._socket_made)
        try:
            sock = self._open_socket()
        except HostError as error:
            self._is_absent(error)
            return
        self._absence.forget()
        self._prompt_tries = 0
        connection = self._connection = RuntimeConnection(
            self._new_session(self._hears), Transport(sock), self._log, self._loop.clock
        )
        self._loop.watch(sock, self._readable, is_urgent=True)
        # At once: the runtime serves no other plugin until this one has registered.
        connection.session.register(self._loop.clock())
        self._guarded(connection, self._flush)
        say(self._log, logging.DEBUG, "connected, registering")

    def close(self) -> None:
        """Close the connection; nothing that was decided is undone."""
        connection, self._connection = self._connection, None
        self._loop.set_timer("watchdog", None, self._check)
        if connection is not None:
            self._loop.forget(connection.transport.sock)
            connection.transport.close()

    def _socket_made(self) -> None:
        if self._made is None:
            return
        try:
            is_made = self._made.read()
        except HostError as error:
            say(self._log, logging.WARNING, UNNOTICED, err=error)
            self._loop.forget(self._made)
            self._made = None
            return
        if not is_made:
            return
        self._prompt_tries = MADE_TRIES
        if self._connection is None:  # else its end has not been read yet
            self._backoff.reset()
            self._loop.set_timer("connect", self._loop.clock(), self.connect)

    def _hears(self, namespace: str) -> bool:
        """Return whether annotations of pods in the namespace are read, by the configuration of this moment."""
        return self.handler is not None and namespace in self.handler.node.options.annotation_namespaces

    def _is_absent(self, error: HostError) -> None:
        if self._absence.is_due(str(error), self._loop.clock()):
            again = f"at most every {LONGEST_PAUSE_S:.0f} s" if self._can_reconnect else None
            say(
                self._log,
                logging.WARNING,
                "no connection to the container runtime",
                err=error,
                trying_again=again,
            )
        self._connect_later()

    def _lose(self, reason: object) -> None:
        served_since = self._connection.synchronized_at if self._connection else None
        self.lost += served_since is not None
        # A runtime that drops the agent after each registration must not be called in a tight loop.
        if served_since is not None and self._loop.clock() - served_since >= HEALTHY_S:
            self._backoff.reset()
            self._loss.forget()
        self.close()
        if self._loss.is_due(str(reason), self._loop.clock()):
            say(self._log, logging.WARNING, "connection to the container runtime ended", err=reason)
        self._connect_later()

    def _connect_later(self) -> None:
        if not self._can_reconnect:
            self._loop.stop(EXIT_CONNECTION_ENDED)
            return
        if self._prompt_tries:
            self._prompt_tries, pause_s = self._prompt_tries - 1, MADE_PAUSE_S
        else:
            pause_s = self._backoff.next_pause()
        self._loop.set_timer("connect", self._loop.clock() + pause_s, self.connect)

    # ------------------------------------------------------------------- calls of the loop

    def _readable(self) -> None:
        if self._connection is not None:
            self._guarded(self._connection, self._receive)

    def _writable(self) -> None:
        if self._connection is not None:
            self._guarded(self._connection, self._flush)

    def _guarded(self, connection: RuntimeConnection, work: Callable[[RuntimeConnection], None]) -> None:
        """Run `work`; an error ends the connection, not the agent."""
        try:
            work(connection)
        except ProtocolError as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001 - a bug must not end the agent
            say_trace(self._log, "internal error, connection closed")
            self._lose(f"internal error: {type(error).__name__}: {error}")
        else:
            if self._connection is connection:
                self._arm_watchdog(connection)
        finally:
            self._after_answers(connection)

    def _receive(self, connection: RuntimeConnection) -> None:
        # Step 1 of a request.
        events, is_closed = connection.receive()
        for event in events:
            # Steps 2 to 8.
            self._react(connection, event)
            # A refused registration or configuration closes the connection; the events after it are void.
            if self._connection is not connection:
                return
            # Each reply is sent before the next event is handled: the runtime waits for each of them.
            self._flush(connection)
        if not events:
            self._flush(connection)  # the session may have frames to send that answer no event
            connection.session.read_ahead()
        # Last: what arrived together with the end of the connection has been handled, and the state is right.
        if is_closed and self._connection is connection:
            self._lose("the runtime closed it")

    def _flush(self, connection: RuntimeConnection) -> None:
        """Send what is queued."""
        had_unsent = connection.transport.has_unsent
        is_all_out = connection.send()
        # The rest is sent when the socket is writable; meanwhile the agent goes on reading.
        if is_all_out is had_unsent:
            writable = None if is_all_out else self._writable
            self._loop.watch(connection.transport.sock, self._readable, writable, is_urgent=True)

    def _after_answers(self, connection: RuntimeConnection) -> None:
        """Do steps 9 and 10 of the requests that were answered, also where the connection is lost."""
        if self.handler is None:
            return
        try:
            self.handler.account(self._loop.is_asked)
            if connection.checks and not connection.transport.has_unsent:
                checks, connection.checks = connection.checks, []
                self.handler.read_back(checks)
        except Exception:  # noqa: BLE001 - the answers are out; a bug here must not end the agent
            say_trace(self._log, "internal error after an answer")

    def _arm_watchdog(self, connection: RuntimeConnection) -> None:
        self._loop.set_timer("watchdog", connection.session.next_check(self._loop.clock()), self._check)

    def _check(self) -> None:
        """Close the connection where a call of the runtime is overdue, such as Synchronize after Configure."""
        connection = self._connection
        if connection is None:
            return
        reason = connection.session.overdue(self._loop.clock())
        if reason is not None:
            self._lose(reason)
        else:
            self._arm_watchdog(connection)

    # ------------------------------------------------------------------- events

    def _react(self, connection: RuntimeConnection, event: SessionEvent) -> None:
        if isinstance(event, Request):
            self._answer(connection, event)
        elif isinstance(event, Registered):
            say(self._log, logging.INFO, "registered", plugin=plugin_id(connection.session))
        elif isinstance(event, RegistrationRefused):
            say(
                self._log,
                logging.ERROR,
                "the runtime refused to register this plugin",
                plugin=plugin_id(connection.session),
                err=event.message,
            )
            self.close()
            self._loop.stop(EXIT_CONFIGURATION)

    def _answer(self, connection: RuntimeConnection, request: Request) -> None:
        event = request.event
        if isinstance(event, Configure):
            self._configure(connection, request, event)
        elif isinstance(event, Shutdown):
            say(self._log, logging.INFO, "the runtime asked this plugin to shut down")
            connection.respond(request, EmptyResponse())
        elif self.handler is not None:
            reply = self.handler.answer(request)
            if isinstance(request.event, Synchronize) and not reply.failed:
                connection.synchronized_at = self._loop.clock()
            # Step 8. Once the reply is sent, the runtime goes on with the container.
            connection.reply(request, reply)
        elif self._prepare is not None:
            # Any answer would be wrong: an empty one makes the runtime create the container unpinned.
            self._lose("another agent still serves the runtime")
        else:
            connection.respond(request, empty_response(event))

    def _configure(self, connection: RuntimeConnection, request: Request, event: Configure) -> None:
        try:
            # Only an agent that the runtime started gets its configuration here.
            if self.handler is None and self._prepare is not None:
                self.handler = self._prepare(event.config)
        except NriPinError as error:
            # The runtime logs the refusal. A second connection would bring the same configuration.
            say(self._log, logging.ERROR, "cannot run", err=error)
            connection.refuse(request, str(error))
            self._flush(connection)
            self.close()
            self._loop.stop(EXIT_CONFIGURATION)
            return
        say(
            self._log,
            logging.INFO,
            "configured",
            runtime=event.runtime_name,
            version=event.runtime_version,
            nri=event.nri_version,
            request_timeout_ms=event.request_timeout_ms or None,
        )
        connection.respond(request, ConfigureResponse())


def plugin_id(session: PluginSession) -> str:
    """Return `NN-name`, the form in the runtime's log."""
    return f"{session.plugin_index}-{session.plugin_name}"


# The kubelet's probes, which work without the metrics library


ALIVE_WITHIN_S = 5.0
"""The longest time that the loop may take to run a posted call. It usually takes microseconds; a checkpoint on a slow disk
takes a second."""


def probe_pages(loop: Loop, link: RuntimeLink) -> "Mapping[str, Callable[[], Page]]":
    """Return the pages `/healthz` and `/readyz`; their module is loaded only where the configuration has an address."""
    from nri_plugin.process.http_server import probe

    return {
        "/healthz": probe("alive", lambda: lifeless(loop, link)),
        "/readyz": probe("ready", lambda: unready(link)),
    }


def lifeless(loop: Loop, link: RuntimeLink) -> str:
    """Return why only a restart of the agent helps; empty where it works, or where a restart does not help."""
    if not comes_round(loop):
        return "the event loop does not come round"
    return link.handler.checkpoint.stuck() if link.handler is not None else ""


def unready(link: RuntimeLink) -> str:
    """Return why the agent cannot do all of its work; empty where it can."""
    if link.handler is None or not link.is_synchronized:
        return link.waits_for or "not connected to the container runtime"
    return link.handler.checkpoint.unready()


def comes_round(loop: Loop) -> bool:
    """Return whether the loop runs a posted call soon."""
    seen = threading.Event()
    loop.post(seen.set)
    return seen.wait(ALIVE_WITHIN_S)
