"""The output of the demo: lines in 80 columns for a reader, or one JSON value for a program."""

import json
import textwrap
import time
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

import click

from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint
from nri_plugin.cli.output import cut, echo, output_encoding
from nri_plugin.cli.state.rows import PodBlock, Wanted, block_of, kept_by_ended, rows_of
from nri_plugin.cli.state.show import show_text
from nri_plugin.cli.state.source import agent_now, seen
from nri_plugin.cli.topology.machine_view import CPUOwner
from nri_plugin.cli.topology.picture import draw, in_encoding
from nri_plugin.model import bits
from nri_plugin.model.bounds import visible
from nri_plugin.model.records import allocation_key, is_whole_pod, named, pod_of
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.devices import PlacedDevice
from nri_plugin.simulator.simulate.steps import Expect, Run, Update
from tests.lab.runtime.runtime import ContainerPlacement
from tests.lab.scenario.faults import reachable
from tests.lab.scenario.player import Player, StepOutcome
from tests.lab.scenario.scenario import Scenario
from tests.lab.scenario.stage import ScenarioNode
from tests.lab.scenario.steps import (
    DriftStep,
    Foreign,
    Kubepods,
    Logged,
    Online,
    Part,
    Release,
    Restart,
    Second,
    Step,
)

PAGE = 80
"""The most columns of the table of the checkpoint."""

MAX_KEY_WIDTH = 28
CPUS_WIDTH = 22
PRODUCTION = "agent, protocol, decisions, checkpoint"
STAND_INS = "container runtime, hardware, cgroup tree"
NOT_WATCHED = "written after its code, never compared with the real one"
LEGEND = "marks: + created  ~ given another cpuset  - ended  x refused  = looked at again"
_MOVING = (DriftStep, Release, Foreign, Kubepods)
"""After these steps the report counts containers whose CPUs changed."""
CHECKED = (
    "every container began where it stayed",
    "exclusive CPUs belong to one container each",
    "no other container runs on them",
    "no container was moved",
    "a kernel would accept every write",
    "machine, cgroups and checkpoint agree",
)


