"""What is kept, when it is written, and that nothing of it hurts."""

import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nri_plugin.agent.serving import recorder as module
from nri_plugin.agent.serving.recorder import DirectSink, QueuedSink, Recorder, open_sink
from nri_plugin.core.decision import Decision
from nri_plugin.core.drift import MachineChanged
from nri_plugin.core.engine import decide
from nri_plugin.model.errors import HostError
from nri_plugin.model.state import State
from nri_plugin.process.loop import Loop
from nri_plugin.recording.file import RecordingFile, Situation
from nri_plugin.recording.reader import read
from nri_plugin.wire.nri.events import Configure, RunPodSandbox, Shutdown
from tests.agent_fakes import Bench, Clock
from tests.builders import machine, node, pod

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NODE = node(machine())
RUN = RunPodSandbox(pod("p1"))


class Timers:
    """A loop whose timers run when the test says so."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.due: list[object] = []

    def set_timer(self, name: str, when: float | None, action: object) -> None:
        self.due = [action]

    def run(self) -> None:
        for action in self.due:
            action()  # type: ignore[operator]
        self.due = []


class Kept:
    """Keeps lines in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.is_closed = False

    def append(self, data: bytes, before: Situation) -> None:
        self.lines.append(data)

    def close(self) -> None:
        self.is_closed = True


def recorder(kept: Kept, timers: Timers) -> Recorder:
    return Recorder([kept], timers, logging.getLogger("test"), now=lambda: NOW)


def test_nothing_is_written_before_the_loop_comes_round() -> None:
    kept, timers = Kept(), Timers()
    one = recorder(kept, timers)
    one.decided(NODE, State(), RUN, decide(NODE, State(), RUN))
    assert kept.lines == []
    timers.run()
    assert len(kept.lines) == 1


def test_what_decides_nothing_is_passed_over() -> None:
    kept, timers = Kept(), Timers()
    one = recorder(kept, timers)
    for event in (Configure(), Shutdown()):
        one.decided(NODE, State(), event, Decision(State()))
    assert timers.due == []


def test_what_waits_is_written_at_the_end() -> None:
    kept, timers = Kept(), Timers()
    one = recorder(kept, timers)
    one.decided(NODE, State(), MachineChanged(), Decision(State()))
    one.changed(NODE, State())
    one.close()
    assert len(kept.lines) == 2
    assert kept.is_closed


def test_a_mistake_in_the_recording_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, timers, bench = Kept(), Timers(), Bench(NODE)
    monkeypatch.setattr(module, "line_of", lambda *_: 1 / 0)
    one = Recorder([kept], timers, bench.log, now=lambda: NOW)
    one.decided(NODE, State(), RUN, decide(NODE, State(), RUN))
    timers.run()
    assert kept.lines == []


class Broken(RecordingFile):
    """A disk that is full until told otherwise."""

    def __init__(self) -> None:
        super().__init__("/nowhere/tape")
        self.is_full = True
        self.tries: list[bytes] = []

    def append(self, data: bytes, before: Situation) -> None:
        self.tries.append(data)
        if self.is_full:
            raise HostError(self.path, "cannot be written: No space left on device")


def test_a_full_disk_is_said_once_and_asked_seldom() -> None:
    file, clock, bench = Broken(), Clock(), Bench(NODE)
    sink = DirectSink(file, bench.log, clock)
    situation = Situation(NODE, State(), NOW)
    for number in range(5):
        sink.append(b"%d" % number, situation)
    clock.now += module.PAUSE_S
    sink.append(b"5", situation)
    assert file.tries == [b"0", b"5"]
    said = [line for line in bench.lines.lines if "history is not kept" in line[1]]
    assert len(said) == 1


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that is closed gives its thread as long as a busy machine takes."""
    monkeypatch.setattr(module, "CLOSE_S", 30.0)


def idle(sink: QueuedSink) -> bool:
    """Whether the thread gets through what it was given."""
    end = time.monotonic() + 30
    while sink._done_bytes < sink._put_bytes and time.monotonic() < end:
        threading.Event().wait(0.001)
    return sink._done_bytes == sink._put_bytes


@pytest.mark.usefixtures("patient")
def test_a_disk_that_does_not_answer_costs_lines_and_never_time() -> None:
    class Stalled(Broken):
        def append(self, data: bytes, before: Situation) -> None:
            waits.wait(30)
            self.tries.append(data)

        def lose(self) -> None:
            self.tries.append(b"lost")

    waits = threading.Event()
    file = Stalled()
    loop = Loop(Clock())
    sink = QueuedSink(DirectSink(file, Bench(NODE).log, Clock()), loop)
    loop.close()  # its thread needs none
    situation = Situation(NODE, State(), NOW)
    large = b"x" * (module.MOST_WAITING_BYTES + 1)
    sink.append(large, situation)
    sink.append(b"dropped", situation)
    waits.set()
    assert idle(sink)
    sink.append(b"next", situation)
    sink.close()
    assert file.tries == [large, b"lost", b"next"]


@pytest.mark.usefixtures("patient")
def test_in_memory_it_is_written_by_the_thread_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for in_memory, kind in ((True, DirectSink), (False, QueuedSink)):
        monkeypatch.setattr(module, "is_in_memory", lambda _, answer=in_memory: answer)
        path = tmp_path / kind.__name__
        loop = Loop(Clock())
        sink = open_sink(RecordingFile(str(path)), logging.getLogger("test"), loop)
        loop.close()
        assert isinstance(sink, kind)
        line = module._Happened(NOW, NODE, State(), RUN, decide(NODE, State(), RUN)).line()
        sink.append(line, Situation(NODE, State(), NOW))
        sink.close()
        assert len(list(read(str(path)).moments())) == 1
