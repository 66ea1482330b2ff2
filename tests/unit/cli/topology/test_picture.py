"""The picture in the terminal, as lines a person reads."""

import re

import pytest

from nri_plugin.cli.output import fold_words, memory_text
from nri_plugin.cli.topology.machine_view import CPUOwner
from nri_plugin.cli.topology.palette import BEYOND, LETTERS
from nri_plugin.cli.topology.picture import TIMES, Style, draw, in_encoding
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.machine import build_topology, parse, shipped

SMALL = build_topology(parse("pack:2 numa:1(memory=1GiB) l3:2 core:1 pu:2(indexes=core)"))
BIG = "pack:2 numa:4 l3:4 core:8 pu:2(indexes=core)"


def owner(label: str, cpus: str, kind: str = "exclusive") -> CPUOwner:
    return CPUOwner(label, CPUSet.parse(cpus), kind)  # type: ignore[arg-type]


def test_without_owners_every_cpu_is_its_number() -> None:
    assert draw(SMALL, width=60).splitlines() == [
        "┌ socket 0 ─────────────────┐ ┌ socket 1 ─────────────────┐",
        "│ ┌ NUMA 0: 0-1,4-5, 1Gi ─┐ │ │ ┌ NUMA 1: 2-3,6-7, 1Gi ─┐ │",
        "│ │ [0,4] [1,5]           │ │ │ │ [2,6] [3,7]           │ │",
        "│ └───────────────────────┘ │ │ └───────────────────────┘ │",
        "└───────────────────────────┘ └───────────────────────────┘",
    ]


def test_with_owners_every_cpu_is_who_has_it() -> None:
    owners = [
        owner("reserved", "0,4", "reserved"),
        owner("default/web/app", "1,5"),
        owner("default/db/pg", "3"),
    ]
    assert draw(SMALL, owners, width=60).splitlines()[1:] == [
        "│ ┌ NUMA 0: 0-1,4-5, 1Gi ─┐ │ │ ┌ NUMA 1: 2-3,6-7, 1Gi ─┐ │",
        "│ │ [==] [AA]             │ │ │ │ [··] [B·]             │ │",
        "│ └───────────────────────┘ │ │ └───────────────────────┘ │",
        "└───────────────────────────┘ └───────────────────────────┘",
        "= reserved: 0,4 (2 cpus)",
        "A default/web/app: 1,5 (2 cpus)",
        "B default/db/pg: 3 (1 cpu)",
        "· shared pool: 2,6-7 (3 cpus)",
    ]


def test_a_named_shared_pool_is_said_once_and_later_owners_are_drawn_over_it() -> None:
    lines = draw(SMALL, [owner("shared pool", "0-7", "shared"), owner("a", "2")], width=60).splitlines()
    assert "[A·]" in lines[2]
    assert lines[5:] == ["· shared pool: 0-7 (8 cpus)", "A a: 2 (1 cpu)"]


def test_an_owner_without_cpus_is_still_in_the_legend() -> None:
    assert "A gone: none" in draw(SMALL, [owner("gone", "")])


def test_owners_after_the_last_letter_share_a_mark() -> None:
    lines = draw(SMALL, [owner(str(number), "") for number in range(len(LETTERS) + 2)]).splitlines()
    assert [line[0] for line in lines[-4:]] == [LETTERS[-1], BEYOND, BEYOND, "·"]


