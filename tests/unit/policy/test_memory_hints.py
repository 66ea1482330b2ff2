"""Where memory fits."""

from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy import search
from nri_plugin.policy.memory_assignment import is_barred, memory_hint_sets
from nri_plugin.policy.memory_state import MemoryMachine, memory_machine, memory_state
from nri_plugin.policy.merge import merge
from tests.unit.policy.shapes import machine

TWO = memory_machine(machine(2, 1, memory_bytes={0: 10, 1: 10}))


def block(mask, size, resource="memory"):
    return MemoryBlock(NodeMask(mask), resource, size)


def listed(hint_sets):
    return {
        hint_set.resource: hint_set.hints and [tuple(hint) for hint in hint_set.hints]
        for hint_set in hint_sets
    }


def wide(count, amount=10):
    amounts = {"memory": dict.fromkeys(range(count), amount)}
    return MemoryMachine(tuple(range(count)), amounts, {}, amounts)


def test_masks_with_room_are_hints_and_the_narrowest_possible_is_preferred():
    assert listed(memory_hint_sets(memory_state(TWO), {"memory": 10})) == {
        "memory": [(1, True), (2, True), (3, False)]
    }
    assert listed(memory_hint_sets(memory_state(TWO), {"memory": 11})) == {"memory": [(3, True)]}


def test_nothing_wanted_is_no_hint_set():
    assert memory_hint_sets(memory_state(TWO), {}) is None


def test_zero_bytes_are_a_hint_set():
    assert listed(memory_hint_sets(memory_state(TWO), {"memory": 0})) == {
        "memory": [(1, True), (2, True), (3, False)]
    }


def test_all_resources_share_one_list():
    amounts = {"memory": {0: 10, 1: 10}, "hugepages-2Mi": {0: 0, 1: 4}}
    state = memory_state(MemoryMachine((0, 1), amounts, {}, amounts))
    both = [(2, True), (3, False)]
    assert listed(memory_hint_sets(state, {"memory": 5, "hugepages-2Mi": 4})) == {
        "memory": both,
        "hugepages-2Mi": both,
    }


def test_what_fits_nowhere_has_no_preference_but_says_why():
    (hint_set,) = memory_hint_sets(memory_state(TWO), {"memory": 21})
    assert hint_set.hints is None
    assert hint_set.why == "memory: 21 wanted, 20 free (by NUMA node 0: 10, 1: 10)"


def test_a_node_in_use_alone_is_in_no_group_and_a_grouped_one_not_alone():
    alone = memory_state(TWO, [[block(0b01, 1)]])
    assert listed(memory_hint_sets(alone, {"memory": 1})) == {"memory": [(1, True), (2, True)]}
    grouped = memory_state(TWO, [[block(0b11, 12)]])
    (hint_set,) = memory_hint_sets(grouped, {"memory": 1})
    assert hint_set.hints == ((3, False),)
    assert "0: 0 grouped with 0-1" in hint_set.why
    assert [is_barred(grouped, mask) for mask in (0b01, 0b10, 0b11)] == [True, True, False]


def test_what_is_reusable_counts_for_its_mask_alone():
    full = memory_state(TWO, [[block(0b01, 10)]])
    assert listed(memory_hint_sets(full, {"memory": 5}, reuse={(0b01, "memory"): 5}))["memory"] == [
        (1, True),
        (2, True),
    ]
    assert listed(memory_hint_sets(full, {"memory": 5}, reuse={(0b01, "hugepages-2Mi"): 5}))["memory"] == [
        (2, True)
    ]


def test_held_blocks_are_hinted_at_while_the_request_is_the_same():
    held = [block(0b10, 5), block(0b10, 2, "hugepages-2Mi")]
    same = memory_hint_sets(memory_state(TWO), {"memory": 5, "hugepages-2Mi": 2}, held=held)
    assert listed(same) == {"memory": [(2, True)], "hugepages-2Mi": [(2, True)]}
    assert memory_hint_sets(memory_state(TWO), {"memory": 6, "hugepages-2Mi": 2}, held=held) is None
    assert memory_hint_sets(memory_state(TWO), {"memory": 5}, held=held) is None
    both = {"memory": 5, "hugepages-2Mi": 2}
    assert memory_hint_sets(memory_state(TWO), both, held=held[:1]) is None


