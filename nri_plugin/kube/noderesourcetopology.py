"""The NodeResourceTopology object, which describes the NUMA nodes of a node, and fingerprints of sets of pods.

Every amount is a whole number of thousandths of its unit (CPUs, bytes, devices). Finer amounts are rounded up, as in
the API server's `MilliValue`. Order is kept: an apply replaces lists as a whole, so equal content must be equal text.
Published amounts are plain decimals, which every reader understands.

Source: k8stopologyawareschedwg/noderesourcetopology-api, v1alpha1 and v1alpha2.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any

import msgspec

from nri_plugin.model.errors import KubeObjectError
from nri_plugin.model.options import TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.quantity import parse_quantity

# Fingerprints: two programs compare them to tell whether they counted the same set of pods.
#
# Namespace and name identify a pod; the order of pods does not matter.
#
# xxhash is imported where it is used: simulations read pods and quantities with this module where it is not installed.
#
# Source: k8stopologyawareschedwg/podfingerprint, version 1.


PREFIX = "pfp0v001"


def pod_hash(namespace: str, name: str) -> int:
    """Return 64 bits of one pod. Fingerprints of many sets of the same pods compute it once."""
    import xxhash

    seed = xxhash.xxh64_intdigest(namespace.encode(), 0)
    return xxhash.xxh64_intdigest(name.encode(), seed)


def of_hashes(hashes: Iterable[int]) -> str:
    """Return the fingerprint of pods, from their hashes."""
    import xxhash

    joined = b"".join(one.to_bytes(8, "little") for one in sorted(hashes))
    return PREFIX + xxhash.xxh64_hexdigest(joined, 0)


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the fingerprint of pods, from (namespace, name)."""
    return of_hashes(pod_hash(namespace, name) for namespace, name in pods)


# The object


GROUP = "topology.node.k8s.io"
V1ALPHA2 = "v1alpha2"
KIND = "NodeResourceTopology"
PLURAL = "noderesourcetopologies"

ZONE_TYPE_NODE = "Node"
"""The only zone type that schedulers look at."""

ATTRIBUTE_POLICY = "topologyManagerPolicy"
ATTRIBUTE_SCOPE = "topologyManagerScope"
ATTRIBUTE_MAX_NUMA_NODES = "topologyManagerMaxNUMANodes"
ATTRIBUTE_FINGERPRINT = "nodeTopologyPodsFingerprint"
ATTRIBUTE_FINGERPRINT_METHOD = "nodeTopologyPodsFingerprintMethod"
ANNOTATION_FINGERPRINT = "topology.node.k8s.io/fingerprint"

ATTRIBUTE_POLICY_OPTIONS = "nri-pin/topologyManagerPolicyOptions"
"""Of nri-pin: the options that are on, such as `prefer-closest-numa-nodes=true`, separated by commas."""

ATTRIBUTE_ACCOUNTED_PODS = "nri-pin/accounted-pods"
"""Of nri-pin: `short_uid` of each pod that `available` accounts for, ascending, separated by commas."""

MOST_ITEMS = 256
"""Longest list that is read: zones, resources and distances of a zone, attributes. No machine has nearly as many."""

MOST_NAMES = 512
"""Different resources of one node. Each node writes its own object, and must not exhaust the memory of the readers."""

LONGEST_NAME = 317
"""Characters of a name. Source: Kubernetes, a domain of 253 characters, a slash and 63 characters."""

LONGEST_VALUE = 1 << 16
"""Characters of an attribute's value; the longest names the pods of a node."""

LONGEST_AMOUNT = 64
"""Characters of a quantity. Kubernetes writes at most 20."""

MOST_AMOUNT = 10**30
SHARED_NAMES = 1 << 12

LONGEST_DISTANCE = 1 << 31

LONGEST_ID = 18
"""Digits of a zone's number."""

