"""Memory of each node: allocatable, allocated, grouped."""

from nri_plugin.model.options import ReservedMemory
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet, NodeMask, NUMANodeID
from nri_plugin.model.topology import NUMANode, Topology
from nri_plugin.policy.memory_state import (
    MemoryState,
    memory_machine,
    memory_state,
)
from tests.oracles.manager_steps import without_blocks
from tests.unit.policy.shapes import machine

TWO = memory_machine(machine(2, 1, memory_bytes={0: 10, 1: 10}))


def block(mask, size, resource="memory"):
    return MemoryBlock(NodeMask(mask), resource, size)


def with_pages(memory_bytes, *pages):
    node = NUMANode(NUMANodeID(0), CPUSet(), memory_bytes, hugepages=pages)
    other = NUMANode(NUMANodeID(1), CPUSet(), memory_bytes)
    return Topology(CPUSet(), (), (), (node, other), ())


def test_what_is_reserved_and_set_aside_for_huge_pages_is_not_allocatable():
    reserved = [
        ReservedMemory(NUMANodeID(0), "memory", 1 << 20),
        ReservedMemory(NUMANodeID(0), "hugepages-2Mi", 2 << 20),
    ]
    found = memory_machine(with_pages(16 << 20, (2048, 3)), reserved)
    assert found.allocatable["memory"] == {0: 9 << 20, 1: 16 << 20}
    assert found.allocatable["hugepages-2Mi"] == {0: 4 << 20, 1: 0}
    assert found.total == {
        "memory": {0: 16 << 20, 1: 16 << 20},
        "hugepages-2Mi": {0: 6 << 20, 1: 0},
    }


def test_what_is_reserved_twice_adds_up():
    row = ReservedMemory(NUMANodeID(0), "memory", 3)
    assert memory_machine(machine(memory_bytes={0: 10}), [row, row]).allocatable["memory"] == {0: 4}


def test_huge_page_sizes_have_their_kubernetes_names():
    found = memory_machine(with_pages(1 << 40, (64, 1), (2048, 1), (1 << 20, 1)))
    assert sorted(found.total) == ["hugepages-1Gi", "hugepages-2Mi", "hugepages-64Ki", "memory"]


def test_allocatable_memory_is_never_negative():
    reserved = [ReservedMemory(NUMANodeID(0), "memory", 100)]
    assert memory_machine(machine(memory_bytes={0: 10}), reserved).allocatable["memory"] == {0: 0}
    pages = [ReservedMemory(NUMANodeID(0), "hugepages-2Mi", 1 << 30)]
    found = memory_machine(with_pages(16 << 20, (2048, 3)), pages)
    assert found.allocatable["hugepages-2Mi"] == {0: 0, 1: 0}


def test_reservations_of_what_the_machine_lacks_count_for_nothing():
    reserved = [ReservedMemory(NUMANodeID(7), "memory", 5), ReservedMemory(NUMANodeID(0), "hugepages-1Gi", 5)]
    assert memory_machine(machine(memory_bytes={0: 10}), reserved).allocatable == {"memory": {0: 10}}


def test_a_node_of_unknown_size_has_nothing_to_promise():
    assert memory_machine(machine()).allocatable["memory"] == {0: 0}
    assert memory_machine(machine()).total["memory"] == {0: 0}


def test_a_resource_the_machine_lacks_is_zero_everywhere():
    assert memory_state(TWO).free("hugepages-1Gi") == {0: 0, 1: 0}


def test_blocks_fill_their_nodes_in_ascending_order():
    state = memory_state(TWO, [[block(0b11, 13)]])
    assert state.free("memory") == {0: 0, 1: 7}
    assert (state.assignments, state.group) == ({0: 1, 1: 1}, {0: 0b11, 1: 0b11})
    assert state.in_use == 0b11


def test_less_is_taken_where_the_rest_is_reused():
    state = memory_state(TWO).with_blocks([(block(0b01, 8), 3)])
    assert state.free("memory") == {0: 7, 1: 10}


def test_a_release_is_given_back_in_ascending_order_by_what_is_allocated():
    state = memory_state(TWO, [[block(0b11, 13)], [block(0b10, 2)]])
    after = without_blocks(state, [block(0b11, 13)])
    assert after.free("memory") == {0: 10, 1: 8}
    assert (after.assignments, after.group) == ({0: 0, 1: 1}, {0: 0b01, 1: 0b10})


def test_a_node_leaves_its_group_with_its_last_block():
    state = memory_state(TWO, [[block(0b11, 2)], [block(0b11, 2)]])
    assert without_blocks(state, [block(0b11, 2)]).group == {0: 0b11, 1: 0b11}
    assert without_blocks(state, [block(0b11, 2), block(0b11, 2)]).group == {0: 0b01, 1: 0b10}


def test_a_block_of_nothing_still_counts():
    state = memory_state(TWO, [[block(0b01, 0)]])
    assert (state.free("memory"), state.assignments[0]) == ({0: 10, 1: 10}, 1)


def test_a_node_that_is_gone_can_promise_nothing_but_its_blocks_count():
    state = memory_state(TWO, [[block(0b101, 15)]])
    assert dict(state.allocated) == {(0, "memory"): 10, (2, "memory"): 0}
    assert state.assignments == {0: 1, 1: 0, 2: 1}
    assert without_blocks(state, [block(0b101, 15)]).assignments == {0: 0, 1: 0, 2: 0}


def test_where_more_is_allocated_than_there_is_any_more_nothing_further_is_taken():
    shrunk = memory_machine(machine(2, 1, memory_bytes={0: 4, 1: 10}))
    before = memory_state(TWO, [[block(0b01, 8)]])
    state = MemoryState(shrunk, before.allocated, before.assignments, before.group)
    after = state.with_blocks([(block(0b11, 5), 5)])
    assert after.free("memory") == {0: -4, 1: 5}
