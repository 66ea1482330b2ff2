"""The order in which CPUs are taken is told as it happened."""

import pytest
from msgspec.structs import replace

from nri_plugin.cli.explain.text import explanation_text
from nri_plugin.explain.explanation import Explanation, explain
from nri_plugin.model.options import REGISTRY, Node, TopologyManagerPolicy, UncoreCacheFit
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import SharedQueue
from nri_plugin.policy.cpu_assignment import AssignmentStage
from tests.builders import machine, node
from tests.explained import after, creation
from tests.topology_rows import topology_of_rows

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE


def told_of(on: Node, cpu: int, state: State | None = None) -> Explanation:
    return explain(on, state or State(), creation(cpu=cpu))


def test_cores_are_taken_whole_and_then_single_cpus() -> None:
    told = told_of(node(topology_manager_policy=SINGLE), 5)
    assert [(step.stage, step.cpus, step.place) for step in told.taking] == [
        ("whole-core", "2-5", "nodes-of-hint"),
        ("single-cpus", "6", "nodes-of-hint"),
    ]
    first = told.taking[0]
    assert (first.on_offer, first.numa_nodes, first.sockets, first.whole_cores) == (6, "0", "0", 2)


def test_whole_nodes_come_before_cores() -> None:
    told = told_of(node(reserved=""), 10)
    assert [step.stage for step in told.taking] == ["whole-numa-node", "whole-core"]
    assert [step.place for step in told.taking] == ["anywhere", "anywhere"]


def test_the_option_that_packs_by_cache_is_named() -> None:
    on = node(machine(cores=8, caches=2), prefer_align_cpus_by_uncore_cache=True, reserved="0-1")
    told = told_of(on, 10)
    assert [(step.stage, step.option) for step in told.taking] == [
        ("whole-uncore-cache", "prefer-align-cpus-by-uncorecache"),
        ("part-of-uncore-cache", "prefer-align-cpus-by-uncorecache"),
    ]


@pytest.mark.parametrize(("threads_apart", "cpus", "cores"), [(False, "2-5", 2), (True, "2-5", 4)])
def test_the_option_that_spreads_over_cores_goes_by_number_and_says_so(
    threads_apart: bool, cpus: str, cores: int
) -> None:
    """Up to Kubernetes 1.37, where the threads of a core have neighboring numbers, they come together."""
    rows = [(cpu, cpu % 8 if threads_apart else cpu // 2 * 2, 0, 0, 0) for cpu in range(16)]
    on = node(topology_of_rows(rows), distribute_cpus_across_cores=True)
    told = told_of(on, 4)
    assert [(step.stage, step.option) for step in told.taking] == [
        ("by-number", "distribute-cpus-across-cores")
    ]
    assert (told.cpus, sum(1 for _, one in on.topology.cores if one & CPUSet.parse(told.cpus))) == (
        cpus,
        cores,
    )
    text = " ".join(explanation_text(told, 200).split())
    assert "the lowest CPU numbers, in the fullest socket first, whatever their cores" in text


def test_equal_shares_are_told_node_by_node() -> None:
    told = told_of(node(reserved="", distribute_cpus_across_numa=True), 12)
    assert [(step.place, step.count, step.option) for step in told.taking] == [
        ("equal-share", 6, "distribute-cpus-across-numa"),
        ("equal-share", 6, "distribute-cpus-across-numa"),
    ]


def test_what_does_not_fit_on_the_hinted_nodes_comes_from_anywhere() -> None:
    on = node(topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT)
    event = creation(cpu=8, gpus=(0,))
    told = explain(on, State(), event)
    assert {step.place for step in told.taking} == {"nodes-of-hint", "anywhere"}
    assert sum(step.count for step in told.taking) == 8


def test_the_best_fit_is_told_in_one_step_and_one_cache_by_its_own_option() -> None:
    best = node(machine(caches=2), uncore_cache_fit=UncoreCacheFit.BEST)
    assert [(step.stage, step.option) for step in told_of(best, 3).taking] == [
        ("best-fit", "uncoreCacheFit: best")
    ]
    strict = node(machine(caches=2), uncore_cache_fit=UncoreCacheFit.BEST, strict_uncore_cache=True)
    assert [(step.stage, step.option) for step in told_of(strict, 3).taking] == [
        ("one-uncore-cache", "strictUncoreCache")
    ]


def test_whole_queues_are_told_in_one_step_where_they_change_the_choice() -> None:
    on = node(replace(machine(), queues=(SharedQueue(CPUSet.parse("3-4")),)), prefer_whole_queues=True)
    assert [(step.stage, step.option, step.cpus) for step in told_of(on, 2).taking] == [
        ("whole-queues", "preferWholeQueues", "6-7")
    ]
    assert [step.stage for step in told_of(on, 6).taking] == ["whole-core"]


def test_the_stages_of_options_exist_and_belong_to_one_option_each() -> None:
    stages = [stage for row in REGISTRY.values() for stage in row.stages]
    assert len(stages) == len(set(stages))
    assert set(stages) <= set(AssignmentStage)


def test_the_steps_together_are_the_cpus_that_were_given() -> None:
    on = node(topology_manager_policy=SINGLE)
    told = told_of(on, 5, after(on, creation("a", cpu=3)))
    cpus = set()
    for step in told.taking:
        cpus |= {int(cpu) for part in step.cpus.split(",") for cpu in _range(part)}
    assert cpus == {int(cpu) for part in told.cpus.split(",") for cpu in _range(part)}


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)
