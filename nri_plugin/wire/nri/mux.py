"""NRI's multiplexer: two ttrpc connections on one socket, the trunk. No I/O.

A mux frame is `connection id (4) | length (4) | payload`, big endian. The payloads of one id, joined, are the byte
stream of that connection. Boundaries of mux frames carry no meaning for the protocol, but they do for Go peers:

* A Go peer reads a connection through a 4096-byte buffer. It gives up the whole trunk (ENOMEM) if a mux frame is
  longer than the slice it reads into. It reads the first 4096 bytes of a ttrpc frame into the buffer and all of the
  rest into a slice of exactly the missing size.
* A Go peer queues at most 256 unread mux frames for each connection. The 257th closes the trunk.

So each ttrpc frame is sent as one mux frame with its first 4096 bytes, and a second one with all of the rest.

There is no handshake: both sides assume that ids 1 and 2 exist, and closing the socket closes both connections.

Source: containerd/nri pkg/net/multiplex, v0.12.2; sizes measured with NRI 0.6.1 and 0.12.2.
"""

import struct
from typing import Final

from nri_plugin.model.errors import RemoteProtocolError

HEADER: Final = struct.Struct(">II")
HEADER_BYTES: Final = HEADER.size
PLUGIN_CONNECTION: Final = 1
"""The runtime calls the plugin."""
RUNTIME_CONNECTION: Final = 2
"""The plugin calls the runtime."""
FIRST_PART_BYTES: Final = 4096
"""Size of the Go peers' read buffer."""
MAX_PAYLOAD_BYTES: Final = 16 << 20
"""Longest mux frame any release can write (NRI up to 0.6; later ones 4 MiB + 10)."""


def mux_frames(connection_id: int, frame: bytes) -> list[bytes]:
    """Wraps one ttrpc frame so that every known peer can read it: one mux frame, or two."""
    # A reply of 6000 bytes as one mux frame makes every release drop the plugin, and the container starts unpinned.
    # Parts of two ttrpc frames never share a mux frame: the peer's buffer is empty at the start of each ttrpc frame,
    # and only then does the first part fit.
    first, rest = frame[:FIRST_PART_BYTES], frame[FIRST_PART_BYTES:]
    parts = [HEADER.pack(connection_id, len(first)) + first]
    if rest:
        parts.append(HEADER.pack(connection_id, len(rest)) + rest)
    return parts


class MuxReader:
    """Splits the trunk by connection; holds at most one unfinished header.

    Payload is passed on as it arrives, so a long mux frame costs no memory here.
    """

    def __init__(self, max_payload: int = MAX_PAYLOAD_BYTES) -> None:
        self._max_payload = max_payload
        self._header = bytearray()
        self._connection_id = 0
        self._left = 0

    @property
    def is_incomplete(self) -> bool:
        """Whether the trunk stands in the middle of a mux frame."""
        return self._left > 0 or bool(self._header)

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[int, memoryview]]:
        """Takes the next bytes of the trunk and returns (connection id, bytes) in their order.

        The views are valid as long as `data` is not changed.

        Raises:
            RemoteProtocolError: a length no release can have written; the trunk is lost.
        """
        pieces: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        while view:
            # Between mux frames: a header is next. It may arrive in pieces, since Go writes it apart from the payload.
            if not self._left:
                view = self._take_header(view)
                continue
            # Inside a mux frame: pass on what is here, without waiting for the rest. Frames of unknown ids are passed
            # on too; the session drops them, as Go does.
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            pieces.append((self._connection_id, part))
        return pieces

    def _take_header(self, view: memoryview) -> memoryview:
        # Mostly it is whole.
        if not self._header and len(view) >= HEADER_BYTES:
            self._connection_id, self._left = HEADER.unpack_from(view)
            self._check_length()
            return view[HEADER_BYTES:]
        missing = HEADER_BYTES - len(self._header)
        self._header += view[:missing]
        if len(self._header) == HEADER_BYTES:
            self._connection_id, self._left = HEADER.unpack(self._header)
            self._header.clear()
            self._check_length()
        return view[missing:]

    def _check_length(self) -> None:
        # The trunk cannot be resynchronized: after a wrong length there is no telling where a header begins.
        if self._left > self._max_payload:
            msg = (
                f"peer announced a mux frame of {self._left} bytes, at most {self._max_payload} can be meant"
            )
            raise RemoteProtocolError(msg)
