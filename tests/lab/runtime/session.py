"""The runtime's side of one plugin connection, as the Go library of a given NRI release behaves.

No I/O, no clock. It fails where the library fails: on a mux frame longer than its buffer, on an event bit that it does
not know, on a late answer. With NRI 0.6 it keeps a plugin that failed to synchronize, without sending it events. A lost
plugin never fails a request: the container is created without it.

The library's ttrpc reads each connection through a 4096-byte buffer. A read never takes part of a mux frame: a mux frame
that is longer than the slice fails with ENOMEM and ends the whole connection.

Differs: the library checks claims over the answers of all plugins; here: they are checked within one plugin's
    answer. Why: a caller with several plugins shares an `Ownership` between them. Option: none.
"""

import re
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.codec import PLUGIN_SERVICE, RUNTIME_SERVICE
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources
from nri_plugin.wire.nri.mux import HEADER as MUX_HEADER
from nri_plugin.wire.nri.mux import PLUGIN_CONNECTION, RUNTIME_CONNECTION, mux_frames
from nri_plugin.wire.ttrpc.connection import Call, ClientConnection, Reply, ServerConnection
from nri_plugin.wire.ttrpc.frame import HEADER, HEADER_BYTES, MAX_SEND_BYTES, Code, RPCStatus
from tests.lab.runtime import codec
from tests.lab.runtime.adjusting import Ownership
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

# The trunk


BUFFER_BYTES: Final = 4096
QUEUE_FRAMES: Final = 256
MAX_MUX_FRAME_BYTES: Final = 64 << 20
"""A bound of this simulator: the Go reader allocates the length that a header gives."""

_Steps = Generator[None, None, bytes]


class GoTrunkReader:
    """Reads mux frames whole and cuts them into ttrpc frames as the Go library does."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._streams = {connection: _GoStream() for connection in (PLUGIN_CONNECTION, RUNTIME_CONNECTION)}

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Takes bytes and returns (connection id, whole ttrpc frame).

        Raises:
            RemoteProtocolError: where the Go library would end the connection.
        """
        self._buffer += data
        frames: list[tuple[int, bytes]] = []
        while (mux_frame := self._mux_frame()) is not None:
            connection_id, payload = mux_frame
            stream = self._streams.get(connection_id)
            if stream is not None:
                frames += [(connection_id, frame) for frame in stream.feed(payload)]
        return frames

    def _mux_frame(self) -> tuple[int, bytes] | None:
        if len(self._buffer) < MUX_HEADER.size:
            return None
        connection_id, length = MUX_HEADER.unpack_from(self._buffer)
        if length > MAX_MUX_FRAME_BYTES:
            raise RemoteProtocolError(f"mux frame of {length} bytes: cannot allocate memory")
        end = MUX_HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[MUX_HEADER.size : end])
        del self._buffer[:end]
        return connection_id, payload


class _GoStream:
    """One logical connection: a queue of mux frames, and a reader that suspends when it is empty."""

    def __init__(self) -> None:
        self._queue: deque[bytes] = deque()
        self._buffered = b""
        self._frames: list[bytes] = []
        self._taken = 0
        self._reader = self._read_frames()

    def feed(self, mux_payload: bytes) -> list[bytes]:
        self._queue.append(mux_payload)
        next(self._reader)
        frames, self._frames = self._frames, []
        return frames

    def _read_frames(self) -> Generator[None, None, None]:
        while True:
            self._taken = 0
            header = yield from self._read_full(HEADER_BYTES)
            length = HEADER.unpack(header)[0]
            if length > MAX_SEND_BYTES:
                yield from self._discard(length)
                continue
            data = yield from self._read_full(length)
            self._frames.append(header + data)

    def _read_full(self, length: int) -> _Steps:
        parts: list[bytes] = []
        while length:
            part = yield from self._read(length)
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _read(self, room: int) -> _Steps:
        """One read of a buffered reader: what it holds, else one mux frame, past the buffer if `room` is larger."""
        if not self._buffered:
            if room >= BUFFER_BYTES:
                return (yield from self._take(room))
            self._buffered = yield from self._take(BUFFER_BYTES)
        part, self._buffered = self._buffered[:room], self._buffered[room:]
        return part

    def _discard(self, length: int) -> Generator[None, None, None]:
        while length:
            if not self._buffered:
                self._buffered = yield from self._take(BUFFER_BYTES)
            dropped = min(length, len(self._buffered))
            self._buffered = self._buffered[dropped:]
            length -= dropped

    def _take(self, room: int) -> _Steps:
        """Takes one mux frame.

        Differs: the library's queue is emptied by another thread, so whether 257 frames overflow it is a
            race; here: they always do when they belong to one ttrpc frame. Why: a test has to see the same
            result each time. Option: none.
        """
        while not self._queue:
            yield
        mux_payload = self._queue.popleft()
        self._taken += 1
        if self._taken > QUEUE_FRAMES:
            raise RemoteProtocolError(f"more than {QUEUE_FRAMES} mux frames are queued: the trunk is closed")
        if len(mux_payload) > room:
            msg = f"mux frame of {len(mux_payload)} bytes, room for {room}: cannot allocate memory"
            raise RemoteProtocolError(msg)
        return mux_payload


