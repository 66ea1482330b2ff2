"""The static CPU policy."""

import pytest

from nri_plugin.model.errors import InsufficientCPUsError, SMTAlignmentError
from nri_plugin.model.options import FullPCPUsRule, Options, UncoreCacheFit
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import AssignmentStage, cpu_tables
from nri_plugin.policy.cpu_policy import (
    allocate_cpus,
    check_full_pcpus,
    cpu_hint_sets,
    exclusive_count,
)
from nri_plugin.policy.hints import HintSet
from tests.oracles.manager_steps import reusable_after
from tests.topology_rows import topology_of_rows
from tests.unit.policy.shapes import machine

TWO = cpu_tables(machine(2, 1, cores=4, threads=2))
"""Node 0: 0-7, node 1: 8-15."""
ALL = CPUSet.parse("0-15")


def cpus(text):
    return CPUSet.parse(text)


def hints(*args, **options):
    (hint_set,) = cpu_hint_sets(*args, **options)
    return [tuple(hint) for hint in hint_set.hints]


@pytest.mark.parametrize(
    ("milli", "guaranteed", "count"),
    [
        (2000, True, 2),
        (2000, False, 0),
        (1500, True, 0),
        (0, True, 0),
        (1000, True, 1),
        (999, True, 0),
        (999_000, True, 999),
    ],
)
def test_exclusive_cpus_are_for_whole_guaranteed_requests(milli, guaranteed, count):
    assert exclusive_count(milli, guaranteed=guaranteed) == count


def test_a_shared_container_has_no_hint_set():
    assert cpu_hint_sets(TWO, 0, ALL) is None


def test_every_mask_with_room_is_a_hint_and_the_narrowest_possible_is_preferred():
    assert hints(TWO, 4, ALL) == [(1, True), (2, True), (3, False)]
    assert hints(TWO, 9, ALL) == [(3, True)]


def test_preferred_is_judged_by_all_cpus_not_by_free_ones():
    assert hints(TWO, 4, cpus("0-1,8-9")) == [(3, False)]


def test_a_request_larger_than_all_that_is_free_has_no_hint():
    assert hints(TWO, 4, cpus("0-1")) == []


def test_hints_cover_the_cpus_reusable_from_init_containers():
    assert hints(TWO, 2, cpus("2-15"), reusable=cpus("0-1")) == [(1, True), (3, False)]


def test_a_container_that_has_its_cpus_is_hinted_at_them_alone():
    assert hints(TWO, 2, ALL, held=cpus("8-9")) == [(2, True), (3, False)]
    (hint_set,) = cpu_hint_sets(TWO, 4, ALL, held=cpus("8-9"))
    assert hint_set == HintSet("cpu", (), why="cpu: 4 wanted, but the container already holds 2 (8-9)")


def test_beyond_eight_nodes_hints_are_not_listed():
    rows = [(n, n, n, n, n) for n in range(12)]
    (hint_set,) = cpu_hint_sets(
        cpu_tables(topology_of_rows(rows)), 3, CPUSet((1 << 12) - 1), reusable=cpus("5")
    )
    assert hint_set.hints == ()
    assert hint_set.rule is not None
    assert hint_set.rule.preferred_size == 3
    assert [mask in hint_set.rule for mask in (0b111, 0b100011)] == [False, True]
    (none,) = cpu_hint_sets(cpu_tables(topology_of_rows(rows)), 13, CPUSet((1 << 12) - 1))
    where = ", ".join(f"{node}: 1 of 1" for node in range(8))
    why = f"cpu: 13 wanted, 12 available (by NUMA node {where}, and 4 more)"
    assert none == HintSet("cpu", (), why=why)
    assert (hint_set.resource, hint_set.why[:26]) == ("cpu", "cpu: 3 wanted, 12 availabl")


def test_beyond_eight_nodes_sockets_are_told_where_they_count():
    tables = cpu_tables(machine(5, 2, cores=2, threads=1))
    (hint_set,) = cpu_hint_sets(tables, 5, CPUSet(tables.online))
    assert (hint_set.rule.sockets, hint_set.rule.fewest_sockets) == ((), 0)
    (hint_set,) = cpu_hint_sets(tables, 5, CPUSet(tables.online), align_by_socket=True)
    assert hint_set.rule.sockets == (0b11, 0b1100, 0b110000, 0b11000000, 0b1100000000)
    assert hint_set.rule.fewest_sockets == 2


def test_sockets_do_not_count_unless_they_are_asked_for():
    tables = cpu_tables(machine(2, 2, cores=2, threads=1))
    (hint_set,) = cpu_hint_sets(tables, 2, CPUSet(tables.online))
    assert hint_set.preferred == {1, 2, 4, 8}
    (hint_set,) = cpu_hint_sets(tables, 2, CPUSet(tables.online), align_by_socket=True)
    assert hint_set.preferred == {1, 2, 4, 8, 0b11, 0b1100}