LEGACY_POLICIES: Mapping[str, tuple[TopologyManagerPolicy, TopologyManagerScope]] = {
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
"""Policy and scope by the one word for both that v1alpha1 has (`topologyPolicies`)."""

METHOD_ALL = "all"
METHOD_EXCLUSIVE = "with-exclusive-resources"

Pair = tuple[str, str]
Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ZoneResource:
    """One resource of a zone, in thousandths.

    Attributes:
        name: the Kubernetes resource name.
        capacity_milli: the total.
        allocatable_milli: the total less reservations.
        available_milli: allocatable less the resources of running pods.
    """

    name: str
    capacity_milli: int
    allocatable_milli: int
    available_milli: int


@dataclass(frozen=True, slots=True)
class Zone:
    """One zone.

    Attributes:
        name: `node-N` for NUMA node N.
        type: `Node` for a NUMA node.
        resources: in the object's order.
        costs: distance by zone name, in the object's order; 10 is the zone itself.
    """

    name: str
    type: str = ZONE_TYPE_NODE
    resources: tuple[ZoneResource, ...] = ()
    costs: tuple[tuple[str, int], ...] = ()

    @property
    def numa_id(self) -> int | None:
        """The NUMA node's id; None for a zone that is no NUMA node."""
        return numa_id_of(self.name) if self.type == ZONE_TYPE_NODE else None


@dataclass(frozen=True)
class NodeResourceTopology:
    """One node's object.

    Attributes:
        name: the Kubernetes node's name.
        zones: in the object's order.
        attributes: names and values of the node; readers use the first of two with one name.
        topology_policies: the legacy field; readers use its first entry only.
        annotations: of the object.
    """

    name: str
    zones: tuple[Zone, ...] = ()
    attributes: tuple[Pair, ...] = ()
    topology_policies: tuple[str, ...] = ()
    annotations: tuple[Pair, ...] = ()

    def attribute(self, name: str) -> str | None:
        """Return the value of a node's attribute; None if there is none."""
        return next((value for key, value in self.attributes if key == name), None)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the pods that `available` accounts for; empty if the exporter publishes none."""
        return self.attribute(ATTRIBUTE_FINGERPRINT) or dict(self.annotations).get(ANNOTATION_FINGERPRINT, "")

    @cached_property
    def fingerprint_method(self) -> str:
        """`all` or `with-exclusive-resources`; an annotation alone always means all."""
        if self.attribute(ATTRIBUTE_FINGERPRINT) is None:
            return METHOD_ALL
        return self.attribute(ATTRIBUTE_FINGERPRINT_METHOD) or METHOD_ALL

    @cached_property
    def resource_names(self) -> frozenset[str]:
        """Every resource that any zone lists."""
        return frozenset(resource.name for zone in self.zones for resource in zone.resources)


def short_uid(pod_uid: str) -> str:
    """Return the short form of a uid in `ATTRIBUTE_ACCOUNTED_PODS`: 250 pods stay below 3 KiB."""
    return pod_uid.replace("-", "")[:10]


def zone_name(numa_id: int) -> str:
    """Return the zone name of a NUMA node."""
    return f"node-{numa_id}"


def numa_id_of(name: str) -> int | None:
    """Return the NUMA node of a zone name; None for other names.

    Differs: the scheduler plugin accepts no NUMA ids above 63; here: every id is valid. Why: machines with
        larger ids exist. Option: none.
    """
    prefix, _, digits = name.partition("-")
    is_number = digits.isdecimal() and digits.isascii() and len(digits) <= LONGEST_ID
    return int(digits) if prefix == "node" and is_number else None


def from_object(obj: Object) -> NodeResourceTopology:
    """Read an object of either version, as decoded from JSON.

    Raises:
        KubeObjectError: the object does not match its schema.
    """
    try:
        read = msgspec.convert(obj, _Object)
        zones = tuple(map(_zone, read.zones or ()))
    except (ValueError, RecursionError, KubeObjectError) as error:
        raise KubeObjectError(f"{KIND}: {str(error)[:LONGEST_NAME]}") from None
    names = len({resource.name for zone in zones for resource in zone.resources})
    if names > MOST_NAMES:
        raise KubeObjectError(f"{KIND}: {names} different resources, at most {MOST_NAMES} are read")
    metadata = read.metadata or _Metadata()
    return NodeResourceTopology(
        name=metadata.name,
        zones=zones,
        attributes=tuple((one.name, one.value) for one in read.attributes or ()),
        topology_policies=tuple(read.topology_policies or ()),
        annotations=tuple((metadata.annotations or {}).items()),
    )


def to_object(topology: NodeResourceTopology) -> dict[str, Any]:
    """Return the object to publish, of version v1alpha2; equal values give equal objects.

    Invariant: `from_object(to_object(x)) == x`.
    """
    metadata: dict[str, Any] = {"name": topology.name}
    if topology.annotations:
        metadata["annotations"] = dict(topology.annotations)
    obj: dict[str, Any] = {"apiVersion": f"{GROUP}/{V1ALPHA2}", "kind": KIND, "metadata": metadata}
    if topology.topology_policies:
        obj["topologyPolicies"] = list(topology.topology_policies)
    if topology.attributes:
        obj["attributes"] = [{"name": name, "value": value} for name, value in topology.attributes]
    obj["zones"] = [_zone_object(zone) for zone in topology.zones]
    return obj


def format_amount(milli: int) -> str:
    """Return a quantity: plain digits, with an `m` only if the amount is not a whole number."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def parse_amount(value: object) -> int:
    """Return the thousandths of a quantity: text or an integer.

    Raises:
        KubeObjectError: the value is neither, or not a quantity.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST_AMOUNT:
        return value * 1000
    if not isinstance(value, str) or len(value) > LONGEST_AMOUNT:
        raise KubeObjectError(f"{_shown(value)} is not a quantity; write text such as '1500m' or '2Gi'")
    return _parse_text(value)


def _shown(value: object) -> str:
    """Return the first characters of a value that is not as it should be. Python writes no integer of 4,300 digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:LONGEST_AMOUNT] if isinstance(value, str) else type(value).__name__


