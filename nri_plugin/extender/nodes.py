"""One Kubernetes node for a scheduler: its topology policy, its NUMA nodes, and the closest set of NUMA nodes.

Zones keep the order of the object and are found by id, never by position: ids may have gaps and any order.

`closest_set` finds the closest of the smallest sets of NUMA nodes that together hold a request. Invariant: within
`STEPS` the answer is that of trying all sets of a size in lexicographic order of positions, sizes ascending. The search
omits sets that cannot hold the request or cannot be closer than the best set so far. After `STEPS` it returns the best
set so far, or else any set that holds the request, which may be larger than necessary.

Positions are places in the list, not ids. Distances are sums over all ordered pairs, a node with itself included.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nri_plugin.kube import noderesourcetopology as nrt
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, numa_id_of
from nri_plugin.kube.pod_demand import Amounts, PodDemand, is_affine, is_host_level
from nri_plugin.model.options import REGISTRY, TopologyManagerPolicy, TopologyManagerScope

# The topology policy


DEFAULT_MAX_NUMA_NODES = 8
HIGHEST_MAX_NUMA_NODES = 1024

PREFER_CLOSEST = f"{REGISTRY['prefer_closest_numa_nodes'].name}=true"

POD_LEVEL_MANAGERS = REGISTRY["pod_level_managers"].published
"""Attribute of nodes with pod-level resource managers. Nodes of other exporters do not have it."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The options of the Topology Manager on a node.

    Attributes:
        policy: the topology policy.
        scope: whether containers or whole pods are aligned.
        max_numa_nodes: divides the scale of LeastNUMANodes.
        prefers_closest: whether the node prefers close NUMA nodes.
        pod_level_managers: whether the node binds the resources of pods that set their own.
    """

    policy: TopologyManagerPolicy = TopologyManagerPolicy.NONE
    scope: TopologyManagerScope = TopologyManagerScope.CONTAINER
    max_numa_nodes: int = DEFAULT_MAX_NUMA_NODES
    prefers_closest: bool = False
    pod_level_managers: bool = False

    @property
    def is_single(self) -> bool:
        """Whether every container, or pod, must fit into one NUMA node."""
        return self.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE

    @property
    def is_pod_scope(self) -> bool:
        """Whether the pod's total is aligned at once."""
        return self.scope is TopologyManagerScope.POD

    def demand_of(self, pod: PodDemand) -> PodDemand:
        """Return the pod as the node sees it; see `pod_demand`."""
        if not self.pod_level_managers:
            return pod
        return pod.under_pod_scope if self.is_pod_scope else pod.under_container_scope


def node_policy(topology: nrt.NodeResourceTopology) -> NodePolicy:
    """Read the legacy field, then attributes in their order. Unknown values are ignored.

    Source: scheduler-plugins, TopologyManagerConfig from the legacy list's first entry and from attributes.
    """
    found = NodePolicy()
    legacy = nrt.LEGACY_POLICIES.get(topology.topology_policies[0]) if topology.topology_policies else None
    if legacy is not None:
        found = replace(found, policy=legacy[0], scope=legacy[1])
    for name, value in topology.attributes:
        found = _overridden(found, name, value)
    return found


def _overridden(found: NodePolicy, name: str, value: str) -> NodePolicy:
    if name == nrt.ATTRIBUTE_SCOPE and value in set(TopologyManagerScope):
        return replace(found, scope=TopologyManagerScope(value))
    if name == nrt.ATTRIBUTE_POLICY and value in set(TopologyManagerPolicy):
        return replace(found, policy=TopologyManagerPolicy(value))
    if name == nrt.ATTRIBUTE_MAX_NUMA_NODES and _INTEGER.match(value) and int(value) > 1:
        if int(value) >= 1 << 63:
            return found
        return replace(found, max_numa_nodes=min(int(value), HIGHEST_MAX_NUMA_NODES))
    if name == POD_LEVEL_MANAGERS:
        return replace(found, pod_level_managers=value == "true")
    if name == nrt.ATTRIBUTE_POLICY_OPTIONS:
        return replace(found, prefers_closest=PREFER_CLOSEST in value.replace(" ", "").split(","))
    return found