def test_the_numbers_say_what_is_free_where():
    (hint_set,) = cpu_hint_sets(TWO, 12, cpus("0-3,8-15"))
    assert hint_set.why == "cpu: 12 wanted, 12 available (by NUMA node 0: 4 of 8, 1: 8 of 8)"
    (hint_set,) = cpu_hint_sets(TWO, 4, cpus("0-3"))
    assert hint_set.why == "cpu: 4 wanted, 4 available (by NUMA node 0: 4 of 8, 1: 0 of 8)"


def test_cpus_come_from_the_hinted_nodes():
    assert allocate_cpus(TWO, 4, ALL, NodeMask(0b10)) == cpus("8-11")


def test_what_the_hinted_nodes_lack_comes_from_anywhere():
    assert allocate_cpus(TWO, 4, cpus("0-7,8-9"), NodeMask(0b10)) == cpus("0-1,8-9")


def test_anywhere_is_packed():
    assert allocate_cpus(TWO, 4, cpus("0-7,12-15"), None) == cpus("12-15")


def test_reusable_cpus_are_on_offer_but_not_preferred():
    assert allocate_cpus(TWO, 2, cpus("0-1,8-15"), None, reusable=cpus("2-7")) == cpus("0-1")
    assert allocate_cpus(TWO, 8, cpus("0-1,8-9"), NodeMask(1), reusable=cpus("2-7")) == cpus("0-7")


def test_what_is_held_is_kept():
    assert allocate_cpus(TWO, 2, CPUSet(), None, held=cpus("3-4")) == cpus("3-4")


def test_zero_is_the_shared_pool():
    assert allocate_cpus(TWO, 0, ALL, None) == CPUSet()
    assert allocate_cpus(TWO, 0, ALL, None, held=cpus("3-4")) == CPUSet()
    assert allocate_cpus(TWO, -1, ALL, None) == CPUSet()


def test_a_shortage_names_what_was_still_wanted_and_what_was_found():
    with pytest.raises(InsufficientCPUsError) as refusal:
        allocate_cpus(TWO, 4, cpus("0-2"), None)
    assert str(refusal.value) == str(InsufficientCPUsError(4, 3))
    text = r"requested=3, available=1; 5 wanted in all, 2 found on NUMA nodes 1"
    with pytest.raises(InsufficientCPUsError, match=text):
        allocate_cpus(TWO, 5, cpus("0,8-9"), NodeMask(0b10))


def test_the_cache_option_reaches_the_choice():
    caches = cpu_tables(machine(1, 1, caches=2, cores=2, threads=2))
    assert allocate_cpus(caches, 2, cpus("1-7"), None) == cpus("2-3")
    assert allocate_cpus(
        caches, 2, cpus("1-7"), None, options=Options(prefer_align_cpus_by_uncore_cache=True)
    ) == cpus("4-5")
    assert allocate_cpus(
        caches, 2, cpus("1-7"), NodeMask(1), options=Options(prefer_align_cpus_by_uncore_cache=True)
    ) == cpus("4-5")


@pytest.mark.parametrize(
    ("count", "available", "reserved", "text"),
    [
        (7, "0-15", "", "7 cpus is not a multiple of the 2 cpus per core; ask for 6 or 8"),
        (1, "0-15", "", "1 cpus is not a multiple of the 2 cpus per core; ask for 2"),
        (
            6,
            "1,3-7",
            "2",
            "^SMTAlignmentError: requested 6 cpus, but only 5 are available outside cores.*2 cpus per core",
        ),
        (2, "1", "0", "requested 2 cpus, but only 0 are available"),
    ],
)
def test_full_pcpus_only_refuses(count, available, reserved, text):
    with pytest.raises(SMTAlignmentError, match=text):
        check_full_pcpus(TWO, count, cpus(available), cpus(reserved))


def test_full_pcpus_only_counts_cpus_not_cores_and_ignores_what_is_reusable():
    check_full_pcpus(TWO, 2, cpus("0,2"), CPUSet())
    with pytest.raises(SMTAlignmentError, match="only 0 are available"):
        allocate_cpus(TWO, 2, CPUSet(), None, reusable=cpus("0-1"), options=Options(full_pcpus_only=True))
    with pytest.raises(SMTAlignmentError, match="only 0 are available"):
        allocate_cpus(TWO, 2, CPUSet(), None, held=cpus("0-1"), options=Options(full_pcpus_only=True))


