"""The client and the server end of a ttrpc connection, without I/O and without a clock.

Each end takes bytes and the time, and returns events. Frames to be sent wait in a queue until the caller takes
them. A connection that carries calls both ways, such as NRI's multiplexer, has one end of each kind.

Stream ids belong to the client: odd, growing by two, never used twice. Replies may come in any order.

A call is a request frame and a response frame, both with flags 0. ttrpc has streaming calls too; NRI makes none. They are
answered UNIMPLEMENTED, and their messages by an error.

There is no goodbye: closing the socket ends all calls.

Source: containerd/ttrpc PROTOCOL.md, client.go and server.go, v1.2.9.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Struct

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.ttrpc.frame import (
    MAX_RECEIVE_BYTES,
    MAX_SEND_BYTES,
    Code,
    Frame,
    FrameReader,
    MessageType,
    OversizeFrame,
    RequestEnvelope,
    ResponseEnvelope,
    RPCStatus,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

# Events


class Call(Struct, frozen=True):
    """A request that waits for its answer.

    Attributes:
        stream_id: names the call on its connection.
        service: as the client wrote it.
        method: as the client wrote it.
        payload: the argument.
        deadline: in the caller's clock, None = none.
    """

    stream_id: int
    service: str
    method: str
    payload: bytes
    deadline: float | None


@dataclass(frozen=True, slots=True)
class CallRefused:
    """A request or message that the server end answered with an error by itself; reported so that it can be logged."""

    stream_id: int
    status: RPCStatus


@dataclass(frozen=True, slots=True)
class Reply:
    """How a call of ours ended; `status` None is success."""

    stream_id: int
    status: RPCStatus | None
    payload: bytes = b""


ServerEvent: TypeAlias = Call | CallRefused


class End:
    """The parts that both ends share: a frame reader, limits, and the queue of frames to be sent.

    Args:
        max_receive: most bytes of data a frame of the peer may carry.
        max_send: most bytes of data a frame of ours carries.
    """

    def __init__(self, max_receive: int, max_send: int) -> None:
        self._reader = FrameReader(max_receive)
        self._max_send = max_send
        self._out: list[bytes] = []

    @property
    def is_incomplete(self) -> bool:
        """Whether the peer's stream stands in the middle of a frame."""
        return self._reader.is_incomplete

    @property
    def frames_read(self) -> int:
        """Whole frames the peer has sent so far."""
        return self._reader.frames_read

    def frames_to_send(self) -> list[bytes]:
        """Hands over the queued frames, each whole, in the order they must leave."""
        frames, self._out = self._out, []
        return frames

    def data_to_send(self) -> bytes:
        """Hands over everything queued as one run of bytes."""
        return b"".join(self.frames_to_send())

    def _queue(self, stream_id: int, message_type: MessageType, data: bytes, flags: int = 0) -> None:
        self._out.append(Frame(stream_id, message_type, flags, data).encode())


# The client


LAST_STREAM_ID: Final = 0xFFFFFFFF
LONGEST_TIMEOUT_NS: Final = 1e18
"""About 32 years, which fits the field."""


