"""Figures about placements: the alignment of a set of CPUs, and the fragmentation of the available CPUs.

The alignment counters count placements by these levels. A set is aligned to a NUMA node when CPUs and memory are on one, to an
uncore cache when all CPUs share it, and to cores when it has all online CPUs of each core. Fragmentation is what
the gauges `nri_pin_*_fragmentation_ratio` show.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nri_plugin.model.sets import NO_NODES, CPUSet, NodeMask
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_assignment import CPUTables


@dataclass(frozen=True, slots=True)
class CPUAlignment:
    """At which levels a set of CPUs is aligned; nothing is aligned where there are no CPUs.

    Attributes:
        numa_node: CPUs and memory nodes are together one NUMA node.
        socket: one socket has all the CPUs.
        uncore_cache: one uncore cache has all the CPUs.
        whole_cores: every core they touch is theirs with all its online CPUs.
    """

    numa_node: bool
    socket: bool
    uncore_cache: bool
    whole_cores: bool


@dataclass(frozen=True, slots=True)
class Footprint:
    """The parts of a machine that a set of CPUs touches: ids, ascending.

    Attributes:
        cores: ids of cores.
        sockets: ids of sockets.
        numa_nodes: NUMA nodes of the CPUs, not of the memory.
        uncore_caches: ids of caches; where no CPU has an L3 these are the sockets.
        offline: those of the CPUs that are not online; they are in none of the above.
        aligned: the levels.
    """

    cores: tuple[int, ...]
    sockets: tuple[int, ...]
    numa_nodes: NodeMask
    uncore_caches: tuple[int, ...]
    offline: CPUSet
    aligned: CPUAlignment


def footprint(topology: Topology, cpus: CPUSet, mems: NodeMask = NO_NODES) -> Footprint:
    """What `cpus` touch; `mems` are the memory nodes that go with them."""
    online = cpus.mask & topology.online.mask
    cores = [(number, core.mask) for number, core in topology.cores if core.mask & online]
    sockets = tuple(int(number) for number, members in topology.sockets if members.mask & online)
    caches = tuple(int(number) for number, members in topology.caches if members.mask & online)
    nodes = topology.nodes_of(CPUSet(online))
    aligned = CPUAlignment(
        numa_node=bool(online) and len(nodes | mems) == 1,
        socket=len(sockets) == 1,
        uncore_cache=is_in_one_cache(topology, CPUSet(online)),
        whole_cores=bool(cores) and all(not core & ~online for _, core in cores),
    )
    return Footprint(
        tuple(int(number) for number, _ in cores),
        sockets,
        nodes,
        caches,
        CPUSet(cpus.mask & ~online),
        aligned,
    )


def is_in_one_cache(topology: Topology, cpus: CPUSet) -> bool:
    """Whether there are CPUs, and no two of them have different uncore caches."""
    return bool(cpus) and any(cpus <= cache for _, cache in topology.caches)


# ----------------------------------------------------------------------------------------------------
# Fragmentation.


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """CPUs of a NUMA node or of an uncore cache.

    Attributes:
        id: of the node or cache.
        cpus: all of them.
        allocatable: those that are available on an empty machine.
        available: those that are available now.
        ratio: share of the available ones in groups that are not wholly available.
    """

    id: int
    cpus: CPUSet
    allocatable: CPUSet
    available: CPUSet
    ratio: float


def by_numa_node(tables: CPUTables, allocatable: CPUSet, available: CPUSet) -> Iterator[Fragmentation]:
    """The figures of each NUMA node with CPUs; the groups are its uncore caches."""
    for number, cpus in tables.nodes:
        yield _broken(number, cpus, tables.caches_in[cpus], allocatable.mask, available.mask)


def by_cache(
    tables: CPUTables, topology: Topology, allocatable: CPUSet, available: CPUSet
) -> Iterator[Fragmentation]:
    """The figures of each uncore cache; the groups are its cores."""
    for number, cache in topology.caches:
        groups = tables.cores_in_cache[cache.mask]
        yield _broken(int(number), cache.mask, groups, allocatable.mask, available.mask)


def of_machine(tables: CPUTables, allocatable: CPUSet, available: CPUSet) -> tuple[float, float]:
    """The fragmentation of the whole machine: by uncore caches, and by cores."""
    caches = (mask & allocatable.mask for mask in tables.cores_in_cache)
    cores = (mask & allocatable.mask for mask in tables.cores)
    return fragmentation(available.mask, caches), fragmentation(available.mask, cores)


def fragmentation(free: int, groups: Iterable[int]) -> float:
    """Share of the CPUs in the mask `free` that lie in groups which are not wholly free; 0 for nothing free.

    Groups hold allocatable CPUs only, so that reserved CPUs do not count as fragmentation.
    """
    if not free:
        return 0.0
    partly = sum((group & free).bit_count() for group in groups if group & ~free)
    return partly / free.bit_count()


def _broken(number: int, cpus: int, groups: Iterable[int], allocatable: int, available: int) -> Fragmentation:
    ratio = fragmentation(available & cpus, (group & cpus & allocatable for group in groups))
    return Fragmentation(number, CPUSet(cpus), CPUSet(cpus & allocatable), CPUSet(cpus & available), ratio)
