"""The cpuset writes and updates that follow from a state: the shared pool and the exclusive CPUs.

They are derived from the states before and after a decision and stored nowhere. Invariant: at no moment between two
writes is a CPU in two containers' effective cpusets that was not before. A pool without CPUs (they went offline) is not
written, because an empty cpuset would mean all CPUs.

**What may wait.** On cgroup v2 the kernel grants a cgroup no CPU that a cgroup above does not have. The pool on the
Burstable and BestEffort slices (`poolFloor`) bounds all containers below with one write, whatever their own files hold. So
a pool that shrinks is written in this order:

    before the answer   1 the slices, as far as the pool became narrower
                        2 files that no slice bounds: Guaranteed pods, pods outside the kubelet's slices, a slice with a
                          container that has CPUs of its own below; narrowing before widening
    after the answer    3 files of the containers below the slices, in portions
                        4 the slices, as far as the pool became wider

A pool that only grows begins with 2. Writes 3 and 4 are derived from the state of the moment at which they are made, so a
slice never holds a CPU that is exclusive then. An agent that ends in between leaves slices that are narrow enough. Without
a floor (cgroup v1, `poolFloor: false`) nothing waits.
"""

from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from nri_plugin.core.decision import CpusetWrite
from nri_plugin.core.requests import qos_slices, slice_pattern
from nri_plugin.model.options import CPUManagerPolicy, Effect, Node
from nri_plugin.model.records import CgroupRef, ContainerRecord, Phase, PodRecord, pod_of, slice_above
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import Grouping, State
from nri_plugin.wire.nri.messages import ContainerUpdate, Resources


def pool_writes(node: Node, before: State, after: State) -> tuple[CpusetWrite, ...]:
    """Cgroups to rewrite before the answer when the pool, or a running container's own set, differs between two states.

    Only running containers are written: a created one has no cgroup before it starts, and `own_write` writes it then.
    Narrowing comes before widening, so that at no moment a CPU is in two sets.
    """
    left = _left_floor(node, before, after)
    # The same allocations mean the same pool: most events end here.
    if before.allocations is after.allocations or not _writes_cgroups(node, before, after):
        return left
    pool_before, pool_after = before.shared_pool(node), after.shared_pool(node)
    # 1. The slices, which bound all containers below at once.
    slices = _bounding(node, before, after)
    narrowing: list[CpusetWrite] = []
    if pool_before - pool_after:
        kept = pool_before & pool_after
        narrowing += [CpusetWrite(ref, kept, compare=False, bounds=True) for ref in slices]
    # 2. Files that they do not bound.
    widening: list[CpusetWrite] = []
    for record in _affected(node, before, after, slices):
        new, old = after.desired_cpus(node, record), before.desired_cpus(node, record)
        # A pool whose CPUs are all offline is empty and not written: an empty cpuset would mean all CPUs.
        if new.mask != old.mask and new.mask:
            write = CpusetWrite(record.cgroup, new, record.id, compare=False)
            # A set that gains any CPU waits until the others have given theirs up.
            (widening if new.mask & ~old.mask else narrowing).append(write)
    if pool_before != pool_after and not slices:
        # All files are written above; slices that bound none of them come last.
        widening.extend(_floor(node, after, slices_of(after)))
    return (*narrowing, *widening, *left)


def _left_floor(node: Node, before: State, after: State) -> tuple[CpusetWrite, ...]:
    """The pool on slices whose last pod is gone: no later write would reach them, and none of their files waits."""
    if len(after.pods) >= len(before.pods) or not _writes_cgroups(node, before, after):
        return ()
    named = slices_of(after)
    return _floor(node, after, [one for one in slices_of(before) if one not in named])


def _affected(
    node: Node, before: State, after: State, slices: Collection[CgroupRef]
) -> Iterable[ContainerRecord]:
    """The running containers that no slice bounds and whose CPUs may differ between the two states.

    A container that has CPUs of its own, in a pod whose allocations are the same, is not even looked at.
    """
    if not after.exclusive <= node.topology.online:
        return _running_outside(after, slices)  # owners of CPUs that are all offline run in the shared pool
    changed = {pod_of(one.key) for one in after.changed_allocations(before)}
    return [one for one in after.unpinned_outside(slices, changed) if one.phase is Phase.RUNNING]


