"""What the refusal of a resize says beyond its numbers: the size that would have fitted, and what stands in the way.

As in `advice`, every "would fit" was tried, by the same `resized` on a smaller request.
"""

from dataclasses import replace
from itertools import islice

from nri_plugin.core.advice import alone, holders_of
from nri_plugin.core.hint_providers import memory_state_of, tables_of
from nri_plugin.core.placement import exclusive_count, leave_a_pool
from nri_plugin.core.requests import ContainerRequest, annotated, container_request, stored_cpus
from nri_plugin.model.errors import AdmissionError, InsufficientCPUsError, InsufficientMemoryError
from nri_plugin.model.options import CPUManagerPolicy, Node, TopologyManagerPolicy, narrowed
from nri_plugin.model.refusals import AdmissionRefusal, Advice, Obstacle, RefusalKind
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import (
    Allocation,
    ContainerRecord,
    MemoryBlock,
    PodRecord,
    Resize,
    Size,
    State,
    pod_of,
)
from nri_plugin.policy.cpu_policy import check_full_pcpus, checks_multiple, nearest, without_last
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.search.mask_order import distances_of
from nri_plugin.wire.nri.events import UpdateContainer
from nri_plugin.wire.nri.messages import Container, Resources

# ----------------------------------------------------------------------------------------------------
# Resize in place: what a container was promised changes while it runs, in two steps.
#
# The runtime asks before it acts, and says afterwards when it succeeded; of a failure it says nothing. So between the
# two the container holds what it had and what it asked for, its cgroup is left to the runtime, and nobody else gets a
# CPU of either. Without the second message what the runtime has stored tells at the next occasion which of the two it is.
#
# Source: KEP-1287, KEP-5554; order of the messages as containerd and CRI-O send them.
# Differs: the kubelet refuses every resize of a container with exclusive CPUs.


STRICT = (TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE)


def resized(
    node: Node, state: State, record: ContainerRecord, container: Container, asked: Resources
) -> State:
    """The state in which the container holds what it has and what the kubelet asks for.

    Args:
        node: the node.
        state: before.
        record: the container's.
        container: as the runtime has it stored.
        asked: the resources of the request; what is absent stays.

    Raises:
        AdmissionError: it cannot be had; says the numbers.
    """
    if node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return state
    held = _by_evidence(state.allocation_of(record) or Allocation(), container)
    if held != (state.allocation_of(record) or Allocation()):
        state = state.with_allocation(record.key, held)
    pod = state.pods[record.pod_uid]
    request, before = (_request(node, pod, container, what) for what in (asked, Resources()))
    stays_shared = (
        not held.cpus and request.cpu_milli == before.cpu_milli
    )  # perhaps unplaced: no CPUs, no resize
    count = 0 if stays_shared else exclusive_count(node, request)
    if not held.cpus and not count:
        return (
            state
            if not held.memory
            else _asked(state, record, held, _with_memory(node, state, held, request))
        )
    _refuse_other_kind(held, request, count)
    after = _with_memory(node, state, held, request)
    if node.options.full_pcpus_only:
        rule = request.smt_odd_counts or node.options.smt_odd_counts
        every = CPUSet(tables_of(node).online)
        check_full_pcpus(tables_of(node), count, every, CPUSet(), allow_odd=not checks_multiple(rule))
    if count > len(held.cpus):
        after = _grown(narrowed(node, request.isolated), state, held, after, count - len(held.cpus))
    elif count < len(held.cpus):
        after = _shrunk(node, held, after, len(held.cpus) - count)
    return _asked(state, record, held, replace(after, cpu_milli=request.cpu_milli or 0))


def confirmed(state: State, record: ContainerRecord, *, is_done: bool = True) -> State:
    """The state after the runtime has done, or not done, what it was asked to; unchanged where nothing was asked."""
    held = state.allocation_of(record)
    if held is None or held.resize is None:
        return state
    return state.with_allocation(record.key, held.settled(is_done=is_done))


def refuse_pod_total(node: Node, state: State, pod: PodRecord, cpu_milli: int | None) -> None:
    """Refuse a new total of a pod whose containers have exclusive CPUs where a container would be refused for it.

    The pod's total comes first: refused there, nothing of the resize is done.

    Raises:
        InsufficientCPUsError: it asks for more CPUs than are left.
        AdmissionError: it asks for fewer than the containers were promised at their start.
    """
    held = [one for key, one in state.allocations.items() if pod_of(key) == pod.uid and one.cpus]
    if not held or not pod.cpu_milli or not cpu_milli:
        return
    if cpu_milli < pod.cpu_milli:
        _refuse_below_start(held, pod.cpu_milli, cpu_milli)
    more = (cpu_milli - pod.cpu_milli) // 1000
    left = len(state.available(node))
    if more > left:
        raise InsufficientCPUsError(
            more, left, f"pod {pod.name} cannot grow from {pod.cpu_milli}m to {cpu_milli}m"
        )


