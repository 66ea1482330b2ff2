"""Logging: the form of a line, its destination, and the rate of repeated lines.

A line is a constant text plus fields, so that it can be searched for; `err` is last. As text:
`2026-01-31T12:00:00.123Z INFO  decided op=1f00ba12 event=CreateContainer took_us=180`, or one JSON object.

A sink never makes the agent wait. A stuck log collector would otherwise stall the one thread that answers the runtime,
and the runtime would start containers unpinned. Lost lines are counted, and the count is written as soon as there is
room again.
"""

import json
import logging
import os
import random
import socket
import stat
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Generic, TypeVar

from nri_plugin.model.bounds import visible

Key = TypeVar("Key", bound=Hashable)

AGAIN_S = 600.0
"""Seconds until an unchanged line is logged again: often enough to be among the last lines, and not to crowd others out."""

MOST_REMEMBERED = 1024
"""The most keys; a key that was dropped is logged once more."""


class LogRateLimit:
    """Limits the rate of one log line; another text, or the same after `forget`, is due at once.

    Args:
        interval_s: between two lines of one text.
    """

    def __init__(self, interval_s: float = AGAIN_S) -> None:
        self._interval_s = interval_s
        self._text = ""
        self._due_at: float | None = None

    def is_due(self, text: str, now: float) -> bool:
        """Return whether to log it now; if so, it counts as logged."""
        if text == self._text and self._due_at is not None and now < self._due_at:
            return False
        self._text, self._due_at = text, now + self._interval_s
        return True

    def forget(self) -> None:
        """Let the next line be due: the trouble is over."""
        self._due_at = None


class Repeats(Generic[Key]):
    """Tells the first of many equal events from its repetitions, for each of many keys.

    An event is new when its text differs from the last one of its key, or when none came for `calm_s`.

    Args:
        calm_s: seconds without a repetition after which the next is new.
    """

    def __init__(self, calm_s: float = AGAIN_S) -> None:
        self._calm_s = calm_s
        self._latest: dict[Key, tuple[str, float]] = {}

    def is_first(self, key: Key, text: str, now: float) -> bool:
        """Return whether this event is new; it becomes the latest of its key in any case."""
        former, at = self._latest.pop(key, ("", float("-inf")))
        self._latest[key] = (text, now)
        if len(self._latest) > MOST_REMEMBERED:
            del self._latest[next(iter(self._latest))]
        return former != text or now - at > self._calm_s

    def forget(self, key: Key) -> None:
        """Let the next event of this key be new."""
        self._latest.pop(key, None)


SYSLOG_DAEMON = 3 << 3
"""Source: RFC 5424, facility 3, system daemons."""

SYSLOG_SEVERITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


