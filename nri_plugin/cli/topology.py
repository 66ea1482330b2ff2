"""`nri-pin topology`: the machine as placements see it, for people and for programs."""

import json
import shutil
import sys
import tempfile
import textwrap
from typing import Any

import click

from nri_plugin import bits
from nri_plugin.cli.output import format_option, wants_colour
from nri_plugin.cli.picture import draw, in_encoding, memory_text
from nri_plugin.topology import NUMANode, Topology

EPILOG = """\b
Examples:
  nri-pin topology
  nri-pin topology --root /host --format json
  nri-pin topology --list
  nri-pin topology --machine ./two-sockets.txt

\b
A description, for --machine FILE, is a few lines such as:
  2 sockets, 2 NUMA nodes each, 4 L3 each, 4 cores each, SMT 2
  memory 64Gi each
  distances local 10 socket 12 remote 32
  offline 3, isolated 4-7
  cpu-less nodes 4-5 memory 16Gi
  devices nvidia.com/gpu 4 on 0 + 4 on 1
  links nvidia.com/gpu nvlink 0 3 / 1 2 / 4 7 / 5 6
Levels nest in the order written, from the outside in.
"""


@click.command(epilog=EPILOG)
@click.option("--root", metavar="DIR", help="A directory that holds sys and proc; / by default.")
@click.option("--machine", metavar="NAME|FILE", help="A described machine instead of a real one.")
@click.option("--list", "wants_list", is_flag=True, help="List the machines that come with nri-pin.")
@format_option("text", "json")
def command(root: str | None, machine: str | None, wants_list: bool, output_format: str) -> None:
    """Show CPUs, caches and NUMA nodes of a machine."""
    if (root is not None) + (machine is not None) + wants_list > 1:
        raise click.UsageError("--root, --machine and --list exclude each other; give one")
    if wants_list:
        answer = _list(output_format, shutil.get_terminal_size().columns)
    elif output_format == "json":
        answer = _json(_facts(root, machine))
    else:
        width = shutil.get_terminal_size().columns
        answer = "\n".join([_text(_topology(root, machine), width), *_devices(machine, width)])
    click.echo(in_encoding(answer, sys.stdout.encoding))


def distance_table(topology: Topology, width: int) -> str:
    """The distances between NUMA nodes; where a table is too wide, a line per node. Empty without any."""
    rows = [node for node in topology.nodes if node.distances is not None]
    if len(topology.nodes) < 2 or not rows:
        return ""
    if 9 + 5 * len(topology.nodes) > width:
        words = [_distance_words(topology, node) for node in rows]
        return "\n".join(textwrap.fill(text, width, subsequent_indent="  ") for text in words)
    head = "distance " + "".join(f"{number:>5}" for number in topology.node_ids)
    lines = [f"NUMA {node.id:<4}" + "".join(f"{value:>5}" for value in node.distances or ()) for node in rows]
    return "\n".join([head, *lines])


def _distance_words(topology: Topology, node: NUMANode) -> str:
    to: dict[int, int] = {}
    for other, value in zip(topology.node_ids, node.distances or (), strict=True):
        to[value] = to.get(value, 0) | 1 << other
    words = [f"{value} to {bits.format_list(to[value])}" for value in sorted(to)]
    return f"NUMA {node.id} distance " + ", ".join(words)


def summary(topology: Topology) -> str:
    """The machine in one line."""
    widths = sorted({len(cpus) for _, cpus in topology.cores})
    sizes = [node.memory_bytes for node in topology.nodes]
    parts = [
        _count(len(topology.sockets), "socket"),
        _count(len(topology.nodes), "NUMA node"),
        _count(len(topology.caches), "uncore cache") if topology.caches_known else "no L3 cache",
        _count(len(topology.cores), "core"),
        f"{_count(len(topology.online), 'CPU')} (SMT {'/'.join(map(str, widths))})",
        "memory unknown" if None in sizes else memory_text(sum(size or 0 for size in sizes)) + " memory",
    ]
    return ", ".join(parts)


def _topology(root: str | None, machine: str | None) -> Topology:
    from nri_plugin.host.sysfs import discover
    from nri_plugin.simulator.machine import build_topology, load

    return discover(root or "/") if machine is None else build_topology(load(machine))


def _facts(root: str | None, machine: str | None) -> dict[str, Any]:
    """The facts of a described machine are read from its files like those of any other."""
    from nri_plugin.host.sysfs import discover_facts
    from nri_plugin.simulator.machine import build_sysfs, load

    if machine is None:
        return discover_facts(root or "/").as_dict()
    with tempfile.TemporaryDirectory(prefix="nri-pin-") as folder:
        build_sysfs(load(machine), folder)
        return discover_facts(folder).as_dict()


def _text(topology: Topology, width: int) -> str:
    picture = draw(topology, width=width, colour=wants_colour())
    table = distance_table(topology, width)
    return "\n".join([textwrap.fill(summary(topology), width), picture, *([table] if table else [])])


def _devices(machine: str | None, width: int) -> list[str]:
    """What pods can ask for on a described machine: a line for each resource."""
    from nri_plugin.simulator.machine import load

    counts: dict[str, dict[str, int]] = {}
    for device in load(machine).devices if machine is not None else ():
        where = f"on NUMA {device.nodes}" if device.nodes else "on no NUMA node"
        by_place = counts.setdefault(device.resource, {})
        by_place[where] = by_place.get(where, 0) + 1
    lines = (
        f"{name}: " + ", ".join(f"{count} {where}" for where, count in by_place.items())
        for name, by_place in counts.items()
    )
    return [textwrap.fill(line, width, subsequent_indent="  ") for line in lines]


def _list(output_format: str, width: int) -> str:
    from nri_plugin.simulator.machine import shipped

    titles = {name: description.title for name, description in shipped().items()}
    if output_format == "json":
        return _json(titles)
    left = max(map(len, titles)) + 2
    blank = " " * left
    return "\n".join(
        textwrap.fill(title, max(width, left + 20), initial_indent=f"{name:<{left}}", subsequent_indent=blank)
        for name, title in titles.items()
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
