"""The table of kernel rules, and the simulated tree's side of it; a kernel's side is `e2e/inside/kernel_rules.py`."""

import errno
from pathlib import Path
from typing import Any

import yaml

from nri_plugin.model.sets import CPUSet, NodeMask
from tests.lab.runtime.cgroup_tree import CgroupTree, CgroupWriteError, CpusetFile

TABLE = Path(__file__).parent / "vectors" / "kernel" / "cpuset_rules.yaml"
"""Its head explains the language."""

Case = dict[str, Any]


def cases() -> list[Case]:
    """All cases, of both versions."""
    found: list[Case] = yaml.safe_load(TABLE.read_text())
    return found


def tree_for(case: Case, version: int) -> CgroupTree:
    """The tree of the machine that a case needs."""
    machine = case.get("machine", {"online": "0-1", "nodes": "0"})
    possible = machine.get("possible")
    return CgroupTree(
        online=CPUSet.parse(machine["online"]),
        possible=CPUSet.parse(possible) if possible else None,
        memory_nodes=NodeMask.parse(machine["nodes"]),
        version=version,
    )


def contradiction(tree: CgroupTree, line: str) -> str:
    """Play one line; what the tree does otherwise than the table says, empty when it agrees."""
    action, _, error = line.partition(" -> ")
    said = _do(tree, *[word if word != "-" else "" for word in action.split()])
    return "" if said == error else f"{action}: {said or 'accepted'}, not {error or 'accepted'}"


def _do(tree: CgroupTree, verb: str, path: str, *rest: str) -> str:
    """The errno's name where it is refused, other words where something else is seen."""
    actions = {"make": tree.add, "attach": tree.attach, "detach": tree.detach, "remove": tree.remove}
    try:
        if verb == "see":
            name, _, effective = rest[0].partition(".")
            seen = tree.text(path, CpusetFile(name), effective=bool(effective))
            return "" if seen == rest[1] else f"seen '{seen}'"
        if verb == "write":
            tree.write(path, CpusetFile(rest[0]), rest[1])
        elif verb == "online":
            tree.set_online(CPUSet.parse(path))
        else:
            actions[verb](path)
    except (OSError, CgroupWriteError) as refused:
        return errno.errorcode[refused.errno or 0]
    return ""