def test_colour_adds_codes_and_changes_no_character() -> None:
    import re

    owners = [owner("a", "0"), owner("r", "1", "reserved")]
    plain, coloured = draw(SMALL, owners), draw(SMALL, owners, colour=True)
    assert "\x1b[" not in plain
    assert "\x1b[1;38;5;231;48;5;26mA\x1b[0m" in coloured
    without = re.sub("\x1b\\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in without.splitlines()] == plain.splitlines()


def all_machines() -> dict[str, Topology]:
    machines = {name: build_topology(description) for name, description in shipped().items()}
    return machines | {"512": build_topology(parse(BIG))}


@pytest.mark.parametrize(("name", "topology"), all_machines().items())
@pytest.mark.parametrize("width", [80, 120])
def test_every_machine_fits_and_shows_every_cpu_once(name: str, topology: Topology, width: int) -> None:
    owners = [owner("a", str(topology.online))]
    marked, numbered = draw(topology, owners, width=width), draw(topology, width=width)
    assert max(map(len, (marked + "\n" + numbered).splitlines())) <= width
    boxes = [line for line in marked.splitlines() if line.startswith("│")]
    assert sum(line.partition("NUMA")[0].count("A") for line in boxes) == len(topology.online)


def test_512_cpus_fit_on_a_screen() -> None:
    assert len(draw(build_topology(parse(BIG)), [], width=80, style=None).splitlines()) <= 60


def test_a_small_machine_has_a_box_for_each_cache_as_wide_as_it_needs() -> None:
    assert draw(
        build_topology(parse("pack:1 numa:1(memory=1GiB) l3:1 core:4 pu:2(indexes=core)")),
        width=80,
        style=None,
    ).splitlines() == [
        "┌ socket 0 ───────────────┐",
        "│ ┌ NUMA 0: 0-7, 1Gi ───┐ │",
        "│ │ ┌ L3 0 ───────────┐ │ │",
        "│ │ │ 0,4 1,5 2,6 3,7 │ │ │",
        "│ │ └─────────────────┘ │ │",
        "│ └─────────────────────┘ │",
        "└─────────────────────────┘",
    ]


def test_ranges_are_a_line_for_each_cache_or_node() -> None:
    topology = build_topology(parse("pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:2(indexes=core)"))
    owners = [owner("a", "0-1"), owner("b", "2")]
    assert "L3 0: 0-1,4-5" in draw(topology, style=Style.CACHES)
    assert f"L3 0: A{TIMES}2 ·{TIMES}2" in draw(topology, owners, style=Style.CACHES)
    assert "│ NUMA 0: 0-1,4-5, 1Gi │" in draw(topology, style=Style.NODES)
    assert draw(topology, owners, style=Style.LINES).splitlines()[1] == (
        f"socket 1  NUMA 1: 2-3,6-7, 1Gi  B{TIMES}1 ·{TIMES}3"
    )


def test_a_machine_of_very_many_nodes_has_a_line_for_each() -> None:
    topology = build_topology(parse("pack:64 numa:1(memory=1GiB) l3:2 core:2 pu:8(indexes=core)"))
    lines = draw(topology, width=80, style=None).splitlines()
    assert len(lines) <= 128
    assert max(map(len, lines)) <= 80


def test_cpus_without_an_l3_are_in_no_box_of_it() -> None:
    picture = draw(build_topology(parse("pack:1 numa:1(memory=1GiB) core:2 pu:1")), style=None)
    assert "L3" not in picture
    assert picture.splitlines()[2].strip("│ ") == "0 1"


def test_cpus_that_share_only_an_l2_are_beside_the_l3() -> None:
    topology = build_topology(parse("topology: pack:1 numa:2 l3:1 core:2 pu:1\nwithout_l3: 1-2"))
    picture = draw(topology, style=Style.BOXES)
    assert re.findall(r"no L3|L3 [0-9]", picture) == ["L3 0", "no L3", "no L3", "L3 2"]
    assert "one L3 over" not in picture


def test_who_shares_a_pool_and_what_is_to_be_noted_is_in_the_legend() -> None:
    owners = [
        CPUOwner("a/b/c", CPUSet.of(0), note="NUMA 0, memory 0"),
        CPUOwner("shared pool", CPUSet.parse("1-6"), "shared", members=("x/y/z", "x/y/q")),
        owner("isolated", "6", "isolated"),
        owner("offline", "7", "offline"),
    ]
    assert draw(SMALL, owners, width=80).splitlines()[-4:] == [
        "A a/b/c: 0 (1 cpu), NUMA 0, memory 0",
        "· shared pool: 1-6 (6 cpus): x/y/z, x/y/q",
        ": isolated: 6 (1 cpu)",
        "- offline: 7 (1 cpu)",
    ]


def test_a_wide_cache_goes_over_several_lines_in_one_bracket() -> None:
    lines = draw(build_topology(parse("pack:1 numa:1 l3:1 core:30 pu:1")), width=40).splitlines()
    inside = [line[4:-4].rstrip() for line in lines[2:-2]]
    assert inside[0].startswith("[0  1  2")
    assert all(line.startswith(" ") for line in inside[1:])
    assert inside[-1].endswith("29]")


def test_parts_of_a_node_or_a_cache_are_shown_where_they_are() -> None:
    spanning_node = draw(build_topology(parse("numa:1 pack:2 l3:1 core:1 pu:1")))
    assert spanning_node.count("NUMA 0 (part)") == 2
    spanning_cache = draw(build_topology(parse("pack:1 l3:1 numa:2 core:1 pu:1")))
    assert spanning_cache.splitlines()[-1] == "one L3 over NUMA 0-1: 0-1"


def test_what_has_no_place_in_a_box_is_said_below() -> None:
    text = "topology: pack:1 numa:1 l3:1 core:4 pu:1\nnodes:\n  2-3: {cpus: none, memory: 8Gi}\n  9: {cpus: none, memory: 0}\noffline: 3\nisolated: 1"
    assert draw(build_topology(parse(text))).splitlines()[-4:] == [
        "NUMA 2-3: no cpus, 8Gi each",
        "NUMA 9: no cpus, no memory",
        "offline 3",
        "isolated 1",
    ]


def test_a_word_that_is_wider_than_the_line_is_broken() -> None:
    assert fold_words("abcdefgh ij", 4) == ["abcd", "efgh", "ij"]
    assert fold_words("1-2,3-4,5-6", 8, indent=" ") == ["1-2,3-4,", " 5-6"]


def test_unknown_memory_is_not_written_in_a_title() -> None:
    topology = Topology.from_rows([(0, 0, 0, 0, 0)], memory_bytes={3: None})  # type: ignore[dict-item]
    assert "┌ NUMA 0: 0 ─" in draw(topology)
    assert draw(topology).splitlines()[-1] == "NUMA 3: no cpus, size unknown"


def test_a_label_is_cut_at_the_width_and_its_cpus_are_not() -> None:
    label = "namespace/" + "x" * 100
    lines = draw(SMALL, [owner(label, "0")], width=40).splitlines()
    assert lines[-3:-1] == ["A " + label[:36] + "…:", "    0 (1 cpu)"]


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
    assert in_encoding("┌─┐│·…\nx", "ascii") == "+-+|.~\nx"
    assert in_encoding(f"αБ░▒▓█{TIMES}", "ascii") == "**:+#@x"
    assert in_encoding("┌─┐", "no such encoding") == "+-+"
    assert in_encoding("┌─┐", "utf-8") == "┌─┐"


@pytest.mark.parametrize("width", [72, 80, 120])
def test_each_part_of_a_node_has_its_cpus_and_only_the_first_the_memory_of_all(width: int) -> None:
    picture = draw(build_topology(shipped()["2-sockets-1-numa"]), width=width)
    assert "NUMA 0 (part): 0-7,16-23" in picture
    assert "NUMA 0 (part): 8-15,24-31" in picture
    assert picture.count("128Gi") == (1 if width > 100 else 0)
    assert ("128Gi in all" in picture) == (width > 100)
