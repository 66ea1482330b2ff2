"""Hints from devices a container has been given."""

import pytest

from nri_plugin.nodemask import NO_NODES, NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy import budget
from nri_plugin.policy.device_hints import Device, DeviceResource, device_wishes
from nri_plugin.policy.hints import Family, Need, Wish
from nri_plugin.policy.merge import merge

ALL = (0, 1, 2, 3)


def gpus(*nodes, totals=()):
    """A resource of one device per argument: the nodes that device is attached to."""
    masks = [NO_NODES if on is None else NodeMask.from_ids(on) for on in nodes]
    return DeviceResource(
        "example.com/gpu", tuple(Device(f"gpu{n}", mask) for n, mask in enumerate(masks)), tuple(totals)
    )


def only_wish(*resources, nodes=ALL) -> Wish:
    wishes = device_wishes(nodes, resources)
    assert wishes is not None
    assert len(wishes) == 1
    return wishes[0]


def hints(resource, nodes=ALL):
    return [(str(NodeMask(mask)), preferred) for mask, preferred in only_wish(resource, nodes=nodes).hints]


def test_one_device_is_hinted_at_with_its_node_and_every_wider_set() -> None:
    assert hints(gpus([1]), nodes=(0, 1)) == [("1", True), ("0-1", False)]


def test_hints_come_by_size_then_by_ascending_nodes() -> None:
    assert [mask for mask, _ in hints(gpus([2]))] == ["2", "0,2", "1-2", "2-3", "0-2", "0,2-3", "1-3", "0-3"]


def test_devices_on_two_nodes_are_preferred_there_when_there_may_be_no_others() -> None:
    assert hints(gpus([0], [1]), nodes=(0, 1)) == [("0-1", True)]


def test_they_are_not_preferred_when_one_node_could_have_held_them() -> None:
    assert hints(gpus([0], [1], totals=((0, 4), (1, 4))), nodes=(0, 1)) == [("0-1", False)]
    assert hints(gpus([0], [1], totals=((0, 1), (1, 1))), nodes=(0, 1)) == [("0-1", True)]


def test_totals_below_what_was_given_are_not_believed() -> None:
    assert hints(gpus([0], [0], totals=((0, 1),)), nodes=(0, 1))[0] == ("0", True)


def test_a_device_between_nodes_is_near_any_of_them() -> None:
    assert hints(gpus([0, 1]), nodes=(0, 1)) == [("0", True), ("1", True), ("0-1", False)]
    assert hints(gpus([0, 1], [1]), nodes=(0, 1)) == [("1", True), ("0-1", False)]
    assert hints(gpus([0, 1], [2, 3]))[0] == ("0,2", True)


@pytest.mark.parametrize("nowhere", [None, [7]])
def test_a_device_nobody_can_place_is_near_everywhere(nowhere) -> None:
    assert device_wishes(ALL, [gpus(nowhere)]) is None
    assert hints(gpus(nowhere, [1]), nodes=(0, 1)) == [("1", True), ("0-1", False)]


def test_without_devices_there_is_no_wish() -> None:
    assert device_wishes(ALL, []) is None


def test_each_resource_is_a_wish_of_its_own_in_the_given_order() -> None:
    nic = DeviceResource("example.com/nic", (Device("nic0", NodeMask.of(1)),))
    wishes = device_wishes(ALL, [nic, gpus(None), gpus([0])])
    assert wishes is not None
    assert [wish.resource for wish in wishes] == ["example.com/nic", "example.com/gpu"]


@pytest.mark.parametrize("given", [[[9]], [[3], [9]], [[3, 4], [9]], [[3, 4], [4, 5], [9]]])
def test_beyond_eight_nodes_the_same_sets_are_hinted_at_without_a_list(given) -> None:
    nodes = tuple(range(12))
    wish = only_wish(gpus(*given), nodes=nodes)
    assert wish.hints == ()
    assert wish.family is not None
    for mask in range(1, 1 << 12):
        near_all = all(any(mask >> node & 1 for node in on) for on in given)
        assert (mask in wish.family) == near_all


def test_up_to_eight_nodes_hints_are_listed() -> None:
    assert len(hints(gpus([7]), nodes=range(8))) == 128


def test_beyond_eight_nodes_the_merge_finds_the_devices_nodes() -> None:
    wishes = device_wishes(range(64), [gpus([3], [40])])
    merged = merge(TopologyManagerPolicy.RESTRICTED, NodeMask.from_ids(range(64)), [wishes])
    assert (str(merged.affinity), merged.preferred) == ("3,40", True)


def test_the_numbers_name_resource_ids_and_nodes() -> None:
    assert only_wish(gpus([0], [0], [1], [0, 2], None)).why == (
        "example.com/gpu: given gpu0 gpu1 on NUMA node 0, gpu2 on NUMA node 1, gpu3 between NUMA nodes 0,2, "
        "gpu4 anywhere"
    )
    assert only_wish(gpus(*[[0]] * 8)).why.endswith("gpu6 gpu7 on NUMA node 0")
    assert only_wish(gpus(*[[0]] * 10)).why.endswith("gpu6 gpu7 on NUMA node 0, and 2 more")


def test_a_wish_says_when_its_preferred_size_could_not_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    between = gpus([0, 1], [2, 3])
    assert only_wish(between, nodes=range(16)).exact
    monkeypatch.setattr(budget, "STEP_BUDGET", 2)
    assert not only_wish(between, nodes=range(16)).exact


def test_beyond_eight_nodes_what_single_places_settle_is_asked_only_once() -> None:
    wish = only_wish(gpus([3], [3, 4], [4, 5]), nodes=range(12))
    assert wish.family == Family((1 << 12) - 1, 1 << 3, (Need(1, {4: 1, 5: 1}),), 2)
