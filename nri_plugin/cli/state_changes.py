"""What is different between two states, told by whom it concerns; empty exactly where they are equal."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from nri_plugin.cli.state_live import Found
from nri_plugin.cpuset import NO_CPUS, CPUSet
from nri_plugin.host.checkpoint_rows import NodeFacts
from nri_plugin.state import Allocation, ContainerRecord, PodRecord, State, allocation_key, named, pod_of

Value = TypeVar("Value")

UNNAMED = {"id", "pod_uid", "name", "uid"}
"""Fields that say who it is; a container's id is told apart as a restart."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that says something else, in words."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one container, pod or the machine.

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


def changes(before: State, after: State) -> list[Change]:
    """What happened between two states, by the names of those concerned."""
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


def machine_changes(before: NodeFacts | None, after: NodeFacts | None) -> list[Change]:
    """What is different about the machine; nothing where one side does not know it."""
    if before is None or after is None or before == after:
        return []
    return [Change("changed", "machine", "machine", others=_field_changes(before, after))]


def live_changes(looked: Sequence[Found]) -> list[Change]:
    """From what was promised to what is found in cgroups."""
    found = []
    for one in looked:
        name, key = one.row.name, one.row.record.key
        if one.cpus is None:
            problem = FieldChange("cgroup", "expected", one.problem)
            found.append(Change("gone", name, key, one.wanted_cpus, NO_CPUS, (problem,)))
        elif one.has_other_cpus or one.has_other_mems:
            mems = FieldChange("mems", str(one.wanted_mems) or "-", str(one.mems or "") or "-")
            what = _what(one.wanted_cpus, one.cpus) or "changed"
            others = (mems,) if one.has_other_mems else ()
            found.append(Change(what, name, key, one.wanted_cpus, one.cpus, others))
    return sorted(found, key=lambda change: (change.name, change.key))


Side = tuple[Allocation | None, list[ContainerRecord]]


def _container_change(key: str, name: str, before: Side, after: Side) -> Change | None:
    if before == after:
        return None
    held_before, held_after = before[0] or Allocation(), after[0] or Allocation()
    others = (
        [] if before[0] is None or after[0] is None else [*_field_changes(held_before, held_after, {"cpus"})]
    )
    others += _presence(before, after) + _record_changes(before[1], after[1])
    what = _what(held_before.cpus, held_after.cpus)
    if not what:
        is_new, is_gone = before == (None, []), after == (None, [])
        what = "new" if is_new else "gone" if is_gone else "changed"
    if before[0] is None and held_after.mems:
        others.insert(0, FieldChange("mems", "-", str(held_after.mems)))
    if what in {"new", "gone"}:
        others = [one for one in others if one.name != "container"]
    return Change(what, name, key, held_before.cpus, held_after.cpus, tuple(others))


def _presence(before: Side, after: Side) -> list[FieldChange]:
    """A container that is there and one that is not; a promise that outlives its container or comes before it."""
    if bool(before[1]) != bool(after[1]):
        return [FieldChange("container", *(("there" if side[1] else "none") for side in (before, after)))]
    if (before[0] is None) != (after[0] is None) and not (before[0] or after[0] or Allocation()).cpus:
        return [FieldChange("promise", *("none" if side[0] is None else "there" for side in (before, after)))]
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
) -> list[Change]:
    """Pods that are other ones; those that come and go with containers are told with them."""
    found = []
    for uid in dict.fromkeys(uid for uid, _ in _others(before, after)):
        old, new = before.get(uid), after.get(uid)
        if old == new:
            continue
        known = new or old
        name = f"{known.namespace}/{known.name}" if known else uid
        if old is None or new is None:
            if uid not in told:
                found.append(Change("new" if old is None else "gone", name, uid))
        else:
            found.append(Change("changed", name, uid, others=_field_changes(old, new, UNNAMED)))
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
    return "-" if value is None else str(value) or "-"


def _what(before: CPUSet, after: CPUSet) -> str:
    """What happened to exclusive CPUs; empty for nothing."""
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
    """Keys of whom anything is not the very same object: of two states in a row these are few among many."""
    records = _others(before.containers, after.containers)
    keys = [
        *(allocation_key(record.pod_uid, record.name) for _, record in records),
        *(key for key, _ in _others(before.allocations, after.allocations)),
    ]
    return dict.fromkeys(keys)


def _others(before: Mapping[str, Value], after: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    """What one side has and the other has not, or has another object for."""
    for one, other in ((before, after), (after, before)):
        yield from ((key, value) for key, value in one.items() if other.get(key) is not value)


def _by_key(state: State, keys: Collection[str]) -> dict[str, list[ContainerRecord]]:
    by_key: dict[str, list[ContainerRecord]] = {}
    uids = {pod_of(key) for key in keys}
    records = (record for record in state.containers.values() if record.pod_uid in uids)
    for record in sorted(records, key=lambda record: record.id):
        by_key.setdefault(allocation_key(record.pod_uid, record.name), []).append(record)
    return by_key
