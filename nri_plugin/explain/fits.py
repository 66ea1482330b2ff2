"""What would have fitted in place of what was refused, each tried by the same placement on a changed question."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nri_plugin.core.advice import (
    LAXER,
    alone,
    likely_counts,
    likely_ends,
    likely_sizes,
    may_hold,
    pod_name,
    releasable,
    tried,
    under_policies,
    with_cpus,
    with_memory,
)
from nri_plugin.core.hint_providers import memory_request, memory_state_of, tables_of
from nri_plugin.core.placement import Placement, exclusive_count
from nri_plugin.core.requests import ContainerRequest
from nri_plugin.model import bits
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import (
    IsolatedCPUs,
    MemoryManagerPolicy,
    Node,
    Options,
    SMTOddCounts,
    TopologyManagerScope,
)
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import Allocation, Phase, PodRecord, State, owner_of, pod_of
from nri_plugin.policy.hints import LISTED_NODES
from nri_plugin.policy.memory_state import MEMORY

# ----------------------------------------------------------------------------------------------------
# Who holds what of a machine, NUMA node by NUMA node: what stands in the way of somebody else.


@dataclass(frozen=True, slots=True)
class Holder:
    """What one container holds on one NUMA node.

    Attributes:
        container: NAMESPACE/POD/CONTAINER.
        pod_uid: its pod; what it holds ends with that.
        cpus: exclusive CPUs there, as a kernel list.
        count: how many.
        memory: (resource, bytes) of the blocks that lie there, whole blocks where they span nodes.
        memory_nodes: the NUMA nodes of those blocks, as a kernel list.
        has_ended: no container of that name lives now; kept for it, or for who comes after it in its pod.
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
        holders: who holds the rest, who holds most first.
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


def name_of(state: State, key: str) -> str:
    """NAMESPACE/POD/CONTAINER of an allocation; its key where the pod is not known."""
    uid, container = owner_of(key)
    pod = state.pods.get(uid)
    return f"{pod.namespace}/{pod.name}/{container}" if pod and pod.name else key


