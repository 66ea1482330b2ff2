"""What happened on a node, from its recording: an entry for whatever was decided for somebody, and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from nri_plugin.cli.state_changes import Change, changes
from nri_plugin.drift import CpusetsObserved
from nri_plugin.facts import InformedCreate, UnsavedStart
from nri_plugin.host.recording import Entry, Recording
from nri_plugin.nri import events as nri
from nri_plugin.options import Node
from nri_plugin.state import State

KINDS = (
    "placed",
    "shared",
    "unplaced",
    "refused",
    "failed",
    "resizing",
    "resized",
    "moved",
    "released",
    "drift",
    "machine",
    "synchronized",
    "started",
    "gap",
)
STARTS = {"start": "started", "gap": "gap"}
WORDS = {"lost": "released", "grew": "resized", "shrank": "resized", "moved": "moved", "gained": "placed"}


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of the history.

    Attributes:
        at: when, UTC.
        what: one of `KINDS`.
        name: `namespace/pod/container`; empty where it concerns all.
        text: what was decided, in words.
        op: as in the agent's log; empty where nothing was decided.
        cpus: that it has from then on.
        took_us: until the answer was ready.
    """

    at: datetime
    what: str
    name: str
    text: str
    op: str = ""
    cpus: str = ""
    took_us: int = 0


def happened(recording: Recording) -> Iterator[Happened]:
    """All of it, in order.

    Raises:
        HostError: a file can no longer be read.
    """
    node: Node | None = None
    for entry, moment in recording.lived():
        if entry.state is not None:
            if entry.why in STARTS:
                yield _began(entry, entry.state)
        elif entry.node is not None and node is not None:
            yield Happened(entry.at, "machine", "", f"another one: {_difference(node, entry.node)}")
        node = entry.node or node
        if moment is not None:
            yield from _decided(entry, moment.state_before, moment.state_after)


def _began(entry: Entry, state: State) -> Happened:
    if entry.why == "gap":
        return Happened(entry.at, "gap", "", "events before this were not recorded")
    observing = ", only observing" if entry.observing else ""
    return Happened(
        entry.at,
        "started",
        "",
        f"the agent, with {len(state.allocations)} promises to {len(state.containers)} containers{observing}",
    )


def _difference(before: Node, after: Node) -> str:
    """What is different about a node, as far as it can be said in a line."""
    found = []
    if before.topology.online != after.topology.online:
        found.append(f"online CPUs {before.topology.online} -> {after.topology.online}")
    if before.reserved != after.reserved:
        found.append(f"reserved {before.reserved or '-'} -> {after.reserved or '-'}")
    found += [
        f"{field.name} {getattr(before.options, field.name)} -> {getattr(after.options, field.name)}"
        for field in fields(before.options)
        if getattr(before.options, field.name) != getattr(after.options, field.name)
    ]
    return "; ".join(found) or "its memory or devices"


def _decided(entry: Entry, before: State, after: State) -> Iterator[Happened]:
    known = entry.event
    event = known.event if isinstance(known, InformedCreate | UnsavedStart) else known
    if isinstance(event, CpusetsObserved):
        yield from _drifted(entry, event, before)
    elif entry.outcome is not None and (entry.outcome.refusal or entry.outcome.failed):
        what = "failed" if entry.outcome.failed else "refused"
        yield _line(entry, what, _event_name(event), entry.outcome.refusal or "see the agent's log")
    elif isinstance(event, nri.CreateContainer):
        yield _created(entry, event, after)
        yield from _others(entry, before, after, but=_event_name(event))
    else:
        if isinstance(event, nri.Synchronize):
            counts = f"{len(event.pods)} pods and {len(event.containers)} containers in the runtime"
            yield _line(entry, "synchronized", "", counts)
        yield from _others(entry, before, after)


def _created(entry: Entry, event: nri.CreateContainer, after: State) -> Happened:
    name, outcome = _event_name(event), entry.outcome
    record = after.containers.get(event.container.id)
    held = after.allocation_of(record) if record else None
    given = outcome.cpus if outcome else ""
    mems = f", memory nodes {held.mems}" if held and held.mems else ""
    if record is not None and record.unplaced:
        return _line(entry, "unplaced", name, record.unplaced, given)
    if held is not None and held.cpus:
        return _line(entry, "placed", name, f"CPUs {held.cpus}{mems}", str(held.cpus))
    return _line(entry, "shared", name, f"shared pool{f', CPUs {given}' if given else ''}{mems}", given)


def _others(entry: Entry, before: State, after: State, but: str = "") -> Iterator[Happened]:
    """Whoever has other CPUs than before, or a resize that began or ended."""
    if before is after:
        return
    for change in changes(before, after):
        if change.name == but:
            continue
        resize = next((field for field in change.others if field.name == "resize"), None)
        if resize is not None and resize.before == "-":
            yield _line(entry, "resizing", change.name, _words(change), str(change.after))
        elif change.before != change.after:
            yield _line(entry, WORDS[change.what], change.name, _words(change), str(change.after))
        elif resize is not None:
            yield _line(entry, "resized", change.name, f"CPUs {change.after or '-'}", str(change.after))


def _words(change: Change) -> str:
    if not change.before or not change.after:
        return f"CPUs {change.before or change.after or '-'}"
    return (
        f"CPUs {change.before} -> {change.after}" if change.before != change.after else f"CPUs {change.after}"
    )


def _drifted(entry: Entry, event: CpusetsObserved, state: State) -> Iterator[Happened]:
    steps = entry.outcome.steps if entry.outcome else ()
    cause = ", ".join(
        dict.fromkeys(step.removeprefix("drift-") for step in steps if step.startswith("drift-"))
    )
    if not cause:
        return
    for one in event.observed:
        record = state.containers.get(one.target.container_id)
        pod = state.pods.get(record.pod_uid) if record else None
        where = one.target.cgroup.path or one.target.cgroup.parent
        name = f"{pod.namespace}/{pod.name}/{record.name}" if pod and record else where
        found = "no cpuset files" if one.cpus is None else f"CPUs {one.cpus or 'none'}"
        runs_on = (
            f", ran on {one.effective}" if one.effective is not None and one.effective != one.cpus else ""
        )
        yield _line(entry, "drift", name, f"found {found}{runs_on} ({cause}), put right")


def _event_name(event: Any) -> str:
    pod, container = getattr(event, "pod", None), getattr(event, "container", None)
    parts = [pod.namespace, pod.name] if pod else []
    return "/".join([*parts, *([container.name] if container else [])])


def _line(entry: Entry, what: str, name: str, text: str, cpus: str = "") -> Happened:
    return Happened(entry.at, what, name, text, entry.op, cpus, entry.outcome.took_us if entry.outcome else 0)
