"""The life of the connection to the runtime: connect, register, wait for bytes, notice a loss, connect again.

`handler.py` handles the requests that arrive. An ordinary agent connects again after every loss. It ends when it is
stopped, or when the runtime refuses its name. An agent that the runtime started ends with its connection, too: the
runtime opens no second one, and the supervisor starts an agent that connects itself.

The loop calls `_readable` when bytes have arrived, `_writable` when unsent replies fit again, and `_check` at the next
deadline of the session. The probes of the kubelet are at the end of the file.
"""

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nri_plugin.agent.serving.connection import (
    LONGEST_PAUSE_S,
    ReconnectBackoff,
    RuntimeConnection,
    SocketWatch,
    Transport,
)
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.model.errors import (
    HostError,
    NriPinError,
    ProtocolError,
)
from nri_plugin.process.logs import LogRateLimit, say, say_trace
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.decode import Hears
from nri_plugin.wire.nri.events import (
    Configure,
    ConfigureResponse,
    EmptyResponse,
    Registered,
    RegistrationRefused,
    Request,
    SessionEvent,
    Shutdown,
    empty_response,
)
from nri_plugin.wire.nri.session import PluginSession

if TYPE_CHECKING:
    from nri_plugin.process.http_server import Page


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
            self.handler.serve(connection, request)
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
