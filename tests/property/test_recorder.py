"""The agent's own record of a life in which anything may fail tells that life: states, answers and refusals."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.agent.serving.observe_only import CpusetReader, ObservingHandler
from nri_plugin.agent.serving.recorder import DirectSink, Recorder
from nri_plugin.core.engine import decide
from nri_plugin.model.options import Effect
from nri_plugin.model.state import State
from nri_plugin.recording.file import BoundedRecording, RecordingFile
from nri_plugin.recording.reader import changes, read
from nri_plugin.wire.nri.events import Request
from tests.agent_fakes import Bench
from tests.property.test_handler import a_node, an_event, bring_trouble

STEPS = 40


class Timers:
    """A loop that comes round when the test says so."""

    def __init__(self, bench: Bench) -> None:
        self.clock = bench.clock

    def set_timer(self, name: str, when: float | None, action: object) -> None:
        pass


def record(bench: Bench, file: RecordingFile, *, observing: bool = False) -> Recorder:
    recorder = Recorder(
        [DirectSink(file, bench.log, bench.clock)], Timers(bench), bench.log, observing=observing
    )
    bench.handler._history = recorder
    return recorder


def live(data: st.DataObject, bench: Bench, recorder: Recorder, effect: Effect) -> None:
    for _ in range(data.draw(st.integers(1, STEPS))):
        if data.draw(st.integers(0, 9)) == 0:
            bench.handler.change_node(data.draw(a_node(effect)))
        if data.draw(st.integers(0, 4)) == 0:
            bring_trouble(bench, data)
        bench.handler.handle(Request(1, None, data.draw(an_event())))
        if data.draw(st.booleans()):
            recorder.flush()
    recorder.close()


def judge(path: Path, reached: State) -> None:
    recording = read(str(path))
    former = None
    for moment in recording.moments():
        assert [*changes(moment, former)] == []
        former = moment
    assert recording.problems == []
    assert former is not None
    assert former.state_after == reached
    assert list(former.state_after.allocations) == list(reached.allocations)


@given(data=st.data(), effect=st.sampled_from(list(Effect)))
@settings(max_examples=40, deadline=None)
def test_whatever_fails_the_record_tells_what_came_of_it(data: st.DataObject, effect: Effect) -> None:
    bench = Bench(data.draw(a_node(effect)))
    with TemporaryDirectory() as folder:
        live(data, bench, record(bench, RecordingFile(f"{folder}/tape")), effect)
        judge(Path(folder, "tape"), bench.handler.state)


@given(data=st.data(), effect=st.sampled_from(list(Effect)))
@settings(max_examples=20, deadline=None)
def test_within_bounds_the_rest_of_it_still_does(data: st.DataObject, effect: Effect) -> None:
    bench = Bench(data.draw(a_node(effect)))
    with TemporaryDirectory() as folder:
        live(data, bench, record(bench, BoundedRecording(folder, 64 << 10)), effect)
        judge(Path(folder), bench.handler.state)


@given(data=st.data(), effect=st.sampled_from(list(Effect)))
@settings(max_examples=20, deadline=None)
def test_so_does_that_of_an_agent_that_only_observes(data: st.DataObject, effect: Effect) -> None:
    bench = Bench(data.draw(a_node(effect)))
    bench.handler = ObservingHandler(
        bench.handler.node,
        State(),
        decide=decide,
        cpusets=CpusetReader(bench.cgroups),
        checkpoint=bench.handler.checkpoint,
        log=bench.log,
        clock=bench.clock,
    )
    with TemporaryDirectory() as folder:
        recorder = record(bench, RecordingFile(f"{folder}/tape"), observing=True)
        live(data, bench, recorder, effect)
        judge(Path(folder, "tape"), bench.handler.state)
