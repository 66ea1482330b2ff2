"""The table of kernel rules, played on the kernel of this machine: what the simulated tree is judged by."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host.mounts import CpusetTree, find_cpuset_tree
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet
from tests.cpuset_table import cases
from tests.e2e.inside.kernel_rules import KernelCpusets, play

ROOT = "/sys/fs/cgroup"

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


def fitting() -> list[Any]:
    """Those for the version of this kernel that need no special machine."""
    found = [case for case in cases() if "given" not in case and (not VERSION or VERSION in case["versions"])]
    return [pytest.param(case, id=case["sentence"]) for case in found]


@pytest.fixture
def kernel() -> Iterator[KernelCpusets]:
    if TREE is None:
        pytest.skip("needs a kernel's cpuset hierarchy and CPUs 0-1: run on a machine with two CPUs")
    made = KernelCpusets(Path(TREE.directory) / f"nri_pin_rules_{os.getpid()}", VERSION)
    yield made
    made.close()


@pytest.mark.parametrize("case", fitting())
def test_this_kernel_keeps_the_rule(kernel: KernelCpusets, case: dict[str, Any]) -> None:
    for line in case["play"]:
        play(kernel, line)