def _refuse_below_start(held: list[Allocation], before_milli: int, cpu_milli: int) -> None:
    """Refuse a total below what the pod's containers keep.

    CPUs that an annotation gave are not counted: such a container's request says nothing of their number.

    Raises:
        AdmissionError: with the numbers that a container would be refused with.
    """
    first = CPUSet()
    for one in held:
        size = one.resize.before if one.resize else size_of(one)
        if size.cpu_milli == 1000 * len(size.cpus):
            first |= _at_start(size)
    if cpu_milli < 1000 * len(first):
        raise AdmissionError(_below_start("pod", before_milli, cpu_milli, first))


def _below_start(what: str, before_milli: int, asked_milli: int, first: CPUSet) -> str:
    return (
        f"resize in place of the {what} from {_in_cpus(before_milli)} to {_in_cpus(asked_milli)} CPUs: the {len(first)} "
        f"it was promised at its start ({first}) stay; ask for {len(first)} or more, or make the pod anew"
    )


def _in_cpus(milli: int) -> str:
    return f"{milli / 1000:.10g}"


def _at_start(size: Size) -> CPUSet:
    """The CPUs that a container was promised at its start."""
    grown = CPUSet()
    for step in size.grown:
        grown |= step
    return size.cpus - grown


def _by_evidence(held: Allocation, container: Container) -> Allocation:
    """An earlier resize of whose end nothing was heard: what the runtime has stored tells."""
    if held.resize is None:
        return held
    return held.settled(is_done=stored_cpus(container.resources) == held.resize.after.cpus)


def _request(node: Node, pod: PodRecord, container: Container, asked: Resources) -> ContainerRequest:
    """What the container asks for now: the request, and what is stored where that is silent."""
    had = container.resources
    whole = replace(
        had,
        cpu_shares=asked.cpu_shares or had.cpu_shares,
        cpu_quota_us=asked.cpu_quota_us or had.cpu_quota_us,
        cpu_period_us=asked.cpu_period_us or had.cpu_period_us,
        memory_limit_bytes=asked.memory_limit_bytes or had.memory_limit_bytes,
        hugepage_limits=asked.hugepage_limits or had.hugepage_limits,
    )
    return annotated(node.options, pod, container_request(pod, replace(container, resources=whole)))


def _refuse_other_kind(held: Allocation, request: ContainerRequest, count: int) -> None:
    """Exclusive CPUs are neither gained nor lost by a resize.

    Raises:
        AdmissionError: it asks for that.

    Source: KEP-5554, as the kubelet.
    """
    if held.cpus and not count:
        raise AdmissionError(
            f"resize in place of the container from {len(held.cpus)} to {_in_cpus(request.cpu_milli or 0)} CPUs: a "
            "container with exclusive CPUs keeps a whole number of them; ask for whole CPUs, or make the pod anew"
        )
    if count and not held.cpus:
        raise AdmissionError(
            f"resize in place of the container to {count} CPUs: this container runs in the shared pool and stays there; "
            "make the pod anew for exclusive CPUs"
        )


def _grown(node: Node, state: State, held: Allocation, after: Size, count: int) -> Size:
    options = node.options
    available, where = state.available(node), ""
    if options.topology_manager_policy in STRICT and held.affinity:
        available &= CPUSet(tables_of(node).cpus_in(held.affinity.mask))
        where = f" on NUMA nodes {held.affinity}, where topology policy keeps it"
    if options.strict_uncore_cache:
        available &= CPUSet(tables_of(node).caches_of(held.cpus.mask))
        where = " in its uncore cache, where strictUncoreCache keeps it"
    if len(available) < count:
        raise InsufficientCPUsError(count, len(available), f"to grow beside {held.cpus}{where}")
    steps = nearest(tables_of(node), held.cpus, available, count, options, distances_of(node.topology))
    more = CPUSet()
    for step in steps:
        more |= step
    leave_a_pool(node, state, more)
    return replace(after, cpus=held.cpus | more, grown=(*held.grown, *steps))


def _shrunk(node: Node, held: Allocation, after: Size, count: int) -> Size:
    first, before = _at_start(size_of(held)), len(held.cpus)
    if before - count < len(first):
        raise AdmissionError(_below_start("container", 1000 * before, 1000 * (before - count), first))
    remaining = without_last(tables_of(node), held.grown, count, node.options)
    cpus = first
    for step in remaining:
        cpus |= step
    return replace(after, cpus=cpus, grown=remaining)


