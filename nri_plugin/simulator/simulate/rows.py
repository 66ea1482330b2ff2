"""Rows of a simulation's result, made from node and state: the machine, shapes of pods, containers, CPUs, memory.

Nothing here decides. Alignment and fragmentation are computed by the functions that the agent's metrics use.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from nri_plugin.config import yaml_tree as source
from nri_plugin.core.hint_providers import memory_state_of, tables_of
from nri_plugin.model.bounds import HEARD_ANNOTATIONS
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import MemoryManagerPolicy, Node, Options, TopologyManagerPolicy
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.records import ContainerRecord, is_whole_pod, named, owner_of, pod_of
from nri_plugin.model.refusals import AdmissionRefusal
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy import alignment
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.simulator.machine.source import SourcedMachine
from nri_plugin.simulator.simulate.device_manager import DeviceManager, Given, NotAdmittedError
from nri_plugin.simulator.simulate.node import PlayedNode, Tried
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec, requests_and_limits
from nri_plugin.simulator.simulate.simulation import (
    ContainerStatus,
    CPUGroup,
    FragmentationRow,
    Machine,
    RefusalStage,
    SimulatedContainer,
    SimulatedCPU,
    SimulatedDevice,
    SimulatedMemory,
    SimulatedNUMANode,
    SimulatedPod,
    SimulatedRefusal,
)
from nri_plugin.simulator.simulate.steps import AMOUNT_KEYS, read_container

# The machine


def machine_row(machine: SourcedMachine, summary: str) -> Machine:
    """The machine for pictures; `summary` describes it in one line."""
    topology = machine.topology
    return Machine(
        name=machine.name,
        title=machine.description.title if machine.description else "",
        summary=summary,
        sockets=_groups(topology.sockets),
        numa_nodes=tuple(
            SimulatedNUMANode(int(one.id), _ids(one.cpus), one.memory_bytes, one.hugepages, one.distances)
            for one in topology.nodes
        ),
        caches=_groups(topology.caches),
        cores=_groups(topology.cores),
        caches_known=topology.caches_known,
        online=_ids(topology.online),
        offline=_ids(topology.offline),
        isolated=_ids(topology.isolated),
        without_l3=_ids(topology.without_l3),
    )


def _groups(groups: Iterable[tuple[int, CPUSet]]) -> tuple[CPUGroup, ...]:
    return tuple(CPUGroup(int(number), _ids(cpus)) for number, cpus in groups)


def _ids(cpus: CPUSet) -> tuple[int, ...]:
    return tuple(map(int, cpus))


# Shapes


OPTION = "--shape"


class Shapes:
    """Shapes of pods, which are their requests without names. Each gets a key, `s1`, `s2`, ... in order of appearance.

    Attributes:
        pods: one pod of each shape, by key.
        counts: how many pods have the shape.
        examples: a pod or workload that has it.
    """

    def __init__(self, options: Options) -> None:
        self.pods: dict[str, PodSpec] = {}
        self.counts: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self._options = options
        self._keys: dict[str, str] = {}

    def key(self, pod: PodSpec, example: str = "") -> str:
        """The key of the pod's shape; counts it where there is an example."""
        plain = self._plain(pod)
        key = self._keys.setdefault(repr(plain), f"s{len(self._keys) + 1}")
        self.pods.setdefault(key, plain)
        self.counts[key] = self.counts.get(key, 0) + bool(example)
        self.examples.setdefault(key, example)
        return key

    def texts(self) -> dict[str, str]:
        """The requests of each shape."""
        return {key: shape_text(pod) for key, pod in self.pods.items()}

    def _plain(self, pod: PodSpec) -> PodSpec:
        """The pod without properties that no placement depends on."""
        options = self._options
        is_heard = pod.namespace in options.annotation_namespaces
        heard = {
            key: value
            for key, value in sorted(pod.annotations.items())
            if is_heard and key.startswith(HEARD_ANNOTATIONS)
        }
        matters = is_heard or pod.namespace in options.never_refuse
        return replace(
            pod,
            name="",
            namespace=pod.namespace if matters else "",
            labels={},
            annotations=heard,
            forced_qos=pod.qos,
            containers=_renamed(pod.containers, "c", keep=bool(heard)),
            init_containers=_renamed(pod.init_containers, "i", keep=bool(heard)),
        )


