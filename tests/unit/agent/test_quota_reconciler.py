"""Quotas that somebody writes back, on files and a kernel in memory and with time that is told."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from nri_plugin.agent.cpusets import PartitionWriter
from nri_plugin.agent.repair.kernel_settings import (
    DEAF_S,
    FOLLOW_S,
    SLICE,
    SWEEP_PAUSE_S,
    UNWATCHED,
    UPDATE_S,
    KernelSettingsReconciler,
    QuotaReconciler,
)
from nri_plugin.core.kernel_settings import NO_QUOTA, QuotaWrite
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.agent_fakes import Bench, Clock, recording_log
from tests.builders import container, node, pod
from tests.unit.agent.test_drift_watch import FakeLoop

POD, OWN = CgroupRef("/kubepods/podp"), CgroupRef("/kubepods/podp", "/kubepods/podp/c")
BOTH = [QuotaWrite(OWN, NO_QUOTA), QuotaWrite(POD, NO_QUOTA)]
WRITTEN_BACK = "CPU quota was written back and lifted again"


class Files:
    """Quota files that tell a kernel of every write, also of ours."""

    def __init__(self) -> None:
        self.values: dict[CgroupRef, int] = {}
        self.failing: set[CgroupRef] = set()
        self.reads = 0
        self.told: Callable[[CgroupRef], None] = lambda _: None

    def set(self, ref: CgroupRef, quota_us: int) -> bool:
        self.reads += 1
        if ref in self.failing:
            raise HostError(ref.parent, "was refused")
        if self.values.get(ref) == quota_us:
            return False
        self.write(ref, quota_us)
        return True

    def write(self, ref: CgroupRef, quota_us: int) -> None:
        self.values[ref] = quota_us
        self.told(ref)

    def directories(self, ref: CgroupRef) -> list[str]:
        return [ref.path or ref.parent]


class Kernel:
    """Watches that run out after `most`; tells of writes to watched cgroups once."""

    def __init__(self, files: Files, most: int = 1000) -> None:
        self.keys: set[CgroupRef] = set()
        self.written: set[CgroupRef] | None = set()
        self.most = most
        files.told = self.told

    def __len__(self) -> int:
        return len(self.keys)

    def told(self, ref: CgroupRef) -> None:
        if self.written is not None and ref in self.keys:
            self.written.add(ref)

    def add(self, key: CgroupRef, directories: Iterable[str]) -> None:
        assert list(directories)
        if key not in self.keys and len(self.keys) >= self.most:
            raise HostError("/sys/fs/cgroup", "cannot be watched: no space left on device")
        self.keys.add(key)

    def discard(self, key: CgroupRef) -> None:
        self.keys.discard(key)

    def read(self) -> set[CgroupRef] | None:
        written, self.written = self.written, set()
        return written

    def fileno(self) -> int:
        return -1


class Scene:
    def __init__(self, most_watches: int = 1000) -> None:
        self.clock = Clock()
        self.loop = FakeLoop(self.clock)
        self.files = Files()
        self.kernel = Kernel(self.files, most_watches)
        self.log, self.lines = recording_log()
        self.noticed: list[str] = []
        self.reconciler = QuotaReconciler(
            self.files,
            self.kernel,  # type: ignore[arg-type]
            self.loop,
            self.log,
            self.noticed.append,
        )
        self.reconciler.start()

    def keep(self, wanted: list[QuotaWrite] = BOTH) -> None:
        list(self.reconciler.reconcile(wanted))

    def settle(self) -> None:
        """The kernel's word of our own writes is heard, and changes nothing."""
        for _ in range(3):
            self.turn()
            self.loop.advance(DEAF_S)

    def turn(self) -> None:
        """One turn of the loop, without time: what is readable is read."""
        if self.kernel.written is None or self.kernel.written:
            self.loop.on_readable()
        self.loop.run_due()


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.keep()
    made.settle()
    return made


