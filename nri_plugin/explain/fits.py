"""The allocations of a machine, and the alternatives that would have fitted in place of a refused request.

`uses` lists the allocations of each NUMA node. `would_fit` tries the same placement on changed requests, options and
states, as the advice of a refusal does (`nri_plugin.core.advice`), but longer: no runtime waits for an explanation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from nri_plugin.core.advice import LAXER, Trial, nodes_of, pod_name
from nri_plugin.core.hint_providers import memory_request, memory_state_of, tables_of
from nri_plugin.core.requests import ContainerRequest
from nri_plugin.model import bits
from nri_plugin.model.options import (
    IsolatedCPUs,
    MemoryManagerPolicy,
    Node,
    Options,
    PodSharedPoolRule,
    SMTOddCounts,
    TopologyManagerScope,
)
from nri_plugin.model.records import Allocation, Phase, PodRecord, is_whole_pod, named, pod_of
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.hints import LISTED_NODES
from nri_plugin.policy.memory_state import MEMORY


@dataclass(frozen=True, slots=True)
class Holder:
    """The CPUs and memory of one container on one NUMA node.

    Attributes:
        container: NAMESPACE/POD/CONTAINER.
        pod_uid: its pod; the allocation ends with it.
        cpus: exclusive CPUs there, as a kernel list.
        count: how many.
        memory: (resource, bytes) of the blocks on that node, whole blocks where they span nodes.
        memory_nodes: the NUMA nodes of those blocks, as a kernel list.
        has_ended: no container of that name lives now; the allocation waits for its next instance, or for a later
            container of its pod.
    """

    container: str
    pod_uid: str
    cpus: str
    count: int
    memory: tuple[tuple[str, int], ...] = ()
    memory_nodes: str = ""
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class NUMANodeUse:
    """One NUMA node.

    Attributes:
        id: its number.
        cpus: how many online CPUs it has.
        reserved: how many of them are kept for the system.
        available: how many can still become exclusive.
        withheld: how many more could, but not for this container: by isolatedCPUs and its annotation.
        memory: (resource, free bytes, allocatable bytes); none under memory policy None.
        holders: the containers that hold the rest, the largest first.
    """

    id: int
    cpus: int
    reserved: int
    available: int
    withheld: int
    memory: tuple[tuple[str, int, int], ...]
    holders: tuple[Holder, ...]


def uses(node: Node, state: State) -> tuple[NUMANodeUse, ...]:
    """Every NUMA node of the machine; `node` is narrowed to what the container may have."""
    available = state.available(node)
    withheld = node.withheld - node.reserved - state.exclusive
    counts_memory = node.options.memory_manager_policy is MemoryManagerPolicy.STATIC
    memory = memory_state_of(node, state)
    live = {one.key for one in state.containers.values() if one.phase is not Phase.STOPPED}
    return tuple(
        NUMANodeUse(
            id=int(one.id),
            cpus=len(one.cpus),
            reserved=len(one.cpus & node.reserved),
            available=len(one.cpus & available),
            withheld=len(one.cpus & withheld),
            memory=tuple(
                (name, memory.free(name)[int(one.id)], memory.machine.allocatable_of(name)[int(one.id)])
                for name in memory.machine.allocatable
                if counts_memory and (name == MEMORY or memory.machine.allocatable_of(name)[int(one.id)])
            ),
            holders=_by_share(_holders(state, int(one.id), one.cpus, live)),
        )
        for one in node.topology.nodes
    )


def _holders(state: State, number: int, cpus: CPUSet, live: set[str]) -> Iterator[Holder]:
    for key, owned in state.owned.items():
        allocation, own = state.allocations[key], owned & cpus
        blocks = [block for block in allocation.memory if block.nodes.mask >> number & 1]
        if not own and not blocks:
            continue
        yield Holder(
            container=named(state.pods, key),
            pod_uid=pod_of(key),
            cpus=str(own),
            count=len(own),
            memory=tuple((block.resource, block.size_bytes) for block in blocks),
            memory_nodes=bits.format_list(_nodes(allocation)) if blocks else "",
            has_ended=key not in live
            and not (is_whole_pod(key) and pod_of(key) in {pod_of(one) for one in live}),
        )


def _nodes(allocation: Allocation) -> int:
    mask = 0
    for block in allocation.memory:
        mask |= block.nodes.mask
    return mask


def _by_share(holders: Iterator[Holder]) -> tuple[Holder, ...]:
    return tuple(
        sorted(holders, key=lambda one: (-one.count, -sum(size for _, size in one.memory), one.container))
    )


FEW_TRIALS = 24
"""Of a kind on machines with more NUMA nodes than are listed, where one trial may take tens of milliseconds."""

MANY_TRIALS = 512


class FitKind(StrEnum):
    """The kind of change after which the request fits."""

    CPUS = "cpus"
    MEMORY = "memory"
    POLICY = "policy"
    OPTION = "option"
    SCOPE = "scope"
    END = "end"
    """Other pods have to end."""
    EMPTY = "empty"
    """All other pods have to end."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Something that would have fitted.

    Attributes:
        kind: what would have to be different.
        amount: for `cpus` how many, for `memory` bytes.
        name: for `memory` the resource; for policy, scope and option its name in the configuration.
        setting: its value; empty for an option that would have to be off.
        pods: NAMESPACE/POD of those that would have to end.
        numa_nodes: where it would have been placed, as a kernel list; empty for anywhere.
        is_largest: for `cpus`: no larger number fits; False where not all were tried, or another `Fit` is larger.
    """

    kind: FitKind
    amount: int = 0
    name: str = ""
    setting: str = ""
    pods: tuple[str, ...] = ()
    numa_nodes: str = ""
    is_largest: bool = False


def would_fit(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> tuple[Fit, ...]:
    """What would have fitted: less, under another policy or option, or once others have ended.

    Each trial places the whole pod where it is admitted as a whole.
    """
    refused = Trial(node, state, pod, request)
    looks = (_fewer_cpus, _whole_cores, _less_memory, _laxer_policy, _other_options, _after_ends)
    fits = tuple(fit for look in looks for fit in look(refused))
    largest = max((fit.amount for fit in fits if fit.kind is FitKind.CPUS), default=0)
    return tuple(replace(fit, is_largest=fit.is_largest and fit.amount == largest) for fit in fits)


def _most_trials(refused: Trial) -> int:
    return MANY_TRIALS if len(refused.node.topology.nodes) <= LISTED_NODES else FEW_TRIALS


def _fewer_cpus(refused: Trial) -> Iterator[Fit]:
    is_all = _most_trials(refused) == MANY_TRIALS
    for fewer in _fewer_counts(refused) if is_all else refused.likely_counts():
        placed = refused.with_cpus(fewer).placed()
        if placed:
            yield Fit(FitKind.CPUS, fewer, numa_nodes=str(nodes_of(refused.node, placed)), is_largest=is_all)
            return


def _fewer_counts(refused: Trial) -> Sequence[int]:
    """All numbers below the refused one, from what is available downwards."""
    most = min(refused.count - 1, len(refused.state.available(refused.node)))
    return range(most, max(0, most - MANY_TRIALS), -1)


def _whole_cores(refused: Trial) -> Iterator[Fit]:
    """As many as fill the last core, where the number asked for does not."""
    count, threads = refused.request.exclusive_cpus, max(1, tables_of(refused.node).cpus_per_core)
    more = -(-count // threads) * threads
    if more == count:
        return
    placed = refused.with_cpus(more).placed()
    if placed:
        yield Fit(FitKind.CPUS, more, numa_nodes=str(nodes_of(refused.node, placed)))


def _less_memory(refused: Trial) -> Iterator[Fit]:
    for resource, size in memory_request(refused.node, refused.request).items():
        for less in (*refused.likely_sizes(resource, size), 0):
            placed = refused.with_memory(resource, less).placed()
            if placed:
                yield Fit(FitKind.MEMORY, less, resource, numa_nodes=str(nodes_of(refused.node, placed)))
                break


def _laxer_policy(refused: Trial) -> Iterator[Fit]:
    for policy in LAXER.get(refused.node.options.topology_manager_policy, ()):
        placed = refused.under(policy).placed()
        if placed:
            where = str(nodes_of(refused.node, placed))
            yield Fit(FitKind.POLICY, name="topologyManagerPolicy", setting=policy, numa_nodes=where)


def _other_options(refused: Trial) -> Iterator[Fit]:
    for kind, name, setting, options in _variants(refused):
        placed = replace(refused, node=replace(refused.node, options=options)).placed()
        if placed:
            yield Fit(kind, name=name, setting=setting, numa_nodes=str(nodes_of(refused.node, placed)))


def _variants(refused: Trial) -> Iterator[tuple[FitKind, str, str, Options]]:
    """Options that may have been in the way, each changed alone."""
    options = refused.node.options
    change = partial(replace, options)
    if options.full_pcpus_only:
        yield FitKind.OPTION, "full-pcpus-only", "", change(full_pcpus_only=False)
    threads = tables_of(refused.node).cpus_per_core
    rejects = options.smt_odd_counts is SMTOddCounts.REJECT  # perhaps a slice of the pod
    if rejects or refused.request.exclusive_cpus % max(1, threads):
        for rule in (SMTOddCounts.ROUND_UP, SMTOddCounts.ALLOW):
            if (refused.request.smt_odd_counts or options.smt_odd_counts) is not rule:
                yield FitKind.OPTION, "smtOddCounts", rule, change(smt_odd_counts=rule)
    if options.pod_level_managers and refused.request.hugepages:
        laxer = PodSharedPoolRule.CPU_AND_MEMORY
        yield FitKind.OPTION, "podSharedPoolRule", laxer, change(pod_shared_pool_rule=laxer)
    if options.isolated_cpus is IsolatedCPUs.ON_REQUEST and refused.node.isolated:
        exclusive = IsolatedCPUs.EXCLUSIVE
        yield FitKind.OPTION, "isolatedCPUs", exclusive, change(isolated_cpus=exclusive)
    if options.strict_uncore_cache:
        yield FitKind.OPTION, "strictUncoreCache", "", change(strict_uncore_cache=False)
    if options.topology_manager_scope is TopologyManagerScope.POD:
        container = TopologyManagerScope.CONTAINER
        yield FitKind.SCOPE, "topologyManagerScope", container, change(topology_manager_scope=container)


def _after_ends(refused: Trial) -> Iterator[Fit]:
    """After the end of any one other pod that is enough; else of the fewest of one NUMA node; else of all."""
    state = refused.state
    if not _releasable(state, refused.pod) or not refused.alone().fits:
        return
    likely = refused.likely_ends()[: _most_trials(refused)]
    enough = [uid for uid in likely if refused.in_state(state.released(uid)).fits]
    for uid in enough:
        yield Fit(FitKind.END, pods=(pod_name(state, uid),))
    if enough:
        return
    together = min(_sets_of_ends(refused), key=len, default=None)
    if together:
        yield Fit(FitKind.END, pods=tuple(pod_name(state, uid) for uid in together))
    else:
        yield Fit(FitKind.EMPTY)


def _releasable(state: State, pod: PodRecord) -> list[str]:
    """Uids of the other pods that hold something, those that hold most CPUs first."""
    cpus: dict[str, int] = {}
    for key, owned in state.owned.items():
        uid = pod_of(key)
        if uid != pod.uid:
            cpus[uid] = cpus.get(uid, 0) + len(owned)
    return sorted(cpus, key=lambda uid: -cpus[uid])


def _sets_of_ends(refused: Trial) -> Iterator[tuple[str, ...]]:
    """For each NUMA node the pods that hold most of it, as many as it takes."""
    uids, left = _releasable(refused.state, refused.pod), _most_trials(refused)
    for place in refused.node.topology.nodes:
        held = {uid: _cpus_there(refused.state, uid, place.cpus.mask) for uid in uids}
        here = sorted((uid for uid in uids if held[uid]), key=lambda uid: -held[uid])
        for number in range(2, len(here) + 1):
            state = _without(refused.state, here[:number])
            if left and refused.may_fit_in(state.available(refused.node).mask):
                left -= 1
                if refused.in_state(state).fits:
                    yield tuple(here[:number])
                    break


def _cpus_there(state: State, uid: str, cpus: int) -> int:
    return sum((owned.mask & cpus).bit_count() for key, owned in state.owned.items() if pod_of(key) == uid)


def _without(state: State, uids: Sequence[str]) -> State:
    for uid in uids:
        state = state.released(uid)
    return state
