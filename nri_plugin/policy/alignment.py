"""Where a set of CPUs lies on a machine, and at which levels it is aligned.

These are the rules by which the alignment counters rise: aligned to a NUMA node means that CPUs and memory need no
second one, to an uncore cache that no two CPUs have different ones, to cores that no core is shared with others.
"""

from dataclasses import dataclass

from nri_plugin.cpuset import CPUSet
from nri_plugin.nodemask import NO_NODES, NodeMask
from nri_plugin.topology import Topology


@dataclass(frozen=True, slots=True)
class Alignment:
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
    """What of a machine a set of CPUs touches: ids, ascending.

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
    aligned: Alignment


def footprint(topology: Topology, cpus: CPUSet, mems: NodeMask = NO_NODES) -> Footprint:
    """What `cpus` touch; `mems` are the memory nodes that go with them."""
    online = cpus.mask & topology.online.mask
    cores = [(number, core.mask) for number, core in topology.cores if core.mask & online]
    sockets = tuple(int(number) for number, members in topology.sockets if members.mask & online)
    caches = tuple(int(number) for number, members in topology.caches if members.mask & online)
    nodes = topology.nodes_of(CPUSet(online))
    aligned = Alignment(
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
