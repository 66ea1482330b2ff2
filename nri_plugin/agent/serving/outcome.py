"""The result of one request: its reply, its outcome for counters and recordings, and its log line."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from nri_plugin.core.decision import Decision, EffectiveCheck
from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.model.options import Node
from nri_plugin.model.state import State
from nri_plugin.process.logs import Repeats
from nri_plugin.wire.nri.events import (
    ACKNOWLEDGED,
    CreateContainer,
    NRIEvent,
    NRIResponse,
    Synchronize,
    UpdateContainer,
    UpdatePodSandbox,
)


@dataclass(frozen=True, slots=True)
class RequestReply:
    """The reply to a request.

    Attributes:
        response: to send where `refusal` is empty.
        refusal: why the request is refused; empty when it is not.
        checks: cpusets to read back after the reply was sent.
        failed: the event had no effect because of an error; `response` is the empty one.
    """

    response: NRIResponse = ACKNOWLEDGED
    refusal: str = ""
    checks: tuple[EffectiveCheck, ...] = ()
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """The outcome of one event.

    Attributes:
        node: the node of the decision.
        event: the event.
        before: the state at the arrival of the event.
        decision: the decision; the bare state `before` when deciding failed.
        refusal: why it was refused; empty when it was not.
        failed: an error other than a refusal by policy occurred: a bug, a file, a cgroup.
        decide_s: seconds that the decision took.
        total_s: seconds until the answer was ready, with checkpoint and cgroups.
        from_memory: it is the refusal of an earlier request that was the same; nothing was decided anew.
    """

    node: Node
    event: NRIEvent
    before: State
    decision: Decision
    refusal: str
    failed: bool
    decide_s: float
    total_s: float
    from_memory: bool = False


Observer = Callable[[RequestOutcome], None]
"""Called with every outcome by the thread that answers the runtime; takes microseconds and does no I/O."""


LONGEST_STEPS = 500
"""The most characters of the field `steps` in a log line."""


REFUSABLE = (CreateContainer, UpdateContainer, UpdatePodSandbox)
"""Events that are refused when anything fails. All others are facts; an error reply would only break the pod."""


class LineLevels:
    """Chooses the log level of each decision.

    The kubelet retries a refused resize every second. The first refusal of a pod or container is a warning; repetitions of
    the same refusal are logged at debug level.
    """

    def __init__(self) -> None:
        self._resizes: Repeats[tuple[str, str]] = Repeats()

    def level_of(self, event: NRIEvent, refusal: str, now: float, *, changed: bool) -> int:
        """Return the level.

        Args:
            event: the event.
            refusal: why it was refused; empty when it was not.
            now: seconds, monotonic.
            changed: whether the decision changed the state.
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
    """Return the name of the event in log lines."""
    return type(event).__name__


def condensed(steps: Iterable[str]) -> str:
    """Return the steps on one line with repetitions counted: a Synchronize has some for every container."""
    runs = ((step, sum(1 for _ in run)) for step, run in groupby(steps))
    text = " ".join(step if count == 1 else f"{step}*{count}" for step, count in runs)
    return text if len(text) <= LONGEST_STEPS else f"{text[:LONGEST_STEPS]}..."


def decision_fields(
    event: NRIEvent, response: NRIResponse, outcomes: Mapping[WriteOutcome, int], steps: Sequence[str]
) -> dict[str, object]:
    """Return the fields of a decision's log line: pod and container, allocated CPUs, writes, and steps."""
    given = getattr(response, "resources", None)  # only a created container has some
    return {
        **_subject(event),
        **({"cpus": given.cpus, "mems": given.mems} if given is not None else {}),
        **_written(outcomes),
        "exact": "no" if "inexact-hint" in steps else None,
        "steps": condensed(steps),
    }


def _subject(event: NRIEvent) -> dict[str, object]:
    """Return the pod and the container of the event."""
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


def _written(outcomes: Mapping[WriteOutcome, int]) -> dict[str, object]:
    """Return the counts of cgroups that were written, already right, and missing."""
    names = {
        "writes": WriteOutcome.WRITTEN,
        "checked": WriteOutcome.UNCHANGED,
        "missing": WriteOutcome.MISSING,
    }
    return {name: outcomes.get(outcome) or None for name, outcome in names.items()}
