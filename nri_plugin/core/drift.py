"""What we notice ourselves: cgroups that say something else than they should, and a machine that is another one now.

Both come as events of our own and are decided like those of the runtime, but promises never change by them: only
cgroups are written. What should be is derived from the state, so our own writes are never taken for drift.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.pool import all_writes, floor_writes, own_write, pins
from nri_plugin.model.options import Effect, Node
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import CgroupRef, Phase, State


class Cause(StrEnum):
    """What a drift looks like; who did it the kernel does not tell."""

    STORED = "stored-value"
    """The cpuset the runtime keeps: it, or systemd in its stead, put it back."""
    ALL_CPUS = "all-cpus"
    """Every online CPU: a reset by a person, `systemctl set-property` or a runtime that knows no cpuset."""
    NEVER_SET = "never-set"
    """No CPU at all: the files were made anew."""
    FILES_GONE = "files-gone"
    """The cgroup lives and has no cpuset files: cpuset was taken out of a parent's subtree_control."""
    NARROWED_ABOVE = "narrowed-above"
    """Its own value is right, a cgroup above holds less; or one below it, of a runtime that nests them, differs."""
    OTHER_VALUE = "other-value"


@dataclass(frozen=True, slots=True)
class Target:
    """A cgroup whose cpuset is ours to say; `container_id` is empty for a QoS slice."""

    cgroup: CgroupRef
    container_id: str = ""

    def __hash__(self) -> int:
        """By what no two have in common; texts remember theirs, and thousands of these are looked up at once."""
        return hash(self.container_id or self.cgroup.parent)


@dataclass(frozen=True, slots=True)
class Observed:
    """One cgroup as it was found.

    Attributes:
        target: the cgroup, which exists.
        cpus: what was written to it; None where it has no cpuset files.
        effective: the CPUs its processes run on.
    """

    target: Target
    cpus: CPUSet | None
    effective: CPUSet | None


@dataclass(frozen=True, slots=True)
class Drift:
    """A cgroup that says, or whose processes run on, something else than `desired`."""

    observed: Observed
    desired: CPUSet
    cause: Cause


@dataclass(frozen=True, slots=True)
class CpusetsObserved:
    """Event: these cgroups were read."""

    observed: tuple[Observed, ...]


@dataclass(frozen=True, slots=True)
class MachineChanged:
    """Event: CPUs or memory nodes came or went; the node decided for is the new one."""


OwnEvent = CpusetsObserved | MachineChanged


def targets(node: Node, state: State) -> dict[Target, None]:
    """All cgroups to look after, in a stable order; none where cgroups are not ours to write."""
    if node.options.effect is not Effect.CGROUP or not pins(node, state):
        return {}
    running = [
        Target(record.cgroup, record.id)
        for record in state.containers.values()
        if record.phase is Phase.RUNNING and record.cgroup.path
    ]
    slices = [Target(write.target) for write in floor_writes(node, state, state.pods.values())]
    return dict.fromkeys(running + slices)


def drifts(node: Node, state: State, observed: Iterable[Observed]) -> tuple[Drift, ...]:
    """Those of `observed` that are not what they should be; what is not ours to say is passed over.

    A container without a value of its own that runs on what it should has it from its pod's cgroup: so it is with our
    own container, whose files we may not write.
    """
    observed = tuple(observed)
    has_slice = any(not one.target.container_id for one in observed)
    slices = floor_writes(node, state, state.pods.values()) if has_slice else ()
    floor = {write.target: write.cpus for write in slices}
    found = []
    for one in observed:
        if _is_resized(state, one):
            continue
        desired = _desired(node, state, one.target, floor)
        is_bounded_above = bool(one.target.container_id) and one.cpus is not None and not one.cpus
        if desired and (one.effective != desired or (one.cpus != desired and not is_bounded_above)):
            found.append(Drift(one, desired, _cause(node, state, one, desired)))
    return tuple(found)


def put_right(node: Node, state: State, event: CpusetsObserved) -> Decision:
    """Write what was found to be drifted; whoever runs on too much comes before whoever runs on too little."""
    found = sorted(drifts(node, state, event.observed), key=_is_too_narrow)
    writes = tuple(
        CpusetWrite(one.observed.target.cgroup, one.desired, one.observed.target.container_id, make_room=True)
        for one in found
    )
    return Decision(state, writes=writes, steps=tuple(f"drift-{one.cause}" for one in found))


def follow_machine(node: Node, state: State, event: MachineChanged) -> Decision:  # noqa: ARG001 - it holds nothing
    """The shared pool follows at once, and everybody has what is online of what was promised.

    Who lost some of its CPUs runs on the rest, who lost all in the shared pool until one returns; the
    promise stays whole, nobody else is given what was lost.
    """
    writes = tuple(replace(write, make_room=True) for write in all_writes(node, state))
    return Decision(state, writes=writes, steps=("machine-changed", f"lost={len(state.lost(node))}"))


def _desired(node: Node, state: State, target: Target, floor: dict[CgroupRef, CPUSet]) -> CPUSet:
    if not target.container_id:
        return floor.get(target.cgroup, CPUSet())
    record = state.containers.get(target.container_id)
    if record is None or record.phase is not Phase.RUNNING:
        return CPUSet()
    return next((write.cpus for write in own_write(node, state, record)), CPUSet())


def _is_resized(state: State, observed: Observed) -> bool:
    """Whether the runtime wrote what a resize asks for: it is no drift while it has not said so.

    A partition goes on with the CPUs it was made with until then.
    """
    record = state.containers.get(observed.target.container_id)
    held = state.allocation_of(record) if record else None
    resize = held.resize if held else None
    if resize is None or observed.cpus != resize.after.cpus:
        return False
    return observed.effective in (resize.after.cpus, resize.before.cpus)


def _cause(node: Node, state: State, observed: Observed, desired: CPUSet) -> Cause:
    record = state.containers.get(observed.target.container_id)
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
    """Whether its processes run on nothing but what they should, only on less of it."""
    return drift.observed.effective is not None and drift.observed.effective <= drift.desired
