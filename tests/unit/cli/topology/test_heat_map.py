"""Distances as a heat map that reads without colour."""

import re

from nri_plugin.cli.topology.palette import COLOURS, SHADES, scale_of
from nri_plugin.cli.topology.picture import heat_map
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.machine import build_topology, load, parse


def without_colour(text: str) -> str:
    return "\n".join(line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", text).splitlines())


def test_numbers_carry_a_shade_where_they_fit() -> None:
    topology = build_topology(load("kep3545-4-numa"))
    assert heat_map(topology, 80).splitlines()[:2] == [
        "distance   0   1   2   3",
        "NUMA 0    10· 11░ 12█ 12█",
    ]


def test_what_is_too_wide_for_numbers_is_a_cell_for_each_pair_with_a_key() -> None:
    topology = build_topology(parse("pack:12 numa:1 l3:1 core:1 pu:1"))
    lines = heat_map(topology, 40).splitlines()
    assert lines[:4] == [
        "distance                     1",
        "         0 1 2 3 4 5 6 7 8 9 0 1",
        "NUMA 0   ··▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒",
        "NUMA 1   ▒▒··▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒",
    ]
    assert lines[-1] == "·· 10   ▒▒ 21"


def test_what_is_too_wide_for_cells_is_said_in_words() -> None:
    topology = build_topology(parse("pack:60 numa:1 l3:1 core:1 pu:1"))
    assert heat_map(topology, 60) == "NUMA 0-59 distance 10 to itself, 21 to all others"
    near = build_topology(load("gb200-34-numa"))
    assert heat_map(near, 40).splitlines() == [
        "NUMA 0 distance 10 to itself, 40 to 1,",
        "  80 to all others",
        "NUMA 1 distance 10 to itself, 40 to 0,",
        "  80 to all others",
        "NUMA 2-33 distance 10 to itself, 80 to",
        "  all others",
    ]


def test_one_node_or_unknown_distances_have_no_map() -> None:
    assert heat_map(build_topology(parse("pack:1 numa:1 l3:1 core:1 pu:1")), 80) == ""
    assert (
        heat_map(build_topology(parse("topology: pack:2 numa:1 l3:1 core:1 pu:1\ndistances: none")), 80) == ""
    )


def test_a_node_that_does_not_tell_is_unknown() -> None:
    topology = Topology.from_rows([(0, 0, 0, 0, 0), (1, 1, 1, 1, 1)], distances={0: [10, 20]})
    assert heat_map(topology, 80).splitlines()[2] == "NUMA 1     ?   ?"


def test_unknown_rows_of_a_map_of_cells_are_unknown_too() -> None:
    ids = range(20)
    rows = [(cpu, cpu, cpu, cpu, cpu) for cpu in ids]
    topology = Topology.from_rows(rows, distances={a: [10 + abs(a - b) for b in ids] for a in ids if a})
    lines = heat_map(topology, 40).splitlines()
    assert lines[2] == "NUMA 0   " + "?" * 20
    assert lines[-2].startswith("·· 10   ")


def test_a_key_that_is_too_wide_goes_on_below() -> None:
    ids = range(30)
    rows = [(cpu, cpu, cpu, cpu, cpu) for cpu in ids]
    topology = Topology.from_rows(
        rows, distances={a: [10 if a == b else 99 + a + b for b in ids] for a in ids}
    )
    assert heat_map(topology, 40).splitlines()[-2:] == [
        "·· 10   ░░ 100-118   ▒▒ 119-137",
        "▓▓ 138-155   ██ 156",
    ]


def test_colour_adds_codes_and_changes_no_character() -> None:
    for width in (40, 80):
        topology = build_topology(load("gb200-34-numa" if width == 80 else "kep3545-4-numa"))
        coloured = heat_map(topology, width, colour=True)
        assert "\x1b[" in coloured
        assert without_colour(coloured) == heat_map(topology, width)


def test_farther_is_denser_and_darker_and_a_node_to_itself_is_neither() -> None:
    topology = build_topology(
        parse(
            "topology: pack:4 numa:1 l3:1 core:1 pu:1\ndistances:\n  - [10, 12, 20, 40]\n  - [12, 10, 40, 20]\n  - [20, 40, 10, 12]\n  - [40, 20, 12, 10]"
        )
    )
    scale = scale_of(topology)
    assert scale is not None
    assert [scale.shade(value) for value in scale.values] == [SHADES[step] for step in (0, 1, 2, 4)]
    assert [COLOURS.index(scale.colour(value)) for value in scale.values] == [0, 1, 3, 6]


def test_many_values_share_shades_and_the_key_gives_their_range() -> None:
    ids = range(16)
    rows = [(cpu, cpu, cpu, cpu, cpu) for cpu in ids]
    topology = Topology.from_rows(
        rows, distances={a: [10 if a == b else 20 + abs(a - b) for b in ids] for a in ids}
    )
    assert heat_map(topology, 60).splitlines()[-1] == "·· 10   ░░ 21-25   ▒▒ 26-30   ▓▓ 31-34   ██ 35"
