"""The NodeResourceTopology object of this node: its content, its publication, and the Node that owns it.

`available` is exact: a container can still get these amounts, because allocator and exporter are one program. All orders
are fixed, so that equal content is equal text.

`Publisher` sends the object if it is new, at a limited rate, and again after a failure. It has no thread and no clock. An
object is ours once this exporter has applied it. Fields of it that another manager changes are restored. An object that
this exporter never applied belongs to another exporter and is left alone, unless `take_over` is set.

`NodeOwner` finds the Node, so that the garbage collector removes the object with it. A Node that is deleted and
registered again has another uid, and the garbage collector deletes every object whose owner's uid no longer exists. So
the uid is read again when the object vanishes, and from time to time. Invariant: a uid is used only until the object
vanishes. Then nothing is published before the Node is found again: with the old uid the object would be deleted at once,
and without an owner it would outlive a deleted Node.

Source: k8stopologyawareschedwg; NodeResourceTopologyMatch of scheduler-plugins reads it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nri_plugin.kube import noderesourcetopology as nrt
from nri_plugin.kube.api_client import NODES, APIResource, KubeClient, Object
from nri_plugin.kube.noderesourcetopology import (
    NodeResourceTopology,
    Pair,
    Zone,
    ZoneResource,
    fingerprint,
    zone_name,
)
from nri_plugin.kube.watch import NOT_FOUND, WatchBackoff
from nri_plugin.model.errors import KubeAPIError
from nri_plugin.model.option_rows import OWN_ATTRIBUTES
from nri_plugin.model.options import (
    REGISTRY,
    MemoryManagerPolicy,
    Node,
    Options,
    ReservedMemory,
)
from nri_plugin.model.records import Kind, PodRecord, QOSClass
from nri_plugin.model.state import State
from nri_plugin.model.topology import NUMANode
from nri_plugin.policy.memory_state import MEMORY, memory_machine, memory_state
from nri_plugin.policy.pod_level import has_own_resources
from nri_plugin.process.logs import say

PodName = tuple[str, str]
"""Namespace and name."""

MILLI = 1000

LONGEST_NUMA_LIST = 8
"""The scheduler plugin's default divisor."""


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """Devices of one resource on one NUMA node: in total, and available."""

    numa_id: int
    resource: str
    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices as the kubelet reports them.

    Attributes:
        counts: by resource and NUMA node.
        pods: pods with devices near a NUMA node.
    """

    counts: tuple[DeviceCount, ...] = ()
    pods: frozenset[PodName] = frozenset()


NO_DEVICES = Devices()


def published(name: str, node: Node, state: State, devices: Devices = NO_DEVICES) -> NodeResourceTopology:
    """Return the object of a node.

    Args:
        name: of the Kubernetes node.
        node: the agent's machine and options.
        state: the agent's state.
        devices: the kubelet's devices; without them no device is listed.
    """
    resources = _resources(node, state, devices.counts)
    return NodeResourceTopology(
        name=name,
        zones=tuple(
            Zone(
                name=zone_name(numa.id),
                resources=tuple(resources[int(numa.id)]),
                costs=_costs(node, numa),
            )
            for numa in sorted(node.topology.nodes, key=lambda numa: numa.id)
        ),
        attributes=tuple(_attributes(node, state, devices)),
        topology_policies=(legacy_policy(node.options),),
    )


def accounted_pods(state: State, with_devices: frozenset[PodName] = frozenset()) -> list[PodRecord]:
    """Return the pods that `available` accounts for, by uid: those that hold resources of a zone for the scheduler plugin.

    These are all Guaranteed pods, because each has a memory limit, even those without exclusive CPUs or bound memory
    here, and pods of any class with devices of a zone. A fingerprint of another set would never equal the plugin's. A
    pod counts from its first container on.
    """
    present = {record.pod_uid for record in state.containers.values()}
    counted = (
        pod
        for pod in state.pods.values()
        if pod.uid in present
        and (pod.qos is QOSClass.GUARANTEED or (pod.namespace, pod.name) in with_devices)
    )
    return sorted(counted, key=lambda pod: pod.uid)


def _is_seen_by_plugin(pod: PodRecord, with_devices: frozenset[PodName]) -> bool:
    """Whether the scheduler plugin counts this accounted pod: it never looks at the resources of the pod itself."""
    facts = pod.facts
    if facts is None or not has_own_resources(facts) or (pod.namespace, pod.name) in with_devices:
        return True
    asked = (one.amounts for one in facts.containers if one.kind is not Kind.INIT)
    return any(
        amounts.memory_request_bytes > 0
        or (amounts.cpu_request_milli > 0 and amounts.cpu_request_milli % MILLI == 0)
        or any(size > 0 for _, size in amounts.hugepages)
        for amounts in asked
    )


def legacy_policy(options: Options) -> str:
    """Return policy and scope as the one word of v1alpha1; `None` for the policy none."""
    configured = options.topology_manager_policy, options.topology_manager_scope
    return next((word for word, pair in nrt.LEGACY_POLICIES.items() if pair == configured), "None")


def _costs(node: Node, numa: NUMANode) -> tuple[tuple[str, int], ...]:
    """Return the distances to every NUMA node; empty if the machine has none.

    Differs: other exporters number distances by position, which is wrong if NUMA ids have gaps; here:
        distances go by NUMA id. Why: machines with gaps exist. Option: none.
    """
    pairs = zip(node.topology.nodes, numa.distances or (), strict=False)
    return tuple(
        (zone_name(other.id), distance) for other, distance in sorted(pairs, key=lambda pair: pair[0].id)
    )


def _resources(node: Node, state: State, devices: Iterable[DeviceCount]) -> dict[int, list[ZoneResource]]:
    """Return the resources of every zone: cpu, memory, huge pages by size, devices by name.

    Every zone lists every resource except devices, with zero if it has none: a scheduler that adds up zones skips zones
    that do not list a requested resource.
    """
    rows: dict[int, list[ZoneResource]] = {
        int(numa.id): [_cpu(node, state, numa)] for numa in node.topology.nodes
    }
    for number, row in _memory(node, state):
        rows[number].append(row)
    for device in sorted(devices, key=lambda one: (one.resource, one.numa_id)):
        if device.numa_id in rows:
            total = device.total * MILLI
            rows[device.numa_id].append(ZoneResource(device.resource, total, total, device.available * MILLI))
    return rows


def _cpu(node: Node, state: State, numa: NUMANode) -> ZoneResource:
    allocatable, available = numa.cpus & node.allocatable, numa.cpus & state.available(node)
    return ZoneResource("cpu", len(numa.cpus) * MILLI, len(allocatable) * MILLI, len(available) * MILLI)


def _memory(node: Node, state: State) -> Iterator[tuple[int, ZoneResource]]:
    """Yield ordinary memory and huge pages by NUMA node, ordinary memory first."""
    machine = memory_machine(node.topology, _kept(node))
    allocated = memory_state(machine, (allocation.memory for allocation in state.allocations.values()))
    for resource in sorted(machine.total, key=lambda name: (name != MEMORY, name)):
        free = allocated.free(resource)
        for number, total in machine.total[resource].items():
            allocatable = machine.allocatable_of(resource)[number]
            yield (
                number,
                ZoneResource(resource, total * MILLI, allocatable * MILLI, max(0, free[number]) * MILLI),
            )


def _kept(node: Node) -> Iterable[ReservedMemory]:
    """Return the memory reserved for the system, by NUMA node.

    Under the Static policy, the configuration divides it. Under the policy None, the reservation of the whole node is
    spread in proportion to the ordinary memory of its NUMA nodes, exact to the byte.

    Differs: other exporters subtract nothing under the policy None, and publish more memory in the zones than
        the node has; here: the reservation of the whole node is spread over its zones. Why: the sum of the
        zones is then what the kubelet gives to pods. Option: none.
    """
    if node.options.memory_manager_policy is MemoryManagerPolicy.STATIC:
        return node.options.reserved_memory
    return _spread(node)


def _spread(node: Node) -> Iterator[ReservedMemory]:
    sizes = memory_machine(node.topology).allocatable_of(MEMORY)
    everything, before, kept_before = sum(sizes.values()), 0, 0
    # Differences of running totals add up to the byte; rounded shares would not.
    for numa in node.topology.nodes if everything else ():
        before += sizes[int(numa.id)]
        kept = node.options.kept_memory_bytes * before // everything
        yield ReservedMemory(numa.id, MEMORY, kept - kept_before)
        kept_before = kept


def _attributes(node: Node, state: State, devices: Devices) -> Iterator[Pair]:
    yield from _option_attributes(node.options)
    if len(node.topology.nodes) > LONGEST_NUMA_LIST:
        yield nrt.ATTRIBUTE_MAX_NUMA_NODES, str(len(node.topology.nodes))
    pods = accounted_pods(state, devices.pods)
    names = ((pod.namespace, pod.name) for pod in pods if _is_seen_by_plugin(pod, devices.pods))
    yield nrt.ATTRIBUTE_FINGERPRINT, fingerprint(names)
    yield nrt.ATTRIBUTE_FINGERPRINT_METHOD, nrt.METHOD_EXCLUSIVE
    yield nrt.ATTRIBUTE_ACCOUNTED_PODS, ",".join(sorted(nrt.short_uid(pod.uid) for pod in pods))
    yield f"{OWN_ATTRIBUTES}sharedPool", str(state.shared_pool(node))


def _option_attributes(options: Options) -> Iterator[Pair]:
    """Yield each published option: policies, other changed values, and one list of the changed options of each manager."""
    listed: dict[str, list[str]] = {}
    for one in REGISTRY.values():
        if one.published and one.manager is None:
            if one.is_policy or one.is_changed(options):
                yield one.published, one.text(options)
        elif one.published and one.is_changed(options):
            listed.setdefault(one.published, []).append(f"{one.name}={one.text(options)}")
    for attribute, texts in listed.items():
        yield attribute, ",".join(texts)


# Publication


CONFLICT = 409

PAUSE_S = 1.0
"""Pause between two writes: schedulers read the object at most once per pod, and etcd stores every version."""

CALM_S = 60.0
"""Time without changes by other managers after which the object is no longer contested."""


class Publisher:
    """Keeps one object of the cluster equal to the wanted content.

    Invariant: an object is sent only when it differs from the one last accepted, and no sooner than `pause_s` after the
    last attempt, or the pause after failures or of the server. When others change or delete it again and again, the same
    content is sent again after growing pauses; new content does not wait for these pauses.

    Args:
        client: of the cluster.
        resource: the kind of the object.
        manager: the field manager.
        clock: seconds that only grow.
        take_over: take fields of an object that is not ours, instead of failing.
        pause_s: the pause between two writes.
        backoff: the pauses after failures.

    Attributes:
        writes: the number of accepted writes.
        failures: the number of failed writes.
        taken_back_from: the managers whose changes the last accepted write reverted; empty for none.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: APIResource,
        manager: str,
        clock: Callable[[], float],
        *,
        take_over: bool = False,
        pause_s: float = PAUSE_S,
        backoff: WatchBackoff | None = None,
    ) -> None:
        self._client, self._resource, self._manager, self._clock = client, resource, manager, clock
        self._take_over, self._pause_s = take_over, pause_s
        self._backoff = backoff or WatchBackoff()
        self._wanted: Object | None = None
        self._accepted: Object | None = None
        self._written: Object | None = None
        self._uid = self._version = ""
        self._not_before = self._again_at = self._calm_at = clock()
        self._contest = WatchBackoff()
        self.writes = 0
        self.failures = 0
        self.taken_back_from = ""

    def want(self, obj: Mapping[str, Any]) -> None:
        """Set the content that the cluster should hold from now on."""
        self._wanted = dict(obj)

    def noticed(self, obj: Mapping[str, Any], fields: Iterable[str], *, is_gone: bool = False) -> bool:
        """Compare the cluster's object with the accepted one. It is due again if `fields` or owners differ.

        Versions older than the last write are ignored: that write has replaced them. A list without the object may be
        older than the first write.

        Args:
            obj: the cluster's object, or its last version; only `metadata.resourceVersion` counts if it is gone.
            fields: the fields to compare.
            is_gone: the cluster had no object at that version.

        Returns:
            Whether the object is due again.
        """
        accepted = self._accepted
        if accepted is None:
            return False
        version = _metadata(obj).get("resourceVersion", "")
        if version.isdecimal() and self._version.isdecimal() and int(version) <= int(self._version):
            return False
        is_as_accepted = (
            not is_gone
            and all(obj.get(field) == accepted.get(field) for field in fields)
            and _owner_uids(accepted) <= _owner_uids(obj)
        )
        if not is_as_accepted:
            self._accepted = None
            # The first change in a while is reverted at once. Two managers that write by turns must not fill the etcd.
            now = self._clock()
            if now >= self._calm_at:
                self._contest.reset()
                self._again_at = now
            else:
                self._again_at = now + self._contest.next_s()
            self._calm_at = self._again_at + CALM_S
        return not is_as_accepted

    def due_s(self) -> float | None:
        """Return the seconds until `publish` is due: 0 for now, None if the wanted content is accepted."""
        if self._wanted is None or self._wanted == self._accepted:
            return None
        # Pauses of a contest delay repetitions only, so that new figures reach schedulers.
        is_repeated = self._wanted == self._written
        not_before = max(self._not_before, self._again_at) if is_repeated else self._not_before
        return max(0.0, not_before - self._clock())

    def publish(self) -> None:
        """Send the wanted content.

        Raises:
            KubeAPIError: it was not accepted, and is due again after a pause. Status 404: the cluster does not know the
                kind; 409: the object belongs to another manager.
        """
        wanted = self._wanted
        if wanted is None:
            return
        self.taken_back_from = ""
        try:
            stored = self._applied(wanted)
        except KubeAPIError as error:
            self.failures += 1
            self._not_before = self._clock() + self._backoff.next_s(error.retry_after_s)
            raise
        self.writes += 1
        self._accepted = self._written = wanted
        metadata = _metadata(stored)
        self._uid, self._version = str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))
        self._backoff.reset()
        self._not_before = self._clock() + self._pause_s

    def _applied(self, wanted: Object) -> Object:
        """Apply the object, with force if another manager has changed an object that is ours.

        The forced write names the version that was found to be ours, so a write in between makes it fail.
        """
        try:
            return self._client.apply(self._resource, wanted, self._manager, force=self._take_over)
        except KubeAPIError as error:
            others = owners_of(error)
            found = self._found(wanted) if others else None
            if found is None or not self._is_ours(found):
                raise
        metadata = {**wanted["metadata"], "resourceVersion": _metadata(found).get("resourceVersion")}
        stored = self._client.apply(
            self._resource, {**wanted, "metadata": metadata}, self._manager, force=True
        )
        self.taken_back_from = others
        return stored

    def _found(self, wanted: Object) -> Object | None:
        """Return the cluster's object; None if it cannot be read."""
        with suppress(KubeAPIError):
            return self._client.get(self._resource, wanted["metadata"]["name"])
        return None

    def _is_ours(self, found: Object) -> bool:
        """Return whether this exporter has applied it: the server lists our manager, or it is the object of our last write.

        The first holds after a restart, too; the second holds even if others have changed all our fields.
        """
        metadata = _metadata(found)
        entries = metadata.get("managedFields") or ()
        has_applied = any(
            (entry.get("manager"), entry.get("operation")) == (self._manager, "Apply") for entry in entries
        )
        return has_applied or (self._uid != "" and metadata.get("uid") == self._uid)


