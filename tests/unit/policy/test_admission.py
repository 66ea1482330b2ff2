"""Admission: merge, then admit or refuse with the numbers."""

import pytest

from nri_plugin.model.errors import TopologyAffinityError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy import merge
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.hints import Hint, HintSet
from nri_plugin.policy.merge import MergedHint, admit
from tests.unit.policy.shapes import machine

TWO = cpu_tables(machine(2, 1, cores=4, threads=2))
NODES = NodeMask(0b11)
FRAGMENTED = CPUSet.parse("0-3,8-11")


def test_an_admitted_hint_is_returned():
    hint_sets = cpu_hint_sets(TWO, 4, CPUSet.parse("8-15"))
    assert admit(TopologyManagerPolicy.RESTRICTED, NODES, [hint_sets]) == MergedHint(
        NodeMask(0b10), preferred=True
    )


def test_policy_none_admits_anything_anywhere():
    hint_sets = cpu_hint_sets(TWO, 40, FRAGMENTED)
    assert admit(TopologyManagerPolicy.NONE, NODES, [hint_sets]) == MergedHint(None, preferred=False)


SAID = "TopologyAffinityError: resources cannot be allocated with topology locality: policy "
FEWEST = "the fewest NUMA nodes that could hold everything, the same for all resources"
CPU = "cpu: 6 wanted, 8 available (by NUMA node 0: 4 of 8, 1: 4 of 8)"


def refusal(policy, *providers, nodes=NODES):
    with pytest.raises(TopologyAffinityError) as refused:
        admit(policy, nodes, providers)
    return str(refused.value)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            TopologyManagerPolicy.RESTRICTED,
            f"{SAID}restricted needs {FEWEST}, and the best there is now is NUMA nodes 0-1",
        ),
        (
            TopologyManagerPolicy.SINGLE_NUMA_NODE,
            f"{SAID}single-numa-node needs one NUMA node that holds everything, and there is none",
        ),
    ],
)
def test_a_refusal_names_policy_best_hint_and_what_is_free_where(policy, said):
    hint_sets = cpu_hint_sets(TWO, 6, FRAGMENTED)
    assert refusal(policy, None, hint_sets) == f"{said}; {CPU}"


def test_a_refusal_says_each_reason_once_and_none_where_there_is_none():
    wide = (Hint(0b11, preferred=True),)
    hint_sets = [
        HintSet("a", wide, why="full"),
        HintSet("b", wide),
        HintSet("c", wide, why="full"),
        HintSet("d", wide, why="far"),
    ]
    said = f"{SAID}single-numa-node needs one NUMA node that holds everything, and there is none"
    assert refusal(TopologyManagerPolicy.SINGLE_NUMA_NODE, hint_sets) == f"{said}; full; far"
    assert refusal(TopologyManagerPolicy.SINGLE_NUMA_NODE, [HintSet("b", wide)]) == said


def test_best_effort_admits_the_same():
    hint_sets = cpu_hint_sets(TWO, 6, FRAGMENTED)
    assert not admit(TopologyManagerPolicy.BEST_EFFORT, NODES, [hint_sets]).preferred


def test_a_refusal_says_when_the_search_was_cut_short(monkeypatch):
    large = cpu_tables(machine(16, 1, cores=4, threads=1))
    hint_sets = cpu_hint_sets(large, 6, CPUSet.parse("0-3,8-11"))
    hint = admit(TopologyManagerPolicy.RESTRICTED, NodeMask(0xFFFF), [hint_sets])
    assert hint == MergedHint(NodeMask(0b101), preferred=True)
    monkeypatch.setattr(merge, "STEP_BUDGET", 0)
    said = refusal(TopologyManagerPolicy.RESTRICTED, hint_sets, nodes=NodeMask(0xFFFF))
    assert said.endswith(
        ", and 8 more); the search ran out of steps, so there may be a better one: ask again or ask for less"
    )
