"""Where log lines go and how they look; the only place that sets up logging.

A line is a constant text plus fields, so that it can be searched for; `err` stands last. Text for people:
`2026-01-31T12:00:00.123Z INFO  decided op=1f00ba12 event=CreateContainer took_us=180`, or one JSON object.
"""

import json
import logging
import os
import random
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from nri_plugin.app.log_sinks import LineSink, SyslogSink, without_waiting
from nri_plugin.visible import visible

LOGGER_NAME = "nri-pin"
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
SYSLOG_SOCKET = "/dev/log"
FILE_NAME = "agent.log"
MAX_FILE_BYTES = 8 << 20
"""A log file longer than this is set aside at the next start; nobody rotates it for a plugin that is fork-started."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/+@%")


def say(log: logging.Logger, level: int, text: str, /, **fields: object) -> None:
    """Log a constant `text` with `fields`; fields that are None or empty strings are left out."""
    if log.isEnabledFor(level):
        # Made here, for the library would first walk the stack to find a file and a line that no line shows.
        log.handle(log.makeRecord(log.name, level, "", 0, text, (), None, extra={"fields": fields}))


def say_trace(log: logging.Logger, text: str, /, **fields: object) -> None:
    """Log an error with the traceback of the exception being handled."""
    log.error(text, extra={"fields": fields}, exc_info=True)  # noqa: LOG014 - called from except clauses


def new_op() -> str:
    """A fresh 8-hex name that ties the lines of one flow together."""
    return f"{random.getrandbits(32):08x}"


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """The record's fields that say something, `err` moved to the end."""
    given: Mapping[str, object] = getattr(record, "fields", None) or {}
    kept = {key: value for key, value in given.items() if value is not None and value != ""}
    if "err" in kept:
        kept["err"] = kept.pop("err")
    return kept


def timestamp(record: logging.LogRecord) -> str:
    """UTC, milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def quoted(value: object) -> str:
    """The value as it stands in a text line: never a line break or an unpaired quote, whatever a peer sent."""
    text = str(value)
    return text if text and _PLAIN.issuperset(text) else visible(json.dumps(text))


class TextFormatter(logging.Formatter):
    """One line for people; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        pairs = "".join(f" {key}={quoted(value)}" for key, value in fields_of(record).items())
        line = f"{timestamp(record)} {record.levelname:<7} {record.getMessage()}{pairs}"
        return f"{line}\n{visible(self.formatException(record.exc_info))}" if record.exc_info else line


class JSONFormatter(logging.Formatter):
    """One JSON object per line; a traceback is its `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {"time": timestamp(record), "level": record.levelname.lower()}
        line["msg"] = record.getMessage()
        line.update(fields_of(record))
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, separators=(",", ":"))


def set_up(level: str, form: str, state_dir: Path) -> logging.Logger:
    """Direct this process's log lines and return the logger.

    Standard error where somebody reads it, else the system log, else a file in `state_dir`.
    """
    return _directed(pick_handler(state_dir), level, form)


def to_stderr(level: str, form: str = "text") -> logging.Logger:
    """Direct this process's log lines to standard error, for programs that a cluster runs; returns the logger."""
    return _directed(logging.StreamHandler(), level, form)


def _directed(handler: logging.Handler, level: str, form: str) -> logging.Logger:
    logging.raiseExceptions = False  # a full disk under the log must not reach the containers' path
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
    """The first of standard error, system log and log file that can be written to."""
    if is_read(2) and sys.stderr is not None:
        outlet = without_waiting(2)
        return LineSink(outlet) if outlet else logging.StreamHandler(sys.stderr)
    try:
        return SyslogSink(syslog)
    except OSError:
        return file_handler(state_dir)


def is_read(descriptor: int) -> bool:
    """Whether somebody may read what is written there: it is open and not `/dev/null`."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev)


def file_handler(state_dir: Path) -> logging.Handler:
    """Append to the log file in `state_dir`; a null handler where even that is impossible."""
    path = state_dir / FILE_NAME
    try:
        set_aside_when_long(path)
        return logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return logging.NullHandler()


def set_aside_when_long(path: Path) -> None:
    """Keep one old log file and begin a new one."""
    if path.exists() and path.stat().st_size > MAX_FILE_BYTES:
        path.replace(path.with_suffix(".log.old"))
