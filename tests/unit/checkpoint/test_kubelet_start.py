"""What the kubelet would say at start; its answers to hundreds of states are in the recorded ones."""

import pytest
from msgspec.structs import replace

from nri_plugin.checkpoint.kubelet_files import (
    cpu_state_refusal,
    memory_state_refusal,
    order_dependent_nodes,
)
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.memory_state import memory_machine
from tests.unit.policy.shapes import machine


def cpu_refusal(default, assigned="", *, strict=False):
    held = {"p": {"c": CPUSet.parse(assigned)}} if assigned else {}
    return cpu_state_refusal(
        CPUSet.parse(default), held, online=CPUSet.parse("0-7"), reserved=CPUSet.parse("0-1"), strict=strict
    )


@pytest.mark.parametrize(
    ("default", "assigned", "strict", "said"),
    [
        ("0-7", "", False, ""),
        ("", "", False, ""),
        ("0-1,4-7", "2-3", False, ""),
        ("4-7", "2-3", True, ""),
        ("", "2-3", False, "default cpuset cannot be empty"),
        ("1-7", "", False, 'not all reserved cpus: "0-1" are present in defaultCpuSet: "1-7"'),
        ("1-7", "", True, 'some of strictly reserved cpus: "1" are present in defaultCpuSet: "1-7"'),
        ("0-7", "3", False, 'pod: p, container: c cpuset: "3" overlaps with default cpuset "0-7"'),
        (
            "0-6",
            "",
            False,
            'current set of available CPUs "0-7" doesn\'t match with CPUs in state "0-6"',
        ),
        ("4-7", "2", True, 'current set of available CPUs "2-7" doesn\'t match with CPUs in state "2,4-7"'),
    ],
)
def test_a_stored_cpu_state_is_judged_as_by_the_kubelet(default, assigned, strict, said):
    assert cpu_refusal(default, assigned, strict=strict) == said


GIB = 1 << 30
TWO = memory_machine(machine(2, 1, memory_bytes={0: 4 * GIB, 1: 4 * GIB}))


def stored(count, cells, used, free):
    """A NUMA node of 4 GiB as a kubelet stores it; used and free in GiB."""
    amounts = {"total": 4 * GIB, "systemReserved": 0, "allocatable": 4 * GIB}
    amounts |= {"reserved": used * GIB, "free": free * GIB}
    return {"numberOfAssignments": count, "memoryMap": {"memory": amounts}, "cells": cells}


EMPTY = {str(node): stored(0, [node], 0, 4) for node in (0, 1)}
BLOCK = MemoryBlock(NodeMask(0b11), "memory", 6 * GIB)


def grouped(first, second):
    """Both nodes in one group; (promised, free) in GiB of each."""
    return {str(node): stored(1, [0, 1], used, free) for node, (used, free) in enumerate((first, second))}


def test_a_machine_without_promises_is_accepted():
    assert memory_state_refusal(EMPTY, {}, TWO) == ""
    assert memory_state_refusal({}, {}, TWO) == ""


def test_amounts_are_compared_over_the_nodes_of_a_group():
    held = {"p": {"c": [BLOCK]}}
    assert memory_state_refusal(grouped((4, 0), (2, 2)), held, TWO) == ""
    assert memory_state_refusal(grouped((3, 1), (3, 1)), held, TWO) == ""
    differs = "the expected machine state is different from the real one"
    assert memory_state_refusal(grouped((3, 1), (2, 2)), held, TWO) == differs


@pytest.mark.parametrize(
    ("stored", "assignments", "said"),
    [
        ({}, {"p": {"c": [BLOCK]}}, "machine state can not be empty when it has memory assignments"),
        (
            {"0": EMPTY["0"]},
            {"p": {"c": [BLOCK]}},
            "(pod: p, container: c) the memory assignment uses the NUMA that does not exist",
        ),
        (
            EMPTY,
            {"p": {"c": [replace(BLOCK, resource="hugepages-1Gi")]}},
            "(pod: p, container: c) the memory assignment uses memory resource that does not exist",
        ),
        ({"0": EMPTY["0"]}, {}, "the expected machine state is different from the real one"),
        (
            {**EMPTY, "1": {**EMPTY["1"], "numberOfAssignments": 1}},
            {},
            "the expected machine state is different from the real one",
        ),
        (
            {**EMPTY, "1": {**EMPTY["1"], "cells": [0, 1, 2]}},
            {},
            "the expected machine state is different from the real one",
        ),
    ],
)
def test_a_stored_memory_state_is_refused_as_by_the_kubelet(stored, assignments, said):
    assert memory_state_refusal(stored, assignments, TWO) == said


def test_nodes_with_blocks_over_different_sets_are_those_where_the_verdict_depends_on_order() -> None:
    def block(*nodes: int) -> MemoryBlock:
        return MemoryBlock(NodeMask.of(*nodes), "memory", 1)

    held = {"p": {"a": [block(0, 1)], "b": [block(0, 1), block(2)]}, "q": {"c": [block(2)]}}
    assert order_dependent_nodes(held) == {}
    assert order_dependent_nodes({**held, "r": {"d": [block(0)]}}) == {0: [0b1, 0b11]}
