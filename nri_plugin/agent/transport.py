"""The socket to the runtime: opened or taken over, read and written without waiting, and the pauses between tries."""

import random
import socket
from collections.abc import Callable

from nri_plugin.model.errors import HostError, RemoteProtocolError

READ_BYTES = 64 << 10
"""One read; a socket buffer holds about 200 kB, and a first allocation of more costs longer than a second read."""

MAX_UNSENT_BYTES = 16 << 20
"""Answers a peer may leave unread; four of the largest there can be (`RemoteProtocolError` beyond)."""

CONNECT_S = 2.0
"""A connection to a socket of this machine is made at once or stands behind a queue that does not move."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class RuntimeAbsentError(HostError):
    """No process listens at the runtime's socket: the runtime is down, or the path is wrong."""


def connect(path: str) -> socket.socket:
    """A fresh connection to the runtime.

    Raises:
        RuntimeAbsentError: there is no socket, or no process listens there.
        HostError: it may not be opened.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(CONNECT_S)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        sock.close()
        detail = f"{words(error)}; is the container runtime running, with NRI enabled"
        raise RuntimeAbsentError(path, detail) from None
    except OSError as error:
        sock.close()
        raise HostError(path, words(error)) from None
    return sock


def adopt(descriptor: int) -> socket.socket:
    """The connection the runtime opened before it started us, closed in programs we start.

    Raises:
        HostError: the descriptor is not an open socket.
    """
    try:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
    except OSError as error:
        detail = f"not the socket the runtime promised: {words(error)}"
        raise HostError(f"file descriptor {descriptor}", detail) from None
    return sock


def words(error: OSError) -> str:
    """What went wrong, in lower case."""
    return (error.strerror or str(error)).lower()


class Transport:
    """A non-blocking socket with a bounded queue of what could not be sent yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._unsent = bytearray()
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)

    @property
    def has_unsent(self) -> bool:
        """Whether something waits until the socket is writable."""
        return bool(self._unsent)

    def receive(self) -> bytes | None:
        """What has arrived: empty when nothing has, None when the peer closed or reset the connection."""
        try:
            count = self.sock.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            return None
        return bytes(self._view[:count]) if count else None

    def send(self, data: bytes) -> None:
        """Send now what the socket takes and keep the rest for `send(b"")` later.

        A closed connection is not an error here: the next `receive` reports it.

        Raises:
            RemoteProtocolError: the peer does not read and the queue is full.
        """
        self._unsent += data
        while self._unsent:
            try:
                sent = self.sock.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._unsent.clear()
                break
            del self._unsent[:sent]
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise RemoteProtocolError(
                f"the runtime left {len(self._unsent)} bytes of answers unread, more than {MAX_UNSENT_BYTES}"
            )

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


class ReconnectBackoff:
    """Pauses between tries to connect: none, then 0.1 s doubling to 5 s, each shortened by up to a quarter.

    The jitter keeps the plugins of one runtime from coming back in step.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._tries = 0

    def next_pause(self) -> float:
        """Seconds to wait before the next try."""
        self._tries += 1
        if self._tries == 1:
            return 0.0
        whole = min(FIRST_PAUSE_S * 2.0 ** min(self._tries - 2, 16), LONGEST_PAUSE_S)
        return whole * (1 - self._draw() / 4)

    def reset(self) -> None:
        """A session came about: the next loss is retried at once."""
        self._tries = 0