def _with_memory(node: Node, state: State, held: Allocation, request: ContainerRequest) -> Size:
    """The size as it is, with memory as asked for; it stays on its NUMA nodes.

    Raises:
        InsufficientMemoryError: these have not so much left.
    """
    before = size_of(held)
    wanted = request.memory_by_resource.get(MEMORY, 0)
    blocks = [block for block in held.memory if block.resource == MEMORY]
    had = sum(block.size_bytes for block in blocks)
    if not blocks or not wanted or wanted == had:
        return before
    if wanted > had:
        free = memory_state_of(node, state).free(MEMORY)
        left = sum(free.get(number, 0) for number in held.mems)
        if wanted - had > left:
            raise InsufficientMemoryError(
                f"resize in place from {had} to {wanted} bytes of memory: NUMA nodes {held.mems}, where it is, have "
                f"{left} bytes left; ask for {had + left} or less"
            )
    others = tuple(block for block in held.memory if block.resource != MEMORY)
    return replace(before, memory=(MemoryBlock(_all_nodes(blocks), MEMORY, wanted), *others))


def _all_nodes(blocks: list[MemoryBlock]) -> NodeMask:
    nodes = NodeMask()
    for block in blocks:
        nodes |= block.nodes
    return nodes


def size_of(held: Allocation) -> Size:
    """What an allocation holds, as one of the two sizes of a resize."""
    return Size(held.cpus, held.grown, held.cpu_milli, held.memory)


def _asked(state: State, record: ContainerRecord, held: Allocation, after: Size) -> State:
    """Both sizes at once: of CPUs and of memory the larger."""
    before = size_of(held)
    if after == before:
        return state if state.allocation_of(record) == held else state.with_allocation(record.key, held)
    larger = after.memory if _bytes(after) > _bytes(before) else before.memory
    both = replace(held, cpus=before.cpus | after.cpus, memory=larger, resize=Resize(before, after))
    return state.with_allocation(record.key, both)


def _bytes(size: Size) -> int:
    return sum(block.size_bytes for block in size.memory)


# ----------------------------------------------------------------------------------------------------


PERIOD_US = 100_000
SHARES_PER_CPU = 1024


def advised_resize(
    node: Node, state: State, record: ContainerRecord, event: UpdateContainer, refusal: AdmissionRefusal
) -> AdmissionRefusal:
    """The refusal of a container's resize with advice; unchanged where it is not about room for CPUs."""
    held = state.allocation_of(record)
    if held is None or refusal.kind is not RefusalKind.CPUS:
        return refusal
    most = len(held.cpus) + min(refusal.available, refusal.requested - 1)
    sizes = islice(range(most, len(held.cpus), -1), 2 * max(1, tables_of(node).cpus_per_core))
    fits = next((size for size in sizes if _is_taken(node, state, record, event, _of(event, size))), None)
    pod = state.pods[record.pod_uid]
    fits_alone = _is_taken(node, alone(state, pod), record, event, event.resources)
    advice = Advice(
        _obstacle(state, pod, fits_alone=fits_alone), holders_of(state, pod), (fits,) if fits else ()
    )
    return replace(refusal, advice=advice)


def advised_pod_growth(
    node: Node, state: State, pod: PodRecord, refusal: AdmissionRefusal
) -> AdmissionRefusal:
    """The same for a pod's new total."""
    if refusal.kind is not RefusalKind.CPUS:
        return refusal
    most = (pod.cpu_milli or 0) + refusal.available * 1000
    fits_alone = len(alone(state, pod).available(node)) >= refusal.requested
    advice = Advice(_obstacle(state, pod, fits_alone=fits_alone), holders_of(state, pod))
    return replace(refusal, advice=replace(advice, pod_cpu_milli=most if refusal.available else 0))


def _obstacle(state: State, pod: PodRecord, *, fits_alone: bool) -> Obstacle:
    has_others = any(pod_of(key) != pod.uid for key in state.allocations)
    return Obstacle.HOLDERS if has_others and fits_alone else Obstacle.MACHINE


def _of(event: UpdateContainer, size: int) -> Resources:
    """The request for so many CPUs."""
    period = event.resources.cpu_period_us or PERIOD_US
    return replace(
        event.resources,
        cpu_shares=size * SHARES_PER_CPU,
        cpu_quota_us=size * period,
        cpu_period_us=period,
    )


def _is_taken(
    node: Node, state: State, record: ContainerRecord, event: UpdateContainer, asked: Resources
) -> bool:
    try:
        resized(node, state, record, event.container, asked)
    except AdmissionError:
        return False
    return True
