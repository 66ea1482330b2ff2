"""The containers that gained, lost or moved CPUs from one state to another, and all else that differs.

`changes` is empty exactly where two states are equal.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

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
    """The change of one container or one pod.

    Attributes:
        what: `gained`, `lost`, `grew`, `shrank` or `moved` of exclusive CPUs, else `new`, `gone` or `changed`.
        name: `namespace/pod/container` or `namespace/pod`.
        key: `UID/CONTAINER` or the pod's uid.
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
        FieldChange(name, _words(old), _words(new))
        for name in before.__struct_fields__
        if name not in (but or set()) and (old := getattr(before, name)) != (new := getattr(after, name))
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


def change_facts(change: StateChange) -> dict[str, Any]:
    """One change, for programs."""
    return {
        "what": change.what,
        "name": change.name,
        "key": change.key,
        "cpus": {
            "before": change.before,
            "after": change.after,
            "gained": change.after - change.before,
            "lost": change.before - change.after,
        },
        "others": {other.name: {"before": other.before, "after": other.after} for other in change.others},
    }
