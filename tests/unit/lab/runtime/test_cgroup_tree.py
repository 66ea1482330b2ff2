import errno
from typing import Any

import pytest

from nri_plugin.model.sets import CPUSet, NodeMask
from tests.cpuset_table import cases, contradiction, tree_for
from tests.lab.runtime.cgroup_tree import RULES, CgroupTree, CgroupWriteError, CpusetFile
from tests.topology_rows import topology_of_rows


def rules() -> list[Any]:
    return [
        pytest.param(version, case, id=f"v{version}: {case['sentence']}")
        for case in cases()
        for version in case["versions"]
    ]


@pytest.mark.parametrize(("version", "case"), rules())
def test_kernel_rule(version: int, case: dict[str, Any]) -> None:
    tree = tree_for(case, version)
    assert [said for line in case["play"] if (said := contradiction(tree, line))] == []


def test_every_rejection_rule_has_a_case() -> None:
    played = " ".join(line for case in cases() for line in case["play"])
    assert {errno.errorcode[rule.error] for rule in RULES} <= set(played.split())


def two_nodes() -> CgroupTree:
    rows = [(cpu, cpu, cpu // 2, cpu // 2, cpu // 2) for cpu in range(4)]
    return CgroupTree.of(topology_of_rows(rows, memory_bytes={0: 1 << 30, 1: 0}))


def test_a_tree_takes_cpus_and_memory_nodes_from_the_machine() -> None:
    tree = two_nodes()
    assert tree.effective_cpus("") == CPUSet.of(0, 1, 2, 3)
    assert tree.effective_mems("") == NodeMask.of(0)


def test_a_rejection_names_path_value_errno_and_rule() -> None:
    tree = two_nodes()
    tree.add("a")
    with pytest.raises(
        CgroupWriteError, match=r"a: cpuset.cpus = '9': ERANGE: an id beyond the possible ones"
    ):
        tree.write("a", CpusetFile.CPUS, "9\n")
    assert tree.own_cpus("a") == CPUSet()


def test_the_root_cannot_be_written() -> None:
    with pytest.raises(CgroupWriteError, match=r"/: cpuset\.cpus = '0': EACCES"):
        two_nodes().write("", CpusetFile.CPUS, "0")


def test_paths_come_parents_first() -> None:
    tree = two_nodes()
    tree.add("b")
    tree.add("a/x/y")
    assert list(tree) == ["", "a", "a/x", "a/x/y", "b"]


def test_an_unknown_cgroup_is_enoent() -> None:
    with pytest.raises(FileNotFoundError):
        two_nodes().own_mems("nowhere")


def test_the_root_cannot_be_removed() -> None:
    with pytest.raises(OSError, match="busy"):
        two_nodes().remove("")


def test_a_third_cgroup_version_does_not_exist() -> None:
    with pytest.raises(ValueError, match="version 3"):
        CgroupTree(online=CPUSet.of(0), memory_nodes=NodeMask.of(0), version=3)
