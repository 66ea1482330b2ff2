"""Which of equally good NUMA node masks a container goes to.

A merge compares masks by being preferred, by size and, where asked for, by distance; what is
equal in all that is a tie. The rules here put a number on such masks, smaller is better; what is
still equal then goes to the lowest mask.

    packed      the lowest mask: the kubelet's rule
    spread      the emptiest nodes: the most CPUs available
    best-fit    the nodes on which the CPUs fit in the fewest uncore caches, then the tightest: the
                fewest CPUs available, so that large holes survive

Differs: the kubelet knows only `packed`.
"""

from itertools import accumulate

from nri_plugin.cpuset import CPUSet
from nri_plugin.options import TopologyTieBreak
from nri_plugin.policy.merge import TieBreak
from nri_plugin.policy.tables import CPUTables


def tie_break(rule: TopologyTieBreak, tables: CPUTables, available: CPUSet, count: int) -> TieBreak | None:
    """The rule for `count` CPUs out of `available`; None where the lowest mask wins."""
    if rule is TopologyTieBreak.SPREAD:
        return lambda nodes: -(tables.cpus_in(nodes) & available.mask).bit_count()
    if rule is TopologyTieBreak.BEST_FIT:
        return lambda nodes: _fit(tables, tables.cpus_in(nodes) & available.mask, count)
    return None


def _fit(tables: CPUTables, cpus: int, count: int) -> int:
    """Uncore caches needed first, CPUs available second; a mask with too few comes behind all others."""
    free = sorted(((cache & cpus).bit_count() for cache in tables.cores_in_cache), reverse=True)
    total = tables.online.bit_count() + 1
    short = len(free) + 1
    needs = next((number for number, held in enumerate(accumulate(free), 1) if held >= count), short)
    return needs * total + cpus.bit_count()
