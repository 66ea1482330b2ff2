"""Devices and links of a description, and what is refused with file, line and what is expected."""

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.devices import LINK_WEIGHTS, Delivery, DeviceLink
from nri_plugin.simulator.machine.machine import parse

TOPOLOGY = "topology: pack:2 numa:1 l3:1 core:2 pu:1\n"


def devices(*entries: str) -> str:
    return TOPOLOGY + "devices:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries)


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (["resource: a.b/c, count: 2, nodes: 0"], [("a.b/c", "0", "0"), ("a.b/c", "1", "0")]),
        (["resource: a.b/c, count: 1"], [("a.b/c", "0", "")]),
        (["resource: a.b/c, count: 1, nodes: 0-1"], [("a.b/c", "0", "0-1")]),
        (["resource: a.b/C_d, count: 1, nodes: 0", "resource: a.b/C_d, count: 1, nodes: 1"], [("a.b/C_d", "0", "0"), ("a.b/C_d", "1", "1")]),
        (["resource: a/b, count: 1", "resource: a/c, count: 1", "resource: a/b, count: 1"], [("a/b", "0", ""), ("a/c", "0", ""), ("a/b", "1", "")]),
        (['resource: a/b, ids: [GPU-x, "0000:3b:02.1"], nodes: 1'], [("a/b", "GPU-x", "1"), ("a/b", "0000:3b:02.1", "1")]),
        (["resource: a/b, ids: [1]", "resource: a/b, count: 2"], [("a/b", "1", ""), ("a/b", "2", ""), ("a/b", "3", "")]),
    ],
)  # fmt: skip
def test_an_entry_adds_devices_on_nodes(entries: list[str], found: list[tuple[str, str, str]]) -> None:
    assert [(each.resource, each.id, str(each.nodes)) for each in parse(devices(*entries)).devices] == found


@pytest.mark.parametrize("delivery", list(Delivery))
def test_devices_are_delivered_as_the_entry_says(delivery: Delivery) -> None:
    found = parse(devices(f"resource: a/b, count: 1, as: {delivery}")).devices
    assert [each.delivery for each in found] == [delivery]


def test_every_two_of_a_group_are_linked_by_the_kind() -> None:
    text = devices("resource: a/b, count: 4") + (
        "links:\n"
        "  - {resource: a/b, weight: nvlink, groups: [[0, 3], [1, 2]]}\n"
        "  - {resource: a/b, weight: 7, groups: [[0, 1, 2]]}\n"
    )
    strong = LINK_WEIGHTS["nvlink"]
    assert parse(text).links == (
        DeviceLink("a/b", "0", "3", strong),
        DeviceLink("a/b", "1", "2", strong),
        DeviceLink("a/b", "0", "1", 7),
        DeviceLink("a/b", "0", "2", 7),
        DeviceLink("a/b", "1", "2", 7),
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("resource: gpu, count: 2", "3:5: devices[0]: expected 'resource: DOMAIN/NAME' such as nvidia.com/gpu, found gpu"),
        ("count: 2", "3:5: devices[0]: expected 'resource: DOMAIN/NAME' such as nvidia.com/gpu, found none"),
        ("resource: a/b", "3:5: devices[0]: expected either 'count: NUMBER' or 'ids: [ID, ...]'"),
        ("resource: a/b, count: 0", "3:28: devices[0].count: expected a count from 1 to 4096, found 0"),
        ("resource: a/b, count: 5000", "3:28: devices[0].count: expected a count from 1 to 4096, found 5000"),
        ("resource: a/b, ids: [x, x]", "3:30: devices[0].ids[1]: x is the id of another device of this resource"),
        ("resource: a/b, ids: [_]", "3:27: devices[0].ids[0]: expected the id of a device, found _"),
        ("resource: a/b, count: 1, nodes: far", "3:38: devices[0].nodes: expected NUMA node ids such as 0 or 0,1, found far"),
        ("resource: a/b, count: 1, nodes: 2", "3:38: devices[0].nodes: a/b on NUMA nodes 2: the machine has 0-1"),
        ("resource: a/b, count: 1, as: gift", "3:35: devices[0].as: expected device, variable or cdi, found gift"),
        ("resource: a/b, cuont: 1", "3:21: devices[0].cuont: unknown key; did you mean count?"),
    ],
)  # fmt: skip
def test_a_wrong_device_is_refused(entry: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(devices(entry), "m", source="m.yaml")
    assert str(caught.value) == f"m.yaml:{message}"


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("resource: a/c, weight: nvlink, groups: [[0, 1]]", "5:46: links[0].groups[0]: 0: expected ids of a/c: it has no device"),
        ("resource: a/b, weight: rope, groups: [[0, 1]]", "5:29: links[0].weight: expected nvlink, switch, bridge or a number from 1 to 100000, found rope"),
        ("resource: a/b, weight: 0, groups: [[0, 1]]", "5:29: links[0].weight: expected nvlink, switch, bridge or a number from 1 to 100000, found 0"),
        ("resource: a/b, weight: nvlink, groups: [[0, 99]]", "5:46: links[0].groups[0]: 99: expected ids of a/b: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ..."),
        ("resource: a/b, weight: nvlink, groups: [[0, 0]]", "5:46: links[0].groups[0]: expected two or more ids, each once"),
        ("resource: a/b, weight: nvlink, groups: [[0]]", "5:46: links[0].groups[0]: expected two or more ids, each once"),
        ("resource: a/b, weight: nvlink", "5:5: links[0]: groups is missing"),
    ],
)  # fmt: skip
def test_a_wrong_link_is_refused(link: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(devices("resource: a/b, count: 20") + f"links:\n  - {{{link}}}\n", "m", source="m.yaml")
    assert str(caught.value) == f"m.yaml:{message}"


def test_nodes_of_a_device_are_a_mask() -> None:
    found = parse(devices("resource: a/b, count: 1, nodes: 0-1")).devices
    assert found[0].nodes == NodeMask.of(0, 1)
