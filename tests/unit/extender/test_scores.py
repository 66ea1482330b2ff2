"""Scores of whole nodes."""

import pytest

from nri_plugin.extender.one_node import Scoring, Strategy, score
from tests.kube_builders import container, pod, topology

NODE = topology("n", {0: {"cpu": "8", "memory": "8"}})
GUARANTEED = pod(container(cpu="2", memory="4"))


@pytest.mark.parametrize("strategy", list(Strategy))
def test_only_guaranteed_pods_are_told_apart(strategy):
    assert score(pod(container(cpu="2")), NODE, Scoring(strategy)) == 100
    assert score(GUARANTEED, None, Scoring(strategy)) == 0


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("LeastNUMANodes", 94), ("LeastAllocated", 62), ("MostAllocated", 37), ("BalancedAllocation", 96)],
)
def test_each_strategy_scores(strategy, expected):
    assert score(GUARANTEED, NODE, Scoring(Strategy(strategy))) == expected
