"""Promising memory."""

import pytest

from nri_plugin.model.errors import AdmissionError, InsufficientMemoryError
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy import search
from nri_plugin.policy.memory_assignment import allocate_memory
from nri_plugin.policy.memory_state import MemoryMachine, memory_state
from nri_plugin.policy.merge import MergedHint


def machine(*amounts):
    by_resource = {"memory": dict(enumerate(amounts))}
    return MemoryMachine(tuple(range(len(amounts))), by_resource, {}, by_resource)


def block(mask, size):
    return MemoryBlock(NodeMask(mask), "memory", size)


def hint(mask, preferred=False):
    return MergedHint(None if mask is None else NodeMask(mask), preferred)


TWO = memory_state(machine(10, 10))
FOUR = memory_state(machine(10, 10, 10, 10))


@pytest.mark.parametrize(
    ("state", "size", "given", "nodes", "rule"),
    [
        (TWO, 5, hint(0b10, preferred=True), 0b10, "the hinted node"),
        (TWO, 5, hint(None), 0b01, "the lowest preferred node when hinted anywhere"),
        (TWO, 15, hint(0b10), 0b11, "too small a hint is stretched"),
        (FOUR, 15, hint(0b0100), 0b0101, "stretched to the lowest superset"),
        (FOUR, 0, hint(0b1000), 0b1000, "nothing fits anywhere"),
        (memory_state(machine(3, 10)), 5, hint(None), 0b10, "where there is room"),
    ],
)
def test_memory_goes_to(state, size, given, nodes, rule):
    grant = allocate_memory(state, {"memory": size}, given)
    assert grant.nodes == NodeMask(nodes), rule
    assert grant.blocks == (block(nodes, size),)


def test_the_new_state_has_the_blocks_and_the_old_one_is_untouched():
    grant = allocate_memory(TWO, {"memory": 5}, hint(0b10))
    assert grant.state.free("memory") == {0: 10, 1: 5}
    assert TWO.free("memory") == {0: 10, 1: 10}


def test_blocks_are_sorted_by_resource():
    amounts = {"memory": {0: 10}, "hugepages-2Mi": {0: 4}}
    state = memory_state(MemoryMachine((0,), amounts, {}, amounts))
    grant = allocate_memory(state, {"memory": 5, "hugepages-2Mi": 2}, hint(None))
    assert [b.resource for b in grant.blocks] == ["hugepages-2Mi", "memory"]


def test_an_empty_request_promises_nothing():
    grant = allocate_memory(TWO, {}, hint(0b11, preferred=True))
    assert (grant.blocks, grant.nodes, grant.state) == ((), NodeMask(), TWO)


def test_reusable_memory_is_not_taken_again_but_the_block_has_the_full_size():
    used = memory_state(machine(10, 10), [[block(0b01, 6)]])
    grant = allocate_memory(used, {"memory": 8}, hint(0b01), reuse={(0b01, "memory"): 6})
    assert (grant.blocks, grant.state.free("memory")) == ((block(0b01, 8),), {0: 2, 1: 10})


def test_what_reuse_covers_wholly_takes_nothing_further():
    used = memory_state(machine(10, 10), [[block(0b01, 6)]])
    for size in (6, 4):
        grant = allocate_memory(used, {"memory": size}, hint(0b01), reuse={(0b01, "memory"): 6})
        assert grant.state.free("memory") == {0: 4, 1: 10}


def test_the_hinted_node_must_have_room_for_all_and_may_be_filled():
    amounts = {"memory": {0: 10, 1: 10}, "hugepages-2Mi": {0: 0, 1: 4}}
    state = memory_state(MemoryMachine((0, 1), amounts, {}, amounts))
    request = {"memory": 5, "hugepages-2Mi": 4}
    assert allocate_memory(state, request, hint(0b01)).nodes == NodeMask(0b11)
    assert allocate_memory(state, {"memory": 10}, hint(0b01)).nodes == NodeMask(0b01)


def refusal(error, state, request, given):
    with pytest.raises(error) as refused:
        allocate_memory(state, request, given)
    return str(refused.value).split(": ", 1)[1]


SHORT = "have enough free memory: memory: 21 wanted, 20 free on 0-1"


@pytest.mark.parametrize(
    ("given", "text"),
    [(hint(None), f"no NUMA nodes {SHORT}"), (hint(0b01), f"no NUMA nodes that include 0 {SHORT}")],
)
def test_a_shortage_is_refused_with_the_numbers(given, text):
    assert refusal(InsufficientMemoryError, TWO, {"memory": 21}, given) == text


def test_enough_in_all_that_may_not_be_taken_together_is_said_to_be_that():
    apart = memory_state(machine(10, 10), [[block(0b01, 2)], [block(0b10, 3)]])
    for wanted in (12, 15):
        assert refusal(InsufficientMemoryError, apart, {"memory": wanted}, hint(0b01)) == (
            f"no NUMA nodes that include 0 have enough free memory: memory: {wanted} wanted, 15 free on 0-1; memory on "
            "NUMA nodes 0-1 together would mix with allocations on 0 and 1; a node serves one group of nodes at a time"
        )


