"""An independent check of every decision before it is carried out, written apart from the code that decides.

Only violations that a decision adds count. An old one, such as an exclusive CPU that a new configuration reserves, must
not block containers that have nothing to do with it.
"""

from collections.abc import Iterator

from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.drift import OwnEvent
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.options import Node
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State, ViolationKind, allocation_key
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
    problems = _of_state(node, before, decision.state)
    problems += _of_response(node, before, event, decision)
    problems += _of_updates(node, before, decision)
    # A changed pool is written to thousands of cgroups: each distinct value is checked once.
    plain = {
        mask for mask in {write.cpus.mask for write in decision.writes} if _is_plain(node, decision, mask)
    }
    for write in decision.writes:
        if write.cpus.mask not in plain:
            problems += _of_write(node, before, decision, write)
    return problems


def _is_plain(node: Node, decision: Decision, mask: int) -> bool:
    """Whether every container may run there: on at least one CPU, all online, none exclusive or strictly reserved."""
    barred = ~node.topology.online.mask | decision.state.exclusive.mask
    if node.options.strict_cpu_reservation:
        barred |= node.reserved.mask
    return bool(mask) and not mask & barred


def _of_state(node: Node, before: State, after: State) -> list[str]:
    if after is before:
        return []
    found = after.violations(node)
    known = before.violations(node) if found else []
    # Only a decision that took CPUs can have emptied the pool.
    if after.exclusive <= before.exclusive:
        found = [one for one in found if one.kind is not ViolationKind.EMPTY_POOL]
    return [str(one) for one in found if one not in known]


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


def _of_write(node: Node, before: State, decision: Decision, write: CpusetWrite) -> Iterator[str]:
    record = decision.state.containers.get(write.container_id)
    name = f"container {record.name}" if record else f"cgroup {write.target.path or write.target.parent}"
    key = record.key if record else ""
    return _of_cpus(node, decision.state, key, name, write.cpus, _allocated(before, key))


def _allocated(state: State, key: str) -> CPUSet:
    allocation = state.allocations.get(key)
    return allocation.cpus if allocation else CPUSet()


def _of_cpus(node: Node, state: State, key: str, name: str, cpus: CPUSet, known: CPUSet) -> Iterator[str]:
    """What is wrong with the container of allocation `key`, or a slice, running on `cpus`.

    CPUs that it was allocated before (`known`) may have become strictly reserved since; it keeps them.
    """
    if not cpus:
        yield f"{name} would be given no CPU"
    if not cpus <= node.topology.online:
        yield f"{name} would be given CPUs that are not online: {cpus - node.topology.online}"
    foreign = cpus & (state.exclusive - _allocated(state, key))
    if foreign:
        yield f"{name} would run on CPUs that are exclusive to others: {foreign}"
    kept = (cpus & node.reserved) - known
    if kept and kept != cpus and node.options.strict_cpu_reservation:
        yield f"{name} would run on CPUs that are strictly reserved: {kept}"
