"""Which topology policy a node's kubelet, or agent, applies: read from its NodeResourceTopology."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nri_plugin.kube import noderesourcetopology as nrt
from nri_plugin.options import TopologyManagerPolicy, TopologyManagerScope

DEFAULT_MAX_NUMA_NODES = 8
HIGHEST_MAX_NUMA_NODES = 1024

PREFER_CLOSEST = "prefer-closest-numa-nodes=true"

_LEGACY: Mapping[str, tuple[TopologyManagerPolicy, TopologyManagerScope]] = {
    f"{policy_name}{scope_name}Level": (policy, scope)
    for policy_name, policy in (
        ("SingleNUMANode", TopologyManagerPolicy.SINGLE_NUMA_NODE),
        ("Restricted", TopologyManagerPolicy.RESTRICTED),
        ("BestEffort", TopologyManagerPolicy.BEST_EFFORT),
    )
    for scope_name, scope in (
        ("Container", TopologyManagerScope.CONTAINER),
        ("Pod", TopologyManagerScope.POD),
    )
}

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """How a node decides.

    Attributes:
        policy: the topology policy.
        scope: whether containers or whole pods are aligned.
        max_numa_nodes: divides the scale of LeastNUMANodes.
        prefers_closest: whether the node says that it prefers close NUMA nodes.
    """

    policy: TopologyManagerPolicy = TopologyManagerPolicy.NONE
    scope: TopologyManagerScope = TopologyManagerScope.CONTAINER
    max_numa_nodes: int = DEFAULT_MAX_NUMA_NODES
    prefers_closest: bool = False

    @property
    def is_single(self) -> bool:
        """Whether every container, or pod, must fit into one NUMA node."""
        return self.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE

    @property
    def is_pod_scope(self) -> bool:
        """Whether the pod's total is aligned at once."""
        return self.scope is TopologyManagerScope.POD


def node_policy(topology: nrt.NodeResourceTopology) -> NodePolicy:
    """The legacy field first, then attributes in their order; what is not understood says nothing.

    Source: scheduler-plugins, TopologyManagerConfig from the legacy list's first entry and from attributes.
    """
    found = NodePolicy()
    legacy = _LEGACY.get(topology.topology_policies[0]) if topology.topology_policies else None
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
    if name == nrt.ATTRIBUTE_POLICY_OPTIONS:
        return replace(found, prefers_closest=PREFER_CLOSEST in value.replace(" ", "").split(","))
    return found
