"""Of CPU sets of equal quality, the one that shares the fewest queues of devices with strangers (preferWholeQueues).

A device with fewer queues than there are CPUs gives each queue several CPUs. Requests of all of them make one interrupt,
which only the kernel moves, and which comes to one of them. A set of CPUs *splits* a queue when it has some of the
queue's CPUs and not all: then requests of the others may interrupt the set, and its own may interrupt the others.

The algorithms that choose CPUs stay as they are. Here they are asked again with fewer CPUs on offer: without those of a
queue that the last choice splits, or without those that its interrupt comes to. A choice wins when it

    1 is as good: the NUMA nodes, sockets, caches and cores that it takes CPUs of have as many free CPUs, and give as many
    2 splits fewer queues
    3 has fewer CPUs that interrupts of split queues come to

so no choice that is worse by another option is ever taken. The number of trials is bounded.

Differs: the kubelet knows no interrupts; here: `preferWholeQueues: true` decides between CPU sets of equal quality. Why:
    requests of other containers interrupt exclusive CPUs where a queue is split. Option: `preferWholeQueues: false`
    (the default).
Source: kernel Documentation/core-api/irq/irq-affinity.rst; kernel/irq/matrix.c, irq_matrix_alloc_managed.
"""

from collections.abc import Callable

from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import CPUTables

TRIALS = 64
"""Further choices for one container; on the machine of the bench 10 ms."""

Quality = tuple[tuple[tuple[int, int], ...], ...]
"""For each kind of place, what each touched one had free and gives, ascending."""


def without_split_queues(tables: CPUTables, on_offer: CPUSet, choose: Callable[[CPUSet], CPUSet]) -> CPUSet:
    """The part of `on_offer` from which `choose` takes the CPUs that split the fewest queues.

    Args:
        tables: the machine.
        on_offer: CPUs to choose from.
        choose: the choice out of a set of CPUs.

    Raises:
        AdmissionError: `choose` finds nothing in all of `on_offer`.
    """
    best = choose(on_offer).mask
    quality, price = _quality(tables, on_offer.mask, best), _price(tables, best)
    offered, trials, withheld = on_offer.mask, 0, _reasons(tables, best)
    while withheld and trials < TRIALS:
        fewer = offered & ~withheld.pop(0)
        trials += 1
        try:
            found = choose(CPUSet(fewer)).mask
        except AdmissionError:
            continue  # too few are left
        if _price(tables, found) < price and _quality(tables, on_offer.mask, found) == quality:
            offered, price, withheld = fewer, _price(tables, found), _reasons(tables, found)
    return CPUSet(offered)


def _price(tables: CPUTables, cpus: int) -> tuple[int, int]:
    """How many queues are split, and how many of the CPUs their interrupts come to."""
    split = [(queue, delivered) for queue, delivered in tables.queues if queue & cpus and queue & ~cpus]
    return len(split), sum((delivered & cpus).bit_count() for _, delivered in split)


def _reasons(tables: CPUTables, cpus: int) -> list[int]:
    """CPUs to leave out in the next trials: for each split queue all of it, then where its interrupt comes."""
    split = [one for one in tables.queues if one[0] & cpus and one[0] & ~cpus]
    masks = [*(queue for queue, _ in split), *(delivered for _, delivered in split if delivered & cpus)]
    return list(dict.fromkeys(masks))


def _quality(tables: CPUTables, free: int, cpus: int) -> Quality:
    places = (tables.node_sets, tables.sockets, tables.cores_in_cache, tables.cores)
    return tuple(
        tuple(sorted(((one & free).bit_count(), (one & cpus).bit_count()) for one in kind if one & cpus))
        for kind in places
    )
