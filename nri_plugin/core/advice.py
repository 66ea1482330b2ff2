"""The advice of a refusal: alternatives that would have fitted, and the obstacle.

Every alternative was tried: by the same `admit` on a changed request, state or policy. A runtime waits meanwhile,
so few alternatives are tried. An admitted container costs nothing, a refused one well below a millisecond.
`nri_plugin.explain.fits` looks longer, with the same trials.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from msgspec.structs import replace

from nri_plugin.core.hint_providers import memory_request, memory_state_of, tables_of
from nri_plugin.core.placement import Placement, exclusive_count
from nri_plugin.core.pods import ABOUT_ALL, Unfit, admit
from nri_plugin.core.requests import ContainerRequest
from nri_plugin.core.reuse import donors, has_ended_as_init, reusable_memory
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import Node, TopologyManagerPolicy
from nri_plugin.model.records import PodFacts, PodRecord, named, owner_of, pod_of
from nri_plugin.model.refusals import AdmissionRefusal, Advice, Holders, Holding, Obstacle, RefusalKind
from nri_plugin.model.sets import NO_NODES, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.memory_state import MEMORY

MIB = 1 << 20
"""Amounts of memory are suggested in whole MiB."""

POD_ENDS = 1
"""So many ends of other pods are tried while a runtime waits."""

NAMED_HOLDERS = 3

NOT_ABOUT_ROOM = (
    RefusalKind.ANNOTATION,
    RefusalKind.HINT_PROVIDER,
    RefusalKind.EMPTY_POD_SHARED_POOL,
    RefusalKind.TWO_OWNERS,
)
"""Another size or another state would not help against these."""

LAXER: dict[TopologyManagerPolicy, tuple[TopologyManagerPolicy, ...]] = {
    TopologyManagerPolicy.SINGLE_NUMA_NODE: (
        TopologyManagerPolicy.RESTRICTED,
        TopologyManagerPolicy.BEST_EFFORT,
    ),
    TopologyManagerPolicy.RESTRICTED: (TopologyManagerPolicy.BEST_EFFORT,),
}
"""The less strict topology policies, the strictest first."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A request and the node, state and pod it is tried in."""

    node: Node
    state: State
    pod: PodRecord
    request: ContainerRequest

    def placed(self) -> Placement | None:
        """The placement of the request, with those containers of its pod that are not placed; None where one is refused."""
        placed = admit(self.node, self.state, self.pod, self.request)
        return None if isinstance(placed, Unfit) else placed

    @property
    def fits(self) -> bool:
        """Whether the request would be admitted."""
        return self.placed() is not None

    @property
    def count(self) -> int:
        """Exclusive CPUs that the request comes to; as it asks for them where that number is refused."""
        try:
            return exclusive_count(self.node, self.request)
        except AdmissionError:
            return self.request.exclusive_cpus

    @property
    def is_single(self) -> bool:
        """Whether everything has to come from one NUMA node."""
        return self.node.options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE

    def in_state(self, state: State) -> "Trial":
        """The same request in another state."""
        return dataclasses.replace(self, state=state)

    def alone(self) -> "Trial":
        """The same request once all other pods have ended."""
        return self.in_state(alone(self.state, self.pod))

    def with_cpus(self, count: int) -> "Trial":
        """A request for `count` exclusive CPUs, of a pod that asks for so many fewer or more."""
        request, pod = self.request, self.pod
        if request.wanted_exclusive:
            return dataclasses.replace(self, request=replace(request, wanted_exclusive=count))
        milli, total = count * 1000, pod.cpu_milli
        if total is not None:
            total = max(0, total + milli - (request.cpu_milli or 0))
        facts = pod.facts and _with_request(pod.facts, request.name, milli)
        pod = replace(pod, cpu_milli=total, facts=facts)
        return dataclasses.replace(self, pod=pod, request=replace(request, cpu_milli=milli))

    def with_memory(self, resource: str, size: int) -> "Trial":
        """A request for `size` bytes of `memory` or `hugepages-SIZE`."""
        request = self.request
        if resource == MEMORY:
            return dataclasses.replace(self, request=replace(request, memory_bytes=size))
        pages = tuple({**dict(request.hugepages), resource: size}.items())
        return dataclasses.replace(self, request=replace(request, hugepages=pages))

    def likely_counts(self) -> list[int]:
        """Numbers of CPUs below the refused one that are most worth a trial, the largest first.

        Whole cores, the available CPUs of all NUMA nodes, and those of the node with most; under full-pcpus-only in
        whole cores.
        """
        tables, available = tables_of(self.node), self.state.available(self.node).mask
        count, unit = self.count, tables.cpus_per_core if self.node.options.full_pcpus_only else 1
        by_node = [(cpus & available).bit_count() for _, cpus in tables.nodes]
        found = {
            count - count % unit,
            max(by_node, default=0),
            *(() if self.is_single else (sum(by_node),)),
        }
        return sorted({number for one in found if 0 < (number := one - one % unit) < count}, reverse=True)

    def likely_sizes(self, resource: str, size: int) -> list[int]:
        """The same for bytes of memory or huge pages, in whole MiB, with what ended containers of the pod pass on."""
        room = {
            1 << node: free for node, free in memory_state_of(self.node, self.state).free(resource).items()
        }
        passed_on = reusable_memory(self.state, donors(self.state, self.pod, self.request.name))
        for (nodes, kind), amount in passed_on.items():
            if kind == resource:
                room[nodes] = room.get(nodes, 0) + amount
        found = {max(room.values(), default=0), *(() if self.is_single else (sum(room.values()),))}
        return sorted((number for one in found if 0 < (number := one - one % MIB) < size), reverse=True)

    def likely_ends(self) -> list[str]:
        """Uids of the other pods whose end leaves enough CPUs, on one NUMA node where policy wants that.

        Those that hold fewest CPUs come first: the least that has to end.
        """
        available = self.state.available(self.node).mask
        held: dict[str, int] = {}
        for key, allocation in self.state.allocations.items():
            uid = pod_of(key)
            if uid != self.pod.uid:
                held[uid] = held.get(uid, 0) | allocation.cpus.mask
        enough = [uid for uid, cpus in held.items() if self.may_fit_in(available | cpus)]
        return sorted(enough, key=lambda uid: held[uid].bit_count())

    def may_fit_in(self, available: int) -> bool:
        """Whether the CPUs in the mask are enough at all; spares hopeless trials."""
        count = self.request.exclusive_cpus
        if not self.is_single:
            return available.bit_count() >= count
        return any((available & cpus).bit_count() >= count for _, cpus in tables_of(self.node).nodes)

    def under(self, policy: TopologyManagerPolicy) -> "Trial":
        """The same request under another topology policy."""
        return dataclasses.replace(self, node=_under(self.node, policy))


