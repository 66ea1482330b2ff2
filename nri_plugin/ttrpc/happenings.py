"""What the two ends of a connection report."""

from dataclasses import dataclass
from typing import TypeAlias

from nri_plugin.ttrpc.envelope import Status


@dataclass(frozen=True, slots=True)
class Call:
    """A request that waits for an end.

    Attributes:
        stream_id: names the call on its connection.
        service: as the client wrote it.
        method: as the client wrote it.
        payload: the argument; of a stream the first message, where b"" is none.
        deadline: in the caller's clock, None = none.
        metadata: pairs; a key may come several times.
        is_streaming: the client expects, or will send, messages of their own.
        has_more: the client will send messages.
    """

    stream_id: int
    service: str
    method: str
    payload: bytes
    deadline: float | None
    metadata: tuple[tuple[str, str], ...] = ()
    is_streaming: bool = False
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A request or message the server end answered by itself; said so that it can be logged."""

    stream_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class Reply:
    """How a call of ours ended; `status` None is success."""

    stream_id: int
    status: Status | None
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message of a stream; it may be empty."""

    stream_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The peer sends nothing more on this stream; for a client the call ended well with it."""

    stream_id: int


ServerHappening: TypeAlias = Call | Refused | StreamMessage | StreamEnd
ClientHappening: TypeAlias = Reply | StreamMessage | StreamEnd
