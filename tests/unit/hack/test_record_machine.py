"""A recording holds all that discovery reads, and nothing that names the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.host.sysfs import discover, read_facts, read_topology
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.simulator.machine.machine import build_sysfs, parse
from tests.oracles.recordings import RecordedFiles, read_recording

SCRIPT = Path(__file__).parents[3] / "hack" / "record-machine"
TEXT = "# Secret model\ntopology: pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:2(indexes=core)\nnodes:\n  5: {cpus: none, memory: 16Gi}\n  0-1: {hugepages: {2Mi: 1}}\noffline: 3\nqueues: {0-1: 1}"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True, check=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_sysfs(parse(TEXT), str(tmp_path / "root"))
    return tmp_path / "root"


def test_a_recording_reads_like_the_machine(root: Path, tmp_path: Path) -> None:
    device = root / "sys/devices/pci0000:00/0000:00:01.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (device / "serial").write_text("secret")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:00:01.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0")
    output = tmp_path / "mine.json.gz"
    assert run(str(output), "--root", str(root)).returncode == 0
    recorded = read_recording(output)
    assert read_topology(RecordedFiles(recorded)) == discover(str(root))
    assert read_facts(RecordedFiles(recorded)) == read_facts(KernelFiles(str(root)))
    assert "secret" not in str(recorded).lower()


def test_a_directory_that_is_no_root_is_refused(tmp_path: Path) -> None:
    result = run(str(tmp_path / "x.json.gz"), "--root", str(tmp_path))
    assert result.returncode == 2
    assert "holds no sys/devices/system/cpu; name a directory that holds sys and proc" in result.stderr
    assert not (tmp_path / "x.json.gz").exists()
