import errno
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.cpuset import CPUSet
from nri_plugin.nodemask import NodeMask
from nri_plugin.simulator.cgroup_rules import RULES
from nri_plugin.simulator.cgroup_tree import CgroupTree, CgroupWriteError, Resource
from nri_plugin.topology import Topology

CASES = Path(__file__).parents[2] / "vectors" / "kernel" / "cpuset_rules.yaml"


def rules() -> list[Any]:
    cases = yaml.safe_load(CASES.read_text())
    return [
        pytest.param(version, case, id=f"v{version}: {case['sentence']}")
        for case in cases
        for version in case["versions"]
    ]


def tree_for(case: dict[str, Any], version: int) -> CgroupTree:
    machine = case.get("machine", {"online": "0-1", "nodes": "0"})
    possible = machine.get("possible")
    return CgroupTree(
        online=CPUSet.parse(machine["online"]),
        possible=CPUSet.parse(possible) if possible else None,
        memory_nodes=NodeMask.parse(machine["nodes"]),
        version=version,
    )


def play(tree: CgroupTree, line: str) -> None:
    action, _, error = line.partition(" -> ")
    words = [word if word != "-" else "" for word in action.split()]
    if not error:
        do(tree, *words)
        return
    with pytest.raises((OSError, CgroupWriteError)) as caught:
        do(tree, *words)
    assert errno.errorcode[caught.value.errno] == error, line


def do(tree: CgroupTree, verb: str, path: str, *rest: str) -> None:
    if verb == "write":
        tree.write(path, Resource(rest[0]), rest[1])
    elif verb == "see":
        name, _, effective = rest[0].partition(".")
        assert tree.text(path, Resource(name), effective=bool(effective)) == rest[1]
    elif verb == "online":
        tree.set_online(CPUSet.parse(path))
    else:
        actions = {"make": tree.add, "attach": tree.attach, "detach": tree.detach, "remove": tree.remove}
        actions[verb](path)


@pytest.mark.parametrize(("version", "case"), rules())
def test_kernel_rule(version: int, case: dict[str, Any]) -> None:
    tree = tree_for(case, version)
    for line in case["play"]:
        play(tree, line)


def test_every_rejection_rule_has_a_case() -> None:
    played = " ".join(line for case in yaml.safe_load(CASES.read_text()) for line in case["play"])
    assert {errno.errorcode[rule.error] for rule in RULES} <= set(played.split())


def two_nodes() -> CgroupTree:
    rows = [(cpu, cpu, cpu // 2, cpu // 2, cpu // 2) for cpu in range(4)]
    return CgroupTree.of(Topology.from_rows(rows, memory_bytes={0: 1 << 30, 1: 0}))


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
        tree.write("a", Resource.CPUS, "9\n")
    assert tree.own_cpus("a") == CPUSet()


def test_the_root_cannot_be_written() -> None:
    with pytest.raises(CgroupWriteError, match=r"/: cpuset\.cpus = '0': EACCES"):
        two_nodes().write("", Resource.CPUS, "0")


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
