"""Which of equally good sets of CPUs is taken where CPUs share queues of devices."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.options import Options, UncoreCacheFit
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import SharedQueue
from nri_plugin.policy import whole_queues
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables
from nri_plugin.policy.cpu_policy import allocate_cpus
from tests.topology_rows import topology_of_rows

WHOLE = Options(prefer_whole_queues=True)


def machine(queues: dict[str, str], cpus: int = 8, threads: int = 1) -> CPUTables:
    """One NUMA node; with two threads a core has neighbours."""
    made = topology_of_rows((cpu, cpu // threads, 0, 0, 0) for cpu in range(cpus))
    shared = (SharedQueue(CPUSet.parse(own), CPUSet.parse(to)) for own, to in queues.items())
    return cpu_tables(replace(made, queues=tuple(shared)))


def taken(tables: CPUTables, available: str, count: int, options: Options = WHOLE) -> str:
    return str(allocate_cpus(tables, count, CPUSet.parse(available), None, options=options))


PAIRS = {"0-1": "", "2-3": "", "4-5": "", "6-7": ""}


@pytest.mark.parametrize(
    ("queues", "available", "count", "without", "expected"),
    [
        (PAIRS, "1-7", 2, "1-2", "2-3"),
        (PAIRS, "1-7", 4, "1-4", "2-5"),
        ({"0,2": "", "1,3": "", "4,6": "", "5,7": ""}, "0-7", 2, "0-1", "1,3"),
        # Three of seven split one queue at least.
        (PAIRS, "1-7", 3, "1-3", "1-3"),
        # Every choice of one CPU splits a queue; CPU 1 and 3 get the interrupts of strangers.
        ({"0-1": "1", "2-3": "3"}, "1-3", 1, "1", "2"),
        # All that is on offer is needed.
        (PAIRS, "1-2", 2, "1-2", "1-2"),
        ({}, "1-7", 2, "1-2", "1-2"),
    ],
)
def test_of_equal_choices_one_that_splits_fewer_queues_is_taken(
    queues: dict[str, str], available: str, count: int, without: str, expected: str
) -> None:
    tables = machine(queues)
    assert taken(tables, available, count, Options()) == without
    assert taken(tables, available, count) == expected


def test_a_choice_that_splits_a_core_is_not_as_good() -> None:
    tables = machine({"1-2": "", "3-6": ""}, threads=2)
    assert taken(tables, "0-7", 2) == "0-1"


def test_a_choice_that_leaves_the_fullest_cache_is_not_as_good() -> None:
    rows = [(cpu, cpu, 0, 0, cpu // 4) for cpu in range(8)]
    queues = (SharedQueue(CPUSet.parse("0-1")), SharedQueue(CPUSet.parse("4-5")))
    tables = cpu_tables(replace(topology_of_rows(rows), queues=queues))
    best = dataclasses.replace(WHOLE, uncore_cache_fit=UncoreCacheFit.BEST)
    assert taken(tables, "1-2,4-7", 2, best) == "1-2"


def test_no_cpus_beyond_the_affinity_are_taken() -> None:
    rows = [(cpu, cpu, 0, cpu // 4, cpu // 4) for cpu in range(8)]
    queues = (SharedQueue(CPUSet.parse("0-1")), SharedQueue(CPUSet.parse("2-3")))
    tables = cpu_tables(replace(topology_of_rows(rows), queues=queues))
    found = allocate_cpus(tables, 2, CPUSet.parse("1-2,4-7"), NodeMask.of(0), options=WHOLE)
    assert str(found) == "1-2"


def test_too_few_cpus_are_refused_as_without_it() -> None:
    with pytest.raises(InsufficientCPUsError):
        taken(machine(PAIRS), "1-2", 3)


def test_the_number_of_trials_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_queues, "TRIALS", 0)
    assert taken(machine(PAIRS), "1-7", 2) == "1-2"


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ("1-7", [("whole-core", "2"), ("whole-core", "3"), ("whole-queues", "2-3")]),
        ("2-7", [("whole-core", "2"), ("whole-core", "3")]),
    ],
)
def test_the_last_step_tells_that_queues_decided(available: str, expected: list[tuple[str, str]]) -> None:
    heard: list[tuple[str, str]] = []
    allocate_cpus(
        machine(PAIRS),
        2,
        CPUSet.parse(available),
        None,
        options=WHOLE,
        note=lambda stage, cpus: heard.append((stage, str(CPUSet(cpus)))),
    )
    assert heard[1:] == expected
