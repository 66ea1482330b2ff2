"""The NodeResourceTopology object, which describes the NUMA nodes of a node, and fingerprints of sets of pods.

Every amount is a whole number of thousandths of its unit (CPUs, bytes, devices). Finer amounts are rounded up, as in
the API server's `MilliValue`. Order is kept: an apply replaces lists as a whole, so equal content must be equal text.
Published amounts are plain decimals, which every reader understands.

Source: k8stopologyawareschedwg/noderesourcetopology-api, v1alpha1 and v1alpha2.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

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
    metadata = _mapping(obj.get("metadata"), "metadata")
    name = _text(metadata.get("name", ""), "metadata.name")
    try:
        return NodeResourceTopology(
            name=name,
            zones=_zones(obj),
            attributes=_pairs(obj.get("attributes"), "attributes"),
            topology_policies=tuple(
                _text(one, "topologyPolicies")
                for one in _list(obj.get("topologyPolicies"), "topologyPolicies")
            ),
            annotations=tuple(_mapping(metadata.get("annotations"), "metadata.annotations").items()),
        )
    except KubeObjectError as error:
        raise KubeObjectError(f"{KIND} {name or '(without name)'}: {error}") from None


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


def _zones(obj: Object) -> tuple[Zone, ...]:
    zones = tuple(map(_zone, _list(obj.get("zones"), "zones")))
    names = len({resource.name for zone in zones for resource in zone.resources})
    if names > MOST_NAMES:
        raise KubeObjectError(f"{names} different resources, at most {MOST_NAMES} are read")
    return zones


def _zone(obj: object) -> Zone:
    fields = _mapping(obj, "zone")
    name = _shared_name(_text(fields.get("name"), "zone name"))
    return Zone(
        name=name,
        type=_text(fields.get("type"), f"type of zone {name}"),
        resources=tuple(map(_resource, _list(fields.get("resources"), f"resources of zone {name}"))),
        costs=tuple(map(_cost, _list(fields.get("costs"), f"costs of zone {name}"))),
    )


def _resource(obj: object) -> ZoneResource:
    fields = _mapping(obj, "resource")
    available = parse_amount(fields.get("available", 0))
    return ZoneResource(
        name=_shared_name(_text(fields.get("name"), "resource name")),
        capacity_milli=parse_amount(fields.get("capacity", 0)),
        allocatable_milli=parse_amount(fields.get("allocatable", 0)),
        available_milli=available,
    )


def _cost(obj: object) -> tuple[str, int]:
    fields = _mapping(obj, "cost")
    value = fields.get("value")
    if not isinstance(value, int) or isinstance(value, bool):
        raise KubeObjectError(f"cost value {_shown(value)} is not a whole number")
    if abs(value) >= LONGEST_DISTANCE:
        raise KubeObjectError(f"{_shown(value)} is not a distance; the longest is {LONGEST_DISTANCE - 1}")
    return _shared_cost(_text(fields.get("name"), "cost name"), value)


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


def _pairs(obj: object, what: str) -> tuple[Pair, ...]:
    rows = [_mapping(row, what) for row in _list(obj, what)]
    return tuple((_text(row.get("name"), what), _text(row.get("value"), what, LONGEST_VALUE)) for row in rows)


def _mapping(obj: object, what: str) -> Object:
    if obj is None:
        return {}
    if not isinstance(obj, Mapping):
        raise KubeObjectError(f"{what} is {type(obj).__name__}, not a mapping")
    return obj


def _list(obj: object, what: str) -> Sequence[object]:
    if obj is None:
        return ()
    if not isinstance(obj, (list, tuple)):
        raise KubeObjectError(f"{what} is {type(obj).__name__}, not a list")
    if len(obj) > MOST_ITEMS:
        raise KubeObjectError(f"{what}: {len(obj)}, at most {MOST_ITEMS} are read")
    return obj


def _text(obj: object, what: str, longest: int = LONGEST_NAME) -> str:
    if not isinstance(obj, str):
        raise KubeObjectError(f"{what} is {type(obj).__name__}, not text")
    if len(obj) > longest:
        raise KubeObjectError(f"{what} has {len(obj)} characters, at most {longest} are read")
    return obj
