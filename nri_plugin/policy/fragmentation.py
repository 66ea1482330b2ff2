"""How broken up what is available is: the figures behind the gauges `nri_pin_*_fragmentation_ratio`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nri_plugin.cpuset import CPUSet
from nri_plugin.policy.tables import CPUTables
from nri_plugin.topology import Topology


@dataclass(frozen=True, slots=True)
class Broken:
    """CPUs of a NUMA node or of an uncore cache.

    Attributes:
        id: of the node or cache.
        cpus: all of them.
        allocatable: what could be had of them on an empty machine.
        available: what still can.
        ratio: share of the available ones in groups that others use in part.
    """

    id: int
    cpus: CPUSet
    allocatable: CPUSet
    available: CPUSet
    ratio: float


def by_numa_node(tables: CPUTables, allocatable: CPUSet, available: CPUSet) -> Iterator[Broken]:
    """Of each NUMA node with CPUs; the groups are its uncore caches."""
    for number, cpus in tables.nodes:
        yield _broken(number, cpus, tables.caches_in[cpus], allocatable.mask, available.mask)


def by_cache(
    tables: CPUTables, topology: Topology, allocatable: CPUSet, available: CPUSet
) -> Iterator[Broken]:
    """Of each uncore cache; the groups are its cores."""
    for number, cache in topology.caches:
        groups = tables.cores_in_cache[cache.mask]
        yield _broken(int(number), cache.mask, groups, allocatable.mask, available.mask)


def fragmentation(free: int, groups: Iterable[int]) -> float:
    """Share of the CPUs in the mask `free` that lie in groups which are not wholly free; 0 for nothing free.

    Groups are what could be had of them on an empty machine, so that reserved CPUs break nothing up.
    """
    if not free:
        return 0.0
    partly = sum((group & free).bit_count() for group in groups if group & ~free)
    return partly / free.bit_count()


def _broken(number: int, cpus: int, groups: Iterable[int], allocatable: int, available: int) -> Broken:
    ratio = fragmentation(available & cpus, (group & cpus & allocatable for group in groups))
    return Broken(number, CPUSet(cpus), CPUSet(cpus & allocatable), CPUSet(cpus & available), ratio)
