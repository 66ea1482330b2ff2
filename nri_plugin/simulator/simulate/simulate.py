"""`simulate(machine, plan, chosen) -> Simulation`: the placement of pods on a machine with a configuration.

Decisions are those of the agent (`core.engine.decide`). Runtime, kubelet and scheduler around it are simulated. Nothing
is written and nothing is random: equal arguments give equal results.

Steps:

1. `play` runs the steps of the plan on an empty node. Restarts, foreign writes and CPUs that go offline need a process,
   cgroups or a kernel; such steps are left out and noted.
2. `_capacity` tries for each shape how many more pods fit: now, and on the empty machine. Pods are added one by one, by
   the same decisions, until one is refused.
3. The rows of the result are made from the node that remains.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nri_plugin.model.options import REGISTRY, MemoryManagerPolicy, Node
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.simulator.machine.source import SourcedMachine
from nri_plugin.simulator.simulate.config import Chosen
from nri_plugin.simulator.simulate.device_manager import DeviceManager
from nri_plugin.simulator.simulate.node import PlayedNode, node_room
from nri_plugin.simulator.simulate.plan import PodPlan
from nri_plugin.simulator.simulate.pods import RUNTIMES, PodSpec, RuntimeIdentity
from nri_plugin.simulator.simulate.room import TrialBudget, more_that_fit
from nri_plugin.simulator.simulate.rows import (
    Rows,
    Shapes,
    asks_for_something,
    machine_row,
    shape_text,
    words,
)
from nri_plugin.simulator.simulate.simulation import (
    ContainerStatus,
    RefusalStage,
    RefusedRow,
    ShapeCapacity,
    SimulatedContainer,
    SimulatedRefusal,
    Simulation,
    StepRow,
    Totals,
)
from nri_plugin.simulator.simulate.steps import (
    Elsewhere,
    Expect,
    Held,
    Remove,
    Run,
    Say,
    Start,
    Step,
    Stop,
    Update,
    unmet,
)

# Steps


class StepPlayer:
    """Plays the steps of a plan on a node.

    Attributes:
        rows: of the steps so far.
        latest: the newest row of every container of the plan, by key.
        notes: on steps that were left out.
    """

    def __init__(self, played: PlayedNode, plan: PodPlan, shapes: Shapes) -> None:
        self.rows: list[StepRow] = []
        self.latest: dict[str, SimulatedContainer] = {}
        self.notes: list[str] = []
        self._played, self._plan, self._shapes = played, plan, shapes
        self._made = Rows(played)

    def play(self, step: Step) -> None:
        """Play one step."""
        match step:
            case Say():
                self.rows.append(self._row(step, "say", step.text))
            case Run():
                self._run(step)
            case Start() | Stop() | Remove():
                self._move(step)
            case Update():
                self._update(step)
            case Expect():
                self._expect(step)
            case Elsewhere():
                why = "there is no agent process here; hack/demo plays it"
                self.notes.append(self._at(step, f"{step.kind} passed over: {why}"))

    def _run(self, step: Run) -> None:
        pod = step.pod
        workload = self._plan.workloads.get(pod.key, "")
        shape = self._shapes.key(pod, workload or pod.key)
        tried = self._played.run(pod, start=step.start, telling=step.facts)
        containers = tuple(self._made.tried(pod, one) for one in tried)
        self.latest.update({row.key: row for row in containers})
        row = self._row(step, "run" if step.start else "create", pod.key)
        self.rows.append(
            replace(row, workload=workload, shape=shape, qos=str(pod.qos), containers=containers)
        )

    def _move(self, step: Start | Stop | Remove) -> None:
        action = type(step).__name__.lower()
        getattr(self._played, action)(step.target)
        self.rows.append(self._row(step, action, step.target))

    def _update(self, step: Update) -> None:
        refused: SimulatedRefusal | None = None
        problems: tuple[str, ...] = ()
        if step.target not in self._played.live:
            problems = (self._at(step, f"{step.target} does not run and cannot be updated"),)
        elif (error := self._played.update(step.target, step.resources)) is not None:
            refused = words(error, RefusalStage.PLACEMENT)
        row = self._row(step, "update", step.target)
        self.rows.append(replace(row, problems=problems, refusal=refused))

    def _row(self, step: Step, action: str, target: str) -> StepRow:
        """The row of a step, without its result."""
        exclusive = len(self._played.state.exclusive)
        return StepRow(len(self.rows) + 1, step.line, action, target, exclusive_cpus=exclusive)

    def _at(self, step: Step, text: str) -> str:
        """A sentence with the place of its step."""
        return f"{self._plan.file}:{step.line}: {text}"

    def _expect(self, step: Expect) -> None:
        row = self.latest.get(step.target)
        refused = row.refusal if row is not None and row.status is ContainerStatus.REFUSED else None
        held = None
        if row is not None and self._played.is_running(step.target):
            now = self._made.now(row)
            held = Held(
                now.cpus,
                now.mems,
                now.exclusive,
                numa_nodes=len(NodeMask.parse(now.numa_nodes)),
                caches=len(CPUSet.parse(now.caches)),
                devices=now.devices,
            )
        texts = unmet(step, refused.text if refused else None, held)
        problems = tuple(self._at(step, text) for text in texts)
        self.rows.append(replace(self._row(step, "expect", step.target), problems=problems))


# The whole


TRIALS_NOW, TRIALS_EMPTY = 600, 300
"""Trials of all shapes together, so that hundreds of shapes do not take minutes."""


@dataclass(slots=True)
class Played:
    """A plan that was played, and the node after it."""

    plan: PodPlan
    node: PlayedNode
    steps: StepPlayer
    shapes: Shapes


def simulate(
    machine: SourcedMachine,
    plan: PodPlan,
    chosen: Chosen,
    more_shapes: Sequence[PodSpec] = (),
    *,
    summary: str = "",
) -> Simulation:
    """Play a plan and describe the result.

    Args:
        machine: the machine.
        plan: the steps.
        chosen: the configuration.
        more_shapes: shapes beside those of the plan to find the capacity for.
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
        pods=tuple(rows.pods()),
        notes=(
            *plan.notes,
            *played.steps.notes,
            *_assumptions(machine, plan),
            *_pod_level(plan, chosen.node),
            *_left_out(played, capacity),
        ),
    )


