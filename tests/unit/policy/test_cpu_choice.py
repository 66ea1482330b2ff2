"""Every way of choosing CPUs, by the options that select it."""

import pytest
from msgspec.structs import replace

from nri_plugin.model.errors import UncoreCacheAlignmentError
from nri_plugin.model.options import Options, UncoreCacheFit, UncoreCacheRule
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.best_fit import take_in_one_cache
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import allocate_cpus, cpu_hint_sets, take_cpus
from tests.topology_rows import topology_of_rows
from tests.unit.policy.shapes import machine

BY_CACHE = Options(prefer_align_cpus_by_uncore_cache=True)
BY_KEP = Options(
    prefer_align_cpus_by_uncore_cache=True,
    uncore_cache_rule=UncoreCacheRule.KEP_4800,
)


def in_turn(tables, requests, options):
    """What containers get, one after the other, beside reserved CPUs 0-1."""
    available, taken = CPUSet(tables.online) - CPUSet.of(0, 1), []
    for count in requests:
        cpus = allocate_cpus(tables, count, available, None, options=options)
        available -= cpus
        taken.append(str(cpus))
    return taken


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        (BY_KEP, ["8-17", "24-31", "2-7"]),
        (BY_CACHE, ["2-3,8-15", "16-23", "24-29"]),
        (Options(), ["2-11", "12-19", "20-25"]),
    ],
    ids=["kep-4800", "kubelet", "off"],
)
def test_kep_4800_example_of_32_cores_in_4_caches(options, taken):
    caches = cpu_tables(machine(1, 1, caches=4, cores=8, threads=1))
    assert in_turn(caches, (10, 8, 6), options) == taken


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        (BY_KEP, ["2-5", "8-11", "12-15"]),
        (BY_CACHE, ["2-5", "8-11", "12-15"]),
        (Options(), ["2-5", "6-9", "10-13"]),
    ],
    ids=["kep-4800", "kubelet", "off"],
)
def test_kep_4800_example_of_16_cores_in_2_caches(options, taken):
    caches = cpu_tables(machine(1, 1, caches=2, cores=8, threads=1))
    assert in_turn(caches, (4, 4, 4), options) == taken


def test_the_rule_of_kep_4800_goes_on_where_neither_a_cache_nor_a_rest_fits():
    caches = cpu_tables(machine(1, 1, caches=3, cores=4, threads=1))
    assert str(take_cpus(caches, CPUSet.parse("1-3,5-7,9-11"), 4, BY_KEP)) == "1-3,5"
    assert str(take_cpus(caches, CPUSet.parse("1-3,4-11"), 3, BY_KEP)) == "1-3"
    assert str(take_cpus(caches, CPUSet.parse("1-3,4-11"), 7, BY_KEP)) == "4-10"


def test_the_rule_of_kep_4800_leaves_one_cache_a_node_alone():
    monolithic = cpu_tables(machine(2, 1, caches=1, cores=4, threads=2))
    offered = CPUSet.parse("1-7,9-15")
    assert take_cpus(monolithic, offered, 3, BY_KEP) == take_cpus(monolithic, offered, 3, Options())
    assert str(take_cpus(monolithic, CPUSet.parse("0-7,12-15"), 2, BY_KEP)) == "12-13"


def test_across_cores_takes_cpus_by_number_inside_the_fullest_socket():
    tables = cpu_tables(machine(2, 1, cores=4, threads=2))
    spread = Options(distribute_cpus_across_cores=True)
    assert str(take_cpus(tables, CPUSet.parse("1-7,9-15"), 2, spread)) == "1-2"
    assert str(take_cpus(tables, CPUSet.parse("1-7,9-15"), 2, Options())) == "2-3"


