"""What a node has been promised to pods and does not say yet, pod by pod.

A pod is charged from the moment it is bound until the node's object accounts for it. That is known, in this order:
the object names the pods it accounts for (our exporter), which it does from a pod's first container on, so that one
of several containers stays charged until it runs, that is, until all of them were made; or its fingerprint is that of the pods of the node without
the youngest few, or without those that do not run yet, and then exactly those stay charged; or it has no fingerprint and came after the pod ran. A
charge on a running pod ends in any case after a while, so that a node whose exporter counts pods differently never
looks full for ever. Nothing is charged that the node never subtracts: CPUs and memory of pods that are not
Guaranteed.

Differs: the over-reserve cache of the scheduler plugin believes no new object until the whole set of pods agrees,
and drops or keeps all charges together.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nri_plugin.kube.noderesourcetopology import (
    ATTRIBUTE_ACCOUNTED_PODS,
    METHOD_ALL,
    NodeResourceTopology,
    short_uid,
)
from nri_plugin.kube.pod_demand import PodDemand, is_native
from nri_plugin.kube.pod_fingerprint import of_hashes, pod_hash


@dataclass(slots=True)
class Resident:
    """A pod on the node.

    Attributes:
        pod: what it asks for.
        order: grows with every pod that comes.
        is_charged: whether the node's object does not account for it yet.
        numa_id: where it was sent, None where nobody said.
        running_since_s: when it was first seen running, None before.
    """

    pod: PodDemand
    order: int
    is_charged: bool
    numa_id: int | None = None
    running_since_s: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all its containers were made once one was: it has one only, or it runs."""
        return len(self.pod.containers) == 1 or self.running_since_s is not None


@dataclass(slots=True)
class NodeLedger:
    """A node's object and its pods; every method says whether what the node has left may have changed."""

    topology: NodeResourceTopology | None = None
    residents: dict[str, Resident] = field(default_factory=dict)
    came: int = 0

    def published(self, topology: NodeResourceTopology | None) -> bool:
        """After the node's object came, changed or went (None)."""
        before = self.topology
        self.topology = topology
        settled = self._settle() if topology is not None else False
        return settled or topology != before

    def arrived(
        self, pod: PodDemand, now_s: float, *, is_old: bool = False, numa_id: int | None = None
    ) -> bool:
        """After a pod was bound to the node, or seen again.

        Args:
            pod: as it is now.
            now_s: a clock that only grows.
            is_old: it ran before we began to look, so the node's object knows it.
            numa_id: where it was sent.
        """
        known = self.residents.get(pod.key)
        is_running = pod.phase == "Running"
        if known is None:
            self.came += 1
            known = Resident(pod, self.came, False, numa_id)
            is_settled = (is_old and is_running) or (known.is_whole and short_uid(pod.uid) in self._named())
            known.is_charged = bool(charge_of(pod)) and not is_settled
            self.residents[pod.key] = known
        known.pod = pod
        known.numa_id = known.numa_id if numa_id is None else numa_id
        if is_running and known.running_since_s is None:
            known.running_since_s = now_s
        return known.is_charged

    def left(self, key: str) -> bool:
        """After a pod, named by its key, ended or was deleted."""
        gone = self.residents.pop(key, None)
        return gone is not None and gone.is_charged

    def expire(self, before_s: float) -> int:
        """End the charges on pods that have been running since `before_s` or longer; returns how many."""
        old = [
            one
            for one in self.residents.values()
            if one.is_charged and one.running_since_s is not None and one.running_since_s <= before_s
        ]
        for one in old:
            one.is_charged = False
        return len(old)

    def settle_running(self, before_s: float) -> bool:
        """End the charges on pods that the object names and that have been running since `before_s` or longer.

        Nothing may be published any more for a pod that began to run after its last container was.
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
        """Whose charge stands, oldest first."""
        return [one for one in self.residents.values() if one.is_charged]

    def charges(self) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
        """What is charged to every NUMA node, and what to one by its id."""
        everywhere: dict[str, int] = {}
        by_numa_id: dict[int, dict[str, int]] = {}
        for one in self.charged:
            target = everywhere if one.numa_id is None else by_numa_id.setdefault(one.numa_id, {})
            for name, amount in charge_of(one.pod).items():
                target[name] = target.get(name, 0) + amount
        return everywhere, by_numa_id

    def _named(self) -> frozenset[str]:
        """The pods that the object says it accounts for, by short uid; none where it does not tell."""
        text = self.topology.attribute(ATTRIBUTE_ACCOUNTED_PODS) if self.topology is not None else None
        return frozenset(one for one in (text or "").replace(" ", "").split(",") if one)

    def _settle(self) -> bool:
        topology = self.topology
        charged = self.charged
        if topology is None or not charged:
            return False
        if topology.attribute(ATTRIBUTE_ACCOUNTED_PODS) is not None:
            named = self._named()
            return _end(one for one in charged if one.is_whole and short_uid(one.pod.uid) in named)
        if topology.fingerprint:
            return _end(self._covered(topology, charged))
        return _end(one for one in charged if one.running_since_s is not None)

    def _covered(self, topology: NodeResourceTopology, charged: list[Resident]) -> list[Resident]:
        """The charged pods that the fingerprint covers; none when it means no set we know of."""
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
    """Which of the charged pods an exporter may have seen: all, all but the youngest few, those that run."""
    for count in range(len(charged), -1, -1):
        yield charged[:count]
    yield [one for one in charged if one.running_since_s is not None]


def charge_of(pod: PodDemand) -> Mapping[str, int]:
    """What a node will subtract for a pod: everything of a Guaranteed one, only devices of the others."""
    request = pod.effective_with_sidecars
    if pod.is_guaranteed:
        return request
    return {name: amount for name, amount in request.items() if not is_native(name)}


def _end(charges: Iterable[Resident]) -> bool:
    ended = list(charges)
    for one in ended:
        one.is_charged = False
    return bool(ended)