class LineSink(logging.Handler):
    """Writes lines to a stream that may be full.

    Args:
        send: takes as many bytes as there is room for, and returns their number.
        end: closes the stream.
    """

    def __init__(self, send: Callable[[bytes], int], end: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._send, self._end = send, end
        self._lost = 0
        self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or count it as lost."""
        line = f"{self.format(record)}\n"
        if self._lost:
            line = f"({self._lost} log lines lost, the reader was too slow)\n{line}"
        data = line.encode("utf-8", "backslashreplace")
        if self._is_cut:
            data = b"\n" + data
        try:
            sent = self._send(data)
        except OSError:
            self._lost += 1
        else:
            self._lost = 0
            self._is_cut = sent < len(data)

    def close(self) -> None:
        """Close the stream."""
        self._end()
        super().close()


class SyslogSink(logging.Handler):
    """Sends lines to the system log's socket, one datagram each.

    Raises:
        OSError: no process listens there.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._socket = connected(path)

    def emit(self, record: logging.LogRecord) -> None:
        """Send the line, or lose it; connects again to a system log that was restarted."""
        priority = SYSLOG_DAEMON | SYSLOG_SEVERITY.get(record.levelno, 6)
        data = f"<{priority}>nri-pin[{os.getpid()}]: {self.format(record)}".encode(
            "utf-8", "backslashreplace"
        )
        with suppress(OSError):
            try:
                self._socket.send(data)
            except BlockingIOError:
                return
            except OSError:
                fresh = connected(self._path)
                self._socket.close()
                self._socket = fresh
                fresh.send(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()


def connected(path: str) -> socket.socket:
    """Return a non-blocking datagram socket that is connected to `path`.

    Raises:
        OSError: no process listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def without_waiting(descriptor: int) -> LineSink | None:
    """Return a sink for a pipe or a socket; None for files and terminals, which always have room."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        own = socket.socket(fileno=os.dup(descriptor))
        return LineSink(lambda data: own.send(data, socket.MSG_DONTWAIT), own.close)
    if not stat.S_ISFIFO(mode):
        return None
    try:
        # Opened again: `O_NONBLOCK` must not change for processes that share the given one.
        end = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no /proc, or the pipe was made by another user
        return None
    return LineSink(partial(os.write, end), partial(os.close, end))


LOGGER_NAME = "nri-pin"
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
SYSLOG_SOCKET = "/dev/log"
FILE_NAME = "agent.log"
MAX_FILE_BYTES = 8 << 20
"""A longer log file is renamed at the next start: no log rotation knows the file of a plugin that the runtime starts."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/+@%")


def say(log: logging.Logger, level: int, text: str, /, **fields: object) -> None:
    """Log a constant `text` with `fields`; fields that are None or empty strings are left out."""
    if log.isEnabledFor(level):
        # `Logger.log` would walk the stack to find a file and a line number that no log line shows.
        log.handle(log.makeRecord(log.name, level, "", 0, text, (), None, extra={"fields": fields}))


def say_trace(log: logging.Logger, text: str, /, **fields: object) -> None:
    """Log an error with the traceback of the exception being handled."""
    log.error(text, extra={"fields": fields}, exc_info=True)  # noqa: LOG014 - called from except clauses


def new_op() -> str:
    """Return a new 8-hex name, which connects the log lines of one request."""
    return f"{random.getrandbits(32):08x}"


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the record's fields without empty ones, `err` last."""
    given: Mapping[str, object] = getattr(record, "fields", None) or {}
    kept = {key: value for key, value in given.items() if value is not None and value != ""}
    if "err" in kept:
        kept["err"] = kept.pop("err")
    return kept


def timestamp(record: logging.LogRecord) -> str:
    """Return the record's time in UTC, with milliseconds."""
    return f"{_seconds(int(record.created))}.{int(record.msecs):03d}Z"


@lru_cache(maxsize=2)
def _seconds(since_1970: int) -> str:
    """The time without its fraction; lines come in bursts, so most have the same."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since_1970))


def quoted(value: object) -> str:
    """Return the value for a text line: without line breaks or unpaired quotes, whatever a peer sent."""
    text = str(value)
    return text if text and _PLAIN.issuperset(text) else visible(json.dumps(text))


class TextFormatter(logging.Formatter):
    """One line for people; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        pairs = "".join(f" {key}={quoted(value)}" for key, value in fields_of(record).items())
        line = f"{timestamp(record)} {record.levelname:<7} {record.getMessage()}{pairs}"
        return f"{line}\n{visible(self.formatException(record.exc_info))}" if record.exc_info else line


class JSONFormatter(logging.Formatter):
    """One JSON object per line; a traceback is its `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {"time": timestamp(record), "level": record.levelname.lower()}
        line["msg"] = record.getMessage()
        line.update(fields_of(record))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, separators=(",", ":"))


def set_up(level: str, form: str, state_dir: Path) -> logging.Logger:
    """Set up the logger of this process and return it.

    Lines go to standard error unless it is closed or `/dev/null`, then to the system log, then to a file in `state_dir`.
    """
    return _directed(pick_handler(state_dir), level, form)


def to_stderr(level: str, form: str = "text") -> logging.Logger:
    """Set up the logger to write to standard error, for programs that a cluster runs; returns the logger."""
    return _directed(logging.StreamHandler(), level, form)


def _directed(handler: logging.Handler, level: str, form: str) -> logging.Logger:
    logging.raiseExceptions = False  # a full disk under the log must not reach the containers' path
    # No line shows them, and looking them up takes a system call and as long as the rest of a record.
    logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False
    logger = logging.getLogger(LOGGER_NAME)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    for old in tuple(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger


def pick_handler(state_dir: Path, syslog: str = SYSLOG_SOCKET) -> logging.Handler:
    """Return the first of standard error, system log and log file that can be written to."""
    if is_read(2) and sys.stderr is not None:
        return without_waiting(2) or logging.StreamHandler(sys.stderr)
    try:
        return SyslogSink(syslog)
    except OSError:
        return file_handler(state_dir)


def is_read(descriptor: int) -> bool:
    """Return whether lines written there may be read: it is open and not `/dev/null`."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev)


def file_handler(state_dir: Path) -> logging.Handler:
    """Return a handler for the log file in `state_dir`; one that drops all lines where the file cannot be written."""
    path = state_dir / FILE_NAME
    try:
        if (
            path.exists() and path.stat().st_size > MAX_FILE_BYTES
        ):  # the one that was renamed before is replaced
            path.replace(path.with_suffix(".log.old"))
        return logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return logging.NullHandler()
