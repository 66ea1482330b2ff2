"""How far the NUMA nodes of a set are from each other: the option prefer-closest-numa-nodes.

Source: KEP-3545; kubelet v1.36 pkg/kubelet/cm/topologymanager/numa_info.go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from nri_plugin import bits
from nri_plugin.nodemask import NodeMask
from nri_plugin.policy.clusters import Layout
from nri_plugin.policy.planes import layout_in_planes
from nri_plugin.topology import Topology


@dataclass(frozen=True)
class Distances:
    """Distances between NUMA nodes.

    Attributes:
        rows: by node, by other node; the ids may have gaps. 10 is a node itself, twice that twice as far.

    Differs: the kubelet numbers the columns from 0 and crashes where node ids have gaps.
    """

    rows: Mapping[int, Mapping[int, int]]

    @cached_property
    def layout(self) -> Layout:
        """The nodes in clusters."""
        return layout_in_planes(self.rows)

    def total(self, nodes: int) -> int:
        """Sum over all ordered pairs of the mask's nodes, a node with itself included."""
        members = list(bits.iterate(nodes))
        return sum(self.rows[one][other] for one in members for other in members)

    def average(self, nodes: NodeMask) -> float:
        """Mean over all ordered pairs; 0 for no nodes."""
        return self.total(nodes.mask) / len(nodes) ** 2 if nodes else 0.0

    def closest(self, one: NodeMask, other: NodeMask) -> NodeMask:
        """The narrower of two sets; of equally wide ones the closer, of equally close ones the lower."""
        return min(one, other, key=lambda nodes: (len(nodes), self.total(nodes.mask), nodes.mask))


def distances_of(topology: Topology) -> Distances | None:
    """The machine's distances; None when it does not tell all of them."""
    ids = topology.node_ids
    rows = {
        int(node.id): dict(zip(map(int, ids), node.distances, strict=True))
        for node in topology.nodes
        if node.distances is not None and len(node.distances) == len(ids)
    }
    return Distances(rows) if len(rows) == len(ids) else None
