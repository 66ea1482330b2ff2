"""The machine in the terminal, as lines a person reads."""

import re

import pytest

from nri_plugin.cli.output import fold_words, memory_text
from nri_plugin.cli.topology.machine_view import BEYOND, LETTERS, CPUOwner, paint_of
from nri_plugin.cli.topology.picture import distance_lines, draw, in_encoding
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.machine import build_topology, load, parse
from tests.topology_rows import topology_of_rows

SMALL = build_topology(parse("pack:2 numa:1(memory=1GiB) l3:2 core:1 pu:2(indexes=core)"))


def machine(text: str) -> Topology:
    return build_topology(parse(text))


def owner(label: str, cpus: str, kind: str = "exclusive") -> CPUOwner:
    return CPUOwner(label, CPUSet.parse(cpus), kind)  # type: ignore[arg-type]


def test_without_owners_every_cpu_is_its_number() -> None:
    assert draw(SMALL, width=60).splitlines() == [
        "socket 0",
        "  NUMA 0: 0-1,4-5, 1Gi",
        "    L3 0: 0,4",
        "    L3 1: 1,5",
        "socket 1",
        "  NUMA 1: 2-3,6-7, 1Gi",
        "    L3 2: 2,6",
        "    L3 3: 3,7",
    ]


def test_with_owners_every_cpu_is_who_has_it_and_later_owners_are_drawn_over() -> None:
    owners = [
        owner("shared pool", "0-7", "shared"),
        owner("reserved", "0,4", "reserved"),
        owner("default/web/app", "1,5"),
        CPUOwner("default/db/pg", CPUSet.of(3), note="NUMA 1", members=("x", "y")),
        owner("gone", ""),
    ]
    lines = draw(SMALL, owners, width=60).splitlines()
    assert [line.split(": ")[1] for line in lines if "L3" in line] == ["==", "AA", "··", "B·"]
    assert lines[8:] == [
        "· shared pool: 0-7 (8 cpus)",
        "= reserved: 0,4 (2 cpus)",
        "A default/web/app: 1,5 (2 cpus)",
        "B default/db/pg: 3 (1 cpu), NUMA 1: x, y",
        "C gone: none",
    ]
    assert draw(SMALL, [owner("a", "1-7")]).splitlines()[-1] == "· shared pool: 0 (1 cpu)"


def test_letters_are_unique_until_the_last_one_and_colours_come_again() -> None:
    paints = [paint_of(place) for place in range(len(LETTERS) + 2)]
    assert len({paint.letter for paint in paints}) == len(LETTERS) + 1
    assert [paint.letter for paint in paints][-3:] == [LETTERS[-1], BEYOND, BEYOND]
    assert len({paint.fill for paint in paints}) == 16
    assert paints[16].fill == paints[0].fill


def test_colour_adds_codes_and_changes_no_character() -> None:
    owners = [owner("a", "0"), owner("r", "1", "reserved")]
    plain, coloured = draw(SMALL, owners), draw(SMALL, owners, colour=True)
    assert "\x1b[" not in plain
    assert "\x1b[1;38;5;231;48;5;26mA\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain


def test_a_large_machine_has_ranges_in_place_of_each_number() -> None:
    assert (
        "    L3 0: 0-7,256-263" in draw(machine("pack:2 numa:4 l3:4 core:8 pu:2(indexes=core)")).splitlines()
    )


