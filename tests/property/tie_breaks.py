"""Tie breaks on a machine of six NUMA nodes whose ids have a gap, and what they rank, from their words."""

from hypothesis import strategies as st

from nri_plugin.model.options import TopologyTieBreak
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.search.mask_order import tie_break
from tests.property.machine_hints import NODES
from tests.topology_rows import topology_of_rows

CACHES = 2
CPUS_OF_CACHE = 2
ROWS = [
    (cpu, cpu, int(node > 2), node, number * CACHES + cache)
    for number, node in enumerate(NODES)
    for cache in range(CACHES)
    for cpu in range((number * CACHES + cache) * CPUS_OF_CACHE, (number * CACHES + cache + 1) * CPUS_OF_CACHE)
]
"""(CPU, core, socket, NUMA node, uncore cache): two caches of two CPUs each on every node."""
TABLES = cpu_tables(topology_of_rows(ROWS))


@st.composite
def tie_breaks(draw):
    rule = draw(st.sampled_from(list(TopologyTieBreak)))
    free = draw(st.sets(st.sampled_from([row[0] for row in ROWS])))
    wished = draw(st.just(0) | st.sampled_from([1 << node for node in NODES]))
    return tie_break(rule, TABLES, CPUSet.from_ids(free), draw(st.integers(0, 12)), wished)


def rank_of(rule):
    """How a rule orders masks, CPU by CPU."""

    def rank(mask):
        if rule is None:
            return 0
        is_elsewhere = not rule.wished & mask
        here = [row for row in ROWS if mask >> row[3] & 1 and rule.available >> row[0] & 1]
        if rule.rule is TopologyTieBreak.PACKED:
            return (is_elsewhere,)
        if rule.rule is TopologyTieBreak.SPREAD:
            return is_elsewhere, -len(here)
        caches = {row[4] for row in here}
        held = sorted((sum(row[4] == cache for row in here) for cache in caches), reverse=True)
        enough = [n for n in range(len(held) + 1) if sum(held[:n]) >= rule.count]
        return is_elsewhere, min(enough, default=len(ROWS)), len(here)

    return rank
