"""Drift: cgroups whose cpuset is not the desired one, and a machine whose CPUs or memory nodes changed.

Both are reported by events of our own and decided like those of the runtime. Allocations never change by them: only
cgroups are written. The desired cpuset is derived from the state, so our own writes are never taken for drift.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.pool import all_writes, floor_writes, own_write, pins
from nri_plugin.model.options import Effect, Node
from nri_plugin.model.records import CgroupRef, ContainerRecord, Phase, is_whole_pod, pod_of, slice_above
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State


class Cause(StrEnum):
    """The kind of a drift, by the value that was found. The kernel does not tell which process caused it."""

    STORED = "stored-value"
    """The cpuset that the runtime has stored: the runtime, or systemd for it, wrote it back."""
    ALL_CPUS = "all-cpus"
    """All online CPUs: a reset by a person, `systemctl set-property` or a runtime that stores no cpuset."""
    NEVER_SET = "never-set"
    """No CPU: the files were created again."""
    FILES_GONE = "files-gone"
    """The cgroup exists without cpuset files: cpuset was removed from a parent's subtree_control."""
    NARROWED_ABOVE = "narrowed-above"
    """Its own value is the desired one. A cgroup above holds less, or one below, of a runtime that nests them, differs."""
    OTHER_VALUE = "other-value"
    NEVER_TOLD = "never-told"
    """The runtime did not report the container, which ran on exclusive CPUs of others."""


@dataclass(frozen=True, slots=True)
class Target:
    """A cgroup whose cpuset the agent sets; `container_id` is empty for a QoS slice."""

    cgroup: CgroupRef
    container_id: str = ""

    def __hash__(self) -> int:
        # Unique by one field. A str caches its hash, and thousands of these are looked up at once.
        return hash(self.container_id or self.cgroup.parent)


@dataclass(frozen=True, slots=True)
class Observed:
    """One cgroup as it was found.

    Attributes:
        target: the cgroup, which exists.
        cpus: the value of its `cpuset.cpus`; None where it has no cpuset files.
        effective: the CPUs its processes run on.
    """

    target: Target
    cpus: CPUSet | None
    effective: CPUSet | None


@dataclass(frozen=True, slots=True)
class Drift:
    """A cgroup whose cpuset, or whose effective CPUs, are not `desired`."""

    observed: Observed
    desired: CPUSet
    cause: Cause


@dataclass(frozen=True, slots=True)
class CpusetsObserved:
    """Event: these cgroups were read."""

    observed: tuple[Observed, ...]


@dataclass(frozen=True, slots=True)
class MachineChanged:
    """Event: CPUs or memory nodes came or went. `decide` gets the new node."""


OwnEvent = CpusetsObserved | MachineChanged


def targets(node: Node, state: State) -> dict[Target, None]:
    """All cgroups to watch, in a stable order; none where the agent does not write cgroups."""
    if node.options.effect is not Effect.CGROUP or not pins(node, state):
        return {}
    targets = map(_target, state.containers.values())
    return dict.fromkeys([*(one for one in targets if one is not None), *_slices(node, state)])


def new_targets(node: Node, before: State, after: State) -> tuple[list[Target], list[Target]]:
    """The cgroups that `targets` has no longer, and those that it has now and had not `before`, on the same node."""
    if node.options.effect is not Effect.CGROUP or not (pins(node, before) and pins(node, after)):
        old, new = targets(node, before), targets(node, after)
        return [one for one in old if one not in new], [one for one in new if one not in old]
    gone, come = [], []
    for change in after.changes_from(before).containers:
        former, latter = _target(change.before), _target(change.after)
        if former != latter:
            gone += [former] if former else []
            come += [latter] if latter else []
    slices_before, slices = _slices(node, before), _slices(node, after)
    gone += [one for one in slices_before if one not in slices]
    come += [one for one in slices if one not in slices_before]
    return gone, come


def _target(record: ContainerRecord | None) -> Target | None:
    is_running = record is not None and record.phase is Phase.RUNNING and record.cgroup.path
    return Target(record.cgroup, record.id) if record is not None and is_running else None


def _slices(node: Node, state: State) -> list[Target]:
    return [Target(write.target) for write in floor_writes(node, state)]


def drifts(
    node: Node, state: State, observed: Iterable[Observed], *, is_settled: bool = True
) -> tuple[Drift, ...]:
    """Those of `observed` that are not as desired; cgroups that the agent does not set are ignored.

    A container that the state does not know has to keep off exclusive CPUs of others, and nothing else is desired of it.

    A container without a value of its own that runs on the desired CPUs is bounded by its pod's cgroup. That is so with
    the agent's own container, whose files it may not write.

    While files wait until the answer is out (not `is_settled`), a slice only has to have no other CPUs than the desired
    ones, and what the files below it hold does not matter.
    """
    observed = tuple(observed)
    has_slice = any(not one.target.container_id for one in observed)
    # The slices' cpusets are the same for every container, so they are derived once, and only when one was read.
    slices = floor_writes(node, state) if has_slice or not is_settled else ()
    floor = {write.target: write.cpus for write in slices}
    found = []
    for one in observed:
        if _is_resized(state, one):
            continue  # the runtime wrote it first and confirms it later
        desired = _desired(node, state, one, floor)
        if not is_settled and _may_wait(one, desired, floor):
            continue
        is_bounded_above = bool(one.target.container_id) and one.cpus is not None and not one.cpus
        if desired and (one.effective != desired or (one.cpus != desired and not is_bounded_above)):
            found.append(Drift(one, desired, _cause(node, state, one, desired)))
    return tuple(found)


