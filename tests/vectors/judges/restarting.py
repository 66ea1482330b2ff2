"""What a restart makes of the state that a recorded sequence ends with: the kubelet's, and ours."""

from collections.abc import Iterable, Mapping
from typing import Any

from nri_plugin.checkpoint.kubelet_files import (
    cpu_state_refusal,
    memory_state_refusal,
)
from nri_plugin.core.synchronize import synchronize
from nri_plugin.model.options import Node
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri.events import Synchronize
from tests import builders
from tests.vectors.judges.managers import CPUManager, MemoryManager
from tests.vectors.judges.verdict import Case


def cpu_refusal(manager: CPUManager) -> str:
    """What a fresh static CPU policy of the kubelet says of this state; empty when it starts."""
    assignments: dict[str, dict[str, CPUSet]] = {}
    for (uid, name), cpus in manager.held.items():
        assignments.setdefault(uid, {})[name] = cpus
    return cpu_state_refusal(
        manager.default,
        assignments,
        online=CPUSet(manager.tables.online),
        reserved=manager.reserved,
        strict=manager.options.strict_cpu_reservation,
    )


def loses_something(manager: CPUManager, topology: Topology) -> str:
    """What our restart on this state would not keep; empty when it keeps all."""
    node = Node(topology, manager.options, manager.reserved)
    pods = {uid: builders.pod(uid) for uid, _ in manager.held}
    containers = [
        builders.container(pods[uid], name, cpu=len(cpus), cpus=str(cpus))
        for (uid, name), cpus in manager.held.items()
    ]
    ids = {key: container.id for key, container in zip(manager.held, containers, strict=True)}
    before = State(
        {uid: PodRecord(uid, pod.id, qos=QOSClass.GUARANTEED) for uid, pod in pods.items()},
        {
            ids[uid, name]: ContainerRecord(ids[uid, name], uid, name, Phase.RUNNING, CgroupRef("/kubepods"))
            for uid, name in manager.held
        },
        _allocations(manager.held),
    )
    after = synchronize(node, before, Synchronize(tuple(pods.values()), tuple(containers))).state
    if after.allocations != before.allocations:
        return f"our restart makes {after.allocations} of {before.allocations}"
    return "; ".join(map(str, violations(node, after)))


def _allocations(held: Mapping[tuple[str, str], CPUSet]) -> dict[str, Allocation]:
    """Each CPU with the container that got it last, as our state has it."""
    by_key: dict[str, Allocation] = {}
    for (uid, name), cpus in held.items():
        by_key = {key: Allocation(cpus=one.cpus - cpus) for key, one in by_key.items()}
        by_key[f"{uid}/{name}"] = Allocation(cpus=cpus)
    return by_key


def memory_refusal(manager: MemoryManager, case: Case) -> str:
    """What a fresh static Memory Manager of the kubelet says of the recorded state; empty when it starts."""
    last = case["expect"]["steps"][-1]["machine"] if case["expect"]["steps"] else manager.shown()
    stored = {
        str(node): stored_node(shown, shown["group"])
        for node, shown in _whole(case["expect"]["initial"], last).items()
    }
    assignments: dict[str, dict[str, object]] = {}
    for (uid, name), blocks in manager.blocks.items():
        assignments.setdefault(uid, {})[name] = blocks
    return memory_state_refusal(stored, assignments, manager.machine)  # type: ignore[arg-type]


def stored_node(shown: Case, group: Iterable[int]) -> Mapping[str, Any]:
    """A NUMA node of a recorded state as a kubelet's file has it."""
    spelled = {"system_reserved": "systemReserved"}
    return {
        "numberOfAssignments": shown["assignments"],
        "memoryMap": {
            name: {spelled.get(key, key): size for key, size in amounts.items()}
            for name, amounts in shown["memory"].items()
        },
        "cells": list(group),
    }


def _whole(initial: Case, last: Case) -> Case:
    """The last machine, which tells only what changes, with the rest from the initial one."""
    return {
        node: {
            "assignments": assignments,
            "group": group,
            "memory": {
                name: {**initial[node]["memory"][name], "reserved": reserved, "free": free}
                for name, (reserved, free) in by_name.items()
            },
        }
        for node, (assignments, group, by_name) in last.items()
    }


def as_at_first(manager: MemoryManager) -> Case:
    """The machine before the first step, as the recordings show it, but for what a node has none of."""
    machine, state = manager.machine, manager.state
    shown = {
        str(node): {
            "assignments": state.assignments[node],
            "cells": [other for other in machine.nodes if state.group[node] >> other & 1],
            "memory": {
                name: {
                    "total": total[node],
                    "system_reserved": machine.reserved[name][node],
                    "allocatable": machine.allocatable[name][node],
                    "reserved": state.allocated.get((node, name), 0),
                    "free": state.free(name)[node],
                }
                for name, total in machine.total.items()
            },
        }
        for node in machine.nodes
    }
    return without_nothing(shown)


def without_nothing(machine: Case) -> Case:
    """`machine` without the page sizes that a node has no pages of."""
    return {
        node: {**shown, "memory": {name: one for name, one in shown["memory"].items() if any(one.values())}}
        for node, shown in machine.items()
    }
