"""An independent check of every decision before it is carried out, written apart from the code that decides.

Only violations that a decision adds count. An old one, such as an exclusive CPU that a new configuration reserves, must
not block containers that have nothing to do with it.
"""

from collections.abc import Iterable, Iterator

from nri_plugin.core.decision import CpusetWrite, Decision, InformedCreate
from nri_plugin.core.drift import OwnEvent
from nri_plugin.core.kernel_settings import Partition
from nri_plugin.core.requests import pod_uid
from nri_plugin.model import violations
from nri_plugin.model.errors import InvariantError
from nri_plugin.model.options import Node
from nri_plugin.model.records import Allocation, CgroupRef, Phase, allocation_key, is_whole_pod, pod_of
from nri_plugin.model.refusals import AdmissionRefusal, RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import (
    CreateContainer,
    CreateContainerResponse,
    NRIEvent,
    StopContainerResponse,
    SynchronizeResponse,
    UpdateContainerResponse,
)

_WITH_UPDATES = (CreateContainerResponse, UpdateContainerResponse, StopContainerResponse, SynchronizeResponse)


def new_violations(node: Node, before: State, event: NRIEvent | OwnEvent, decision: Decision) -> list[str]:
    """The invariants that `decision` would break and that held `before`, a sentence each."""
    problems = [str(one) for one in violations.new_violations(node, before, decision.state)]
    problems += _of_response(node, before, event, decision)
    problems += _of_updates(node, before, decision)
    problems += _of_writes(node, before, decision)
    return problems


def checked(node: Node, before: State, event: NRIEvent | InformedCreate, decision: Decision) -> Decision:
    """The decision, or the refusal that the agent answers with where it would break an invariant."""
    message = event.event if isinstance(event, InformedCreate) else event
    problems = new_violations(node, before, message, decision) if decision.refusal is None else []
    if not problems:
        return decision
    refusal = AdmissionRefusal(RefusalKind.OTHER, str(InvariantError(problems, decision.steps)))
    return Decision(before, refusal=refusal, steps=decision.steps)


def write_violations(node: Node, state: State, *writes: CpusetWrite) -> list[str]:
    """The faults of writes that follow from `state` and from no decision: a sandbox, a write taken back, a late one."""
    return _of_writes(node, state, Decision(state, writes=writes))


def opening_violations(online: CPUSet, state: State, write: CpusetWrite) -> list[str]:
    """The faults of a write that gives every CPU to a cgroup: to a slice whose floor is lifted, or at a release.

    `state` has the allocations that stay. While something in it is exclusive, only slices may be opened: they bound
    nothing, because each container below has its own cpuset.
    """
    name, found = f"cgroup {write.target.path or write.target.parent}", []
    if write.cpus != online or not online:
        found.append(f"{name} would be given {write.cpus or 'no CPU'} and not all online CPUs {online}")
    if state.exclusive and (write.container_id or write.target.path):
        found.append(f"{name} would run on CPUs that are exclusive to others: {write.cpus & state.exclusive}")
    return found


def partition_violations(node: Node, state: State, wanted: Iterable[Partition]) -> dict[CgroupRef, list[str]]:
    """The faults of these partitions, by cgroup; sound ones are left out.

    The kernel keeps all other tasks off the CPUs of a partition. So they must be online, exclusive to its container
    and in no other partition.
    """
    found: dict[CgroupRef, list[str]] = {}
    some = list(wanted)
    taken, shared = CPUSet(), _of_several(state) if some else CPUSet()
    for one in some:
        record = state.containers.get(one.container_id)
        is_its = record is not None and record.cgroup == one.target
        own = _allocated(state, record.key) - shared if record is not None and is_its else CPUSet()
        checks = (
            (not one.cpus, "a partition without CPUs"),
            (
                not one.cpus <= own,
                f"a partition with CPUs that are not exclusive to its container: {one.cpus - own}",
            ),
            (
                not one.cpus <= node.topology.online,
                f"a partition with CPUs that are not online: {one.cpus - node.topology.online}",
            ),
            (bool(one.cpus & taken), f"a partition with CPUs of another one: {one.cpus & taken}"),
        )
        problems = [sentence for is_wrong, sentence in checks if is_wrong]
        if problems:
            found[one.target] = problems
        else:
            taken |= one.cpus
    return found