# NUMA nodes


UNKNOWN_COST = 255
"""Source: scheduler-plugins, the highest distance a firmware table can hold."""


@dataclass(frozen=True, slots=True)
class NUMAZone:
    """One NUMA node.

    Attributes:
        id: of the NUMA node.
        available: thousandths by resource name; the zone lists no other resource.
        costs: distance by NUMA node id.
    """

    id: int
    available: Mapping[str, int]
    costs: Mapping[int, int]

    def less(self, charges: Amounts) -> "NUMAZone":
        """Return the zone less all the charges, at least zero.

        Source: scheduler-plugins, the over-reserve cache.
        """
        available = {
            name: max(0, have - charges[name]) if name in charges else have
            for name, have in self.available.items()
        }
        return replace(self, available=available)


Zones = tuple[NUMAZone, ...]


def numa_zones(topology: NodeResourceTopology) -> Zones:
    """Return the zones that are NUMA nodes, in the object's order."""
    return tuple(
        NUMAZone(
            numa_id,
            {resource.name: resource.available_milli for resource in zone.resources},
            {other: cost for name, cost in zone.costs if (other := numa_id_of(name)) is not None},
        )
        for zone in topology.zones
        if (numa_id := zone.numa_id) is not None
    )


def is_free_of_charge(name: str, *, is_guaranteed: bool) -> bool:
    """Whether any amount fits: CPUs and memory of a pod that is not Guaranteed are never bound."""
    return is_affine(name) and not is_guaranteed


def fitting(request: Amounts, zones: Zones, *, is_guaranteed: bool) -> frozenset[int] | None:
    """Return the ids of the NUMA nodes that hold the whole request; None if any NUMA node fits."""
    found: frozenset[int] | None = None
    for name, amount in request.items():
        if not amount:
            continue
        listing = [zone for zone in zones if name in zone.available]
        if not listing and is_host_level(name):
            continue
        is_free = is_free_of_charge(name, is_guaranteed=is_guaranteed)
        suiting = frozenset(zone.id for zone in listing if is_free or zone.available[name] >= amount)
        found = suiting if found is None else found & suiting
    return found


# The closest set


STEPS = 20_000
"""Most steps of a search, for all sizes together: some 200 ms. 16 NUMA nodes need fewer."""

FULL_STEPS_ZONES = 64
"""More NUMA nodes than these get fewer steps, because each step looks at pairs of them."""

WHOLE = 1 << 40
"""The whole need of one resource, in sums of shares of several resources."""

Costs = tuple[tuple[int, ...], ...]
Needs = Sequence[tuple[int, Sequence[int]]]
"""For each resource, the needed amount and the amount of each position."""


class ClosestSet(NamedTuple):
    """A set of positions, ascending, and the sum of its distances."""

    positions: tuple[int, ...]
    total: int


def closest_set(eligible: Sequence[int], needs: Needs, costs: Costs) -> ClosestSet | None:
    """Return the first of the closest of the smallest sets that hold all needs; None if all nodes together do not."""
    steps = most_steps(len(costs))
    for size in range(1, len(eligible) + 1):
        # Skip sizes that are too small whatever the choice.
        if not _can_hold(eligible, needs, size):
            continue
        search = _ClosestSetSearch(eligible, needs, costs, size, steps)
        found = search.run()
        if found is not None:
            return found
        steps -= search.steps
        if steps <= 0:
            return _some_set(eligible, needs, costs)
    return None


def least_total(costs: Costs, size: int) -> int:
    """Return the smallest sum of distances over all sets of `size` nodes, without regard to needs."""
    found = _ClosestSetSearch(range(len(costs)), (), costs, size, most_steps(len(costs))).run()
    return found.total if found is not None else 0


def most_steps(zones: int) -> int:
    """Return how many steps a search among so many NUMA nodes may take."""
    return STEPS * FULL_STEPS_ZONES**2 // max(zones, FULL_STEPS_ZONES) ** 2