def files_wait(node: Node, before: State, after: State) -> bool:
    """Whether files, or wider slices, are left to be written after the answer (3 and 4)."""
    if before.allocations is after.allocations or before.shared_pool(node) == after.shared_pool(node):
        return False
    return bool(_bounding(node, before, after))


def waiting_containers(node: Node, state: State) -> Iterator[str]:
    """The ids of the containers whose files may wait, because a slice bounds them; found one by one."""
    return state.ids_below(_closed(node, state))


def late_write(node: Node, state: State, container_id: str, *, compare: bool) -> tuple[CpusetWrite, ...]:
    """The write of a file that waited, by the state of this moment; none where the container does not run any more."""
    record = state.containers.get(container_id)
    if record is None or record.phase is not Phase.RUNNING:
        return ()
    cpus = state.desired_cpus(node, record)
    return (CpusetWrite(record.cgroup, cpus, record.id, compare=compare),) if cpus else ()


def bounded_writes(state: State, write: CpusetWrite) -> list[CpusetWrite]:
    """In place of the write of a slice that failed: the same CPUs for each running container below it."""
    if write.target not in state.slices_above:
        return []  # also where no pod of the class has ever run, and the slice is not there
    records = (state.containers[one] for one in state.ids_below([write.target]))
    return [
        CpusetWrite(record.cgroup, write.cpus, record.id)
        for record in records
        if record.phase is Phase.RUNNING
    ]


def all_writes(
    node: Node, state: State, *, before: State | None = None, waits: bool = False
) -> tuple[CpusetWrite, ...]:
    """Every cgroup that the agent sets; the writer skips those that already have the value.

    With `waits` only those that an answer has to wait for. The slices come first, as far as they hold too much: another
    agent may have ended before it wrote the files below. `before` is the state whose pool the cgroups may hold.
    """
    former = state if before is None else before
    if not _writes_cgroups(node, former, state):
        return ()
    pool = state.shared_pool(node)
    own = _exclusive_by_key(node, state)
    slices = _floor(node, state, slices_of(state))
    # Nothing waits once the agent pins no more: nobody would write it.
    waits = waits and pins(node, state)
    bounds = [replace(write, narrows=True, bounds=waits) for write in slices]
    writes = [
        CpusetWrite(record.cgroup, own.get(record.key, pool), record.id)
        for record in _running_outside(state, [write.target for write in slices] if waits else ())
        if pool or record.key in own
    ]
    # The shared pool first: it leaves the exclusive CPUs before their containers enter them.
    writes.sort(key=lambda write: write.cpus != pool)
    return (*bounds, *writes, *(() if waits else slices), *_left_floor(node, former, state))


def own_write(node: Node, state: State, record: ContainerRecord) -> tuple[CpusetWrite, ...]:
    """The container's own cgroup, whatever its value is.

    The cgroups above are widened too where they hold less. Under a parent that has no CPU in common with it, a container
    would run on all CPUs of the parent. Only a container in the shared pool below a slice is left as narrow as that
    slice: a slice that is too narrow waits for its turn, and drift repair widens one that somebody else narrowed.
    """
    cpus = state.desired_cpus(node, record)
    if not cpus or not record.cgroup.path or not _writes_cgroups(node, state):
        return ()
    is_bounded = node.options.pool_floor and slice_above(record.cgroup.path) is not None
    make_room = not is_bounded or bool(state.own_cpus(node, record.key))
    return (CpusetWrite(record.cgroup, cpus, record.id, make_room=make_room),)


def floor_writes(node: Node, state: State, pod: PodRecord | None = None) -> tuple[CpusetWrite, ...]:
    """The shared pool on the Burstable and BestEffort slices of all pods, or on those beside or above `pod`.

    It bounds all their containers at once, also those that are created while the agent is away.
    """
    if not _writes_cgroups(node, state):
        return ()
    return _floor(node, state, qos_slices(slice_pattern(pod.cgroup_parent)) if pod else slices_of(state))


def slices_of(state: State) -> list[CgroupRef]:
    """The Burstable and BestEffort slices of all pods."""
    return [ref for pattern in sorted(state.grouped(_BY_PATTERN)) for ref in qos_slices(pattern)]


