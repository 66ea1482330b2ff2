"""Drift noticed and put right in the loop's thread, on a tree in memory and with time that is told."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from nri_plugin.agent.repair.drift_watch import (
    CONFIRM_S,
    FIRST_SWEEP_S,
    FOLLOW_S,
    SLICE,
    SWEEP_PAUSE_S,
    DriftReport,
    DriftWatch,
)
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.decision import Decision
from nri_plugin.core.drift import Cause, Target
from nri_plugin.model.errors import HostError, InvariantError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import NRIEvent, Shutdown, Synchronize
from tests.agent_fakes import Bench, Clock
from tests.topology_rows import topology_of_rows

NODE = Node(
    topology_of_rows([(cpu, cpu, 0, 0, 0) for cpu in range(8)]), Options(pool_floor=False), CPUSet.of(0)
)
POOL = CPUSet.parse("0-3,6-7")
OWN = CPUSet.parse("4-5")


class FakeWatch:
    """The kernel, told by the test what was written."""

    def __init__(self) -> None:
        self.keys: set[Target] = set()
        self.written: set[Target] | None = set()
        self.error: HostError | None = None
        self.made: set[str] = set()

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: Target, directories: Iterable[str], *, reports_made: bool = False) -> None:
        if self.error:
            raise self.error
        self.keys.add(key)

    def discard(self, key: Target) -> None:
        self.keys.discard(key)

    def read(self) -> set[Target] | None:
        written, self.written = self.written, set()
        return written

    def fileno(self) -> int:
        return -1


class FakeLoop(Loop):
    """Timers only; `run_due` runs what is due, one round at a time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = self.told = clock
        self._timers = {}
        self._put_off = self.failures = 0
        self._in_a_row = {}
        self.on_readable: Callable[[], None] = lambda: None

    def watch(  # type: ignore[override]
        self, source: object, on_readable: Callable[[], None], on_writable: object = None
    ) -> None:
        self.on_readable = on_readable

    def is_asked(self) -> bool:
        return False

    def forget(self, source: object) -> None:
        self.on_readable = lambda: None

    def run_due(self) -> int:
        rounds = 0
        while any(when <= self.clock() for when, _ in self._timers.values()):
            self._run_due_timers()
            rounds += 1
        return rounds

    def advance(self, seconds: float) -> None:
        self.told.now += seconds
        self.run_due()


def record(name: str) -> ContainerRecord:
    return ContainerRecord(name, "u", name, Phase.RUNNING, CgroupRef("/pod", f"/pod/{name}"))


def state_of(*shared: str) -> State:
    containers = {name: record(name) for name in ("own", *shared)}
    pods = {"u": PodRecord("u", "s", "web", "shop", cgroup_parent="/pod")}
    return State(pods, containers, {"u/own": Allocation(OWN, cpu_milli=2000)})


class Scene:
    def __init__(self, state: State) -> None:
        self.bench = Bench(NODE, state)
        self.clock = self.bench.clock
        self.loop = FakeLoop(self.clock)
        self.kernel = FakeWatch()
        self.reports: list[DriftReport] = []
        self.moves: list[bool] = []
        self.cgroups = self.bench.cgroups
        for name in state.containers:
            self.cgroups.values[f"/pod/{name}"] = OWN if name == "own" else POOL
        self.drift = DriftWatch(
            self.bench.handler,
            self.loop,
            self.bench.log,
            watch=self.kernel,  # type: ignore[arg-type]
            machine_moved=lambda: self.moves.pop() if self.moves else False,
            report=self.reports.append,
            draw=lambda: 0.5,
        )
        self.drift.start()
        self.loop.advance(5)  # a slow runtime sends Synchronize after seconds; what that writes is no drift
        assert not self.kernel.keys
        self.loop.advance(FIRST_SWEEP_S)

    def foreign(self, name: str, cpus: str, *, heard: bool = True) -> None:
        self.cgroups.values[f"/pod/{name}"] = CPUSet.parse(cpus)
        if heard:
            self.hear(name)

    def hear(self, *names: str) -> None:
        self.kernel.written = {Target(CgroupRef("/pod", f"/pod/{name}"), name) for name in names}
        self.loop.on_readable()
        self.loop.run_due()

    def change(self, state: State, event: NRIEvent = Shutdown()) -> None:  # noqa: B008 - a constant
        before, self.bench.handler.state = self.bench.handler.state, state
        outcome = RequestOutcome(
            node=NODE, event=event, before=before, decision=Decision(state), refusal="",
            failed=False, decide_s=0, total_s=0,
        )  # fmt: skip
        self.drift(outcome)
        self.loop.advance(FOLLOW_S)

    def value(self, name: str) -> str:
        return str(self.cgroups.values[f"/pod/{name}"])