class ClientConnection(End):
    """The end that calls. A frame for a call that was given up is dropped.

    Args:
        max_receive: most bytes of data a reply may have.
        max_send: most bytes of data a request may have.
    """

    def __init__(self, max_receive: int = MAX_RECEIVE_BYTES, max_send: int = MAX_SEND_BYTES) -> None:
        super().__init__(max_receive, max_send)
        self._next_stream_id = 1
        self._waiting: dict[int, float | None] = {}

    def call(
        self,
        service: str,
        method: str,
        payload: bytes,
        now: float,
        timeout: float | None = None,
    ) -> int:
        """Queues a plain call; `timeout` is in seconds from `now`.

        Returns:
            The stream id that the `Reply` will carry.

        Raises:
            LocalProtocolError: the request is too long (its stream id is used up), or stream ids have run out.
        """
        if self._next_stream_id > LAST_STREAM_ID:
            raise LocalProtocolError("all stream ids of this connection are used up; open a new one")
        data = encode_request(RequestEnvelope(service, method, payload, _nanoseconds(timeout)))
        # The id is used up even if the request turns out too long: a server refuses ids that do not grow. Go peers skip
        # ids too, where a request was too long for them.
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        # ttrpc before 1.2.6 sends any length, but every release refuses more than 4 MiB on receipt.
        if len(data) > self._max_send:
            msg = f"{method} request of {len(data)} bytes is over the limit of {self._max_send}"
            raise LocalProtocolError(f"{msg}; send less at once")
        self._queue(stream_id, MessageType.REQUEST, data)
        # The server learns the time left (timeout_ns); the deadline here ends the call if no reply comes at all.
        self._waiting[stream_id] = None if timeout is None else now + timeout
        return stream_id

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Reply]:
        """Takes bytes from the server.

        Raises:
            RemoteProtocolError: the stream itself is lost; close the connection.
        """
        # No such call: it has expired, and its reply comes late. This is no error. Types of versions to come are ignored.
        return [
            self._reply(frame)
            for frame in self._reader.feed(data)
            if frame.stream_id in self._waiting and frame.type == MessageType.RESPONSE
        ]

    def _reply(self, frame: Frame | OversizeFrame) -> Reply:
        # Whatever the reply says, the call has ended. A reply that is too long or unreadable fails this call only: the
        # frame boundaries are known, so the connection goes on.
        del self._waiting[frame.stream_id]
        if isinstance(frame, OversizeFrame):
            text = f"reply of {frame.length_bytes} bytes is longer than we accept"
            return Reply(frame.stream_id, RPCStatus(Code.RESOURCE_EXHAUSTED, text))
        try:
            response = decode_response(frame.data)
        except RemoteProtocolError as err:
            return Reply(frame.stream_id, RPCStatus(Code.INTERNAL, str(err)))
        return Reply(frame.stream_id, response.status, response.payload)

    def next_deadline(self) -> float | None:
        """Returns when `expire` has something to do, None = never."""
        deadlines = [deadline for deadline in self._waiting.values() if deadline is not None]
        return min(deadlines, default=None)

    def expire(self, now: float) -> list[Reply]:
        """Ends the calls whose time is over."""
        late = [
            stream_id
            for stream_id, deadline in self._waiting.items()
            if deadline is not None and deadline <= now
        ]
        for stream_id in late:
            del self._waiting[stream_id]
        return [Reply(one, RPCStatus(Code.DEADLINE_EXCEEDED, "no answer in time")) for one in late]


def _nanoseconds(timeout: float | None) -> int:
    """Returns a timeout for the wire, where 0 means no limit: a timeout that is over becomes 1 ns."""
    return 0 if timeout is None else int(min(max(1.0, timeout * 1e9), LONGEST_TIMEOUT_NS))


# The server


MAX_OPEN_CALLS: Final = 4096
"""Calls of one peer that may wait for us at the same time; more are answered RESOURCE_EXHAUSTED."""