def test_beyond_eight_nodes_unused_nodes_form_a_rule_and_the_rest_is_listed():
    state = memory_state(wide(34), [[block(0b01, 1)], [block(0b110, 12)]])
    (hint_set,) = memory_hint_sets(state, {"memory": 8})
    assert (hint_set.rule.nodes & 0b1111, hint_set.rule.preferred_size, hint_set.rule.at_least) == (
        0b1000,
        1,
        2,
    )
    assert [hint.nodes for hint in hint_set.hints] == [1 << n for n in (0, *range(3, 34))] + [0b110]
    assert [hint.preferred for hint in hint_set.hints] == [True] * 32 + [False]


def test_beyond_eight_nodes_what_fits_nowhere_has_no_preference():
    (hint_set,) = memory_hint_sets(memory_state(wide(9)), {"memory": 91})
    assert (hint_set.hints, hint_set.rule) == (None, None)


def test_hint_sets_say_when_their_preferred_size_could_not_be_found_out(monkeypatch):
    hint_sets = memory_hint_sets(memory_state(wide(16)), {"memory": 25})
    assert [hint_set.exact for hint_set in hint_sets] == [True]
    monkeypatch.setattr(search, "STEP_BUDGET", 2)
    doubtful = memory_hint_sets(memory_state(wide(16)), {"memory": 25})
    assert [hint_set.exact for hint_set in doubtful] == [False]
    monkeypatch.undo()
    nodes, best_effort = NodeMask(0xFFFF), TopologyManagerPolicy.BEST_EFFORT
    assert merge(best_effort, nodes, [hint_sets]).exact
    assert not merge(best_effort, nodes, [doubtful]).exact


def test_beyond_eight_nodes_what_fits_no_single_node_has_a_rule_alone():
    (hint_set,) = memory_hint_sets(memory_state(wide(9)), {"memory": 25})
    assert hint_set.hints == ()
    assert hint_set.rule.preferred_size == 3


def test_beyond_eight_nodes_what_is_reusable_counts_for_its_mask():
    full = memory_state(wide(9), [[block(0b1, 10)]])
    (hint_set,) = memory_hint_sets(full, {"memory": 5}, reuse={(0b1, "memory"): 5})
    assert [hint.nodes for hint in hint_set.hints] == [1 << node for node in range(9)]
    (hint_set,) = memory_hint_sets(full, {"memory": 5})
    assert [hint.nodes for hint in hint_set.hints] == [1 << node for node in range(1, 9)]


def test_what_can_be_reused_makes_no_node_larger_than_it_is():
    """Left behind by an init container that is gone, it would count twice: once reusable, once free."""
    beyond = {"memory": 11}
    assert listed(memory_hint_sets(memory_state(TWO), beyond, reuse={(0b01, "memory"): 5})) == {
        "memory": [(3, True)]
    }
    (hint_set,) = memory_hint_sets(memory_state(wide(9)), beyond, reuse={(0b01, "memory"): 5})
    assert not hint_set.hints
    exact = {"memory": 10}
    (hint_set,) = memory_hint_sets(memory_state(wide(9)), exact, reuse={(0b01, "memory"): 5})
    assert hint_set.hints[0] == (0b1, True)


def test_up_to_eight_nodes_all_masks_are_listed():
    (hint_set,) = memory_hint_sets(memory_state(wide(8)), {"memory": 1})
    assert (len(hint_set.hints), hint_set.rule) == (255, None)


def test_beyond_eight_nodes_a_node_with_some_room_is_no_hint_for_a_byte_more():
    used = memory_state(wide(9), [[block(0b1, 3)]])
    assert 0b1 in {hint.nodes for hint in memory_hint_sets(used, {"memory": 7})[0].hints}
    assert 0b1 not in {hint.nodes for hint in memory_hint_sets(used, {"memory": 8})[0].hints}


def test_beyond_eight_nodes_what_is_reusable_on_a_node_that_is_grouped_now_is_no_hint():
    grouped = memory_state(wide(9), [[block(0b11, 12)]])
    (hint_set,) = memory_hint_sets(grouped, {"memory": 5}, reuse={(0b10, "memory"): 5})
    assert 0b10 not in {hint.nodes for hint in hint_set.hints}
