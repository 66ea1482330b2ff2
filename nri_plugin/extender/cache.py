"""The extender's view of the cluster: objects of nodes, pods, and charges for pods that the objects do not contain yet.

A pod is charged to its node from its binding, or from the answer that most likely leads to it, until the node's object
accounts for it or the pod is gone. It is charged to each NUMA node on which it can lie. The cache detects in one of three
ways that an object accounts for it:

1. The object names the pods that it accounts for, as that of our exporter. It names a pod from its first container on,
   so a pod with several containers stays charged until it runs, that is, until all of them were created.
2. The object has a fingerprint. It is compared with the pods of the node, without the youngest few, and without those
   that do not run yet. If one of these sets matches, only the pods outside it stay charged.
3. The object has neither, and was published after the pod ran.

A charge for a running pod ends in any case after a while, so that a node whose exporter counts pods differently does
not look full forever. CPUs and memory of pods that are not Guaranteed are not charged: no node subtracts them.

Invariant: a node's row in the cluster's table is its object less the charges of its ledger. A node without an object is
an empty row, and passes.

`NodeLedger` keeps one node, `ExtenderCache` all of them. Neither has a clock, a thread or a lock. Objects are read with
`read_topology` and `read_pod` before the caller takes its lock.

Differs: the over-reserve cache of the scheduler plugin accepts no new object until the whole set of pods
    agrees, and drops or keeps all charges together; here: each pod is charged until the object accounts for
    it. Why: one pod that does not agree must not keep the view of the node old. Option: none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.nodes import NodePolicy, Zones, fitting, node_policy, numa_zones
from nri_plugin.kube.noderesourcetopology import (
    ATTRIBUTE_ACCOUNTED_PODS,
    METHOD_ALL,
    NodeResourceTopology,
    from_object,
    of_hashes,
    pod_hash,
    short_uid,
)
from nri_plugin.kube.pod_demand import PodDemand, is_native, pod_demand
from nri_plugin.model.errors import KubeObjectError


@dataclass(slots=True)
class Resident:
    """A pod on the node.

    Attributes:
        pod: its requests.
        order: ascending in the order of arrival.
        is_charged: whether the node's object does not account for it yet.
        numa_id: the NUMA node that the extender chose; None for none.
        running_since_s: when it was first seen running; None before.
    """

    pod: PodDemand
    order: int
    is_charged: bool
    numa_id: int | None = None
    running_since_s: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all its containers exist if one exists: it has only one, or it runs."""
        return len(self.pod.containers) == 1 or self.running_since_s is not None


