"""Records every decided event, after its answer was sent.

A recording delays no container. A timer of the loop writes it after the answer: at once to a file system in memory, and
through a thread to a disk. A line that cannot be written is lost, and the first loss is logged.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from nri_plugin.config.loading import Config
from nri_plugin.core.decision import Decision
from nri_plugin.core.engine import DECIDED
from nri_plugin.host.mounts import is_in_memory
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.options import Node
from nri_plugin.model.state import State
from nri_plugin.process.logs import LogRateLimit, say, say_trace
from nri_plugin.process.loop import Loop
from nri_plugin.recording.file import (
    DIRECTORY,
    BoundedRecording,
    RecordingFile,
    Situation,
    line_of,
    node_line,
    outcome_of,
)
from nri_plugin.recording.rows import Event

PAUSE_S = 10.0
"""Seconds without writes after a failure, so that a full disk is not tried at every event."""

MOST_WAITING_BYTES = 4 << 20
"""The most bytes that wait for a disk that does not answer; further lines are lost."""

CLOSE_S = 1.0


class RecordingSink(Protocol):
    """Takes lines and never fails."""

    def append(self, data: bytes, before: Situation) -> None:
        """Write a line."""

    def close(self) -> None:
        """Finish."""


@dataclass(frozen=True, slots=True)
class _Happened:
    """One event, or a change of the node where `event` is None."""

    at: datetime
    node: Node
    before: State
    event: Event | None = None
    decision: Decision | None = None
    refusal: str = ""
    failed: bool = False
    op: str = ""
    took_us: int = 0

    def line(self) -> bytes:
        if self.event is None or self.decision is None:
            return node_line(self.node, self.at)
        outcome = outcome_of(self.decision, self.refusal, failed=self.failed, took_us=self.took_us)
        return line_of(self.event, self.at, self.op, outcome)


class Recorder:
    """Takes events from the thread that answers the runtime, and writes them after the answers.

    Args:
        sinks: the files.
        loop: runs the writes.
        log: takes failures.
        observing: the agent only observes.
        now: returns the time of day.
    """

    def __init__(
        self,
        sinks: Sequence[RecordingSink],
        loop: Loop,
        log: logging.Logger,
        *,
        observing: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sinks = sinks
        self._loop = loop
        self._log = log
        self._observing = observing
        self._now = now
        self._waiting: list[_Happened] = []

    def decided(
        self,
        node: Node,
        before: State,
        event: Event,
        decision: Decision,
        *,
        refusal: str = "",
        failed: bool = False,
        op: str = "",
        took_us: int = 0,
    ) -> None:
        """Keep an event and its outcome; event types without a decision are left out."""
        if type(event) in DECIDED:
            happened = _Happened(self._now(), node, before, event, decision, refusal, failed, op, took_us)
            self._remember(happened)

    def changed(self, node: Node, state: State) -> None:
        """Keep a change of the node that decisions are made for."""
        self._remember(_Happened(self._now(), node, state))

    def flush(self) -> None:
        """Write the events that wait."""
        waiting, self._waiting = self._waiting, []
        try:
            for one in waiting:
                before = Situation(one.node, one.before, one.at, self._observing)
                data = one.line()
                for sink in self._sinks:
                    sink.append(data, before)
        except Exception:  # noqa: BLE001 - an error in a recording must not leave a container waiting
            say_trace(self._log, "internal error, part of the recording is lost")

    def close(self) -> None:
        """Write the events that wait, and close the files."""
        self.flush()
        for sink in self._sinks:
            sink.close()

    def _remember(self, happened: _Happened) -> None:
        self._waiting.append(happened)
        self._loop.set_timer("record", 0.0, self.flush)


class DirectSink:
    """Writes at once; pauses after a failure, which is logged once."""

    def __init__(self, file: RecordingFile, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._file, self._log, self._clock = file, log, clock
        self._trouble = LogRateLimit()
        self._paused_until = float("-inf")

    def append(self, data: bytes, before: Situation) -> None:
        """Write a line; lost while it pauses."""
        if self._clock() < self._paused_until:
            return
        try:
            self._file.append(data, before)
        except HostError as error:
            self._paused_until = self._clock() + PAUSE_S
            if self._trouble.is_due(str(error), self._clock()):
                say(self._log, logging.WARNING, "history is not kept, placements are not affected", err=error)
        else:
            self._trouble.forget()

    def lose(self) -> None:
        """Mark in the file that lines before the next one were lost."""
        self._file.lose()

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            say(self._log, logging.WARNING, "the end of the history may be lost", err=error)


class QueuedSink:
    """Writes through a thread, for a disk that may stall. Lines that do not fit into the queue are lost."""

    def __init__(self, sink: DirectSink, loop: Loop) -> None:
        self._sink = sink
        self._queue: queue.SimpleQueue[tuple[bytes, Situation, bool] | None] = queue.SimpleQueue()
        self._put_bytes = self._done_bytes = 0
        self._lost = False
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        loop.start_thread(self._thread)

    def append(self, data: bytes, before: Situation) -> None:
        """Queue a line."""
        if self._put_bytes - self._done_bytes > MOST_WAITING_BYTES:
            self._lost = True
            return
        self._put_bytes += len(data)
        self._queue.put((data, before, self._lost))
        self._lost = False

    def close(self) -> None:
        """Wait up to `CLOSE_S` until the queue is written."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            data, before, lost = item
            if lost:
                self._sink.lose()
            try:
                self._sink.append(data, before)
            except Exception:  # noqa: BLE001 - the next line may be written
                self._lost = True
            self._done_bytes += len(data)
        self._sink.close()


def open_sink(file: RecordingFile, log: logging.Logger, loop: Loop) -> RecordingSink:
    """Return a sink for `file`: with a thread unless the file is in memory."""
    direct = DirectSink(file, log, loop.clock)
    with suppress(HostError):  # unknown, so it may stall
        if is_in_memory(file.path):
            return direct
    return QueuedSink(direct, loop)


def build_recorder(config: Config, record: str, loop: Loop, log: logging.Logger) -> Recorder | None:
    """Return the recorder of the bounded history and of the file of `--record`; None where neither is wanted.

    Raises:
        ConfigError: that file cannot be written.
    """
    sinks = []
    if config.history_bytes:
        directory = os.path.join(config.state_dir, DIRECTORY)
        sinks.append(open_sink(BoundedRecording(directory, config.history_bytes), log, loop))
    if record:
        file = RecordingFile(os.path.abspath(record))
        try:
            file.check()
        except HostError as error:
            raise ConfigError("--record", str(error)) from None
        sinks.append(open_sink(file, log, loop))
    return Recorder(sinks, loop, log, observing=config.observe) if sinks else None
