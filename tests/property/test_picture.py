"""Whatever the machine, each online CPU is drawn once, and no line is wider than the terminal."""

import re
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.cli.topology.machine_view import CPUOwner, Placements, Seat, View
from nri_plugin.cli.topology.picture import distance_lines, draw
from nri_plugin.cli.topology.svg import draw_svg
from nri_plugin.cli.topology.topology import as_text
from nri_plugin.model import bits
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.source import MachineKind, SourcedMachine
from tests.property.machines import rows_of_any_machine
from tests.topology_rows import topology_of_rows

WIDTHS = st.integers(60, 200)
SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any machine, its CPUs and nodes numbered with gaps, with memory and distances or without."""
    rows = draw(rows_of_any_machine(draw(st.sampled_from([1, 4, 16]))))
    step, shift = draw(st.integers(1, 40)), draw(st.integers(0, 3000))
    spread = [
        (cpu * step + shift, core * step + shift, socket * step, node * step, cache)
        for cpu, core, socket, node, cache in rows
    ]
    nodes = sorted({row[3] for row in spread} | draw(st.sets(st.integers(0, 900), max_size=40)))
    sizes = draw(st.lists(st.sampled_from([0, 1 << 30, 5 << 40]), min_size=len(nodes), max_size=len(nodes)))
    values = draw(st.lists(st.integers(11, 255), min_size=1, max_size=9))
    distances = {
        one: [10 if one == other else values[(one + other) % len(values)] for other in nodes] for one in nodes
    }
    return topology_of_rows(
        spread,
        memory_bytes=dict(zip(nodes, sizes, strict=True)),
        distances=distances if draw(st.booleans()) else None,
    )


@st.composite
def placements(draw: st.DrawFn, topology: Topology) -> Placements:
    """Some CPUs belong to containers, of which there may be more than letters."""
    cpus = sorted(topology.online)
    holders = draw(st.lists(st.integers(-1, len(cpus)), min_size=len(cpus), max_size=len(cpus)))
    name = st.text("abc-", min_size=1, max_size=70)
    seats = tuple(
        Seat(
            draw(name),
            draw(name),
            f"c{holder}",
            CPUSet.from_ids(c for c, h in zip(cpus, holders, strict=True) if h == holder),
            NodeMask(),
        )
        for holder in sorted({holder for holder in holders if holder >= 0})
    )
    pool = CPUSet.from_ids(cpu for cpu, holder in zip(cpus, holders, strict=True) if holder < 0)
    return Placements("state.json, generation 3", seats, pool, CPUSet.from_ids(list(pool)[:2]))


def view_of(topology: Topology, found: Placements | None) -> View:
    machine = SourcedMachine("any", MachineKind.DESCRIBED, topology)
    return View(machine, found, "" if found else "no containers are shown: there is no checkpoint anywhere")


def widest(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


def of_caches(picture: str) -> str:
    """What stands behind the titles of caches."""
    lines = [line for line in picture.splitlines() if line.startswith("    ")]
    return " ".join(re.sub(r"(no L3|L3 \d+( \(part\))?): ", "", line) for line in lines)


@given(st.data(), topologies(), WIDTHS)
@settings(max_examples=60)
def test_no_line_is_wider_than_the_terminal(data: st.DataObject, topology: Topology, width: int) -> None:
    found = data.draw(st.none() | placements(topology))
    assert widest(as_text(view_of(topology, found), width)) <= width
    assert widest("\n".join(distance_lines(topology, width))) <= width


@given(topologies(), WIDTHS)
@settings(max_examples=60)
def test_every_online_cpu_is_shown_once(topology: Topology, width: int) -> None:
    shown = of_caches(draw(topology, width=width))
    numbers = [
        cpu
        for item in re.findall(r"[\d,-]+", shown)
        for cpu in bits.iterate(bits.parse_list(item.strip(",")))
    ]
    assert sorted(numbers) == sorted(topology.online)
    marks = of_caches(draw(topology, [CPUOwner("x", topology.online)], width=width))
    assert marks.count("A") == len(topology.online)


@given(st.data(), topologies())
@settings(max_examples=60)
def test_the_svg_has_every_cpu_once_with_its_owner(data: st.DataObject, topology: Topology) -> None:
    found = data.draw(placements(topology))
    root = ET.fromstring(draw_svg(view_of(topology, found)))
    groups = [group for group in root.iter(f"{SVG}g") if "cpu" in group.get("class", "").split()]
    said = {}
    for group in groups:
        first, _, owner = (group.findtext(f"{SVG}title") or "").partition("\n")
        said[int(first.split(",")[0].removeprefix("CPU "))] = owner
    assert len(groups) == len(said)
    assert sorted(said) == sorted(topology.online)
    for seat in found.seats:
        assert {said[cpu] for cpu in seat.cpus} == {seat.name}
