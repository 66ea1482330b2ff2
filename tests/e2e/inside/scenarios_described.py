"""Pods on a machine that does not exist: what reached the OCI runtime and the cgroup files, against the checkpoint.

The recording runtime stands between the real container runtime and runc, so CPU 190 is as good as any. The agent reads
the described machine and writes to a tree of plain files; nothing else differs from a node.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import recorder
from .agent import PYTHON
from .node import Node, Pod
from .observe import format_list, parse_list
from .pods import burstable, guaranteed
from .promises import Promise, promises

_BUILD = "import sys; from nri_plugin.simulator.machine.machine import build_sysfs, load; build_sysfs(load(sys.argv[1]), sys.argv[2])"


@dataclass(frozen=True, slots=True)
class Described:
    """A machine that was built as files: its root and its CPUs by NUMA node."""

    name: str
    root: Path
    nodes: dict[int, set[int]]


def build_machine(name: str) -> Described:
    """Build a described machine with the product's own builder, below a directory of its own."""
    root = Path("/run/lab/machines") / name
    root.mkdir(parents=True)
    subprocess.run([PYTHON, "-c", _BUILD, name, str(root)], check=True)
    files = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    return Described(name, root, {int(path.parent.name[4:]): parse_list(path.read_text()) for path in files})


def what_runc_is_given_equals_the_checkpoint(node: Node, machine: Described) -> None:
    """Exclusive pods of three sizes between shared ones; every value given to runc is the promised one."""
    largest = max(len(cpus) for cpus in machine.nodes.values())
    if sum(map(bool, machine.nodes.values())) == 1:
        largest //= 2  # the reserved CPU and the shared pool are on that node too
    pods = [burstable("first"), guaranteed("largest", largest), guaranteed("pair", 2), burstable("second")]
    for spec in pods:
        pod = node.run(spec)
        _given_is_promised(node, machine, pod.id, "create")
    _files_are_promised(node, machine)
    _exclusive_are_apart(node, machine, {"largest/main": largest, "pair/main": 2})


def an_update_by_the_runtime_brings_our_cpuset(node: Node, machine: Described) -> None:
    """A shares-only update of every container: runc is given the promised cpuset again, or none."""
    for pod in node.pods:
        node.update(pod, cpu_shares=_shares_for(pod))
        _given_is_promised(node, machine, pod.id, "update")
    _files_are_promised(node, machine)


def what_ends_is_given_back(node: Node, machine: Described) -> None:
    """The exclusive pods end, the shared ones get their CPUs; then everything ends."""
    for pod in [pod for pod in node.pods if pod.spec.qos == "guaranteed"]:
        node.remove(pod)
    _files_are_promised(node, machine)
    for name, promise in _promised(node).items():
        everything = set().union(*machine.nodes.values())
        node.equal(f"{machine.name}: {name} may run everywhere again", promise.cpus, everything)
    node.remove_all()
    shown = node.agent.state()
    node.equal(f"{machine.name}: the checkpoint is empty", [shown["containers"], shown["waiting"]], [[], []])


def _shares_for(pod: Pod) -> int:
    """Other shares for a shared container, the same for an exclusive one, which is to keep its size here."""
    container = pod.spec.containers[0]
    return pod.spec.resources(container)["cpu_shares"] if pod.spec.qos == "guaranteed" else 300


def _given_is_promised(node: Node, machine: Described, identity: str, call: str) -> None:
    promise = promises(node.agent.state())[identity]
    given = _last_record(identity, call)
    name = next(name for name, running in node.running().items() if running == identity)
    where = f"{machine.name}: {call} of {name}"
    wanted = [format_list(promise.cpus), format_list(promise.mems)]
    seen = [format_list(parse_list(given["cpus"])), format_list(parse_list(given["mems"]))]
    if call == "create":
        node.equal(f"{where} brings the promised cpus and mems", seen, wanted)
    else:  # mems of a running container are not rewritten
        node.equal(f"{where} brings the promised cpus", seen[0], wanted[0])
        node.expect(
            f"{where} brings no other mems", seen[1] in {"", wanted[1]}, f"seen {seen[1]}, wanted {wanted[1]}"
        )


def _files_are_promised(node: Node, machine: Described) -> None:
    promised = promises(node.agent.state())
    for name, identity in node.running().items():
        path = Path(recorder.TREE + _last_record(identity, "create")["cgroup"]) / "cpuset.cpus"
        seen = format_list(parse_list(path.read_text()))
        node.equal(f"{machine.name}: cpuset.cpus of {name}", seen, format_list(promised[identity].cpus))


def _exclusive_are_apart(node: Node, machine: Described, sizes: dict[str, int]) -> None:
    promised = _promised(node)
    for name, size in sizes.items():
        node.equal(f"{machine.name}: {name} has {size} CPUs", len(promised[name].cpus), size)
        nodes = {number for number, cpus in machine.nodes.items() if cpus & promised[name].cpus}
        node.equal(
            f"{machine.name}: the memory of {name} is on the NUMA nodes of its CPUs",
            promised[name].mems,
            nodes,
        )
        others = set().union(*(promise.cpus for other, promise in promised.items() if other != name))
        node.equal(f"{machine.name}: nobody else has CPUs of {name}", promised[name].cpus & others, set())


def _promised(node: Node) -> dict[str, Promise]:
    by_id = promises(node.agent.state())
    return {name: by_id[identity] for name, identity in node.running().items()}


def _last_record(identity: str, call: str) -> dict[str, Any]:
    lines = map(json.loads, Path(recorder.RECORD).read_text().splitlines())
    found: dict[str, Any] = [line for line in lines if line["id"] == identity and line["call"] == call][-1]
    return found