def test_across_numa_shares_out_what_no_node_holds():
    tables = cpu_tables(machine(2, 1, cores=4, threads=2))
    assert str(take_cpus(tables, CPUSet.parse("1-15"), 10, Options())) == "2-3,8-15"
    shared = Options(distribute_cpus_across_numa=True)
    assert str(take_cpus(tables, CPUSet.parse("1-15"), 10, shared)) == "1-5,8-12"
    whole = Options(distribute_cpus_across_numa=True, full_pcpus_only=True)
    assert str(take_cpus(tables, CPUSet.parse("2-15"), 10, whole)) == "2-5,8-13"


FOUR_NODES = cpu_tables(machine(2, 2, cores=2, threads=1))
"""Two sockets of two NUMA nodes of two CPUs."""


def test_alignment_by_socket_prefers_any_nodes_on_as_few_sockets():
    (hint_set,) = cpu_hint_sets(FOUR_NODES, 2, CPUSet.parse("0-7"), align_by_socket=True)
    assert {hint.nodes for hint in hint_set.hints if hint.preferred} == {
        0b1,
        0b10,
        0b100,
        0b1000,
        0b11,
        0b1100,
    }
    (hint_set,) = cpu_hint_sets(FOUR_NODES, 3, CPUSet.parse("0-7"), align_by_socket=True)
    preferred = {hint.nodes for hint in hint_set.hints if hint.preferred}
    assert {0b11, 0b1100, 0b101} <= preferred
    assert 0b111 not in preferred


def test_alignment_by_socket_takes_cpus_of_the_whole_socket():
    by_socket = Options(align_by_socket=True)
    available = CPUSet.parse("1-7")
    assert str(allocate_cpus(FOUR_NODES, 2, available, NodeMask.of(0), options=by_socket)) == "2-3"
    assert str(allocate_cpus(FOUR_NODES, 2, available, NodeMask.of(0))) == "1-2"


def test_a_rule_for_caches_is_nothing_without_the_option_for_caches():
    caches = cpu_tables(machine(1, 1, caches=4, cores=8, threads=1))
    rule = Options(uncore_cache_rule=UncoreCacheRule.KEP_4800)
    assert in_turn(caches, (10, 8, 6), rule) == ["2-11", "12-19", "20-25"]


def without_l3(text, l3="0-3", threads=1):
    """8 CPUs of one NUMA node, of which only `l3` have an L3."""
    rows = [(cpu, cpu // threads, 0, 0, 0 if cpu in CPUSet.parse(l3) else 9) for cpu in range(8)]
    topology = topology_of_rows(rows)
    return cpu_tables(replace(topology, without_l3=topology.online - CPUSet.parse(l3))), CPUSet.parse(text)


@pytest.mark.parametrize("options", [BY_CACHE, BY_KEP, Options(uncore_cache_fit=UncoreCacheFit.BEST)])
@pytest.mark.parametrize(
    ("available", "count", "expected"),
    [
        ("1-7", 4, "1-4"),
        ("1-7", 3, "1-3"),
        ("0-7", 4, "0-3"),
        ("0-7", 2, "0-1"),
        ("4-7", 2, "4-5"),
        ("0-7", 6, "0-5"),
    ],
)
def test_cpus_without_an_l3_are_taken_as_no_cache(options, available, count, expected):
    """They share none, so a container is on one cache only where it has CPUs with an L3."""
    assert str(take_cpus(*without_l3(available), count, options)) == expected


def test_the_nearest_cpus_of_one_without_an_l3_are_not_the_others_without():
    tables, _ = without_l3("0-7")
    assert str(CPUSet(tables.caches_of(CPUSet.of(5).mask))) == "5"
    assert str(CPUSet(tables.caches_of(CPUSet.of(1).mask))) == "0-3"


def test_a_strict_cache_is_never_a_set_of_cpus_without_an_l3():
    tables, available = without_l3("3-7")
    with pytest.raises(UncoreCacheAlignmentError):
        take_in_one_cache(tables, available, 2)
    assert str(take_in_one_cache(tables, available, 1)) == "3"
