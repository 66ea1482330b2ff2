"""The end that calls."""

from dataclasses import dataclass
from typing import Final

from nri_plugin.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.ttrpc.end import End
from nri_plugin.ttrpc.envelope import Code, Request, Status, decode_response, encode_request
from nri_plugin.ttrpc.frame import MAX_RECEIVE_BYTES, MAX_SEND_BYTES, Flags, Frame, MessageType, OversizeFrame
from nri_plugin.ttrpc.happenings import ClientHappening, Reply, StreamEnd, StreamMessage

LAST_STREAM_ID: Final = 0xFFFFFFFF
LONGEST_TIMEOUT_NS: Final = 1e18
"""About 32 years, which fits the field."""


@dataclass(slots=True)
class _Waiting:
    """A call of ours that has not ended."""

    deadline: float | None
    is_streaming: bool = False
    may_send: bool = False


class ClientConnection(End):
    """The end that calls. What comes for a call that was given up is dropped.

    Args:
        max_receive: most bytes of data a reply may have.
        max_send: most bytes of data a request may have.
    """

    def __init__(self, max_receive: int = MAX_RECEIVE_BYTES, max_send: int = MAX_SEND_BYTES) -> None:
        super().__init__(max_receive, max_send)
        self._next_stream_id = 1
        self._waiting: dict[int, _Waiting] = {}

    # -------------------------------------------------------------------- call

    def call(
        self,
        service: str,
        method: str,
        payload: bytes,
        now: float,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> int:
        """Queues a plain call; `timeout` is in seconds from `now`.

        Returns:
            The stream id that the `Reply` will carry.

        Raises:
            LocalProtocolError: the request is too long (its stream id is used up), or stream ids have run out.
        """
        return self._begin(
            Request(service, method, payload, _nanoseconds(timeout), metadata), now, timeout, 0
        )

    def open_stream(
        self,
        service: str,
        method: str,
        payload: bytes,
        now: float,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
        *,
        sends: bool = True,
    ) -> int:
        """Queues a streaming call.

        Args:
            service: as for `call`.
            method: as for `call`.
            payload: the first message; b"" is none if more are to come.
            now: in seconds.
            timeout: as for `call`.
            metadata: as for `call`.
            sends: whether we send messages; else only the server does.

        Returns:
            The stream id. The call ends with a `Reply`, or with a `StreamEnd`.

        Raises:
            LocalProtocolError: as for `call`.
        """
        request = Request(service, method, payload, _nanoseconds(timeout), metadata)
        return self._begin(request, now, timeout, Flags.REMOTE_OPEN if sends else Flags.REMOTE_CLOSED)

    def send(self, stream_id: int, payload: bytes) -> None:
        """Sends one message of a stream.

        Raises:
            LocalProtocolError: the stream is not ours to write, or no peer accepts a message that long.
        """
        self._check_may_send(stream_id)
        self._queue_message(stream_id, payload)

    def end(self, stream_id: int) -> None:
        """Says that we send nothing more on this stream; the call goes on until the server ends it.

        Raises:
            LocalProtocolError: the stream is not ours to write.
        """
        self._check_may_send(stream_id)
        self._waiting[stream_id].may_send = False
        self._queue_end(stream_id)

    def cancel(self, stream_id: int) -> None:
        """Gives a call up; ttrpc has no way to tell the server."""
        self._waiting.pop(stream_id, None)

    def _begin(self, request: Request, now: float, timeout: float | None, flags: int) -> int:
        if self._next_stream_id > LAST_STREAM_ID:
            raise LocalProtocolError("all stream ids of this connection are used up; open a new one")
        data = encode_request(request)
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        if len(data) > self._max_send:
            msg = f"{request.method} request of {len(data)} bytes is over the limit of {self._max_send}"
            raise LocalProtocolError(f"{msg}; send less at once")
        self._queue(stream_id, MessageType.REQUEST, data, flags)
        deadline = None if timeout is None else now + timeout
        self._waiting[stream_id] = _Waiting(deadline, flags != 0, flags == Flags.REMOTE_OPEN)
        return stream_id

    def _check_may_send(self, stream_id: int) -> None:
        waiting = self._waiting.get(stream_id)
        if waiting is None or not waiting.may_send:
            raise LocalProtocolError(f"stream {stream_id} is not open for our messages")

    # ----------------------------------------------------------------- receive

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[ClientHappening]:
        """Takes bytes from the server.

        Raises:
            RemoteProtocolError: the stream itself is lost; close the connection.
        """
        happenings: list[ClientHappening] = []
        for frame in self._reader.feed(data):
            waiting = self._waiting.get(frame.stream_id)
            if waiting is None:
                continue
            if frame.type == MessageType.RESPONSE:
                happenings.append(self._reply(frame))
            elif frame.type == MessageType.DATA and waiting.is_streaming:
                happenings += self._data(frame)
        return happenings

    def _reply(self, frame: Frame | OversizeFrame) -> Reply:
        del self._waiting[frame.stream_id]
        if isinstance(frame, OversizeFrame):
            text = f"reply of {frame.length_bytes} bytes is longer than we accept"
            return Reply(frame.stream_id, Status(Code.RESOURCE_EXHAUSTED, text))
        try:
            response = decode_response(frame.data)
        except RemoteProtocolError as err:
            return Reply(frame.stream_id, Status(Code.INTERNAL, str(err)))
        return Reply(frame.stream_id, response.status, response.payload)

    def _data(self, frame: Frame | OversizeFrame) -> list[ClientHappening]:
        """Takes a message of the server, its end, or both in one frame."""
        if isinstance(frame, OversizeFrame):
            return [self._reply(frame)]
        happenings: list[ClientHappening] = []
        if not frame.flags & Flags.NO_DATA:
            happenings.append(StreamMessage(frame.stream_id, frame.data))
        if frame.flags & Flags.REMOTE_CLOSED:
            del self._waiting[frame.stream_id]
            happenings.append(StreamEnd(frame.stream_id))
        return happenings

    # -------------------------------------------------------------------- time

    def next_deadline(self) -> float | None:
        """Returns when `expire` has something to do, None = never."""
        deadlines = [waiting.deadline for waiting in self._waiting.values() if waiting.deadline is not None]
        return min(deadlines, default=None)

    def expire(self, now: float) -> list[Reply]:
        """Ends the calls whose time is over."""
        late = [
            stream_id
            for stream_id, waiting in self._waiting.items()
            if waiting.deadline is not None and waiting.deadline <= now
        ]
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


def _nanoseconds(timeout: float | None) -> int:
    """Returns a timeout for the wire, where 0 is no limit: one that is over is the shortest there is."""
    return 0 if timeout is None else int(min(max(1.0, timeout * 1e9), LONGEST_TIMEOUT_NS))
