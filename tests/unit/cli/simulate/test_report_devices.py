"""Devices in the picture of a machine."""

import re
from typing import Any

from nri_plugin.cli.simulate.report import devices_elsewhere, devices_of_node, machine
from nri_plugin.cli.simulate.report_marks import Marks
from tests import simulation_samples as samples


def device(id_: str, *nodes: int, container: str = "", resource: str = "gpu") -> dict[str, Any]:
    return {"resource": resource, "id": id_, "numa_nodes": nodes, "container": container}


def chips(lines: list[str]) -> list[tuple[str, str]]:
    return re.findall(r'title="([^"]*)"[^>]*>([^<]*)</b>', "".join(lines))


def test_a_chip_carries_the_letter_of_who_has_it() -> None:
    marks = Marks([samples.sample()])
    line = devices_of_node([device("0", 1, container="db/main/db"), device("1", 1)], 1, marks)
    assert chips(line) == [("gpu 0: db/main/db", "B"), ("gpu 1: free", "·")]
    assert 'class="device k1" data-c="2"' in line[0]
    assert 'class="device free" title' in line[0]


def test_a_container_that_shares_cpus_has_a_ring() -> None:
    line = devices_of_node([device("0", 1, container="shop/web/web")], 1, Marks([samples.sample()]))
    assert chips(line) == [("gpu 0: shop/web/web", "o")]
    assert 'class="device sharing" data-c="1"' in line[0]


def test_each_resource_has_a_line_and_only_with_devices_of_the_node() -> None:
    devices = [device("0", 0), device("1", 1), device("2", 0, 1), device("0", 0, resource="nic")]
    lines = devices_of_node(devices, 0, Marks([samples.sample()]))
    assert [chips([line]) for line in lines] == [
        [("gpu 0: free", "·"), ("gpu 2: free", "·")],
        [("nic 0: free", "·")],
    ]


def test_devices_at_no_node_that_is_drawn_are_not_lost() -> None:
    marks = Marks([samples.sample()])
    devices = [device("0", 0), device("1", 7), device("2")]
    assert chips(devices_elsewhere(devices, frozenset({0, 1}), marks)) == [
        ("gpu 1: free", "·"),
        ("gpu 2: free", "·"),
    ]
    assert devices_elsewhere(devices[:1], frozenset({0, 1}), marks) == []


def test_every_device_is_in_the_picture_of_its_machine() -> None:
    simulation = samples.sample("gb200-34-numa", [])
    simulation["devices"] = (device("near", 1), device("far", 9), device("anywhere"))
    page = machine(simulation, 0, Marks([simulation]))
    assert sorted(chips([page])) == [
        ("gpu anywhere: free", "·"),
        ("gpu far: free", "·"),
        ("gpu near: free", "·"),
    ]
