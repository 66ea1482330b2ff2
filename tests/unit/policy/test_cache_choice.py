"""Choosing caches. That the choice is the best one is a law in tests/property."""

import pytest

from nri_plugin.policy import best_fit
from nri_plugin.policy.best_fit import Cache, choose_caches, core_classes, fewest_caches

SMT2 = core_classes([0b11])
"""Cores of two threads: (2, 2) whole, (2, 1) half."""


def cache(number, whole, half=0):
    return Cache(number, cpus=0, free=2 * whole + half, cores=(whole, half))


def chosen(caches, need, **options):
    choice = choose_caches(SMT2, caches, need, **options)
    return [cache.number for cache in choice.caches], choice.split


def test_the_fewest_caches_are_the_largest_ones():
    assert fewest_caches([cache(0, 1), cache(1, 4), cache(2, 2)], 8) == 1
    assert fewest_caches([cache(0, 1), cache(1, 4), cache(2, 2)], 9) == 2


def test_the_largest_is_left_out_while_the_others_suffice():
    assert chosen([cache(0, 4), cache(1, 3), cache(2, 3), cache(3, 2)], 10) == ([1, 3], 0)


def test_of_equal_sizes_the_lowest_numbers_are_taken():
    assert chosen([cache(3, 2), cache(1, 2), cache(2, 2)], 8) == ([1, 2], 0)


def test_whole_cores_go_before_a_tight_set_of_halves():
    halves = [cache(0, 0, 5), cache(1, 0, 5)]
    assert chosen([*halves, cache(2, 3), cache(3, 3)], 10) == ([2, 3], 0)


def test_among_those_that_split_as_few_the_smallest_sizes_win_before_the_lowest_numbers():
    halves = [cache(0, 0, 5), cache(1, 0, 5)]
    wholes = [cache(2, 4), cache(3, 5), cache(4, 3), cache(5, 3), cache(6, 3)]
    assert chosen([*halves, *wholes], 10) == ([3], 0)
    assert chosen([*halves, cache(2, 4), cache(4, 3), cache(5, 3), cache(6, 3)], 10) == ([4, 5], 0)


def test_past_the_budget_the_choice_by_size_is_kept():
    halves = [cache(0, 0, 5), cache(1, 0, 5)]
    assert chosen([*halves, cache(2, 3), cache(3, 3)], 10, steps=0) == ([0, 1], 10)


def test_sizes_are_told_from_the_largest():
    assert choose_caches(SMT2, [cache(0, 1), cache(1, 2)], 6).sizes == (4, 2)


@pytest.mark.parametrize(
    ("caches", "need", "expected"),
    [
        ([cache(0, 4), cache(1, 3)], 6, ([1], 0)),
        ([cache(0, 0, 5), cache(1, 0, 5)], 10, ([0, 1], 10)),
        ([cache(0, 3), cache(1, 0, 5)], 11, ([0, 1], 5)),
    ],
)
def test_nothing_is_searched_where_no_other_choice_can_split_fewer(monkeypatch, caches, need, expected):
    monkeypatch.setattr(best_fit, "_Sets", None)
    assert chosen(caches, need) == expected


def test_one_more_cache_is_never_taken_to_split_fewer():
    halves = [cache(0, 0, 5), cache(1, 0, 5)]
    assert chosen([*halves, *(cache(number, 2) for number in range(2, 6))], 10) == ([0, 1], 10)


@pytest.mark.parametrize(
    ("caches", "need", "best", "by_size", "steps"),
    [
        ([cache(0, 0, 5), cache(1, 0, 5), cache(2, 3), cache(3, 3)], 10, ([2, 3], 0), ([0, 1], 10), 10),
        (
            [cache(0, 0, 5), cache(1, 1, 4), cache(2, 4), cache(3, 2, 1), cache(4, 3), cache(5, 2, 2)],
            11,
            ([3, 4], 1),
            ([0, 1], 9),
            38,
        ),
    ],
)
def test_the_search_takes_so_many_steps_and_with_one_less_the_choice_by_size_is_kept(
    caches, need, best, by_size, steps
):
    """More steps mean that sets are looked at which cannot become large enough."""
    assert chosen(caches, need, steps=steps) == best
    assert chosen(caches, need, steps=steps - 1) == by_size
