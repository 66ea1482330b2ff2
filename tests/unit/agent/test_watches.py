"""What is put together to notice drift and a changed machine, on a folder that stands in for both."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nri_plugin.agent import start
from nri_plugin.agent.observing.status_socket import StatusFeed
from nri_plugin.agent.repair.drift_watch import FIRST_SWEEP_S, DriftReport
from nri_plugin.agent.repair.kernel_settings import DEAF_S, SWEEP_PAUSE_S, UNWATCHED
from nri_plugin.agent.repair.watches import (
    BURST_S,
    LOOK_PAUSE_S,
    PORTIONS,
    QUIET_S,
    LateWriter,
)
from nri_plugin.agent.start import reconcile_kernel_settings, watch_drift
from nri_plugin.host.partitions import ON_V1
from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Isolation, Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.loop import MOST_PUT_OFF, Loop
from tests.agent_fakes import Bench
from tests.builders import machine
from tests.unit.agent.test_drift_watch import FakeLoop

STATE = State(
    {"u": PodRecord("u", "s", "web", "shop", cgroup_parent="/pod")},
    {"own": ContainerRecord("own", "u", "own", Phase.RUNNING, CgroupRef("/pod", "/pod/own"))},
    {"u/own": Allocation(CPUSet.of(1), cpu_milli=1000)},
)


class Scene:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.online("0-3")
        (top / "proc").mkdir()
        (top / "proc/meminfo").write_text("MemTotal: 1024 kB\n")
        (top / "cg/pod/own").mkdir(parents=True)
        (top / "cg/cgroup.controllers").write_text("cpuset\n")
        (top / "cg/pod/own/cpuset.cpus").write_text("1")
        node = Node(discover(str(top)), Options(pool_floor=False), CPUSet.of(0))
        self.bench = Bench(node, STATE)
        self.bench.cgroups.values["/pod/own"] = CPUSet.of(1)
        self.loop = Loop(self.bench.clock)
        self.reports: list[DriftReport] = []
        self.woken = self.looks = 0
        self.feed = StatusFeed()
        self.feed.wake = self.wake

    def reconcile_soon(self) -> None:
        self.looks += 1

    def wake(self) -> None:
        self.woken += 1

    def online(self, cpus: str) -> None:
        for cpu in CPUSet.parse(cpus):
            (self.top / f"sys/devices/system/cpu/cpu{cpu}/topology").mkdir(parents=True, exist_ok=True)
        for name in ("online", "present", "possible"):
            (self.top / "sys/devices/system/cpu" / name).write_text(f"{cpus}\n")

    def begin(self) -> int:
        """Watches there are once everything has been looked at."""
        config = SimpleNamespace(sysfs_root=str(self.top), cgroup_root=f"{self.top}/cg")
        watch = watch_drift(
            config, self.bench.log, self.bench.handler, self.loop, self.feed, self.reports.append, self  # type: ignore[arg-type]
        )  # fmt: skip
        self.bench.clock.now += FIRST_SWEEP_S
        for _ in range(2):
            self.loop.run_once()
        return watch.watches


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path)
    monkeypatch.setattr(
        made.bench.handler.cpusets._cgroups, "directories", lambda ref: [f"{tmp_path}/cg/pod/own"]
    )
    yield made
    made.loop.close()


def test_container_and_its_pod_are_watched(scene: Scene) -> None:
    assert scene.begin() == 2
    assert scene.reports == []


def test_machine_that_changes_is_followed_and_told(scene: Scene) -> None:
    scene.begin()
    assert scene.woken == 0
    scene.online("0,2-3")
    scene.bench.clock.now += LOOK_PAUSE_S
    scene.loop.run_once()
    assert scene.bench.handler.node.topology.online == CPUSet.parse("0,2-3")
    assert (scene.woken, scene.looks) == (1, 1)


def test_what_lies_beside_cpusets_is_looked_at_after_a_drift(scene: Scene) -> None:
    scene.bench.cgroups.values["/pod/own"] = CPUSet.parse("0-3")
    scene.begin()
    assert [len(scene.reports), scene.looks] == [1, 1]


def test_machine_is_not_discovered_again_at_the_start(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    monkeypatch.setattr(start, "discover", reads.append)
    scene.begin()
    assert reads == []


def test_machine_that_changed_since_it_was_discovered_is_followed_at_once(scene: Scene) -> None:
    scene.online("0-2")
    scene.begin()
    assert scene.bench.handler.node.topology.online == CPUSet.parse("0-2")


def test_without_a_watch_of_the_kernel_it_is_said_and_swept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(top: str) -> None:
        raise HostError(top, "cannot be watched: too many open files")

    monkeypatch.setattr(start, "CgroupWatch", none_left)
    assert scene.begin() == 0
    assert scene.bench.lines.texts("WARNING") == ["cgroups cannot be watched; the periodic sweep finds drift"]


def test_without_a_tree_nothing_is_watched(scene: Scene) -> None:
    (scene.top / "cg/cgroup.controllers").unlink()
    assert scene.begin() == 0


class V1:
    """A stand-in for a tree of cgroup v1 with a container that runs, and what is kept beside its cpuset."""

    def __init__(self, top: Path, *, isolation: Isolation, annotation: str = "") -> None:
        (top / "cg/cpuset/pod/own").mkdir(parents=True)
        (top / "cg/cpuset/cpuset.cpus").write_text("0-3\n")
        options = Options(isolation=isolation, annotation_namespaces=frozenset({"shop"}))
        asked = (("nri-pin/isolation.container.own", annotation),) if annotation else ()
        pod = replace(STATE.pods["u"], annotations=asked)
        self.bench = Bench(
            Node(machine(nodes=1, cores=4), options, CPUSet.of(0)), replace(STATE, pods={"u": pod})
        )
        self.loop = FakeLoop(self.bench.clock)
        config = SimpleNamespace(cgroup_root=f"{top}/cg")
        reconciler = reconcile_kernel_settings(
            config, self.bench.log, self.bench.handler, self.loop, lambda _: None  # type: ignore[arg-type]
        )  # fmt: skip
        assert reconciler is not None
        self.reconciler = reconciler
        self.at_start = self.bench.lines.texts("WARNING")

    def look(self) -> None:
        self.loop.advance(SWEEP_PAUSE_S)


def test_isolation_on_cgroup_v1_is_warned_of_at_the_start_and_counted_as_refused(tmp_path: Path) -> None:
    v1 = V1(tmp_path, isolation=Isolation.PARTITION)
    assert v1.at_start == ["no partitions here, isolation does nothing"]
    assert v1.bench.lines.fields(v1.at_start[0])["err"] == ON_V1
    v1.look()
    v1.look()
    assert (v1.reconciler.refused, v1.reconciler.partitions) == (1, 0)
    assert v1.bench.lines.texts("WARNING")[1:] == ["no partition, it has an ordinary cpuset"]


def test_isolation_by_annotation_is_warned_of_once_asked_for(tmp_path: Path) -> None:
    v1 = V1(tmp_path, isolation=Isolation.NONE, annotation="isolated")
    assert v1.at_start == []
    v1.look()
    assert v1.bench.lines.fields("no partition, it has an ordinary cpuset")["err"] == ON_V1


def test_without_isolation_cgroup_v1_is_no_matter(tmp_path: Path) -> None:
    v1 = V1(tmp_path, isolation=Isolation.NONE)
    v1.look()
    assert (v1.bench.lines.texts("WARNING"), v1.reconciler.refused) == ([], 0)


class V2:
    """A stand-in for a tree of cgroup v2 with real inotify: a container and its pod, limited to one CPU."""

    def __init__(self, top: Path) -> None:
        self.files = [top / "cg/pod/cpu.max", top / "cg/pod/own/cpu.max"]
        self.files[1].parent.mkdir(parents=True)
        (top / "cg/cgroup.controllers").write_text("cpuset\n")
        for file in self.files:
            file.write_text("100000 100000\n")
        pod = replace(STATE.pods["u"], qos=QOSClass.GUARANTEED, limit_milli=1000)
        own = replace(STATE.containers["own"], limit_milli=1000)
        state = replace(STATE, pods={"u": pod}, containers={"own": own})
        self.bench = Bench(Node(machine(nodes=1, cores=4), Options(), CPUSet.of(0)), state)
        self.loop = Loop(self.bench.clock)
        self.noticed: list[str] = []
        config = SimpleNamespace(cgroup_root=f"{top}/cg")
        reconciler = reconcile_kernel_settings(
            config, self.bench.log, self.bench.handler, self.loop, self.noticed.append  # type: ignore[arg-type]
        )  # fmt: skip
        assert reconciler is not None
        self.reconciler = reconciler

    def after(self, seconds: float) -> list[str]:
        """Pass time and let the loop go round once."""
        self.bench.clock.now += seconds
        self.loop.post(lambda: None)  # it does not wait for more than has come
        self.loop.run_once()
        return [file.read_text() for file in self.files]


def test_quota_that_is_written_back_on_container_or_pod_is_lifted_in_the_next_turn(tmp_path: Path) -> None:
    v2 = V2(tmp_path)
    assert v2.after(SWEEP_PAUSE_S) == ["max 100000", "max 100000"]
    v2.after(0.0)
    assert (v2.reconciler.watches, v2.reconciler.lifted) == (2, 2)
    for file in v2.files:
        v2.after(DEAF_S)
        v2.after(0.0)
        v2.after(DEAF_S)
        file.write_text("50000 100000\n")
        assert v2.after(0.0) == ["max 100000", "max 100000"]
    assert v2.noticed == ["watch", "watch"]
    v2.loop.close()


def test_without_inotify_quotas_are_kept_by_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_arguments: object, **_named: object) -> None:
        raise HostError("inotify", "cannot be watched")

    monkeypatch.setattr(start, "CgroupWatch", none_left)
    v2 = V2(tmp_path)
    assert v2.bench.lines.texts("WARNING") == [UNWATCHED]
    v2.after(SWEEP_PAUSE_S)
    v2.files[0].write_text("50000 100000\n")
    assert v2.after(0.0)[0] != "max 100000"
    assert v2.after(SWEEP_PAUSE_S) == ["max 100000", "max 100000"]
    assert v2.noticed == ["sweep"]
    v2.loop.close()


class Portions:
    """A handler with portions to write, `written` of them so far."""

    def __init__(self, count: int) -> None:
        self.left, self.written = count, 0
        self.has_rest = False

    def write_waiting(self) -> bool:
        self.left, self.written = self.left - 1, self.written + 1
        return self.left > 0


def test_what_waits_is_written_in_portions_between_which_the_runtime_is_given_way() -> None:
    portions, clock, asked = Portions(PORTIONS + 3), SimpleNamespace(now=0.0), list[int]()
    loop = Loop(lambda: clock.now)
    late = LateWriter(portions, loop)  # type: ignore[arg-type]
    late(SimpleNamespace())  # type: ignore[arg-type]
    portions.has_rest = True
    loop.post(lambda: None)
    loop.run_once()
    assert portions.written == 0, "nothing waited"
    late(SimpleNamespace())  # type: ignore[arg-type]
    loop.run_once()
    assert portions.written == PORTIONS, "a turn has an end"
    ours, theirs = socket.socketpair()
    loop.watch(ours, lambda: asked.append(1), is_urgent=True)
    theirs.send(b"?")
    loop.run_once()
    assert (len(asked), portions.written) == (1, PORTIONS), "the runtime asks"
    loop._put_off = MOST_PUT_OFF
    loop.run_once()
    assert (len(asked), portions.written) == (2, PORTIONS + 1), "one portion, and the runtime asks again"
    for one in (ours, theirs, loop):
        one.close()


@pytest.mark.parametrize("pause_s", [QUIET_S, QUIET_S / 2])
def test_requests_of_a_burst_come_before_what_waits_for_a_time_that_has_an_end(pause_s: float) -> None:
    portions, clock = Portions(3), SimpleNamespace(now=0.0)
    portions.has_rest = True
    loop = Loop(lambda: clock.now)
    late = LateWriter(portions, loop)  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    loop.watch(ours, lambda: None, is_urgent=True)
    theirs.send(b"?")
    loop._put_off = MOST_PUT_OFF
    late(SimpleNamespace())  # type: ignore[arg-type]
    loop.run_once()
    assert portions.written == 1, "the runtime asked after it"
    loop.forget(ours)
    began = clock.now
    while portions.written == 1:
        late(SimpleNamespace())  # type: ignore[arg-type]
        clock.now += pause_s
        loop.post(lambda: None)
        loop.run_once()
    assert portions.written == 3
    assert clock.now - began == pytest.approx(QUIET_S if pause_s == QUIET_S else BURST_S)
    for one in (ours, theirs, loop):
        one.close()
