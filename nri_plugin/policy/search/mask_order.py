"""The order of NUMA node masks of one size: distance, then the tie break, then the lower mask.

The merge compares masks by whether they are preferred, and by size. This module compares masks that are equal so far: by
distance where prefer-closest-numa-nodes is on, then by a rank, where the smaller one wins. Of masks that are still equal
the lowest wins. The rank is that of a rule:

    packed      all masks rank alike: the kubelet's rule
    spread      the emptiest nodes, with the most CPUs available
    best-fit    the nodes on which the CPUs fit in the fewest uncore caches, then the tightest, with the
                fewest CPUs available, so that large holes survive

A node that the pod's annotation names comes before all of them: of equals, masks with that node win.

Differs: the kubelet has only the rule `packed`, and no annotation; here: `spread`, `best-fit` and the
    annotation `nri-pin/numa-node` decide too between NUMA nodes that are equally good. Why: a node may have
    to fill evenly, or to keep large groups of CPUs available. Option: `topologyTieBreak: packed` (the
    default).
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

from nri_plugin.model import bits
from nri_plugin.model.options import TopologyTieBreak
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_assignment import CPUTables
from nri_plugin.policy.search.levels import DistanceGroup, DistanceRows, distance_tree

# ----------------------------------------------------------------------------------------------------
# How far the NUMA nodes of a set are from each other: the option prefer-closest-numa-nodes.
#
# Source: KEP-3545; kubelet v1.36 pkg/kubelet/cm/topologymanager/numa_info.go.


@dataclass(frozen=True)
class Distances:
    """Distances between NUMA nodes.

    Attributes:
        rows: by node, by other node; the ids may have gaps. 10 is a node itself, twice that twice as far.

    Differs: the kubelet numbers the columns of distances from 0, and crashes where node ids have gaps; here:
        columns go by node id. Why: machines with gaps exist. Option: none.
    """

    rows: DistanceRows

    @cached_property
    def tree(self) -> DistanceGroup | None:
        """The nodes in groups; None on a machine that is not built in levels."""
        return distance_tree(self.rows)

    def total(self, nodes: int) -> int:
        """Sum over all ordered pairs of the mask's nodes, a node with itself included.

        The kubelet compares averages. Masks of one size compare alike by their sums, which are integers.
        """
        members = list(bits.iterate(nodes))
        return sum(self.rows[one][other] for one in members for other in members)


def distances_of(topology: Topology) -> Distances | None:
    """The machine's distances; None when it does not tell all of them."""
    ids = topology.node_ids
    rows = {
        int(node.id): dict(zip(map(int, ids), node.distances, strict=True))
        for node in topology.nodes
        if node.distances is not None and len(node.distances) == len(ids)
    }
    return Distances(rows) if len(rows) == len(ids) else None


# ----------------------------------------------------------------------------------------------------
# The rank of a mask, as a sum over its nodes: the search needs it node by node.


class Share(NamedTuple):
    """The part of one node in the rank and in the goal of a mask.

    Attributes:
        rank: to the mask's rank.
        gain: to what the rule's `goal` asks for.
    """

    rank: int
    gain: int


