"""Hints from devices a container has been given."""

import pytest

from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import NO_NODES, NodeMask
from nri_plugin.policy import search
from nri_plugin.policy.device_hints import Device, DeviceResource, device_hint_sets, device_totals
from nri_plugin.policy.hints import HintRule, HintSet, Need
from nri_plugin.policy.merge import merge

ALL = (0, 1, 2, 3)


def gpus(*nodes, of=()):
    """A resource of one device per argument: the nodes that device is attached to.

    `of`: (nodes, how many devices of the resource are attached to exactly these), where that is known.
    """
    masks = [NO_NODES if on is None else NodeMask.from_ids(on) for on in nodes]
    totals = device_totals((NodeMask.from_ids(on), count) for on, count in of)
    return DeviceResource(
        "example.com/gpu", tuple(Device(f"gpu{n}", mask) for n, mask in enumerate(masks)), totals
    )


def everywhere(*nodes):
    """One device on each of the nodes."""
    return [((node,), 1) for node in nodes]


def only_hint_set(*resources, nodes=ALL) -> HintSet:
    hint_sets = device_hint_sets(nodes, resources)
    assert hint_sets is not None
    assert len(hint_sets) == 1
    return hint_sets[0]


def hints(resource, nodes=ALL):
    return [
        (str(NodeMask(mask)), preferred) for mask, preferred in only_hint_set(resource, nodes=nodes).hints
    ]


def test_one_device_is_hinted_at_with_its_node_and_every_wider_set_of_device_nodes() -> None:
    assert hints(gpus([1], of=everywhere(0, 1)), nodes=(0, 1)) == [("1", True), ("0-1", False)]
    assert hints(gpus([1], of=everywhere(0, 1))) == [("1", True), ("0-1", False)]


def test_a_node_without_such_devices_is_in_no_hint() -> None:
    assert hints(gpus([1], of=[((1,), 2)])) == [("1", True)]
    assert hints(gpus([1])) == [("1", True)]
    assert hints(gpus([1], of=everywhere(1, 3))) == [("1", True), ("1,3", False)]


def test_a_node_that_the_machine_lacks_is_in_no_hint_either() -> None:
    assert hints(gpus([1], of=everywhere(1, 7)), nodes=(0, 1)) == [("1", True)]


def test_hints_come_by_size_then_by_ascending_nodes() -> None:
    every = gpus([2], of=everywhere(*ALL))
    assert [mask for mask, _ in hints(every)] == ["2", "0,2", "1-2", "2-3", "0-2", "0,2-3", "1-3", "0-3"]


def test_devices_on_two_nodes_are_preferred_there_when_there_may_be_no_others() -> None:
    assert hints(gpus([0], [1]), nodes=(0, 1)) == [("0-1", True)]


def test_they_are_not_preferred_when_one_node_could_have_held_them() -> None:
    assert hints(gpus([0], [1], of=[((0,), 4), ((1,), 4)]), nodes=(0, 1)) == [("0-1", False)]
    assert hints(gpus([0], [1], of=[((0,), 1), ((1,), 1)]), nodes=(0, 1)) == [("0-1", True)]


def test_a_device_between_nodes_counts_once_in_a_set_with_both() -> None:
    assert hints(gpus([0], [1], of=[((0,), 1), ((1,), 1), ((2, 3), 1)]))[0] == ("0-1", True)
    assert hints(gpus([0], [1], of=[((0,), 1), ((1,), 1), ((0, 3), 1)]))[0] == ("0-1", False)


def test_totals_below_what_was_given_are_not_believed() -> None:
    assert hints(gpus([0], [0], of=[((0,), 1)]), nodes=(0, 1))[0] == ("0", True)


def test_a_device_between_nodes_is_near_any_of_them() -> None:
    assert hints(gpus([0, 1]), nodes=(0, 1)) == [("0", True), ("1", True), ("0-1", False)]
    assert hints(gpus([0, 1], [1]), nodes=(0, 1)) == [("1", True), ("0-1", False)]
    assert hints(gpus([0, 1], [2, 3]))[0] == ("0,2", True)


@pytest.mark.parametrize("nowhere", [None, [7]])
def test_a_device_nobody_can_place_is_near_everywhere_while_the_others_are_not_known(nowhere) -> None:
    assert device_hint_sets(ALL, [gpus(nowhere)]) is None
    assert hints(gpus(nowhere, [1]), nodes=(0, 1)) == [("1", True)]


