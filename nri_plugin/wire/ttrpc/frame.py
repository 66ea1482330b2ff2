"""ttrpc frames and the envelopes in them: bytes to values and back, without I/O.

A frame is ten bytes of header and then data:

    offset  size  field
    0       4     data length, big endian
    4       4     stream id, big endian
    8       1     message type: 1 request, 2 response, 3 data
    9       1     flags: 0x01 sender is done, 0x02 sender will send more, 0x04 no message
    10      n     data

The data of a request frame is a `Request` message: service, method, payload, time left, metadata. The data of a
response frame is a `Response` message: a status or a payload. The data of a data frame is one message of a stream.

Invariant: a reader holds at most one unfinished frame of `max_data` bytes plus the bytes of one call to `feed`. It
skips a longer frame as the bytes arrive and reports it. It refuses a length that no peer can mean.

Source: containerd/ttrpc PROTOCOL.md and channel.go, v1.2.9.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.ttrpc._pb import ttrpc_pb2 as pb

HEADER: Final = struct.Struct(">IIBB")
HEADER_BYTES: Final = HEADER.size
MAX_SEND_BYTES: Final = 4 << 20
"""Most data a frame may carry; the limit every ttrpc release enforces on receipt."""
MAX_RECEIVE_BYTES: Final = 16 << 20
"""Most data of a frame that is accepted: ttrpc before 1.2.6 does not check before sending."""
MAX_SKIP_BYTES: Final = 64 << 20
"""Above this a length is taken for garbage, not for a frame to be skipped."""


class MessageType(IntEnum):
    """Type of a frame; receivers ignore other values."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame. `type` and `flags` are plain numbers: peers may send ones we do not know."""

    stream_id: int
    type: int
    flags: int = 0
    data: bytes = b""

    def encode(self) -> bytes:
        """Returns the bytes for the wire; the connection has checked the length."""
        return HEADER.pack(len(self.data), self.stream_id, self.type, self.flags) + self.data


@dataclass(frozen=True, slots=True)
class OversizeFrame:
    """A frame that was too long to keep; its data has been or is being skipped."""

    stream_id: int
    type: int
    length_bytes: int


class FrameReader:
    """Cuts a byte stream into frames, however the bytes arrive."""

    def __init__(self, max_data: int = MAX_RECEIVE_BYTES, max_skip: int = MAX_SKIP_BYTES) -> None:
        self._max_data = max_data
        self._max_skip = max(max_skip, max_data)
        self._buffer = bytearray()
        self._skip = 0
        self.frames_read = 0

    @property
    def is_incomplete(self) -> bool:
        """Whether the stream stands in the middle of a frame."""
        return bool(self._buffer) or self._skip > 0

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame | OversizeFrame]:
        """Takes the next bytes of the stream and returns the frames they complete.

        Raises:
            RemoteProtocolError: a length that cannot be meant; the stream is lost.
        """
        self._buffer += data
        frames: list[Frame | OversizeFrame] = []
        while (frame := self._next_frame()) is not None:
            frames.append(frame)
        self.frames_read += len(frames)
        return frames

    def _next_frame(self) -> Frame | OversizeFrame | None:
        # The rest of an oversize frame comes first; nothing behind it can be read before it has passed.
        if self._skip:
            self._drop_skipped()
        # A header may arrive in pieces: the NRI multiplexer and the Go peer's buffer cut the stream anywhere.
        if len(self._buffer) < HEADER_BYTES:
            return None
        length, stream_id, message_type, flags = HEADER.unpack_from(self._buffer)
        # Decide by the length alone, before the data has arrived: a bounded reader must not wait for 4 GiB.
        if length > self._max_data:
            return self._begin_skip(length, stream_id, message_type)
        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        # One copy out of the buffer. The view is released before the buffer shrinks, which bytearray requires.
        with memoryview(self._buffer) as view:
            data = bytes(view[HEADER_BYTES:end])
        del self._buffer[:end]
        return Frame(stream_id, message_type, flags, data)

    def _begin_skip(self, length: int, stream_id: int, message_type: int) -> OversizeFrame:
        # An absurd length means that the stream is out of step: skipping it would swallow whole frames.
        if length > self._max_skip:
            msg = f"peer announced a frame of {length} bytes, at most {self._max_data} are accepted; the stream is lost"
            raise RemoteProtocolError(msg)
        # The header is still in the buffer, so it counts among the bytes to skip. The frame is reported at once:
        # its sender may wait for an answer to it before it sends anything else.
        self._skip = HEADER_BYTES + length
        self._drop_skipped()
        return OversizeFrame(stream_id, message_type, length)

    def _drop_skipped(self) -> None:
        dropped = min(self._skip, len(self._buffer))
        del self._buffer[:dropped]
        self._skip -= dropped