@dataclass(frozen=True)
class TieBreak:
    """A rule for `count` CPUs out of `available`.

    The rank of a mask is the smallest sum of ranks of one share of each of its nodes whose gains reach
    the goal; where none do, of each node's first share, and `short`.

    Attributes:
        rule: which.
        tables: the machine.
        available: mask of the available CPUs.
        count: CPUs wanted.
        wished: mask of the one node that the pod's annotation names; 0 for none.
    """

    rule: TopologyTieBreak
    tables: CPUTables
    available: int
    count: int
    wished: int = 0

    @property
    def goal(self) -> int:
        """The least sum of the gains of a mask; 0 where only ranks count."""
        return self.count if self.rule is TopologyTieBreak.BEST_FIT else 0

    @property
    def short(self) -> int:
        """The rank of a mask with too few CPUs, without its CPUs: higher than with any number of caches."""
        return (len(self.tables.cores_in_cache) + 1) * self._weight

    @property
    def span(self) -> int:
        """No two ranks are further apart."""
        return self._rules_span + (self._wish if self.wished else 0)

    @property
    def _rules_span(self) -> int:
        return 2 * self.short

    @property
    def _wish(self) -> int:
        """The amount that the node `wished` takes off a rank: more than the rule can add."""
        return self._rules_span + 1

    @property
    def is_additive(self) -> bool:
        """Whether the rank is the sum of the shares of single nodes."""
        # They do not where a cache with available CPUs spans nodes: it would count once for each node.
        if self.rule is not TopologyTieBreak.BEST_FIT:
            return True
        held = [
            cache
            for nodes in self.tables.node_sets
            for cache in self.tables.caches_in[nodes]
            if cache & nodes & self.available
        ]
        return len(held) == len(set(held))

    def rank(self, nodes: int) -> int:
        """Where the mask `nodes` stands among equals."""
        return self._rank_by_rule(nodes) - (self._wish if nodes & self.wished else 0)

    def _rank_by_rule(self, nodes: int) -> int:
        cpus = self.tables.cpus_in(nodes) & self.available
        if self.rule is TopologyTieBreak.PACKED:
            return 0
        if self.rule is TopologyTieBreak.SPREAD:
            return -cpus.bit_count()
        # Best fit: the number of caches decides, then the number of CPUs. So a cache weighs more than all CPUs together.
        held = enumerate(accumulate(self._held_by_caches(cpus), initial=0))
        caches = next((number * self._weight for number, enough in held if enough >= self.count), self.short)
        return caches + cpus.bit_count()

    def shares(self, node: int) -> list[Share]:
        """The node by itself, then with its fullest uncore cache, with its two fullest, and so on."""
        by_rule = self._shares.get(node, [Share(0, 0)])
        if not self.wished >> node & 1:
            return by_rule
        return [Share(rank - self._wish, gain) for rank, gain in by_rule]

    @cached_property
    def _shares(self) -> dict[int, list[Share]]:
        return {node: self._shares_of(cpus) for node, cpus in self.tables.nodes}

    def _shares_of(self, node: int) -> list[Share]:
        # The same rank as in `_rank_by_rule`, for one node. A node adds all its available CPUs to the rank, however many
        # caches of it are used; its fullest caches go first, because they reach the goal with the fewest.
        cpus = node & self.available
        if self.rule is TopologyTieBreak.PACKED:
            return [Share(0, 0)]
        if self.rule is TopologyTieBreak.SPREAD:
            return [Share(-cpus.bit_count(), 0)]
        held = sorted(((cache & cpus).bit_count() for cache in self.tables.caches_in[node]), reverse=True)
        gains = accumulate(filter(None, held), initial=0)
        return [Share(number * self._weight + cpus.bit_count(), gain) for number, gain in enumerate(gains)]

    @cached_property
    def _weight(self) -> int:
        return self.tables.online.bit_count() + 1

    def _held_by_caches(self, cpus: int) -> list[int]:
        """How many of `cpus` each uncore cache has, the largest first."""
        return sorted(((cache & cpus).bit_count() for cache in self.tables.cores_in_cache), reverse=True)


def tie_break(
    rule: TopologyTieBreak, tables: CPUTables, available: CPUSet, count: int, wished: int = 0
) -> TieBreak | None:
    """The rule for `count` CPUs out of `available`, after the node `wished`; None where the lowest mask wins."""
    if rule is TopologyTieBreak.PACKED and not wished:
        return None
    return TieBreak(rule, tables, available.mask, count, wished)


# ----------------------------------------------------------------------------------------------------
# Distance and rank together.


@dataclass(frozen=True)
class MaskOrder:
    """The order of masks of one size.

    Attributes:
        distances: the closer wins first (prefer-closest-numa-nodes); None where that does not count.
        tie_break: the smaller rank wins next; None where the lowest mask does.
    """

    distances: Distances | None = None
    tie_break: TieBreak | None = None

    @property
    def is_by_mask(self) -> bool:
        """Whether the lowest mask always wins."""
        return self.distances is None and self.tie_break is None

    def of(self, mask: int) -> tuple[int, int, int]:
        """The smaller the better; of masks of one size only."""
        far = self.distances.total(mask) if self.distances else 0
        return far, self.tie_break.rank(mask) if self.tie_break else 0, mask

    def distance_tree(self, nodes: int) -> DistanceGroup | None:
        """A tree that holds `nodes`, of one group where distances do not count; None where there is none."""
        return self.distances.tree if self.distances else _equally_far(nodes)

    @property
    def span(self) -> int:
        """More than any two ranks of the tie break differ by."""
        return self.tie_break.span + 1 if self.tie_break else 1


def band(size: int, target: int) -> tuple[bool, int]:
    """How sizes compare where no mask is preferred: the target, the narrower from the widest, the wider."""
    return size > target, abs(size - target)


@lru_cache(maxsize=16)
def _equally_far(nodes: int) -> DistanceGroup:
    return DistanceGroup(nodes, tuple(DistanceGroup(1 << node) for node in bits.iterate(nodes)))
