"""Which devices are given: NUMA placement first, then pairing."""

import pytest

from nri_plugin.nodemask import NodeMask
from nri_plugin.policy.device_allocation import DEEPEST, preferred_devices

GPUS = tuple("01234567")
NODES = {gpu: NodeMask.of(int(gpu) // 4) for gpu in GPUS}
PAIRS = (("0", "3"), ("1", "2"), ("4", "7"), ("5", "6"))
LINKS = {(a, b): 1 for a in GPUS for b in GPUS if a < b and NODES[a] == NODES[b]} | dict.fromkeys(PAIRS, 10)
"""The graph of KEP-693: two NUMA nodes of four GPUs, each GPU with one strongly connected partner."""


def give(size, available=GPUS, must_include=(), **more):
    return preferred_devices(available, must_include, size, NODES, LINKS, **more)


def test_two_are_a_pair() -> None:
    assert give(2) in PAIRS


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("place", [0, 1])
def test_one_that_must_be_included_brings_its_partner(pair, place) -> None:
    assert give(2, must_include=[pair[place]]) == pair


def test_those_that_must_be_included_count_in_the_size() -> None:
    assert give(2, must_include=["0", "1"]) == ("0", "1")


def test_four_are_two_pairs_on_one_node() -> None:
    assert give(4) == ("0", "1", "2", "3")
    assert give(4, available=tuple("0134567")) == ("4", "5", "6", "7")


def test_one_node_goes_before_a_better_link() -> None:
    assert give(3, available=("0", "1", "4", "5", "7")) == ("4", "5", "7")
    assert preferred_devices(
        ("a", "b", "c"),
        [],
        2,
        {"a": NodeMask.of(0), "b": NodeMask.of(1), "c": NodeMask.of(0)},
        {("a", "b"): 99},
    ) == ("a", "c")


def test_one_alone_is_one_whose_partner_is_gone() -> None:
    assert give(1, available=tuple("0124567")) == ("0",)
    assert give(1, available=tuple("0123567")) == ("7",)


def test_three_leave_no_pair_broken_that_could_stay_whole() -> None:
    assert give(3, available=tuple("1234567")) == ("1", "2", "3")


def test_devices_of_the_affinity_go_first_and_all_of_them_when_they_are_too_few() -> None:
    assert give(2, affinity=NodeMask.of(1)) == ("4", "7")
    assert give(3, available=("0", "1", "3", "5"), affinity=NodeMask.of(1)) == ("0", "3", "5")


def test_a_device_of_several_nodes_or_of_none_is_near_all_of_them() -> None:
    nodes = {"a": NodeMask.of(0), "b": NodeMask.of(0, 1), "c": NodeMask.of(1)}
    assert preferred_devices(("a", "b", "c"), ["c"], 2, nodes, {}) == ("b", "c")
    assert preferred_devices(("a", "c", "d"), ["c"], 2, nodes, {}) == ("c", "d")


def test_links_to_devices_that_are_not_available_do_not_count() -> None:
    assert preferred_devices(("a", "b"), [], 1, {}, {("a", "x"): 5, ("a", "a"): 9}) == ("a",)


def test_none_may_be_wanted() -> None:
    assert give(0) == ()
    assert preferred_devices((), (), 0, {}, {}) == ()


@pytest.mark.parametrize(("size", "must_include"), [(9, ()), (1, ("0", "1"))])
def test_impossible_sizes_name_both_sides(size, must_include) -> None:
    with pytest.raises(
        ValueError, match=f"{size} devices wanted, but {len(must_include)} must be included and 8"
    ):
        give(size, must_include=must_include)


def test_among_many_devices_the_search_ends_on_the_fewest_nodes_with_whole_pairs() -> None:
    many = tuple(map(str, range(64)))
    nodes = {name: NodeMask.of(int(name) // 8) for name in many}
    given = preferred_devices(many, ["9"], 16, nodes, {(str(n), str(n + 1)): 5 for n in range(0, 64, 2)})
    assert {int(name) // 8 for name in given} == {0, 1}
    assert {str(int(name) ^ 1) for name in given} == set(given)


def test_among_many_devices_those_that_hang_together_are_found() -> None:
    many = tuple(map(str, range(60)))
    together = tuple(map(str, range(5, 60, 6)))
    links = {(a, b): (int(a) * 31 + int(b) * 17) % 4 for a in many for b in many if int(a) < int(b)}
    links |= {(a, b): 12 for a in together for b in together if int(a) < int(b)}
    assert preferred_devices(many, [], len(together), {}, links) == together
    assert preferred_devices(many, ["11"], len(together), {}, links) == together


def test_when_the_steps_run_out_the_best_set_so_far_is_given() -> None:
    many = tuple(map(str, range(40)))
    links = {(a, b): (int(a) * 7919 + int(b) * 104729) % 101 for a in many for b in many if a < b}
    given = preferred_devices(many, [], 20, {}, links)
    assert len(set(given)) == 20
    assert preferred_devices(many, [], 20, {}, links) == given


def test_steps_that_run_out_among_the_nodes_leave_every_device_to_choose_from() -> None:
    many = tuple(map(str, range(60)))
    nodes = {name: NodeMask.of(int(name) % 20, (int(name) + 7) % 20) for name in many}
    given = preferred_devices(many, [], 58, nodes, {("0", "1"): 1})
    assert len(set(given)) == 58


def test_a_thousand_alike_are_given_in_order() -> None:
    many = tuple(map(str, range(1000)))
    assert preferred_devices(many, [], 3, {}, {}) == ("0", "1", "2")
    assert len(preferred_devices(many[: DEEPEST + 50], [], DEEPEST + 10, {}, {("0", "1"): 1})) == DEEPEST + 10