@dataclass(slots=True)
class NodeLedger:
    """A node's object and its pods. Methods return whether the node's available resources may have changed."""

    topology: NodeResourceTopology | None = None
    residents: dict[str, Resident] = field(default_factory=dict)
    came: int = 0

    def published(self, topology: NodeResourceTopology | None) -> bool:
        """Take a new or changed object of the node, or its deletion (None)."""
        before = self.topology
        self.topology = topology
        settled = self._settle() if topology is not None else False
        return settled or topology != before

    def arrived(
        self, pod: PodDemand, now_s: float, *, is_old: bool = False, numa_id: int | None = None
    ) -> bool:
        """Take a pod that was bound to the node, or seen again.

        Args:
            pod: its present object.
            now_s: seconds that only grow.
            is_old: it was running before the first list, so the node's object accounts for it.
            numa_id: the NUMA node that the extender chose.
        """
        known = self.residents.get(pod.key)
        is_running = pod.phase == "Running"
        if known is None:
            self.came += 1
            known = Resident(pod, self.came, False, numa_id)
            is_settled = (is_old and is_running) or (known.is_whole and short_uid(pod.uid) in self._named())
            # The node's object, which tells how the node sees the pod, may come later.
            known.is_charged = bool(charge_of(pod) or charge_of(pod.under_pod_scope)) and not is_settled
            self.residents[pod.key] = known
        known.pod = pod
        known.numa_id = known.numa_id if numa_id is None else numa_id
        if is_running and known.running_since_s is None:
            known.running_since_s = now_s
        return known.is_charged

    def left(self, key: str) -> bool:
        """Remove the pod with this key, which ended or was deleted."""
        gone = self.residents.pop(key, None)
        return gone is not None and gone.is_charged

    def expire(self, before_s: float) -> int:
        """End the charges of pods that have been running since `before_s` or longer; returns their number."""
        old = [
            one
            for one in self.residents.values()
            if one.is_charged and one.running_since_s is not None and one.running_since_s <= before_s
        ]
        for one in old:
            one.is_charged = False
        return len(old)

    def settle_running(self, before_s: float) -> bool:
        """End the charges of pods that the object names and that have been running since `before_s` or longer.

        No further object follows for a pod that runs only after its last container was published.
        """
        named = self._named()
        return _end(
            one
            for one in (self.charged if named else ())
            if one.running_since_s is not None
            and one.running_since_s <= before_s
            and short_uid(one.pod.uid) in named
        )

    @property
    def charged(self) -> list[Resident]:
        """The charged pods, oldest first."""
        return [one for one in self.residents.values() if one.is_charged]

    def zones(self) -> Zones:
        """Return the NUMA nodes of the object, less the charges; none without an object."""
        zones = numa_zones(self.topology) if self.topology is not None else ()
        charged = self.charged
        if not charged or not zones:
            return zones
        how = self.policy
        charges: dict[int, dict[str, int]] = {}
        for one in charged:
            demand = how.demand_of(one.pod)
            for numa_id in (one.numa_id,) if one.numa_id is not None else _places(demand, zones, how):
                charge = charges.setdefault(numa_id, {})
                for name, amount in charge_of(demand).items():
                    charge[name] = charge.get(name, 0) + amount
        return tuple(zone.less(charges.get(zone.id, {})) for zone in zones)

    @property
    def policy(self) -> NodePolicy:
        """The options of the Topology Manager that the node's object tells; the defaults without an object."""
        return node_policy(self.topology) if self.topology is not None else NodePolicy()

    def _named(self) -> frozenset[str]:
        """Return the short uids of the pods that the object names; empty if it names none."""
        text = self.topology.attribute(ATTRIBUTE_ACCOUNTED_PODS) if self.topology is not None else None
        return frozenset(one for one in (text or "").replace(" ", "").split(",") if one)

    def _settle(self) -> bool:
        topology = self.topology
        charged = self.charged
        if topology is None or not charged:
            return False
        # The three ways of the module's description, from the most exact one.
        if topology.attribute(ATTRIBUTE_ACCOUNTED_PODS) is not None:
            named = self._named()
            return _end(one for one in charged if one.is_whole and short_uid(one.pod.uid) in named)
        if topology.fingerprint:
            return _end(self._covered(topology, charged))
        return _end(one for one in charged if one.running_since_s is not None)

    def _covered(self, topology: NodeResourceTopology, charged: list[Resident]) -> list[Resident]:
        """Return the charged pods that the fingerprint covers; none if it matches no known set."""
        names = topology.resource_names
        is_all = topology.fingerprint_method == METHOD_ALL
        hashes = {
            one.order: pod_hash(one.pod.namespace, one.pod.name)
            for one in self.residents.values()
            if is_all or one.pod.holds_exclusively(names)
        }
        for covered in _guesses(charged):
            left_out = {one.order for one in charged} - {one.order for one in covered}
            known = [value for order, value in hashes.items() if order not in left_out]
            if of_hashes(known) == topology.fingerprint:
                return covered
        return []


def _guesses(charged: list[Resident]) -> Iterator[list[Resident]]:
    """Yield the sets of charged pods that an exporter may have seen: all, all but the youngest few, the running ones."""
    for count in range(len(charged), -1, -1):
        yield charged[:count]
    yield [one for one in charged if one.running_since_s is not None]


def _places(pod: PodDemand, zones: Zones, how: NodePolicy) -> frozenset[int]:
    """Return the ids of the NUMA nodes on which the pod, or a container of it, can lie; all of them if that is open."""
    everywhere = frozenset(zone.id for zone in zones)
    if not how.is_single:
        return everywhere
    whole = [pod.effective_with_sidecars]
    requests = whole if how.is_pod_scope else [one.requests for one in pod.containers]
    found: frozenset[int] = frozenset()
    for request in requests:
        holding = fitting(request, zones, is_guaranteed=pod.is_guaranteed)
        found |= everywhere if holding is None else holding
    # No NUMA node has room for it: the object may account for the pod already, unknown to us.
    return found or everywhere


def charge_of(pod: PodDemand) -> Mapping[str, int]:
    """Return the amounts that a node subtracts for a pod: all of a Guaranteed pod, only devices of others."""
    request = pod.effective_with_sidecars
    if pod.is_guaranteed:
        return request
    return {name: amount for name, amount in request.items() if not is_native(name)}


