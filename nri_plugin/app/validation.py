"""A second opinion on every decision before it leaves, written apart from the code that made it.

Only what a decision adds is held against it: an old flaw, such as a CPU that became reserved by a new
configuration, must not block every container that has nothing to do with it.
"""

from collections.abc import Iterator

from nri_plugin.cpuset import CPUSet
from nri_plugin.decision import Decision
from nri_plugin.nri.events import CreateContainer, CreateContainerResponse, NRIEvent
from nri_plugin.options import Node
from nri_plugin.state import State, allocation_key
from nri_plugin.workload import pod_uid


def new_violations(node: Node, before: State, event: NRIEvent, decision: Decision) -> list[str]:
    """What `decision` would break that was whole `before`; empty when nothing."""
    return [*_of_state(node, before, decision.state), *_of_effects(node, event, decision)]


def _of_state(node: Node, before: State, after: State) -> list[str]:
    if after is before:
        return []
    found = after.violations(node)
    known = set(before.violations(node)) if found else set()
    return [sentence for sentence in found if sentence not in known]


def _of_effects(node: Node, event: NRIEvent, decision: Decision) -> Iterator[str]:
    for key, what, cpus in _assigned(event, decision):
        if not cpus:
            yield f"{what} would be given no CPU"
        if not cpus <= node.topology.online:
            yield f"{what} would be given CPUs that are not online: {cpus - node.topology.online}"
        allocation = decision.state.allocations.get(key)
        own = allocation.cpus if allocation else CPUSet()
        foreign = cpus & (decision.state.exclusive - own)
        if foreign:
            yield f"{what} would run on CPUs that are exclusive to others: {foreign}"


def _assigned(event: NRIEvent, decision: Decision) -> Iterator[tuple[str, str, CPUSet]]:
    """Every (allocation key, name for people, CPUs) the decision is about to hand out."""
    for write in decision.writes:
        record = decision.state.containers.get(write.container_id)
        name = f"container {record.name}" if record else f"cgroup {write.target.path or write.target.parent}"
        yield record.key if record else "", name, write.cpus
    if isinstance(event, CreateContainer) and isinstance(decision.response, CreateContainerResponse):
        resources = decision.response.resources
        if resources is not None and resources.cpus:
            key = allocation_key(pod_uid(event.pod), event.container.name)
            yield key, f"container {event.container.name}", CPUSet.parse(resources.cpus)