@pytest.fixture
def scene() -> Scene:
    return Scene(state_of("a", "b"))


def test_nothing_is_written_where_nothing_drifted(scene: Scene) -> None:
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.bench.journal == []
    assert scene.reports == []


def test_written_value_is_put_right_as_soon_as_it_is_heard_of(scene: Scene) -> None:
    scene.foreign("own", "0-7")
    assert scene.value("own") == "4-5"
    (report,) = scene.reports
    assert (report.name, report.noticed_by, report.cause, report.error) == (
        "shop/web/own", "watch", Cause.ALL_CPUS, "",
    )  # fmt: skip
    assert scene.bench.lines.texts("WARNING") == ["cpuset drifted and was repaired"]


def test_our_own_write_is_no_drift(scene: Scene) -> None:
    scene.hear("own", "a", "b")
    assert (scene.reports, scene.bench.journal) == ([], [])


def test_narrowed_parent_is_found_by_the_sweep(scene: Scene) -> None:
    scene.cgroups.bounds["/pod/own"] = CPUSet.of(4)
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.reports == []
    scene.loop.advance(CONFIRM_S)
    assert "make room /pod/own=4-5" in scene.bench.journal
    assert [(one.noticed_by, one.cause) for one in scene.reports] == [("sweep", Cause.NARROWED_ABOVE)]


def test_effective_set_that_comes_a_little_later_is_no_drift(scene: Scene) -> None:
    scene.cgroups.bounds["/pod/own"] = CPUSet.of(4)
    scene.hear("own")
    del scene.cgroups.bounds["/pod/own"]
    scene.loop.advance(CONFIRM_S)
    assert (scene.reports, scene.drift.waiting) == ([], 0)
    scene.cgroups.bounds["/pod/own"] = CPUSet.of(4)
    scene.hear("own")
    assert scene.reports == []
    scene.loop.advance(CONFIRM_S)
    assert len(scene.reports) == 1


def test_vanished_files_of_a_living_cgroup_are_drift(scene: Scene) -> None:
    scene.cgroups.without_files.add("/pod/a")
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.reports[0].cause is Cause.FILES_GONE
    assert scene.cgroups.observe(CgroupRef("/pod", "/pod/a")) == (POOL, POOL)


def test_cgroup_that_ends_is_no_drift(scene: Scene) -> None:
    scene.cgroups.missing.add("/pod/a")
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.reports == []


def test_lost_notices_make_all_be_looked_at(scene: Scene) -> None:
    scene.foreign("b", "0-7", heard=False)
    scene.kernel.written = None
    scene.loop.on_readable()
    scene.loop.run_due()
    assert scene.value("b") == str(POOL)


def test_who_fights_is_answered_ever_later_and_named(scene: Scene) -> None:
    times = []
    for _ in range(6):
        scene.foreign("own", "0-7")
        while scene.value("own") == "0-7":
            scene.loop.advance(0.25)
        times.append(scene.clock.now)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert scene.drift.fights == 1
    assert "another writer changes a cpuset after every repair" in scene.bench.lines.texts("WARNING")


def test_waiting_cgroup_is_neither_written_nor_told_again(scene: Scene) -> None:
    for _ in range(3):
        scene.foreign("own", "0-7")
    told = len(scene.reports)
    scene.hear("own")
    assert (len(scene.reports), scene.value("own"), scene.drift.waiting) == (told, "0-7", 1)


def test_fight_over_one_does_not_hold_up_another(scene: Scene) -> None:
    scene.foreign("own", "0-7")
    scene.foreign("own", "0-7")
    scene.foreign("a", "0-7")
    assert (scene.value("own"), scene.value("a")) == ("0-7", str(POOL))


def test_end_of_a_fight_is_said(scene: Scene) -> None:
    for _ in range(4):
        scene.foreign("own", "0-7")
        scene.loop.advance(8)
    scene.loop.advance(200)
    assert scene.drift.fights == 0
    assert "a cpuset is no longer contested" in scene.bench.lines.texts("INFO")


