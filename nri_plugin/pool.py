"""What a changed shared pool means for cgroups: derived from two states, stored nowhere."""

from collections.abc import Iterable
from dataclasses import replace

from nri_plugin.cpuset import CPUSet
from nri_plugin.decision import CpusetWrite
from nri_plugin.nri.messages import ContainerUpdate, Resources
from nri_plugin.options import CPUManagerPolicy, Effect, Node
from nri_plugin.state import ContainerRecord, Phase, PodRecord, State
from nri_plugin.workload import qos_slice


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
        if record.phase is not Phase.RUNNING:
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
    running = [record for record in state.containers.values() if record.phase is Phase.RUNNING]
    writes = [CpusetWrite(record.cgroup, _desired(state, pool, record), record.id) for record in running]
    writes.sort(key=lambda write: write.cpus != pool)
    return (*writes, *floor_writes(node, state, state.pods.values()))


def own_write(node: Node, state: State, record: ContainerRecord) -> tuple[CpusetWrite, ...]:
    """The container's own cgroup, whatever it says now."""
    if not _writes_cgroups(node):
        return ()
    return (CpusetWrite(record.cgroup, state.desired_cpus(node, record), record.id),)


def floor_writes(node: Node, state: State, pods: Iterable[PodRecord]) -> tuple[CpusetWrite, ...]:
    """The shared pool on the Burstable and BestEffort slices of `pods`.

    It bounds all their containers at once, also those born while nobody watches.
    """
    if not node.options.pool_floor or not _writes_cgroups(node):
        return ()
    pool = state.shared_pool(node)
    slices = {ref for pod in pods if (ref := qos_slice(pod)) is not None}
    return tuple(CpusetWrite(ref, pool) for ref in sorted(slices, key=lambda ref: ref.parent))


def pending_updates(node: Node, state: State, *, except_id: str) -> tuple[State, tuple[ContainerUpdate, ...]]:
    """`update` entries for containers whose stored cpuset is not ours, where cgroups cannot be written.

    Returns the state in which the runtime has stored them.
    """
    if node.options.effect is not Effect.UPDATE or node.options.cpu_manager_policy is CPUManagerPolicy.NONE:
        return state, ()
    pool = state.shared_pool(node)
    updates, stored = [], {}
    for record in state.containers.values():
        desired = _desired(state, pool, record)
        if record.id == except_id or record.phase not in (Phase.CREATED, Phase.RUNNING):
            continue
        if record.stored_cpus != desired:
            updates.append(ContainerUpdate(record.id, Resources(cpus=str(desired)), ignore_failure=True))
            stored[record.id] = replace(record, stored_cpus=desired)
    return replace(state, containers={**state.containers, **stored}), tuple(updates)


def _writes_cgroups(node: Node) -> bool:
    return node.options.effect is Effect.CGROUP and node.options.cpu_manager_policy is CPUManagerPolicy.STATIC


def _desired(state: State, pool: CPUSet, record: ContainerRecord) -> CPUSet:
    """As `State.desired_cpus`, for many containers of one state whose `pool` is known."""
    allocation = state.allocations.get(record.key)
    return allocation.cpus if allocation is not None and allocation.cpus else pool
