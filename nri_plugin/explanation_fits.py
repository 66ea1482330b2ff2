"""What would have fitted in place of what was refused, each tried by the same placement on a changed question."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nri_plugin.advice import (
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
from nri_plugin.errors import AdmissionError
from nri_plugin.hint_providers import memory_request, tables_of
from nri_plugin.options import IsolatedCPUs, Node, Options, SMTOddCounts, TopologyManagerScope
from nri_plugin.placement import Placement, exclusive_count
from nri_plugin.policy.hints import LISTED_NODES
from nri_plugin.quantity import format_bytes
from nri_plugin.state import PodRecord, State, pod_of
from nri_plugin.workload import ContainerRequest

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
