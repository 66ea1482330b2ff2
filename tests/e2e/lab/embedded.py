"""The first of the two runners: the embedded runtime, with the real agent as a process, on files."""

import time
from dataclasses import dataclass, fields, replace
from typing import Any

from nri_plugin.model.errors import NriPinError
from nri_plugin.model.options import SMTOddCounts
from nri_plugin.simulator.simulate.steps import Expect, Say
from tests.e2e.inside.complaints import complaints
from tests.lab.scenario.faults import settled_writes
from tests.lab.scenario.player import Player
from tests.lab.scenario.scenario import Scenario
from tests.lab.scenario.stage import ScenarioNode, described, stage
from tests.lab.scenario.steps import DriftStep, Logged, Measure, Spin, Step

from .plan import step_values

Json = dict[str, Any]

_NO_PARTITIONS = ("no partition, it has an ordinary cpuset",)
"""The cgroup tree here has none."""

NO_KERNEL = "what only a kernel can tell is not judged on the embedded runtime"


@dataclass(frozen=True, slots=True)
class Played:
    """What a run of a scenario showed.

    Attributes:
        pictures: after every step, in order: `containers` with cpus and mems of those that run, `refused` with reasons,
            `devices` by container.
        problems: what was not as expected, a sentence each.
        facts: how many steps were judged.
        limitation: what was not; empty where everything was.
    """

    pictures: tuple[Json, ...]
    problems: tuple[str, ...]
    facts: int
    seconds: float
    limitation: str = ""


def play_embedded(scenario: Scenario, text: str, *, is_compared: bool = False) -> Played:
    """Play on the machine described by `text`, which is the one a guest would be given.

    Where the pictures are compared with those of a guest, each is taken when the agent has written all: it writes some
    files after its answer.
    """
    began = time.monotonic()
    pictures: list[Json] = []
    problems: list[str] = []
    try:
        with stage(replace(scenario, machine=text)) as node:
            node.start_agent()
            player = _player(scenario, node)
            for step in scenario.steps:
                if not isinstance(step, Say):
                    outcome = player.play(step)
                    problems += [f"{scenario.file}:{step.line}: {text}" for text in outcome.problems]
                if is_compared and _changes(step):
                    settled_writes(node)
                pictures.append(_picture(node, player))
            problems += _complaints(scenario, node, pictures)
    except NriPinError as error:
        problems.append(str(error))
    facts = sum(map(_is_judged, scenario.steps)) + 1  # and the log
    limitation = NO_KERNEL if any(map(_asks_a_kernel, scenario.steps)) else ""
    return Played(tuple(pictures), tuple(problems), facts, time.monotonic() - began, limitation)


def _complaints(scenario: Scenario, node: ScenarioNode, pictures: list[Json]) -> list[str]:
    """What the agent complained of though nothing in the scenario explains it."""
    steps = [*map(step_values, scenario.steps), *({"do": "logged", "text": text} for text in _NO_PARTITIONS)]
    refused = {key for picture in pictures for key in picture["refused"]}
    said = complaints(node.places.log.read_text("utf-8", "replace").splitlines(), steps, refused)
    return [f"{scenario.file}: the agent complained: {line}" for line in said]


def _changes(step: Step) -> bool:
    """Whether cpusets may be others after it."""
    return not isinstance(step, Expect | Logged | Measure | Say | Spin)


def _asks_a_kernel(step: Step) -> bool:
    """Whether something in it is passed over here."""
    match step:
        case Expect():
            return step.kernel is not None
        case DriftStep():
            return bool(step.meanwhile)
        case Logged():
            return bool(step.only)
    return isinstance(step, Spin | Measure)


def _is_judged(step: Step) -> bool:
    """Whether it can fail here: a step that only a kernel answers is no fact, nor is a sentence."""
    if isinstance(step, Expect):
        asked = {field.name for field in fields(step) if getattr(step, field.name) is not None}
        return asked != {"line", "target", "kernel"}
    return not isinstance(step, Say | Spin | Measure) and not (isinstance(step, Logged) and step.only)


def devices_of(text: str) -> list[Json]:
    """The machine's devices in the order in which a guest has them."""
    return [
        {
            "resource": device.resource,
            "id": device.id,
            "node": str(device.nodes),
            "how": device.delivery.value,
        }
        for device in described(text).devices
    ]


def _player(scenario: Scenario, node: ScenarioNode) -> Player:
    return Player(
        node,
        gives_exclusive=scenario.config.get("cpuManagerPolicy") != "none",
        has_pod_managers=bool(scenario.config.get("featureGates", {}).get("PodLevelResourceManagers")),
        odd_counts=SMTOddCounts(scenario.config.get("smtOddCounts", SMTOddCounts.KUBELET)),
    )


def _picture(node: ScenarioNode, player: Player) -> Json:
    running = {key: each for key, each in node.runtime.placements().items() if each.effective}
    return {
        "containers": {
            key: {"cpus": str(each.effective), "mems": str(each.mems)} for key, each in running.items()
        },
        "refused": dict(player.refusals),
        "devices": {
            key: {name: list(ids) for name, ids in player.devices_of(key).items()}
            for key in {*running, *player.refusals}  # who is refused has been given devices before
        },
    }
