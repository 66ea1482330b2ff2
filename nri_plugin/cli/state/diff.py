"""`nri-pin state diff`: which containers gained, lost or moved CPUs between two states.

`changes` compares two states and is empty exactly where they are equal; `top` and `history` use it as well. With --live
the second side is the cgroups.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click

from nri_plugin.checkpoint.file import FILE_NAME
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.cli.output import NARROW, columns, echo, folded, format_option
from nri_plugin.cli.state.source import (
    Seen,
    WrongUsageError,
    cgroup_root_here,
    cgroup_root_option,
    load_checkpoint,
    path_of,
    state_dir_option,
)
from nri_plugin.cli.state.verify import ObservedCpuset, judging_node, look, need_visible
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import REGISTRY, Node, ReservedMemory
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    PodFacts,
    PodRecord,
    allocation_key,
    named,
    pod_of,
)
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State

Value = TypeVar("Value")

UNNAMED = {"id", "pod_uid", "name", "uid"}
"""Identifying fields, not compared; a new container id is reported as a restart."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that says something else, in words."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class StateChange:
    """The change of one container, one pod or the machine.

    Attributes:
        what: `gained`, `lost`, `grew`, `shrank` or `moved` of exclusive CPUs, else `new`, `gone` or `changed`.
        name: `namespace/pod/container`, `namespace/pod`, or `machine`.
        key: `UID/CONTAINER`, the pod's uid, or `machine`.
        before: exclusive CPUs before.
        after: exclusive CPUs after.
        others: everything else.
    """

    what: str
    name: str
    key: str
    before: CPUSet = NO_CPUS
    after: CPUSet = NO_CPUS
    others: tuple[FieldChange, ...] = ()


def changes(before: State, after: State) -> list[StateChange]:
    """The changes between two states, sorted by name."""
    # Only keys whose objects differ are compared field by field: history compares every two states in a row.
    touched = _touched(before, after)
    keys_before, keys_after = _by_key(before, touched), _by_key(after, touched)
    pods = {**before.pods, **after.pods}
    found = [
        change
        for key in touched
        if (
            change := _container_change(
                key,
                named(pods, key),
                (before.allocations.get(key), keys_before.get(key, [])),
                (after.allocations.get(key), keys_after.get(key, [])),
            )
        )
    ]
    told = {pod_of(change.key) for change in found if change.what in {"new", "gone", "gained", "lost"}}
    found += _pod_changes(before.pods, after.pods, told)
    return sorted(found, key=lambda change: (change.name, change.key))


def machine_changes(before: NodeFacts | None, after: NodeFacts | None) -> list[StateChange]:
    """The differences of the machine; empty where one side does not know it."""
    if before is None or after is None or before == after:
        return []
    return [StateChange("changed", "machine", "machine", others=_field_changes(before, after))]


def node_changes(before: Node, after: Node) -> Iterator[str]:
    """The options that differ, by their names in the configuration, and the reserved CPUs; a line each."""
    for one in REGISTRY.values():
        old, new = one.value(before.options), one.value(after.options)
        if old != new:
            yield f"{one.name}: {_option_words(old)} -> {_option_words(new)}"
    if before.reserved != after.reserved:
        yield f"reserved CPUs: {before.reserved or '-'} -> {after.reserved or '-'}"


def _option_words(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], ReservedMemory):
        return ", ".join(
            f"{one.resource} {format_bytes(one.size_bytes)} on NUMA node {one.node}" for one in value
        )
    if isinstance(value, frozenset | tuple):
        return ",".join(sorted(map(str, value))) or "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def live_changes(looked: Sequence[ObservedCpuset]) -> list[StateChange]:
    """The changes from the allocations to the cgroups."""
    found = []
    for one in looked:
        name, key = one.row.name, one.row.record.key
        if one.cpus is None:
            problem = FieldChange("cgroup", "expected", one.problem)
            found.append(StateChange("gone", name, key, one.wanted_cpus, NO_CPUS, (problem,)))
        elif one.has_other_cpus or one.has_other_mems:
            mems = FieldChange("mems", str(one.wanted_mems) or "-", str(one.mems or "") or "-")
            what = _what(one.wanted_cpus, one.cpus) or "changed"
            others = (mems,) if one.has_other_mems else ()
            found.append(StateChange(what, name, key, one.wanted_cpus, one.cpus, others))
    return sorted(found, key=lambda change: (change.name, change.key))


ContainerSide = tuple[Allocation | None, list[ContainerRecord]]


def _container_change(key: str, name: str, before: ContainerSide, after: ContainerSide) -> StateChange | None:
    if before == after:
        return None
    held_before, held_after = before[0] or Allocation(), after[0] or Allocation()
    others = (
        [] if before[0] is None or after[0] is None else [*_field_changes(held_before, held_after, {"cpus"})]
    )
    others += _presence(before, after) + _record_changes(before[1], after[1])
    what = _what(held_before.cpus, held_after.cpus)
    # Without a change of exclusive CPUs the container itself came, went or changed.
    if not what:
        is_new, is_gone = before == (None, []), after == (None, [])
        what = "new" if is_new else "gone" if is_gone else "changed"
    if before[0] is None and held_after.mems:
        others.insert(0, FieldChange("mems", "-", str(held_after.mems)))
    if before[0] is None and held_after.is_pod_shared:
        others.append(FieldChange("is_pod_shared", "no", "yes"))
    if what in {"new", "gone"}:
        others = [one for one in others if one.name != "container"]
    return StateChange(what, name, key, held_before.cpus, held_after.cpus, tuple(others))


