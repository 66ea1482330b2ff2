"""Devices and links as they are described, and what is said of descriptions that make no sense."""

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.devices import LINK_WEIGHTS, Delivery, Link
from nri_plugin.simulator.machine.machine import build_topology, parse

SHAPE = "2 sockets, 2 cores\n"


def devices(text: str) -> list[tuple[str, str, str]]:
    return [(each.resource, each.id, str(each.nodes)) for each in parse(SHAPE + text).devices]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("devices a.b/c 2 on 0", [("a.b/c", "0", "0"), ("a.b/c", "1", "0")]),
        ("Device a.b/c: 1", [("a.b/c", "0", "")]),
        ("devices a.b/c 1 on NUMA nodes 0-1", [("a.b/c", "0", "0-1")]),
        ("devices a.b/C_d 1 on 0 + 1 on 1", [("a.b/C_d", "0", "0"), ("a.b/C_d", "1", "1")]),
        ("devices a/b 1 on 0,1 +\n 1", [("a/b", "0", "0-1"), ("a/b", "1", "")]),
        ("devices a/b 1 on 0\ndevices a/c 1\ndevices a/b 1 on 1", [("a/b", "0", "0"), ("a/c", "0", ""), ("a/b", "1", "1")]),
        ("devices a/b 2 named GPU-x 0000:3b:02.1 on 1", [("a/b", "GPU-x", "1"), ("a/b", "0000:3b:02.1", "1")]),
        ("devices a/b 1 named 1 + 2", [("a/b", "1", ""), ("a/b", "2", ""), ("a/b", "3", "")]),
    ],
)  # fmt: skip
def test_a_clause_adds_devices_on_nodes(text: str, found: list[tuple[str, str, str]]) -> None:
    assert devices(text) == found


@pytest.mark.parametrize(
    ("words", "delivery"),
    [
        ("", Delivery.NODES),
        (" as device nodes", Delivery.NODES),
        (" as variables", Delivery.VARIABLE),
        (" as CDI", Delivery.CDI),
    ],
)
def test_devices_are_delivered_as_the_clause_says(words: str, delivery: Delivery) -> None:
    assert [each.delivery for each in parse(f"{SHAPE}devices a/b 1{words}").devices] == [delivery]


def test_every_two_of_a_group_are_linked_by_the_kind() -> None:
    found = parse(SHAPE + "devices a/b 4\nlinks a/b nvlink 0 3 /\n 1 2\nlinks a/b weight 7 0 1 2").links
    strong = LINK_WEIGHTS["nvlink"]
    assert found == (
        Link("a/b", "0", "3", strong),
        Link("a/b", "1", "2", strong),
        Link("a/b", "0", "1", 7),
        Link("a/b", "0", "2", 7),
        Link("a/b", "1", "2", 7),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices gpu 2", "m.txt:3:13: expected '/', as in a resource such as nvidia.com/gpu, found '2'"),
        ("devices 2 on 0", "m.txt:3:11: expected '/', as in a resource such as nvidia.com/gpu, found 'on'"),
        ("devices _/x 1", "m.txt:3:9: expected a resource such as nvidia.com/gpu, found '_'"),
        ("devices a/_ 1", "m.txt:3:11: expected a resource such as nvidia.com/gpu, found '_'"),
        ("devices a/b 0", "m.txt:3:13: expected how many from 1, found '0'"),
        ("devices a/b 5000", "m.txt:3:13: expected at most 4096 devices on a machine, found '5000'"),
        ("devices a/b 2 named x on 0", "m.txt:3:26: expected the end of the clause (a comma and a space, or a new line), found '0'"),
        ("devices a/b 2 named x", "m.txt:3:22: expected 2 ids behind 'named', found the end of the clause"),
        ("devices a/b 2 named x x", "m.txt:3:23: expected every id once, found 'x'"),
        ("devices a/b 1\ndevices a/b 1 named 0", "m.txt:4:21: expected every id once, found '0'"),
        ("devices a/b 1 on far", "m.txt:3:18: expected NUMA node ids such as 0 or 0,1, found 'far'"),
        ("devices a/b 1 as gift", "m.txt:3:18: expected device nodes, variable or CDI, found 'gift'"),
        ("links a/b nvlink 0 1", "m.txt:3:7: expected a resource of an earlier clause of devices, found 'a'"),
        ("devices a/b 2\nlinks a/b rope 0 1", "m.txt:4:11: expected nvlink or switch or bridge or weight, found 'rope'"),
        ("devices a/b 2\nlinks a/b weight 0 0 1", "m.txt:4:18: expected a weight from 1, found '0'"),
        ("devices a/b 2\nlinks a/b weight 999999 0 1", "m.txt:4:18: expected a weight up to 100000, found '999999'"),
        ("devices a/b 2\nlinks a/b nvlink 0 2", "m.txt:4:20: expected one of the ids 0, 1, found '2'"),
        ("devices a/b 20\nlinks a/b nvlink 0 99", "m.txt:4:20: expected one of the ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ..., found '99'"),
        ("devices a/b 2\nlinks a/b nvlink 0 0", "m.txt:4:20: expected every id once in a group, found '0'"),
        ("devices a/b 3\nlinks a/b nvlink 0 1 / 2", "m.txt:4:25: expected two or more ids in a group, found the end of the clause"),
        ("devices a/b 2\nlinks a/b nvlink", "m.txt:4:17: expected the id of a device, found the end of the clause"),
    ],
)  # fmt: skip
def test_errors_say_where_what_was_expected_and_what_was_found(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("2 sockets\n2 cores\n" + text, "m", source="m.txt")
    assert str(caught.value) == message


def test_a_node_that_is_not_there_is_refused_with_its_place() -> None:
    described = parse("2 sockets, 2 cores\ndevices a/b 1 on 0 + 1 on 2", "m", source="m.txt")
    with pytest.raises(ConfigError) as caught:
        build_topology(described)
    assert str(caught.value) == "m.txt:2:27: devices a/b on 2: the nodes are 0-1"


def test_nodes_of_a_device_are_a_mask() -> None:
    assert parse(SHAPE + "devices a/b 1 on 0-1").devices[0].nodes == NodeMask.of(0, 1)