@lru_cache(maxsize=8)
def _under(node: Node, policy: TopologyManagerPolicy) -> Node:
    """The node under another topology policy. It is the same object each time, so that derived values can be kept."""
    return dataclasses.replace(
        node, options=dataclasses.replace(node.options, topology_manager_policy=policy)
    )


def advised(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, refusal: AdmissionRefusal
) -> AdmissionRefusal:
    """`refusal` of `request` in `state` with advice; unchanged where it is not about room."""
    if request.cpu_milli is None or refusal.kind in NOT_ABOUT_ROOM:
        return refusal
    trial = Trial(node, state, pod, request)
    advice = Advice(Obstacle.MACHINE, siblings=siblings_of(state, pod, request.name))
    advice = _laxer_policy(_smaller(advice, trial), trial, refusal)
    holders = holders_of(state, pod)
    if not holders.largest:
        return dataclasses.replace(
            refusal, advice=dataclasses.replace(advice, obstacle=Obstacle.CONFIGURATION)
        )
    end = _sufficient_end(trial)
    # One end that is enough proves that the others are in the way. Without one, a trial without all others tells.
    if end or _fits_alone(trial):
        advice = dataclasses.replace(advice, obstacle=Obstacle.HOLDERS, holders=holders, pod_end=end)
    return dataclasses.replace(refusal, advice=advice)


def alone(state: State, pod: PodRecord) -> State:
    """The state once all other pods have ended."""
    return replace(state, allocations=state.allocations_of(pod.uid))


def holders_of(state: State, pod: PodRecord) -> Holders:
    """The containers of other pods that hold most."""
    others = [key for key in state.owned if pod_of(key) != pod.uid]
    return _largest(state, others, lambda key: named(state.pods, key))


