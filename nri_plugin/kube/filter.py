"""May a pod go to a node: the filter of NodeResourceTopologyMatch, one node at a time.

Only the policy single-numa-node filters; the others never turn a pod away for its topology.
`cluster_filter` answers the same for all nodes of a cluster at once.

Source: scheduler-plugins pkg/noderesourcetopology/filter.go.
"""

from dataclasses import dataclass

from nri_plugin.kube.node_policy import node_policy
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.numa_zones import Zones, fitting, numa_zones, take_from_one
from nri_plugin.kube.pod_demand import Amounts, ContainerDemand, Kind, PodDemand, QoS


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node is out.

    Attributes:
        what: the first thing that could not be aligned: `pod` or a kind of container.
        name: the container's name, empty for the pod.
        request: what it asks for.
    """

    what: str
    name: str
    request: Amounts


def needs_no_filter(pod: PodDemand) -> bool:
    """Whether no node can be wrong for the pod: nothing of it is ever bound to a NUMA node."""
    return pod.qos is QoS.BEST_EFFORT and not pod.asks_for_devices


def refusal(
    pod: PodDemand,
    topology: NodeResourceTopology | None,
    allocatable: Amounts | None = None,
    *,
    sidecars_stay: bool = False,
) -> Refusal | None:
    """None when the pod may go to the node.

    Args:
        pod: what is asked for.
        topology: what the node tells; None passes.
        allocatable: of the node, None where unknown.
        sidecars_stay: count what sidecars hold while app containers start. Differs: the scheduler plugin
            checks each alone, and then the kubelet refuses the pod.
    """
    if topology is None or needs_no_filter(pod):
        return None
    how = node_policy(topology)
    if not how.is_single:
        return None
    zones = numa_zones(topology)
    if how.is_pod_scope:
        request = pod.effective_with_sidecars if sidecars_stay else pod.effective
        return _pod_refusal(pod, request, zones, allocatable)
    return _container_refusal(pod, zones, allocatable, sidecars_stay=sidecars_stay)


def _pod_refusal(
    pod: PodDemand, request: Amounts, zones: Zones, allocatable: Amounts | None
) -> Refusal | None:
    found = fitting(request, zones, allocatable, is_guaranteed=pod.is_guaranteed)
    return None if found is None or found else Refusal("pod", "", request)


def _container_refusal(
    pod: PodDemand, zones: Zones, allocatable: Amounts | None, *, sidecars_stay: bool
) -> Refusal | None:
    for container in pod.containers:
        found = fitting(container.requests, zones, allocatable, is_guaranteed=pod.is_guaranteed)
        if found is not None and not found:
            return Refusal(container.kind.value, container.name, container.requests)
        if found and stays(container, sidecars_stay=sidecars_stay):
            zones, short = take_from_one(
                zones, min(found), container.requests, is_guaranteed=pod.is_guaranteed
            )
            if short:
                return Refusal(container.kind.value, container.name, container.requests)
    return None


def stays(container: ContainerDemand, *, sidecars_stay: bool) -> bool:
    """Whether what the container takes is gone for those after it."""
    return container.kind is Kind.APP or (sidecars_stay and container.kind is Kind.SIDECAR)
