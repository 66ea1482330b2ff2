"""The two ends of a ttrpc connection, without I/O and without a clock.

Either end is fed bytes and the time, and says what happened; what it wants to send waits in whole frames.
Stream ids are the client's: odd, growing by two, never used twice. A reply may come in any order.
A connection that carries calls both ways (as NRI's multiplexer does) has one of each end per direction.
"""

from dataclasses import dataclass
from typing import Final

from nri_plugin.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.ttrpc.envelope import (
    Code,
    Request,
    Response,
    Status,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from nri_plugin.ttrpc.frame import (
    MAX_RECEIVE_BYTES,
    MAX_SEND_BYTES,
    Frame,
    FrameReader,
    MessageType,
    OversizeFrame,
)

MAX_OPEN_CALLS: Final = 4096
"""Calls of one peer that may wait for us at the same time; more are answered RESOURCE_EXHAUSTED."""
LAST_STREAM_ID: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Call:
    """A unary request that waits for `reply` or `fail`; `deadline` is in the caller's clock."""

    stream_id: int
    service: str
    method: str
    payload: bytes
    deadline: float | None
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A request the server end answered by itself; said so that it can be logged."""

    stream_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class Reply:
    """How a call of ours ended; `status` None is success."""

    stream_id: int
    status: Status | None
    payload: bytes = b""


class _End:
    """What both ends share: a reader, and frames that wait to be sent. Limits are bytes of data per frame."""

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


class ServerConnection(_End):
    """The end that is called.

    Calls stay known until they are answered, also past their deadline: whether a late answer is still
    worth sending is the user's decision.
    """

    def __init__(self, max_receive: int = MAX_RECEIVE_BYTES, max_send: int = MAX_SEND_BYTES) -> None:
        super().__init__(max_receive, max_send)
        self._last_stream_id = 0
        self._open: dict[int, float | None] = {}

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[Call | Refused]:
        """Takes bytes from the client; `now` is in seconds.

        What the client does wrong within a frame is answered with a status, and the connection lives on.

        Raises:
            RemoteProtocolError: the stream itself is lost; close the connection.
        """
        calls: list[Call | Refused] = []
        for frame in self._reader.feed(data):
            call = self._oversize(frame) if isinstance(frame, OversizeFrame) else self._frame(frame, now)
            if call is not None:
                calls.append(call)
        return calls

    def is_open(self, stream_id: int) -> bool:
        """Whether the call still waits for an answer."""
        return stream_id in self._open

    def reply(self, stream_id: int, payload: bytes = b"") -> Status | None:
        """Answers a call with success.

        Returns:
            None, or the status that was sent instead because no peer would accept a reply that long.

        Raises:
            LocalProtocolError: no such call waits.
        """
        self._forget(stream_id)
        data = encode_response(Response(None, payload))
        if len(data) > self._max_send:
            text = f"reply of {len(data)} bytes is over the limit of {self._max_send}"
            return self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, text).status
        self._out.append(Frame(stream_id, MessageType.RESPONSE, 0, data).encode())
        return None

    def fail(self, stream_id: int, status: Status) -> None:
        """Answers a call with an error.

        Raises:
            LocalProtocolError: no such call waits, or the status says OK.
        """
        if status.code == Code.OK:
            raise LocalProtocolError(f"call {stream_id} cannot fail with status OK; use reply")
        self._forget(stream_id)
        self._send_status(stream_id, status)

    def _forget(self, stream_id: int) -> None:
        if stream_id not in self._open:
            raise LocalProtocolError(f"no call waits on stream {stream_id}; it was answered or never made")
        del self._open[stream_id]

    def _oversize(self, frame: OversizeFrame) -> Refused | None:
        if frame.type != MessageType.REQUEST:
            return None
        text = f"request of {frame.length_bytes} bytes is longer than this peer accepts"
        return self._refuse(frame.stream_id, Code.RESOURCE_EXHAUSTED, text)

    def _frame(self, frame: Frame, now: float) -> Call | Refused | None:
        if frame.type == MessageType.REQUEST:
            return self._request(frame, now)
        if frame.type == MessageType.DATA:
            return self._refuse(
                frame.stream_id, Code.INVALID_ARGUMENT, f"stream {frame.stream_id} takes no data"
            )
        return None  # other types are for versions to come

    def _request(self, frame: Frame, now: float) -> Call | Refused:
        stream_id = frame.stream_id
        if problem := self._stream_id_problem(stream_id):
            return self._refuse(stream_id, Code.INVALID_ARGUMENT, problem)
        self._last_stream_id = stream_id
        if frame.flags:
            return self._refuse(stream_id, Code.UNIMPLEMENTED, "streaming calls are not yet supported")
        if len(self._open) >= MAX_OPEN_CALLS:
            text = f"{MAX_OPEN_CALLS} calls already wait for an answer"
            return self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, text)
        return self._accept(frame, now)

    def _accept(self, frame: Frame, now: float) -> Call | Refused:
        try:
            request = decode_request(frame.data)
        except RemoteProtocolError as err:
            return self._refuse(frame.stream_id, Code.INVALID_ARGUMENT, str(err))
        deadline = now + request.timeout_ns / 1e9 if request.timeout_ns else None
        self._open[frame.stream_id] = deadline
        return Call(
            frame.stream_id, request.service, request.method, request.payload, deadline, request.metadata
        )

    def _stream_id_problem(self, stream_id: int) -> str:
        if stream_id % 2 == 0:
            return f"stream id {stream_id} is even; a client's ids are odd"
        if stream_id <= self._last_stream_id:
            return f"stream id {stream_id} is not above {self._last_stream_id}; ids are never used twice"
        return ""

    def _refuse(self, stream_id: int, code: Code, text: str) -> Refused:
        status = Status(code, text)
        self._send_status(stream_id, status)
        return Refused(stream_id, status)

    def _send_status(self, stream_id: int, status: Status) -> None:
        data = encode_response(Response(status))
        self._out.append(Frame(stream_id, MessageType.RESPONSE, 0, data).encode())


class ClientConnection(_End):
    """The end that calls. A reply to a call that was given up is dropped."""

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
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> int:
        """Queues a request; `timeout` is in seconds from `now`.

        Returns:
            The stream id that the `Reply` will carry.

        Raises:
            LocalProtocolError: the request is too long (its stream id is used up), or stream ids have run out.
        """
        if self._next_stream_id > LAST_STREAM_ID:
            raise LocalProtocolError("all stream ids of this connection are used up; open a new one")
        timeout_ns = 0 if timeout is None else max(1, int(timeout * 1e9))
        data = encode_request(Request(service, method, payload, timeout_ns, metadata))
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        if len(data) > self._max_send:
            msg = f"{method} request of {len(data)} bytes is over the limit of {self._max_send}; send less at once"
            raise LocalProtocolError(msg)
        self._out.append(Frame(stream_id, MessageType.REQUEST, 0, data).encode())
        self._waiting[stream_id] = None if timeout is None else now + timeout
        return stream_id

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Reply]:
        """Takes bytes from the server.

        Raises:
            RemoteProtocolError: the stream itself is lost; close the connection.
        """
        replies = []
        for frame in self._reader.feed(data):
            if frame.type == MessageType.RESPONSE and frame.stream_id in self._waiting:
                del self._waiting[frame.stream_id]
                replies.append(self._reply(frame))
        return replies

    def cancel(self, stream_id: int) -> None:
        """Gives a call up; ttrpc has no way to tell the server."""
        self._waiting.pop(stream_id, None)

    def next_deadline(self) -> float | None:
        """Returns when `expire` has something to do, None = never."""
        return min((at for at in self._waiting.values() if at is not None), default=None)

    def expire(self, now: float) -> list[Reply]:
        """Ends the calls whose time is over."""
        late = [stream_id for stream_id, at in self._waiting.items() if at is not None and at <= now]
        return [self._give_up(stream_id, Code.DEADLINE_EXCEEDED, "no answer in time") for stream_id in late]

    def close(self) -> list[Reply]:
        """Ends every call that waits: the connection is gone."""
        return [
            self._give_up(stream_id, Code.UNAVAILABLE, "connection closed")
            for stream_id in list(self._waiting)
        ]

    def _give_up(self, stream_id: int, code: Code, text: str) -> Reply:
        del self._waiting[stream_id]
        return Reply(stream_id, Status(code, text))

    def _reply(self, frame: Frame | OversizeFrame) -> Reply:
        if isinstance(frame, OversizeFrame):
            text = f"reply of {frame.length_bytes} bytes is longer than we accept"
            return Reply(frame.stream_id, Status(Code.RESOURCE_EXHAUSTED, text))
        try:
            response = decode_response(frame.data)
        except RemoteProtocolError as err:
            return Reply(frame.stream_id, Status(Code.INTERNAL, str(err)))
        return Reply(frame.stream_id, response.status, response.payload)