_BY_PATTERN = Grouping("pods", lambda _uid, pod: slice_pattern(pod.cgroup_parent))


def _floor(node: Node, state: State, slices: Iterable[CgroupRef]) -> tuple[CpusetWrite, ...]:
    """The pool on all slices but those above a container with CPUs of its own, which would not reach them any more."""
    pool = state.shared_pool(node)
    if not node.options.pool_floor or not pool:
        return ()
    owners = map(state.pods.get, state.owners)
    open_slices = {slice_above(pod.cgroup_parent) for pod in owners if pod is not None}
    return tuple(CpusetWrite(ref, pool) for ref in slices if ref not in open_slices)


def _closed(node: Node, state: State) -> list[CgroupRef]:
    """The slices that hold the pool and nothing else."""
    return state.remember("closed", node, lambda: [write.target for write in floor_writes(node, state)])


def _bounding(node: Node, before: State, after: State) -> list[CgroupRef]:
    """The slices that bound the files below while the pool changes; none where all files have to be written at once.

    Under policy none, nothing is written once no exclusive CPU is left, so nothing may wait until then. A pool that
    has no CPU in common with the former one cannot be narrowed first.
    """
    if before.shared_pool(node).isdisjoint(after.shared_pool(node)):
        return []
    return _closed(node, after)


def _running_outside(state: State, slices: Collection[CgroupRef]) -> Iterable[ContainerRecord]:
    """The running containers with a cgroup that none of these slices bounds."""
    return (record for record in state.outside(slices) if record.phase is Phase.RUNNING)


def pending_updates(
    node: Node, state: State, *, except_id: str = "", late: bool = False
) -> tuple[State, tuple[ContainerUpdate, ...]]:
    """`update` entries for containers that only the runtime can update, because their cgroup cannot be reached.

    Args:
        node: the node.
        state: the allocations.
        except_id: the container the reply is about.
        late: also for exclusive CPUs that were written to the cgroup of a container that already ran. Otherwise nothing
            would tell its allocation if both the checkpoint and the runtime's record were lost.

    Returns:
        The state in which the runtime has stored them, and the entries.
    """
    if not pins(node, state):
        return state, ()
    only_runtime = node.options.effect is Effect.UPDATE
    if not (only_runtime or late or state.has_unreachable):
        return state, ()
    # A cgroup that the agent writes itself needs no update: an entry costs 6 ms under the runtime's lock.
    own = _exclusive_by_key(node, state) if late else {}
    owners = {pod_of(key) for key in own}
    found = [
        record
        for record in state.containers.values()
        if (only_runtime or not record.cgroup.path or record.pod_uid in owners)
        and record.id != except_id
        and record.phase in (Phase.CREATED, Phase.RUNNING)
    ]
    if not found:
        return state, ()
    pool, own = state.shared_pool(node), own or _exclusive_by_key(node, state)
    updates, stored = [], {}
    # The runtime re-applies the cpuset that it has stored at every update, so an entry is due until both agree.
    for record in found:
        if late and record.cgroup.path and not only_runtime and record.key not in own:
            continue
        desired = own.get(record.key, pool)
        if desired and record.stored_cpus != desired:
            updates.append(ContainerUpdate(record.id, Resources(cpus=str(desired)), ignore_failure=True))
            stored[record.id] = replace(record, stored_cpus=desired)
    return (state.with_containers(stored) if stored else state), tuple(updates)


def pins(node: Node, *states: State) -> bool:
    """Whether the agent sets cpusets: under the static policy, and while exclusive CPUs of an earlier one are held.

    Under policy none a container without a cpuset would run on all CPUs, those exclusive ones included.
    """
    is_static = node.options.cpu_manager_policy is CPUManagerPolicy.STATIC
    return is_static or any(state.exclusive for state in states)


def _writes_cgroups(node: Node, *states: State) -> bool:
    return node.options.effect is Effect.CGROUP and pins(node, *states)


def _exclusive_by_key(node: Node, state: State) -> dict[str, CPUSet]:
    """Exclusive CPUs that are online, by allocation key. All other containers run in the shared pool."""
    own = {key: state.own_cpus(node, key) for key in state.holders}
    return {key: cpus for key, cpus in own.items() if cpus}
