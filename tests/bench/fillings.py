"""Machines that are partly full, and requests on them: what merging has to deal with."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.hints import Provider
from nri_plugin.policy.memory_assignment import memory_hint_sets
from nri_plugin.policy.memory_state import MemoryState, memory_machine, memory_state
from nri_plugin.policy.search.mask_order import Distances, distances_of
from nri_plugin.simulator.machine.machine import build_topology, parse

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Filled:
    """A machine and what is free on it, and a request: hint sets of the CPU and the memory provider."""

    nodes: NodeMask
    tables: CPUTables
    free: CPUSet
    count: int
    hint_sets: tuple[Provider, ...]
    distances: Distances | None


def fillings(topology: Topology, cases: int, seed: str) -> Iterator[Filled]:
    """Each node is free, full or anything between; requests from one CPU to all that are free."""
    rng = random.Random(seed)
    tables = cpu_tables(topology)
    machine = memory_machine(topology)
    distances = distances_of(topology)
    for _ in range(cases):
        free = CPUSet.from_ids(cpu for _, cpus in tables.nodes for cpu in _some(cpus, rng))
        used = [
            block
            for node in machine.nodes
            for block in _block(machine.allocatable["memory"][node], node, rng)
        ]
        count = rng.randint(1, max(1, len(free) // rng.choice([1, 2, 4, 8, 16])))
        yield Filled(
            topology.node_mask,
            tables,
            free,
            count,
            (
                cpu_hint_sets(tables, count, free),
                _memory(memory_state(machine, [used]), count, len(free), rng),
            ),
            distances,
        )


def levels(nodes: int, crossing: int = 0) -> Topology:
    """A machine built in levels: as many sockets of up to four nodes as it takes, boards of four sockets.

    With a crossing, the odd sockets are on another plane, that much farther from all even ones.
    """
    each = next(size for size in (4, 3, 2, 1) if nodes % size == 0)
    sockets = nodes // each

    def far(one: int, other: int) -> int:
        if one == other:
            return 10
        one, other = one // each, other // each
        level = 12 if one == other else 20 if one // 4 == other // 4 else 32
        return level + crossing * ((one ^ other) & 1)

    rows = [[far(one, other) for other in range(nodes)] for one in range(nodes)]
    text = f"topology: pack:{sockets} numa:{each}(memory=64GiB) l3:2 core:4 pu:2(indexes=core)\n"
    return build_topology(parse(f"{text}distances: {rows}\n", f"{nodes} nodes in levels"))


def _some(cpus: int, rng: random.Random) -> list[int]:
    every = list(CPUSet(cpus))
    share = rng.choice([0, 1, 1, rng.random()])
    return rng.sample(every, round(share * len(every)))


def _block(total: int, node: int, rng: random.Random) -> list[MemoryBlock]:
    size = total // GIB * rng.choice([0, 0, 0, rng.randint(0, 4)]) // 4 * GIB
    return [MemoryBlock(NodeMask.of(node), "memory", size)] if size else []


def _memory(state: MemoryState, count: int, free_cpus: int, rng: random.Random) -> Provider:
    free = sum(state.free("memory").values())
    share = rng.choice([0, rng.random() / 8, min(1.0, count / max(1, free_cpus))])
    size = int(free * share) // GIB * GIB
    return memory_hint_sets(state, {"memory": size}) if size else None
