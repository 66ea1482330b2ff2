"""Real cpusets of cgroup v1, made for the test below the machine's own and removed again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet, NodeMask
from tests.host.cgroup_v1 import ROOT, needs_v1

TOP = f"nri_pin_test_{os.getpid()}"
POD = CgroupRef(f"/{TOP}")
LEAF = CgroupRef(f"/{TOP}", f"/{TOP}/leaf")

pytestmark = pytest.mark.root


@pytest.fixture
def online() -> CPUSet:
    cpus = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text())
    if len(cpus) < 2:
        pytest.skip("needs two online CPUs: run on a larger machine")
    return cpus


@pytest.fixture
def cgroups(online: CPUSet) -> Iterator[WritableCgroups]:
    opened = WritableCgroups.open(ROOT)
    base = Path(opened.tree.directory)
    (base / TOP / "leaf").mkdir(parents=True)
    for directory in (base / TOP, base / TOP / "leaf"):
        (directory / "cpuset.cpus").write_text(str(online))
        (directory / "cpuset.mems").write_text("0")
    yield opened
    (base / TOP / "leaf").rmdir()
    (base / TOP).rmdir()


@needs_v1
def test_kernel_holds_what_was_written(cgroups: WritableCgroups, online: CPUSet) -> None:
    first = CPUSet.of(next(iter(online)))
    assert cgroups.write_cpus(LEAF, first) is WriteOutcome.WRITTEN
    assert cgroups.write_cpus(LEAF, first) is WriteOutcome.UNCHANGED
    assert cgroups.read_cpus(LEAF) == cgroups.read_effective(LEAF) == first
    assert cgroups.read_mems(LEAF) == cgroups.read_effective_mems(LEAF) == NodeMask.of(0)
    assert cgroups.write_cpus(LEAF, online) is WriteOutcome.WRITTEN
    assert cgroups.read_effective(LEAF) == online


@needs_v1
def test_parent_that_would_shrink_below_its_child_is_refused_in_words(
    cgroups: WritableCgroups, online: CPUSet
) -> None:
    with pytest.raises(HostError, match="would take CPUs away from a cgroup below it"):
        cgroups.write_cpus(POD, CPUSet.of(next(iter(online))))
    assert cgroups.read_cpus(POD) == online


@needs_v1
def test_child_that_would_leave_its_parent_is_refused_in_words(
    cgroups: WritableCgroups, online: CPUSet
) -> None:
    first, second = list(online)[:2]
    cgroups.write_cpus(LEAF, CPUSet.of(first))
    cgroups.write_cpus(POD, CPUSet.of(first))
    with pytest.raises(HostError, match=f"{second} is not within its parent's CPUs {first}"):
        cgroups.write_cpus(LEAF, CPUSet.of(second))


@needs_v1
def test_id_beyond_the_possible_ones_is_refused_in_words(cgroups: WritableCgroups) -> None:
    with pytest.raises(HostError, match="an id in 8191 is beyond"):
        cgroups.write_cpus(LEAF, CPUSet.of(8191))


@needs_v1
def test_missing_cgroup_is_missing_and_not_made(cgroups: WritableCgroups) -> None:
    gone = CgroupRef("", f"/{TOP}/gone")
    assert cgroups.write_cpus(gone, CPUSet.of(0)) is WriteOutcome.MISSING
    assert not Path(cgroups.directory(gone)).exists()


@needs_v1
def test_container_with_cgroups_of_its_own_is_narrowed_and_moved_with_them(
    cgroups: WritableCgroups, online: CPUSet
) -> None:
    inner = [CgroupRef("", f"{LEAF.path}/{name}") for name in ("inner", "inner/most", "unset")]
    directories = [Path(cgroups.directory(ref)) for ref in inner]
    first, second = (CPUSet.of(cpu) for cpu in list(online)[:2])
    for directory in directories:
        directory.mkdir()
    try:
        for ref in inner[:2]:
            assert cgroups.write_cpus(ref, online) is WriteOutcome.WRITTEN
        for wanted in (first, second, online, second):
            assert cgroups.write_cpus(LEAF, wanted) is WriteOutcome.WRITTEN
            assert cgroups.read_cpus(LEAF) == wanted
            assert all((cgroups.read_cpus(ref) or CPUSet()) <= wanted for ref in inner)
        assert [cgroups.read_cpus(ref) for ref in inner] == [second, second, CPUSet()]
    finally:
        for directory in (directories[1], directories[0], directories[2]):
            directory.rmdir()
