"""Choosing caches. That the choice is the best one is a law in tests/property."""

from nri_plugin.policy.cache_choice import Cache, choose_caches, fewest_caches
from nri_plugin.policy.core_choice import core_classes

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