def _holders(state: State, number: int, cpus: CPUSet, live: set[str]) -> Iterator[Holder]:
    for key, allocation in state.allocations.items():
        own = allocation.cpus & cpus
        blocks = [block for block in allocation.memory if block.nodes.mask >> number & 1]
        if not own and not blocks:
            continue
        yield Holder(
            container=name_of(state, key),
            pod_uid=pod_of(key),
            cpus=str(own),
            count=len(own),
            memory=tuple((block.resource, block.size_bytes) for block in blocks),
            memory_nodes=bits.format_list(_nodes(allocation)) if blocks else "",
            has_ended=key not in live,
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


# ----------------------------------------------------------------------------------------------------


FEW_TRIALS = 24
"""Of a kind on machines of more NUMA nodes than are listed, where one may take tens of milliseconds."""

MANY_TRIALS = 512

NAMED = 4
"""Pods that have to end together; the others are counted."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Something that would have fitted.

    Attributes:
        kind: `cpus`, `memory`, `policy`, `option`, `scope`, `end` (of other pods) or `empty` (all of them).
        value: how many, which policy, which option, whose end.
        text: the same in words.
        numa_nodes: where it would have been placed, as a kernel list; empty for anywhere.
        is_largest: for `cpus`: no larger number fits; False where not all were tried, or another `Fit` is larger.
    """

    kind: str
    value: str
    text: str
    numa_nodes: str = ""
    is_largest: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """A refused request and where it was asked."""

    node: Node
    state: State
    pod: PodRecord
    request: ContainerRequest

    @property
    def trials(self) -> int:
        is_small = len(self.node.topology.nodes) <= LISTED_NODES
        return MANY_TRIALS if is_small else FEW_TRIALS

    def tried(self) -> Placement | None:
        return tried(self.node, self.state, self.pod, self.request)


def would_fit(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> tuple[Fit, ...]:
    """What would have fitted: less, under another policy or option, or once others have ended."""
    case = _Case(node, state, pod, request)
    looks = (_fewer_cpus, _whole_cores, _less_memory, _laxer_policy, _other_options, _after_ends)
    fits = tuple(fit for look in looks for fit in look(case))
    largest = max((int(fit.value) for fit in fits if fit.kind == "cpus"), default=0)
    return tuple(replace(fit, is_largest=fit.is_largest and fit.value == str(largest)) for fit in fits)


def _fewer_cpus(case: _Case) -> Iterator[Fit]:
    count = _count(case)
    for fewer in _counts(case, count):
        pod, request = with_cpus(case.pod, case.request, fewer)
        placed = replace_case(case, pod=pod, request=request).tried()
        if placed:
            is_all = case.trials == MANY_TRIALS
            yield Fit("cpus", str(fewer), f"{fewer} CPUs", _where(case.node, placed), is_all)
            return


def _counts(case: _Case, count: int) -> Sequence[int]:
    """All numbers below `count` from what there is downwards; on large machines the likeliest first, then around them."""
    if case.trials == MANY_TRIALS:
        most = min(count - 1, len(case.state.available(case.node)))
        return range(most, max(0, most - MANY_TRIALS), -1)
    return likely_counts(case.node, case.state, count)


def _whole_cores(case: _Case) -> Iterator[Fit]:
    """As many as fill the last core, where the number asked for does not."""
    count, threads = case.request.exclusive_cpus, max(1, tables_of(case.node).cpus_per_core)
    more = -(-count // threads) * threads
    if more == count:
        return
    pod, request = with_cpus(case.pod, case.request, more)
    placed = replace_case(case, pod=pod, request=request).tried()
    if placed:
        yield Fit("cpus", str(more), f"{more} CPUs", _where(case.node, placed))


def _less_memory(case: _Case) -> Iterator[Fit]:
    for resource, size in memory_request(case.node, case.request).items():
        for less in (*likely_sizes(case.node, case.state, resource, size), 0):
            smaller = replace_case(case, request=with_memory(case.request, resource, less))
            placed = smaller.tried()
            if placed:
                words = f"{format_bytes(less)} of {resource}" if less else f"no {resource}"
                yield Fit("memory", f"{resource}={less}", words, _where(case.node, placed))
                break


def _laxer_policy(case: _Case) -> Iterator[Fit]:
    policies = LAXER.get(case.node.options.topology_manager_policy, ())
    for policy, where in under_policies(case.node, case.state, case.pod, case.request, policies):
        yield Fit("policy", policy, f"topologyManagerPolicy {policy}", str(where))


def _other_options(case: _Case) -> Iterator[Fit]:
    for kind, words, options in _variants(case):
        placed = replace_case(case, node=replace(case.node, options=options)).tried()
        if placed:
            yield Fit(kind, words, words, _where(case.node, placed))


def _variants(case: _Case) -> Iterator[tuple[str, str, Options]]:
    """Options that may have been in the way, each changed alone."""
    options = case.node.options
    change = partial(replace, options)
    if options.full_pcpus_only:
        yield "option", "without full-pcpus-only", change(full_pcpus_only=False)
    threads = tables_of(case.node).cpus_per_core
    if case.request.exclusive_cpus % max(1, threads):
        for rule in (SMTOddCounts.ROUND_UP, SMTOddCounts.ALLOW):
            if (case.request.smt_odd_counts or options.smt_odd_counts) is not rule:
                yield "option", f"smtOddCounts: {rule}", change(smt_odd_counts=rule)
    if options.isolated_cpus is IsolatedCPUs.ON_REQUEST and case.node.isolated:
        yield "option", "isolatedCPUs: exclusive", change(isolated_cpus=IsolatedCPUs.EXCLUSIVE)
    if options.strict_uncore_cache:
        yield "option", "without strictUncoreCache", change(strict_uncore_cache=False)
    if options.topology_manager_scope is TopologyManagerScope.POD:
        container = TopologyManagerScope.CONTAINER
        yield "scope", "topologyManagerScope container", change(topology_manager_scope=container)


def _after_ends(case: _Case) -> Iterator[Fit]:
    """After the end of one other pod, whichever they are; else of the fewest of one NUMA node; else of all."""
    if not releasable(case.state, case.pod):
        return
    if not replace_case(case, state=alone(case.state, case.pod)).tried():
        return
    likely = likely_ends(case.node, case.state, case.pod, case.request)[: case.trials]
    enough = [uid for uid in likely if replace_case(case, state=case.state.released(uid)).tried()]
    for uid in enough:
        name = pod_name(case.state, uid)
        yield Fit("end", name, f"once {name} has ended")
    if enough:
        return
    together = min(_sets_of_ends(case), key=len, default=None)
    if together:
        names = [pod_name(case.state, uid) for uid in together]
        yield Fit("end", ",".join(names), f"once {_some(names)} have ended")
    else:
        yield Fit("empty", "", "on this machine without any other pod")


def _some(names: Sequence[str]) -> str:
    if len(names) <= NAMED:
        return " and ".join([", ".join(names[:-1]), names[-1]])
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _sets_of_ends(case: _Case) -> Iterator[tuple[str, ...]]:
    """For each NUMA node the pods that hold most of it, as many as it takes."""
    uids, left = releasable(case.state, case.pod), case.trials
    for place in case.node.topology.nodes:
        held = {uid: _cpus_there(case.state, uid, place.cpus.mask) for uid in uids}
        here = sorted((uid for uid in uids if held[uid]), key=lambda uid: -held[uid])
        for number in range(2, len(here) + 1):
            state = _without(case.state, here[:number])
            if left and may_hold(case.node, case.request, state.available(case.node).mask):
                left -= 1
                if replace_case(case, state=state).tried():
                    yield tuple(here[:number])
                    break


def _cpus_there(state: State, uid: str, cpus: int) -> int:
    return sum(
        (allocation.cpus.mask & cpus).bit_count()
        for key, allocation in state.allocations.items()
        if pod_of(key) == uid
    )


def _without(state: State, uids: Sequence[str]) -> State:
    for uid in uids:
        state = state.released(uid)
    return state


def _count(case: _Case) -> int:
    try:
        return exclusive_count(case.node, case.request)
    except AdmissionError:
        return case.request.exclusive_cpus


def replace_case(case: _Case, **changes: object) -> _Case:
    """The case with something else in it."""
    return replace(case, **changes)  # type: ignore[arg-type]


def _where(node: Node, placed: Placement) -> str:
    allocation = placed.allocation
    if allocation is None:
        return str(placed.hint.affinity or "") if placed.hint else ""
    return str(node.topology.nodes_of(allocation.cpus) | allocation.mems)
