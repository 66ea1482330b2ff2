"""What the log line of a decision says: about whom, what was given, by which steps, what was written; how loud it is."""

import logging
from collections.abc import Iterable, Mapping
from itertools import groupby

from nri_plugin.app.reminder import Repeats
from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.nri.events import (
    CreateContainer,
    NRIEvent,
    NRIResponse,
    Synchronize,
    UpdateContainer,
    UpdatePodSandbox,
)

LONGEST_STEPS = 500
"""Characters of a log line."""


REFUSABLE = (CreateContainer, UpdateContainer, UpdatePodSandbox)
"""Events that are refused when anything fails; all others are facts, and an error would only break the pod."""


class LineLevels:
    """The log level of each decision's line.

    The kubelet retries a refused resize every second for as long as it is wanted. The same refusal of the same pod or
    container is a warning once; its repetitions are for those who debug.
    """

    def __init__(self) -> None:
        self._resizes: Repeats[tuple[str, str]] = Repeats()

    def level_of(self, event: NRIEvent, refusal: str, now: float, *, changed: bool) -> int:
        """The level.

        Args:
            event: what was decided.
            refusal: why it was refused; empty when it was not.
            now: seconds, monotonic.
            changed: whether the state is another one now.
        """
        if isinstance(event, UpdateContainer | UpdatePodSandbox):
            one = event.container.id if isinstance(event, UpdateContainer) else event.pod.id
            key = name_of(event), one
            if not refusal:
                self._resizes.forget(key)
            elif not self._resizes.is_first(key, refusal, now):
                return logging.DEBUG
        if refusal:
            return logging.WARNING
        is_worth_a_line = changed or isinstance(event, CreateContainer | UpdateContainer)
        return logging.INFO if is_worth_a_line else logging.DEBUG


def name_of(event: NRIEvent) -> str:
    """The event's name in log lines."""
    return type(event).__name__


def condensed(steps: Iterable[str]) -> str:
    """The steps on one line, repetitions counted: a Synchronize has some for every container."""
    runs = ((step, sum(1 for _ in run)) for step, run in groupby(steps))
    text = " ".join(step if count == 1 else f"{step}*{count}" for step, count in runs)
    return text if len(text) <= LONGEST_STEPS else f"{text[:LONGEST_STEPS]}..."


def who(event: NRIEvent) -> dict[str, object]:
    """Whom the event is about."""
    if isinstance(event, Synchronize):
        return {"pods": len(event.pods), "containers": len(event.containers)}
    fields: dict[str, object] = {}
    pod = getattr(event, "pod", None)
    if pod is not None:
        fields["pod"] = f"{pod.namespace}/{pod.name}"
    container = getattr(event, "container", None)
    if container is not None:
        fields["container"] = container.name or container.id
    return fields


def counted(outcomes: Mapping[WriteOutcome, int]) -> dict[str, object]:
    """Cgroups that were written, that already said so, and that are not there."""
    names = {
        "writes": WriteOutcome.WRITTEN,
        "checked": WriteOutcome.UNCHANGED,
        "missing": WriteOutcome.MISSING,
    }
    return {name: outcomes.get(outcome) or None for name, outcome in names.items()}


def granted(response: NRIResponse) -> dict[str, object]:
    """What a created container gets."""
    resources = getattr(response, "resources", None)
    return {"cpus": resources.cpus, "mems": resources.mems} if resources is not None else {}