def _metadata(obj: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (obj or {}).get("metadata") or {}


def _owner_uids(obj: Mapping[str, Any]) -> set[str]:
    return {str(reference.get("uid")) for reference in _metadata(obj).get("ownerReferences") or ()}


def owners_of(error: KubeAPIError) -> str:
    """Return the other managers of the object that a conflict names; empty for other errors."""
    if error.status != CONFLICT:
        return ""
    return ", ".join(sorted({text.split('"')[1] for _, text in error.causes if text.count('"') == 2}))


# The owner


FORBIDDEN = 403

AGAIN_S = 300.0
"""Period of reading the uid again: 5,000 nodes make 17 requests a second."""

LONGEST_MISSING_S = 10.0
"""Longest pause between two reads of a missing Node: its pods wait for the object once it is back."""


class NodeOwner:
    """Keeps the Node's uid.

    Args:
        client: of the cluster.
        node_name: of the Node.
        log: for changes, and for failures when they begin and end.
        clock: seconds that only grow.

    Attributes:
        reference: for `ownerReferences`; None while the uid is not known.
        is_missing: the Node was known and must be found again before the next write.
    """

    def __init__(
        self, client: KubeClient, node_name: str, log: logging.Logger, clock: Callable[[], float]
    ) -> None:
        self._client, self._node_name, self._log, self._clock = client, node_name, log, clock
        self._backoff, self._missing_backoff = WatchBackoff(), WatchBackoff(longest_s=LONGEST_MISSING_S)
        self._look_at = clock()
        self._uid = ""
        self._trouble = ""
        self.reference: Object | None = None
        self.is_missing = False

    def due_s(self) -> float:
        """Return the seconds until the Node is read again."""
        return max(0.0, self._look_at - self._clock())

    def doubt(self) -> None:
        """Note that the object has vanished, perhaps with its owner."""
        if self.reference is not None:
            self.reference, self.is_missing = None, True
            self._look_at = self._clock()

    def look(self) -> None:
        """Read the Node's uid if it is due. Failures are logged and tried again later."""
        if self.due_s() > 0.0:
            return
        try:
            uid = str(_metadata(self._client.get(NODES, self._node_name)).get("uid") or "")
        except KubeAPIError as error:
            self._not_found(error)
            return
        if uid:
            self._found(uid)
        else:
            self._not_found(KubeAPIError(f"GET node {self._node_name}", "the answer has no uid"))

    def _found(self, uid: str) -> None:
        if self._uid and uid != self._uid:
            say(
                self._log,
                logging.WARNING,
                "the node was registered again: the object gets its new uid as owner",
                node=self._node_name,
                uid=uid,
                former_uid=self._uid,
            )
        elif self._trouble:
            say(self._log, logging.INFO, "the node is known again", node=self._node_name, uid=uid)
        self._uid, self._trouble, self.is_missing = uid, "", False
        self.reference = {"apiVersion": "v1", "kind": "Node", "name": self._node_name, "uid": uid}
        self._backoff.reset()
        self._missing_backoff.reset()
        self._look_at = self._clock() + AGAIN_S

    def _not_found(self, error: KubeAPIError) -> None:
        if error.status == NOT_FOUND:
            self.doubt()
        elif error.status == FORBIDDEN:  # every later read would fail, too: publish without an owner
            self.is_missing = False
        if self.is_missing:
            text = "nothing is published until the node is found again"
        elif self.reference is None:
            text = "the object has no owner and will outlive its node, unless the node is found later"
        else:
            text = "the node's uid could not be read again"
        if str(error) != self._trouble:
            say(self._log, logging.WARNING, text, node=self._node_name, err=error)
        self._trouble = str(error)
        backoff = self._missing_backoff if self.is_missing else self._backoff
        self._look_at = self._clock() + backoff.next_s(error.retry_after_s)
