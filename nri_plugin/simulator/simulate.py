"""`simulate(machine, plan, chosen) -> Simulation`: what would become of these pods on that machine.

The decisions are those of the agent, its `engine.decide`; what is around it (runtime, kubelet, scheduler) is played.
Nothing is written, nothing is random: the same three values give the same result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nri_plugin.options import MemoryManagerPolicy
from nri_plugin.simulator.behaviour import BEHAVIOURS
from nri_plugin.simulator.device_manager import DeviceManager
from nri_plugin.simulator.machine_layout import lay_out
from nri_plugin.simulator.machine_source import SourcedMachine
from nri_plugin.simulator.pods import Identity, PodSpec
from nri_plugin.simulator.simulate_capacity import Budget, more_that_fit
from nri_plugin.simulator.simulate_config import Chosen
from nri_plugin.simulator.simulate_machine import machine_row
from nri_plugin.simulator.simulate_node import PlayedNode
from nri_plugin.simulator.simulate_plan import Plan
from nri_plugin.simulator.simulate_room import node_room
from nri_plugin.simulator.simulate_rows import Rows
from nri_plugin.simulator.simulate_shapes import Shapes, asks_for_something, shape_text
from nri_plugin.simulator.simulate_steps import StepPlayer
from nri_plugin.simulator.simulation import (
    ContainerRow,
    RefusedRow,
    Room,
    Simulation,
    Status,
    StepRow,
    Totals,
)

TRIALS_NOW, TRIALS_EMPTY = 600, 300
"""How often it is tried whether one more pod fits, of all shapes together: hundreds of shapes must not take minutes."""

UNKNOWN_MEMORY_BYTES = 64 << 30
"""For oom_score_adj, where nobody knows the size."""


@dataclass(slots=True)
class Played:
    """A plan that was played, and the node it left behind."""

    plan: Plan
    node: PlayedNode
    steps: StepPlayer
    shapes: Shapes


def simulate(
    machine: SourcedMachine,
    plan: Plan,
    chosen: Chosen,
    more_shapes: Sequence[PodSpec] = (),
    *,
    summary: str = "",
) -> Simulation:
    """Play a plan and tell everything about it.

    Args:
        machine: where.
        plan: what.
        chosen: with which configuration.
        more_shapes: shapes beside those of the plan, of which is asked how many fit.
        summary: the machine in one line, for readers.
    """
    played = play(machine, plan, chosen)
    for pod in more_shapes:
        played.shapes.key(pod)
    rows = Rows(played.node)
    containers = running(played)
    steps = tuple(played.steps.rows)
    capacity = tuple(_capacity(machine, chosen, played))
    return Simulation(
        scenario=plan.name,
        file=plan.file,
        machine=machine_row(machine, summary),
        configuration=chosen.shown,
        shapes=played.shapes.texts(),
        steps=steps,
        containers=containers,
        owners=tuple(rows.owners()),
        devices=tuple(rows.devices()),
        numa_nodes=rows.numa_nodes(),
        caches=rows.caches(),
        memory=tuple(rows.memory()),
        capacity=capacity,
        refused=_alike(steps),
        totals=totals(played, containers),
        notes=(*plan.notes, *played.steps.notes, *_assumptions(machine, plan), *_left_out(played, capacity)),
    )


def play(machine: SourcedMachine, plan: Plan, chosen: Chosen) -> Played:
    """Play a plan on an empty node."""
    node = empty_node(machine, plan, chosen)
    shapes = Shapes(chosen.node.options)
    player = StepPlayer(node, plan, shapes)
    for step in plan.steps:
        player.play(step)
    return Played(plan, node, player, shapes)


def running(played: Played) -> tuple[ContainerRow, ...]:
    """The containers that run now, with what they have now."""
    rows = Rows(played.node)
    return tuple(rows.now(row) for key, row in played.steps.latest.items() if played.node.is_running(key))


def empty_node(machine: SourcedMachine, plan: Plan, chosen: Chosen, *, counts: bool = False) -> PlayedNode:
    """The machine with nothing on it; `counts` requests also where the plan itself does not."""
    described = machine.description
    devices = DeviceManager(lay_out(described).devices, described.links) if described else DeviceManager(())
    sizes = [one.memory_bytes or 0 for one in machine.topology.nodes]
    who = Identity(BEHAVIOURS[plan.runtime], plan.driver, sum(sizes) or UNKNOWN_MEMORY_BYTES)
    return PlayedNode(
        chosen.node,
        devices,
        who,
        has_device_hints=chosen.config.device_hints,
        knows_pods=plan.has_objects,
        room=node_room(chosen.node, chosen.config) if plan.has_objects or counts else None,
    )


def totals(played: Played, containers: Sequence[ContainerRow]) -> Totals:
    """Counts at the end; `containers` are those that run."""
    node, state = played.node.node, played.node.state
    own = [row for row in containers if row.aligned is not None]
    by_pod = _by_pod(played.steps.latest.values())
    placed = [pod for pod, rows in by_pod.items() if not any(map(_failed, rows))]
    gone = [pod for pod, rows in by_pod.items() if all(map(_failed, rows))]
    by_caches, by_cores = Rows(played.node).fragmentation()
    return Totals(
        pods=len(by_pod),
        pods_placed=len(placed),
        pods_partly=len(by_pod) - len(placed) - len(gone),
        pods_refused=len(gone),
        containers=len(containers),
        containers_exclusive=len(own),
        exclusive_cpus=len(state.exclusive),
        shared_cpus=len(state.shared_pool(node)),
        reserved_cpus=len(node.reserved),
        available_cpus=len(state.available(node)),
        shared_pool=str(state.shared_pool(node)),
        aligned_numa_node=sum(1 for row in own if row.aligned and row.aligned.numa_node),
        aligned_socket=sum(1 for row in own if row.aligned and row.aligned.socket),
        aligned_uncore_cache=sum(1 for row in own if row.aligned and row.aligned.uncore_cache),
        aligned_whole_cores=sum(1 for row in own if row.aligned and row.aligned.whole_cores),
        fragmentation_numa=round(by_caches, 4),
        fragmentation_cache=round(by_cores, 4),
        memory_promised_bytes=_promised_bytes(played),
        problems=sum(len(row.problems) for row in played.steps.rows),
    )


def _promised_bytes(played: Played) -> int:
    if played.node.node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return 0
    held = played.node.state.allocations.values()
    return sum(block.size_bytes for one in held for block in one.memory if block.resource == "memory")


def _by_pod(rows: Iterable[ContainerRow]) -> dict[str, list[ContainerRow]]:
    found: dict[str, list[ContainerRow]] = {}
    for row in rows:
        found.setdefault(f"{row.namespace}/{row.pod}", []).append(row)
    return found


def _failed(row: ContainerRow) -> bool:
    return row.status in (Status.REFUSED, Status.SKIPPED)


def _capacity(machine: SourcedMachine, chosen: Chosen, played: Played) -> list[Room]:
    """For each shape; those of the command line come last, as they were met last."""
    budgets = Budget(TRIALS_NOW), Budget(TRIALS_EMPTY)
    counted = empty_node(machine, played.plan, chosen, counts=True)
    now = played.node.fork()
    if now.room is None:
        now.room = counted.room.copy() if counted.room else None
        for pod in played.node.specs():
            if now.room is not None:
                now.room.take(pod)
    rooms = {key: _room(key, played.shapes, (now, counted), budgets) for key in _most_wanted(played.shapes)}
    return [room for key in played.shapes.pods if (room := rooms[key]) is not None]


def _most_wanted(shapes: Shapes) -> list[str]:
    """Those that only the command line names, which are wanted for sure, then the most frequent."""
    return sorted(shapes.pods, key=lambda key: (bool(shapes.examples[key]), -shapes.counts[key]))


def _room(
    key: str, shapes: Shapes, nodes: tuple[PlayedNode, PlayedNode], budgets: tuple[Budget, Budget]
) -> Room | None:
    """How many more fit on the node as it is and on an empty one, each while there is a budget for it."""
    pod, count, example = shapes.pods[key], shapes.counts[key], shapes.examples[key]
    text = shape_text(pod)
    if not asks_for_something(pod):
        return Room(key, text, example, count, 0, 0, bounded=False)
    if example and budgets[0].left <= 0:
        return None
    fits, why = more_that_fit(nodes[0], pod, budgets[0])
    fits_empty = None
    if budgets[1].left > 0 or not example:
        fits_empty, _ = more_that_fit(nodes[1], pod, budgets[1])
    return Room(key, text, example, count, fits, fits_empty, bounded=why is not None, refusal=why)


def _left_out(played: Played, capacity: Sequence[Room]) -> Iterable[str]:
    """Shapes of which nobody knows how many more fit."""
    count = len(played.shapes.pods)
    if len(capacity) < count:
        yield (
            f"how many more fit was tried for {len(capacity)} of {count} shapes of pods, the most frequent; "
            "--shape asks for others"
        )


def _alike(steps: Iterable[StepRow]) -> tuple[RefusedRow, ...]:
    """Refusals of one shape for one reason together, the most frequent first."""
    found: dict[tuple[str, str, str, str], list[ContainerRow]] = {}
    for step in steps:
        for row in step.containers:
            if row.status is Status.REFUSED and row.refusal is not None:
                key = (
                    row.refusal.reason,
                    row.refusal.stage,
                    step.shape,
                    row.container if not step.shape else "",
                )
                found.setdefault(key, []).append(row)
    groups = [
        RefusedRow(
            rows[0].refusal.reason,
            rows[0].refusal.stage,
            shape,
            tuple(row.key for row in rows),
            rows[0].refusal.text,
        )
        for (_, _, shape, _), rows in found.items()
        if rows[0].refusal is not None
    ]
    return tuple(sorted(groups, key=lambda group: -len(group.containers)))


def _assumptions(machine: SourcedMachine, plan: Plan) -> Iterable[str]:
    """What had to be assumed."""
    asked = {
        name
        for step in plan.steps
        if hasattr(step, "pod")
        for spec in (*step.pod.init_containers, *step.pod.containers)
        for name, _ in spec.devices_asked
    }
    if asked and machine.description is None:
        names = ", ".join(sorted(asked))
        yield f"{machine.name} says nothing of devices, so {names} cannot be had; a described machine can have some"
    if any(one.memory_bytes is None for one in machine.topology.nodes):
        yield f"{machine.name} does not say how much memory it has: requests of memory are not added up"
    told = (machine.dump or {}).get("placements")
    rows = told.get("containers") if isinstance(told, Mapping) else None
    if isinstance(rows, list) and rows:
        yield (
            f"{machine.name} tells of containers that run there ({len(rows)}); "
            "they are left out, a simulation begins on an empty machine"
        )
    if plan.machine and plan.machine != machine.name:
        yield f"played on {machine.name}; {plan.file} itself names {_short(plan.machine)}"


def _short(text: str) -> str:
    return text.partition("\n")[0] + (" ..." if "\n" in text else "")