class TextReport:
    """Text for a reader.

    Args:
        width: columns.
        colour: whether to use ANSI colours; the text has the same content without.
        pause_s: the pause before every paragraph, in seconds.
    """

    def __init__(self, scenario: Scenario, *, width: int, colour: bool, pause_s: float = 0.0) -> None:
        self._scenario = scenario
        self._width = width
        self._colour = colour
        self._pause_s = pause_s
        self._paragraphs = 0
        self._keys = _longest_key(scenario)

    def begin(self, node: ScenarioNode) -> None:
        """Production parts, stand-ins, and the machine."""
        behaviour = node.runtime.behaviour
        remark = "" if behaviour.was_watched else f" ({NOT_WATCHED})"
        self._lines(self._bold(f"nri-pin demo: {self._scenario.name}"), "")
        self._wrapped(f"production code  {PRODUCTION}; the agent is a separate process", 2, 19)
        self._wrapped(f"stand-ins        {STAND_INS}", 2, 19)
        self._wrapped(f"machine          {node.title}", 2, 19)
        self._wrapped(f"runtime played   {behaviour.name}{remark}", 2, 19)
        self._lines("", "starting the agent ...")

    def started(self, node: ScenarioNode, took_s: float) -> None:
        """The process of the agent, and the machine that it found."""
        text = f"the agent, process {node.agent_pid}, registered after {took_s:.1f} s and found this machine:"
        picture = draw(node.topology, width=self._width, colour=self._colour)
        self._lines(text, "", picture, "", LEGEND)

    def say(self, text: str) -> None:
        """A paragraph of the scenario."""
        time.sleep(self._pause_s)
        self._paragraphs += 1
        self._line("")
        head = f"{self._paragraphs}. "
        for number, line in enumerate(textwrap.wrap(text, self._width - len(head))):
            self._line(self._bold((head if number == 0 else " " * len(head)) + line))

    def outcome(self, outcome: StepOutcome, player: Player) -> None:
        """New containers, refusals and changed cpusets."""
        for placement in outcome.arrived:
            self._line(self._arrived(placement, player))
            for line in _devices(placement, player):
                self._line(f"      {line}")
        for refusal in outcome.refused:
            self._wrapped(f"x {refusal.key} refused: {refusal.reason}", 2, 4, colour="red")
        for key in outcome.left:
            self._line(self._styled(f"  - {key} ended", "yellow"))
        for change in outcome.changed:
            columns = _cpu_columns(change.after)
            self._line(f"  ~ {change.key:<{self._keys}} {columns} shared  was {len(change.before)}")
        self._remark(outcome, player)
        for problem in outcome.problems:
            self._wrapped(f"! {problem}", 2, 4, colour="red")

    def end(self, node: ScenarioNode, player: Player, took_s: float, problems: list[str]) -> None:
        """The machine at the end, the checkpoint, and the verdict."""
        time.sleep(self._pause_s)
        picture = draw(node.topology, _owners(node, player), width=self._width, colour=self._colour)
        self._lines("", self._bold("The machine now"), picture, "")
        self._lines(self._bold("The checkpoint:  nri-pin state show"), self._checkpoint(node), "")
        if not problems:
            self._wrapped(f"Checked after every step, from the cgroup files: {'; '.join(CHECKED)}.", 0, 0)
        self._line(f"{'ok' if not problems else f'not as expected: {len(problems)}'} after {took_s:.1f} s")

    def _checkpoint(self, node: ScenarioNode) -> str:
        checkpoint = read_checkpoint(str(node.places.state / FILE_NAME))
        if checkpoint is None:
            return f"  no {FILE_NAME}"
        found = seen(checkpoint, root=str(node.places.machine))
        width = min(self._width, PAGE) - 2
        now = agent_now(str(node.places.state))
        text = show_text(FILE_NAME, checkpoint, found, rows_of(found), Wanted(), width, now)
        return textwrap.indent(text.rstrip(), "  ")

    def _remark(self, outcome: StepOutcome, player: Player) -> None:
        step = outcome.step
        changed = f"{outcome.compared} containers compared, {len(outcome.changed)} cpusets changed"
        if isinstance(step, Restart):
            self._line(f"  = {_restarted(step)} after {outcome.took_s:.1f} s: {changed}")
        elif isinstance(step, Update):
            cpus = player.stage.runtime.placements()[step.target].effective
            self._line(f"  = {step.target} still runs on {cpus}: {len(outcome.changed)} cpusets changed")
        elif (text := _befallen(step, there_is_an_agent=bool(player.stage.agent_pid))) is not None:
            self._line(f"  = {text}: {changed}" if isinstance(step, _MOVING) else f"  = {text}")

    def _arrived(self, placement: ContainerPlacement, player: Player) -> str:
        key = f"  + {placement.key:<{self._keys}}"
        if not placement.effective:
            return f"{key} created, not started; it has no cgroup yet"
        columns = _cpu_columns(placement.effective)
        if not player.wants_own(placement.key):
            pod = player.pod_with_resources(placement.key)
            where = "in pod" if pod and pod in _blocks(_saved(player.stage)) else "shared"
            return f"{key} {columns} {where}  {player.qos(placement.key)}"
        text = f"{key} {columns} own     {_seat(placement, player)}"
        return self._styled(text, "green")

    def _wrapped(self, text: str, indent: int, hanging: int, *, colour: str = "") -> None:
        lines = textwrap.wrap(
            text,
            self._width,
            initial_indent=" " * indent,
            subsequent_indent=" " * hanging,
            break_on_hyphens=False,
        )
        for line in lines:
            self._line(self._styled(line, colour))

    def _bold(self, text: str) -> str:
        return click.style(visible(text), bold=True) if self._colour else text

    def _styled(self, text: str, colour: str) -> str:
        return click.style(visible(text), fg=colour) if self._colour and colour else visible(text)

    def _lines(self, *texts: str) -> None:
        for text in texts:
            self._line(text)

    def _line(self, text: str) -> None:
        """Print one line; pictures and tables (several lines) fit the width already."""
        if len(click.unstyle(text)) > self._width and "\n" not in text:
            text = "\n".join(_folded(click.unstyle(text), self._width))
        echo(in_encoding(text, output_encoding()), styled=self._colour)


