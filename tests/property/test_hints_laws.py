"""Laws of CPU hint sets."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy import cpu_policy
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.merge import merge
from tests.property.machines import machine_with_free_cpus


def subsets(nodes):
    return [frozenset(c) for size in range(1, len(nodes) + 1) for c in combinations(sorted(nodes), size)]


@given(machine_with_free_cpus(), st.integers(1, 40), st.data())
def test_a_mask_is_a_hint_when_it_has_room_and_covers_what_is_reusable(machine, count, data):
    rows, topology, free = machine
    node_of = {row[0]: row[3] for row in rows}
    reusable = {cpu for cpu in free if data.draw(st.booleans())} if data.draw(st.booleans()) else set()
    every = subsets(set(node_of.values()))
    room = [len(s) for s in every if sum(node in s for node in node_of.values()) >= count]
    smallest = min(room, default=len(set(node_of.values())))
    expected = [
        (sum(1 << node for node in s), len(s) == smallest)
        for s in every
        if sum(node_of[cpu] in s for cpu in free) >= count and all(node_of[cpu] in s for cpu in reusable)
    ]
    (hint_set,) = cpu_hint_sets(
        cpu_tables(topology), count, CPUSet.from_ids(free - reusable), reusable=CPUSet.from_ids(reusable)
    )
    assert [tuple(hint) for hint in hint_set.hints] == expected


@given(machine_with_free_cpus(), st.integers(1, 40), st.integers(0, 60))
def test_freeing_a_cpu_never_takes_a_hint_away(machine, count, cpu):
    _, topology, free = machine
    tables = cpu_tables(topology)
    (before,) = cpu_hint_sets(tables, count, CPUSet.from_ids(free))
    (after,) = cpu_hint_sets(tables, count, CPUSet.from_ids(free) | (CPUSet.of(cpu) & topology.online))
    assert set(before.hints) <= set(after.hints)


@given(machine_with_free_cpus(), st.integers(1, 40))
def test_asking_for_one_cpu_less_never_takes_a_mask_away(machine, count):
    _, topology, free = machine
    tables = cpu_tables(topology)
    (more,) = cpu_hint_sets(tables, count + 1, CPUSet.from_ids(free))
    (less,) = cpu_hint_sets(tables, count, CPUSet.from_ids(free))
    assert more.masks <= less.masks


@pytest.fixture(scope="module")
def families_always():
    """Hint sets in the form of large machines, whatever the size of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_policy, "LISTED_NODES", 0)
        yield


@given(machine_with_free_cpus(), st.integers(1, 40), st.sampled_from(list(TopologyManagerPolicy)))
def test_large_machines_merge_by_the_same_rules_as_small_ones(families_always, machine, count, policy):
    _, topology, free = machine
    tables = cpu_tables(topology)
    available = CPUSet.from_ids(free)
    closed = cpu_hint_sets(tables, count, available)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_policy, "LISTED_NODES", 8)
        listed = cpu_hint_sets(tables, count, available)
    assert closed[0].masks == frozenset()
    nodes = NodeMask(topology.node_mask.mask)
    assert merge(policy, nodes, [closed]) == merge(policy, nodes, [listed])