def test_the_first_lift_is_told_and_is_nobodys_doing(scene: Scene) -> None:
    assert scene.files.values == {OWN: NO_QUOTA, POD: NO_QUOTA}
    assert scene.lines.texts("INFO") == ["CPU quota lifted"] * 2
    assert (scene.noticed, scene.reconciler.lifted, scene.reconciler.watches) == ([], 2, 2)


@pytest.mark.parametrize("ref", [POD, OWN])
def test_a_quota_that_is_written_back_is_lifted_in_the_same_turn_of_the_loop(
    scene: Scene, ref: CgroupRef
) -> None:
    scene.files.write(ref, 50_000)
    scene.turn()
    assert scene.files.values[ref] == NO_QUOTA
    assert scene.noticed == ["watch"]
    assert scene.lines.fields(WRITTEN_BACK) == {"cgroup": ref.path or ref.parent, "noticed_by": "watch"}


def test_a_write_every_second_is_lifted_each_time_and_told_once(scene: Scene) -> None:
    for _ in range(600):
        scene.files.write(POD, 50_000)
        scene.turn()
        assert scene.files.values[POD] == NO_QUOTA
        scene.loop.advance(1.0)
    assert len(scene.noticed) == 600
    assert scene.lines.texts("INFO").count(WRITTEN_BACK) == 1
    assert scene.lines.texts("WARNING") == []


def test_a_write_between_two_rounds_is_lifted_once_the_pause_is_over(scene: Scene) -> None:
    scene.files.write(POD, 50_000)
    scene.turn()
    scene.files.write(OWN, 50_000)
    scene.turn()
    assert scene.files.values[OWN] == 50_000
    scene.loop.advance(DEAF_S)
    scene.turn()
    assert scene.files.values[OWN] == NO_QUOTA
    assert DEAF_S < 0.1


def test_an_endless_writer_costs_a_bounded_number_of_rounds(scene: Scene) -> None:
    before = scene.files.reads
    for _ in range(10_000):  # one each millisecond
        scene.files.write(POD, 50_000)
        scene.turn()
        scene.loop.advance(0.001)
    assert scene.files.reads - before <= 10 / DEAF_S + 1
    assert scene.lines.texts("INFO").count(WRITTEN_BACK) == 1


def test_our_own_write_is_not_taken_for_anothers(scene: Scene) -> None:
    scene.files.write(POD, 50_000)
    scene.settle()
    reads = scene.files.reads
    scene.settle()
    assert (scene.noticed, scene.files.reads) == (["watch"], reads)


def test_lost_notices_mean_that_every_one_is_looked_at(scene: Scene) -> None:
    scene.files.values = {OWN: 50_000, POD: 50_000}
    scene.kernel.written = None
    scene.turn()
    assert scene.files.values == {OWN: NO_QUOTA, POD: NO_QUOTA}


def test_the_runtime_is_answered_between_slices() -> None:
    scene = Scene()
    some = [QuotaWrite(CgroupRef(f"/kubepods/pod{number}"), NO_QUOTA) for number in range(3 * SLICE)]
    scene.keep(some)
    scene.settle()
    before = scene.files.reads
    scene.kernel.written = None
    scene.loop.on_readable()
    assert scene.files.reads - before == SLICE
    scene.loop.run_due()
    assert scene.files.reads - before == 3 * SLICE


def test_what_is_over_is_neither_watched_nor_lifted(scene: Scene) -> None:
    scene.keep([QuotaWrite(POD, NO_QUOTA)])
    assert scene.kernel.keys == {POD}
    scene.keep([QuotaWrite(POD, 200_000)])
    assert (scene.kernel.keys, scene.files.values[POD], scene.reconciler.lifted) == (set(), 200_000, 0)
    scene.reconciler.updated(POD.parent)
    scene.loop.advance(UPDATE_S)
    assert scene.files.values[POD] == 200_000
    assert scene.lines.texts("INFO")[-1] == "CPU quota restored"