def test_refused_write_is_told_and_tried_again_later(scene: Scene) -> None:
    scene.cgroups.failing.add("/pod/own")
    scene.foreign("own", "0-7")
    assert scene.reports[0].error
    scene.cgroups.failing.clear()
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.value("own") == "4-5"


def test_changed_machine_is_no_drift(scene: Scene) -> None:
    scene.foreign("a", "0-2,6-7", heard=False)

    def moved() -> bool:
        scene.bench.handler.node = dataclasses.replace(
            NODE, topology=topology_of_rows([(cpu, cpu, 0, 0, 0) for cpu in range(8) if cpu != 3])
        )
        scene.cgroups.values["/pod/b"] = CPUSet.parse("0-2,6-7")
        return True

    scene.drift._machine_moved = moved
    scene.hear("a")
    assert scene.reports == []


def test_containers_that_come_are_watched_and_those_that_go_are_not(scene: Scene) -> None:
    assert len(scene.kernel) == 3
    scene.change(state_of("a", "c"))
    assert {key.container_id for key in scene.kernel.keys} == {"own", "a"} | {"c"}
    scene.change(State())
    assert len(scene.kernel) == 0


def test_after_synchronize_all_are_looked_at(scene: Scene) -> None:
    scene.foreign("a", "0-7", heard=False)
    scene.change(scene.bench.handler.state, Synchronize((), ()))
    assert scene.value("a") == str(POOL)


def test_ten_thousand_lives_leave_nothing_behind(scene: Scene) -> None:
    for number in range(10_000):
        name = f"c{number}"
        scene.cgroups.values = {"/pod/own": OWN, f"/pod/{name}": CPUSet.of(1)}
        scene.change(state_of(name))
    assert len(scene.reports) == 10_000
    assert {key.container_id for key in scene.kernel.keys} == {"own", "c9999"}
    scene.change(State())
    drift = scene.drift
    assert (len(scene.kernel), len(drift._known), len(drift._queue), len(drift._waiting)) == (0, 0, 0, 0)
    assert len(drift._pacing._rounds) == 0


def test_sweep_of_thousands_lets_the_loop_answer_in_between() -> None:
    scene = Scene(state_of(*(f"c{number}" for number in range(3000))))
    scene.clock.now += SWEEP_PAUSE_S
    assert scene.loop.run_due() >= 3000 // SLICE


def test_without_a_watch_the_sweep_does_it(scene: Scene) -> None:
    scene.kernel.error = HostError("/pod", "cannot be watched: no space left on device")
    scene.foreign("own", "0-7", heard=False)
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.value("own") == "4-5"
    assert "cgroups cannot be watched; the periodic sweep finds drift" in scene.bench.lines.texts("WARNING")


def test_container_that_ends_while_it_waits_is_forgotten(scene: Scene) -> None:
    for _ in range(3):
        scene.foreign("own", "0-7")
    scene.change(replace(state_of("a"), containers={"a": record("a")}))
    scene.loop.advance(60)
    assert (scene.drift.waiting, scene.drift.fights) == (0, 0)


def test_cgroup_that_cannot_be_read_holds_up_no_other(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    observe = scene.cgroups.observe

    def broken(ref: CgroupRef) -> object:
        if ref.path == "/pod/a":
            raise HostError("/pod/a", "holds no CPU list")
        return observe(ref)

    monkeypatch.setattr(scene.cgroups, "observe", broken)
    scene.foreign("own", "0-7", heard=False)
    scene.hear("a", "own")
    assert scene.value("own") == "4-5"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvariantError(["CPU 1 is exclusive to both"], ()), "drift not repaired"),
        (ZeroDivisionError("x"), "internal error, drift not repaired"),
    ],
)
def test_mistake_of_ours_is_said_and_containers_go_on_being_placed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fails(event: object) -> None:
        raise error

    monkeypatch.setattr(scene.bench.handler, "put_right", fails)
    scene.foreign("own", "0-7")
    assert said in scene.bench.lines.texts("ERROR")
    monkeypatch.undo()
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.value("own") == "4-5"


def test_effective_set_that_nobody_can_widen_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.cgroups, "make_room", lambda ref, cpus: None)
    scene.cgroups.bounds["/pod/own"] = CPUSet.of(4)
    scene.hear("own")
    scene.loop.advance(CONFIRM_S)
    assert scene.reports[0].error == (
        "its processes still run on 4: a cgroup above it, which the agent does not widen, has fewer CPUs"
    )
    assert "cpuset drifted and could not be repaired" in scene.bench.lines.texts("WARNING")
