"""`nri-pin state verify` on real cpusets of cgroup v1: a container that was born while no agent ran."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.state.state import command
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.host.sysfs import discover
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.host.cgroup_v1 import ROOT, needs_v1

TOP = f"nri_pin_verify_{os.getpid()}"

pytestmark = pytest.mark.root


@pytest.fixture
def born() -> Iterator[Path]:
    """The cgroup of a container of pod u7 that nobody told the agent of, as wide as the machine."""
    tree = Path(find_cpuset_tree(ROOT).directory)
    made = [tree / TOP]
    for name in ("kubepods", "podu7", "5ab3"):
        made.append(made[-1] / name)
    for directory in made:
        directory.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            (directory / name).write_text((tree / name).read_text())
    with subprocess.Popen(["sleep", "600"]) as process:
        (made[-1] / "cgroup.procs").write_text(str(process.pid))
        yield made[-1]
        process.kill()
    for directory in reversed(made):
        directory.rmdir()


@needs_v1
def test_it_is_reported_while_it_may_run_on_an_exclusive_cpu(tmp_path: Path, born: Path) -> None:
    topology = discover()
    if len(topology.online) < 2:
        pytest.skip("needs two online CPUs: run on a larger machine")
    own = max(topology.online)
    pods = {"u1": PodRecord("u1", "s", "db-0", "shop", cgroup_parent=f"/{TOP}/kubepods/podu1")}
    state = State(pods, {}, {"u1/db": Allocation(CPUSet.of(own), cpu_milli=1000)})
    CheckpointFile(str(tmp_path), Node(topology, Options(), CPUSet()), durable=False).save(state)
    arguments = ["verify", "--state-dir", str(tmp_path), "--cgroup-root", ROOT]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    expected = f"container 5ab3 of pod u7 is not in the checkpoint and may run on CPUs {topology.online}, "
    assert f"{expected}among them exclusive ones: {own} of shop/db-0/db;" in result.output
    (born / "cpuset.cpus").write_text(str(min(topology.online)))
    assert "5ab3" not in CliRunner().invoke(command, arguments).output  # others may run here, too