def _presence(before: ContainerSide, after: ContainerSide) -> list[FieldChange]:
    """A container that is there and one that is not; an allocation that outlives its container or comes before it."""
    if bool(before[1]) != bool(after[1]):
        return [FieldChange("container", *(("there" if side[1] else "none") for side in (before, after)))]
    if (before[0] is None) != (after[0] is None) and not (before[0] or after[0] or Allocation()).cpus:
        return [
            FieldChange("allocation", *("none" if side[0] is None else "there" for side in (before, after)))
        ]
    return []


def _record_changes(before: list[ContainerRecord], after: list[ContainerRecord]) -> list[FieldChange]:
    """Field by field where there is one container on both sides, else which containers there are."""
    if before == after or not before or not after:
        return []
    if len(before) == len(after) == 1:
        restarted = before[0].id != after[0].id
        ids = [FieldChange("id", before[0].id[:12], after[0].id[:12])] if restarted else []
        return ids + list(_field_changes(before[0], after[0], UNNAMED))
    return [FieldChange("containers", *(_phases(side) for side in (before, after)))]


def _phases(records: Sequence[ContainerRecord]) -> str:
    return ", ".join(f"{record.id[:12]} {record.phase}" for record in records)


def _pod_changes(
    before: Mapping[str, PodRecord], after: Mapping[str, PodRecord], told: set[str]
) -> list[StateChange]:
    """Changed pods; pods that come and go with containers are reported with those."""
    found = []
    for uid in dict.fromkeys(uid for uid, _ in _others(before, after)):
        old, new = before.get(uid), after.get(uid)
        if old == new:
            continue
        known = new or old
        name = f"{known.namespace}/{known.name}" if known else uid
        if old is None or new is None:
            if uid not in told:
                found.append(StateChange("new" if old is None else "gone", name, uid))
        else:
            found.append(StateChange("changed", name, uid, others=_field_changes(old, new, UNNAMED)))
    return found


def _field_changes(before: Any, after: Any, but: set[str] | None = None) -> tuple[FieldChange, ...]:
    """Fields of two records of one type that are not equal."""
    return tuple(
        FieldChange(field.name, _words(old), _words(new))
        for field in fields(before)
        if field.name not in (but or set())
        and (old := getattr(before, field.name)) != (new := getattr(after, field.name))
    )


def _words(value: object) -> str:
    """A value as an operator reads it."""
    if isinstance(value, tuple):
        return " ".join(_words(one) for one in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, PodFacts):
        return f"of {len(value.containers)} containers"
    return "-" if value is None else str(value) or "-"


def _what(before: CPUSet, after: CPUSet) -> str:
    """The change of exclusive CPUs; empty for none."""
    if before == after:
        return ""
    if not before:
        return "gained"
    if not after:
        return "lost"
    if before <= after:
        return "grew"
    return "shrank" if after <= before else "moved"


def _touched(before: State, after: State) -> dict[str, None]:
    """Keys with any object that is not identical: few among many, in two states in a row."""
    records = _others(before.containers, after.containers)
    keys = [
        *(allocation_key(record.pod_uid, record.name) for _, record in records),
        *(key for key, _ in _others(before.allocations, after.allocations)),
    ]
    return dict.fromkeys(keys)