def read_shape(text: str) -> PodSpec:
    """A pod of one container that asks for `cpu=4,memory=8Gi,nvidia.com/gpu=1`, request and limit at once.

    Raises:
        ConfigError: it is not of that form; names the key.
    """
    entries: dict[str, source.Value] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name or not value:
            raise ConfigError(
                OPTION, f"expected NAME=AMOUNT,NAME=AMOUNT such as cpu=4,memory=8Gi; found {pair}"
            )
        entries[name] = source.Scalar(source.Place(OPTION, path=name), value, "str")
    if not entries:
        raise ConfigError(OPTION, "expected NAME=AMOUNT,NAME=AMOUNT such as cpu=4,memory=8Gi; found nothing")
    places = {name: value.place for name, value in entries.items()}
    section = source.Section(source.Place(OPTION), entries, places)
    return PodSpec("shape", containers=(read_container("c", section),))


def shape_text(pod: PodSpec) -> str:
    """The requests of a pod as text: `Guaranteed: cpu 4, memory 8Gi + sidecar cpu 500m`."""
    parts = [
        f"{'sidecar' if one.is_sidecar else 'init'} {_container_text(one)}" for one in pod.init_containers
    ]
    apps = _counted(map(_container_text, pod.containers))
    whole = []
    if pod.whole is not None:
        whole = [f"as a whole {_amounts_text(requests_and_limits(pod.whole))}"]
    return f"{pod.qos}: " + " + ".join([*whole, *apps, *parts])


def asks_for_something(pod: PodSpec) -> bool:
    """Whether the pod requests anything that is counted."""
    return pod.whole is not None or any(_amounts(one) for one, _ in pod.members)


def _renamed(specs: Iterable[ContainerSpec], letter: str, *, keep: bool) -> tuple[ContainerSpec, ...]:
    """Names of containers belong to a shape only if annotations refer to them."""
    return tuple(
        replace(one, name=one.name if keep else f"{letter}{number}", env=())
        for number, one in enumerate(specs)
    )


def _counted(texts: Iterable[str]) -> list[str]:
    counts = Counter(texts)
    return [text if count == 1 else f"{count} x ({text})" for text, count in counts.items()]


def _container_text(spec: ContainerSpec) -> str:
    return _amounts_text(_amounts(spec)) or "nothing"


