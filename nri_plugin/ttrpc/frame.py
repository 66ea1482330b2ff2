"""ttrpc frames: ten bytes of header, then data. No I/O.

    offset  size  field
    0       4     data length, big endian
    4       4     stream id, big endian
    8       1     message type: 1 request, 2 response, 3 data
    9       1     flags: 0x01 sender is done, 0x02 sender will send more, 0x04 no message
    10      n     data

A reader never holds more than one unfinished frame of at most `max_data` bytes plus what it was just fed;
a longer frame is skipped as it arrives and reported, one that cannot be meant is refused.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from nri_plugin.errors import RemoteProtocolError

HEADER: Final = struct.Struct(">IIBB")
HEADER_BYTES: Final = HEADER.size
MAX_SEND_BYTES: Final = 4 << 20
"""Most data a frame may carry; the limit every ttrpc release enforces on receipt."""
MAX_RECEIVE_BYTES: Final = 16 << 20
"""What we accept: ttrpc before 1.2.6 does not check before sending."""
MAX_SKIP_BYTES: Final = 64 << 20
"""Above this a length is taken for garbage, not for a frame to be skipped."""


class MessageType(IntEnum):
    """What a frame's data is; other values are ignored by receivers."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Flags(IntFlag):
    """Only streaming calls set any; a unary call's frames carry 0."""

    REMOTE_CLOSED = 0x01
    REMOTE_OPEN = 0x02
    NO_DATA = 0x04


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
        self._drop_skipped()
        if len(self._buffer) < HEADER_BYTES:
            return None
        length, stream_id, message_type, flags = HEADER.unpack_from(self._buffer)
        if length > self._max_data:
            return self._begin_skip(length, stream_id, message_type)
        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            data = bytes(view[HEADER_BYTES:end])
        del self._buffer[:end]
        return Frame(stream_id, message_type, flags, data)

    def _begin_skip(self, length: int, stream_id: int, message_type: int) -> OversizeFrame:
        if length > self._max_skip:
            msg = f"peer announced a frame of {length} bytes, at most {self._max_data} are accepted; the stream is lost"
            raise RemoteProtocolError(msg)
        self._skip = HEADER_BYTES + length
        self._drop_skipped()
        return OversizeFrame(stream_id, message_type, length)

    def _drop_skipped(self) -> None:
        if self._skip:
            dropped = min(self._skip, len(self._buffer))
            del self._buffer[:dropped]
            self._skip -= dropped
