"""The best fit is the best of all choices, whatever the machine."""

from math import comb

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nri_plugin.model.errors import InsufficientCPUsError, UncoreCacheAlignmentError
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.best_fit import take_best_fit, take_in_one_cache
from nri_plugin.policy.cpu_assignment import cpu_tables
from tests.oracles.best_fit import Ranking, best_rank
from tests.property.machines import machine_with_free_cpus
from tests.topology_rows import topology_of_rows

TRIED = 2_000
"""Sets that one example may rank."""


@st.composite
def small_machine(draw):
    """(rows, free CPUs): up to twelve free CPUs, cores of one size or of 1 and 2 or of 1, 2 and 4."""
    sizes = draw(st.sampled_from([(1,), (2,), (2,), (1, 2), (3,), (4,), (1, 2, 4)]))
    cores = draw(st.integers(1, 8))
    caches = draw(st.lists(st.integers(0, 4), min_size=cores, max_size=cores))
    node_of = draw(st.lists(st.integers(0, 2), min_size=5, max_size=5))
    spans = draw(st.booleans())
    rows = []
    for core, cache in enumerate(caches):
        node = draw(st.integers(0, 2)) if spans else node_of[cache]
        for _ in range(draw(st.sampled_from(sizes))):
            rows.append([len(rows), core, node, node, cache])
    free = {row[0] for row in rows if draw(st.integers(0, 3))}
    return rows, set(sorted(free)[:12])


@given(small_machine(), st.integers(1, 12))
def test_no_choice_of_as_many_cpus_ranks_better(machine, count):
    rows, free = machine
    count = min(count, len(free))
    assume(comb(len(free), count) <= TRIED)
    tables = cpu_tables(topology_of_rows(rows))
    ours = take_best_fit(tables, CPUSet.from_ids(free), count)
    assert Ranking(rows, free).of(set(ours)) == best_rank(rows, free, count)


@given(machine_with_free_cpus(), st.integers(-1, 60))
def test_the_result_is_available_and_of_the_right_size_or_refused_for_shortage(machine, count):
    _, topology, free = machine
    available = CPUSet.from_ids(free)
    if count > len(available):
        with pytest.raises(InsufficientCPUsError) as refusal:
            take_best_fit(cpu_tables(topology), available, count)
        assert (refusal.value.refusal.requested, refusal.value.refusal.available) == (count, len(available))
    else:
        ours = take_best_fit(cpu_tables(topology), available, count)
        assert ours <= available
        assert len(ours) == max(0, count)


@given(machine_with_free_cpus(), st.integers(1, 20))
def test_strict_stays_in_one_cache_exactly_when_some_cache_has_room(machine, count):
    rows, topology, free = machine
    count = min(count, len(free))
    cache_of = {row[0]: row[4] for row in rows}
    room = max((sum(cache_of[cpu] == cache for cpu in free) for cache in cache_of.values()), default=0)
    tables, available = cpu_tables(topology), CPUSet.from_ids(free)
    if room < count:
        with pytest.raises(UncoreCacheAlignmentError) as refusal:
            take_in_one_cache(tables, available, count)
        assert (refusal.value.refusal.requested, refusal.value.refusal.available) == (count, room)
    else:
        ours = take_in_one_cache(tables, available, count)
        assert len(ours) == count
        assert len({cache_of[cpu] for cpu in ours}) <= 1


@given(machine_with_free_cpus(), st.integers(1, 60))
def test_the_same_question_has_the_same_answer_on_a_machine_built_again(machine, count):
    rows, topology, free = machine
    count = min(count, len(free))
    available = CPUSet.from_ids(free)
    again = cpu_tables(topology_of_rows(reversed(rows)))
    assert take_best_fit(cpu_tables(topology), available, count) == take_best_fit(again, available, count)
