"""Devices in the picture of a machine."""

import re
from typing import Any

from tests import simulation_samples as samples
from tests.report_pages import machine


def device(id_: str, *nodes: int, container: str = "", resource: str = "gpu") -> dict[str, Any]:
    return {"resource": resource, "id": id_, "numa_nodes": nodes, "container": container}


def lines(*devices: dict[str, Any], name: str = "demo") -> list[str]:
    page = machine(samples.sample(name) | {"devices": devices})
    return re.findall(r'<p class="devices">.*?</p>', page, re.DOTALL)


def chips(line: str) -> list[tuple[str, str]]:
    return re.findall(r'title="([^"]*)"[^>]*>([^<]*)</b>', line)


def test_a_chip_carries_the_letter_of_who_has_it() -> None:
    (line,) = lines(device("0", 1, container="db/main/db"), device("1", 1))
    assert chips(line) == [("gpu 0: db/main/db", "B"), ("gpu 1: free", "·")]
    assert 'class="device k1" data-c="2"' in line
    assert 'class="device free" title' in line


def test_a_container_that_shares_cpus_has_a_ring() -> None:
    (line,) = lines(device("0", 1, container="shop/web/web"))
    assert chips(line) == [("gpu 0: shop/web/web", "o")]
    assert 'class="device sharing" data-c="1"' in line


def test_each_resource_has_a_line_and_only_with_devices_of_the_node() -> None:
    devices = [device("0", 0), device("1", 1), device("2", 0, 1), device("0", 0, resource="nic")]
    assert [chips(line) for line in lines(*devices)] == [
        [("gpu 0: free", "·"), ("gpu 2: free", "·")],
        [("nic 0: free", "·")],
        [("gpu 1: free", "·"), ("gpu 2: free", "·")],
    ]


def test_devices_at_no_node_that_is_drawn_are_not_lost() -> None:
    found = lines(device("near", 1), device("far", 9), device("anywhere"), name="gb200-34-numa")
    assert [chips(line) for line in found] == [
        [("gpu near: free", "·")],
        [("gpu far: free", "·"), ("gpu anywhere: free", "·")],
    ]


def test_nothing_is_told_of_devices_elsewhere_where_all_are_drawn() -> None:
    assert "At no NUMA node" not in machine(samples.sample() | {"devices": (device("0", 0),)})