def _amounts_text(amounts: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {_range(name, *both)}" for name, both in amounts.items())


def _amounts(spec: ContainerSpec) -> dict[str, tuple[int, int]]:
    """(request, limit) by resource, devices included."""
    devices = {name: (count, count) for name, count in spec.devices_asked if count}
    return requests_and_limits(spec.amounts) | devices


def _range(name: str, request: int, limit: int) -> str:
    if request == limit:
        return _amount(name, request)
    return f"{_amount(name, request)} to {_amount(name, limit) if limit else 'any'}"


def _amount(name: str, amount: int) -> str:
    if name == AMOUNT_KEYS[0]:
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    return str(amount) if "/" in name else format_bytes(amount)


# Containers, CPUs and memory


class Rows:
    """Makes the rows of one node."""

    def __init__(self, played: PlayedNode) -> None:
        self._played = played
        self._node = played.node
        self._footprint = cache(self._footprint_of)

    def tried(self, pod: PodSpec, tried: Tried) -> SimulatedContainer:
        """A container as it was right after it was created, or not."""
        key = f"{pod.key}/{tried.spec.name}"
        plain = SimulatedContainer(
            key, pod.namespace, pod.name, tried.spec.name, str(tried.kind), ContainerStatus.SKIPPED
        )
        if tried.error is not None:
            return replace(
                plain,
                status=ContainerStatus.REFUSED,
                refusal=refusal(tried),
                steps=tried.decision.steps if tried.decision else (),
            )
        if tried.decision is None:
            return plain
        state = tried.decision.state
        record = state.containers[tried.container_id]
        placed = self._placed(plain, state, record, tried.devices or {})
        return replace(placed, steps=tried.decision.steps, refusal=overruled(tried))

    def now(self, row: SimulatedContainer) -> SimulatedContainer:
        """The same container as it is now; it runs."""
        state = self._played.state
        record = state.containers[self._played.container_id(row.key)]
        given = self._played.devices.given(f"{row.namespace}/{row.pod}", row.container)
        return self._placed(row, state, record, given)

    def owners(self) -> Iterator[SimulatedCPU]:
        """Every CPU, ascending."""
        node, state = self._node, self._played.state
        holders = {cpu: key for key, cpus in self._own().items() for cpu in cpus}
        blocks = {cpu: self._name(key) for key, cpus in self._blocks().items() for cpu in cpus}
        pool = state.shared_pool(node)
        for cpu in node.topology.online | node.topology.offline:
            if cpu in holders:
                kind = "exclusive"
            elif cpu in blocks:
                kind = "pod-shared"
            elif cpu not in node.topology.online:
                kind = "offline"
            elif cpu in node.reserved:
                kind = "reserved"
            else:
                kind = "shared" if cpu in pool else "isolated"
            yield SimulatedCPU(int(cpu), kind, holders.get(cpu, ""), blocks.get(cpu, ""))

    def pods(self) -> Iterator[SimulatedPod]:
        """Every pod that has CPUs or memory as a whole."""
        state = self._played.state
        for key, whole in state.allocations.items():
            if not is_whole_pod(key):
                continue
            mine = {
                owner_of(one)[1]: held
                for one, held in state.allocations.items()
                if pod_of(one) == pod_of(key) and one != key
            }
            pools = [one.cpus.mask for one in mine.values() if one.is_pod_shared and not one.is_init]
            pool = CPUSet(pools[0] if pools else 0)
            slices = {name: one.cpus for name, one in mine.items() if one.cpus and not one.is_pod_shared}
            used = pool.mask
            for name, cpus in slices.items():
                used |= 0 if mine[name].is_init else cpus.mask
            yield SimulatedPod(
                self._name(key),
                str(whole.cpus),
                str(pool),
                str(CPUSet(whole.cpus.mask & ~used)),
                {name: str(cpus) for name, cpus in slices.items()},
                str(whole.mems),
                sum(block.size_bytes for block in whole.memory if block.resource == MEMORY),
            )

    def devices(self) -> Iterator[SimulatedDevice]:
        """Every device and who has it."""
        manager = self._played.devices
        holders = {
            (resource, each): f"{pod.key}/{container}"
            for pod in self._played.specs()
            for container, given in manager.containers(pod.key).items()
            for resource, ids in given.items()
            for each in ids
        }
        for one in manager.devices:
            where = tuple(map(int, one.nodes))
            yield SimulatedDevice(one.resource, one.id, where, holders.get((one.resource, one.id), ""))

    def numa_nodes(self) -> tuple[FragmentationRow, ...]:
        """Each NUMA node with CPUs."""
        node = self._node
        found = alignment.by_numa_node(tables_of(node), node.allocatable, self._played.state.available(node))
        return tuple(map(_broken, found))

    def caches(self) -> tuple[FragmentationRow, ...]:
        """Each uncore cache."""
        node, available = self._node, self._played.state.available(self._node)
        found = alignment.by_cache(tables_of(node), node.topology, node.allocatable, available)
        return tuple(map(_broken, found))

    def fragmentation(self) -> tuple[float, float]:
        """Over the whole machine: by uncore caches, and by cores."""
        node = self._node
        return alignment.of_machine(tables_of(node), node.allocatable, self._played.state.available(node))

    def memory(self) -> Iterator[SimulatedMemory]:
        """Each NUMA node with allocatable memory, if the policy allocates memory."""
        node = self._node
        if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
            return
        memory = memory_state_of(node, self._played.state)
        for resource, by_node in memory.machine.allocatable.items():
            free = memory.free(resource)
            for number, size in by_node.items():
                if size:
                    yield SimulatedMemory(number, resource, size, size - free[number])

    def _own(self) -> dict[str, CPUSet]:
        """Exclusive CPUs by container, also of containers that ended and may be created again.

        Init containers come first: a later container of the pod may have their CPUs. Those of a pod with CPUs of its
        own are left out, as all that come later share their CPUs.
        """
        held, blocks = self._played.state.allocations, {pod_of(key) for key in self._blocks()}
        own = [key for key, one in held.items() if not is_whole_pod(key) and not one.is_pod_shared]
        own = [key for key in own if not (held[key].is_init and pod_of(key) in blocks)]
        own.sort(key=lambda key: not held[key].is_init)
        return {self._name(key): held[key].cpus for key in own}

    def _blocks(self) -> dict[str, CPUSet]:
        """The CPUs of pods that own some as a whole, by allocation key."""
        return {key: one.cpus for key, one in self._played.state.allocations.items() if is_whole_pod(key)}

    def _name(self, key: str) -> str:
        return named(self._played.state.pods, key)

    def _placed(
        self, row: SimulatedContainer, state: State, record: ContainerRecord, given: Given
    ) -> SimulatedContainer:
        held = state.allocation_of(record)
        cpus = state.desired_cpus(self._node, record)
        mems = held.mems if held else NodeMask()
        is_pod_shared = held is not None and held.is_pod_shared
        own = held.cpus if held and not is_pod_shared else CPUSet()
        found = self._footprint(cpus, mems)
        return replace(
            row,
            status=ContainerStatus.PLACED if held else ContainerStatus.SHARED,
            exclusive=len(own),
            cpus=str(cpus),
            mems=str(mems),
            numa_nodes=str(found.numa_nodes),
            caches=str(CPUSet.from_ids(found.uncore_caches)),
            sockets=str(CPUSet.from_ids(found.sockets)),
            cores=len(found.cores),
            aligned=found.aligned if own else None,
            preferred=_preferred(self._node, state, record),
            devices={resource: tuple(ids) for resource, ids in given.items()},
            device_nodes=str(_device_nodes(self._played.devices, given)),
            is_pod_shared=is_pod_shared,
        )

    def _footprint_of(self, cpus: CPUSet, mems: NodeMask) -> alignment.Footprint:
        return alignment.footprint(self._node.topology, cpus, mems)


def refusal(tried: Tried) -> SimulatedRefusal | None:
    """Why a container does not run; None if it runs."""
    if tried.error is None or tried.stage is None:
        return None
    return replace(words(tried.error, tried.stage), of_pod=tried.of_pod)


def overruled(tried: Tried) -> SimulatedRefusal | None:
    """The refusal of a container that runs without an allocation, as its namespace is never refused; else None."""
    error = tried.decision.overruled if tried.decision else None
    return None if error is None else words(error, RefusalStage.PLACEMENT)


def words(error: NotAdmittedError | AdmissionRefusal, stage: RefusalStage) -> SimulatedRefusal:
    """An error as a refusal."""
    container = error.container if isinstance(error, AdmissionRefusal) else ""
    return SimulatedRefusal(stage, error.reason, str(error), container=container)


def _preferred(node: Node, state: State, record: ContainerRecord) -> bool | None:
    """Whether the merged hint was preferred; None under policy none, which merges no hints."""
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


def _broken(one: alignment.Fragmentation) -> FragmentationRow:
    return FragmentationRow(
        one.id, len(one.cpus), len(one.allocatable), len(one.available), round(one.ratio, 4)
    )
