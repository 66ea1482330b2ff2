"""Which devices are given: NUMA placement first, then pairing."""

import pytest

from nri_plugin.model.sets import NodeMask
from nri_plugin.policy import device_allocation
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


def test_a_device_without_a_place_is_near_any_affinity() -> None:
    nodes = {"a": NodeMask.of(0), "e": NodeMask.of(1)}
    assert preferred_devices("ade", [], 2, nodes, {("a", "e"): 9}, affinity=NodeMask.of(1)) == ("d", "e")


def test_a_device_without_a_place_goes_before_one_that_is_elsewhere() -> None:
    far = {"a": NodeMask.of(0)}
    assert preferred_devices("ad", [], 1, far, {}, affinity=NodeMask.of(1)) == ("d",)


def test_the_fewest_nodes_are_those_that_have_most() -> None:
    nodes = {"a": NodeMask.of(0), "b": NodeMask.of(1), "c": NodeMask.of(1)}
    assert preferred_devices(("a", "b", "c"), [], 2, nodes, {("a", "b"): 99}) == ("b", "c")
    assert preferred_devices(("a", "b", "c", "d"), ["d"], 3, nodes, {("a", "b"): 99}) == ("b", "c", "d")


def test_a_link_on_one_node_goes_before_none_on_another() -> None:
    nodes = {name: NodeMask.of(name > "b") for name in "abcd"}
    assert preferred_devices("abcd", [], 2, nodes, {("c", "d"): 1}) == ("c", "d")
    assert preferred_devices("abcdf", ["f"], 2, nodes, {("c", "d"): 1}) == ("a", "f")


def test_what_must_be_included_may_have_links_of_its_own() -> None:
    assert give(4, must_include=["0", "1"]) == ("0", "1", "2", "3")
    assert give(3, must_include=["0", "3"]) == ("0", "1", "3")


def test_one_alone_is_one_whose_partner_is_gone() -> None:
    assert give(1, available=tuple("0124567")) == ("0",)
    assert give(1, available=tuple("0123567")) == ("7",)


def test_three_leave_no_pair_broken_that_could_stay_whole() -> None:
    assert give(3, available=tuple("1234567")) == ("1", "2", "3")


def test_devices_of_the_affinity_go_first_and_all_of_them_when_they_are_too_few() -> None:
    assert give(2, affinity=NodeMask.of(1)) == ("4", "7")
    assert give(3, available=("0", "1", "3", "5"), affinity=NodeMask.of(1)) == ("0", "3", "5")
    near = NodeMask.of(1)
    assert give(2, available=("0", "1", "3", "4"), must_include=["4"], affinity=near) == ("1", "4")


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
    with pytest.raises(ValueError) as refusal:
        give(size, must_include=must_include)
    both = f"{len(must_include)} must be included and 8 are available"
    assert str(refusal.value) == f"{size} devices wanted, but {both}"


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


def test_a_search_is_spent_after_its_last_step() -> None:
    search = device_allocation._DeviceSearch(device_allocation._Weights.of(("a",), {}), 1, 2)
    spent = []
    for _ in range(3):
        search.step()
        spent.append(search.spent)
    assert spent == [False, False, True]


def scattered(count: int, weights: int = 7):
    """Ids, and links without any order."""
    ids = tuple(map(str, range(count)))
    pairs = {
        (a, b): (int(a) * 31 + int(b) * 57 + int(a) * int(b) * 5) % weights
        for a in ids
        for b in ids
        if int(a) < int(b)
    }
    return ids, pairs


def test_sixteen_are_searched_to_the_end_and_more_for_some_steps(monkeypatch) -> None:
    ids, links = scattered(17, 23)
    exact = preferred_devices(ids[:16], [], 4, {}, links), preferred_devices(ids, [], 4, {}, links)
    monkeypatch.setattr(device_allocation, "STEP_BUDGET", 3)
    assert preferred_devices(ids[:16], [], 4, {}, links) == exact[0]
    assert preferred_devices(ids, [], 4, {}, links) == ("0", "6", "8", "10") != exact[1]


