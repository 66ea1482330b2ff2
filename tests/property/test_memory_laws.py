"""Laws of promising memory, over sequences of containers that come and go."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy import memory_assignment
from nri_plugin.policy.memory_assignment import allocate_memory, memory_hint_sets
from nri_plugin.policy.memory_state import MemoryMachine, memory_state
from nri_plugin.policy.merge import MergedHint, merge
from tests.oracles.manager_steps import without_blocks
from tests.oracles.memory import hints as slow_hints

POLICIES = st.sampled_from(list(TopologyManagerPolicy))
RESOURCES = ("memory", "hugepages-2Mi")


@st.composite
def machines(draw):
    nodes = tuple(sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=4))))
    allocatable = {name: {node: draw(st.integers(0, 20)) for node in nodes} for name in RESOURCES}
    return MemoryMachine(nodes, allocatable, {}, allocatable)


REQUESTS = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 30), min_size=1)
STEPS = st.lists(st.tuples(REQUESTS, POLICIES, st.booleans()), max_size=8)


def play(machine, steps):
    """States after each container that was admitted; some containers leave again."""
    state, held, states = memory_state(machine), [], []
    for request, policy, leaves in steps:
        hint_sets = memory_hint_sets(state, request)
        hint = merge(policy, NodeMask.from_ids(machine.nodes), [hint_sets])
        try:
            grant = allocate_memory(state, request, hint)
        except AdmissionError:
            continue
        state = grant.state
        held.append(grant.blocks)
        if leaves:
            state = without_blocks(state, held.pop(0))
        states.append((state, [block for blocks in held for block in blocks]))
    return states


@given(machines(), STEPS)
def test_what_is_allocated_is_the_sum_of_the_blocks_and_never_more_than_there_is(machine, steps):
    for state, blocks in play(machine, steps):
        for name in RESOURCES:
            promised = sum(state.allocated.get((node, name), 0) for node in machine.nodes)
            assert promised == sum(block.size_bytes for block in blocks if block.resource == name)
            assert all(free >= 0 for free in state.free(name).values())


@given(machines(), STEPS)
def test_no_block_lies_on_a_node_that_another_block_shares_with_other_nodes(machine, steps):
    for _, blocks in play(machine, steps):
        for one in blocks:
            for other in blocks:
                several = len(one.nodes) > 1 and len(other.nodes) > 1
                assert not several or one.nodes == other.nodes or one.nodes.isdisjoint(other.nodes)


@given(machines(), STEPS)
def test_when_the_last_block_goes_nothing_is_promised_and_nothing_grouped(machine, steps):
    for state, blocks in play(machine, steps)[-1:]:
        empty = without_blocks(state, blocks)
        fresh = memory_state(machine)
        assert [empty.free(name) for name in RESOURCES] == [fresh.free(name) for name in RESOURCES]
        assert (dict(empty.group), empty.in_use) == (dict(fresh.group), 0)


@given(machines(), STEPS, REQUESTS)
def test_hints_are_those_of_the_slow_reading(machine, steps, request):
    for state, _ in play(machine, steps)[-1:]:
        groups = {node: frozenset(NodeMask(mask)) for node, mask in state.group.items()}
        free = {name: state.free(name) for name in RESOURCES}
        expected = slow_hints(free, machine.allocatable, state.assignments, groups, request)
        listed = [
            (frozenset(NodeMask(h.nodes)), h.preferred)
            for h in memory_assignment.memory_hints(state, request, {})[0]
        ]
        assert listed == expected


def closed_form(call):
    """`call()` with hint sets in the form of large machines."""
    before = memory_assignment.LISTED_NODES
    memory_assignment.LISTED_NODES = 0
    try:
        return call()
    finally:
        memory_assignment.LISTED_NODES = before


@given(machines(), STEPS, REQUESTS, POLICIES)
def test_large_machines_merge_by_the_same_rules_as_small_ones(machine, steps, request, policy):
    for state, _ in play(machine, steps)[-1:]:
        nodes = NodeMask.from_ids(machine.nodes)
        listed = memory_hint_sets(state, request)
        closed = closed_form(lambda state=state: memory_hint_sets(state, request))
        assert merge(policy, nodes, [closed]) == merge(policy, nodes, [listed])


@given(machines(), STEPS, REQUESTS, st.one_of(st.none(), st.integers(1, 127)), st.booleans())
def test_large_machines_allocate_by_the_same_rules_as_small_ones(machine, steps, request, mask, preferred):
    nodes = NodeMask.from_ids(machine.nodes)
    affinity = None if mask is None else NodeMask(mask) & nodes
    hint = MergedHint(affinity or None, preferred)

    def chosen(state):
        try:
            return allocate_memory(state, request, hint).nodes
        except AdmissionError as refusal:
            return str(refusal)

    for state, _ in play(machine, steps)[-1:]:
        assert closed_form(lambda state=state: chosen(state)) == chosen(state)
