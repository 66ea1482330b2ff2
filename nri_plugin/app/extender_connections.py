"""Who may be connected to the extender: whoever only waits makes room for who comes, so that nobody locks others out."""

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field

Peer = tuple[str, int]
"""Address and port: no two open connections have the same."""


@dataclass(slots=True)
class Connections:
    """The open connections, never more than there is room for.

    A connection waits while its question has not arrived whole. Where there is no room, the one that has waited longest
    is hung up on; what is being answered never is.

    Attributes:
        most: open at once.
        most_of_one: of one address.
    """

    most: int
    most_of_one: int
    _handles: dict[Peer, socket.socket] = field(default_factory=dict)
    _waiting: dict[Peer, None] = field(default_factory=dict)  # longest first
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, connection: socket.socket, peer: Peer) -> bool:
        """Let it in, at another's cost if need be; False where all others are being answered."""
        with self._lock:
            own = [other for other in self._handles if other[0] == peer[0]]
            if len(own) >= self.most_of_one and not self._hang_up(
                [one for one in self._waiting if one in own]
            ):
                return False
            if len(self._handles) >= self.most and not self._hang_up(list(self._waiting)):
                return False
            self._handles[peer] = connection.dup()  # of our own: TLS takes the other over
            self._waiting[peer] = None
            return True

    def answering(self, peer: Peer) -> None:
        """Its question is here; it stays until it is answered."""
        with self._lock:
            self._waiting.pop(peer, None)

    def waiting(self, peer: Peer) -> None:
        """It has been answered."""
        with self._lock:
            if peer in self._handles:
                self._waiting.pop(peer, None)
                self._waiting[peer] = None

    def left(self, peer: Peer) -> None:
        """It is over."""
        with self._lock:
            self._forget(peer)

    def _hang_up(self, candidates: list[Peer]) -> bool:
        if not candidates:
            return False
        with suppress(OSError):  # it has gone by itself
            self._handles[candidates[0]].shutdown(socket.SHUT_RDWR)
        self._forget(candidates[0])
        return True

    def _forget(self, peer: Peer) -> None:
        self._waiting.pop(peer, None)
        handle = self._handles.pop(peer, None)
        if handle is not None:
            handle.close()