WHOLE_CORES = Options(full_pcpus_only=True, full_pcpus_rule=FullPCPUsRule.WHOLE_CORES)


def test_by_whole_cores_what_init_containers_leave_counts():
    assert allocate_cpus(TWO, 2, CPUSet(), None, reusable=cpus("0-1"), options=WHOLE_CORES) == cpus("0-1")
    assert allocate_cpus(TWO, 2, cpus("0"), None, reusable=cpus("1"), options=WHOLE_CORES) == cpus("0-1")


def test_by_whole_cores_parts_of_cores_do_not_count():
    assert allocate_cpus(TWO, 2, cpus("0,2,4-5"), None, options=WHOLE_CORES) == cpus("4-5")
    with pytest.raises(SMTAlignmentError, match="requested 2 cpus, but only 0 are available"):
        allocate_cpus(TWO, 2, cpus("0,2"), None, options=WHOLE_CORES)
    with pytest.raises(SMTAlignmentError, match="requested 4 cpus, but only 2 are available"):
        allocate_cpus(TWO, 4, cpus("0-3"), None, reserved=cpus("1"), options=WHOLE_CORES)


def test_by_whole_cores_who_has_cpus_keeps_them_on_a_full_machine():
    assert allocate_cpus(TWO, 2, CPUSet(), None, held=cpus("0-1"), options=WHOLE_CORES) == cpus("0-1")


def test_full_pcpus_only_is_satisfied_without_smt():
    check_full_pcpus(cpu_tables(machine(cores=4, threads=1)), 3, cpus("1-3"), cpus("0"))


def test_plain_init_containers_leave_their_cpus_and_others_keep_them():
    assert reusable_after(cpus("0-1"), cpus("1-3"), init=True) == cpus("0-3")
    assert reusable_after(cpus("0-3"), cpus("1-5"), init=False) == cpus("0")


STRICT = Options(uncore_cache_fit=UncoreCacheFit.BEST, strict_uncore_cache=True)


def test_a_strict_cache_is_one_of_the_hinted_nodes_if_these_have_just_enough():
    assert allocate_cpus(TWO, 2, cpus("0-1,8-9"), NodeMask(0b10), options=STRICT) == cpus("8-9")
    assert allocate_cpus(TWO, 3, cpus("0-2,8-9"), NodeMask(0b10), options=STRICT) == cpus("0-2")


THREADS = cpu_tables(machine(3, 1, cores=8, threads=1))
"""Nodes 0-7, 8-15, 16-23."""


@pytest.mark.parametrize(
    ("tables", "count", "affinity", "weights", "taken", "rule"),
    [
        (TWO, 6, 0b11, {0: 1, 1: 2}, "0-1,8-11", "whole cores in proportion"),
        (TWO, 4, 0b11, {0: 1, 1: 2}, "0-1,8-9", "not one CPU more"),
        (THREADS, 6, 0b11, {0: 1, 1: 1}, "0-2,8-10", "single CPUs where these are whole cores"),
        (THREADS, 6, 0b11, {0: 1, 1: 1, 2: 1}, "0-2,8-10", "nodes outside the hint have no share"),
        (THREADS, 6, 0b11, {1: 1, 2: 1}, "0-5", "one node alone has no proportion"),
    ],
)
def test_cpus_in_proportion_to_devices(tables, count, affinity, weights, taken, rule):
    available = CPUSet(tables.online)
    given = allocate_cpus(tables, count, available, NodeMask(affinity), weight_by_node=weights)
    assert given == cpus(taken), rule


def test_what_a_whole_machine_cannot_hold_is_preferred_nowhere():
    assert hints(TWO, 17, ALL) == []
    eight = cpu_tables(machine(8, 1, cores=1, threads=1))
    assert len(hints(eight, 8, CPUSet(eight.online))) == 1
    nine = cpu_tables(machine(9, 1, cores=1, threads=1))
    (hint_set,) = cpu_hint_sets(nine, 9, CPUSet(nine.online))
    assert hint_set.rule is not None


def test_an_odd_number_may_be_allowed():
    check_full_pcpus(TWO, 7, ALL, CPUSet(), allow_odd=True)


def test_a_listener_hears_each_nodes_share_of_the_devices():
    heard = []
    given = allocate_cpus(
        TWO,
        8,
        ALL,
        NodeMask.of(0, 1),
        weight_by_node={0: 3, 1: 1},
        note=lambda stage, mask: heard.append((stage, CPUSet(mask))),
    )
    shares = [on_offer for stage, on_offer in heard if stage is AssignmentStage.SHARE_OF_DEVICES]
    assert shares == [CPUSet(TWO.cpus_in(1 << node)) for node in (0, 1)]
    assert given == cpus("0-5,8-9")
