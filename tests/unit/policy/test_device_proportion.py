"""CPUs in proportion to devices."""

import pytest

from nri_plugin.model.sets import NO_NODES, CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import allocate_cpus
from nri_plugin.policy.device_hints import Device, DeviceResource, devices_by_node, proportional_shares
from tests.builders import machine

PLENTY = {0: 100, 1: 100, 2: 100}


@pytest.mark.parametrize(
    ("count", "weights", "room", "unit", "shares"),
    [
        (8, {0: 1, 1: 1}, PLENTY, 2, {0: 4, 1: 4}),
        (12, {0: 3, 1: 1}, PLENTY, 1, {0: 9, 1: 3}),
        (12, {0: 2, 1: 1}, PLENTY, 2, {0: 8, 1: 4}),
        (6, {0: 1, 1: 1}, PLENTY, 2, {0: 4, 1: 2}),
        (7, {0: 1, 1: 1}, PLENTY, 2, {0: 4, 1: 3}),
        (8, {0: 1, 1: 1}, {0: 2, 1: 100}, 2, {0: 2, 1: 6}),
        (8, {0: 1, 1: 1}, {0: 3, 1: 4}, 2, {0: 3, 1: 4}),
        (8, {0: 1, 1: 1}, {1: 100}, 2, {0: 0, 1: 8}),
        (8, {2: 1, 0: 1}, PLENTY, 8, {0: 8, 2: 0}),
        (0, {0: 1, 1: 1}, PLENTY, 2, {0: 0, 1: 0}),
    ],
)
def test_shares(count, weights, room, unit, shares) -> None:
    assert proportional_shares(count, weights, room, unit=unit) == shares


def test_shares_grow_by_single_cpus_unless_told() -> None:
    assert proportional_shares(2, {0: 1, 1: 1}, PLENTY) == {0: 1, 1: 1}


def test_devices_of_all_resources_count_where_they_are_on_one_node() -> None:
    places = [NodeMask.of(1), NodeMask.of(0), NodeMask.of(1), NodeMask.of(0, 1), NO_NODES]
    gpus = DeviceResource("gpu", tuple(Device(str(n), nodes) for n, nodes in enumerate(places)))
    nic = DeviceResource("nic", (Device("n", NodeMask.of(1)),))
    assert devices_by_node([gpus, nic]) == {0: 1, 1: 3}


TABLES = cpu_tables(machine(nodes=3, cores=4))
FREE = CPUSet.parse("2-23")


def taken(count, affinity, weights, free=FREE):
    return str(allocate_cpus(TABLES, count, free, affinity, weight_by_node=weights))


def test_each_node_of_the_affinity_gives_its_part_as_whole_cores() -> None:
    assert taken(8, NodeMask.of(0, 1), None) == "8-15"
    assert taken(8, NodeMask.of(0, 1), {0: 1, 1: 1}) == "2-5,8-11"
    assert taken(8, NodeMask.of(0, 1), {0: 1, 1: 3}) == "2-3,8-13"


def test_what_the_nodes_of_the_devices_cannot_hold_comes_from_the_rest_of_the_affinity() -> None:
    assert taken(16, NodeMask.of(0, 1, 2), {0: 1, 1: 1}) == "2-17"


def test_one_node_with_devices_changes_nothing() -> None:
    for weights in ({1: 4}, {1: 4, 2: 1}):
        assert taken(8, NodeMask.of(0, 1), weights) == taken(8, NodeMask.of(0, 1), None)


def test_without_an_affinity_nothing_is_in_proportion() -> None:
    assert taken(8, None, {0: 1, 1: 1}) == taken(8, None, None)
