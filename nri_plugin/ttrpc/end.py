"""What both ends of a connection share: a reader, limits, and frames that wait to be sent."""

from nri_plugin.errors import LocalProtocolError
from nri_plugin.ttrpc.frame import Flags, Frame, FrameReader, MessageType


class End:
    """One end of a connection.

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

    def _queue_message(self, stream_id: int, payload: bytes) -> None:
        if len(payload) > self._max_send:
            msg = f"message of {len(payload)} bytes is over the limit of {self._max_send}; send less at once"
            raise LocalProtocolError(msg)
        self._queue(stream_id, MessageType.DATA, payload)

    def _queue_end(self, stream_id: int) -> None:
        self._queue(stream_id, MessageType.DATA, b"", Flags.REMOTE_CLOSED | Flags.NO_DATA)
