"""Quotas and sandboxes kept in the loop's thread, on a tree in memory and with time that is told."""

from collections.abc import Iterable, Iterator, Mapping

import pytest
from msgspec.structs import replace

from nri_plugin.agent.cpusets import PartitionWriter
from nri_plugin.agent.repair.kernel_settings import (
    FOLLOW_S,
    PARTITION_STAYS,
    QUOTA_STAYS,
    REMEDY,
    SANDBOX_STAYS,
    SLICE,
    SWEEP_PAUSE_S,
    KernelSettingsReconciler,
    QuotaReconciler,
)
from nri_plugin.core.kernel_settings import NO_QUOTA, Partition
from nri_plugin.host.partitions import Settled
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import CPUManagerPolicy, Isolation
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.agent_fakes import Bench
from tests.builders import container, node, pod
from tests.unit.agent.test_drift_watch import FakeLoop

SANDBOX, OWN, POD = "/kubepods/podp/sb", "/kubepods/podp/p-c-0", "/kubepods/podp"


class FakeQuotas:
    """Quota files in memory."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.failing: set[str] = set()
        self.writes = 0

    def set(self, ref: CgroupRef, quota_us: int) -> bool:
        name = ref.path or ref.parent
        if name in self.failing:
            raise HostError(name, "was refused")
        changed = self.values.get(name) != quota_us
        self.values[name] = quota_us
        self.writes += changed
        return changed

    def directories(self, ref: CgroupRef) -> list[str]:
        return [ref.path or ref.parent]


class FakeDomains:
    """Partitions in memory; `trouble` is what the kernel says to the next ones."""

    def __init__(self, journal: list[str]) -> None:
        self.made: dict[CgroupRef, Partition] = {}
        self.adopted: list[str] = []
        self.trouble = ""
        self.stubborn = False
        self._journal = journal

    def __len__(self) -> int:
        return len(self.made)

    def adopt(self, promised: Iterable[tuple[CgroupRef, CPUSet]]) -> list[HostError]:
        self.adopted += [f"{one.path} {cpus}" for one, cpus in promised]
        return []

    def end_others(self, wanted: Mapping[CgroupRef, Partition]) -> list[HostError]:
        for ref in self.made.keys() - wanted.keys():
            del self.made[ref]
            self._journal.append(f"end {ref.path}")
        return [HostError("/x", "was not taken")] if self.stubborn else []

    def mend(self, online: CPUSet, now_s: float) -> list[HostError]:
        assert now_s >= 0
        self.mended_for = online
        return []

    def make(self, wanted: Mapping[CgroupRef, Partition]) -> Iterator[Settled]:
        for ref, one in wanted.items():
            if ref not in self.made:
                if not self.trouble:
                    self.made[ref] = one
                self._journal.append(f"make {ref.path}")
                yield Settled(one, self.trouble)


class Scene:
    def __init__(self, isolation: Isolation = Isolation.PARTITION, state: State | None = None) -> None:
        self.bench = Bench(node(isolation=isolation), state or State())
        self.domains = FakeDomains(self.bench.journal)
        self.loop = FakeLoop(self.bench.clock)
        self.quotas = FakeQuotas()
        self.noticed: list[str] = []
        self.reconciler = reconciler = KernelSettingsReconciler(
            self.bench.handler,
            self.loop,
            self.bench.log,
            PartitionWriter(self.bench.cgroups, self.domains),  # type: ignore[arg-type]
            QuotaReconciler(self.quotas, None, self.loop, self.bench.log, self.noticed.append),
        )
        self.bench.handler.observers = (reconciler,)
        reconciler.start()
        self.pod = replace(pod("p", cpu=2), cgroups_path=SANDBOX)
        limits = replace(self.pod.resources, cpu_quota_us=200_000, cpu_period_us=100_000)
        self.pod = replace(self.pod, resources=limits)
        born = container(self.pod, cpu=2)
        self.born = replace(
            born, resources=replace(born.resources, cpu_quota_us=200_000, cpu_period_us=100_000)
        )

    def live(self) -> None:
        self.bench.ask(nri.RunPodSandbox(self.pod))
        self.bench.ask(nri.CreateContainer(self.pod, self.born))
        self.bench.ask(nri.StartContainer(self.pod, self.born))
        self.loop.advance(FOLLOW_S)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_is_written_once_and_after_the_answer(scene: Scene) -> None:
    scene.bench.ask(nri.RunPodSandbox(scene.pod))
    assert SANDBOX not in scene.bench.cgroups.values
    scene.live()
    assert str(scene.bench.cgroups.values[SANDBOX]) == "0-1,4-15"
    assert scene.quotas.values == {OWN: NO_QUOTA, POD: NO_QUOTA}
    assert scene.bench.lines.texts("INFO").count("CPU quota lifted") == 2
    scene.bench.forget()
    scene.bench.ask(nri.PostStartContainer(scene.pod, scene.born))
    scene.loop.advance(FOLLOW_S)
    assert not [line for line in scene.bench.journal if SANDBOX in line]
    assert scene.quotas.writes == 2


def test_what_somebody_puts_back_is_lifted_again_by_the_sweep(scene: Scene) -> None:
    scene.live()
    scene.quotas.values[POD] = 200_000
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.quotas.values[POD] == NO_QUOTA


def test_a_sandbox_without_a_cgroup_is_tried_again_by_the_sweep_only(scene: Scene) -> None:
    scene.bench.cgroups.missing.add(SANDBOX)
    scene.live()
    scene.bench.cgroups.missing.clear()
    scene.bench.ask(nri.RunPodSandbox(replace(pod("q"), cgroups_path="/kubepods/podq/sb")))
    scene.loop.advance(FOLLOW_S)
    assert SANDBOX not in scene.bench.cgroups.values
    scene.loop.advance(SWEEP_PAUSE_S)
    assert SANDBOX in scene.bench.cgroups.values


def test_a_sandbox_has_all_cpus_once_nobody_pins_any_more(scene: Scene) -> None:
    scene.live()
    scene.bench.handler.change_node(node(cpu_manager_policy=CPUManagerPolicy.NONE))
    scene.bench.ask(nri.StopPodSandbox(scene.pod))
    scene.loop.advance(SWEEP_PAUSE_S)
    assert str(scene.bench.cgroups.values[SANDBOX]) == "0-15"
    scene.bench.cgroups.values.pop(SANDBOX)
    scene.loop.advance(SWEEP_PAUSE_S)
    assert SANDBOX not in scene.bench.cgroups.values


def test_the_runtime_is_answered_between_slices(scene: Scene) -> None:
    scene.live()
    for number in range(2 * SLICE):
        one = replace(pod(f"q{number}"), cgroups_path=f"/kubepods/podq{number}/sb")
        scene.bench.ask(nri.RunPodSandbox(one))
    scene.bench.clock.now += FOLLOW_S
    scene.loop._run_due_timers()
    assert len(scene.bench.cgroups.values) < SLICE + 8
    scene.loop.advance(FOLLOW_S)
    assert f"/kubepods/podq{2 * SLICE - 1}/sb" in scene.bench.cgroups.values


def test_a_burst_of_events_is_looked_at_once_and_never_put_off(scene: Scene) -> None:
    scene.live()
    scene.domains.made.clear()
    for _ in range(4):
        scene.reconciler.reconcile_soon()
        scene.loop.advance(FOLLOW_S / 3)
    assert scene.bench.journal.count(f"make {OWN}") == 2


def test_a_mistake_of_ours_ends_nothing(scene: Scene) -> None:
    def fail(_ref: CgroupRef, _quota_us: int) -> bool:
        raise ZeroDivisionError

    scene.quotas.set = fail  # type: ignore[method-assign, assignment]
    scene.live()
    assert scene.bench.lines.texts("ERROR") == [
        "internal error while quotas, sandboxes and partitions were reconciled"
    ]


def test_what_there_is_is_counted(scene: Scene) -> None:
    scene.live()
    assert (scene.reconciler.partitions, scene.reconciler.refused, scene.reconciler.lifted) == (1, 0, 2)


def test_trouble_is_said_once_and_tried_again(scene: Scene) -> None:
    scene.quotas.failing.add(OWN)
    scene.bench.cgroups.failing.add(SANDBOX)
    scene.live()
    assert scene.quotas.values == {POD: NO_QUOTA}
    said = scene.bench.lines.texts("WARNING")
    assert set(said) == {QUOTA_STAYS, SANDBOX_STAYS}
    assert scene.bench.lines.fields(QUOTA_STAYS)["todo"] == REMEDY
    scene.quotas.failing.clear()
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.quotas.values[OWN] == NO_QUOTA


def test_what_is_over_is_forgotten(scene: Scene) -> None:
    scene.live()
    scene.bench.ask(nri.StopPodSandbox(scene.pod))
    scene.bench.ask(nri.RemovePodSandbox(scene.pod))
    scene.loop.advance(FOLLOW_S)
    scene.quotas.values.clear()
    scene.live()
    assert scene.quotas.values == {OWN: NO_QUOTA, POD: NO_QUOTA}


def test_a_partition_is_made_after_the_sandbox_left_and_ends_before_it_returns(scene: Scene) -> None:
    scene.live()
    journal = scene.bench.journal
    assert journal.index(f"write {SANDBOX}=0-1,4-15") < journal.index(f"make {OWN}")
    assert str(scene.domains.made[CgroupRef(POD, OWN)].cpus) == "2-3"
    scene.bench.forget()
    scene.bench.ask(nri.StopPodSandbox(scene.pod))
    scene.loop.advance(FOLLOW_S)
    assert [line for line in journal if line.startswith(("end", f"write {SANDBOX}"))] == [
        f"end {OWN}",
        f"write {SANDBOX}=0-15",
    ]


def test_without_isolation_none_is_made() -> None:
    scene = Scene(Isolation.NONE)
    scene.live()
    assert scene.domains.made == {}


def test_what_a_reload_switches_off_is_undone(scene: Scene) -> None:
    scene.live()
    scene.bench.handler.change_node(node(lift_cpu_quota=False))
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.domains.made == {}
    assert scene.quotas.values == {OWN: 200_000, POD: 200_000}
    assert scene.reconciler.lifted == 0


def test_what_the_kernel_does_not_grant_is_said_once_and_tried_by_the_sweep(scene: Scene) -> None:
    scene.domains.trouble = "root invalid (Cpu list in cpuset.cpus not exclusive)"
    scene.live()
    scene.bench.ask(nri.RunPodSandbox(replace(pod("q"), cgroups_path="/kubepods/podq/sb")))
    scene.loop.advance(FOLLOW_S)
    assert scene.bench.journal.count(f"make {OWN}") == 1
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.bench.journal.count(f"make {OWN}") == 2
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.bench.journal.count(f"make {OWN}") == 2
    assert scene.reconciler.refused == 1
    told = scene.bench.lines.fields("no partition, it has an ordinary cpuset")
    assert told["err"] == scene.domains.trouble
    assert scene.bench.lines.texts("WARNING") == ["no partition, it has an ordinary cpuset"]
    scene.domains.trouble = ""
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.domains.made
    assert scene.reconciler.refused == 0
    assert "partition made" in scene.bench.lines.texts("INFO")


def test_what_an_earlier_agent_made_is_taken_over_at_the_start_and_when_the_runtime_is_there(
    scene: Scene,
) -> None:
    scene.live()
    assert scene.domains.adopted == [f"{OWN} 2-3"]
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.domains.adopted == [f"{OWN} 2-3"]
    scene.bench.ask(nri.Synchronize((scene.pod,), (scene.born,)))
    scene.loop.advance(FOLLOW_S)
    assert scene.domains.adopted == [f"{OWN} 2-3"] * 2


def test_what_ended_while_no_agent_ran_is_known_by_the_checkpoint() -> None:
    former = Scene()
    former.live()
    scene = Scene(state=former.bench.handler.state)
    scene.bench.ask(nri.Synchronize((), ()))
    scene.loop.advance(FOLLOW_S)
    assert scene.domains.adopted == [f"{OWN} 2-3"]


def test_it_looks_again_when_asked(scene: Scene) -> None:
    scene.live()
    scene.domains.made.clear()
    scene.reconciler.reconcile_soon()
    scene.loop.advance(FOLLOW_S)
    assert scene.domains.made


def test_one_that_does_not_end_is_said(scene: Scene) -> None:
    scene.domains.stubborn = True
    scene.live()
    assert PARTITION_STAYS in scene.bench.lines.texts("WARNING")


def test_an_outdated_pool_is_not_written_to_a_sandbox_and_the_next_round_has_the_new_one(
    scene: Scene,
) -> None:
    scene.bench.ask(nri.RunPodSandbox(scene.pod))
    scene.reconciler._begin()
    scene.live()  # takes CPUs from the pool
    ref = CgroupRef("/kubepods/podp", SANDBOX)
    scene.bench.forget()
    scene.reconciler._reconciled = State()
    assert not scene.reconciler._write_sandbox(ref, scene.bench.handler.node.topology.online)
    assert scene.bench.journal == []
    assert scene.bench.lines.texts("WARNING") == []
    scene.reconciler._reconciled = scene.bench.handler.state
    assert not scene.reconciler._write_sandbox(ref, scene.bench.handler.node.topology.online)
    assert scene.bench.lines.texts("WARNING") == [SANDBOX_STAYS]
