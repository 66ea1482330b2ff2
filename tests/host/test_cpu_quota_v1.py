"""Quotas on a real cpu hierarchy of cgroup v1: somebody writes one back, the kernel reports it, it is lifted."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.start import reconcile_kernel_settings
from nri_plugin.core.engine import decide
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.loop import Loop
from tests.agent_fakes import FakeCheckpoint, recording_log
from tests.builders import machine
from tests.host.cgroup_v1 import ROOT, needs_v1

PARENT = f"/nri_pin_quota_{os.getpid()}"
QUOTA = "cpu.cfs_quota_us"
LIMIT_S = 60.0
"""Until a hung test fails; nothing is expected to take so long."""

pytestmark = pytest.mark.root


@pytest.fixture
def pod() -> Iterator[Path]:
    quotas = CPUQuotas.beside(find_cpuset_tree(ROOT))
    if quotas is None:
        pytest.skip("needs the cpu controller: mount it beside cpuset")
    directory = Path(f"{quotas.directory}{PARENT}")
    (directory / "c").mkdir(parents=True)
    for one in (directory, directory / "c"):
        (one / QUOTA).write_text("100000")
    yield directory
    (directory / "c").rmdir()
    directory.rmdir()


class Scene:
    """An agent's keeper on a real loop; the container and its pod have a limit of one CPU."""

    def __init__(self, pod: Path) -> None:
        self.files = (pod / QUOTA, pod / "c" / QUOTA)
        record = ContainerRecord(
            "c", "u", "c", Phase.RUNNING, CgroupRef(PARENT, f"{PARENT}/c"), limit_milli=1000
        )
        owner = PodRecord(
            "u", "s", "web", "shop", qos=QOSClass.GUARANTEED, cgroup_parent=PARENT, limit_milli=1000
        )
        state = State({"u": owner}, {"c": record}, {"u/c": Allocation(CPUSet.of(1), cpu_milli=1000)})
        self.loop = Loop()
        log, self.lines = recording_log()
        handler = Handler(
            Node(machine(nodes=1, cores=2), Options(pool_floor=False), CPUSet.of(0)),
            state,
            decide=decide,
            cpusets=CpusetWriter(WritableCgroups.open(ROOT)),
            checkpoint=CheckpointSaver(FakeCheckpoint([]), state, log),
            log=log,
            clock=self.loop.clock,
        )
        self.noticed: list[str] = []
        config = SimpleNamespace(cgroup_root=ROOT)
        keeper = reconcile_kernel_settings(config, log, handler, self.loop, self.noticed.append)  # type: ignore[arg-type]
        assert keeper is not None
        self.keeper = keeper
        keeper.reconcile_soon()

    def quotas(self) -> list[str]:
        return [file.read_text().strip() for file in self.files]

    def until(self, is_so: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT_S
        self.loop.set_timer("limit", limit, lambda: None)
        while not is_so():
            assert time.monotonic() < limit
            self.loop.run_once()


@pytest.fixture
def scene(pod: Path) -> Iterator[Scene]:
    made = Scene(pod)
    made.until(lambda: made.keeper.lifted == 2)
    yield made
    made.loop.close()


@needs_v1
def test_quotas_are_lifted_and_watched(scene: Scene) -> None:
    assert scene.quotas() == ["-1", "-1"]
    assert scene.keeper.watches == 2


@needs_v1
def test_quota_of_the_pod_that_is_written_again_and_again_is_lifted_each_time(scene: Scene) -> None:
    for number in range(20):
        scene.files[0].write_text("50000")
        assert scene.quotas()[0] == "50000"
        scene.until(lambda: scene.quotas()[0] == "-1")
        assert scene.noticed == ["watch"] * (number + 1)
    assert scene.lines.texts("INFO").count("CPU quota was written back and lifted again") == 1


@needs_v1
def test_quota_of_the_container_is_lifted(scene: Scene) -> None:
    scene.files[1].write_text("50000")
    scene.until(lambda: scene.quotas() == ["-1", "-1"])
    assert scene.noticed == ["watch"]


@pytest.mark.skipif(
    not os.path.isdir("/sys/fs/cgroup/unified"), reason="needs cgroup v2 beside v1: boot hybrid"
)
def test_writes_to_a_cgroup_of_version_2_are_reported_like_those_of_version_1() -> None:
    """Here it carries no cpu controller; a core file of the same kind stands in for `cpu.max`."""
    directory = Path(f"/sys/fs/cgroup/unified{PARENT}")
    directory.mkdir()
    watch: CgroupWatch[str] = CgroupWatch(
        "/sys/fs/cgroup/unified", frozenset({"cgroup.max.depth"}), with_above=False
    )
    try:
        watch.add("pod", [str(directory)])
        assert (len(watch), watch.read()) == (1, set())
        (directory / "cgroup.max.depth").write_text("7")
        assert watch.read() == {"pod"}
    finally:
        watch.close()
        directory.rmdir()
