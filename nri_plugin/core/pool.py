"""The cpuset writes and updates that follow from a state: the shared pool and the exclusive CPUs.

They are derived from the states before and after a decision and stored nowhere. Invariant: at no moment between two
writes is a CPU in two containers' cpusets that was not before. A pool without CPUs (they went offline) is not written,
because an empty cpuset would mean all CPUs.
"""

from collections.abc import Iterable
from dataclasses import replace

from nri_plugin.core.decision import CpusetWrite
from nri_plugin.core.requests import qos_slices, slice_pattern
from nri_plugin.model.options import CPUManagerPolicy, Effect, Node
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import ContainerRecord, Phase, PodRecord, State
from nri_plugin.wire.nri.messages import ContainerUpdate, Resources


def pool_writes(node: Node, before: State, after: State) -> tuple[CpusetWrite, ...]:
    """Cgroups to rewrite when the pool, or a running container's own set, differs between two states.

    Only running containers are written: a created one has no cgroup before it starts, and `own_write` writes it then.
    Narrowing comes before widening, so that at no moment a CPU is in two sets.
    """
    # The same allocations mean the same pool: most events end here.
    if before.allocations is after.allocations or not _writes_cgroups(node, before, after):
        return ()
    pool_before, pool_after = before.shared_pool(node), after.shared_pool(node)
    own_before, own_after = _exclusive_by_key(node, before), _exclusive_by_key(node, after)
    narrowing: list[CpusetWrite] = []
    widening: list[CpusetWrite] = []
    for record in after.containers.values():
        if record.phase is not Phase.RUNNING or not record.cgroup.path:
            continue
        key = record.key
        # A pool whose CPUs are all offline is empty and not written: an empty cpuset would mean all CPUs.
        new, old = own_after.get(key, pool_after), own_before.get(key, pool_before)
        if new.mask != old.mask and new.mask:
            write = CpusetWrite(record.cgroup, new, record.id, compare=False)
            # A set that gains any CPU waits until the others have given theirs up.
            (widening if new.mask & ~old.mask else narrowing).append(write)
    if pool_before != pool_after:
        # The slices bound containers that are written above: they come last.
        widening.extend(_floor(node, pool_after, after.pods.values()))
    return (*narrowing, *widening)


def all_writes(node: Node, state: State) -> tuple[CpusetWrite, ...]:
    """Every cgroup that the agent sets; the writer skips those that already have the value."""
    if not _writes_cgroups(node, state):
        return ()
    pool = state.shared_pool(node)
    own = _exclusive_by_key(node, state)
    writes = [
        CpusetWrite(record.cgroup, own.get(record.key, pool), record.id)
        for record in state.containers.values()
        if record.phase is Phase.RUNNING and record.cgroup.path and (pool or record.key in own)
    ]
    # The shared pool first: it leaves the exclusive CPUs before their containers enter them.
    writes.sort(key=lambda write: write.cpus != pool)
    return (*writes, *floor_writes(node, state, state.pods.values()))


def own_write(node: Node, state: State, record: ContainerRecord) -> tuple[CpusetWrite, ...]:
    """The container's own cgroup, whatever its value is.

    The cgroups above are widened too where they hold less. Under a parent that has no CPU in common with it, a container
    would run on all CPUs of the parent.
    """
    cpus = state.desired_cpus(node, record)
    if not cpus or not record.cgroup.path or not _writes_cgroups(node, state):
        return ()
    return (CpusetWrite(record.cgroup, cpus, record.id, make_room=True),)


def floor_writes(node: Node, state: State, pods: Iterable[PodRecord]) -> tuple[CpusetWrite, ...]:
    """The shared pool on the Burstable and BestEffort slices beside or above `pods`.

    It bounds all their containers at once, also those that are created while the agent is away.
    """
    return _floor(node, state.shared_pool(node), pods) if _writes_cgroups(node, state) else ()


def _floor(node: Node, pool: CPUSet, pods: Iterable[PodRecord]) -> tuple[CpusetWrite, ...]:
    if not node.options.pool_floor or not pool:
        return ()
    slices = {slice_pattern(pod.cgroup_parent) for pod in pods}
    return tuple(CpusetWrite(ref, pool) for pattern in sorted(slices) for ref in qos_slices(pattern))


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
    found = [
        record
        for record in state.containers.values()
        if (only_runtime or late or not record.cgroup.path)
        and record.id != except_id
        and record.phase in (Phase.CREATED, Phase.RUNNING)
    ]
    if not found:
        return state, ()
    pool, own = state.shared_pool(node), _exclusive_by_key(node, state)
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
    own = {key: state.own_cpus(node, key) for key, allocation in state.allocations.items() if allocation.cpus}
    return {key: cpus for key, cpus in own.items() if cpus}
