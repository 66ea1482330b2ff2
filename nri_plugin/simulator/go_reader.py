"""How the runtimes' Go library reads the trunk, including where it fails.

Its ttrpc reads each connection through a 4096-byte buffer, and a read never takes part of a mux frame: one
that does not fit the piece being read fails with ENOMEM and ends the whole connection.
"""

from collections import deque
from collections.abc import Generator
from typing import Final

from nri_plugin.errors import RemoteProtocolError
from nri_plugin.nri.mux import HEADER as MUX_HEADER
from nri_plugin.nri.mux import PLUGIN_CONNECTION, RUNTIME_CONNECTION
from nri_plugin.ttrpc.frame import HEADER, HEADER_BYTES, MAX_SEND_BYTES

BUFFER_BYTES: Final = 4096
QUEUE_FRAMES: Final = 256
MAX_MUX_FRAME_BYTES: Final = 64 << 20
"""Our own bound: the Go reader allocates whatever a header says."""

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

        Differs: the real queue is emptied by another thread, so whether 257 frames overflow it is a race; here
        they always do when they belong to one ttrpc frame.
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
