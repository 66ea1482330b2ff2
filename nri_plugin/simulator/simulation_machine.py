"""The machine of a simulation as plain values: lists of ids, enough to draw it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """CPUs that belong together: a socket, an uncore cache, a core.

    Attributes:
        id: the kernel's.
        cpus: online ones, ascending.
    """

    id: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NUMANodeRow:
    """A NUMA node.

    Attributes:
        memory_bytes: None where it is not known.
        hugepages: (page size in kB, number of pages).
        distances: to all NUMA nodes in their order; None where they are not known.
    """

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | None
    hugepages: tuple[tuple[int, int], ...]
    distances: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device of the machine.

    Attributes:
        numa_nodes: those it is attached to; none for anywhere.
        container: key of who has it at the end; empty for nobody.
    """

    resource: str
    id: str
    numa_nodes: tuple[int, ...]
    container: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, enough to draw it.

    Attributes:
        name: as it was asked for.
        title: in words, empty where nobody wrote some.
        summary: one line: how many sockets, NUMA nodes, caches, cores, CPUs.
        caches_known: False where no CPU has an L3, so that `caches` are the sockets.
        isolated, offline: CPUs.
        without_l3: CPUs without an L3 where others have one; their entry in `caches` is no cache.
    """

    name: str
    title: str
    summary: str
    sockets: tuple[Group, ...]
    numa_nodes: tuple[NUMANodeRow, ...]
    caches: tuple[Group, ...]
    cores: tuple[Group, ...]
    caches_known: bool
    online: tuple[int, ...]
    offline: tuple[int, ...]
    isolated: tuple[int, ...]
    without_l3: tuple[int, ...] = ()
