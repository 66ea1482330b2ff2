"""Wishes and their merge in words."""

import pytest

from nri_plugin.cli.explain.text import lead_text, rule_text
from nri_plugin.explain.explanation import explain
from nri_plugin.explain.hints import Hinted, Merged, hints_of
from nri_plugin.model.options import TopologyManagerPolicy, TopologyTieBreak
from nri_plugin.model.state import State
from nri_plugin.policy.hints import Hint, HintRule, HintSet, Need
from tests.builders import machine, node
from tests.explained import after, creation
from tests.topology_rows import topology_of_rows

RESTRICTED = TopologyManagerPolicy.RESTRICTED
NINE = range(9)


def merged_on(on, event, state: State | None = None) -> Merged:
    told = explain(on, state or State(), event).merged
    assert told
    return told


def rule_of(resource: str, rule: HintRule) -> str:
    explained = hints_of(HintSet(resource, (), rule)).rule
    assert explained
    return rule_text(resource, explained)


def test_listed_hints_are_told_as_they_are() -> None:
    told = hints_of(HintSet("cpu", (Hint(0b1, True), Hint(0b11, False)), why="cpu: 2 wanted"))
    assert (told.answer, told.numbers) == ("hints", "cpu: 2 wanted")
    assert told.hints == (Hinted("0", True), Hinted("0-1", False))


@pytest.mark.parametrize(("hints", "answer"), [(None, "anywhere"), ((), "nowhere")])
def test_no_preference_and_no_place_are_not_the_same(hints, answer: str) -> None:
    assert hints_of(HintSet("cpu", hints)).answer == answer


def test_a_rule_stands_for_too_many_sets_with_a_few_of_them() -> None:
    rule = HintRule(0x1FF, 0, (Need(6, dict.fromkeys(NINE, 4)),), 2)
    told = hints_of(HintSet("cpu", (), rule))
    assert told.answer == "hints"
    assert (
        rule_text("cpu", told.rule)
        == "any set of NUMA nodes 0-8 with 6 CPUs available together; preferred: of 2 nodes"
    )
    assert [one.nodes for one in told.hints] == ["0-1", "0-2", "0-3", "0-4"]
    assert [one.preferred for one in told.hints] == [True, False, False, False]


def test_single_nodes_of_a_rule_are_all_told() -> None:
    rule = HintRule(0x1FF, 0, (Need(4, {node: 4 if node % 2 else 1 for node in NINE}),), 1)
    assert [one.nodes for one in hints_of(HintSet("cpu", (), rule)).hints] == ["1", "3", "5", "7"]


def test_a_rule_for_memory_and_devices_says_what_it_is_about() -> None:
    needs = (Need(6, dict.fromkeys(NINE, 4)),)
    memory = rule_of("memory", HintRule(0x1FF, 0, needs, 2, at_least=2))
    assert memory.startswith("any set of 2 or more of NUMA nodes 0-8 with all the memory")
    devices = rule_of("example.com/gpu", HintRule(0x1FF, 0b1, (), 1))
    assert "that include 0 where all of it fits" in devices


def test_a_wider_runner_up_loses_by_width() -> None:
    on = node(machine(3), topology_manager_policy=RESTRICTED)
    state = after(on, creation("a", cpu=6), creation("b", cpu=8))
    told = merged_on(on, creation(cpu=6), state)
    assert told.nodes == "2"
    assert told.runner_up == Hinted("0,2", False)
    assert lead_text(told.lead) == "all prefer it, not so the other"


def test_closer_nodes_win_and_it_is_told_by_how_much() -> None:
    distances = {0: (10, 30, 20), 1: (30, 10, 30), 2: (20, 30, 10)}
    rows = [(cpu, cpu, cpu // 4, cpu // 4, cpu // 4) for cpu in range(12)]
    topology = topology_of_rows(rows, memory_bytes=dict.fromkeys(range(3), 1 << 30), distances=distances)
    on = node(
        topology,
        reserved="",
        topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT,
        prefer_closest_numa_nodes=True,
    )
    told = merged_on(on, creation(cpu=6))
    assert told.nodes == "0,2"
    assert lead_text(told.lead) == "closer together: distances add up to 60, not 80"


def test_the_tie_break_is_named() -> None:
    on = node(topology_manager_policy=RESTRICTED, topology_tie_break=TopologyTieBreak.SPREAD)
    told = merged_on(on, creation(cpu=4))
    assert (told.nodes, lead_text(told.lead)) == ("1", "topologyTieBreak spread")


def test_nodes_that_nobody_can_agree_on_are_not_admitted() -> None:
    on = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    told = merged_on(on, creation(cpu=2, gpus=(0, 1)))
    assert (told.nodes, told.admitted, told.runner_up) == ("", False, None)


def test_under_policy_none_there_is_nothing_to_compare() -> None:
    told = merged_on(node(), creation(cpu=2))
    assert (told.nodes, told.admitted, told.contenders) == ("", True, None)