def _end(charges: Iterable[Resident]) -> bool:
    ended = list(charges)
    for one in ended:
        one.is_charged = False
    return bool(ended)


ENDED = frozenset({"Succeeded", "Failed"})

PUBLISHED_S = 5.0
"""Time in which an exporter has published: it writes once a second, and again after a short pause."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Accounting:
    """How pods are charged to nodes.

    Attributes:
        is_on: whether pods are charged.
        charge_s: how long a running pod stays charged if its node's object never accounts for it.
        guess_s: how long at most a pod is charged to the node that it will most likely get, before its binding is seen.
    """

    is_on: bool = True
    charge_s: float = 60.0
    guess_s: float = 30.0


MOST_GUESSES = 1024
"""Pods that are charged before their binding is seen; any client of the port may name pods that do not exist."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A NodeResourceTopology object that does not match its schema or is too large, and why."""

    name: str
    why: str


@dataclass(slots=True)
class Counters:
    """Counters for metrics."""

    rejected_objects: int = 0
    expired_charges: int = 0


class ExtenderCache:
    """Receives objects through `on_*`; `cluster` then answers.

    Args:
        cluster: the nodes, less the charges.
        accounting: how pods are charged.
        clock: seconds that only grow.
    """

    def __init__(self, cluster: ClusterAnswers, accounting: Accounting, clock: Callable[[], float]) -> None:
        self.cluster = cluster
        self.counters = Counters()
        self.rejected: dict[str, str] = {}  # why the object of a node is not used, by its name
        self.synced: set[str] = set()
        self._accounting, self._clock = accounting, clock
        self._ledgers: dict[str, NodeLedger] = {}
        self._node_by_pod: dict[str, str] = {}
        self._guess_until_s: dict[str, tuple[float, PodDemand]] = {}
        self._next_expiry_s = 0.0

    def on_topology(self, topology: NodeResourceTopology | Unreadable) -> None:
        """Add or update a node's object. An object that cannot be read counts as none."""
        if isinstance(topology, Unreadable):
            self.counters.rejected_objects += 1
            self.on_topology_deleted(topology.name)
            self.rejected[topology.name] = topology.why
            return
        self.rejected.pop(topology.name, None)
        ledger = self._ledger(topology.name)
        if ledger.published(topology):
            self._refresh(topology.name, ledger)

    def on_topology_deleted(self, name: str) -> None:
        """Forget the object of a node."""
        self.rejected.pop(name, None)
        ledger = self._ledgers.get(name)
        if ledger is not None and ledger.published(None):
            self._refresh(name, ledger)

    def on_topologies_listed(self, listed: Sequence[NodeResourceTopology | Unreadable]) -> None:
        """Replace all objects by these; a node that is not among them has none."""
        names = {one.name for one in listed}
        known = [name for name, one in self._ledgers.items() if one.topology]
        for name in [*known, *self.rejected]:
            if name not in names:
                self.on_topology_deleted(name)
        for one in listed:
            self.on_topology(one)
        self.on_synced("nrt")

    def on_pod(self, pod: PodDemand | None) -> None:
        """Take a pod that is new or has changed; None stands for an unreadable object.

        A pod with a node is charged. A pod that kube-scheduler could not place is charged no longer.
        """
        if pod is None:
            self.counters.rejected_objects += 1
        elif pod.phase in ENDED:
            self.release(pod.key)
        elif pod.node:
            self.charge(pod)
        elif pod.is_unschedulable:
            self.forget_guess(pod)

    def on_pod_deleted(self, key: str) -> None:
        """End the charge of a deleted pod."""
        self.release(key)

    def on_pods_listed(self, listed: Sequence[PodDemand | None]) -> None:
        """Replace all pods by these. None stands for an unreadable object."""
        for pod in listed:
            self.on_pod(pod)
        keys = {pod.key for pod in listed if pod is not None}
        for key in [key for key in self._node_by_pod if key not in keys]:
            self.release(key)
        self.on_synced("pods")

    def on_synced(self, what: str) -> None:
        """Note that a first list is complete: `nrt` or `pods`. Without the CRD, `nrt` is complete at once."""
        self.synced.add(what)

    @property
    def is_ready(self) -> bool:
        """Whether the first lists are complete."""
        wanted = {"nrt", "pods"} if self._accounting.is_on else {"nrt"}
        return wanted <= self.synced

    def charge(self, pod: PodDemand, numa_id: int | None = None) -> None:
        """Charge a pod that is, or is being, bound to `pod.node`."""
        if not self._accounting.is_on:
            return
        key = pod.key
        self._guess_until_s.pop(key, None)
        before = self._node_by_pod.get(key)
        if before is not None and before != pod.node:
            self.release(key)
        self._node_by_pod[key] = pod.node
        ledger = self._ledger(pod.node)
        # Before the first list is complete, every running pod ran before this process started.
        is_old = "pods" not in self.synced
        if ledger.arrived(pod, self._clock(), is_old=is_old, numa_id=numa_id):
            self._refresh(pod.node, ledger)

    def guess(self, pod: PodDemand) -> None:
        """Charge a pod to the node that it will most likely get.

        The charge ends with the binding, with the pod, when kube-scheduler reports that it could not place the pod or asks
        about it again, and after a while.
        """
        if self._accounting.is_on and self._accounting.guess_s and pod.key not in self._node_by_pod:
            self.charge(pod)
            self._guess_until_s[pod.key] = (self._clock() + self._accounting.guess_s, pod)
            if len(self._guess_until_s) > MOST_GUESSES:
                self.release(next(iter(self._guess_until_s)))

    def release(self, key: str) -> None:
        """End the charge of the pod with this key: it ended, was deleted, or its binding failed."""
        self._guess_until_s.pop(key, None)
        node = self._node_by_pod.pop(key, None)
        ledger = self._ledgers.get(node) if node is not None else None
        if node is not None and ledger is not None and (ledger.left(key) or ledger.topology is None):
            self._refresh(node, ledger)

    def forget_guess(self, pod: PodDemand) -> None:
        """End the guess of a pod that is filtered again, so that the pod does not compete with itself."""
        if self._guess_until_s.pop(pod.key, None) is not None:
            self.release(pod.key)

    def is_charged_for(self, pod: PodDemand) -> bool:
        """Return whether the pod is counted as bound to a node."""
        return pod.key in self._node_by_pod

    def expire(self) -> None:
        """End charges that have lasted too long. Every request may call this."""
        now = self._clock()
        for until_s, pod in list(self._guess_until_s.values()):
            if until_s <= now:
                self.forget_guess(pod)
        # Once a second is enough for the rest, which walks all nodes.
        if now < self._next_expiry_s:
            return
        self._next_expiry_s = now + 1.0
        for name, ledger in list(self._ledgers.items()):
            if not ledger.residents:
                continue
            settled = ledger.settle_running(now - PUBLISHED_S)
            ended = ledger.expire(now - self._accounting.charge_s)
            self.counters.expired_charges += ended
            if settled or ended:
                self._refresh(name, ledger)

    def zones(self, node: str) -> Zones:
        """Return the node's NUMA nodes less the charges; empty for a node without an object."""
        ledger = self._ledgers.get(node)
        return ledger.zones() if ledger is not None else ()

    def demand_of(self, pod: PodDemand) -> PodDemand:
        """Return the pod as its node sees it."""
        ledger = self._ledgers.get(pod.node)
        return ledger.policy.demand_of(pod) if ledger is not None else pod

    def charged_pods(self) -> int:
        """Return the number of charged pods."""
        return sum(len(ledger.charged) for ledger in self._ledgers.values() if ledger.residents)

    def _ledger(self, node: str) -> NodeLedger:
        return self._ledgers.setdefault(node, NodeLedger())

    def _refresh(self, node: str, ledger: NodeLedger) -> None:
        if ledger.topology is None:
            self.cluster.forget(node)
            if not ledger.residents:
                del self._ledgers[node]
        else:
            self.cluster.put(node, ledger.policy, ledger.zones())


def read_topology(obj: Object) -> NodeResourceTopology | Unreadable:
    """Read an object."""
    try:
        return from_object(obj)
    except KubeObjectError as error:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else ""
        return Unreadable(name if isinstance(name, str) else "", str(error))


def read_pod(obj: Object) -> PodDemand | None:
    """Read a pod; returns None if the object does not match its schema. Of a pod without a node no amounts are kept."""
    try:
        pod = pod_demand(obj)
    except KubeObjectError:
        return None
    return pod if pod.node else replace(pod, containers=(), overhead={}, own={})


def pod_key(obj: Object) -> str:
    """Return the key of a pod, as `PodDemand.key`, also of one that does not match its schema."""
    metadata = obj.get("metadata") or {}
    return str(metadata.get("uid") or f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}")