def play(machine: SourcedMachine, plan: PodPlan, chosen: Chosen) -> Played:
    """Play a plan on an empty node."""
    node = empty_node(machine, plan, chosen)
    shapes = Shapes(chosen.node.options)
    player = StepPlayer(node, plan, shapes)
    for step in plan.steps:
        player.play(step)
    return Played(plan, node, player, shapes)


def running(played: Played) -> tuple[SimulatedContainer, ...]:
    """The containers that run now, with what they have now."""
    rows = Rows(played.node)
    return tuple(rows.now(row) for key, row in played.steps.latest.items() if played.node.is_running(key))


def empty_node(machine: SourcedMachine, plan: PodPlan, chosen: Chosen, *, counts: bool = False) -> PlayedNode:
    """An empty node; with `counts`, requests are counted even if the plan has no objects."""
    described = machine.description
    devices = DeviceManager(described.devices, described.links) if described else DeviceManager(())
    who = RuntimeIdentity.on(machine.topology, RUNTIMES[plan.runtime], plan.driver)
    return PlayedNode(
        chosen.node,
        devices,
        who,
        has_device_hints=chosen.config.device_hints,
        knows_pods=plan.has_objects,
        room=node_room(chosen.node, chosen.config.reserved_cpu_count) if plan.has_objects or counts else None,
    )


def totals(played: Played, containers: Sequence[SimulatedContainer]) -> Totals:
    """Counts at the end; `containers` are those that run."""
    node, state = played.node.node, played.node.state
    own = [row.aligned for row in containers if row.aligned is not None]
    by_pod: dict[str, list[SimulatedContainer]] = {}
    for row in played.steps.latest.values():
        by_pod.setdefault(f"{row.namespace}/{row.pod}", []).append(row)
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
        aligned_numa_node=sum(each.numa_node for each in own),
        aligned_socket=sum(each.socket for each in own),
        aligned_uncore_cache=sum(each.uncore_cache for each in own),
        aligned_whole_cores=sum(each.whole_cores for each in own),
        fragmentation_numa=round(by_caches, 4),
        fragmentation_cache=round(by_cores, 4),
        memory_allocated_bytes=_allocated_bytes(played),
        problems=sum(len(row.problems) for row in played.steps.rows),
    )


def _allocated_bytes(played: Played) -> int:
    if played.node.node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return 0
    held = played.node.state.allocations.values()
    return sum(block.size_bytes for one in held for block in one.memory if block.resource == "memory")


