"""Equal shares over NUMA nodes: a sentence a case."""

import pytest

from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy import cpu_assignment
from nri_plugin.policy.cpu_assignment import cpu_tables, take_distributed, take_packed
from tests.topology_rows import topology_of_rows
from tests.unit.policy.shapes import machine

FOUR = cpu_tables(machine(4, 1, cores=4, threads=1))
"""Four sockets of one NUMA node of four CPUs: 0-3, 4-7, 8-11, 12-15."""
SMT = cpu_tables(machine(2, 1, cores=2, threads=2))
"""Two NUMA nodes of two cores: 0-3, 4-7."""
SOCKET = cpu_tables(machine(1, 2, cores=4, threads=1))
"""One socket of two NUMA nodes: 0-3, 4-7."""


def shares(tables, available, count, **options):
    """How many CPUs of each NUMA node are taken."""
    taken = take_distributed(tables, CPUSet.parse(available), count, **options)
    assert taken <= CPUSet.parse(available)
    return [(node & taken.mask).bit_count() for node in tables.node_sets]


@pytest.mark.parametrize(
    ("tables", "available", "count", "expected", "rule"),
    [
        (FOUR, "0-15", 4, [4, 0, 0, 0], "one node that holds it all is enough"),
        (FOUR, "0-15", 6, [3, 3, 0, 0], "else equal shares on the fewest nodes"),
        (FOUR, "1-15", 6, [0, 3, 3, 0], "of the combinations the one that leaves the rest most even"),
        (FOUR, "0-15", 7, [4, 3, 0, 0], "what does not divide goes to the first"),
        (FOUR, "0-15", 14, [4, 4, 3, 3], "or to several, one each"),
        (FOUR, "0,4,8,12", 2, [1, 1, 0, 0], "nodes too full alone are combined"),
        (FOUR, "0-3,4", 5, [4, 1, 0, 0], "where nothing is even the request is packed"),
        (FOUR, "0-5", 0, [0, 0, 0, 0], "nothing asked for, nothing given"),
        (SOCKET, "0-7", 6, [3, 3], "nodes of one socket share as well"),
    ],
)
def test_shares(tables, available, count, expected, rule):
    assert shares(tables, available, count) == expected, rule


def test_shares_are_whole_groups():
    assert shares(SMT, "0-7", 6, group=2) == [4, 2]
    assert shares(SMT, "0-7", 6) == [3, 3]


def test_a_count_that_is_no_number_of_groups_is_packed():
    offered = CPUSet.parse("0-7")
    assert take_distributed(SMT, offered, 5, group=2) == take_packed(SMT, offered, 5)


def test_a_remainder_that_fits_nowhere_in_whole_groups_ends_in_the_packed_answer():
    offered = CPUSet.parse("0-2,4-6")
    assert take_distributed(SMT, offered, 6, group=2) == offered


def test_the_order_of_cpus_inside_a_share_follows_the_sorting():
    offered = CPUSet.parse("1-3,5-7")
    assert str(take_distributed(SMT, offered, 4)) == "2-3,6-7"
    assert str(take_distributed(SMT, offered, 4, spread=True)) == "1-2,5-6"


def test_a_shortage_is_refused_with_both_numbers():
    with pytest.raises(InsufficientCPUsError, match="requested=7, available=6"):
        take_distributed(SMT, CPUSet.parse("0-5"), 7)


def test_beyond_eight_nodes_the_roomiest_share():
    many = cpu_tables(machine(12, 1, cores=4, threads=1))
    taken = take_distributed(many, CPUSet.parse("2-47"), 8)
    assert taken == CPUSet.parse("4-11")
    assert sorted(shares(many, "1-47", 46)) == [3, 3, *[4] * 10]
    assert len(take_distributed(many, CPUSet.parse("0-47"), 47)) == 47


FIVE = cpu_tables(machine(5, 1, cores=4, threads=2))
"""Five NUMA nodes of four cores of two threads: 0-7, 8-15, ..."""


def test_more_nodes_than_groups_are_never_tried():
    """Three nodes with half a core each would make five, with no equal share at all."""
    halves, free = "16,24,32", "0-5,8-9,16,24,32"
    taken = take_distributed(FIVE, CPUSet.parse(free), 8, group=2, spread=True)
    assert taken == take_packed(FIVE, CPUSet.parse(free), 8, spread=True)
    assert CPUSet.parse(halves) <= taken


def test_a_count_that_is_no_number_of_groups_is_packed_in_the_same_sorting():
    offered = CPUSet.parse("1-7")
    assert take_distributed(SMT, offered, 3, group=2, spread=True) == CPUSet.parse("1-3")
    assert take_distributed(SMT, offered, 3, group=2) == CPUSet.parse("1-3")
    assert take_distributed(SMT, CPUSet.parse("1,3,4-7"), 3, group=2, spread=True) == CPUSet.parse("1,3-4")
    assert take_distributed(SMT, CPUSet.parse("1,3,4-7"), 3, group=2) == CPUSet.parse("1,4-5")


@pytest.mark.parametrize(("count", "group"), [(8, 1), (8, 2)])
def test_as_many_nodes_are_used_as_nodes_of_average_size_take(count, group):
    rows = [(cpu, cpu // 2 * 2, node, node, node) for cpu, node in enumerate([0] * 8 + [1] * 2 + [2] * 8)]
    uneven = cpu_tables(topology_of_rows(rows))
    assert shares(uneven, "0-17", count, group=group) == [4, 0, 4]


def test_of_equally_free_nodes_the_lowest_is_used_whatever_is_free_of_their_sockets():
    rows = [(cpu, cpu, cpu // 4, cpu // 8, 0) for cpu in range(16)]
    tables = cpu_tables(topology_of_rows(rows))
    assert take_distributed(tables, CPUSet.parse("0-1,4-5,8,12-14"), 1) == CPUSet.parse("0")


def test_of_eight_nodes_every_way_to_share_a_remainder_is_tried():
    """The roomiest node takes four, three others one: that leaves the rest most even."""
    eight = cpu_tables(machine(8, 1, cores=16, threads=1))
    free = "0-7,16-23,32-39,48-55,64-71,80-87,96-103,112-123"
    assert shares(eight, free, 63) == [8, 8, 8, 7, 7, 7, 7, 11]


def test_of_more_nodes_a_remainder_goes_to_the_roomiest_one_each():
    nine = cpu_tables(machine(9, 1, cores=16, threads=1))
    free = ",".join(f"{16 * node}-{16 * node + 8}" for node in range(8)) + ",128-139"
    assert shares(nine, free, 80) == [9, 9, 9, 9, 9, 9, 9, 8, 9]


@pytest.mark.parametrize(
    ("left", "uneven"), [((1, 2, 2), 0.471), ((4, 4), 0), ((0, 1, 1, 1), 0.433), ((3, 8, 20), 7.134)]
)
def test_unevenness_is_rounded_like_the_kubelets(left, uneven):
    assert cpu_assignment._unevenness(dict(enumerate(left))) == uneven
