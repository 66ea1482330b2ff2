"""What a changed shared pool means for cgroups: derived from two states, stored nowhere.

A pool that lost its last CPU (they went offline) is written nowhere: an empty cpuset would mean all CPUs.
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

    A container that began to run between the two gets its own write where that is decided.

    Only running containers: one that was created but not started has no cgroup yet and is put
    right when it starts. Shrinking comes before growing, so that at no moment a CPU is in two sets.
    """
    if before.allocations is after.allocations or not _writes_cgroups(node, before, after):
        return ()
    pool_before, pool_after = before.shared_pool(node), after.shared_pool(node)
    own_before, own_after = _exclusive_by_key(node, before), _exclusive_by_key(node, after)
    shrinking: list[CpusetWrite] = []
    growing: list[CpusetWrite] = []
    for record in after.containers.values():
        if record.phase is not Phase.RUNNING or not record.cgroup.path:
            continue
        key = record.key
        new, old = own_after.get(key, pool_after), own_before.get(key, pool_before)
        if new.mask != old.mask and new.mask:
            write = CpusetWrite(record.cgroup, new, record.id, compare=False)
            (growing if new.mask & ~old.mask else shrinking).append(write)
    if pool_before != pool_after:
        growing.extend(_floor(node, pool_after, after.pods.values()))
    return (*shrinking, *growing)


def all_writes(node: Node, state: State) -> tuple[CpusetWrite, ...]:
    """Every cgroup that should say something; the writer leaves alone those that already do."""
    if not _writes_cgroups(node, state):
        return ()
    pool = state.shared_pool(node)
    own = _exclusive_by_key(node, state)
    writes = [
        CpusetWrite(record.cgroup, own.get(record.key, pool), record.id)
        for record in state.containers.values()
        if record.phase is Phase.RUNNING and record.cgroup.path and (pool or record.key in own)
    ]
    writes.sort(key=lambda write: write.cpus != pool)
    return (*writes, *floor_writes(node, state, state.pods.values()))


def own_write(node: Node, state: State, record: ContainerRecord) -> tuple[CpusetWrite, ...]:
    """The container's own cgroup, whatever it says now.

    Also whatever those above say: one that was narrowed while nothing below it minded would let a container that
    has no CPU in common with it run on all of it.
    """
    cpus = state.desired_cpus(node, record)
    if not cpus or not record.cgroup.path or not _writes_cgroups(node, state):
        return ()
    return (CpusetWrite(record.cgroup, cpus, record.id, make_room=True),)


def floor_writes(node: Node, state: State, pods: Iterable[PodRecord]) -> tuple[CpusetWrite, ...]:
    """The shared pool on the Burstable and BestEffort slices beside or above `pods`.

    It bounds all their containers at once, also those born while nobody watches.
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
    """`update` entries for containers that only the runtime can put right: their cgroup cannot be reached.

    Args:
        node: the node.
        state: what is promised.
        except_id: the container the reply is about.
        late: also for exclusive CPUs that were written to the cgroup of a container that already ran.
            Were both the checkpoint and the runtime's record lost, nobody could tell any more which
            CPUs it was promised.

    Returns:
        The state in which the runtime has stored them, and the entries.
    """
    if not pins(node, state):
        return state, ()
    pool, own = state.shared_pool(node), _exclusive_by_key(node, state)
    everywhere = node.options.effect is Effect.UPDATE
    updates, stored = [], {}
    for record in state.containers.values():
        if record.cgroup.path and not everywhere and not (late and record.key in own):
            continue
        desired = own.get(record.key, pool)
        unsettled = (
            desired and record.stored_cpus != desired and record.phase in (Phase.CREATED, Phase.RUNNING)
        )
        if unsettled and record.id != except_id:
            updates.append(ContainerUpdate(record.id, Resources(cpus=str(desired)), ignore_failure=True))
            stored[record.id] = replace(record, stored_cpus=desired)
    return (state.with_containers(stored) if stored else state), tuple(updates)


def pins(node: Node, *states: State) -> bool:
    """Whether cpusets are ours to say: by policy, and as long as anybody holds CPUs given under an earlier one.

    Under policy none a container without a cpuset would run on all CPUs, theirs included.
    """
    is_static = node.options.cpu_manager_policy is CPUManagerPolicy.STATIC
    return is_static or any(state.exclusive for state in states)


def _writes_cgroups(node: Node, *states: State) -> bool:
    return node.options.effect is Effect.CGROUP and pins(node, *states)


def _exclusive_by_key(node: Node, state: State) -> dict[str, CPUSet]:
    """Exclusive CPUs that are online, by allocation key; whoever is not in it runs in the shared pool."""
    online = node.topology.online
    own = {
        key: allocation.in_force & online for key, allocation in state.allocations.items() if allocation.cpus
    }
    return {key: cpus for key, cpus in own.items() if cpus}