def _of_several(state: State) -> CPUSet:
    """CPUs that the allocations of two containers have, both of which may run."""
    once = twice = CPUSet()
    for uid in {pod_of(key) for key in state.holders}:
        for key in {one.key for one in state.containers_of(uid) if one.phase is not Phase.STOPPED}:
            cpus = _allocated(state, key)
            twice |= once & cpus
            once |= cpus
    return twice


def _is_plain(node: Node, decision: Decision, mask: int) -> bool:
    """Whether every container may run there: on at least one CPU, all online, none exclusive or strictly reserved."""
    barred = ~node.topology.online.mask | decision.state.exclusive.mask
    if node.options.strict_cpu_reservation:
        barred |= node.reserved.mask
    return bool(mask) and not mask & barred


def _of_response(node: Node, before: State, event: NRIEvent | OwnEvent, decision: Decision) -> Iterator[str]:
    response = decision.response
    if not isinstance(event, CreateContainer) or not isinstance(response, CreateContainerResponse):
        return
    if response.resources is not None and response.resources.cpus:
        key = allocation_key(pod_uid(event.pod), event.container.name)
        cpus = CPUSet.parse(response.resources.cpus)
        known = _allocated(before, key)
        yield from _of_cpus(node, decision.state, key, f"container {event.container.name}", cpus, known)


def _of_updates(node: Node, before: State, decision: Decision) -> Iterator[str]:
    """The same for the updates that the runtime applies for us, in the answer to any event."""
    if not isinstance(decision.response, _WITH_UPDATES):
        return
    for update in decision.response.updates:
        cpus = CPUSet.parse(update.resources.cpus)
        if not cpus or _is_plain(node, decision, cpus.mask):
            continue
        record = decision.state.containers.get(update.container_id)
        key = record.key if record else ""
        name = f"container {record.name if record else update.container_id}"
        yield from _of_cpus(node, decision.state, key, name, cpus, _allocated(before, key))


def _of_writes(node: Node, before: State, decision: Decision) -> list[str]:
    # A changed pool is written to thousands of cgroups: each distinct value is checked once.
    plain = {
        mask for mask in {write.cpus.mask for write in decision.writes} if _is_plain(node, decision, mask)
    }
    others = (write for write in decision.writes if write.cpus.mask not in plain)
    return [fault for write in others for fault in _of_write(node, before, decision, write)]


def _of_write(node: Node, before: State, decision: Decision, write: CpusetWrite) -> Iterator[str]:
    record = decision.state.containers.get(write.container_id)
    name = f"container {record.name}" if record else f"cgroup {write.target.path or write.target.parent}"
    key = record.key if record else ""
    return _of_cpus(node, decision.state, key, name, write.cpus, _allocated(before, key))


def _allocated(state: State, key: str) -> CPUSet:
    allocation = state.allocations.get(key)
    return allocation.cpus if allocation else CPUSet()


def _spare_of_pod(state: State, key: str) -> CPUSet:
    """What the pod of that allocation owns as a whole and none of its containers has for itself."""
    spare = _allocated(state, allocation_key(pod_of(key), ""))
    for other, one in state.allocations_of(pod_of(key)).items():
        if _is_own(other, one):
            spare -= one.cpus
    return spare


def _is_own(key: str, one: Allocation) -> bool:
    return not (is_whole_pod(key) or one.is_pod_shared or one.is_init)


def _of_cpus(node: Node, state: State, key: str, name: str, cpus: CPUSet, known: CPUSet) -> Iterator[str]:
    """The faults of the container of allocation `key`, or a slice, that runs on `cpus`.

    CPUs that it was allocated before (`known`) may have become strictly reserved since; it keeps them.
    """
    if not cpus:
        yield f"{name} would be given no CPU"
    if not cpus <= node.topology.online:
        yield f"{name} would be given CPUs that are not online: {cpus - node.topology.online}"
    own = _allocated(state, key)
    if own and own.isdisjoint(node.topology.online):
        own |= _spare_of_pod(state, key)
    foreign = cpus & (state.exclusive - own)
    if foreign:
        yield f"{name} would run on CPUs that are exclusive to others: {foreign}"
    kept = (cpus & node.reserved) - known
    if kept and kept != cpus and node.options.strict_cpu_reservation:
        yield f"{name} would run on CPUs that are strictly reserved: {kept}"
