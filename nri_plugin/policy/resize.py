"""A container with exclusive CPUs that is given more or fewer while it runs.

Invariant: the CPUs it was promised at its start stay. It grows by the nearest CPUs and shrinks by the last ones
it grew by, so that growing and shrinking again is as if nothing had been.

Source: KEP-5554 (what was allocated at admission is kept), which no released kubelet has; what the kubelet
    refuses, it refuses here too.
"""

from collections.abc import Iterator, Sequence

from nri_plugin import bits
from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import InsufficientCPUsError
from nri_plugin.options import Options
from nri_plugin.policy.cpu_choice import take_cpus
from nri_plugin.policy.distances import Distances
from nri_plugin.policy.tables import CPUTables


def nearest(
    tables: CPUTables,
    held: CPUSet,
    available: CPUSet,
    count: int,
    options: Options,
    distances: Distances | None = None,
) -> tuple[CPUSet, ...]:
    """The `count` available CPUs nearest to those that are held, nearest first.

    Nearness: another thread of a held core, then the same uncore cache, the same NUMA node, then other NUMA nodes
    by their distance to the nearest held one. Of CPUs equally near those are taken that the options would take.

    Args:
        tables: of the machine.
        held: what the container has, not empty.
        available: what it may get.
        count: how many it needs, at least 1.
        options: which CPUs of a ring are taken, and whether only whole cores.
        distances: between NUMA nodes; None where all others are equally far.

    Raises:
        InsufficientCPUsError: there are not so many, or not in whole cores.
    """
    left = available.mask & ~held.mask
    if options.full_pcpus_only:
        left = tables.whole_cores_in(left)
    if left.bit_count() < count:
        raise InsufficientCPUsError(
            count, left.bit_count(), f"to grow beside {held}; end a container that holds some"
        )
    steps = []
    rings = _rings(tables, held.mask, distances)
    while count:
        here = left & next(rings)
        if not here:
            continue
        taken = CPUSet(here) if here.bit_count() <= count else take_cpus(tables, CPUSet(here), count, options)
        steps.append(taken)
        left &= ~taken.mask
        count -= len(taken)
    return tuple(steps)


def without_last(
    tables: CPUTables, grown: Sequence[CPUSet], count: int, options: Options
) -> tuple[CPUSet, ...]:
    """What remains of the CPUs a container grew by when it gives back `count`, the last ones first.

    Of CPUs taken at once those stay that the options would have taken alone.

    Args:
        tables: of the machine.
        grown: in the order of growing.
        count: at most as many as there are.
        options: which of those taken at once stay.
    """
    remaining = list(grown)
    while count:
        last = remaining.pop()
        if len(last) > count:
            remaining.append(take_cpus(tables, last, len(last) - count, options))
            break
        count -= len(last)
    return tuple(remaining)


def _rings(tables: CPUTables, held: int, distances: Distances | None) -> Iterator[int]:
    """Masks of CPUs, nearer ones first; each holds those before it, the last one all CPUs."""
    yield tables.siblings_of(held)
    yield tables.caches_of(held)
    nodes = tables.nodes_of(held)
    yield tables.cpus_in(nodes)
    if distances is not None:
        homes = list(bits.iterate(nodes))
        far = {node: min(distances.rows[home][node] for home in homes) for node, _ in tables.nodes}
        for distance in sorted(set(far.values())):
            yield tables.cpus_in(bits.from_ids(node for node, value in far.items() if value <= distance))
    yield tables.online
