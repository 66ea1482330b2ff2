"""What the refusal of a resize says beyond its numbers: the size that would have fitted, and what stands in the way.

As in `advice`, every "would fit" was tried, by the same `resized` on a smaller request.
"""

from dataclasses import replace
from itertools import islice

from nri_plugin.advice import MOST_CHARACTERS, alone, holders_in_short
from nri_plugin.errors import AdmissionError, InsufficientCPUsError
from nri_plugin.hint_providers import tables_of
from nri_plugin.nri.events import UpdateContainer
from nri_plugin.nri.messages import Resources
from nri_plugin.options import Node
from nri_plugin.resizing import resized
from nri_plugin.state import ContainerRecord, PodRecord, State

PERIOD_US = 100_000
SHARES_PER_CPU = 1024


def advise_resize(
    node: Node, state: State, record: ContainerRecord, event: UpdateContainer, refusal: AdmissionError
) -> None:
    """Let the refusal of a container's resize say more; unchanged where it is not about room for CPUs."""
    held = state.allocation_of(record)
    if held is None or not isinstance(refusal, InsufficientCPUsError):
        return
    most = len(held.cpus) + min(refusal.available, refusal.requested - 1)
    sizes = islice(range(most, len(held.cpus), -1), 2 * max(1, tables_of(node).cpus_per_core))
    fits = next((size for size in sizes if _is_taken(node, state, record, event, _of(event, size))), None)
    pod = state.pods[record.pod_uid]
    would_fit = _is_taken(node, alone(state, pod), record, event, event.resources)
    _say(state, pod, refusal, f"{fits} CPUs" if fits else "", would_fit_alone=would_fit)


def advise_pod_growth(node: Node, state: State, pod: PodRecord, refusal: AdmissionError) -> None:
    """The same for a pod's new total."""
    if not isinstance(refusal, InsufficientCPUsError):
        return
    most = (pod.cpu_milli or 0) + refusal.available * 1000
    would_fit = len(alone(state, pod).available(node)) >= refusal.requested
    _say(state, pod, refusal, f"{most}m for the pod" if refusal.available else "", would_fit_alone=would_fit)


def _say(state: State, pod: PodRecord, refusal: AdmissionError, fits: str, *, would_fit_alone: bool) -> None:
    in_the_way = holders_in_short(state, pod)
    refusal.obstacle = (
        f"in the way: {in_the_way}"
        if in_the_way and would_fit_alone
        else "without other pods it would not fit either"
    )
    advice = f"would fit: {fits}; {refusal.obstacle}" if fits else refusal.obstacle
    refusal.advice = advice if len(advice) <= MOST_CHARACTERS else f"{advice[: MOST_CHARACTERS - 3]}..."


def _of(event: UpdateContainer, size: int) -> Resources:
    """The request for so many CPUs."""
    period = event.resources.cpu_period_us or PERIOD_US
    return replace(
        event.resources,
        cpu_shares=size * SHARES_PER_CPU,
        cpu_quota_us=size * period,
        cpu_period_us=period,
    )


def _is_taken(
    node: Node, state: State, record: ContainerRecord, event: UpdateContainer, asked: Resources
) -> bool:
    try:
        resized(node, state, record, event.container, asked)
    except AdmissionError:
        return False
    return True