def _restarted(step: Restart) -> str:
    """A sentence about the part that ended, and about its new start."""
    if step.is_down:
        return f"{step.part} killed, not started again,"
    told = "SIGKILL sent, back" if step.part is Part.AGENT else "runtime restarted, agent back"
    values = ", ".join(f"{key} {value}" for key, value in step.config.items())
    return f"{told} with {values}" if values else told


def _befallen(step: Step, *, there_is_an_agent: bool) -> str | None:
    """A sentence about a step that is not about containers; None for other steps."""
    match step:
        case DriftStep():
            back = "and put back" if there_is_an_agent else "and there is no agent to put it back"
            return f"{step.target} was put on {step.cpus} by another program, {back}"
        case Second():
            return "a second agent was started by mistake; it waited for the first"
        case Release():
            return "the agent has ended and nri-pin release gave everything back"
        case Online():
            return f"online now: {step.cpus}"
        case Foreign():
            what = f"has {step.cpus} as {step.kind} partition" if step.cpus else "gave up its partition"
            return f"another program {what}"
        case Kubepods():
            return f"another program gave the cgroup above all pods CPUs {step.cpus}"
        case Logged():
            where = f"only a real {step.only} has it logged" if step.only else "the agent's log says"
            return f"{where}: {step.text}"
    return None


def _folded(text: str, width: int) -> list[str]:
    """A line of columns as a sentence over several lines, for narrow terminals."""
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


class JSONReport:
    """One JSON value for a program, printed at the end."""

    def __init__(self, scenario: Scenario) -> None:
        self._answer: dict[str, Any] = {
            "scenario": scenario.name,
            "runtime": scenario.runtime,
            "production": PRODUCTION.split(", "),
            "standIns": STAND_INS.split(", "),
            "steps": [],
        }

    def begin(self, node: ScenarioNode) -> None:
        """Add the machine."""
        self._answer["machine"] = {
            "title": node.title,
            "online": str(node.topology.online),
            "numaNodes": len(node.topology.nodes),
        }

    def started(self, node: ScenarioNode, took_s: float) -> None:
        """Add the time that the start took."""
        self._answer["agentStart_s"] = round(took_s, 3)

    def say(self, text: str) -> None:
        """Add a sentence of the scenario as a step."""
        self._answer["steps"].append({"say": text})

    def outcome(self, outcome: StepOutcome, player: Player) -> None:
        """The facts of a step."""
        if isinstance(outcome.step, Expect) and not outcome.problems:
            return
        self._answer["steps"].append(
            {
                "step": type(outcome.step).__name__.lower(),
                "line": outcome.step.line,
                "arrived": [_facts(placement, player) for placement in outcome.arrived],
                "refused": [{"container": each.key, "reason": each.reason} for each in outcome.refused],
                "changed": [
                    {"container": each.key, "before": str(each.before), "after": str(each.after)}
                    for each in outcome.changed
                ],
                "left": list(outcome.left),
                "compared": outcome.compared,
                "took_ms": round(outcome.took_s * 1000, 1),
                "problems": list(outcome.problems),
            }
        )

    def end(self, node: ScenarioNode, player: Player, took_s: float, problems: list[str]) -> None:
        """Add the final placements, and print the value."""
        self._answer["placements"] = [
            _facts(each, player) for each in node.runtime.placements().values() if each.effective
        ]
        self._answer["took_s"] = round(took_s, 2)
        self._answer["problems"] = problems
        echo(json.dumps(self._answer, indent=2))


Report = TextReport | JSONReport