def _failed(row: SimulatedContainer) -> bool:
    return row.status in (ContainerStatus.REFUSED, ContainerStatus.SKIPPED)


def _capacity(machine: SourcedMachine, chosen: Chosen, played: Played) -> list[ShapeCapacity]:
    """The capacity for each shape, in order of appearance: those of the command line come last."""
    budgets = TrialBudget(TRIALS_NOW), TrialBudget(TRIALS_EMPTY)
    counted = empty_node(machine, played.plan, chosen, counts=True)
    now = played.node.fork()
    if now.room is None and counted.room is not None:
        now.room = counted.room.copy()
        for pod in played.node.specs():
            now.room.take(pod)
    rooms = {key: _room(key, played.shapes, (now, counted), budgets) for key in _most_wanted(played.shapes)}
    return [room for key in played.shapes.pods if (room := rooms[key]) is not None]


def _most_wanted(shapes: Shapes) -> list[str]:
    """Keys in the order of trials: shapes that only the command line names, then the most frequent."""
    return sorted(shapes.pods, key=lambda key: (bool(shapes.examples[key]), -shapes.counts[key]))


def _room(
    key: str, shapes: Shapes, nodes: tuple[PlayedNode, PlayedNode], budgets: tuple[TrialBudget, TrialBudget]
) -> ShapeCapacity | None:
    """How many more fit on the node as it is and on an empty one, as far as the budgets last."""
    pod, count, example = shapes.pods[key], shapes.counts[key], shapes.examples[key]
    text = shape_text(pod)
    if not asks_for_something(pod):
        return ShapeCapacity(key, text, example, count, 0, 0, bounded=False)
    if example and budgets[0].left <= 0:
        return None
    fits, why = more_that_fit(nodes[0], pod, budgets[0])
    fits_empty = None
    if budgets[1].left > 0 or not example:
        fits_empty, _ = more_that_fit(nodes[1], pod, budgets[1])
    return ShapeCapacity(key, text, example, count, fits, fits_empty, bounded=why is not None, refusal=why)


def _left_out(played: Played, capacity: Sequence[ShapeCapacity]) -> Iterable[str]:
    """Notes on shapes whose capacity was not tried."""
    count = len(played.shapes.pods)
    if len(capacity) < count:
        yield (
            f"how many more fit was tried for {len(capacity)} of {count} shapes of pods, the most frequent; "
            "--shape asks for others"
        )


def _alike(steps: Iterable[StepRow]) -> tuple[RefusedRow, ...]:
    """Refusals of one shape for one reason together, the most frequent first."""
    found: dict[tuple[str, RefusalStage, str, str, bool], list[str]] = {}
    texts: dict[tuple[str, RefusalStage, str, str, bool], str] = {}
    for step in steps:
        for row in step.containers:
            if row.status is ContainerStatus.REFUSED and row.refusal is not None:
                name = "" if step.shape else row.container
                whole = row.refusal.of_pod
                name = row.refusal.container if whole else name
                key = row.refusal.reason, row.refusal.stage, step.shape, name, whole
                found.setdefault(key, []).append(row.key)
                texts.setdefault(key, row.refusal.text)
    groups = (
        RefusedRow(
            key[0],
            key[1],
            key[2],
            tuple(keys),
            texts[key],
            of_pods=key[4],
            container=key[3] if key[4] else "",
        )
        for key, keys in found.items()
    )
    return tuple(sorted(groups, key=lambda group: -len(group.containers)))


def _pod_level(plan: PodPlan, node: Node) -> Iterable[str]:
    """Why resources of pods as wholes have no effect, where no gate turns them on."""
    pods = (step.pod for step in plan.steps if isinstance(step, Run) and step.pod.whole is not None)
    if (pod := next(pods, None)) is not None and not node.options.pod_level_managers:
        gate = f"featureGates.{REGISTRY['pod_level_managers'].gate}"
        yield (
            f"{pod.key} has resources of its own (spec.resources), and {gate} is off: no pod has CPUs as a whole; "
            f"try --set {gate}=true"
        )


def _assumptions(machine: SourcedMachine, plan: PodPlan) -> Iterable[str]:
    """Assumptions, a sentence each."""
    pods = (step.pod for step in plan.steps if isinstance(step, Run))
    asked = {name for pod in pods for spec, _ in pod.members for name, _ in spec.devices_asked}
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
        first, more, _ = plan.machine.partition("\n")
        yield f"played on {machine.name}; {plan.file} itself names {first}{' ...' if more else ''}"