# The session


MIN_OBJECTS_PER_MESSAGE: Final = 8
"""A Synchronize that is still too long with fewer pods and containers than this is given up."""

_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+", re.ASCII)


@dataclass(slots=True)
class _Sync:
    """A Synchronize on its way: what is still to be sent, and how much of it at a time."""

    pods: tuple[Pod, ...]
    containers: tuple[Container, ...]
    pods_per_message: int
    containers_per_message: int
    deadline: float

    def shrink(self, factor: float) -> bool:
        """Reduces the pods and containers of each message; False if a message has few already."""
        if self.pods_per_message + self.containers_per_message <= MIN_OBJECTS_PER_MESSAGE:
            return False
        self.pods_per_message = max(1, int(self.pods_per_message * factor))
        self.containers_per_message = max(1, int(self.containers_per_message * factor))
        return True


class RuntimeSession:
    """One plugin's connection.

    Args:
        profile: which runtime to be.
        launched_as: (name, index) of the file, when the runtime started the plugin itself: what the plugin
            registers is then ignored.
        holds_registration_reply: answer RegisterPlugin only after Configure was answered; real runtimes let
            the two race.
    """

    def __init__(
        self,
        profile: RuntimeProfile,
        *,
        launched_as: tuple[str, str] | None = None,
        holds_registration_reply: bool = False,
    ) -> None:
        self.profile = profile
        self.name, self.index = launched_as or ("", "")
        self.mask = events.EventMask(0)
        self.is_ready = False
        self.is_zombie = False
        self.lost = ""
        self._launched = launched_as is not None
        self._holds_reply = holds_registration_reply
        self._trunk = GoTrunkReader()
        self._client = ClientConnection(max_receive=4 << 20, max_send=profile.max_send_bytes)
        self._server = ServerConnection()
        self._register_call = 0
        self._register_by: float | None = None
        self._own_methods = profile.has_own_methods
        self._configure_call = 0
        self._sync: _Sync | None = None
        self._sync_call = 0
        self._calls: dict[int, tuple[events.NRIEvent, int]] = {}

    @property
    def plugin(self) -> str:
        """`NN-name`, as error texts name the plugin."""
        return f"{self.index}-{self.name}"

    def accept(self, now: float) -> None:
        """Starts the time limit for the registration, once the connection is accepted."""
        self._register_by = now + self.profile.registration_timeout

    def configure(self, now: float, config: str = "") -> None:
        """Queues Configure; the answer is a `Configured` or the end of the connection."""
        profile = self.profile
        event = events.Configure(
            config=config,
            runtime_name=profile.runtime_name,
            runtime_version=profile.runtime_version,
            registration_timeout_ms=round(profile.registration_timeout * 1000)
            if profile.tells_timeouts
            else 0,
            request_timeout_ms=round(profile.request_timeout * 1000) if profile.tells_timeouts else 0,
            nri_version=f"v{profile.nri_version}" if profile.tells_nri_version else "",
        )
        method, payload = codec.encode_event(event)
        self._configure_call = self._send(method, payload, now, profile.request_timeout)

    def synchronize(self, pods: tuple[Pod, ...], containers: tuple[Container, ...], now: float) -> None:
        """Queues Synchronize; the answer is a `Synchronized`, the end of the connection, or a zombie."""
        deadline = now + self.profile.request_timeout
        self._sync = _Sync(pods, containers, len(pods), len(containers), deadline)
        if reason := self._send_part(now):
            self._fail_sync(reason)

    def is_subscribed(self, event: events.NRIEvent) -> bool:
        """Whether the plugin is asked about such events."""
        if isinstance(event, events.Shutdown):
            return self.is_ready
        return self.is_ready and bool(self.mask & events.EVENTS[type(event)].bit)

    def call(self, event: events.NRIEvent, now: float) -> int | None:
        """Queues an event; the answer is an `Answered` that names the returned call.

        Returns:
            None when the plugin is not asked: not subscribed, not ready, a zombie, or lost.
        """
        if self.lost or not self.is_subscribed(event):
            return None
        return self._call(event, now, self.profile.request_timeout, None)

    def _call(self, event: events.NRIEvent, now: float, timeout: float, known_as: int | None) -> int:
        is_state_change = not self._own_methods and type(event) in codec.STATE_CHANGES
        encode_event = codec.encode_state_change if is_state_change else codec.encode_event
        method, payload = encode_event(event)
        stream_id = self._send(method, payload, now, timeout)
        call = stream_id if known_as is None else known_as
        self._calls[stream_id] = (event, call)
        return call

    def _send(self, method: str, payload: bytes, now: float, timeout: float) -> int:
        return self._client.call(PLUGIN_SERVICE, method, payload, now, timeout)

    def _send_part(self, now: float) -> str:
        """Sends the next message of the Synchronize, smaller and smaller until it fits; returns why it cannot."""
        sync = self._sync
        if sync is None:
            return "nothing is being synchronized"
        while True:
            pods, containers = (
                sync.pods[: sync.pods_per_message],
                sync.containers[: sync.containers_per_message],
            )
            more = len(pods) < len(sync.pods) or len(containers) < len(sync.containers)
            payload = codec.encode_synchronize(pods, containers, more=more)
            try:
                self._sync_call = self._send("Synchronize", payload, now, sync.deadline - now)
            except LocalProtocolError as err:
                factor = min(0.9, 0.95 * self.profile.max_send_bytes / len(payload))
                if not (self.profile.splits_synchronize and sync.shrink(factor)):
                    return str(err)
                continue
            sync.pods, sync.containers = sync.pods[len(pods) :], sync.containers[len(containers) :]
            return ""

    def _synchronized(self, reply: Reply, now: float) -> RuntimeEvent | None:
        sync = self._sync
        if sync is None:
            return None
        if reply.status is not None:
            return self._fail_sync(reply.status.message)
        updates, more = codec.decode_synchronize(reply.payload)
        if not (sync.pods or sync.containers):
            self._sync, self.is_ready = None, True
            return Synchronized(updates)
        if not more:
            return self._fail_sync("plugin does not handle split sync requests")
        reason = self._send_part(now)
        return self._fail_sync(reason) if reason else None

    def _fail_sync(self, reason: str) -> RuntimeEvent | None:
        self._sync = None
        if self.profile.keeps_zombies:
            self.is_zombie = True
            return None
        return self._lose(f"failed to synchronize plugin: {reason}")

    def receive_data(self, data: bytes, now: float) -> list[RuntimeEvent]:
        """Processes data from the socket; b"" is its end. Never raises: any error loses the plugin."""
        if self.lost:
            return []
        try:
            found = self._receive(data, now) if data else [self._lose("ttrpc: closed")]
        except RemoteProtocolError as err:
            found = [self._lose(str(err))]
        return [event for event in found if event is not None] + self._lost_calls()

    def _receive(self, data: bytes, now: float) -> list[RuntimeEvent | None]:
        found: list[RuntimeEvent | None] = []
        for connection_id, frame in self._trunk.feed(data):
            if connection_id == PLUGIN_CONNECTION:
                for reply in self._client.receive_data(frame):
                    if isinstance(reply, Reply):
                        found += self._replied(reply, now)
            elif connection_id == RUNTIME_CONNECTION:
                calls = self._server.receive_data(frame, now)
                found += [self._called(call) for call in calls if isinstance(call, Call)]
        return found

    def _called(self, call: Call) -> RuntimeEvent | None:
        if call.service != RUNTIME_SERVICE:
            self._server.fail(call.stream_id, RPCStatus(Code.UNIMPLEMENTED, f"service {call.service}"))
        elif call.method == "RegisterPlugin":
            return self._register(call)
        else:
            self._server.fail(call.stream_id, RPCStatus(Code.UNIMPLEMENTED, f"method {call.method}"))
        return None

    def _register(self, call: Call) -> RuntimeEvent:
        name, index, nri_version = codec.decode_registration(call.payload)
        self._register_by = None
        if not self._launched:
            if reason := self._identity_problem(name, index):
                self._server.fail(call.stream_id, RPCStatus(Code.UNKNOWN, reason))
                return RegistrationRejected(name, index, reason)
            self.name, self.index = name, index
        if self._holds_reply:
            self._register_call = call.stream_id
        else:
            self._server.reply(call.stream_id)
        return PluginRegistered(self.name, self.index, nri_version)

    def _identity_problem(self, name: str, index: str) -> str:
        if not name:
            return "plugin name is empty"
        if self.profile.checks_names and not _NAME.fullmatch(name):
            return f"invalid plugin name {name!r}"
        if not _INDEX.fullmatch(index):
            return f"invalid plugin index {index!r}, must be two digits"
        return ""

    def _replied(self, reply: Reply, now: float) -> list[RuntimeEvent | None]:
        if reply.stream_id == self._configure_call:
            return [self._configured(reply)]
        if reply.stream_id == self._sync_call:
            return [self._synchronized(reply, now)]
        event, call = self._calls.pop(reply.stream_id)
        if reply.status is None:
            return [self._answered(event, call, reply.payload)]
        if (
            reply.status.code == Code.UNIMPLEMENTED
            and self._own_methods
            and type(event) in codec.STATE_CHANGES
        ):
            self._own_methods = False  # for all nine events, for the rest of the connection
            self._call(event, now, self.profile.request_timeout, call)
            return []
        return [Answered(call, event, None, error=reply.status.message)]

    def _configured(self, reply: Reply) -> RuntimeEvent:
        if reply.status is not None:
            return self._lose(f"failed to configure plugin: {reply.status.message}")
        mask = codec.decode_mask(reply.payload)
        if mask & ~int(self.profile.legal_mask):
            return self._lose(f"invalid plugin events {mask:#x}, known are {int(self.profile.legal_mask):#x}")
        self.mask = events.EventMask(mask) if mask else self.profile.legal_mask
        if self._register_call:
            self._server.reply(self._register_call)
            self._register_call = 0
        return Configured(self.mask)

    def _answered(self, event: events.NRIEvent, call: int, payload: bytes) -> RuntimeEvent:
        try:
            response = codec.decode_answer(event, payload)
        except RemoteProtocolError as err:
            return Answered(call, event, None, error=str(err))
        claims = Ownership(self.profile.release < (0, 7))
        if error := self._conflict(event, response, claims):
            return Answered(call, event, None, error=error)
        return Answered(call, event, response)

    def _conflict(self, event: events.NRIEvent, response: events.NRIResponse, claims: Ownership) -> str:
        updates: tuple[ContainerUpdate, ...] = getattr(response, "updates", ())
        if isinstance(event, events.CreateContainer):
            created = event.container.id
            if any(update.container_id == created for update in updates):
                return f"plugin {self.plugin} asked update of {created} during creation"
            if isinstance(response, events.CreateContainerResponse):
                resources = response.resources or Resources()
                conflict = claims.claim(self.plugin, created, resources, response.env)
                if conflict:
                    return conflict
        return claims.accept(self.plugin, updates)[1]

    def data_to_send(self) -> bytes:
        """Hands over everything queued."""
        parts: list[bytes] = []
        for frame in self._server.frames_to_send():
            parts += mux_frames(RUNTIME_CONNECTION, frame)
        for frame in self._client.frames_to_send():
            parts += mux_frames(PLUGIN_CONNECTION, frame)
        return b"".join(parts)

    def next_check(self) -> float | None:
        """Returns when `overdue` should be asked."""
        times = [at for at in (self._register_by, self._client.next_deadline()) if at is not None]
        return None if self.lost else min(times, default=None)

    def overdue(self, now: float) -> list[RuntimeEvent]:
        """Ends calls that exceed their time limit: the plugin is lost, and the requests go on without it.

        Nothing happens to a zombie; its connection stays.
        """
        if self.lost:
            return []
        if self._register_by is not None and self._register_by <= now:
            return [self._lose("plugin registration timed out")]
        found: list[RuntimeEvent | None] = []
        for reply in self._client.expire(now):
            if reply.stream_id == self._sync_call:
                found.append(self._fail_sync("context deadline exceeded"))
            else:
                found.append(self._lose("context deadline exceeded"))
        return [event for event in found if event is not None] + self._lost_calls()

    def _lose(self, reason: str) -> ConnectionLost:
        self.lost, self.is_ready = reason, False
        return ConnectionLost(reason)

    def _lost_calls(self) -> list[RuntimeEvent]:
        """Ends the calls that were lost with the plugin; none while it lives."""
        if not self.lost:
            return []
        calls, self._calls = self._calls, {}
        return [Answered(call, event, None, is_fail_open=True) for event, call in calls.values()]
