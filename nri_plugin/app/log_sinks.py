"""Places for log lines that never make the agent wait: a full pipe costs lines, not containers.

A stuck log collector would otherwise stall the one thread that answers the runtime, and the runtime would
start containers without us. What is lost is counted and said as soon as there is room again.
"""

import logging
import os
import socket
import stat
from typing import Protocol

SYSLOG_DAEMON = 3 << 3
"""Source: RFC 5424, facility 3, system daemons."""

SYSLOG_SEVERITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


class Outlet(Protocol):
    """A stream that is written to without waiting."""

    def send(self, data: bytes) -> int:
        """Take what there is room for at once; returns how much.

        Raises:
            OSError: there is no room at all, or nobody reads any more.
        """

    def close(self) -> None:
        """Give it back."""


class PipeOutlet:
    """The writing end of a pipe, opened anew: whoever shares the given one did not ask for a change."""

    def __init__(self, descriptor: int) -> None:
        self._own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def send(self, data: bytes) -> int:
        """Write."""
        return os.write(self._own, data)

    def close(self) -> None:
        """Close our end."""
        os.close(self._own)


class SocketOutlet:
    """A connected stream socket, as systemd gives to services."""

    def __init__(self, descriptor: int) -> None:
        self._own = socket.socket(fileno=os.dup(descriptor))

    def send(self, data: bytes) -> int:
        """Send."""
        return self._own.send(data, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close our end."""
        self._own.close()


class LineSink(logging.Handler):
    """Writes lines to a stream that may be full."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet
        self._lost = 0
        self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line now or never."""
        line = f"{self.format(record)}\n"
        if self._lost:
            line = f"({self._lost} log lines lost, nobody read them)\n{line}"
        data = line.encode("utf-8", "backslashreplace")
        if self._is_cut:
            data = b"\n" + data
        try:
            sent = self._outlet.send(data)
        except OSError:
            self._lost += 1
        else:
            self._lost = 0
            self._is_cut = sent < len(data)

    def close(self) -> None:
        """Give the stream back."""
        self._outlet.close()
        super().close()


class SyslogSink(logging.Handler):
    """Sends lines to the system log's socket, one datagram each.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._socket = connected(path)

    def emit(self, record: logging.LogRecord) -> None:
        """Send the line now or never; a system log that was started anew is found again."""
        priority = SYSLOG_DAEMON | SYSLOG_SEVERITY.get(record.levelno, 6)
        data = f"<{priority}>nri-pin[{os.getpid()}]: {self.format(record)}".encode(
            "utf-8", "backslashreplace"
        )
        try:
            self._socket.send(data)
        except BlockingIOError:
            return
        except OSError:
            self._send_anew(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()

    def _send_anew(self, data: bytes) -> None:
        try:
            fresh = connected(self._path)
        except OSError:
            return
        self._socket.close()
        self._socket = fresh
        try:
            fresh.send(data)
        except OSError:
            return


def connected(path: str) -> socket.socket:
    """A datagram socket to `path` that never waits.

    Raises:
        OSError: nobody listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def without_waiting(descriptor: int) -> Outlet | None:
    """How to write to a pipe or a socket; None for what always has room, such as a file or a terminal."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        return SocketOutlet(descriptor)
    if not stat.S_ISFIFO(mode):
        return None
    try:
        return PipeOutlet(descriptor)
    except OSError:  # no /proc, or the pipe was made by another user
        return None
