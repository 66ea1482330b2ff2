"""Nodes and pods of a cluster, in as few words as a test needs."""

from collections.abc import Mapping, Sequence
from typing import Any

from nri_plugin.extender.nodes import NodePolicy, NUMAZone, Zones, node_policy, numa_zones
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, from_object, parse_amount
from nri_plugin.kube.pod_demand import PodDemand, pod_demand

Object = dict[str, Any]


def zone(numa_id: int, costs: Mapping[int, int] | None = None, **available: str) -> NUMAZone:
    return NUMAZone(numa_id, amounts(available), costs or {})


def amounts(given: Mapping[str, str]) -> dict[str, int]:
    return {name.replace("__", "/"): parse_amount(value) for name, value in given.items()}


def nrt_object(
    name: str,
    zones: Mapping[int, Mapping[str, str]],
    *,
    policy: str = "single-numa-node",
    scope: str = "container",
    costs: Mapping[int, Sequence[int]] | None = None,
    **attributes: str,
) -> Object:
    """A node; `zones` by id what is available, `costs` by id the distances in the order of `zones`."""
    rows = {"topologyManagerPolicy": policy, "topologyManagerScope": scope, **attributes}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [{"name": key, "value": value} for key, value in rows.items()],
        "zones": [
            {
                "name": f"node-{numa_id}",
                "type": "Node",
                "costs": [
                    {"name": f"node-{other}", "value": value}
                    for other, value in zip(zones, (costs or {}).get(numa_id, ()), strict=False)
                ],
                "resources": [
                    {"name": key, "capacity": value, "allocatable": value, "available": value}
                    for key, value in have.items()
                ],
            }
            for numa_id, have in zones.items()
        ],
    }


def topology(*args: Any, **kwargs: Any) -> NodeResourceTopology:
    return from_object(nrt_object(*args, **kwargs))


def node_row(one: NodeResourceTopology) -> tuple[NodePolicy, Zones]:
    return node_policy(one), numa_zones(one)


def zones_of(one: NodeResourceTopology) -> Zones:
    return numa_zones(one)


def container(name: str = "c", *, limits: bool = True, always: bool = False, **requests: str) -> Object:
    asked = {key.replace("__", "/").replace("_", "-"): value for key, value in requests.items()}
    obj: Object = {"name": name, "resources": {"requests": asked}}
    if limits:
        obj["resources"]["limits"] = asked
    if always:
        obj["restartPolicy"] = "Always"
    return obj


def pod_object(
    *containers: Object,
    name: str = "p",
    init: Sequence[Object] = (),
    node: str = "",
    phase: str = "",
    uid: str | None = None,
    **spec: Any,
) -> Object:
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}" if uid is None else uid},
        "spec": {
            "containers": list(containers),
            "initContainers": list(init),
            "nodeName": node,
            **spec,
        },
        "status": {"phase": phase},
    }


def pod(*containers: Object, **kwargs: Any) -> PodDemand:
    return pod_demand(pod_object(*containers, **kwargs))
