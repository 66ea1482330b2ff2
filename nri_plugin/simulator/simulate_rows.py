"""What a simulation tells of a container, of the machine and of who has what: made from node and state."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from nri_plugin.cpuset import CPUSet
from nri_plugin.decision import Decision
from nri_plugin.errors import AdmissionError
from nri_plugin.hint_providers import memory_state_of, tables_of
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.policy import alignment, fragmentation
from nri_plugin.simulator.device_manager import DeviceManager, Given
from nri_plugin.simulator.pods import PodSpec
from nri_plugin.simulator.simulate_node import PlayedNode, Tried
from nri_plugin.simulator.simulation import (
    Alignment,
    Broken,
    ContainerRow,
    DeviceRow,
    MemoryRow,
    Owner,
    Refusal,
    Stage,
    Status,
)
from nri_plugin.state import ContainerRecord, State, owner_of

EXCLUSIVE, SHARED, RESERVED, ISOLATED, OFFLINE = "exclusive", "shared", "reserved", "isolated", "offline"


class Rows:
    """Writes rows for one node."""

    def __init__(self, played: PlayedNode) -> None:
        self._played = played
        self._node = played.node
        self._footprint = cache(self._footprint_of)

    def tried(self, pod: PodSpec, tried: Tried) -> ContainerRow:
        """A container as it was right after it was created, or not."""
        key = f"{pod.key}/{tried.spec.name}"
        plain = ContainerRow(key, pod.namespace, pod.name, tried.spec.name, str(tried.kind), Status.SKIPPED)
        if tried.error is not None:
            return replace(plain, status=Status.REFUSED, refusal=refusal(tried), steps=_steps(tried.decision))
        if tried.decision is None:
            return plain
        state = tried.decision.state
        record = state.containers[tried.container_id]
        overruled = tried.decision.overruled
        return replace(
            self._placed(plain, state, record, tried.devices or {}),
            steps=tried.decision.steps,
            refusal=None if overruled is None else words(overruled, Stage.PLACEMENT),
        )

    def now(self, row: ContainerRow) -> ContainerRow:
        """The same container as it is now; it runs."""
        state = self._played.state
        record = state.containers[self._played.container_id(row.key)]
        given = self._played.devices.given(f"{row.namespace}/{row.pod}", row.container)
        return self._placed(row, state, record, given)

    def owners(self) -> Iterator[Owner]:
        """Every CPU, ascending."""
        node, state = self._node, self._played.state
        holders = {cpu: key for key, cpus in self._own().items() for cpu in cpus}
        pool = state.shared_pool(node)
        for cpu in node.topology.online | node.topology.offline:
            if cpu in holders:
                yield Owner(int(cpu), EXCLUSIVE, holders[cpu])
            elif cpu not in node.topology.online:
                yield Owner(int(cpu), OFFLINE)
            elif cpu in node.reserved:
                yield Owner(int(cpu), RESERVED)
            else:
                yield Owner(int(cpu), SHARED if cpu in pool else ISOLATED)

    def devices(self) -> Iterator[DeviceRow]:
        """Every device and who has it."""
        manager = self._played.devices
        holders = {
            (resource, each): f"{pod}/{container}"
            for pod in self._played.pods
            for container, given in manager.containers(pod).items()
            for resource, ids in given.items()
            for each in ids
        }
        for one in manager.devices:
            where = tuple(map(int, one.nodes))
            yield DeviceRow(one.resource, one.id, where, holders.get((one.resource, one.id), ""))

    def numa_nodes(self) -> tuple[Broken, ...]:
        """Each NUMA node with CPUs."""
        node = self._node
        found = fragmentation.by_numa_node(
            tables_of(node), node.allocatable, self._played.state.available(node)
        )
        return tuple(map(_broken, found))

    def caches(self) -> tuple[Broken, ...]:
        """Each uncore cache."""
        node, available = self._node, self._played.state.available(self._node)
        found = fragmentation.by_cache(tables_of(node), node.topology, node.allocatable, available)
        return tuple(map(_broken, found))

    def fragmentation(self) -> tuple[float, float]:
        """Over the whole machine: by uncore caches, and by cores."""
        node, tables = self._node, tables_of(self._node)
        free, whole = self._played.state.available(node).mask, node.allocatable.mask
        caches = (mask & whole for mask in tables.cores_in_cache)
        cores = (mask & whole for mask in tables.cores)
        return fragmentation.fragmentation(free, caches), fragmentation.fragmentation(free, cores)

    def memory(self) -> Iterator[MemoryRow]:
        """Each NUMA node with memory to promise, where the policy promises some."""
        node = self._node
        if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
            return
        memory = memory_state_of(node, self._played.state)
        for resource, by_node in memory.machine.allocatable.items():
            free = memory.free(resource)
            for number, size in by_node.items():
                if size:
                    yield MemoryRow(number, resource, size, size - free[number])

    def _own(self) -> dict[str, CPUSet]:
        """Exclusive CPUs by key; those that wait for a container of a pod to come back have its name too."""
        found = {}
        for key, allocation in self._played.state.allocations.items():
            uid, container = owner_of(key)
            pod = self._played.state.pods.get(uid)
            found[f"{pod.namespace}/{pod.name}/{container}" if pod else key] = allocation.cpus
        return found

    def _placed(self, row: ContainerRow, state: State, record: ContainerRecord, given: Given) -> ContainerRow:
        held = state.allocation_of(record)
        cpus = state.desired_cpus(self._node, record)
        mems = held.mems if held else NodeMask()
        own = held.cpus if held else CPUSet()
        found = self._footprint(cpus, mems)
        return replace(
            row,
            status=Status.PLACED if held else Status.SHARED,
            exclusive=len(own),
            cpus=str(cpus),
            mems=str(mems),
            numa_nodes=str(found.numa_nodes),
            caches=str(CPUSet.from_ids(found.uncore_caches)),
            sockets=str(CPUSet.from_ids(found.sockets)),
            cores=len(found.cores),
            aligned=_alignment(found) if own else None,
            preferred=_preferred(self._node, state, record),
            devices={resource: tuple(ids) for resource, ids in given.items()},
            device_nodes=str(_device_nodes(self._played.devices, given)),
        )

    def _footprint_of(self, cpus: CPUSet, mems: NodeMask) -> alignment.Footprint:
        return alignment.footprint(self._node.topology, cpus, mems)


def refusal(tried: Tried) -> Refusal | None:
    """Why it does not run; None where it does."""
    return words(tried.error, tried.stage) if tried.error is not None and tried.stage is not None else None


def words(error: Exception, stage: Stage) -> Refusal:
    """An error as a refusal."""
    text = str(error)
    reason = error.reason if isinstance(error, AdmissionError) else text.partition(":")[0]
    return Refusal(stage, reason, text)


def _steps(decision: Decision | None) -> tuple[str, ...]:
    return decision.steps if decision else ()


def _alignment(found: alignment.Footprint) -> Alignment:
    levels = found.aligned
    return Alignment(levels.numa_node, levels.socket, levels.uncore_cache, levels.whole_cores)


def _preferred(node: Node, state: State, record: ContainerRecord) -> bool | None:
    """Whether the hint was a preferred one; under policy none nobody is asked."""
    if node.options.topology_manager_policy is TopologyManagerPolicy.NONE:
        return None
    held = state.allocation_of(record)
    if held is not None:
        return held.preferred
    return None if record.affinity is None else record.affinity_preferred


def _device_nodes(manager: DeviceManager, given: Given) -> NodeMask:
    mask = 0
    for device in manager.placed(given) if given else ():
        mask |= device.nodes.mask
    return NodeMask(mask)


def _broken(one: fragmentation.Broken) -> Broken:
    return Broken(one.id, len(one.cpus), len(one.allocatable), len(one.available), round(one.ratio, 4))