def test_too_little_in_all_is_not_said_to_be_apart():
    amounts = {"memory": {0: 10, 1: 10}, "hugepages-2Mi": {0: 4, 1: 4}}
    apart = memory_state(MemoryMachine((0, 1), amounts, {}, amounts), [[block(0b01, 2)], [block(0b10, 3)]])
    text = refusal(InsufficientMemoryError, apart, {"memory": 12, "hugepages-2Mi": 9}, hint(0b01))
    assert text.endswith("hugepages-2Mi: 9 wanted, 8 free on 0-1; memory: 12 wanted, 15 free on 0-1")


def test_a_shortage_names_all_resources_in_order():
    amounts = {"memory": {0: 10}, "hugepages-2Mi": {0: 4}}
    state = memory_state(MemoryMachine((0,), amounts, {}, amounts))
    text = "hugepages-2Mi: 5 wanted, 4 free on 0; memory: 5 wanted, 10 free on 0"
    request = {"memory": 5, "hugepages-2Mi": 5}
    assert refusal(InsufficientMemoryError, state, request, hint(None)).endswith(f"memory: {text}")


def test_a_preferred_hint_is_not_stretched_to_one_that_is_not():
    narrow = memory_state(machine(3, 10, 10))
    said = "memory has a preferred hint for {}, but only NUMA nodes 0-1 have enough free: memory: "
    assert (
        refusal(AdmissionError, narrow, {"memory": 5}, hint(0b001, preferred=True))
        == said.format("NUMA nodes 0") + "5 wanted, 13 free on 0-1"
    )
    spread = memory_state(machine(10, 10), [[block(0b11, 12)]])
    assert (
        refusal(AdmissionError, spread, {"memory": 5}, hint(None, preferred=True))
        == said.format("any NUMA nodes") + "5 wanted, 8 free on 0-1"
    )
    assert allocate_memory(spread, {"memory": 5}, hint(None)).nodes == NodeMask(0b11)


def test_nodes_in_use_with_others_are_refused():
    grouped = memory_state(machine(10, 10, 10), [[block(0b011, 12)]])
    assert refusal(AdmissionError, grouped, {"memory": 5}, hint(0b110, preferred=True)) == (
        "memory on NUMA nodes 1-2 together would mix with allocations on 0-1; "
        "a node serves one group of nodes at a time"
    )


def test_of_nodes_that_are_not_preferred_the_fewest_are_chosen():
    used = memory_state(machine(4, 2, 2, 4, 8), [[block(1 << 4, 1)]])
    assert allocate_memory(used, {"memory": 8}, hint(None)).nodes == NodeMask(0b1001)


def test_a_single_node_is_never_refused_for_its_group():
    grouped = memory_state(machine(10, 10), [[block(0b11, 12)]])
    assert allocate_memory(grouped, {"memory": 5}, hint(0b10)).nodes == NodeMask(0b10)


def test_on_64_nodes_the_lowest_nodes_that_hold_it_are_chosen():
    wide = memory_state(machine(*[10] * 64))
    assert allocate_memory(wide, {"memory": 25}, hint(None)).nodes == NodeMask(0b111)
    assert allocate_memory(wide, {"memory": 25}, hint(None, preferred=True)).nodes == NodeMask(0b111)
    assert allocate_memory(wide, {"memory": 25}, hint(1 << 60)).nodes == NodeMask(1 << 60 | 0b11)
    used = memory_state(machine(*[10] * 64), [[block(0b1, 1)]])
    assert allocate_memory(used, {"memory": 25}, hint(None)).nodes == NodeMask(0b1110)
    with pytest.raises(InsufficientMemoryError, match="641 wanted"):
        allocate_memory(wide, {"memory": 641}, hint(None))


def on_many(amounts, size, given, **changes):
    allocatable = {"memory": dict(enumerate(amounts))}
    state = memory_state(MemoryMachine(tuple(range(len(amounts))), allocatable, {}, allocatable))
    return allocate_memory(state, {"memory": size}, hint(given, **changes)).nodes.mask


def test_beyond_eight_nodes_too_few_nodes_become_the_lowest_that_hold_it():
    assert on_many([5] * 10, 12, 0b1000) == 0b1011
    assert on_many([5] * 8 + [10, 10], 15, 0b1000) == 1 << 8 | 0b1000
    assert on_many([1] + [5] * 9, 10, 0b1) == 0b111
    with pytest.raises(AdmissionError, match="a preferred hint for NUMA nodes 0, but only NUMA nodes 0-2"):
        on_many([1] + [5] * 9, 10, 0b1, preferred=True)


def test_past_the_budget_the_nodes_with_most_room_are_added(monkeypatch):
    monkeypatch.setattr(search, "STEP_BUDGET", 0)
    assert on_many([5] * 8 + [10, 6], 12, 0b1000) == 1 << 8 | 0b1000
    assert on_many([5] * 8 + [6, 6], 12, 0b1000) == 1 << 8 | 1 << 9 | 0b1000


def test_beyond_eight_nodes_memory_in_other_use_is_no_part_of_a_wider_set():
    amounts = {"memory": dict.fromkeys(range(10), 5)}
    state = memory_state(MemoryMachine(tuple(range(10)), amounts, {}, amounts), [[block(0b1000, 1)]])
    with pytest.raises(AdmissionError):
        allocate_memory(state, {"memory": 12}, hint(0b1000))
