"""The end that is called."""

from dataclasses import dataclass
from typing import Final

from nri_plugin.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.ttrpc.end import End
from nri_plugin.ttrpc.envelope import Code, Response, Status, decode_request, encode_response
from nri_plugin.ttrpc.frame import MAX_RECEIVE_BYTES, MAX_SEND_BYTES, Flags, Frame, MessageType, OversizeFrame
from nri_plugin.ttrpc.happenings import Call, Refused, ServerHappening, StreamEnd, StreamMessage

MAX_OPEN_CALLS: Final = 4096
"""Calls of one peer that may wait for us at the same time; more are answered RESOURCE_EXHAUSTED."""


@dataclass(slots=True)
class _Open:
    """A call that has not ended."""

    is_streaming: bool
    may_receive: bool


class ServerConnection(End):
    """The end that is called.

    Calls stay known until they are answered, also past their deadline: whether a late answer is still
    worth sending is the user's decision.

    Args:
        max_receive: most bytes of data a request may have.
        max_send: most bytes of data a reply may have.
        allows_streams: take streaming calls; else they are answered UNIMPLEMENTED.
    """

    def __init__(
        self,
        max_receive: int = MAX_RECEIVE_BYTES,
        max_send: int = MAX_SEND_BYTES,
        *,
        allows_streams: bool = False,
    ) -> None:
        super().__init__(max_receive, max_send)
        self._allows_streams = allows_streams
        self._last_stream_id = 0
        self._open: dict[int, _Open] = {}

    # ----------------------------------------------------------------- receive

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[ServerHappening]:
        """Takes bytes from the client; `now` is in seconds.

        What the client does wrong within a frame is answered with a status, and the connection lives on.

        Raises:
            RemoteProtocolError: the stream itself is lost; close the connection.
        """
        happenings = [self._take(frame, now) for frame in self._reader.feed(data)]
        return [happening for happening in happenings if happening is not None]

    def _take(self, frame: Frame | OversizeFrame, now: float) -> ServerHappening | None:
        if isinstance(frame, OversizeFrame):
            return self._oversize(frame)
        if frame.type == MessageType.REQUEST:
            return self._request(frame, now)
        if frame.type == MessageType.DATA:
            return self._data(frame)
        return None  # other types are for versions to come

    def _oversize(self, frame: OversizeFrame) -> Refused | None:
        if frame.type not in (MessageType.REQUEST, MessageType.DATA):
            return None
        text = f"request of {frame.length_bytes} bytes is longer than this peer accepts"
        return self._refuse(frame.stream_id, Code.RESOURCE_EXHAUSTED, text)

    def _request(self, frame: Frame, now: float) -> Call | Refused:
        stream_id = frame.stream_id
        if problem := self._stream_id_problem(stream_id):
            return self._answer_by_itself(stream_id, Code.INVALID_ARGUMENT, problem)
        self._last_stream_id = stream_id
        if frame.flags and not self._allows_streams:
            return self._refuse(stream_id, Code.UNIMPLEMENTED, "streaming calls are not served here")
        if len(self._open) >= MAX_OPEN_CALLS:
            text = f"{MAX_OPEN_CALLS} calls already wait for an answer"
            return self._refuse(stream_id, Code.RESOURCE_EXHAUSTED, text)
        return self._accept(frame, now)

    def _accept(self, frame: Frame, now: float) -> Call | Refused:
        try:
            request = decode_request(frame.data)
        except RemoteProtocolError as err:
            return self._refuse(frame.stream_id, Code.INVALID_ARGUMENT, str(err))
        has_more = bool(frame.flags & Flags.REMOTE_OPEN)
        is_streaming = bool(frame.flags & (Flags.REMOTE_OPEN | Flags.REMOTE_CLOSED))
        self._open[frame.stream_id] = _Open(is_streaming, has_more)
        deadline = now + request.timeout_ns / 1e9 if request.timeout_ns else None
        return Call(
            frame.stream_id,
            request.service,
            request.method,
            request.payload,
            deadline,
            request.metadata,
            is_streaming,
            has_more,
        )

    def _stream_id_problem(self, stream_id: int) -> str:
        if stream_id % 2 == 0:
            return f"stream id {stream_id} is even; a client's ids are odd"
        if stream_id <= self._last_stream_id:
            return f"stream id {stream_id} is not above {self._last_stream_id}; ids are never used twice"
        return ""

    def _data(self, frame: Frame) -> ServerHappening | None:
        """Takes one message of a stream, or its end; the two never come in one frame from a client."""
        stream = self._open.get(frame.stream_id)
        if stream is None or not stream.may_receive:
            text = f"stream {frame.stream_id} takes no data; it is no longer active, or was never a stream"
            return self._refuse(frame.stream_id, Code.INVALID_ARGUMENT, text)
        has_message = not frame.flags & Flags.NO_DATA
        if not frame.flags & Flags.REMOTE_CLOSED:
            return StreamMessage(frame.stream_id, frame.data) if has_message else None
        if has_message or frame.data:
            text = f"stream {frame.stream_id} ended with data; the end of a client's messages carries none"
            return self._refuse(frame.stream_id, Code.INVALID_ARGUMENT, text)
        stream.may_receive = False
        return StreamEnd(frame.stream_id)

    # ------------------------------------------------------------------ answer

    def is_open(self, stream_id: int) -> bool:
        """Whether the call still waits for its end."""
        return stream_id in self._open

    def reply(self, stream_id: int, payload: bytes = b"") -> Status | None:
        """Ends a call with success: a plain call, or one whose client alone sent messages.

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
        self._queue(stream_id, MessageType.RESPONSE, data)
        return None

    def fail(self, stream_id: int, status: Status) -> None:
        """Ends a call of any kind with an error.

        Raises:
            LocalProtocolError: no such call waits, or the status says OK.
        """
        if status.code == Code.OK:
            raise LocalProtocolError(f"call {stream_id} cannot fail with status OK; use reply")
        self._forget(stream_id)
        self._send_status(stream_id, status)

    def send(self, stream_id: int, payload: bytes) -> None:
        """Sends one message of a stream.

        Raises:
            LocalProtocolError: no such stream is open, or no peer would accept a message that long.
        """
        self._check_stream(stream_id)
        self._queue_message(stream_id, payload)

    def end(self, stream_id: int) -> None:
        """Ends a stream of our messages with success.

        Raises:
            LocalProtocolError: no such stream is open.
        """
        self._check_stream(stream_id)
        self._forget(stream_id)
        self._queue_end(stream_id)

    def _check_stream(self, stream_id: int) -> None:
        stream = self._open.get(stream_id)
        if stream is None or not stream.is_streaming:
            raise LocalProtocolError(
                f"stream {stream_id} is not open for messages; a plain call takes one reply"
            )

    def _forget(self, stream_id: int) -> None:
        if stream_id not in self._open:
            raise LocalProtocolError(f"no call waits on stream {stream_id}; it was answered or never made")
        del self._open[stream_id]

    def _refuse(self, stream_id: int, code: Code, text: str) -> Refused:
        """Answers for the user and forgets the call, if there was one: a stream has one end."""
        self._open.pop(stream_id, None)
        return self._answer_by_itself(stream_id, code, text)

    def _answer_by_itself(self, stream_id: int, code: Code, text: str) -> Refused:
        status = Status(code, text)
        self._send_status(stream_id, status)
        return Refused(stream_id, status)

    def _send_status(self, stream_id: int, status: Status) -> None:
        self._queue(stream_id, MessageType.RESPONSE, encode_response(Response(status)))