def _others(before: Mapping[str, Value], after: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    """Entries that only one side has, or for which the sides have different objects."""
    for one, other in ((before, after), (after, before)):
        yield from ((key, value) for key, value in one.items() if other.get(key) is not value)


def _by_key(state: State, keys: Collection[str]) -> dict[str, list[ContainerRecord]]:
    by_key: dict[str, list[ContainerRecord]] = {}
    uids = {pod_of(key) for key in keys}
    records = (record for record in state.containers.values() if record.pod_uid in uids)
    for record in sorted(records, key=lambda record: record.id):
        by_key.setdefault(allocation_key(record.pod_uid, record.name), []).append(record)
    return by_key


EXIT_DIFFERENT = 1
INDENT = 9

EXAMPLES = """\b
Examples:
  nri-pin state diff /run/nri-pin/state.json.previous /run/nri-pin/state.json
  nri-pin state diff ./state-before-the-upgrade.json
  nri-pin state diff --live
  nri-pin state diff before.json after.json -o json | jq -r '.changes[].name'
"""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared."""

    name: str
    state: State
    facts: NodeFacts | None


@click.command(name="diff", epilog=EXAMPLES)
@click.argument("files", metavar="[A [B]]", nargs=-1)
@click.option(
    "--live", is_flag=True, help="Compare the allocations (of A, else of the agent) with the cgroups."
)
@cgroup_root_option
@state_dir_option
@format_option()
@click.pass_context
def command(
    context: click.Context,
    files: tuple[str, ...],
    *,
    live: bool,
    cgroup_root: str | None,
    state_dir: str,
    output_format: str,
) -> None:
    """List containers that gained, lost or moved exclusive CPUs from A to B, and all other differences.

    A and B are checkpoints or state directories. Without B, A is compared with the present state: of the
    agent's status socket, else of its checkpoint. Generations and writers are not compared.

    Exit code: 0 no difference, 1 differences, 2 the states cannot be compared.
    """
    _check(files, live=live, cgroup_root=cgroup_root)
    try:
        if live:
            before, after, found = _live(files, state_dir, cgroup_root)
        else:
            before, after, found = _recorded(files, state_dir)
    except click.ClickException as error:
        raise WrongUsageError(error.message) from error
    except NriPinError as error:
        raise WrongUsageError(str(error)) from error
    if output_format == "json":
        echo(_json(before, after, found))
    elif found:
        echo(_text(before, after, found))
    context.exit(EXIT_DIFFERENT if found else 0)


def _check(files: Sequence[str], *, live: bool, cgroup_root: str | None) -> None:
    if live and len(files) > 1:
        raise click.UsageError("--live compares one state with the cgroups; give at most one file")
    if not live and cgroup_root is not None:
        raise click.UsageError("--cgroup-root goes with --live")
    if not live and not files:
        raise click.UsageError("name two checkpoints, or one to compare with the agent, or give --live")
    if len(files) > 2:
        raise click.UsageError(f"{len(files)} files are named; give two")


def _recorded(files: Sequence[str], state_dir: str) -> tuple[str, str, list[StateChange]]:
    before = _side(files[0])
    after = _side(files[1]) if len(files) == 2 else now(state_dir)
    found = machine_changes(before.facts, after.facts) + changes(before.state, after.state)
    return before.name, after.name, found


def _live(files: Sequence[str], state_dir: str, root: str | None) -> tuple[str, str, list[StateChange]]:
    source = _path(files[0]) if files else path_of(state_dir, None)
    checkpoint = load_checkpoint(source)
    root = root or cgroup_root_here()
    looked = look(Seen(checkpoint.state, judging_node(checkpoint)), root)
    need_visible(looked, root)
    return f"{source}, generation {checkpoint.generation}", f"cgroups below {root}", live_changes(looked)


def now(state_dir: str) -> Side:
    """The present state of the agent; that of its checkpoint where it does not answer."""
    from nri_plugin.agent.status_client import read_status
    from nri_plugin.agent.status_socket import FILE_NAME as SOCKET_NAME

    path = os.path.join(state_dir, SOCKET_NAME)
    try:
        status = read_status(path)
    except HostError:
        side = _side(path_of(state_dir, None))
        return Side(f"{side.name} (no agent answers at {path})", side.state, side.facts)
    return Side(f"the agent at {path}", status.state, NodeFacts.of(status.node))


def _side(word: str) -> Side:
    path = _path(word)
    checkpoint = load_checkpoint(path)
    return Side(f"{path}, generation {checkpoint.generation}", checkpoint.state, checkpoint.facts)


def _path(word: str) -> str:
    return os.path.join(word, FILE_NAME) if os.path.isdir(word) else word


def _text(before: str, after: str, found: Sequence[StateChange]) -> str:
    width = columns() or NARROW
    lines = [f"--- {before}", f"+++ {after}"]
    lines += [line for change in found for line in folded(change_line(change), width, INDENT)]
    return "\n".join(lines)


def change_line(change: StateChange) -> str:
    """One change in one line."""
    parts = [_cpus_words(change)] if change.before != change.after or change.what == "gone" else []
    parts += [_field_words(change.what, other) for other in change.others]
    return f"{change.what:<7}  {change.name}" + (f": {'; '.join(filter(None, parts))}" if any(parts) else "")


def _field_words(what: str, field: FieldChange) -> str:
    """Empty for a container that came with its CPUs: these say it."""
    if field.name != "container":
        return f"{field.name} {field.before} -> {field.after}"
    if field.after == "none":
        return "its container is gone"
    return "" if what == "gained" else "its container is there"


def _cpus_words(change: StateChange) -> str:
    before, after = change.before, change.after
    if not before or not after:
        return f"CPUs {before or after}" if before or after else ""
    more, less = after - before, before - after
    signs = ", ".join(f"{sign}{cpus}" for sign, cpus in (("+", more), ("-", less)) if cpus)
    return f"CPUs {before} -> {after} ({signs})"


def _json(before: str, after: str, found: Sequence[StateChange]) -> str:
    return json.dumps(
        {
            "before": before,
            "after": after,
            "equal": not found,
            "changes": [change_facts(one) for one in found],
        },
        indent=2,
    )


def change_facts(change: StateChange) -> dict[str, Any]:
    """One change, sets as kernel lists."""
    return {
        "what": change.what,
        "name": change.name,
        "key": change.key,
        "cpus": {
            "before": str(change.before),
            "after": str(change.after),
            "gained": str(change.after - change.before),
            "lost": str(change.before - change.after),
        },
        "others": {other.name: {"before": other.before, "after": other.after} for other in change.others},
    }