def _facts(placement: ContainerPlacement, player: Player) -> dict[str, Any]:
    return {
        "container": placement.key,
        "qos": str(player.qos(placement.key)),
        "exclusive": bool(player.wants_own(placement.key)),
        "cpus": str(placement.effective),
        "mems": str(placement.mems),
        "numaNodes": str(player.stage.topology.nodes_of(placement.effective)),
        "caches": player.caches_of(placement.effective),
        "stored": placement.stored,
        "devices": {name: list(ids) for name, ids in player.devices_of(placement.key).items()},
    }


def _devices(placement: ContainerPlacement, player: Player) -> list[str]:
    """A container's devices, a line for each resource."""
    given = player.devices_of(placement.key)
    placed = player.stage.devices.placed(given)
    return [f"{name} {','.join(ids)} on NUMA {_nodes(placed, name)}" for name, ids in given.items()]


def _nodes(devices: Iterable[PlacedDevice], resource: str) -> str:
    """The NUMA nodes that devices of a resource are on."""
    return str(reduce(or_, (each.nodes for each in devices if each.resource == resource))) or "any"


def _longest_key(scenario: Scenario) -> int:
    keys = [
        f"{step.pod.key}/{container.name}"
        for step in scenario.steps
        if isinstance(step, Run)
        for container in (*step.pod.init_containers, *step.pod.containers)
    ]
    return min(max(map(len, keys), default=0), MAX_KEY_WIDTH)


def _seat(placement: ContainerPlacement, player: Player) -> str:
    """NUMA node, uncore caches and memory nodes of exclusive CPUs."""
    topology = player.stage.topology
    caches = [cache for cache, cpus in topology.caches if not cpus.isdisjoint(placement.effective)]
    name = "L3" if topology.caches_known else "cache"
    return (
        f"NUMA {topology.nodes_of(placement.effective)} "
        f"{name} {bits.format_list(bits.from_ids(caches))} mem {placement.own_mems or 'any'}"
    )


def _cpu_columns(cpus: CPUSet) -> str:
    """CPUs and their number in columns of fixed width."""
    return f"{cut(str(cpus), CPUS_WIDTH, '...'):<{CPUS_WIDTH}} {len(cpus):>3}"


def _saved(node: ScenarioNode) -> State:
    """The state in the checkpoint."""
    checkpoint = read_checkpoint(str(node.places.state / FILE_NAME))
    return checkpoint.state if checkpoint else State()


def _blocks(state: State) -> dict[str, PodBlock]:
    """The pods that own CPUs as a whole, by their names."""
    blocks = (block_of(state, pod_of(key)) for key in state.allocations if is_whole_pod(key))
    return {named(state.pods, allocation_key(one.uid, "")): one for one in blocks if one and one.shared_pool}


def _owners(node: ScenarioNode, player: Player) -> list[CPUOwner]:
    """Owners of CPUs, from the cgroups.

    The checkpoint alone knows which CPUs a pod owns as a whole, and which an ended init container keeps.
    """
    running = {key: each for key, each in node.runtime.placements().items() if each.effective}
    owners = [CPUOwner(key, each.effective) for key, each in running.items() if player.wants_own(key)]
    state = _saved(node)
    for pod, block in _blocks(state).items():
        sharing = [
            key for key in running if player.pod_with_resources(key) == pod and not player.wants_own(key)
        ]
        cpus = reduce(or_, (running[key].effective for key in sharing), CPUSet())
        note = f"pod shared pool, of the pod's CPUs {block.allocation.cpus}"
        names = tuple(key.rpartition("/")[2] for key in sharing)
        owners.append(CPUOwner(pod, cpus or block.shared_pool, note=note, members=names))
    for key, cpus in kept_by_ended(state).items():
        owners.append(CPUOwner(named(state.pods, key), cpus, note="ended, kept until its pod ends"))
    taken = CPUSet(reduce(or_, (owner.cpus.mask for owner in owners), 0))
    usable = reachable(node)
    owners.append(CPUOwner("shared pool", usable - taken, "shared"))
    if not node.reserved.isdisjoint(usable):
        owners.append(CPUOwner("reserved, in the pool", node.reserved & usable, "reserved"))
    return owners
