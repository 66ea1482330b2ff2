"""`nri-pin room`: how many more pods of a shape fit on a node as it is, and what would free more.

Pods are placed on a copy of the agent's state, by its own decisions, until one is refused. Nothing is changed.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import click

from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME
from nri_plugin.cli.explain.source import Ground, ground, ground_options
from nri_plugin.cli.explain.what_if import changed, device
from nri_plugin.cli.output import (
    FOR_PROGRAMS,
    columns,
    count_of,
    echo,
    fold_words,
    format_option,
    render,
    table,
    waiting,
)
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import Node, TopologyManagerPolicy
from nri_plugin.model.records import QOSClass
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.devices import Delivery, PlacedDevice
from nri_plugin.simulator.simulate.node import NodeRoom, PlayedNode
from nri_plugin.simulator.simulate.pods import PodSpec
from nri_plugin.simulator.simulate.room import (
    FreedRoom,
    TrialBudget,
    freed_by,
    largest_exclusive,
    more_that_fit,
    requests_of,
    standing_node,
)
from nri_plugin.simulator.simulate.rows import read_shape, shape_text
from nri_plugin.simulator.simulate.simulation import SimulatedRefusal
from nri_plugin.wire.nri.messages import DeviceNode

FREED_TRIALS = 20_000
"""Trials of one shape after the ends of pods; they take some ten seconds."""

MOST_ENDS = 5
"""Pods whose end frees room, in the text; `-o json` has all."""

EPILOG = """\b
Examples:
  nri-pin room --shape cpu=16,memory=32Gi
  nri-pin room --shape cpu=8,memory=8Gi,nvidia.com/gpu=1 --device nvidia.com/gpu=2@0,1
  nri-pin room --shape cpu=4,memory=8Gi --state-dir ./copied-from-node7
  nri-pin room --machine epyc7742-2p-64c-smt-nps4 --shape cpu=12,memory=16Gi