def test_a_wide_cache_goes_on_below_its_first_cpu() -> None:
    lines = draw(machine("pack:1 numa:1 l3:1 core:30 pu:1"), width=40).splitlines()[2:]
    assert [line[:14] for line in lines] == ["    L3 0: 0  1", "          10 1", "          20 2"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pack:1 numa:1 core:2 pu:1", ["    0 1"]),
        (
            "topology: pack:1 numa:2 l3:1 core:2 pu:1\nwithout_l3: 1-2",
            ["    L3 0: 0", "    no L3: 1", "    no L3: 2"],
        ),
        ("numa:1 pack:2 l3:1 core:1 pu:1", ["  NUMA 0 (part): 0, 16Gi in all", "  NUMA 0 (part): 1"]),
        ("pack:1 l3:1 numa:2 core:1 pu:1", ["    L3 0 (part): 1", "one L3 over NUMA 0-1: 0-1"]),
        (
            (
                "topology: pack:1 numa:1 l3:1 core:4 pu:1\nnodes:\n  2-3: {cpus: none, memory: 8Gi}\n"
                "  9: {cpus: none, memory: 0}\noffline: 3\nisolated: 1"
            ),
            ["NUMA 2-3: no cpus, 8Gi each", "NUMA 9: no cpus, no memory", "offline 3", "isolated 1"],
        ),
    ],
)
def test_parts_and_what_has_no_place_are_shown(text: str, shown: list[str]) -> None:
    assert [line for line in shown if line not in draw(machine(text)).splitlines()] == []


def test_unknown_memory_is_not_written_in_a_title() -> None:
    topology = topology_of_rows([(0, 0, 0, 0, 0)], memory_bytes={3: None})  # type: ignore[dict-item]
    assert draw(topology).splitlines()[1] == "  NUMA 0: 0"
    assert draw(topology).splitlines()[-1] == "NUMA 3: no cpus, size unknown"


def test_a_label_is_cut_at_the_width_and_its_cpus_are_not() -> None:
    lines = draw(SMALL, [owner("namespace/" + "x" * 100, "0")], width=40).splitlines()
    assert lines[-3:-1] == ["A namespace/" + "x" * 26 + "…:", "    0 (1 cpu)"]


def test_distances_are_a_table_or_sentences_where_it_is_too_wide() -> None:
    assert distance_lines(build_topology(load("kep3545-4-numa")), 80)[:2] == [
        "distance  0  1  2  3",
        "NUMA 0   10 11 12 12",
    ]
    assert distance_lines(machine("pack:60 numa:1 l3:1 core:1 pu:1"), 60) == [
        "NUMA 0-59 distance 10 to itself, 21 to all others"
    ]
    assert distance_lines(build_topology(load("gb200-34-numa")), 60) == [
        "NUMA 0 distance 10 to itself, 40 to 1, 80 to all others",
        "NUMA 1 distance 10 to itself, 40 to 0, 80 to all others",
        "NUMA 2-33 distance 10 to itself, 80 to all others",
    ]


def test_distances_that_are_not_known_are_unknown_and_those_of_one_node_are_not_shown() -> None:
    topology = topology_of_rows([(0, 0, 0, 0, 0), (1, 1, 1, 1, 1)], distances={0: [10, 20]})
    assert distance_lines(topology, 80)[2] == "NUMA 1    ?  ?"
    assert distance_lines(topology, 13)[-1] == "  unknown"
    assert distance_lines(machine("pack:1 numa:1 l3:1 core:1 pu:1"), 80) == []
    assert distance_lines(machine("topology: pack:2 numa:1 l3:1 core:1 pu:1\ndistances: none"), 80) == []


def test_a_word_that_is_wider_than_the_line_is_broken() -> None:
    assert fold_words("abcdefgh ij", 4) == ["abcd", "efgh", "ij"]
    assert fold_words("1-2,3-4,5-6", 8, indent=" ") == ["1-2,3-4,", " 5-6"]


@pytest.mark.parametrize(
    ("memory_bytes", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1 << 10, "1Ki"),
        (3 << 20, "3Mi"),
        ((64 << 30) - 1, "64Gi"),
        (5 << 40, "5120Gi"),
    ],
)
def test_memory_is_written_as_people_write_it(memory_bytes: int, text: str) -> None:
    assert memory_text(memory_bytes) == text


def test_a_terminal_without_these_characters_gets_plain_ones() -> None:
    assert in_encoding("·…αБ\nx", "ascii") == ".~**\nx"
    assert in_encoding("·", "no such encoding") == "."
    assert in_encoding("·", "utf-8") == "·"
