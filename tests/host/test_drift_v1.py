"""Drift on real cpusets of cgroup v1: it happens, it is heard of, it is put right, and no watch is left behind."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.repair.drift_watch import DriftReport, DriftWatch
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.core.drift import Cause, Target
from nri_plugin.core.engine import decide
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.host.sysfs import discover
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.loop import Loop
from tests.agent_fakes import FakeCheckpoint
from tests.host.cgroup_v1 import ROOT, needs_v1

TOP = f"nri_pin_drift_{os.getpid()}"
PARENT = f"/{TOP}/pod"
LEAF = CgroupRef(PARENT, f"{PARENT}/c")

pytestmark = pytest.mark.root


@pytest.fixture
def base() -> Iterator[Path]:
    tree = Path(find_cpuset_tree(ROOT).directory)
    directories = [tree / TOP, tree / TOP / "pod", tree / TOP / "pod" / "c"]
    for directory in directories:
        directory.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            (directory / name).write_text((tree / name).read_text())
    yield tree / TOP
    for directory in reversed(directories):
        directory.rmdir()


class Scene:
    """The drift watch on a real loop; one container is promised the last CPU."""

    def __init__(self) -> None:
        topology = discover()
        if len(topology.online) < 2:
            pytest.skip("needs two online CPUs: run on a larger machine")
        self.own = CPUSet.of(max(topology.online))
        record = ContainerRecord("c", "u", "c", Phase.RUNNING, LEAF)
        state = State(
            {"u": PodRecord("u", "s", "web", "shop", cgroup_parent=PARENT)},
            {"c": record},
            {"u/c": Allocation(self.own, cpu_milli=1000)},
        )
        log = logging.Logger("test")  # noqa: LOG001 - of this bench alone
        self.loop = Loop()
        self.cgroups = WritableCgroups.open(ROOT)
        self.watch: CgroupWatch[Target] = CgroupWatch(self.cgroups.tree.directory)
        self.reports: list[DriftReport] = []
        self.handler = Handler(
            Node(topology, Options(pool_floor=False), CPUSet()),
            state,
            decide=decide,
            cpusets=CpusetWriter(self.cgroups),
            checkpoint=CheckpointSaver(FakeCheckpoint([]), state, log),
            log=log,
            clock=self.loop.clock,
        )
        DriftWatch(
            self.handler,
            self.loop,
            log,
            watch=self.watch,
            machine_moved=lambda: False,
            report=self.reports.append,
        ).start()

    def until(self, count: int) -> DriftReport:
        limit = time.monotonic() + 30
        self.loop.set_timer("limit", limit, lambda: None)
        while len(self.reports) < count and time.monotonic() < limit:
            self.loop.run_once()
        return self.reports[count - 1]

    def close(self) -> None:
        self.watch.close()
        self.loop.close()


@pytest.fixture
def scene(base: Path) -> Iterator[Scene]:
    made = Scene()
    made.until(1)  # it was made as wide as the machine, which the first look puts right
    yield made
    made.close()


@needs_v1
def test_first_look_puts_right_what_drifted_before(scene: Scene) -> None:
    assert scene.reports[0].cause is Cause.ALL_CPUS
    assert scene.cgroups.read_effective(LEAF) == scene.own


@needs_v1
def test_foreign_write_happens_is_heard_of_and_put_right(scene: Scene, base: Path) -> None:
    everything = scene.handler.node.topology.online
    (base / "pod/c/cpuset.cpus").write_text(str(everything))
    assert scene.cgroups.read_effective(LEAF) == everything
    report = scene.until(2)
    assert (report.noticed_by, report.error) == ("watch", "")
    assert scene.cgroups.read_effective(LEAF) == scene.own


@needs_v1
def test_narrowed_parent_is_widened_again(scene: Scene, base: Path) -> None:
    first = str(min(scene.handler.node.topology.online))
    (base / "pod/c/cpuset.cpus").write_text(first)
    (base / "pod/cpuset.cpus").write_text(first)
    report = scene.until(2)
    assert report.error == ""
    assert scene.cgroups.read_effective(LEAF) == scene.own


@needs_v1
def test_ten_thousand_lives_leave_no_watch(base: Path) -> None:
    watch: CgroupWatch[str] = CgroupWatch(str(base.parent))
    for number in range(10_000):
        directory = base / str(number)
        directory.mkdir()
        watch.add(str(number), [str(directory)])
        (directory / "cpuset.cpus").write_text("0")
        assert watch.read() == {str(number)}
        directory.rmdir()
        watch.discard(str(number))
    assert len(watch) == 0
    assert "inotify wd:" not in Path(f"/proc/self/fdinfo/{watch.fileno()}").read_text()
    watch.close()
