"""Containers that the runtime did not report, on a tree of ordinary files; time is told, and the kernel reports directories."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.repair.drift_watch import DriftReport, DriftWatch
from nri_plugin.agent.repair.unreported import SANDBOX_S, SWEEP_PAUSE_S, UnreportedContainers
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import NRIEvent
from tests.agent_fakes import Bench
from tests.builders import container, node, pod

OWN = pod("own")
LATE = "kubepods/podlate"


class Scene:
    """An agent whose one exclusive container has CPUs 2-3 of 0-15."""

    def __init__(self, root: Path, *, hears: bool = True) -> None:
        self.root = root
        (root / "cgroup.controllers").write_text("cpuset cpu\n")
        self.bench = Bench(node(pool_floor=False))
        self.handler = self.bench.handler
        tree = find_cpuset_tree(str(root))
        self.handler.cpusets = CpusetWriter(WritableCgroups(tree))
        self.loop = Loop(self.bench.clock)
        self.reports: list[DriftReport] = []
        self.drift = DriftWatch(
            self.handler,
            self.loop,
            self.bench.log,
            watch=CgroupWatch(tree.directory) if hears else None,
            machine_moved=lambda: False,
            report=self.reports.append,
            draw=lambda: 0.5,
        )
        self.unreported = UnreportedContainers(
            self.handler, self.loop, self.bench.log, self.drift, lambda: True, lambda: None
        )
        self.handler.observers = (self.drift, self.unreported)
        self.drift.start()
        for name in ("burstable", "podown"):
            self.make(f"kubepods/{name}", processes="")
        self.ask(nri.RunPodSandbox(OWN), nri.CreateContainer(OWN, container(OWN, cpu=2)))
        self.make("kubepods/podown/own-c-0", "2-3")
        self.ask(nri.StartContainer(OWN, container(OWN, cpu=2)))

    def ask(self, *events: NRIEvent) -> None:
        for event in events:
            self.bench.ask(event)
        self.settle()

    def connect(self) -> None:
        self.ask(nri.Synchronize((OWN,), (container(OWN, cpu=2),)))

    def make(self, path: str, cpus: str = "0-15", *, processes: str = "7\n") -> None:
        """A cgroup with a process that joined before it was noticed."""
        folder = self.root / path
        folder.mkdir(parents=True)
        (folder / "cpuset.cpus").write_text(cpus)
        (folder / "cgroup.procs").write_text(processes)

    def settle(self) -> None:
        """Take turns until no timer is due and no notice waits."""
        for _ in range(50):
            self.loop.post(lambda: None)
            self.loop.run_once()

    def pass_time(self, seconds: float) -> None:
        self.bench.clock.now += seconds
        self.settle()

    def cpus(self, path: str) -> str:
        return (self.root / path / "cpuset.cpus").read_text().strip()

    def close(self) -> None:
        self.loop.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def new(**options: bool) -> Scene:
        made.append(Scene(tmp_path, **options))
        return made[-1]

    yield new
    for scene in made:
        scene.close()


def test_a_container_made_before_its_registration_was_over_is_found_with_synchronize(
    make: Callable[..., Scene],
) -> None:
    scene = make()
    for name in ("sandbox", "app"):
        scene.make(f"{LATE}/{name}")
    scene.connect()
    assert scene.cpus(f"{LATE}/app") == "0-1,4-15"
    assert scene.unreported.names == (f"{LATE}/app", f"{LATE}/sandbox")
    assert {report.cause for report in scene.reports} == {"never-told"}
    assert len(scene.bench.lines.texts("WARNING")) == 4


def test_a_container_that_nobody_told_of_is_found_when_its_cgroup_is_made(make: Callable[..., Scene]) -> None:
    scene = make()
    scene.connect()
    scene.make("kubepods/podown/debug")
    scene.settle()
    assert scene.cpus("kubepods/podown/debug") == "0-1,4-15"
    assert scene.cpus("kubepods/podown/own-c-0") == "2-3"
    scene.make(f"{LATE}/sandbox")
    scene.settle()
    scene.make(f"{LATE}/app")
    scene.settle()
    assert scene.cpus(f"{LATE}/app") == "0-1,4-15"


def test_a_pod_whose_cgroup_was_removed_and_made_again_is_still_watched(make: Callable[..., Scene]) -> None:
    scene = make()
    scene.connect()
    for time in ("first", "second"):
        scene.make(LATE, processes="")
        scene.settle()
        for name in ("sandbox", "app"):
            scene.make(f"{LATE}/{time}-{name}")
            scene.settle()
        assert scene.cpus(f"{LATE}/{time}-app") == "0-1,4-15"
        shutil.rmtree(scene.root / LATE)
        scene.settle()


def test_without_watches_it_is_found_by_the_sweep(make: Callable[..., Scene]) -> None:
    scene = make(hears=False)
    scene.connect()
    scene.make("kubepods/podown/debug")
    scene.pass_time(SWEEP_PAUSE_S)
    assert scene.cpus("kubepods/podown/debug") == "0-1,4-15"


def test_it_leaves_cpus_that_become_exclusive_at_once(make: Callable[..., Scene]) -> None:
    scene = make()
    scene.connect()
    scene.make("kubepods/podown/debug")
    scene.settle()
    for number, kept in enumerate(("0-1,6-15", "0-1,8-15", "0-1,10-15")):
        other = pod(f"x{number}")
        scene.ask(nri.RunPodSandbox(other), nri.CreateContainer(other, container(other, cpu=2)))
        assert scene.cpus("kubepods/podown/debug") == kept


def test_a_sandbox_and_a_container_that_are_reported_in_order_are_left_alone(
    make: Callable[..., Scene],
) -> None:
    scene = make()
    scene.connect()
    late = pod("late")
    scene.make(f"{LATE}/{late.id}")  # its process runs before the runtime reports it
    scene.settle()
    scene.ask(nri.RunPodSandbox(late), nri.CreateContainer(late, container(late, cpu=0.5)))
    scene.make(f"{LATE}/late-c-0")
    scene.pass_time(SANDBOX_S + 0.1)
    assert not scene.reports
    assert scene.unreported.names == ()
    assert scene.cpus(f"{LATE}/{late.id}") == "0-15"


def test_containers_of_another_kubelet_on_the_machine_are_left_alone(make: Callable[..., Scene]) -> None:
    scene = make()
    for name in ("sandbox", "app"):
        scene.make(f"other/{LATE}/{name}")
    scene.connect()
    scene.pass_time(SWEEP_PAUSE_S)
    assert scene.cpus(f"other/{LATE}/app") == "0-15"
    assert scene.unreported.names == ()


def test_a_sandbox_that_is_never_reported_is_found_after_a_moment(make: Callable[..., Scene]) -> None:
    scene = make()
    scene.connect()
    scene.make(f"{LATE}/sandbox")
    scene.settle()
    assert scene.unreported.names == ()
    scene.pass_time(SANDBOX_S + 0.1)
    assert scene.cpus(f"{LATE}/sandbox") == "0-1,4-15"


@pytest.mark.parametrize(
    ("path", "processes"),
    [
        ("kubepods/podown/own-c-0/kubepods/podlate/app", "7\n"),  # a node inside of a container
        ("kubepods/podown/own-c-0/nested", "7\n"),
        ("kubepods/podown/crio-conmon-own-c-0", "7\n"),
        ("kubepods/podown/left-behind", ""),
    ],
)
def test_a_cgroup_that_is_no_container_of_the_runtime_is_left_alone(
    make: Callable[..., Scene], path: str, processes: str
) -> None:
    scene = make()
    scene.connect()
    scene.make(path, processes=processes)
    scene.pass_time(SWEEP_PAUSE_S)
    assert scene.cpus(path) == "0-15"
    assert scene.unreported.names == ()


@pytest.mark.parametrize("how", ["reported", "ended"])
def test_a_container_that_is_reported_or_ends_is_unknown_no_longer(
    make: Callable[..., Scene], how: str
) -> None:
    scene = make()
    scene.connect()
    scene.make("kubepods/podown/own-d-0")
    scene.settle()
    assert scene.unreported.names == ("kubepods/podown/own-d-0",)
    if how == "reported":
        scene.ask(nri.StartContainer(OWN, container(OWN, "d", cpu=1)))
    else:
        (scene.root / "kubepods/podown/own-d-0/cgroup.procs").write_text("")
        scene.pass_time(SWEEP_PAUSE_S)
    assert scene.unreported.names == ()


def test_the_next_instance_on_the_cpus_of_its_pod_keeps_them(make: Callable[..., Scene]) -> None:
    scene = make()
    scene.connect()
    scene.make("kubepods/podown/again", "2-3")
    scene.settle()
    assert scene.unreported.names == ("kubepods/podown/again",)
    assert scene.cpus("kubepods/podown/again") == "2-3"