def test_of_more_than_fit_on_the_stack_the_greedy_set_alone_is_looked_at(monkeypatch) -> None:
    ids, links = scattered(18, 23)
    exact = preferred_devices(ids, [], 4, {}, links)
    monkeypatch.setattr(device_allocation, "DEEPEST", 18)
    assert preferred_devices(ids, [], 4, {}, links) == exact
    monkeypatch.setattr(device_allocation, "DEEPEST", 17)
    assert preferred_devices(ids, [], 4, {}, links) == ("0", "6", "8", "10") != exact


class Counting(device_allocation._DeviceSearch):
    """Counts the steps of all searches."""

    steps = 0

    def step(self) -> None:
        Counting.steps += 1
        super().step()


def in_steps(monkeypatch, *of, budget: int = 20_000, **more):
    monkeypatch.setattr(device_allocation, "_DeviceSearch", Counting)
    monkeypatch.setattr(device_allocation, "STEP_BUDGET", budget)
    Counting.steps = 0
    return preferred_devices(*of, **more), Counting.steps


@pytest.mark.parametrize(
    ("count", "must_include", "size", "nodes", "budget", "expected"),
    [
        (7, (), 3, 1, 0, (("1", "4", "5"), 77)),
        (9, (), 4, 1, 0, (("1", "4", "5", "8"), 419)),
        (9, ("5",), 4, 1, 0, (("1", "4", "5", "8"), 167)),
        (9, ("8", "2"), 5, 1, 0, (("2", "3", "4", "5", "8"), 111)),
        (9, ("1", "5"), 4, 1, 0, (("1", "4", "5", "8"), 55)),
        (12, (), 3, 3, 0, (("1", "4", "11"), 540)),
        (12, ("4",), 6, 4, 0, (("0", "1", "4", "5", "8", "11"), 262)),
        (14, (), 7, 5, 0, (("0", "1", "2", "6", "7", "11", "12"), 21)),
        (18, (), 4, 1, 20_000, (("4", "5", "12", "15"), 7751)),
        (18, ("3", "11"), 5, 1, 20_000, (("3", "4", "8", "11", "12"), 1359)),
        (20, (), 10, 1, 500, (("1", "3", "4", "5", "8", "11", "12", "15", "18", "19"), 511)),
        (20, (), 6, 5, 30, (("0", "1", "6", "7", "11", "12"), 36)),
        (40, (), 12, 8, 10, (("0", "1", "11", "14", "18", "19", "22", "25", "26", "27", "33", "34"), 36)),
    ],
)
def test_so_much_is_looked_at(monkeypatch, count, must_include, size, nodes, budget, expected) -> None:
    """Other steps mean that branches are cut elsewhere: look whether that is meant."""
    ids, links = scattered(count)
    nodes_by_device = {name: NodeMask.of(int(name) % nodes, (int(name) * 3) % nodes) for name in ids[1:]}
    assert in_steps(monkeypatch, ids, must_include, size, nodes_by_device, links, budget=budget) == expected


def test_without_links_there_is_nothing_to_search(monkeypatch) -> None:
    assert in_steps(monkeypatch, ("a", "b", "c"), (), 2, {}, {}) == (("a", "b"), 0)


def test_sets_of_nodes_that_have_too_few_devices_are_not_looked_at(monkeypatch) -> None:
    ids, _ = scattered(12)
    nodes = {name: NodeMask.of(int(name) // 2) for name in ids}
    assert in_steps(monkeypatch, ids, (), 5, nodes, {}) == (tuple("01234"), 20), "of three nodes out of six"


def test_a_bounded_search_starts_with_the_first_of_equal_devices(monkeypatch) -> None:
    ids, _ = scattered(18)
    alike = {(a, b): 1 for a in ids for b in ids if a < b}
    assert in_steps(monkeypatch, ids, (), 3, {}, alike, budget=1)[0] == ("0", "1", "2")