def siblings_of(state: State, pod: PodRecord, name: str) -> Holders:
    """The other containers of the pod that hold CPUs or memory, by their names alone."""
    others = [
        key
        for key, cpus in state.owned.items()
        if pod_of(key) == pod.uid
        and owner_of(key)[1] not in {name, ""}
        and (cpus or state.allocations[key].memory)
    ]
    return _largest(state, others, lambda key: owner_of(key)[1])


def _largest(state: State, keys: Sequence[str], name_of: Callable[[str], str]) -> Holders:
    ended = {key for key in keys if state.owned[key] and has_ended_as_init(state, key)}
    ordered = sorted(keys, key=lambda key: (key not in ended, -len(state.owned[key]), key))
    largest = tuple(_holding(state, key, name_of(key), key in ended) for key in ordered[:NAMED_HOLDERS])
    return Holders(largest, len(keys) - len(largest))


def pod_name(state: State, uid: str) -> str:
    """NAMESPACE/POD; the uid where the pod is not known."""
    pod = state.pods.get(uid)
    return f"{pod.namespace}/{pod.name}" if pod and pod.name else uid


def _smaller(advice: Advice, trial: Trial) -> Advice:
    """The advice with fewer CPUs, or one core more; else with less memory."""
    count, threads = trial.count, max(1, tables_of(trial.node).cpus_per_core)
    fewer = next((one for one in trial.likely_counts() if trial.with_cpus(one).fits), None)
    counts = [] if fewer is None else [fewer]
    more = count - count % threads + threads
    if count % threads and trial.with_cpus(more).fits:
        counts.append(more)
    if counts:
        return dataclasses.replace(advice, cpu_counts=tuple(counts))
    for resource, size in memory_request(trial.node, trial.request).items():
        for less in trial.likely_sizes(resource, size):
            if trial.with_memory(resource, less).fits:
                return dataclasses.replace(advice, memory=(resource, less))
    return advice


def _laxer_policy(advice: Advice, trial: Trial, refusal: AdmissionRefusal) -> Advice:
    """The advice with the laxest topology policy, where the request fits under it."""
    for policy in LAXER.get(trial.node.options.topology_manager_policy, ())[-1:]:
        placed = trial.under(policy).placed() if refusal.kind is RefusalKind.TOPOLOGY_AFFINITY else None
        if placed:
            nodes = nodes_of(trial.node, placed)
            of_pod = placed.state.allocations_of(trial.pod.uid).values()
            for one in of_pod if refusal.remark == ABOUT_ALL else ():
                nodes |= trial.node.topology.nodes_of(one.cpus) | one.mems
            return dataclasses.replace(advice, policy=(policy, str(nodes)))
    return advice


def nodes_of(node: Node, placed: Placement) -> NodeMask:
    """The NUMA nodes of the CPUs and the memory of a placement; for one without either the merged hint."""
    if placed.allocation is None:
        return (placed.hint and placed.hint.affinity) or NO_NODES
    return node.topology.nodes_of(placed.allocation.cpus) | placed.allocation.mems


def _sufficient_end(trial: Trial) -> str:
    """A pod whose end makes enough room, empty where none of the likeliest does."""
    for uid in islice(trial.likely_ends(), POD_ENDS):
        if trial.in_state(trial.state.released(uid)).fits:
            return pod_name(trial.state, uid)
    return ""


def _fits_alone(trial: Trial) -> bool:
    # The container may take over CPUs of its own pod, so all allocatable CPUs count.
    return trial.may_fit_in(trial.node.allocatable.mask) and trial.alone().fits


def _holding(state: State, key: str, name: str, has_ended: bool) -> Holding:
    allocation = state.allocations[key]
    memory = sum(block.size_bytes for block in allocation.memory if block.resource == MEMORY)
    cpus, mems = state.owned[key], allocation.mems
    return Holding(name, str(cpus), len(cpus), memory, str(mems), has_ended)


def _with_request(facts: PodFacts, name: str, milli: int) -> PodFacts:
    if not name and facts.pod_resources is not None:
        whole = replace(facts.pod_resources, cpu_request_milli=milli, cpu_limit_milli=milli)
        return replace(facts, pod_resources=whole)
    containers = (
        replace(one, amounts=replace(one.amounts, cpu_request_milli=milli)) if one.name == name else one
        for one in facts.containers
    )
    return replace(facts, containers=tuple(containers))
