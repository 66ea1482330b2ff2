"""The CPU affinity of a runtime on real cpusets of cgroup v1: its container has it, and is reset once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.repair.affinity import SWEEP_PAUSE_S, InheritedAffinities
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.state.state import command
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.host.sysfs import discover
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import PostStartContainer
from nri_plugin.wire.nri.messages import Container, Pod
from tests.agent_fakes import Bench
from tests.host.cgroup_v1 import ROOT, needs_v1

NAME = f"nri_pin_affinity_{os.getpid()}"
STARTER = """
import os, subprocess, sys
os.sched_setaffinity(0, eval(sys.argv[1]))
made = subprocess.Popen(["sleep", "600"], preexec_fn=lambda: os.sched_setaffinity(0, eval(sys.argv[2])))
print(made.pid, flush=True)
sys.stdin.read()
made.kill()
made.wait()
"""

pytestmark = [pytest.mark.root, needs_v1]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    tree = Path(find_cpuset_tree(ROOT).directory)
    directory = tree / NAME
    directory.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        (directory / name).write_text((tree / name).read_text())
    yield directory
    directory.rmdir()


@contextmanager
def started(cgroup: Path, runtime: set[int], program: set[int]) -> Iterator[int]:
    """A process in the cgroup with the mask `program`, whose parent is outside and has the mask `runtime`."""
    command = [sys.executable, "-c", STARTER, repr(runtime), repr(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        pid = int(parent.stdout.readline())
        (cgroup / "cgroup.procs").write_text(str(pid))
        yield pid
        parent.stdin.close()


class Scene:
    def __init__(self, state_dir: Path) -> None:
        topology = discover()
        if len(topology.online) < 2:
            pytest.skip("needs two online CPUs: run on a larger machine")
        self.all, self.one = set(topology.online), {min(topology.online)}
        record = ContainerRecord("c", "u", "main", Phase.RUNNING, CgroupRef("/", f"/{NAME}"))
        state = State({"u": PodRecord("u", "s", "web", "shop", cgroup_parent="/")}, {"c": record})
        node = Node(topology, Options(pool_floor=False), CPUSet())
        CheckpointFile(str(state_dir), node, durable=False).save(state)
        self.state_dir, self.bench, self.counted = state_dir, Bench(node, state), list[str]()
        self.bench.handler.cpusets = CpusetWriter.on(find_cpuset_tree(ROOT))
        self.loop = Loop(self.bench.clock)
        handler = self.bench.handler
        handler.observers = (InheritedAffinities(handler, self.loop, self.bench.log, self.counted.append),)

    def start(self) -> None:
        """The runtime reports that the container runs."""
        pod = Pod(id="s", uid="u", name="web", namespace="shop")
        self.bench.ask(PostStartContainer(pod, Container(id="c", pod_id="s", name="main")))
        self.loop.run_once()

    def verified(self) -> str:
        return (
            CliRunner()
            .invoke(command, ["verify", "--state-dir", str(self.state_dir), "--cgroup-root", ROOT])
            .output
        )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.loop.close()


def test_a_container_that_has_the_affinity_of_the_runtime_is_named_and_reset_once(
    scene: Scene, cgroup: Path
) -> None:
    with started(cgroup, scene.one, scene.one) as pid:
        told = f"shop/web/main runs on CPUs {min(scene.one)} of {CPUSet.from_ids(scene.all)}: it has the CPU affinity"
        assert told in scene.verified()
        scene.start()
        assert os.sched_getaffinity(pid) == scene.all
        assert "affinity" not in scene.verified()
        assert scene.counted == ["reset"]
        assert len(scene.bench.lines.texts("WARNING")) == 1
        # From now on it is the program's own.
        os.sched_setaffinity(pid, scene.one)
        scene.bench.clock.now += SWEEP_PAUSE_S
        scene.start()
        assert os.sched_getaffinity(pid) == scene.one


@pytest.mark.parametrize("runtime_is_narrow", [False, True])
def test_a_program_that_has_chosen_its_cpus_keeps_them(
    scene: Scene, cgroup: Path, runtime_is_narrow: bool
) -> None:
    own = {max(scene.all)}
    with started(cgroup, scene.one if runtime_is_narrow else scene.all, own) as pid:
        assert "affinity" not in scene.verified()
        scene.start()
        assert os.sched_getaffinity(pid) == own
        assert scene.counted == []


def test_a_container_with_more_rights_than_the_agent_is_left_and_told(
    scene: Scene, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with started(cgroup, scene.one, scene.one) as pid:
        monkeypatch.setattr(os, "sched_setaffinity", refused)
        scene.start()
        assert scene.counted == ["left"]
        assert f"process {pid}: its CPU affinity cannot be reset: operation not permitted" in str(
            scene.bench.lines.lines
        )


def test_a_container_beside_the_affinity_of_the_runtime_has_all_cpus_that_its_cgroup_gets_later(
    scene: Scene, cgroup: Path
) -> None:
    (cgroup / "cpuset.cpus").write_text(str(max(scene.all)))
    with started(cgroup, scene.one, scene.one) as pid:
        scene.start()
        (cgroup / "cpuset.cpus").write_text(str(CPUSet.from_ids(scene.all)))
        assert os.sched_getaffinity(pid) == scene.all
        assert scene.counted == []
