"""What the log line of a decision says: about whom, what was given, by which steps, what was written."""

from collections.abc import Iterable, Mapping
from itertools import groupby

from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.nri.events import NRIEvent, NRIResponse, Synchronize

LONGEST_STEPS = 500
"""Characters of a log line."""


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
