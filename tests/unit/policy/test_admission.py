"""Admission: merge, then admit or refuse with the numbers."""

import pytest

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import TopologyAffinityError
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy import merge
from nri_plugin.policy.admission import admit
from nri_plugin.policy.cpu_policy import cpu_wishes
from nri_plugin.policy.merge import MergedHint
from nri_plugin.policy.tables import cpu_tables
from tests.unit.policy.shapes import machine

TWO = cpu_tables(machine(2, 1, cores=4, threads=2))
NODES = NodeMask(0b11)
FRAGMENTED = CPUSet.parse("0-3,8-11")


def test_an_admitted_hint_is_returned():
    wishes = cpu_wishes(TWO, 4, CPUSet.parse("8-15"))
    assert admit(TopologyManagerPolicy.RESTRICTED, NODES, [wishes]) == MergedHint(
        NodeMask(0b10), preferred=True
    )


def test_policy_none_admits_anything_anywhere():
    wishes = cpu_wishes(TWO, 40, FRAGMENTED)
    assert admit(TopologyManagerPolicy.NONE, NODES, [wishes]) == MergedHint(None, preferred=False)


@pytest.mark.parametrize(
    ("policy", "best"),
    [
        (TopologyManagerPolicy.RESTRICTED, "the best there is now is NUMA nodes 0-1"),
        (TopologyManagerPolicy.SINGLE_NUMA_NODE, "there is none"),
    ],
)
def test_a_refusal_names_policy_best_hint_and_what_is_free_where(policy, best):
    wishes = cpu_wishes(TWO, 6, FRAGMENTED)
    with pytest.raises(TopologyAffinityError) as refusal:
        admit(policy, NODES, [None, wishes])
    text = str(refusal.value)
    assert text.startswith("TopologyAffinityError: resources cannot be allocated with topology locality: ")
    assert f"policy {policy} needs" in text
    assert f"and {best}; cpu" in text
    assert text.endswith("cpu: 6 wanted, 8 available (by NUMA node 0: 4 of 8, 1: 4 of 8)")


def test_best_effort_admits_the_same():
    wishes = cpu_wishes(TWO, 6, FRAGMENTED)
    assert not admit(TopologyManagerPolicy.BEST_EFFORT, NODES, [wishes]).preferred


def test_a_refusal_says_when_the_search_was_cut_short(monkeypatch):
    large = cpu_tables(machine(16, 1, cores=4, threads=1))
    wishes = cpu_wishes(large, 6, CPUSet.parse("0-3,8-11"))
    hint = admit(TopologyManagerPolicy.RESTRICTED, NodeMask(0xFFFF), [wishes])
    assert hint == MergedHint(NodeMask(0b101), preferred=True)
    monkeypatch.setattr(merge, "STEP_BUDGET", 0)
    with pytest.raises(TopologyAffinityError, match="the search ran out of steps"):
        admit(TopologyManagerPolicy.RESTRICTED, NodeMask(0xFFFF), [wishes])