def test_without_watches_the_sweep_still_lifts_and_that_is_told_once() -> None:
    scene = Scene(most_watches=1)
    scene.keep()
    scene.settle()
    assert scene.files.values == {OWN: NO_QUOTA, POD: NO_QUOTA}
    scene.files.write(POD, 50_000)
    scene.reconciler.verify_all()
    scene.keep()
    assert scene.files.values[POD] == NO_QUOTA
    assert scene.noticed == ["sweep"]
    assert scene.lines.texts("WARNING").count(UNWATCHED) == 1


def test_what_is_no_more_wanted_leaves_no_watch_even_if_it_never_could_be_lifted() -> None:
    scene = Scene()
    scene.files.failing.add(OWN)
    scene.keep()
    assert (scene.reconciler.lifted, scene.reconciler.watches) == (1, 2)
    scene.keep([])
    assert scene.reconciler.watches == 0


def test_a_mistake_of_ours_ends_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_ref: CgroupRef, _quota_us: int) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(scene.files, "set", fail)
    scene.files.write(POD, 50_000)
    scene.turn()
    assert scene.lines.texts("ERROR") == ["internal error, a CPU quota was not lifted"]


class Node:
    """An agent without watches, and the pod that a kubelet resizes."""

    def __init__(self) -> None:
        self.bench = Bench(node())
        self.loop = FakeLoop(self.bench.clock)
        self.files = Files()
        self.noticed: list[str] = []
        quotas = QuotaReconciler(self.files, None, self.loop, self.bench.log, self.noticed.append)
        reconciler = KernelSettingsReconciler(
            self.bench.handler,
            self.loop,
            self.bench.log,
            PartitionWriter(self.bench.cgroups, _NoDomains()),  # type: ignore[arg-type]
            quotas,
        )
        self.bench.handler.observers = (reconciler,)
        reconciler.start()
        limit = {"cpu_quota_us": 200_000, "cpu_period_us": 100_000}
        self.pod = _limited(pod("p", cpu=2), limit)
        self.born = _limited(container(self.pod, cpu=2), limit)
        for event in (
            nri.RunPodSandbox(self.pod),
            nri.CreateContainer(self.pod, self.born),
            nri.StartContainer(self.pod, self.born),
        ):
            self.bench.ask(event)
        self.loop.advance(FOLLOW_S)


One = TypeVar("One", Pod, Container)


class _NoDomains:
    def __len__(self) -> int:
        return 0

    def adopt(self, _promised: object) -> list[HostError]:
        return []

    end_others = make = adopt

    def mend(self, _online: object, _now_s: float) -> list[HostError]:
        return []


def _limited(one: One, limit: dict[str, int]) -> One:
    return replace(one, resources=replace(one.resources, **limit))


HALF = Resources(cpu_shares=512, cpu_quota_us=50_000, cpu_period_us=100_000)


@pytest.mark.parametrize(
    "event",
    [
        lambda one: nri.UpdateContainer(one.pod, one.born, HALF),
        lambda one: nri.PostUpdateContainer(one.pod, one.born),
        lambda one: nri.UpdatePodSandbox(one.pod, resources=HALF),
        lambda one: nri.UpdatePodSandbox(replace(one.pod, uid=""), resources=HALF),
        lambda one: nri.PostUpdatePodSandbox(one.pod),
    ],
)
def test_without_watches_container_and_pod_are_looked_at_after_every_update(
    event: Callable[[Node], nri.NRIEvent],
) -> None:
    one = Node()
    refs = list(one.files.values)
    assert one.files.values == dict.fromkeys(refs, NO_QUOTA)
    for ref in refs:
        one.files.write(ref, 50_000)
    one.bench.ask(event(one))
    one.loop.advance(UPDATE_S)
    assert one.files.values == dict.fromkeys(refs, NO_QUOTA)
    assert one.noticed == ["update"] * 2


def test_the_sweep_counts_what_it_finds() -> None:
    one = Node()
    one.files.write(POD, 50_000)
    one.loop.advance(SWEEP_PAUSE_S)
    assert one.noticed == ["sweep"]
