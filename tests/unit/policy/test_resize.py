"""Which CPUs a container grows by, and which it gives back."""

import pytest

from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.options import Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy import cpu_policy
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import nearest, without_last
from nri_plugin.policy.search.mask_order import Distances, distances_of
from tests.builders import cpus, machine
from tests.topology_rows import topology_of_rows

# Two NUMA nodes of two caches of two cores of two threads: caches 0-3, 4-7 | 8-11, 12-15.
TOPOLOGY = topology_of_rows([(cpu, cpu // 2, cpu // 8, cpu // 8, cpu // 4) for cpu in range(16)])
TABLES = cpu_tables(TOPOLOGY)


def texts(steps: tuple[CPUSet, ...]) -> list[str]:
    return [str(step) for step in steps]


@pytest.mark.parametrize(
    ("held", "available", "count", "expected"),
    [
        ("2", "0-1,3-15", 1, ["3"]),
        ("2", "0-1,3-15", 3, ["3", "0-1"]),
        ("2-3", "0-1,4-15", 4, ["0-1", "4-5"]),
        ("0-3", "4-15", 6, ["4-7", "8-9"]),
        ("0-3", "5-15", 3, ["6-7", "5"]),
        ("12-13", "0-11", 10, ["8-11", "0-5"]),
        ("2,12", "0-1,4-11,14-15", 4, ["0-1,14-15"]),
    ],
    ids=[
        "the other thread of its core first",
        "then its cache",
        "then its NUMA node, whole cores of it",
        "then other NUMA nodes",
        "of CPUs equally near the ones that placing would take",
        "a ring that is too small is taken whole",
        "near either part of a split set",
    ],
)
def test_it_grows_by_the_nearest(held: str, available: str, count: int, expected: list[str]) -> None:
    steps = nearest(TABLES, cpus(held), cpus(available), count, Options())
    joined = CPUSet()
    for step in steps:
        joined |= step
    assert len(joined) == count
    if expected == ["6-7", "5"]:  # one request, one ring: taken at once
        assert str(joined) == "5-7"
    else:
        assert texts(steps) == expected


def test_farther_nodes_come_by_distance() -> None:
    topology = topology_of_rows(
        [(cpu, cpu, 0, cpu // 2, cpu // 2) for cpu in range(8)],
        distances={0: [10, 30, 20, 40], 1: [30, 10, 40, 20], 2: [20, 40, 10, 30], 3: [40, 20, 30, 10]},
    )
    steps = nearest(cpu_tables(topology), cpus("0-1"), cpus("2-7"), 5, Options(), distances_of(topology))
    assert texts(steps) == ["4-5", "2-3", "6"]


def test_all_are_equally_far_from_cpus_that_are_offline() -> None:
    distances = distances_of(machine())
    assert texts(nearest(TABLES, cpus("40"), cpus("2-15"), 2, Options(), distances)) == ["2-3"]


def test_full_pcpus_only_grows_by_whole_cores() -> None:
    options = Options(full_pcpus_only=True)
    assert texts(nearest(TABLES, cpus("0-1"), cpus("3-15"), 2, options)) == ["4-5"]
    with pytest.raises(InsufficientCPUsError, match="requested=4, available=2; to grow beside 0-1"):
        nearest(TABLES, cpus("0-1"), cpus("3,5,7,9-11"), 4, options)


def test_what_is_not_there_is_refused_with_the_numbers() -> None:
    with pytest.raises(InsufficientCPUsError, match="requested=3, available=2; to grow beside 0-1"):
        nearest(TABLES, cpus("0-1"), cpus("0-3"), 3, Options())


@pytest.mark.parametrize(
    ("grown", "count", "expected"),
    [
        (["0-1", "4-5"], 0, ["0-1", "4-5"]),
        (["0-1", "4-5"], 2, ["0-1"]),
        (["0-1", "4-5"], 3, ["0"]),
        (["0-1", "4-7"], 2, ["0-1", "4-5"]),
        (["0-1", "5-7"], 1, ["0-1", "6-7"]),
        (["0-1", "4-5"], 4, []),
    ],
)
def test_it_gives_back_the_last_ones_first(grown: list[str], count: int, expected: list[str]) -> None:
    steps = tuple(map(cpus, grown))
    assert texts(without_last(TABLES, steps, count, Options())) == expected


def test_growing_and_giving_back_is_as_if_nothing_had_been() -> None:
    topology = machine()
    tables, held = cpu_tables(topology), cpus("2-3")
    for count in range(1, 12):
        steps = nearest(tables, held, topology.online - held - cpus("0-1"), count, Options())
        assert sum(map(len, steps)) == count
        assert without_last(tables, steps, count, Options()) == ()


def test_near_is_what_is_near_to_one_of_the_nodes_held():
    tables = cpu_tables(machine(nodes=4, cores=2, threads=1))
    far = {(0, 2): 12, (1, 2): 40, (0, 3): 20, (1, 3): 20, (0, 1): 30, (2, 3): 30}
    rows = {
        one: {other: 10 if one == other else far[min(one, other), max(one, other)] for other in range(4)}
        for one in range(4)
    }
    near = nearest(tables, CPUSet.parse("0-3"), CPUSet.parse("4-7"), 2, Options(), Distances(rows))
    assert near == (CPUSet.parse("4-5"),)


def test_all_that_is_left_can_be_given():
    tables = cpu_tables(machine(nodes=1, cores=2, threads=1))
    assert nearest(tables, CPUSet.parse("0"), CPUSet.parse("1"), 1, Options()) == (CPUSet.parse("1"),)


def test_each_ring_holds_those_before_it_and_the_last_all_cpus():
    rings = list(cpu_policy._rings(TABLES, CPUSet.parse("2").mask, distances_of(machine(nodes=2))))
    assert texts(map(CPUSet, rings)) == ["2-3", "0-3", "0-7", "0-7", "0-15", "0-15"]