# Envelopes


MAX_STATUS_TEXT: Final = 64 << 10
"""Longest status message in characters: an error must always be small enough to be sent."""


class Code(IntEnum):
    """Status codes, the same numbers as in gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Detail:
    """A google.protobuf.Any: a message we carry and do not read."""

    type_url: str
    value: bytes


@dataclass(frozen=True, slots=True)
class RPCStatus:
    """Why a call failed. `code` is a plain number: peers may send ones `Code` does not name."""

    code: int
    message: str = ""
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestEnvelope:
    """A call. `timeout_ns` is the rest of the caller's time when it sent, 0 = no limit."""

    service: str
    method: str
    payload: bytes = b""
    timeout_ns: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseEnvelope:
    """The end of a call: a payload, or a status that is not OK and no payload."""

    status: RPCStatus | None = None
    payload: bytes = b""


def encode_request(request: RequestEnvelope) -> bytes:
    """Returns the data of a request frame.

    Raises:
        LocalProtocolError: a name or metadata is no valid text.
    """
    try:
        return pb.Request(
            service=request.service,
            method=request.method,
            payload=request.payload,
            timeout_nano=request.timeout_ns,
            metadata=[pb.KeyValue(key=key, value=value) for key, value in request.metadata],
        ).SerializeToString()
    except (UnicodeEncodeError, ValueError) as err:
        raise LocalProtocolError(f"request {request.method} cannot be encoded: {err}") from err


def decode_request(data: bytes) -> RequestEnvelope:
    """Reads the data of a request frame.

    Raises:
        RemoteProtocolError: it is no Request message.
    """
    try:
        message = pb.Request.FromString(data)
    except DecodeError as err:
        raise _undecodable("request", data, err) from err
    metadata = tuple((entry.key, entry.value) for entry in message.metadata) if message.metadata else ()
    return RequestEnvelope(message.service, message.method, message.payload, message.timeout_nano, metadata)


def encode_response(response: ResponseEnvelope) -> bytes:
    """Returns the data of a response frame; success with an empty message is no bytes at all."""
    status = response.status
    if status is None or status.code == Code.OK:
        return pb.Response(payload=response.payload).SerializeToString()
    # Invalid text in a status must not make the status itself unsendable, nor may its length.
    details = [{"type_url": detail.type_url, "value": detail.value} for detail in status.details]
    text = status.message[:MAX_STATUS_TEXT].encode("utf-8", "replace").decode()
    wire = pb.Status(code=status.code, message=text, details=details)
    return pb.Response(status=wire).SerializeToString()


def decode_response(data: bytes) -> ResponseEnvelope:
    """Reads the data of a response frame; an absent status and code 0 are both success.

    Raises:
        RemoteProtocolError: it is no Response message.
    """
    try:
        message = pb.Response.FromString(data)
    except DecodeError as err:
        raise _undecodable("response", data, err) from err
    # Go sends no status for success, other peers may send one with code 0: both have a payload. With an error Go throws
    # the payload away, so an error never comes with a result.
    wire = message.status
    if not wire.code:
        return ResponseEnvelope(None, message.payload)
    details = tuple(Detail(any_.type_url, any_.value) for any_ in wire.details)
    return ResponseEnvelope(RPCStatus(wire.code, wire.message, details), message.payload)


def _undecodable(what: str, data: bytes, err: DecodeError) -> RemoteProtocolError:
    return RemoteProtocolError(f"{what} of {len(data)} bytes cannot be decoded: {err}")
