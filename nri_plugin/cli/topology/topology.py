"""`nri-pin topology`: the machine as placements see it, and its containers, as text, JSON or SVG."""

import os
import shutil

import click

from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME, read_checkpoint
from nri_plugin.cli.output import (
    FOR_PROGRAMS,
    columns,
    echo,
    fold_words,
    format_option,
    output_encoding,
    plain,
    render,
    wants_colour,
)
from nri_plugin.cli.state.source import fits, path_of, recorded_node
from nri_plugin.cli.topology.machine_view import (
    KEY,
    Placements,
    View,
    pci_lines,
    read_placements,
    resource_lines,
    summary,
)
from nri_plugin.cli.topology.picture import NARROWEST, distance_lines, draw, in_encoding
from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.machine import shipped
from nri_plugin.simulator.machine.source import (
    MachineKind,
    SourcedMachine,
    live_machine,
    read_machine,
)

EPILOG = """\b
Examples:
  nri-pin topology                          this node and its containers
  nri-pin topology -o svg > node.svg        the same as a picture
  nri-pin topology -o json > node.json      take it along ...
  nri-pin topology node.json                ... and look at it elsewhere
  nri-pin topology gb200-34-numa            a machine that comes with nri-pin
  nri-pin topology --list                   list those machines
  lstopo --of xml | nri-pin topology -      the machine as hwloc sees it
  nri-pin topology --state ./state.json --machine node.json
  nri-pin topology --root /host

\b
A machine is the name of a shipped one, a file, or - for standard input. The
file holds a description, what `nri-pin topology -o json` printed, lstopo's
XML, or what hack/record-machine recorded. A description is YAML with a
synthetic string of hwloc, and fields for what the string cannot say:
  topology: pack:2 numa:2(memory=64GiB) l3:4 core:4 pu:2(indexes=core)
  distances: {local: 10, socket: 12, remote: 32}
  offline: 3
  isolated: 4-7
  nodes: {4-5: {cpus: none, memory: 16Gi}, 0-3: {hugepages: {2Mi: 512, 1Gi: 4}}}
  devices:
    - {resource: nvidia.com/gpu, count: 4, nodes: 0}
  links:
    - {resource: nvidia.com/gpu, weight: nvlink, groups: [[0, 3], [1, 2]]}
Levels nest in the order written, from the outside in.
"""
LIVE = "/"


@click.command(epilog=EPILOG)
@click.argument("name", metavar="[MACHINE]", required=False)
@click.option("--machine", metavar="MACHINE", help="The same as the argument.")
@click.option(
    "--root", metavar="DIR", help="The machine whose sys and proc are below this directory; default: /."
)
@click.option(
    "--state", metavar="FILE", help="A checkpoint, or its directory; by default the agent's own on this node."
)
@click.option("--list", "wants_list", is_flag=True, help="List the machines that come with nri-pin.")
@format_option("text", "json", "svg")
def command(
    name: str | None,
    machine: str | None,
    root: str | None,
    state: str | None,
    wants_list: bool,
    output_format: str,
) -> None:
    """Show sockets, NUMA nodes, caches, cores and CPUs, and the containers that own them.

    Letters and colours are containers; the legend names them. Without a
    checkpoint every CPU is its number.
    """
    sources = [name is not None, machine is not None, root is not None, wants_list]
    if sum(sources) > 1:
        raise click.UsageError("MACHINE, --machine, --root and --list exclude each other; give one")
    if wants_list:
        if output_format == "svg" or state is not None:
            raise click.UsageError("--list prints names, as text or json, and takes no --state")
        _print(_list(output_format, columns()))
        return
    view = _view(name if machine is None else machine, root, state)
    if output_format in FOR_PROGRAMS:
        _print(render(as_facts(view), output_format))
    elif output_format == "svg":
        from nri_plugin.cli.topology.svg import draw_svg

        echo(draw_svg(view))
    else:
        _print(as_text(view, shutil.get_terminal_size().columns, colour=wants_colour()), styled=True)


def as_text(view: View, width: int, *, colour: bool = False) -> str:
    """The machine in one line, the picture with its legend, the distances, the devices."""
    lines = fold_words(summary(view.topology), width)
    lines.append(draw(view.topology, view.owners, width=width, colour=colour))
    lines += distance_lines(view.topology, max(width, NARROWEST))
    for line in (*resource_lines(view.machine.description), *pci_lines(view.machine), view.source):
        lines += fold_words(line, width, indent="  ")
    return "\n".join(line for line in lines if line)


def as_facts(view: View) -> dict[str, object]:
    """The machine, and the placements where they are known, as a dump that this command reads back."""
    facts = {key: value for key, value in view.machine.facts().items() if key != KEY}
    if view.placements is not None:
        placed = plain(view.placements)
        facts[KEY] = {"containers" if name == "seats" else name: value for name, value in placed.items()}
    return facts


def _view(name: str | None, root: str | None, state: str | None) -> View:
    if root is not None and not os.path.isdir(root):
        raise ConfigError(f"--root {root}", "no such directory; name one that holds sys and proc")
    machine = live_machine(root or LIVE) if name is None else read_machine(name)
    if state is not None and name is None and root is None:
        machine = _machine_of(state, machine)
    if state is not None:
        return View(machine, *read_placements(state, machine.topology, is_asked_for=True))
    if name is None and root is None:
        path = f"{DEFAULT_DIR}/{FILE_NAME}"
        return View(machine, *read_placements(path, machine.topology, is_asked_for=False))
    return View(machine, _dumped_placements(machine, name or ""), _doubt(machine))


def _machine_of(state: str, here: SourcedMachine) -> SourcedMachine:
    """This machine if the checkpoint is about it, else the one that the history beside the checkpoint knows."""
    path = path_of(state, None) if os.path.isdir(state) else state
    checkpoint = read_checkpoint(path)
    if checkpoint is None or checkpoint.facts is None or fits(checkpoint.facts, here.topology):
        return here
    recorded = recorded_node(os.path.dirname(path))
    if recorded is None or not fits(checkpoint.facts, recorded.topology):
        return here
    return SourcedMachine(f"the history beside {path}", MachineKind.RECORDED, recorded.topology)


def _doubt(machine: SourcedMachine) -> str:
    """A remark about CPUs that lstopo's XML lists without details."""
    if machine.kind != "lstopo" or not machine.topology.offline:
        return ""
    return f"CPUs {machine.topology.offline} are offline, or lstopo was kept from them: 'lstopo --disallowed' shows those"


def _dumped_placements(machine: SourcedMachine, where: str) -> Placements | None:
    found = (machine.dump or {}).get(KEY)
    return None if found is None else Placements.from_dict(found, where)


def _list(output_format: str, width: int) -> str:
    titles = {name: description.title for name, description in shipped().items()}
    if output_format in FOR_PROGRAMS:
        return render(titles, output_format)
    left = max(map(len, titles)) + 2
    blank = " " * left
    return "\n".join(
        f"{name:<{left}}" + f"\n{blank}".join(fold_words(title, max(width - left, 20)))
        for name, title in titles.items()
    )


def _print(text: str, *, styled: bool = False) -> None:
    echo(in_encoding(text, output_encoding()), styled=styled)
