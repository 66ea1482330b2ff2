"""What the extender knows of the cluster, fed by watches, and what it has promised.

Invariant: a node's row is its object less the charges of its ledger. Objects that come late, change or go are
taken as they are; a node without one is a row that knows nothing, and passes.

Plain calls, no clock and no thread: whoever feeds it holds one lock around feeding and asking.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nri_plugin.errors import KubeObjectError
from nri_plugin.kube.charges import NodeLedger
from nri_plugin.kube.cluster import Cluster
from nri_plugin.kube.cluster_table import NodeRow
from nri_plugin.kube.node_policy import node_policy
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, from_object
from nri_plugin.kube.numa_zones import NUMAZone, Zones, charge_everywhere, numa_zones
from nri_plugin.kube.pod_demand import PodDemand, pod_demand

ENDED = frozenset({"Succeeded", "Failed"})

PUBLISHED_S = 5.0
"""An exporter has told what it knows by then: it writes once a second, and again after a short pause."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Accounting:
    """How promises are kept in mind.

    Attributes:
        is_on: whether pods are charged at all.
        charge_s: how long a running pod stays charged when nothing tells that its node accounts for it.
        guess_s: how long a pod counts on the node it will most likely get, before its binding is seen.
    """

    is_on: bool = True
    charge_s: float = 60.0
    guess_s: float = 1.0


@dataclass(slots=True)
class Counters:
    """What an administrator may want to see."""

    rejected_objects: int = 0
    expired_charges: int = 0