def repair_drift(node: Node, state: State, event: CpusetsObserved) -> Decision:
    """Repair drift."""
    # Cgroups that run on CPUs of others come before those that only lack some of their own.
    found = sorted(drifts(node, state, event.observed), key=_is_too_narrow)
    writes = tuple(
        CpusetWrite(one.observed.target.cgroup, one.desired, one.observed.target.container_id, make_room=True)
        for one in found
    )
    return Decision(state, writes=writes, steps=tuple(f"drift-{one.cause}" for one in found))


def follow_machine(node: Node, state: State, event: MachineChanged) -> Decision:  # noqa: ARG001 - the event has no fields
    """Write the new shared pool, and for every exclusive container the CPUs of its allocation that are online.

    A container that lost some of its CPUs runs on the rest. One that lost all of them runs in the shared pool until one
    returns. Allocations stay as they are, and no other container gets the lost CPUs.
    """
    writes = tuple(replace(write, make_room=True) for write in all_writes(node, state))
    return Decision(state, writes=writes, steps=("machine-changed", f"lost={len(state.lost(node))}"))


def _desired(node: Node, state: State, found: Observed, floor: dict[CgroupRef, CPUSet]) -> CPUSet:
    target = found.target
    if not target.container_id:
        return floor.get(target.cgroup, CPUSet())
    record = state.containers.get(target.container_id)
    if record is None:
        return _off_exclusive(node, state, found)
    if record.phase is not Phase.RUNNING:
        return CPUSet()
    return next((write.cpus for write in own_write(node, state, record)), CPUSet())


def _off_exclusive(node: Node, state: State, found: Observed) -> CPUSet:
    """The CPUs of an unknown container without the exclusive ones of others; none where it has none of these."""
    runs_on = found.effective or node.topology.online
    pod = found.target.cgroup.parent.removesuffix(".slice").replace("_", "-")
    uid = next((uid for uid in map(pod_of, state.allocations) if pod.endswith(f"pod{uid}")), "")
    if not pins(node, state) or not disturbed(state, uid, runs_on):
        return CPUSet()
    pool = state.shared_pool(node)
    return runs_on & pool or pool


def disturbed(state: State, pod_uid: str, cpus: CPUSet) -> list[str]:
    """Keys of the allocations on whose CPUs a container of that pod should not run.

    One that runs on just the CPUs of an allocation of its own pod may be the next instance of the container that holds
    them.
    """
    held = {key: one.cpus for key, one in state.allocations.items() if one.cpus & cpus}
    if any(pod_of(key) == pod_uid and own == cpus for key, own in held.items()):
        held = {key: own for key, own in held.items() if pod_of(key) != pod_uid}
    # A pod that owns CPUs as a whole is named only for those that none of its containers has.
    parts = {pod_of(key) for key in held if not is_whole_pod(key)}
    return sorted(key for key in held if not (is_whole_pod(key) and pod_of(key) in parts))


def _may_wait(observed: Observed, desired: CPUSet, floor: Mapping[CgroupRef, CPUSet]) -> bool:
    """Whether it is a slice that may be wider later, or below a slice, whose own CPUs are looked at."""
    if observed.target.container_id:
        return slice_above(observed.target.cgroup.path) in floor
    effective = observed.effective
    return (
        observed.target.cgroup in floor and effective is not None and bool(effective) and effective <= desired
    )


def may_be_read(node: Node, state: State, targets: Iterable[Target]) -> list[Target]:
    """Those of `targets` that tell something while files wait: no file below a slice, which bounds it."""
    floor = {write.target for write in floor_writes(node, state)}
    return [one for one in targets if not one.container_id or slice_above(one.cgroup.path) not in floor]


def _is_resized(state: State, observed: Observed) -> bool:
    """Whether the runtime wrote the cpuset of a resize that it has not confirmed; that is no drift.

    A partition keeps the CPUs it was made with until then.
    """
    record = state.containers.get(observed.target.container_id)
    held = state.allocation_of(record) if record else None
    resize = held.resize if held else None
    if resize is None or observed.cpus != resize.after.cpus:
        return False
    return observed.effective in (resize.after.cpus, resize.before.cpus)


def _cause(node: Node, state: State, observed: Observed, desired: CPUSet) -> Cause:
    record = state.containers.get(observed.target.container_id)
    if record is None and observed.target.container_id:
        return Cause.NEVER_TOLD
    if observed.cpus is None:
        return Cause.FILES_GONE
    if not observed.cpus:
        return Cause.NEVER_SET
    if observed.cpus == desired:
        return Cause.NARROWED_ABOVE
    if record is not None and observed.cpus == record.stored_cpus:
        return Cause.STORED
    return Cause.ALL_CPUS if observed.cpus == node.topology.online else Cause.OTHER_VALUE


def _is_too_narrow(drift: Drift) -> bool:
    """Whether its processes run on desired CPUs only, and on fewer than all of them."""
    return drift.observed.effective is not None and drift.observed.effective <= drift.desired
