"""Zones by how full they are."""

import math

import pytest

from nri_plugin.extender.nodes import node_policy
from nri_plugin.extender.one_node import (
    balanced_allocation,
    least_allocated,
    most_allocated,
    node_score,
    sample_variance,
    whole,
)
from tests.kube_builders import amounts, container, pod, topology, zones_of

ASKED, HAVE = amounts({"cpu": "2", "memory": "1"}), amounts({"cpu": "8", "memory": "2"})


def test_what_stays_and_what_is_used_add_up():
    assert least_allocated(ASKED, HAVE, {}) == (75 + 50) // 2
    assert most_allocated(ASKED, HAVE, {}) == (25 + 50) // 2


def test_weights_count_from_one_up():
    assert least_allocated(ASKED, HAVE, {"cpu": 3}) == (3 * 75 + 50) // 4
    assert least_allocated(ASKED, HAVE, {"cpu": 0}) == least_allocated(ASKED, HAVE, {})


def test_requests_are_compared_exactly_and_divided_in_whole_units():
    assert most_allocated(amounts({"cpu": "1500m"}), amounts({"cpu": "4"}), {}) == 50
    assert most_allocated(amounts({"cpu": "3500m"}), amounts({"cpu": "3400m"}), {}) == 0


@pytest.mark.parametrize("score", [least_allocated, most_allocated])
def test_a_resource_that_is_not_there_scores_nothing_and_weighs(score):
    assert score(amounts({"cpu": "2", "x/y": "1"}), amounts({"cpu": "4"}), {}) == 25


def test_balance_is_about_equal_shares():
    assert (
        balanced_allocation(amounts({"cpu": "2", "memory": "2"}), amounts({"cpu": "4", "memory": "4"}), {})
        == 100
    )
    assert balanced_allocation(ASKED, HAVE, {}) == int((1 - 0.03125) * 100)
    assert balanced_allocation(amounts({"cpu": "9"}), HAVE, {}) == 0
    assert balanced_allocation(amounts({"cpu": "2"}), HAVE, {}) == 100


def test_variance_is_that_of_a_sample():
    assert math.isclose(sample_variance([1, 2, 3, 4]), 5 / 3)


def test_floats_are_added_one_after_the_other_on_every_python():
    total = 0.0
    for value in [0.1] * 10:
        total += value
    assert total != 1.0
    assert sample_variance([0.1] * 10) == sample_variance_from(total)


def sample_variance_from(total):
    apart, squares, rest = 0.1 - total / 10, 0.0, 0.0
    for _ in range(10):
        squares, rest = squares + apart * apart, rest + apart
    return (squares - rest * rest / 10) / 9


def test_less_than_nothing_is_rounded_away_from_zero():
    assert [whole(milli) for milli in (-1500, -1000, -1, 0, 1, 1000, 1500)] == [-2, -1, -1, 0, 1, 1, 2]
    have = amounts({"cpu": "-500m", "memory": "2"})
    assert least_allocated(ASKED, have, {}) == most_allocated(ASKED, have, {}) == 25
    assert balanced_allocation(ASKED, have, {}) == int((1 - 2.5**2 / 2) * 100)


def test_a_node_scores_as_its_worst_zone_that_can():
    node = topology("n", {0: {"cpu": "8"}, 1: {"cpu": "4"}, 2: {"cpu": "1"}})
    how, zones = node_policy(node), zones_of(node)
    assert node_score(least_allocated, pod(container(cpu="2")), how, zones, {}) == 50


def test_containers_are_averaged_each_alone():
    node = topology("n", {0: {"cpu": "8"}})
    asked = pod(container(cpu="2"), container(cpu="4"), init=[container(cpu="1")])
    assert node_score(least_allocated, asked, node_policy(node), zones_of(node), {}) == (75 + 50 + 87) // 3
    assert (
        node_score(
            least_allocated,
            asked,
            node_policy(topology("n", {0: {}}, policy="restricted")),
            zones_of(node),
            {},
        )
        == 0
    )