class ExtenderCache:
    """Feed it with `on_*`; ask `cluster`.

    Args:
        cluster: the columns.
        accounting: how promises are kept.
        clock: seconds that only grow.
    """

    def __init__(self, cluster: Cluster, accounting: Accounting, clock: Callable[[], float]) -> None:
        self.cluster = cluster
        self.counters = Counters()
        self.synced: set[str] = set()
        self._accounting, self._clock = accounting, clock
        self._ledgers: dict[str, NodeLedger] = {}
        self._node_by_pod: dict[str, str] = {}
        self._guess_until_s: dict[str, tuple[float, PodDemand]] = {}
        self._next_expiry_s = 0.0

    def on_nrt(self, obj: Object) -> None:
        """A NodeResourceTopology came or changed. One against its schema counts as none."""
        self.on_topology(read_topology(obj))

    def on_topology(self, topology: NodeResourceTopology | str) -> None:
        """The same, read already; a name where it could not be."""
        if isinstance(topology, str):
            self.counters.rejected_objects += 1
            self.on_nrt_deleted(topology)
            return
        ledger = self._ledger(topology.name)
        if ledger.published(topology):
            self._refresh(topology.name, ledger)

    def on_nrt_deleted(self, name: str) -> None:
        """A NodeResourceTopology went."""
        ledger = self._ledgers.get(name)
        if ledger is not None and ledger.published(None):
            self._refresh(name, ledger)

    def on_pod(self, obj: Object) -> None:
        """A pod came or changed."""
        self._on_pod(read_pod(obj))

    def _on_pod(self, pod: PodDemand | None) -> None:
        if pod is None:
            self.counters.rejected_objects += 1
        elif pod.phase in ENDED:
            self._let_go(pod)
        elif pod.node:
            self.promise(pod)

    def on_pod_deleted(self, obj: Object) -> None:
        """A pod went."""
        pod = read_pod(obj)
        if pod is None:
            self.counters.rejected_objects += 1
        else:
            self._let_go(pod)

    def on_nrt_listed(self, objects: Iterable[Object]) -> None:
        """All there are: what is not among them went."""
        self.on_topologies_listed([read_topology(obj) for obj in objects])

    def on_topologies_listed(self, told: Sequence[NodeResourceTopology | str]) -> None:
        """The same, read already."""
        names = {one if isinstance(one, str) else one.name for one in told}
        for name in [name for name, one in self._ledgers.items() if one.topology and name not in names]:
            self.on_nrt_deleted(name)
        for one in told:
            self.on_topology(one)
        self.on_synced("nrt")

    def on_pods_listed(self, objects: Iterable[Object]) -> None:
        """All there are: what is not among them went."""
        self.on_pods_read([read_pod(obj) for obj in objects])

    def on_pods_read(self, told: Sequence[PodDemand | None]) -> None:
        """The same, read already; None for one that could not be."""
        for pod in told:
            self._on_pod(pod)
        keys = {pod.key for pod in told if pod is not None} | self._guess_until_s.keys()
        for key in [key for key in self._node_by_pod if key not in keys]:
            self._let_go_of(key)
        self.on_synced("pods")

    def on_synced(self, what: str) -> None:
        """A first list is complete: `nrt` or `pods`. Without the CRD, `nrt` is complete at once."""
        self.synced.add(what)

    @property
    def is_ready(self) -> bool:
        """Whether all there was at the start is known."""
        wanted = {"nrt", "pods"} if self._accounting.is_on else {"nrt"}
        return wanted <= self.synced

    def promise(self, pod: PodDemand, numa_id: int | None = None) -> None:
        """A pod is, or is being, bound to `pod.node`."""
        if not self._accounting.is_on:
            return
        key = pod.key
        self._guess_until_s.pop(key, None)
        before = self._node_by_pod.get(key)
        if before is not None and before != pod.node:
            self._let_go(replace(pod, node=before))
        self._node_by_pod[key] = pod.node
        ledger = self._ledger(pod.node)
        is_old = "pods" not in self.synced
        if ledger.arrived(pod, self._clock(), is_old=is_old, numa_id=numa_id):
            self._refresh(pod.node, ledger)

    def guess(self, pod: PodDemand) -> None:
        """A pod that is not bound yet will most likely get `pod.node`; the guess ends soon or with its binding."""
        if self._accounting.is_on and self._accounting.guess_s and pod.key not in self._node_by_pod:
            self.promise(pod)
            self._guess_until_s[pod.key] = (self._clock() + self._accounting.guess_s, pod)

    def forget_guess(self, pod: PodDemand) -> None:
        """The pod is asked about again: it must not stand in its own way."""
        if self._guess_until_s.pop(pod.key, None) is not None:
            self._let_go(pod)

    def has_promised(self, pod: PodDemand) -> bool:
        """Whether the pod is counted as bound to a node."""
        return pod.key in self._node_by_pod

    def take_back(self, pod: PodDemand) -> None:
        """A promise that came to nothing: the binding failed."""
        self._let_go(pod)

    def expire(self) -> None:
        """End charges that have lasted too long; cheap to call often."""
        now = self._clock()
        for until_s, pod in list(self._guess_until_s.values()):
            if until_s <= now:
                self.forget_guess(pod)
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
        """The node's NUMA nodes less what is charged; none for a node that tells nothing."""
        ledger = self._ledgers.get(node)
        return charged_zones(ledger) if ledger is not None else ()

    def charged_pods(self) -> int:
        """How many charges stand."""
        return sum(len(ledger.charged) for ledger in self._ledgers.values() if ledger.residents)

    def _ledger(self, node: str) -> NodeLedger:
        return self._ledgers.setdefault(node, NodeLedger())

    def _let_go(self, pod: PodDemand) -> None:
        self._let_go_of(pod.key)

    def _let_go_of(self, key: str) -> None:
        node = self._node_by_pod.pop(key, None)
        ledger = self._ledgers.get(node) if node is not None else None
        if node is not None and ledger is not None and (ledger.left(key) or ledger.topology is None):
            self._refresh(node, ledger)

    def _refresh(self, node: str, ledger: NodeLedger) -> None:
        if ledger.topology is None:
            self.cluster.forget(node)
            if not ledger.residents:
                del self._ledgers[node]
        else:
            self.cluster.put(node, NodeRow(node_policy(ledger.topology), charged_zones(ledger)))


def read_topology(obj: Object) -> NodeResourceTopology | str:
    """The object's value; its name, as far as it has one, when it is against its schema."""
    try:
        return from_object(obj)
    except KubeObjectError:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else ""
        return name if isinstance(name, str) else ""


def read_pod(obj: Object) -> PodDemand | None:
    """The pod's value; None when the object is against its schema."""
    try:
        return pod_demand(obj)
    except KubeObjectError:
        return None


def charged_zones(ledger: NodeLedger) -> Zones:
    """The NUMA nodes of a ledger's object, less its charges."""
    zones = numa_zones(ledger.topology) if ledger.topology is not None else ()
    everywhere, by_numa_id = ledger.charges()
    if everywhere:
        zones = charge_everywhere(zones, everywhere)
    return tuple(_charged(zone, by_numa_id.get(zone.id)) for zone in zones) if by_numa_id else zones


def _charged(zone: NUMAZone, amounts: Mapping[str, int] | None) -> NUMAZone:
    return charge_everywhere((zone,), amounts)[0] if amounts else zone
