"""A plugin's side of one NRI connection, without I/O, clock or threads.

Pass in the bytes from the socket, act on the events that come back, send the queued bytes. A connection that ended is
replaced by a new session. One connection goes through these steps:

    plugin  -> runtime   RegisterPlugin (name, index)
    runtime -> plugin    Configure (who the runtime is); the answer is the subscription
    runtime -> plugin    Synchronize, in one or more parts (all pods and containers); the answer may carry updates
    runtime -> plugin    events, one at a time

The session handles all that needs no decision: it joins the parts of a Synchronize, chooses the subscription that the
runtime's version allows, and answers unknown methods. Every other request is reported as `Request` and waits for
`respond` or `refuse`. The runtime waits too: it sends nothing else meanwhile, and closes the connection after about
two seconds. A container is then created without this plugin.

Source: containerd/nri pkg/adaptation and pkg/stub, releases 0.2.0 to 0.12.2.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nri_plugin.model import bounds
from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import codec
from nri_plugin.wire.nri.decode import Hears, deaf
from nri_plugin.wire.nri.events import (
    Configure,
    ConfigureResponse,
    EventMask,
    NRIEvent,
    NRIResponse,
    Registered,
    RegistrationRefused,
    Request,
    SessionEvent,
    Synchronize,
)
from nri_plugin.wire.nri.messages import Container, Pod
from nri_plugin.wire.nri.mux import PLUGIN_CONNECTION, RUNTIME_CONNECTION, MuxReader, mux_frames
from nri_plugin.wire.nri.releases import OUR_NRI_VERSION, is_before_0_7, legal_mask
from nri_plugin.wire.ttrpc.connection import (
    Call,
    ClientConnection,
    Reply,
    ServerConnection,
    ServerEvent,
)
from nri_plugin.wire.ttrpc.frame import Code, RPCStatus

# The state table
#
# Our registration call and the runtime's calls are independent: Configure may come before the runtime's reply to
# RegisterPlugin. So that reply is no step of the table.


class SessionStage(Enum):
    """How far the connection has come."""

    CONNECTED = "connected"
    REGISTERING = "registering"
    CONFIGURING = "being configured"
    CONFIGURED = "configured"
    COLLECTING = "receiving the list of containers"
    SYNCHRONIZING = "being synchronized"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


class SessionStep(Enum):
    """The steps of a connection."""

    REGISTER = "register"
    CONFIGURE = "Configure"
    SYNCHRONIZE_PART = "part of Synchronize"
    SYNCHRONIZE = "Synchronize"
    EVENT = "event"
    ANSWERED = "answer"
    REFUSED = "error answer"


NEXT_STAGE: Final[dict[tuple[SessionStage, SessionStep], SessionStage]] = {
    (SessionStage.CONNECTED, SessionStep.REGISTER): SessionStage.REGISTERING,
    # The runtime configures a plugin once. A second Configure is out of order.
    (SessionStage.REGISTERING, SessionStep.CONFIGURE): SessionStage.CONFIGURING,
    (SessionStage.CONFIGURING, SessionStep.ANSWERED): SessionStage.CONFIGURED,
    (SessionStage.CONFIGURING, SessionStep.REFUSED): SessionStage.FAILED,
    # A plugin launched by a runtime before NRI 0.7 is never synchronized: events follow at once.
    (SessionStage.CONFIGURED, SessionStep.EVENT): SessionStage.CONFIGURED,
    # NRI 0.7 and later split a Synchronize above 4 MiB; all parts but the last say that more follow.
    (SessionStage.CONFIGURED, SessionStep.SYNCHRONIZE_PART): SessionStage.COLLECTING,
    (SessionStage.CONFIGURED, SessionStep.SYNCHRONIZE): SessionStage.SYNCHRONIZING,
    (SessionStage.COLLECTING, SessionStep.SYNCHRONIZE_PART): SessionStage.COLLECTING,
    (SessionStage.COLLECTING, SessionStep.SYNCHRONIZE): SessionStage.SYNCHRONIZING,
    # After an error answer the runtime drops the plugin, or keeps the connection and never uses it again.
    (SessionStage.SYNCHRONIZING, SessionStep.ANSWERED): SessionStage.READY,
    (SessionStage.SYNCHRONIZING, SessionStep.REFUSED): SessionStage.FAILED,
    (SessionStage.READY, SessionStep.EVENT): SessionStage.READY,
}


# The watchdog
#
# Runtimes keep some connections open that they no longer serve. The plugin has to notice that by itself.
#
# Source: containerd 1.7 up to 1.7.25 keeps a plugin connected that failed to synchronize and never sends it
# another event; NRI 0.6 leaves half a frame behind when a message is too long for it.


INCOMPLETE_FRAME_SECONDS: Final = 10.0
LATE_ANSWER_SECONDS: Final = 1.0
"""After a late answer the runtime closes the connection. We wait this long for it, then close it ourselves."""


class SessionWatchdog:
    """The steps that are due, by name, each with its deadline and the problem to report after it."""

    def __init__(self, timeout: float, *, prelaunched: bool) -> None:
        self._timeout = timeout
        self._prelaunched = prelaunched
        self._due: dict[str, tuple[float, str]] = {}
        self._frames_read = 0

    def next_check(self) -> float | None:
        """Returns the earliest time at which an expectation can fail."""
        return min((due_at for due_at, _ in self._due.values()), default=None)

    def overdue(self, now: float) -> str | None:
        """Returns the problem of the expectation that failed first."""
        broken = [due for due in self._due.values() if due[0] <= now]
        return min(broken)[1] if broken else None

    def registering(self, now: float) -> None:
        """We asked to be registered: Configure must come."""
        text = f"no Configure within {self._timeout:g} s after connecting; another connection may hold the runtime up"
        self._due["configure"] = (now + self._timeout, text)

    def configured(self, runtime: Configure, now: float) -> None:
        """We answered Configure: Synchronize must come, except where a launched plugin never gets one."""
        self._due.pop("configure", None)
        if self._prelaunched and is_before_0_7(runtime):
            return
        text = f"no Synchronize within {self._timeout:g} s after Configure; the runtime may have forgotten us"
        self._due["synchronize"] = (now + self._timeout, text)

    def synchronized(self, *, is_lost: bool) -> None:
        """Note the answer to Synchronize: after a good one the runtime keeps the plugin, after any other it does not."""
        self._due.pop("synchronize", None)
        # containerd 1.7.16 to 1.7.25 report the plugin as connected and never send it another event.
        if is_lost:
            text = "our answer to Synchronize was an error or too late; the runtime may keep us without serving us"
            self._due["lost"] = (float("-inf"), text)

    def answered_late(self, now: float) -> None:
        """An answer left after its deadline: the runtime closes the connection."""
        text = f"an answer left after its deadline and the runtime did not close within {LATE_ANSWER_SECONDS:g} s"
        self._due.setdefault("late", (now + LATE_ANSWER_SECONDS, text))

    def received(self, now: float, frames_read: int, *, is_incomplete: bool) -> None:
        """Bytes came and left the stream between two frames or in the middle of one.

        Args:
            now: in seconds.
            frames_read: whole frames read since the connection began.
            is_incomplete: whether another has begun.
        """
        # The time counts for one frame: a whole frame since the last call shows that the runtime goes on sending.
        if not is_incomplete or frames_read != self._frames_read:
            self._due.pop("frame", None)
        self._frames_read = frames_read
        if is_incomplete:
            text = f"a frame is incomplete for {INCOMPLETE_FRAME_SECONDS:g} s; the runtime cannot send the rest of it"
            self._due.setdefault("frame", (now + INCOMPLETE_FRAME_SECONDS, text))


# The session


NOT_WAITING: Final = "the call is no longer waiting for an answer"
MAX_MESSAGE_BYTES: Final = (16 << 20) + 4096
"""Longest message NRI 0.6 can write: 4096 bytes of a frame, then one mux frame of 16 MiB."""
_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+", re.ASCII)


@dataclass(slots=True)
class _PendingRequest:
    """A request that waits for an answer."""

    event: NRIEvent
    deadline: float | None


class PluginSession:
    """One connection to a runtime, from RegisterPlugin to its end.

    Args:
        plugin_name: letters, digits and `-_.+`.
        plugin_index: two digits; plugins are called in its order.
        wanted: events to subscribe to, as far as the runtime's version knows them.
        prelaunched: the runtime started us and handed the connection over.
        registration_timeout: seconds from registering to Configure, and from there to Synchronize. Runtimes
            serve one new connection after the other, so it is long.
        hears: whether annotations of a namespace's pods are obeyed; by default none are.

    Raises:
        LocalProtocolError: the runtime would refuse the name or the index, or `wanted` is empty.
    """

    def __init__(
        self,
        plugin_name: str,
        plugin_index: str,
        wanted: EventMask,
        *,
        prelaunched: bool = False,
        registration_timeout: float = 30.0,
        hears: Hears = deaf,
    ) -> None:
        _check_identity(plugin_name, plugin_index)
        if not wanted:
            # Mask 0 subscribes to everything: from NRI 0.10 on to validation too, where no answer fails the creation.
            raise LocalProtocolError("an empty subscription would mean every event; name at least one")
        self.plugin_name = plugin_name
        self.plugin_index = plugin_index
        self.runtime: Configure | None = None
        self._wanted = wanted
        self._hears = hears
        self._stage = SessionStage.CONNECTED
        self._mux = MuxReader()
        self._server = ServerConnection(MAX_MESSAGE_BYTES)
        self._client = ClientConnection(MAX_MESSAGE_BYTES)
        self._watchdog = SessionWatchdog(registration_timeout, prelaunched=prelaunched)
        self._waiting: dict[int, _PendingRequest] = {}
        self._pods: list[Pod] = []
        self._containers: list[Container] = []
        self._unread: codec.SynchronizePart | None = None
        self._synchronize_bytes = 0
        self._error: RemoteProtocolError | None = None

    @property
    def stage(self) -> SessionStage:
        """How far the connection has come."""
        return self._stage

    def register(self, now: float) -> None:
        """Queues RegisterPlugin; call it once, at once after connecting.

        Raises:
            LocalProtocolError: it was called before.
        """
        self._stage = self._next(SessionStep.REGISTER)
        payload = codec.encode_registration(self.plugin_name, self.plugin_index, OUR_NRI_VERSION)
        # No timeout of our own: runtimes accept one connection after the other, so the reply may take long. The
        # watchdog waits for Configure instead: it shows that the runtime serves us.
        self._client.call(codec.RUNTIME_SERVICE, "RegisterPlugin", payload, now)
        self._watchdog.registering(now)

    def respond(self, call: int, response: NRIResponse, now: float) -> str:
        """Answers a request.

        Returns:
            "" when the answer was queued, else why it was not: an error was queued in its place, or the call is unknown.

        Raises:
            LocalProtocolError: this event cannot be answered so. Nothing was queued; the call still waits.
        """
        waiting = self._waiting.get(call)
        if waiting is None:
            return NOT_WAITING
        # Encode first: a response that this event cannot have raises before anything is queued.
        payload = codec.encode_response(waiting.event, self._subscribed(waiting.event, response))
        # An answer above 4 MiB becomes an error status, so that this request fails and not the connection.
        replaced = self._server.reply(call, payload)
        self._answered(call, now, SessionStep.ANSWERED if replaced is None else SessionStep.REFUSED)
        return "" if replaced is None else replaced.message

    def refuse(self, call: int, code: int, message: str, now: float) -> str:
        """Answers a request with an error; creating a container fails with `message`.

        Returns:
            "" when the answer was queued, else why it was not.

        Raises:
            LocalProtocolError: `code` is 0 (OK).
        """
        if call not in self._waiting:
            return NOT_WAITING
        self._server.fail(call, RPCStatus(code, message))
        self._answered(call, now, SessionStep.REFUSED)
        return ""

    def _subscribed(self, event: NRIEvent, response: NRIResponse) -> NRIResponse:
        """Fills the subscription in, or checks the given one against the events that this runtime knows.

        One bit too many, and the runtime closes the connection without an error to the plugin.
        """
        if not (isinstance(event, Configure) and isinstance(response, ConfigureResponse)):
            return response
        legal = legal_mask(event)
        if response.events is None:
            return ConfigureResponse(self._wanted & legal)
        if unknown := int(response.events) & ~int(legal):
            msg = f"subscription {int(response.events):#x} has bits {unknown:#x} that this runtime does not know"
            raise LocalProtocolError(msg + f"; it knows {int(legal):#x}")
        return response

    def _answered(self, call: int, now: float, step: SessionStep) -> None:
        waiting = self._waiting.pop(call)
        # NRI drops a plugin whose answer is late, and starts the container without it.
        late = waiting.deadline is not None and now > waiting.deadline
        # Only Configure and Synchronize move the stage; events leave it READY however they are answered.
        if isinstance(waiting.event, Configure):
            self._stage = self._next(step)
            if step is SessionStep.ANSWERED:
                self._watchdog.configured(waiting.event, now)
        elif isinstance(waiting.event, Synchronize):
            self._stage = self._next(step)
            self._watchdog.synchronized(is_lost=late or step is SessionStep.REFUSED)
        if late:
            self._watchdog.answered_late(now)

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[SessionEvent]:
        """Takes bytes from the socket; b"" is the end of the connection.

        Returns:
            What happened, in order.

        Raises:
            RemoteProtocolError: the peer's bytes make no sense; log it, close, reconnect. It is raised again
                on every further call.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._receive(data, now) if data else self._end()
        except RemoteProtocolError as err:
            self._error = err
            self._close()
            raise

    def _receive(self, data: bytes | bytearray | memoryview, now: float) -> list[SessionEvent]:
        if self._stage is SessionStage.CLOSED:
            raise RemoteProtocolError("bytes came after the end of the connection")
        # Configure may arrive before the reply to RegisterPlugin, so both ends read whatever the trunk brings.
        events: list[SessionEvent] = []
        # Frames of other connection ids are dropped, as the runtime does with ours.
        for connection_id, part in self._mux.feed(data):
            if connection_id == PLUGIN_CONNECTION:
                for call in self._server.receive_data(part, now):
                    self._called(call, events)
            elif connection_id == RUNTIME_CONNECTION:
                events += [self._registered(reply) for reply in self._client.receive_data(part)]
        # NRI 0.6 leaves half a frame behind if a message exceeds 16 MiB: the watchdog reports it.
        frames = self._server.frames_read + self._client.frames_read
        self._watchdog.received(now, frames, is_incomplete=self._is_incomplete)
        return events

    @property
    def _is_incomplete(self) -> bool:
        return self._mux.is_incomplete or self._server.is_incomplete or self._client.is_incomplete

    def _end(self) -> list[SessionEvent]:
        if self._stage is SessionStage.CLOSED:
            return []
        if self._is_incomplete:
            raise RemoteProtocolError("the peer closed the connection in the middle of a frame")
        return self._close()

    def _close(self) -> list[SessionEvent]:
        self._stage = SessionStage.CLOSED
        self._waiting.clear()
        return []

    def _registered(self, reply: Reply) -> SessionEvent:
        # A refused name or index is a mistake of configuration; the runtime keeps the connection open but dead.
        if reply.status is None:
            return Registered()
        return RegistrationRefused(reply.status.code, reply.status.message)

    def _called(self, event: ServerEvent, events: list[SessionEvent]) -> None:
        # A request that the ttrpc end refused was lost for us: our picture of the containers would be wrong from now
        # on. A new connection synchronizes it. A refused stream (UNIMPLEMENTED) is no NRI request.
        if isinstance(event, Call):
            self._serve(event, events)
        elif event.status.code != Code.UNIMPLEMENTED:
            why = event.status.message
            raise RemoteProtocolError(f"the peer's request on stream {event.stream_id} is unusable: {why}")

    def _serve(self, call: Call, events: list[SessionEvent]) -> None:
        if call.service != codec.PLUGIN_SERVICE:
            self._server.fail(call.stream_id, RPCStatus(Code.UNIMPLEMENTED, f"service {call.service}"))
            return
        # NRI 0.12 and later take UNIMPLEMENTED for one of the dedicated methods as "use StateChange instead".
        decoded = self._decoded(call)
        if decoded is None:
            self._server.fail(call.stream_id, RPCStatus(Code.UNIMPLEMENTED, f"method {call.method}"))
        elif isinstance(decoded, codec.UnknownEvent):
            self._server.reply(call.stream_id)
        elif isinstance(decoded, codec.SynchronizePart):
            self._synchronize(call, decoded, events)
        else:
            step = SessionStep.CONFIGURE if isinstance(decoded, Configure) else SessionStep.EVENT
            self._request(call, step, decoded, len(call.payload), events)

    def _decoded(self, call: Call) -> codec.Decoded | None:
        return codec.decode_request(call.method, call.payload, self._hears)

    def _synchronize(self, call: Call, part: codec.SynchronizePart, events: list[SessionEvent]) -> None:
        # Runtimes cut pods and containers at the same ratio: a container may come in an earlier part than its pod. So
        # nothing is reported before the last part.
        step = SessionStep.SYNCHRONIZE_PART if part.more else SessionStep.SYNCHRONIZE
        if not self._advance(call, step):
            return
        self.read_ahead()  # at most one part waits
        self._synchronize_bytes += len(call.payload)
        # NRI up to 0.6 sends one message of up to 16 MiB, later releases any number of parts: bound the lists.
        listed = max(len(self._pods) + part.pods, len(self._containers) + part.containers)
        if listed > bounds.SYNCHRONIZED:
            msg = f"Synchronize lists {listed} pods or containers so far, at most {bounds.SYNCHRONIZED} are kept"
            raise RemoteProtocolError(msg)
        self._unread = part
        # All parts but the last are answered with `more` and without updates, else the runtime gives up.
        if part.more:
            self._server.reply(call.stream_id, codec.encode_more())
            return
        self.read_ahead()
        whole = Synchronize(tuple(self._pods), tuple(self._containers))
        self._pods, self._containers = [], []
        self._wait(call, whole, self._synchronize_bytes, events)

    def read_ahead(self) -> None:
        """Makes values of a part of a Synchronize that was received before; call it once the queued bytes are sent.

        The runtime prepares the next part meanwhile. Without this call they are made when that part has come.
        """
        if self._unread is not None:
            part, self._unread = self._unread.read(), None
            self._pods += part.pods
            self._containers += part.containers

    def _request(
        self, call: Call, step: SessionStep, event: NRIEvent, size_bytes: int, events: list[SessionEvent]
    ) -> None:
        if self._advance(call, step):
            if isinstance(event, Configure):
                self.runtime = event
            self._wait(call, event, size_bytes, events)

    def _wait(self, call: Call, event: NRIEvent, size_bytes: int, events: list[SessionEvent]) -> None:
        self._waiting[call.stream_id] = _PendingRequest(event, call.deadline)
        events.append(Request(call.stream_id, call.deadline, event, size_bytes))

    def _advance(self, call: Call, step: SessionStep) -> bool:
        """Takes a step that the peer asked for; a step that is out of order is answered with an error."""
        if step is SessionStep.EVENT and self._stage is SessionStage.READY:
            return True  # as the table says; nearly all steps are this one
        stage = NEXT_STAGE.get((self._stage, step))
        if stage is None:
            text = f"{call.method} is out of order: this plugin is {self._stage.value}"
            self._server.fail(call.stream_id, RPCStatus(Code.FAILED_PRECONDITION, text))
            return False
        self._stage = stage
        return True

    def _next(self, step: SessionStep) -> SessionStage:
        """Returns the stage after a step of our own."""
        stage = NEXT_STAGE.get((self._stage, step))
        if stage is None:
            raise LocalProtocolError(f"{step.value} is out of order: this connection is {self._stage.value}")
        return stage

    def data_to_send(self) -> bytes:
        """Returns and forgets everything queued, in mux frames that every known runtime can read."""
        parts: list[bytes] = []
        # Each frame is queued whole, and all leave as one run of bytes, so that they take one system call.
        for frame in self._client.frames_to_send():
            parts += mux_frames(RUNTIME_CONNECTION, frame)
        for frame in self._server.frames_to_send():
            parts += mux_frames(PLUGIN_CONNECTION, frame)
        return b"".join(parts)

    def next_check(self, now: float) -> float | None:  # noqa: ARG002 (called like `overdue`)
        """Returns when `overdue` should be asked next, None = only after something has come."""
        return None if self._stage is SessionStage.CLOSED else self._watchdog.next_check()

    def overdue(self, now: float) -> str | None:
        """Returns why this connection must be closed and replaced, None = it need not."""
        return None if self._stage is SessionStage.CLOSED else self._watchdog.overdue(now)


def _check_identity(name: str, index: str) -> None:
    """Raises for a name or index that the runtime would answer with an error and a dead connection."""
    if not _INDEX.fullmatch(index):
        raise LocalProtocolError(f"plugin index {index!r} must be two digits, such as 10")
    if not _NAME.fullmatch(name):
        raise LocalProtocolError(f"plugin name {name!r} must be one or more of letters, digits and -_.+")
