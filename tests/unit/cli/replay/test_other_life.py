"""The rules by which recorded events are made those of another life."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.cli.replay.other_life import Met, OtherLife
from nri_plugin.core.engine import decide
from nri_plugin.model.options import Node
from nri_plugin.model.records import Phase
from nri_plugin.model.state import State
from nri_plugin.recording.file import head_lines, line_of, outcome_of
from nri_plugin.recording.reader import Moment, read
from nri_plugin.recording.rows import Event
from nri_plugin.wire.nri.events import (
    CreateContainer,
    PostCreateContainer,
    RemoveContainer,
    RunPodSandbox,
    StartContainer,
    StopContainer,
    StopPodSandbox,
    Synchronize,
    UpdateContainer,
)
from nri_plugin.wire.nri.messages import Resources
from tests.builders import GIB, container, cpu_resources, machine, node, pod

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
RECORDED = node(machine())
STRICT = node(machine(), full_pcpus_only=True)
LAX = RECORDED


class Tape:
    """Records events on a node, then leads another life on them."""

    def __init__(self, folder: Path, recorded: Node = RECORDED) -> None:
        self.node, self.state, self.path = recorded, State(), folder / "tape"
        self.pieces = [head_lines(recorded, self.state, NOW)]

    def happen(self, *events: Event, failed: bool = False) -> None:
        for event in events:
            decision = decide(self.node, self.state, event)
            outcome = outcome_of(decision, str(decision.refusal or ""), failed=failed)
            self.pieces.append(line_of(event, NOW, "", outcome))
            self.state = self.state if failed else decision.state

    def moments(self) -> list[Moment]:
        self.path.write_bytes(b"".join(self.pieces))
        return list(read(str(self.path)).moments())

    def other(self, under: Node) -> list[Met]:
        return list(OtherLife(lambda *_: under).live(self.moments()))


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return Tape(tmp_path)


POD = pod("p1", cpu=3)
ODD = container(POD, cpu=3, memory=GIB)


def test_a_container_refused_here_does_not_exist(tape: Tape) -> None:
    known = replace(ODD, resources=replace(ODD.resources, cpus="2-4"))
    tape.happen(
        RunPodSandbox(POD),
        CreateContainer(POD, ODD),
        PostCreateContainer(POD, known),
        StartContainer(POD, known),
    )
    tape.happen(Synchronize((POD,), (known,)))
    lived = tape.other(STRICT)
    assert lived[1].decision is not None
    assert lived[1].decision.refusal is not None
    assert [met.decision for met in lived[2:4]] == [None, None]
    assert lived[-1].after.containers == {}


def test_a_container_refused_only_there_runs_until_its_pod_ends(tmp_path: Path) -> None:
    tape = Tape(tmp_path, STRICT)
    tape.happen(RunPodSandbox(POD), CreateContainer(POD, ODD), CreateContainer(POD, replace(ODD, id="again")))
    tape.happen(Synchronize((POD,), ()), StopPodSandbox(POD))
    lived = tape.other(LAX)
    assert lived[1].after.containers[ODD.id].phase is Phase.RUNNING
    assert lived[2].decision is None
    assert str(lived[3].after.exclusive) == "2-4"
    assert lived[3].after.containers[ODD.id].phase is Phase.RUNNING
    assert not lived[4].after.exclusive


def test_a_later_try_that_succeeds_there_is_the_same_container(tmp_path: Path) -> None:
    tape = Tape(tmp_path)
    other, even = pod("p2", cpu=12), replace(ODD, id="again")
    tape.happen(RunPodSandbox(other), CreateContainer(other, container(other, cpu=12, memory=GIB)))
    tape.happen(RunPodSandbox(POD), CreateContainer(POD, ODD), StopPodSandbox(other))
    tape.happen(CreateContainer(POD, even), StartContainer(POD, even))
    large = node(machine(cores=8))
    lived = OtherLife(lambda *_: large).live(tape.moments())
    last = list(lived)[-1].after
    assert set(last.containers) == {even.id, "p2-c-0"}
    assert last.containers[even.id].phase is Phase.RUNNING
    assert list(last.allocations) == ["p1/c"]


def test_a_stored_cpuset_of_the_recorded_life_becomes_that_of_the_other(tape: Tape) -> None:
    first, second = pod("p0", cpu=1), pod("p2", cpu=2)
    small, big = container(first, cpu=1, memory=GIB), container(second, cpu=2, memory=GIB)
    tape.happen(
        RunPodSandbox(first),
        CreateContainer(first, small),
        RunPodSandbox(second),
        CreateContainer(second, big),
    )
    stored = str(tape.state.containers[big.id].stored_cpus)
    known = replace(big, resources=replace(big.resources, cpus=stored))
    foreign = replace(big, resources=replace(big.resources, cpus="7"))
    tape.happen(StartContainer(second, known), UpdateContainer(second, known, Resources(cpus=stored)))
    tape.happen(UpdateContainer(second, foreign, Resources(cpus="6")))
    lived = tape.other(STRICT)
    here = str(lived[3].after.containers[big.id].stored_cpus)
    assert (stored, here) == ("4-5", "2-3")
    update = lived[5].event
    assert isinstance(update, UpdateContainer)
    assert (update.container.resources.cpus, update.resources.cpus) == (here, here)
    update = lived[6].event
    assert isinstance(update, UpdateContainer)
    assert (update.container.resources.cpus, update.resources.cpus) == ("7", "6")


def test_what_failed_for_other_reasons_fails_in_both(tape: Tape) -> None:
    tape.happen(RunPodSandbox(POD))
    tape.happen(CreateContainer(POD, ODD), failed=True)
    lived = tape.other(LAX)
    assert lived[1].decision is None
    assert not lived[1].after.exclusive


def test_a_resize_refused_only_there_is_done_here(tmp_path: Path) -> None:
    tape = Tape(tmp_path, STRICT)
    even = container(POD, cpu=2, memory=GIB)
    tape.happen(RunPodSandbox(POD), CreateContainer(POD, even))
    known = replace(even, resources=replace(even.resources, cpus="2-3"))
    tape.happen(StartContainer(POD, known), UpdateContainer(POD, known, cpu_resources(3, GIB)))
    lived = tape.other(LAX)
    (held,) = lived[-1].after.allocations.values()
    assert (str(held.cpus), held.resize) == ("2-4", None)


def test_where_lines_are_missing_both_begin_anew(tape: Tape) -> None:
    tape.happen(RunPodSandbox(POD), CreateContainer(POD, ODD))
    tape.pieces.append(head_lines(tape.node, State(), NOW, "gap"))
    tape.state = State()
    tape.happen(RunPodSandbox(POD))
    life = OtherLife(lambda *_: LAX)
    lived = list(life.live(tape.moments()))
    assert life.restarts == 1
    assert lived[-1].before == State()


def test_a_restart_that_lost_nothing_goes_on(tape: Tape) -> None:
    tape.happen(RunPodSandbox(POD), CreateContainer(POD, ODD))
    tape.pieces.append(head_lines(tape.node, tape.state, NOW, "start"))
    known = replace(ODD, resources=replace(ODD.resources, cpus="2-4"))
    tape.happen(Synchronize((POD,), (known,)), StopContainer(POD, known), RemoveContainer(POD, known))
    life = OtherLife(lambda *_: STRICT)
    lived = list(life.live(tape.moments()))
    assert life.restarts == 0
    assert lived[-1].after.containers == {}
