"""Quotas and sandboxes kept in the loop's thread, on a tree in memory and with time that is told."""

from dataclasses import replace

import pytest

from nri_plugin.app.kernel_side_keeper import SWEEP_PAUSE_S, KernelSideKeeper
from nri_plugin.errors import HostError
from nri_plugin.kernel_side import NO_QUOTA
from nri_plugin.nri import events as nri
from nri_plugin.state import CgroupRef
from tests.agent_fakes import Bench
from tests.builders import container, node, pod
from tests.unit.app.test_drift_watch import FakeLoop

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


class Scene:
    def __init__(self) -> None:
        self.bench = Bench(node())
        self.loop = FakeLoop(self.bench.clock)
        self.quotas = FakeQuotas()
        keeper = KernelSideKeeper(
            self.bench.handler,
            self.loop,
            self.bench.log,
            self.bench.cgroups,  # type: ignore[arg-type]
            self.quotas,  # type: ignore[arg-type]
        )
        self.bench.handler._observe = keeper
        keeper.start()
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
        self.loop.run_due()


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
    scene.loop.run_due()
    assert not [line for line in scene.bench.journal if SANDBOX in line]
    assert scene.quotas.writes == 2


def test_what_somebody_puts_back_is_lifted_again_by_the_sweep(scene: Scene) -> None:
    scene.live()
    scene.quotas.values[POD] = 200_000
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.quotas.values[POD] == NO_QUOTA


def test_a_sandbox_without_a_cgroup_yet_is_tried_again(scene: Scene) -> None:
    scene.bench.cgroups.missing.add(SANDBOX)
    scene.live()
    scene.bench.cgroups.missing.clear()
    scene.bench.ask(nri.RunPodSandbox(replace(pod("q"), cgroups_path="/kubepods/podq/sb")))
    scene.loop.run_due()
    assert SANDBOX in scene.bench.cgroups.values


def test_trouble_is_said_once_and_tried_again(scene: Scene) -> None:
    scene.quotas.failing.add(OWN)
    scene.bench.cgroups.failing.add(SANDBOX)
    scene.live()
    assert scene.quotas.values == {POD: NO_QUOTA}
    said = scene.bench.lines.texts("WARNING")
    assert set(said) == {"not as it should be beside the cpusets"}
    scene.quotas.failing.clear()
    scene.loop.advance(SWEEP_PAUSE_S)
    assert scene.quotas.values[OWN] == NO_QUOTA


def test_what_is_over_is_forgotten(scene: Scene) -> None:
    scene.live()
    scene.bench.ask(nri.StopPodSandbox(scene.pod))
    scene.bench.ask(nri.RemovePodSandbox(scene.pod))
    scene.loop.run_due()
    scene.quotas.values.clear()
    scene.live()
    assert scene.quotas.values == {OWN: NO_QUOTA, POD: NO_QUOTA}
