"""The svg picture: one file that needs nothing, says everything on hover, and holds no markup but its own."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from nri_plugin.cli.topology.machine_view import Placements, Seat, View
from nri_plugin.cli.topology.svg import draw_svg
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.simulator.machine.machine import shipped
from nri_plugin.simulator.machine.source import SourcedMachine, machine_from, read_machine

SVG = "{http://www.w3.org/2000/svg}"
TWO = "topology: pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:2(indexes=core)\noffline: 7\nisolated: 3"


def machine(text: str = TWO) -> SourcedMachine:
    return machine_from(text.encode(), "m.txt", "m")


def seat(name: str, cpus: str, mems: str = "") -> Seat:
    return Seat("shop", name, "main", CPUSet.parse(cpus), NodeMask.parse(mems))


PLACED = View(
    machine(),
    Placements(
        "state.json, generation 4",
        (seat("db", "2,6", "1"), seat("web", "")),
        CPUSet.parse("0-1,4-5"),
        CPUSet.of(0),
    ),
)


def drawn(view: View) -> ET.Element:
    return ET.fromstring(draw_svg(view))


def hovers(root: ET.Element, kind: str) -> list[str]:
    found = [group for group in root.iter(f"{SVG}g") if kind in group.get("class", "").split()]
    return [group.findtext(f"{SVG}title") or "" for group in found]


def words(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_machine_has_each_cpu_once_and_within_the_page(name: str) -> None:
    source = read_machine(name)
    root = drawn(View(source))
    cpus = [int(text.split(",")[0].removeprefix("CPU ")) for text in hovers(root, "cpu")]
    assert sorted(cpus) == sorted(source.topology.online | source.topology.offline)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for box in root.iter(f"{SVG}rect"):
        if box.get("x"):
            assert (
                0 <= float(box.get("x", "")) <= float(box.get("x", "")) + float(box.get("width", "")) <= width
            )
            assert (
                0
                <= float(box.get("y", ""))
                <= float(box.get("y", "")) + float(box.get("height", ""))
                <= height
            )


def test_a_cpu_says_where_it_is_and_whose_it_is() -> None:
    texts = hovers(drawn(PLACED), "cpu")
    assert "CPU 6, core of CPUs 2,6, L3 1, NUMA 1, socket 1\nshop/db/main" in texts
    assert "CPU 1, core of CPUs 1,5, L3 0, NUMA 0, socket 0\nshared pool" in texts
    assert "CPU 7, offline\noffline" in texts


def test_containers_are_in_the_legend_with_cpus_and_memory() -> None:
    said = words(drawn(PLACED))
    assert "shop/db/main" in said
    assert "2,6 (2 cpus), NUMA 1, memory 1" in said
    assert "containers: state.json, generation 4" in said
    assert any("shop/web/main" in text for text in said)


def test_a_node_shows_whose_memory_is_bound_to_it() -> None:
    assert "memory of shop/db/main" in hovers(drawn(PLACED), "o0")


def test_a_node_without_cpus_shows_it_too() -> None:
    far = Placements("x", (seat("db", "0", "4"),), CPUSet.of(1), CPUSet())
    root = drawn(
        View(
            machine("topology: pack:1 numa:1 l3:1 core:2 pu:1\nnodes:\n  4: {cpus: none, memory: 16Gi}"), far
        )
    )
    boxes = [
        group
        for group in root.iter(f"{SVG}g")
        if (group.findtext(f"{SVG}title") or "").startswith("NUMA node 4")
    ]
    assert [hovers(box, "o0") for box in boxes] == [["memory of shop/db/main"]]


def test_reserved_isolated_and_offline_cpus_have_looks_of_their_own() -> None:
    picture = draw_svg(PLACED)
    for kind in ("reserved", "isolated", "offline"):
        assert picture.count(f'class="{kind}"') == 2  # the CPU and the legend


def test_nodes_without_cpus_have_boxes_with_their_memory() -> None:
    texts = hovers(
        drawn(
            View(
                machine(
                    "topology: pack:1 numa:1 l3:1 core:2 pu:1\nnodes:\n  4: {cpus: none, memory: 8Gi, hugepages: {2Mi: 3}}\n  5: {cpus: none, memory: 8Gi}"
                )
            )
        ),
        "node",
    )
    assert "NUMA node 4\nno CPUs\n8Gi memory\n3 huge pages of 2Mi\ndistances 21 10 21" in texts
    assert "NUMA node 5\nno CPUs\n8Gi memory\ndistances 21 21 10" in texts


def test_parts_of_a_cache_say_which_cpus_are_elsewhere() -> None:
    texts = hovers(drawn(View(machine("pack:1 l3:1 numa:2 core:2 pu:1"))), "cache")
    assert texts == ["L3 cache 0\nCPUs 0-3\nof which 0-1 here", "L3 cache 0\nCPUs 0-3\nof which 2-3 here"]


def test_without_an_l3_cores_are_in_the_node() -> None:
    root = drawn(View(machine("topology: pack:1 numa:1 core:2 pu:1\ndistances: none")))
    assert hovers(root, "cache") == []
    assert len(hovers(root, "cpu")) == 2


def test_cpus_that_share_only_an_l2_are_beside_the_l3() -> None:
    root = drawn(View(machine("topology: pack:1 numa:1 l3:1 core:4 pu:1\nwithout_l3: 2-3")))
    assert hovers(root, "cache") == ["L3 cache 0\nCPUs 0-1", "no L3 cache\nCPUs 2-3"]
    assert [word for word in words(root) if "L3" in word] == ["L3 0", "no L3"]
    assert "CPU 3, no L3, NUMA 0, socket 0" in hovers(root, "cpu")[3]


def test_devices_of_a_described_machine_are_on_their_nodes() -> None:
    root = drawn(
        View(
            machine(
                "topology: pack:2 numa:1 l3:1 core:4 pu:1\ndevices:\n  - {resource: a/gpu, count: 2, nodes: 1}"
            )
        )
    )
    assert "a/gpu 0 1" in words(root)


def test_a_node_says_its_distances() -> None:
    assert hovers(drawn(View(machine())), "node")[0].endswith("\ndistances 10 21")


def test_many_containers_stand_in_columns() -> None:
    many = tuple(seat(f"p{number}", str(number)) for number in range(20))
    view = View(
        machine("pack:2 numa:1 l3:4 core:16 pu:2(indexes=core)"),
        Placements("x", many, CPUSet.parse("20-255"), CPUSet()),
    )
    root = drawn(view)
    lefts = {
        element.get("x")
        for group in root.iter(f"{SVG}g")
        if "legend" in group.get("class", "")
        for element in group.iter(f"{SVG}rect")
    }
    assert len(lefts) > 1


def test_the_file_needs_nothing_and_runs_nothing() -> None:
    picture = draw_svg(PLACED)
    assert picture.isascii()
    assert not re.search(r"<script|<image|<foreignObject|href|@import|@font-face|\bon[a-z]+=", picture)
    assert set(re.findall(r"url\(([^)]*)\)", picture)) <= {"#reserved", "#isolated"}
    assert re.findall(r"https?://[^\"]*", picture) == ["http://www.w3.org/2000/svg"]
    assert "var(" not in picture


def test_light_and_dark_are_both_in_it() -> None:
    assert "@media screen and (prefers-color-scheme:dark)" in draw_svg(PLACED)


def test_names_that_hold_markup_or_control_characters_are_text() -> None:
    name = '<script>&"\x1b[31m\x00'
    placements = PLACED.placements
    assert placements is not None
    bad = replace(placements, seats=(seat(name, "2"),))
    picture = draw_svg(View(replace(PLACED.machine, name=name), bad, ""))
    assert "<script" not in picture
    assert 'shop/<script>&"?[31m?/main' in words(ET.fromstring(picture))
