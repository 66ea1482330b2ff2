"""How many more pods of a shape fit: one after the other is tried, by the same decisions, until one is refused.

Differs: where a pod is promised nothing, the state is the same before and after it, so that the next one is decided
    alike. Then only the room of the node as a whole counts, which is divided instead of tried.
"""

from dataclasses import dataclass, replace

from nri_plugin.simulator.device_manager import NotAdmittedError
from nri_plugin.simulator.pods import PodSpec
from nri_plugin.simulator.simulate_node import PlayedNode, Tried
from nri_plugin.simulator.simulate_room import NodeRoom, pod_requests
from nri_plugin.simulator.simulate_rows import refusal
from nri_plugin.simulator.simulation import Refusal, Stage

MOST_TRIED = 4096
"""As many CPUs as the largest machines have."""


@dataclass(slots=True)
class Budget:
    """How many trials there are; a row that was begun is ended."""

    left: int


def more_that_fit(node: PlayedNode, pod: PodSpec, budget: Budget | None = None) -> tuple[int, Refusal | None]:
    """How many, and what ended the row; None where nothing did.

    Args:
        node: is left as it is.
        pod: whose name does not matter.
        budget: is charged with every trial.
    """
    return _row(node.fork(), pod, budget or Budget(0))


def _row(trial: PlayedNode, pod: PodSpec, budget: Budget) -> tuple[int, Refusal | None]:
    for count in range(MOST_TRIED):
        budget.left -= 1
        one = replace(pod, name=f"another-{count}", namespace=pod.namespace or "default")
        before, given = trial.state.allocations, trial.devices.given_count
        tried = trial.run(one, start=False)  # what runs and what waits to be started hold the same
        failed = next((each for each in tried if each.error is not None or _overruled(each)), None)
        if failed is not None:
            return count, _why(failed)
        if trial.state.allocations == before and trial.devices.given_count == given:
            return _divided(trial, one, count)
        trial.forget_containers()
    return MOST_TRIED, None


def _divided(trial: PlayedNode, pod: PodSpec, count: int) -> tuple[int, Refusal | None]:
    """The rest of a row of pods that are promised nothing; `pod` is one of them and is there already."""
    room = trial.room or NodeRoom({})
    requests = pod_requests(pod)
    rows = [
        (room.allocatable[name] - room.used.get(name, 0)) // amount
        for name, amount in requests.items()
        if name in room.allocatable
    ]
    if not rows:
        return 0, None
    more = min(rows)
    for name, amount in requests.items():
        room.used[name] = room.used.get(name, 0) + more * amount
    try:
        room.check(replace(pod, name="another"))
    except NotAdmittedError as error:
        text = str(error)
        return count + 1 + more, Refusal(Stage.NODE, text.partition(":")[0], text)
    return count + 1 + more, None


def _overruled(tried: Tried) -> bool:
    """In a namespace that is never refused nothing ends the row but this."""
    return tried.decision is not None and tried.decision.overruled is not None


def _why(tried: Tried) -> Refusal | None:
    if tried.error is not None:
        return refusal(tried)
    overruled = tried.decision.overruled if tried.decision else None
    return None if overruled is None else Refusal(Stage.PLACEMENT, overruled.reason, str(overruled))