class ServerConnection(End):
    """The end that is called.

    Calls stay known until they are answered, also past their deadline: whether a late answer is still
    worth sending is the user's decision.

    Args:
        max_receive: most bytes of data a request may have.
        max_send: most bytes of data a reply may have.
    """

    def __init__(self, max_receive: int = MAX_RECEIVE_BYTES, max_send: int = MAX_SEND_BYTES) -> None:
        super().__init__(max_receive, max_send)
        self._last_stream_id = 0
        self._open: set[int] = set()

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[ServerEvent]:
        """Takes bytes from the client; `now` is in seconds.

        What the client does wrong within a frame is answered with a status, and the connection lives on.

        Raises:
            RemoteProtocolError: the stream itself is lost; close the connection.
        """
        events = [self._take(frame, now) for frame in self._reader.feed(data)]
        return [event for event in events if event is not None]

    def _take(self, frame: Frame | OversizeFrame, now: float) -> ServerEvent | None:
        if isinstance(frame, OversizeFrame):
            return self._oversize(frame)
        if frame.type == MessageType.REQUEST:
            return self._request(frame, now)
        if frame.type == MessageType.DATA:
            text = f"stream {frame.stream_id} takes no data; it is no longer active, or was never a stream"
            return self._refuse(frame.stream_id, Code.INVALID_ARGUMENT, text)
        return None  # other types are for versions to come

    def _oversize(self, frame: OversizeFrame) -> CallRefused | None:
        # ttrpc before 1.2.6 sends requests of any length. Go servers discard and answer so too.
        if frame.type not in (MessageType.REQUEST, MessageType.DATA):
            return None
        text = f"request of {frame.length_bytes} bytes is longer than this peer accepts"
        return self._refuse(frame.stream_id, Code.RESOURCE_EXHAUSTED, text)

    def _request(self, frame: Frame, now: float) -> Call | CallRefused:
        stream_id = frame.stream_id
        # An id that breaks the rules names no call of its own; it must not end one that waits.
        if problem := self._stream_id_problem(stream_id):
            return self._answer_by_itself(stream_id, Code.INVALID_ARGUMENT, problem)
        # From here on the id is used up, also if the request is refused.
        self._last_stream_id = stream_id
        if frame.flags:
            return self._refuse(stream_id, Code.UNIMPLEMENTED, "streaming calls are not served here")
        if len(self._open) >= MAX_OPEN_CALLS:
            text = f"{MAX_OPEN_CALLS} calls already wait for an answer"
            return self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, text)
        return self._accept(frame, now)

    def _accept(self, frame: Frame, now: float) -> Call | CallRefused:
        # The frame is whole, so only this request is unreadable, and the connection goes on.
        try:
            request = decode_request(frame.data)
        except RemoteProtocolError as err:
            return self._refuse(frame.stream_id, Code.INVALID_ARGUMENT, str(err))
        self._open.add(frame.stream_id)
        # The wire carries the time left, not a time of day: clocks of two processes need not agree.
        deadline = now + request.timeout_ns / 1e9 if request.timeout_ns else None
        return Call(
            frame.stream_id,
            request.service,
            request.method,
            request.payload,
            deadline,
        )

    def _stream_id_problem(self, stream_id: int) -> str:
        if stream_id % 2 == 0:
            return f"stream id {stream_id} is even; a client's ids are odd"
        if stream_id <= self._last_stream_id:
            return f"stream id {stream_id} is not above {self._last_stream_id}; ids are never used twice"
        return ""

    def is_open(self, stream_id: int) -> bool:
        """Whether the call still waits for its end."""
        return stream_id in self._open

    def reply(self, stream_id: int, payload: bytes = b"") -> RPCStatus | None:
        """Ends a call with success.

        Returns:
            None, or the status that was sent instead because no peer would accept a reply that long.

        Raises:
            LocalProtocolError: no such call waits.
        """
        self._forget(stream_id)
        data = encode_response(ResponseEnvelope(None, payload))
        # Over NRI's multiplexer a Go peer cannot discard an oversize frame: it would drop the connection. An error
        # fails this call only.
        if len(data) > self._max_send:
            text = f"reply of {len(data)} bytes is over the limit of {self._max_send}"
            return self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, text).status
        self._queue(stream_id, MessageType.RESPONSE, data)
        return None

    def fail(self, stream_id: int, status: RPCStatus) -> None:
        """Ends a call of any kind with an error.

        Raises:
            LocalProtocolError: no such call waits, or the status says OK.
        """
        # A status OK reads as success with an empty message: the client would take the failure for an answer.
        if status.code == Code.OK:
            raise LocalProtocolError(f"call {stream_id} cannot fail with status OK; use reply")
        self._forget(stream_id)
        self._send_status(stream_id, status)

    def _forget(self, stream_id: int) -> None:
        if stream_id not in self._open:
            raise LocalProtocolError(f"no call waits on stream {stream_id}; it was answered or never made")
        self._open.remove(stream_id)

    def _refuse(self, stream_id: int, code: Code, text: str) -> CallRefused:
        """Answers for the user and forgets the call, if there was one: a stream has one end."""
        self._open.discard(stream_id)
        return self._answer_by_itself(stream_id, code, text)

    def _answer_by_itself(self, stream_id: int, code: Code, text: str) -> CallRefused:
        status = RPCStatus(code, text)
        self._send_status(stream_id, status)
        return CallRefused(stream_id, status)

    def _send_status(self, stream_id: int, status: RPCStatus) -> None:
        self._queue(stream_id, MessageType.RESPONSE, encode_response(ResponseEnvelope(status)))
