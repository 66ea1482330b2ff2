"""What a changed shared pool means for cgroups: derived from two states, stored nowhere."""

from collections.abc import Iterable
from dataclasses import replace

from nri_plugin.cpuset import CPUSet
from nri_plugin.decision import CpusetWrite
from nri_plugin.nri.messages import ContainerUpdate, Resources
from nri_plugin.options import CPUManagerPolicy, Effect, Node
from nri_plugin.state import ContainerRecord, Phase, PodRecord, State
from nri_plugin.workload import qos_slices


def pool_writes(node: Node, before: State, after: State) -> tuple[CpusetWrite, ...]:
    """Cgroups to rewrite when the pool, or a running container's own set, differs between two states.

    A container that began to run between the two gets its own write where that is decided.

    Only running containers: one that was created but not started has no cgroup yet and is put
    right when it starts. Shrinking comes before growing, so that at no moment a CPU is in two sets.
    """
    if not _writes_cgroups(node) or before.allocations is after.allocations:
        return ()
    pool_before, pool_after = before.shared_pool(node), after.shared_pool(node)
    shrinking: list[CpusetWrite] = []
    growing: list[CpusetWrite] = []
    for record in after.containers.values():
        if record.phase is not Phase.RUNNING or not record.cgroup.path:
            continue
        new = _desired(after, pool_after, record)
        old = _desired(before, pool_before, record)
        if new != old:
            write = CpusetWrite(record.cgroup, new, record.id, compare=False)
            (shrinking if new <= old else growing).append(write)
    if pool_before != pool_after:
        growing.extend(floor_writes(node, after, after.pods.values()))
    return (*shrinking, *growing)


def all_writes(node: Node, state: State) -> tuple[CpusetWrite, ...]:
    """Every cgroup that should say something; the writer leaves alone those that already do."""
    if not _writes_cgroups(node):
        return ()
    pool = state.shared_pool(node)
    writes = [
        CpusetWrite(record.cgroup, _desired(state, pool, record), record.id)
        for record in state.containers.values()
        if record.phase is Phase.RUNNING and record.cgroup.path
    ]
    writes.sort(key=lambda write: write.cpus != pool)
    return (*writes, *floor_writes(node, state, state.pods.values()))


def own_write(node: Node, state: State, record: ContainerRecord) -> tuple[CpusetWrite, ...]:
    """The container's own cgroup, whatever it says now."""
    if not _writes_cgroups(node) or not record.cgroup.path:
        return ()
    return (CpusetWrite(record.cgroup, state.desired_cpus(node, record), record.id),)


def floor_writes(node: Node, state: State, pods: Iterable[PodRecord]) -> tuple[CpusetWrite, ...]:
    """The shared pool on the Burstable and BestEffort slices beside or above `pods`.

    It bounds all their containers at once, also those born while nobody watches.
    """
    if not node.options.pool_floor or not _writes_cgroups(node):
        return ()
    pool = state.shared_pool(node)
    slices = {ref for pod in pods for ref in qos_slices(pod)}
    return tuple(CpusetWrite(ref, pool) for ref in sorted(slices, key=lambda ref: ref.parent))


def pending_updates(node: Node, state: State, *, except_id: str) -> tuple[State, tuple[ContainerUpdate, ...]]:
    """`update` entries for containers that only the runtime can put right, or whose CPUs it does not know.

    The first are those whose cgroup cannot be reached. The second have exclusive CPUs that were written
    to their cgroup when they already ran: were both the checkpoint and that knowledge lost, nobody could
    tell any more which CPUs they were promised.

    Returns the state in which the runtime has stored them.
    """
    if node.options.cpu_manager_policy is CPUManagerPolicy.NONE:
        return state, ()
    pool = state.shared_pool(node)
    updates, stored = [], {}
    for record in state.containers.values():
        desired = _desired(state, pool, record)
        reachable = node.options.effect is Effect.CGROUP and record.cgroup.path
        if (reachable and desired is pool) or record.stored_cpus == desired:
            continue
        if record.id != except_id and record.phase in (Phase.CREATED, Phase.RUNNING):
            updates.append(ContainerUpdate(record.id, Resources(cpus=str(desired)), ignore_failure=True))
            stored[record.id] = replace(record, stored_cpus=desired)
    return (state.with_containers(stored) if stored else state), tuple(updates)


def _writes_cgroups(node: Node) -> bool:
    return node.options.effect is Effect.CGROUP and node.options.cpu_manager_policy is CPUManagerPolicy.STATIC


def _desired(state: State, pool: CPUSet, record: ContainerRecord) -> CPUSet:
    """As `State.desired_cpus`, for many containers of one state whose `pool` is known."""
    allocation = state.allocations.get(record.key)
    return allocation.cpus if allocation is not None and allocation.cpus else pool
