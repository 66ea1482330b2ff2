"""Allocations that a changed configuration or machine would not have made."""

import pytest

from nri_plugin.core.outdated import (
    Outdated,
    OutdatedKind,
    Overcommitted,
    allocatable_memory,
    outdated,
    overcommitted,
)
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy
from nri_plugin.model.records import Allocation, MemoryBlock, PodRecord
from nri_plugin.model.state import State
from tests.builders import GIB, cpus, node, nodes

BLOCK = MemoryBlock(nodes(0, 1), "memory", GIB)


def state(cpu_list: str, **more: object) -> State:
    return State(
        pods={"u": PodRecord("u", "s", "db", "shop")},
        allocations={"u/c": Allocation(cpus(cpu_list), **more)},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("options", "held", "reason"),
    [
        ({}, state("2-5"), None),
        (
            {"cpu_manager_policy": CPUManagerPolicy.NONE},
            state("2-5"),
            "keeps exclusive CPUs 2-5, cpuManagerPolicy none allocates none",
        ),
        ({"reserved": "2-3"}, state("2-5"), "has CPUs 2-3, which are reserved"),
        (
            {"full_pcpus_only": True},
            state("2-4"),
            "has no whole cores (2-4), full-pcpus-only gives nothing else",
        ),
        ({"full_pcpus_only": True}, state("2-5"), None),
        (
            {"topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE},
            state("6-9"),
            "is on NUMA nodes 0-1, single-numa-node allows one",
        ),
        (
            {"topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE},
            state("2-5", mems=nodes(1)),
            "is on NUMA nodes 0-1, single-numa-node allows one",
        ),
        (
            {"topology_manager_policy": TopologyManagerPolicy.RESTRICTED},
            state("6-9", affinity=nodes(0, 1), preferred=False),
            "is on NUMA nodes 0-1 without a preferred hint, restricted refuses that",
        ),
        (
            {"topology_manager_policy": TopologyManagerPolicy.RESTRICTED},
            state("6-9", affinity=nodes(0, 1)),
            None,
        ),
        ({"strict_uncore_cache": True}, state("6-9"), "is on 2 uncore caches, strictUncoreCache allows one"),
        ({"strict_uncore_cache": True}, state("2-5"), None),
        (
            {"memory_manager_policy": MemoryManagerPolicy.NONE},
            state("", memory=(BLOCK,), mems=nodes(0, 1)),
            "keeps its memory on NUMA nodes 0-1, memoryManagerPolicy None binds none",
        ),
        (
            {"memory_manager_policy": MemoryManagerPolicy.STATIC},
            state("", memory=(BLOCK,), mems=nodes(0, 7)),
            "is bound to NUMA nodes 7, which have no memory",
        ),
    ],
)
def test_who_would_not_be_placed_so_is_told_with_the_reason(
    options: dict[str, object], held: State, reason: str | None
) -> None:
    expected = [] if reason is None else [f"shop/db/c {reason}"]
    assert [str(one) for one in outdated(node(**options), held)] == expected  # type: ignore[arg-type]


def test_an_allocation_of_an_unknown_pod_is_named_by_its_key() -> None:
    held = State(allocations={"u/c": Allocation(cpus("0"))})
    assert outdated(node(), held) == [Outdated("u/c", OutdatedKind.RESERVED, cpus("0"))]


def holding(*blocks: tuple[str, tuple[int, ...], int]) -> State:
    return State(
        pods={name: PodRecord(name, "s", name, "shop") for name, _, _ in blocks},
        allocations={
            f"{name}/c": Allocation(memory=(MemoryBlock(nodes(*on), "memory", size * GIB),), mems=nodes(*on))
            for name, on, size in blocks
        },
    )


A_AND_B = ("shop/a/c", "shop/b/c")


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (holding(("a", (0,), 34)), []),
        (
            holding(("a", (0,), 20), ("b", (0,), 20)),
            [Overcommitted(nodes(0), "memory", 40 * GIB, 34 * GIB, A_AND_B)],
        ),
        (holding(("a", (0, 1), 60)), []),
        (
            holding(("a", (0, 1), 60), ("b", (1,), 10)),
            [Overcommitted(nodes(0, 1), "memory", 70 * GIB, 68 * GIB, A_AND_B)],
        ),
    ],
)
def test_more_memory_than_there_is_is_told_with_its_nodes_bytes_and_holders(
    held: State, found: list[Overcommitted]
) -> None:
    assert overcommitted(held, {(0, "memory"): 34 * GIB, (1, "memory"): 34 * GIB}) == found


def test_more_memory_than_there_is_makes_one_sentence() -> None:
    assert str(Overcommitted(nodes(0), "memory", 40, 34, A_AND_B)) == (
        "NUMA nodes 0: 40 bytes of memory are allocated and 34 are allocatable; restart some of shop/a/c, shop/b/c"
    )


def test_what_is_allocatable_counts_only_where_memory_is_allocated() -> None:
    assert allocatable_memory(node()) == {}
    static = node(memory_manager_policy=MemoryManagerPolicy.STATIC)
    assert set(allocatable_memory(static)) >= {(0, "memory"), (1, "memory")}
    assert overcommitted(holding(("a", (0,), 1000)), {}) == []
