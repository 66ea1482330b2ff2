"""Scores of whole nodes."""

import pytest

from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring, Strategy, whole
from tests.kube_builders import container, node_row, pod, topology

NODE = topology("n", {0: {"cpu": "8", "memory": "8"}})
GUARANTEED = pod(container(cpu="2", memory="4"))


def score(asked, node, scoring):
    cluster = ClusterAnswers(scoring)
    if node is not None:
        cluster.put("n", *node_row(node))
    return cluster.scores(["n"], asked)[0]


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


def scored(strategy, zones, *containers, weights=None, **attributes):
    node = topology("n", zones, **attributes)
    return score(pod(*containers), node, Scoring(Strategy(strategy), weights or {}))


ASKED, HAVE = container(cpu="2", memory="1"), {"cpu": "8", "memory": "2"}


def test_what_stays_and_what_is_used_add_up():
    assert scored("LeastAllocated", {0: HAVE}, ASKED) == (75 + 50) // 2
    assert scored("MostAllocated", {0: HAVE}, ASKED) == (25 + 50) // 2


def test_weights_count_from_one_up():
    assert scored("LeastAllocated", {0: HAVE}, ASKED, weights={"cpu": 3}) == (3 * 75 + 50) // 4
    assert scored("LeastAllocated", {0: HAVE}, ASKED, weights={"cpu": 0}) == (75 + 50) // 2


def test_requests_are_compared_exactly_and_divided_in_whole_units():
    asked = container(cpu="1500m", memory="1")
    assert scored("MostAllocated", {0: {"cpu": "4", "memory": "1"}}, asked) == (50 + 100) // 2
    assert scored("MostAllocated", {0: {"cpu": "1400m", "memory": "1"}}, asked) == (0 + 100) // 2


def test_balance_is_about_equal_shares():
    even = container(cpu="2", memory="2")
    assert scored("BalancedAllocation", {0: {"cpu": "4", "memory": "4"}}, even) == 100
    assert scored("BalancedAllocation", {0: HAVE}, ASKED) == int((1 - 0.03125) * 100)
    assert scored("BalancedAllocation", {0: {"cpu": "1", "memory": "4"}}, even) == 0


def test_less_than_nothing_is_rounded_away_from_zero():
    assert [whole(milli) for milli in (-1500, -1000, -1, 0, 1, 1000, 1500)] == [-2, -1, -1, 0, 1, 1, 2]


def test_a_node_scores_as_its_worst_zone_that_can():
    zones = {n: {"cpu": cpus, "memory": cpus} for n, cpus in enumerate("841")}
    assert scored("LeastAllocated", zones, container(cpu="2", memory="2")) == 50


def test_containers_are_averaged_each_alone():
    zones = {0: {"cpu": "8", "memory": "8"}}
    asked = [container(cpu=cpus, memory=cpus) for cpus in "24"]
    assert scored("LeastAllocated", zones, *asked) == (75 + 50) // 2
    assert scored("LeastAllocated", zones, *asked, policy="restricted") == 0


def test_the_mean_over_containers_is_truncated_also_below_zero():
    """Shares of 1 and -1 score -100, those of 1 and -2 score -350."""
    rows = [container(cpu="2", memory=memory) for memory in "112"]
    assert scored("BalancedAllocation", {0: {"cpu": "0", "memory": "-1m"}}, *rows) == -183
