"""The table of kernel rules, played on the kernel of this machine: what the simulated tree is judged by."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup_root import CpusetTree, find_cpuset_tree

ROOT = "/sys/fs/cgroup"
TABLE = Path(__file__).parents[1] / "vectors" / "kernel" / "cpuset_rules.yaml"
EFFECTIVE = {1: "cpuset.effective_{}", 2: "cpuset.{}.effective"}

pytestmark = pytest.mark.root


def kernel_tree() -> CpusetTree | None:
    try:
        tree = find_cpuset_tree(ROOT)
    except HostError:
        return None
    online = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
    return tree if tree.is_kernel and CPUSet.of(0, 1) <= online else None


TREE = kernel_tree()
VERSION = TREE.version if TREE else 0


def cases() -> list[Any]:
    """Those for the version of this kernel that need no special machine."""
    table = yaml.safe_load(TABLE.read_text())
    fitting = [case for case in table if "given" not in case and (not VERSION or VERSION in case["versions"])]
    return [pytest.param(case, id=case["sentence"]) for case in fitting]


class Kernel:
    """A cpuset of CPUs 0-1 and node 0 on this machine; everything in it is made and removed here."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        base.mkdir()
        put(base / "cpuset.cpus", "0-1")
        put(base / "cpuset.mems", "0")

    def do(self, verb: str, path: str, *rest: str) -> None:
        directory = self.base / path
        if verb == "make":
            self.make(directory)
        elif verb == "write":
            put(directory / f"cpuset.{rest[0]}", rest[1])
        elif verb == "see":
            name, _, effective = rest[0].partition(".")
            file = EFFECTIVE[VERSION].format(name) if effective else f"cpuset.{name}"
            assert (directory / file).read_text().strip() == rest[1]
        elif verb == "attach":
            self.attach(directory, path)
        elif verb == "detach":
            self.end(path)
        else:
            directory.rmdir()

    def make(self, directory: Path) -> None:
        if not directory.exists():
            self.make(directory.parent)
            if VERSION == 2:
                put(directory.parent / "cgroup.subtree_control", "+cpuset")
            directory.mkdir()

    def attach(self, directory: Path, path: str) -> None:
        if path not in self.processes:  # it is still outside when it was not let in
            self.processes[path] = subprocess.Popen(["sleep", "300"])
        put(directory / "cgroup.procs", str(self.processes[path].pid))

    def end(self, path: str) -> None:
        process = self.processes.pop(path)
        process.kill()
        process.wait()

    def close(self) -> None:
        for path in list(self.processes):
            self.end(path)
        for directory, _, _ in os.walk(self.base, topdown=False):
            Path(directory).rmdir()


def put(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    if TREE is None:
        pytest.skip("needs a kernel's cpuset hierarchy and CPUs 0-1: run on a machine with two CPUs")
    made = Kernel(Path(TREE.directory) / f"nri_pin_rules_{os.getpid()}")
    yield made
    made.close()


@pytest.mark.parametrize("case", cases())
def test_this_kernel_keeps_the_rule(kernel: Kernel, case: dict[str, Any]) -> None:
    for line in case["play"]:
        action, _, error = line.partition(" -> ")
        words = [word if word != "-" else "" for word in action.split()]
        if not error:
            kernel.do(*words)
            continue
        with pytest.raises(OSError) as caught:
            kernel.do(*words)
        assert errno.errorcode[caught.value.errno or 0] == error, line
