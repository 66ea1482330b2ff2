"""Laws of choosing CPUs, and agreement with a slow reading of the rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import cpu_tables, take_distributed, take_packed
from nri_plugin.policy.cpu_policy import allocate_cpus
from tests.oracles.assignment import packed
from tests.oracles.distribution import NeverReturnsError, distributed
from tests.property.machines import machine_with_free_cpus, regular_rows, rows_of_any_machine
from tests.topology_rows import topology_of_rows

COUNTS = st.integers(-1, 60)


@given(machine_with_free_cpus(), COUNTS, st.sampled_from(["packed", "by cache", "spread"]))
def test_the_choice_is_that_of_the_slow_reading(machine, count, way):
    rows, topology, free = machine
    by_cache, spread = way == "by cache", way == "spread"
    expected = packed(rows, free, count, by_cache=by_cache, spread=spread)
    tables, available = cpu_tables(topology), CPUSet.from_ids(free)
    try:
        ours = take_packed(tables, available, count, prefer_uncore_cache=by_cache, spread=spread)
    except InsufficientCPUsError:
        assert expected is None
    else:
        assert set(ours) == expected


@given(machine_with_free_cpus(), COUNTS, st.booleans(), st.booleans())
def test_equal_shares_are_those_of_the_slow_reading_wherever_it_ends(machine, count, in_cores, spread):
    rows, topology, free = machine
    tables, available = cpu_tables(topology), CPUSet.from_ids(free)
    group = max(1, tables.cpus_per_core) if in_cores else 1
    try:
        expected = distributed(rows, free, count, group=group, spread=spread)
    except NeverReturnsError:
        assert len(take_distributed(tables, available, count, group=group, spread=spread)) == count
        return
    try:
        ours = take_distributed(tables, available, count, group=group, spread=spread)
    except InsufficientCPUsError:
        assert expected is None
    else:
        assert set(ours) == expected


@given(machine_with_free_cpus(), COUNTS, st.booleans(), st.booleans())
def test_the_result_is_available_and_of_the_right_size_or_refused_for_shortage(
    machine, count, by_cache, spread
):
    _, topology, free = machine
    available = CPUSet.from_ids(free)
    if count > len(available):
        with pytest.raises(InsufficientCPUsError) as refusal:
            take_packed(cpu_tables(topology), available, count, prefer_uncore_cache=by_cache, spread=spread)
        assert (refusal.value.refusal.requested, refusal.value.refusal.available) == (count, len(available))
    else:
        ours = take_packed(
            cpu_tables(topology), available, count, prefer_uncore_cache=by_cache, spread=spread
        )
        assert ours <= available
        assert len(ours) == max(0, count)


@given(machine_with_free_cpus(), st.booleans())
def test_taking_everything_gives_everything(machine, by_cache):
    _, topology, free = machine
    available = CPUSet.from_ids(free)
    assert (
        take_packed(cpu_tables(topology), available, len(available), prefer_uncore_cache=by_cache)
        == available
    )


@given(regular_rows(), st.data())
def test_exactly_a_numa_node_is_a_whole_free_node_while_there_is_one(rows, data):
    tables = cpu_tables(topology_of_rows(rows))
    whole = data.draw(st.sampled_from(tables.node_sets))
    others = data.draw(st.integers(0, tables.online)) & tables.online
    ours = take_packed(tables, CPUSet(whole | others), whole.bit_count())
    assert ours.mask in tables.node_sets


@given(regular_rows(), st.data())
def test_a_whole_free_core_is_not_broken_for_a_core_sized_need(rows, data):
    tables = cpu_tables(topology_of_rows(rows))
    whole = data.draw(st.sampled_from(tables.cores))
    others = data.draw(st.integers(0, tables.online)) & tables.online
    ours = take_packed(tables, CPUSet(whole | others), whole.bit_count())
    assert ours.mask in tables.cores


@given(machine_with_free_cpus(), COUNTS)
def test_cpus_outside_the_machine_are_never_given(machine, count):
    _, topology, free = machine
    unknown = CPUSet.of(500, 501)
    try:
        ours = take_packed(cpu_tables(topology), CPUSet.from_ids(free) | unknown, count)
    except InsufficientCPUsError:
        return
    assert ours.isdisjoint(unknown)


@given(rows_of_any_machine(), st.integers(1, 30), st.integers(1, 15))
def test_as_many_cpus_as_possible_come_from_the_hinted_nodes(rows, count, mask):
    topology = topology_of_rows(rows)
    tables = cpu_tables(topology)
    if count > len(topology.online):
        return
    near = CPUSet(tables.cpus_in(mask))
    ours = allocate_cpus(tables, count, topology.online, NodeMask(mask))
    assert len(ours & near) == min(count, len(near))
    assert len(ours) == count