@pytest.mark.parametrize("nowhere", [None, [7]])
def test_a_device_without_a_place_fits_nowhere_where_others_of_its_resource_have_one(nowhere) -> None:
    """The kubelet counts it on no node, so that no set of nodes ever has as many as were asked for."""
    assert hints(gpus(nowhere, of=everywhere(1))) == []
    assert hints(gpus(nowhere, [1], of=everywhere(1))) == []


def test_without_devices_there_is_no_hint_set() -> None:
    assert device_hint_sets(ALL, []) is None


def test_each_resource_is_a_hint_set_of_its_own_in_the_given_order() -> None:
    nic = DeviceResource("example.com/nic", (Device("nic0", NodeMask.of(1)),))
    hint_sets = device_hint_sets(ALL, [nic, gpus(None), gpus([0])])
    assert hint_sets is not None
    assert [hint_set.resource for hint_set in hint_sets] == ["example.com/nic", "example.com/gpu"]


@pytest.mark.parametrize("given", [[[9]], [[3], [9]], [[3, 4], [9]], [[3, 4], [4, 5], [9]]])
def test_beyond_eight_device_nodes_the_same_sets_are_hinted_at_without_a_list(given) -> None:
    nodes = tuple(range(12))
    hint_set = only_hint_set(gpus(*given, of=everywhere(*nodes)), nodes=nodes)
    assert hint_set.hints == ()
    assert hint_set.rule is not None
    for mask in range(1, 1 << 12):
        near_all = all(any(mask >> node & 1 for node in on) for on in given)
        assert (mask in hint_set.rule) == near_all


def test_up_to_eight_device_nodes_hints_are_listed_however_many_nodes_there_are() -> None:
    assert len(hints(gpus([7], of=everywhere(*range(8))), nodes=range(64))) == 128
    assert hints(gpus([7]), nodes=range(64)) == [("7", True)]


def test_beyond_eight_nodes_the_merge_finds_the_devices_nodes() -> None:
    hint_sets = device_hint_sets(range(64), [gpus([3], [40])])
    merged = merge(TopologyManagerPolicy.RESTRICTED, NodeMask.from_ids(range(64)), [hint_sets])
    assert (str(merged.affinity), merged.preferred) == ("3,40", True)


def test_the_numbers_name_resource_ids_and_nodes() -> None:
    assert only_hint_set(gpus([0], [0], [1], [0, 2], None)).why == (
        "example.com/gpu: given gpu0 gpu1 on NUMA node 0, gpu2 on NUMA node 1, gpu3 between NUMA nodes 0,2, "
        "gpu4 anywhere"
    )
    assert only_hint_set(gpus(*[[0]] * 8)).why.endswith("gpu6 gpu7 on NUMA node 0")
    assert only_hint_set(gpus(*[[0]] * 10)).why.endswith("gpu6 gpu7 on NUMA node 0, and 2 more")


def test_a_hint_set_says_when_its_preferred_size_could_not_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    between = gpus([0, 1], [2, 3], of=[*everywhere(*range(16)), ((4, 5), 1)])
    assert only_hint_set(between, nodes=range(16)).exact
    monkeypatch.setattr(search, "STEP_BUDGET", 2)
    assert not only_hint_set(between, nodes=range(16)).exact


def test_beyond_eight_nodes_what_single_places_settle_is_asked_only_once() -> None:
    hint_set = only_hint_set(gpus([3], [3, 4], [4, 5], of=everywhere(*range(12))), nodes=range(12))
    assert hint_set.rule == HintRule((1 << 12) - 1, 1 << 3, (Need(1, {4: 1, 5: 1}),), 2)


def test_where_all_devices_are_between_nodes_the_fewest_nodes_near_enough_of_them_count() -> None:
    between = [((0, 1), 1), ((1, 2), 1), ((2, 3), 1)]
    assert hints(gpus([0, 1], [2, 3], of=between))[0] == ("0,2", False)  # node 1 alone is near two of them


def test_totals_of_one_place_add_up() -> None:
    assert device_totals([(NodeMask.of(1), 2), (NO_NODES, 5), (NodeMask.of(0), 1), (NodeMask.of(1), 3)]) == (
        (NodeMask.of(0), 1),
        (NodeMask.of(1), 5),
    )


def test_a_hint_set_that_fits_nowhere_names_the_device_without_a_place() -> None:
    assert only_hint_set(gpus(None, of=everywhere(1))).why == "example.com/gpu: given gpu0 anywhere"


def test_the_search_among_devices_between_nodes_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = gpus([0], [1], [2], of=[*everywhere(*range(16)), ((4, 5), 1)])
    assert only_hint_set(apart, nodes=range(16)).exact
    monkeypatch.setattr(search, "STEP_BUDGET", 10)
    assert not only_hint_set(apart, nodes=range(16)).exact