\b
A pod has its exclusive CPUs to itself only where it is Guaranteed: a shape of whole
CPUs needs memory, too. The scheduler may know less of a node than this command does:
it sees requests, or the zones of the NodeResourceTopology.
"""


@dataclass(frozen=True, slots=True)
class ShapeRoom:
    """How many pods of one shape fit.

    Attributes:
        shape: its text.
        qos: its class.
        fits: how many more on the node as it is; None where nothing limits them.
        on_empty: how many on the node with nothing allocated; None where nothing limits them.
        ended_by: the refusal of the next one.
        freed: the pods whose end lets more fit, the best first.
        tried: after the end of how many pods it was counted.
        pods: how many there are.
    """

    shape: str
    qos: QOSClass
    fits: int | None
    on_empty: int | None
    ended_by: SimulatedRefusal | None
    freed: tuple[FreedRoom, ...]
    tried: int
    pods: int


@dataclass(frozen=True, slots=True)
class PolicyRoom:
    """The largest container with exclusive CPUs under one policy.

    Attributes:
        policy: a value of topologyManagerPolicy.
        in_force: whether the node has it.
        count: its CPUs; 0 where none fits.
        cpus: those that it would get, as a kernel list.
        numa_nodes: of these CPUs.
        refused: why the node cannot have this policy; else empty.
    """

    policy: TopologyManagerPolicy
    in_force: bool
    count: int = 0
    cpus: str = ""
    numa_nodes: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class NodeRoomAnswer:
    """The answer of the command.

    Attributes:
        notes: where machine and state come from, and what is not counted.
        available: how many CPUs can still become exclusive.
        allocatable: how many could on an empty node.
    """

    notes: tuple[str, ...]
    available: int
    allocatable: int
    shapes: tuple[ShapeRoom, ...]
    largest: tuple[PolicyRoom, ...]


@click.command(epilog=EPILOG)
@click.option(
    "--shape",
    "shapes",
    metavar="NAME=AMOUNT,...",
    multiple=True,
    help="How many more pods of one container fit that asks for this? Give it once for each shape.",
)
@click.option(
    "--device",
    "devices",
    metavar="RESOURCE=COUNT@NODES",
    multiple=True,
    help="Devices that are available on the node, and their NUMA nodes: one for all or one for each. "
    "A described machine has those of its description.",
)
@click.option("--machine", metavar="NAME|FILE", help="On this machine, not on this node.")
@ground_options
@format_option()
def command(
    shapes: tuple[str, ...],
    devices: tuple[str, ...],
    machine: str | None,
    config: str | None,
    root: str | None,
    state_file: str | None,
    state_dir: str,
    output_format: str,
) -> None:
    """Count how many more pods of a shape fit on this node, and say whose end would free more.

    Each pod is placed as the agent would place it; nothing is changed. Also shows the largest container with exclusive
    CPUs that fits under each topologyManagerPolicy.
    """
    if machine is not None and state_file is None and os.path.abspath(state_dir) != DEFAULT_DIR:
        state_file = state_dir
    if state_file is not None and os.path.isdir(state_file):
        state_file = os.path.join(state_file, FILE_NAME)
    wanted = [read_shape(text) for text in shapes]
    found = ground(state_dir, config, machine, state_file, root)
    with waiting("placing pods"):
        answer = room_of(found, wanted, available_devices(found, devices))
    if output_format in FOR_PROGRAMS:
        echo(render(answer, output_format))
    else:
        echo(as_text(answer, columns()))


def available_devices(found: Ground, given: Iterable[str]) -> tuple[PlacedDevice, ...]:
    """The devices of the command line, else those of the described machine.

    Raises:
        ConfigError: not of the form RESOURCE=COUNT@NODES, or on a NUMA node that the machine does not have.
    """
    named = [device(text, found.node, None) for text in given]
    if not named:
        return found.description.devices if found.description else ()
    return tuple(
        PlacedDevice(
            one.name,
            f"{number}-{each.id}",
            each.nodes,
            Delivery.NODES,
            "",
            DeviceNode(path="", type="c", major=0, minor=0),
            ("", "", ""),
        )
        for number, one in enumerate(named)
        for each in one.devices
    )


def room_of(found: Ground, shapes: Sequence[PodSpec], devices: tuple[PlacedDevice, ...]) -> NodeRoomAnswer:
    """The answer for a node and its state."""
    links = found.description.links if found.description else ()
    now = standing_node(found.node, found.state, devices, links)
    empty = standing_node(found.node, State(), devices, links)
    return NodeRoomAnswer(
        (*found.notes, *_requested(now), *_doubts(found, shapes, devices)),
        len(found.state.available(found.node)),
        len(found.node.allocatable),
        tuple(_shape_room(pod, now, empty) for pod in shapes),
        tuple(_policy_rooms(found.node, found.state)),
    )


def as_text(answer: NodeRoomAnswer, width: int) -> str:
    """The answer for eyes."""
    lines = [f"{answer.available} of {answer.allocatable} allocatable CPUs are available"]
    for one in answer.shapes:
        lines += ["", *_shape_lines(one, width)]
    rows = [("LARGEST EXCLUSIVE CONTAINER", "CPUS", "NUMA NODES")]
    rows += [
        (
            f"{one.policy}{', in force' if one.in_force else ''}",
            "-" if one.refused else str(one.count),
            one.refused or one.numa_nodes or "-",
        )
        for one in answer.largest
    ]
    lines += ["", *table(rows)]
    notes = [line for note in answer.notes for line in fold_words(f"note: {note}", width, "  ")]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _shape_room(pod: PodSpec, now: PlayedNode, empty: PlayedNode) -> ShapeRoom:
    fits, why = more_that_fit(now, pod)
    most, why_empty = more_that_fit(empty, pod)
    tried = list(freed_by(now, pod, TrialBudget(FREED_TRIALS))) if why is not None else []
    return ShapeRoom(
        shape_text(pod),
        pod.qos,
        None if why is None else fits,
        None if why_empty is None else most,
        why,
        tuple(sorted((one for one in tried if one.fits > fits), key=lambda one: -one.fits)),
        len(tried),
        len(now.state.pods),
    )


def _policy_rooms(node: Node, state: State) -> Iterator[PolicyRoom]:
    in_force = node.options.topology_manager_policy
    for policy in TopologyManagerPolicy:
        is_own = policy is in_force
        try:
            own = node if is_own else changed(node, [f"topologyManagerPolicy={policy}"])
        except ConfigError as error:
            yield PolicyRoom(policy, is_own, refused=error.detail)
            continue
        largest = largest_exclusive(standing_node(own, state))
        nodes = own.topology.nodes_of(largest.cpus) if largest.count else ""
        yield PolicyRoom(policy, is_own, largest.count, str(largest.cpus), str(nodes))


def _requested(now: PlayedNode) -> Iterator[str]:
    """Why fewer CPUs can be requested than are available; requests count as for scheduler and kubelet."""
    state, room = now.state, now.room or NodeRoom({})
    most, used = room.allocatable.get("cpu", 0), room.used.get("cpu", 0)
    if state.pods and most - used < len(state.available(now.node)) * 1000:
        left = f"{(most - used) / 1000:g}" if used < most else "none"
        yield f"pods request {used / 1000:g} of {most / 1000:g} CPUs, so {left} can be requested, fewer than are available"
    for uid, pod in state.pods.items():
        milli = requests_of(state, pod).get("cpu", 0)
        if milli and not state.containers_of(uid) and not state.allocations_of(uid):
            yield f"{pod.namespace}/{pod.name} runs no container and counts until it is deleted: it requests {milli / 1000:g} CPUs"


def _doubts(found: Ground, shapes: Sequence[PodSpec], devices: Sequence[PlacedDevice]) -> Iterator[str]:
    """What the reader has to know of the figures."""
    for pod in shapes:
        spec = pod.containers[0]
        if pod.qos is not QOSClass.GUARANTEED and spec.cpu_request_milli and not spec.memory_request_bytes:
            yield f"{shape_text(pod)} shares its CPUs: only with memory= is it Guaranteed and gets exclusive ones"
    asked = {name for pod in shapes for name, _ in pod.containers[0].devices_asked}
    missing = sorted(asked - {one.resource for one in devices})
    if missing:
        names = ", ".join(missing)
        yield f"the available devices of {names} are not known; tell them: --device {missing[0]}=COUNT@NODES"
    elif asked and found.state.pods and found.description is not None:
        yield "all devices of the description count as available"
    unknown = sum(
        pod.facts is None and pod.qos is not QOSClass.GUARANTEED for pod in found.state.pods.values()
    )
    if unknown:
        yield f"the memory requests of {count_of(unknown, 'pod')} are not known here and not counted"


def _shape_lines(one: ShapeRoom, width: int) -> Iterator[str]:
    yield from table([("SHAPE", "FITS", "ON EMPTY"), (one.shape, _count(one.fits), _count(one.on_empty))])
    if one.ended_by is not None:
        yield from fold_words(f"  the next one: {one.ended_by.text}", width, "    ")
    if one.fits is None or not one.pods:
        return
    if not one.freed:
        yield "  no pod's end alone lets more fit"
    for freed in one.freed[:MOST_ENDS]:
        held = f", which holds {count_of(freed.exclusive, 'exclusive CPU')}" if freed.exclusive else ""
        yield from fold_words(f"  {freed.fits} after the end of {freed.pod}{held}", width, "    ")
    if len(one.freed) > MOST_ENDS:
        yield f"  and after the end of {count_of(len(one.freed) - MOST_ENDS, 'other pod')}; -o json names them"
    if one.tried < one.pods:
        yield f"  tried for {one.tried} of {one.pods} pods, those with the most exclusive CPUs"


def _count(number: int | None) -> str:
    return "no limit" if number is None else str(number)