def _can_hold(eligible: Sequence[int], needs: Needs, size: int) -> bool:
    """Whether bounds allow a set of this size: the largest amounts of each resource, and the largest shares of all.

    Shares help if nodes are half full in different ways: much of one resource with little of another.
    """
    for amount, have in needs:
        if sum(sorted((have[p] for p in eligible), reverse=True)[:size]) < amount:
            return False
    open_needs = [(amount, have) for amount, have in needs if amount > 0]
    if len(open_needs) < 2:
        return True
    shares = sorted((share(open_needs, p) for p in eligible), reverse=True)
    return sum(shares[:size]) >= WHOLE * len(open_needs)


def share(needs: Needs, position: int) -> int:
    """Return the part of all needs that a position could meet, `WHOLE` for one of them; rounded up."""
    return sum(-(-max(0, min(have[position], amount)) * WHOLE // amount) for amount, have in needs)


def _some_set(eligible: Sequence[int], needs: Needs, costs: Costs) -> ClosestSet | None:
    """Return a set that holds all needs, by adding the position that meets most of the rest; None if there is none."""
    chosen: list[int] = []
    while True:
        left = [(amount - sum(have[p] for p in chosen), have) for amount, have in needs]
        left = [(amount, have) for amount, have in left if amount > 0]
        rest = [p for p in eligible if p not in chosen]
        if not left:
            positions = tuple(sorted(chosen))
            return ClosestSet(positions, sum(costs[one][other] for one in positions for other in positions))
        best = max(rest, key=lambda p: (share(left, p), -p), default=None)
        if best is None or not share(left, best):
            return None
        chosen.append(best)


class _ClosestSetSearch:
    """A depth-first search, positions ascending. A branch ends if it cannot hold the request or cannot be closer."""

    def __init__(
        self, eligible: Sequence[int], needs: Needs, costs: Costs, size: int, most_steps: int
    ) -> None:
        self.most_steps = most_steps
        self.eligible, self.size, self.costs = tuple(eligible), size, costs
        self.needs = tuple(needs)
        self.links = tuple(
            tuple(costs[a][b] + costs[b][a] for b in range(len(costs))) for a in range(len(costs))
        )
        apart = [self.links[a][b] for a in self.eligible for b in self.eligible if a != b]
        self.least_link = min(apart, default=0)
        self.best: ClosestSet | None = None
        self.steps = 0

    def run(self) -> ClosestSet | None:
        self._extend((), 0, 0, tuple(amount for amount, _ in self.needs))
        return self.best

    def _extend(self, chosen: tuple[int, ...], start: int, total: int, left: tuple[int, ...]) -> None:
        missing = self.size - len(chosen)
        # A whole set must hold all needs, and only a strictly smaller distance replaces the first one found.
        if not missing:
            if all(amount <= 0 for amount in left) and (self.best is None or total < self.best.total):
                self.best = ClosestSet(chosen, total)
            return
        if self.steps >= self.most_steps:
            return
        self.steps += 1
        if not self._is_worth_it(chosen, start, total, left, missing):
            return
        for index in range(start, len(self.eligible) - missing + 1):
            position = self.eligible[index]
            grown = total + self.costs[position][position] + sum(self.links[position][one] for one in chosen)
            rest = tuple(amount - have[position] for amount, (_, have) in zip(left, self.needs, strict=True))
            self._extend((*chosen, position), index + 1, grown, rest)

    def _is_worth_it(
        self, chosen: tuple[int, ...], start: int, total: int, left: tuple[int, ...], missing: int
    ) -> bool:
        # Bound by amounts: the largest amounts of the rest must hold the remaining needs.
        rest = self.eligible[start:]
        if not _can_hold(rest, [(n, have) for n, (_, have) in zip(left, self.needs, strict=True)], missing):
            return False
        if self.best is None:
            return True
        # Bound by distance: the nearest candidates to the chosen set, and the smallest link for each pair among them.
        reach = sorted(self.costs[p][p] + sum(self.links[p][one] for one in chosen) for p in rest)[:missing]
        return total + sum(reach) + missing * (missing - 1) // 2 * self.least_link < self.best.total