@lru_cache(maxsize=1 << 16)
def _parse_text(text: str) -> int:
    if text.isdecimal() and text.isascii() and len(text) <= 30:
        return int(text) * 1000
    try:
        amount = parse_quantity(text) * 1000
    except ValueError as error:
        raise KubeObjectError(str(error)) from None
    return -(-amount.numerator // amount.denominator)


# The object as it is read, with bounds: each node writes its own, and must not exhaust the memory of those who read all


_Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
_Items = msgspec.Meta(max_length=MOST_ITEMS)


class _Resource(msgspec.Struct):
    name: _Name
    capacity: str | int = 0
    allocatable: str | int = 0
    available: str | int = 0


class _Cost(msgspec.Struct):
    name: _Name
    value: Annotated[int, msgspec.Meta(gt=-LONGEST_DISTANCE, lt=LONGEST_DISTANCE)]


class _Zone(msgspec.Struct):
    name: _Name
    type: _Name
    resources: Annotated[list[_Resource], _Items] | None = None
    costs: Annotated[list[_Cost], _Items] | None = None


class _Attribute(msgspec.Struct):
    name: _Name
    value: Annotated[str, msgspec.Meta(max_length=LONGEST_VALUE)]


class _Metadata(msgspec.Struct):
    name: _Name = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, rename="camel"):
    metadata: _Metadata | None = None
    zones: Annotated[list[_Zone], _Items] | None = None
    attributes: Annotated[list[_Attribute], _Items] | None = None
    topology_policies: Annotated[list[_Name], _Items] | None = None


def _zone(read: _Zone) -> Zone:
    resources = (
        ZoneResource(
            _shared_name(one.name),
            parse_amount(one.capacity),
            parse_amount(one.allocatable),
            parse_amount(one.available),
        )
        for one in read.resources or ()
    )
    costs = tuple(_shared_cost(one.name, one.value) for one in read.costs or ())
    return Zone(_shared_name(read.name), read.type, tuple(resources), costs)


@lru_cache(maxsize=SHARED_NAMES)
def _shared_name(name: str) -> str:
    """Return one shared text for equal names. Python 3.12 before .8 never forgets a name that is interned."""
    return name


@lru_cache(maxsize=1 << 14)
def _shared_cost(name: str, value: int) -> tuple[str, int]:
    """Return one shared tuple for equal costs: a cluster has a million costs and a few hundred different ones."""
    return name, value


def _zone_object(zone: Zone) -> dict[str, Any]:
    obj: dict[str, Any] = {"name": zone.name, "type": zone.type}
    if zone.costs:
        obj["costs"] = [{"name": name, "value": value} for name, value in zone.costs]
    if zone.resources:
        obj["resources"] = [
            {
                "name": resource.name,
                "capacity": format_amount(resource.capacity_milli),
                "allocatable": format_amount(resource.allocatable_milli),
                "available": format_amount(resource.available_milli),
            }
            for resource in zone.resources
        ]
    return obj
