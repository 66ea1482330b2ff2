"""Resize in place: the allocation of a running container changes in two steps.

The runtime asks before it acts (UpdateContainer) and confirms afterwards (PostUpdateContainer). It does not report a failure.
Invariant: between the two the container holds the CPUs and memory of both sizes, its cgroup is left to the runtime, and
no other container gets a CPU of either. Where the confirmation is missing, the cpuset that the runtime has stored tells at
the next occasion which of the two sizes it is.

CPUs of the first allocation stay: a container grows beside them and shrinks back to them.

A pod with resources of its own keeps what it was admitted with: its CPUs, its memory and their division among its
containers. A resize there only changes quotas and memory limits, which the runtime writes.

The refusal of a resize gives advice as that of a container does (`nri_plugin.core.advice`): every size was tried, by the
same `resized` on a smaller request.

Source: KEP-1287, KEP-5554; order of the messages as containerd and CRI-O send them.
Differs: the kubelet refuses every resize of a container with exclusive CPUs; here: the container grows by the
    nearest CPUs, and gives back those that it got last. Why: it needs no restart, and keeps the CPUs of its
    start. Option: none.
Differs: the kubelet 1.36 admits a pod with resources of its own anew when these are resized, so it takes other CPUs for
    it, or refuses it although it runs; here: the pod keeps its CPUs and memory, and a new size that does not fit them is
    refused. Why: a running container is never moved. Option: none.
"""

import dataclasses
from itertools import islice

from msgspec.structs import replace

from nri_plugin.core.advice import alone, holders_of
from nri_plugin.core.hint_providers import memory_state_of, tables_of
from nri_plugin.core.kernel_settings import PERIOD_US
from nri_plugin.core.placement import STRICT, exclusive_count, leave_a_pool
from nri_plugin.core.requests import (
    ContainerRequest,
    annotated,
    container_request,
    stored_cpus,
    with_late_facts,
)
from nri_plugin.core.reuse import is_plain_init, live_keys
from nri_plugin.model.errors import AdmissionError, InsufficientCPUsError, InsufficientMemoryError
from nri_plugin.model.options import CPUManagerPolicy, Node, narrowed
from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    MemoryBlock,
    PodRecord,
    Resize,
    Size,
    allocation_key,
    owner_of,
)
from nri_plugin.model.refusals import AdmissionRefusal, Advice, Obstacle, RefusalKind
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.cpu_policy import check_full_pcpus, checks_multiple, nearest, without_last
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.pod_level import has_own_resources
from nri_plugin.policy.search.mask_order import distances_of
from nri_plugin.wire.nri.events import UpdateContainer
from nri_plugin.wire.nri.messages import Container, Resources

SHARES_PER_CPU = 1024


def resized(
    node: Node, state: State, record: ContainerRecord, container: Container, asked: Resources
) -> State:
    """The state in which the container holds both its current size and the requested one.

    Args:
        node: the node.
        state: before.
        record: the container's.
        container: as the runtime has it stored.
        asked: the resources of the request; absent ones stay.

    Raises:
        AdmissionError: the requested size is not available.
    """
    if _of_whole_pod(state, record.pod_uid) is not None:
        _refuse_other_slice(node, state, record, container, asked)
        return state
    if node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return state
    # 1. The current size. The runtime reports no failure, so an earlier resize may still be open.
    stored = state.allocation_of(record) or Allocation()
    held = stored.settled_by(stored_cpus(container.resources))
    if held != stored:
        state = state.with_allocation(record.key, held)
    # 2. The requested size. The request before is read in the same way as the one after, so that rounding affects both
    #    alike.
    pod = state.pods[record.pod_uid]
    request, before = (_request(node, pod, container, what) for what in (asked, Resources()))
    if not held.cpus:
        request = with_late_facts(pod, request)
    # A container whose CPU request stays keeps its CPUs, even if it would get others today: it may be unplaced.
    stays = request.cpu_milli == before.cpu_milli
    count = len(held.cpus) if stays else exclusive_count(node, request)
    if stays or not (held.cpus or count):
        # Nor does the CPU request of a container of the shared pool change anything here; only bound memory is resized.
        after = _with_memory(node, state, held, request)
        return _asked(state, record, held, after) if held.memory else state
    return _asked(state, record, held, _size_after(node, state, held, request, count))


def followed(node: Node, state: State, request: ContainerRequest) -> tuple[State, ContainerRequest, str]:
    """Resize an allocation whose container has another size already: it was created again, or resized without an agent.

    The rules are those of a resize in place. What they refuse is no reason against a container that was admitted: it keeps
    its allocation, as if the resize had been refused in time. While an instance of it lives, it gives no CPUs back: the
    runtime may have forgotten that it had grown, or given its name twice. The kubelet asks again for fewer.

    Args:
        node: the node.
        state: before.
        request: the container's, with its annotations applied.

    Returns:
        The state, the request that the allocation satisfies, and why that is not the given one; else an empty text.

    Differs: the kubelet keeps the CPUs of a container that is started again whatever it asks for then; here: its
        allocation is resized as in place, or kept with the container marked. Why: the size of an allocation follows the
        container's, and a restart is never worse than no resize. Option: none.
    """
    held = state.allocations.get(request.key)
    is_static = node.options.cpu_manager_policy is CPUManagerPolicy.STATIC
    if held is None or held.claim or held.is_pod_shared or not is_static or request.cpu_milli is None:
        return state, request, ""
    is_done = held.resize is not None and request.cpu_milli == held.resize.after.cpu_milli
    held = held.settled(is_done=is_done)
    is_whole = _of_whole_pod(state, request.pod_uid) is not None
    # An allocation of CPUs without a request is imported, and its container may have any size.
    if is_whole or not (held.cpu_milli if held.cpus else held.memory):
        return state, request, ""
    if held != state.allocations[request.key]:
        state = state.with_allocation(request.key, held)
    memory = sum(block.size_bytes for block in held.memory if block.resource == MEMORY)
    # Memory that another container of the pod took over is no resize (`nri_plugin.core.reuse`).
    is_known = not _may_have_passed_on(state, request.key)
    asked = request if is_known else replace(request, memory_bytes=memory)
    former = replace(
        request,
        cpu_milli=held.cpu_milli,
        memory_bytes=memory if is_known and memory else request.memory_bytes,
        wanted_exclusive=len(held.cpus) if request.wanted_exclusive else 0,
    )
    try:
        if request.cpu_milli == held.cpu_milli:
            size = _with_memory(node, state, held, asked)
        else:
            size = _size_after(node, state, held, asked, exclusive_count(node, request))
    except AdmissionError as error:
        return state, former, str(error)
    if size == size_of(held):
        return state, request, ""
    if not held.cpus <= size.cpus and request.key in live_keys(state, request.pod_uid):
        return state, former, ""
    after = replace(held, cpus=size.cpus, grown=size.grown, cpu_milli=size.cpu_milli, memory=size.memory)
    return state.with_allocation(request.key, after), request, ""


def _may_have_passed_on(state: State, key: str) -> bool:
    """Whether other containers of the pod may have taken over memory of this one."""
    pod_uid, name = owner_of(key)
    pod = state.pods.get(pod_uid)
    if pod is not None and pod.facts is not None:
        return is_plain_init(pod.facts, name)
    return len(state.allocations_of(pod_uid)) > 1


def shares_on(state: State, request: ContainerRequest) -> tuple[ContainerRequest, str]:
    """The request of a container without an allocation that is started again, and why it goes on in the shared pool.

    One that asked for a fraction of a CPU and was resized to whole ones stays in the shared pool, as if it had gone on.
    """
    if request.key in state.allocations or not request.exclusive_cpus or request.wanted_exclusive:
        return request, ""
    if not fraction_before(state, request.pod_uid, request.name):
        return request, ""
    return replace(request, pod_level=True), _stays_shared(request.exclusive_cpus)


def fraction_before(state: State, uid: str, name: str) -> int:
    """The request of an instance of the container that asked for a fraction of a CPU, in thousandths; 0 without one.

    The limit of a Guaranteed container is its request.
    """
    limits = (one.limit_milli for one in state.containers_of(uid) if one.name == name)
    return next((limit for limit in limits if limit % 1000), 0)


def _size_after(node: Node, state: State, held: Allocation, request: ContainerRequest, count: int) -> Size:
    """The size of the container once it has what it asks for.

    Raises:
        AdmissionError: that is not available, or the container would lose CPUs of its start.
    """
    _refuse_other_kind(held, request, count)
    # 3. Memory first: it can be refused, and costs less than a search for CPUs.
    after = _with_memory(node, state, held, request)
    if count and node.options.full_pcpus_only:
        # Only the count is checked here: all CPUs count as available.
        rule = request.smt_odd_counts or node.options.smt_odd_counts
        every = CPUSet(tables_of(node).online)
        check_full_pcpus(tables_of(node), count, every, CPUSet(), allow_odd=not checks_multiple(rule))
    # 4. CPUs: beside those it has, or without those that came last. The CPUs of its start stay in both cases.
    if count > len(held.cpus):
        after = _grown(narrowed(node, request.isolated), state, held, after, count - len(held.cpus))
    elif count < len(held.cpus):
        after = _shrunk(node, held, after, len(held.cpus) - count)
    return replace(after, cpu_milli=request.cpu_milli or 0)


def _of_whole_pod(state: State, pod_uid: str) -> Allocation | None:
    """What the pod owns as a whole; None for a pod whose containers own what they have."""
    return state.allocations.get(allocation_key(pod_uid, ""))


def _refuse_other_slice(
    node: Node, state: State, record: ContainerRecord, container: Container, asked: Resources
) -> None:
    """Refuse a new CPU request of a container that has a part of its pod's CPUs for itself.

    A container of the pod's shared pool stays there, whatever it asks for.

    Raises:
        AdmissionError: it asks for that.
    """
    held = state.allocation_of(record)
    if held is None or not held.cpus or held.is_pod_shared:
        return
    pod = state.pods[record.pod_uid]
    request, before = (_request(node, pod, container, what).cpu_milli for what in (asked, Resources()))
    if request != before:
        raise AdmissionError(
            f"resize in place of the container from {_in_cpus(before or 0)} to {_in_cpus(request or 0)} CPUs is "
            f"infeasible: its CPUs {held.cpus} are a part of those of its pod, which is divided once, when the pod is "
            "admitted; make the pod anew"
        )


def refuse_pod_total(
    node: Node, state: State, pod: PodRecord, cpu_milli: int | None, memory_bytes: int = 0
) -> None:
    """Refuse a new total of a pod with exclusive CPUs where the resize of a container would be refused.

    The pod's total comes first. When it is refused, no part of the resize is done.

    Args:
        node: the node.
        state: before.
        pod: the pod.
        cpu_milli: its new total; None where it stays.
        memory_bytes: its new total of memory; 0 where it stays.

    Raises:
        InsufficientCPUsError: it asks for more CPUs than are available.
        AdmissionError: it asks for fewer than the containers were allocated at their start, or the pod has resources of
            its own and asks for more, or for fewer CPUs.
    """
    whole = _of_whole_pod(state, pod.uid)
    if whole is not None:
        _refuse_other_whole(whole, cpu_milli or 0, memory_bytes)
        return
    # A pod without exclusive CPUs of ours may ask for any total: it runs in the shared pool.
    held = [one for one in state.allocations_of(pod.uid).values() if one.cpus and not one.claim]
    if not held or not pod.cpu_milli or not cpu_milli:
        return
    if cpu_milli < pod.cpu_milli:
        _refuse_below_start(held, pod.cpu_milli, cpu_milli)
    if has_own_resources(pod.facts):
        return  # its total is no sum of its containers: what they share needs no exclusive CPUs
    more = (cpu_milli - pod.cpu_milli) // 1000
    left = len(state.available(node))
    if more > left:
        raise InsufficientCPUsError(
            more, left, f"pod {pod.name} cannot grow from {pod.cpu_milli}m to {cpu_milli}m"
        )


def _refuse_below_start(held: list[Allocation], before_milli: int, cpu_milli: int) -> None:
    """Refuse a total below the CPUs that the pod's containers keep.

    CPUs from an annotation are not counted: the request of such a container does not tell their number.

    Raises:
        AdmissionError: with the numbers of the refusal of a container.
    """
    running, kept = CPUSet(), [CPUSet()]
    for one in held:
        size = one.resize.before if one.resize else size_of(one)
        if size.cpu_milli == 1000 * len(size.cpus):
            # Plain init containers keep CPUs that the others need not have, and none of them runs beside these.
            kept.append(at_start(size))
            running |= CPUSet() if one.is_init else kept[-1]
    first = max((running, *kept), key=len)
    if cpu_milli < 1000 * len(first):
        raise AdmissionError(_below_start("pod", before_milli, cpu_milli, first))


def _refuse_other_whole(whole: Allocation, cpu_milli: int, memory_bytes: int) -> None:
    """Refuse a new size of a pod with resources of its own: other CPUs, or more memory.

    Less memory only lowers a limit; the pod keeps what it was allocated.

    Raises:
        AdmissionError: it asks for that.
    """
    what = "what a pod with resources of its own was admitted with stays; make the pod anew"
    if whole.cpus and cpu_milli and cpu_milli != whole.cpu_milli:
        raise AdmissionError(
            f"resize in place of the pod from {_in_cpus(whole.cpu_milli)} to {_in_cpus(cpu_milli)} CPUs is infeasible: "
            f"it owns CPUs {whole.cpus}, and {what}"
        )
    had = sum(block.size_bytes for block in whole.memory if block.resource == MEMORY)
    if had and memory_bytes > had:
        raise AdmissionError(
            f"resize in place of the pod from {had} to {memory_bytes} bytes of memory is infeasible: it owns them on NUMA "
            f"nodes {whole.mems}, and {what}"
        )


def _below_start(what: str, before_milli: int, asked_milli: int, first: CPUSet) -> str:
    return (
        f"resize in place of the {what} from {_in_cpus(before_milli)} to {_in_cpus(asked_milli)} CPUs: the {len(first)} "
        f"it was allocated at its start ({first}) stay; ask for {len(first)} or more, or make the pod anew"
    )


def _in_cpus(milli: int) -> str:
    return f"{milli / 1000:.10g}"


def at_start(size: Size | Allocation) -> CPUSet:
    """The CPUs that a container was allocated at its start."""
    grown = CPUSet()
    for step in size.grown:
        grown |= step
    return size.cpus - grown


def _request(node: Node, pod: PodRecord, container: Container, asked: Resources) -> ContainerRequest:
    """The container's whole request: that of the event, and the stored values where the event has none."""
    had = container.resources
    whole = replace(
        had,
        cpu_shares=asked.cpu_shares or had.cpu_shares,
        cpu_quota_us=asked.cpu_quota_us or had.cpu_quota_us,
        cpu_period_us=asked.cpu_period_us or had.cpu_period_us,
        memory_limit_bytes=asked.memory_limit_bytes or had.memory_limit_bytes,
        hugepage_limits=asked.hugepage_limits or had.hugepage_limits,
    )
    return annotated(
        node.options, pod, container_request(node.options, pod, replace(container, resources=whole))
    )


def _refuse_other_kind(held: Allocation, request: ContainerRequest, count: int) -> None:
    """Refuse a resize between exclusive CPUs and the shared pool.

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
        raise AdmissionError(_stays_shared(count))


def _stays_shared(count: int) -> str:
    return (
        f"resize in place of the container to {count} CPUs: this container runs in the shared pool and stays there; "
        "make the pod anew for exclusive CPUs"
    )


def _grown(node: Node, state: State, held: Allocation, after: Size, count: int) -> Size:
    options = node.options
    available, where = state.available(node), ""
    if options.topology_manager_policy in STRICT and held.affinity:
        # The policy admitted the container by this hint; growing must not widen it.
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
    # Source: KEP-5554: the CPUs of the admission are kept.
    first, before = at_start(held), len(held.cpus)
    if before - count < len(first):
        raise AdmissionError(_below_start("container", 1000 * before, 1000 * (before - count), first))
    # CPUs that came last leave first.
    remaining = without_last(tables_of(node), held.grown, count, node.options)
    cpus = first
    for step in remaining:
        cpus |= step
    return replace(after, cpus=cpus, grown=remaining)


def _with_memory(node: Node, state: State, held: Allocation, request: ContainerRequest) -> Size:
    """The current size with the requested memory, which stays on its NUMA nodes.

    Raises:
        InsufficientMemoryError: these do not have as much left.
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
    """An allocation as one of the two sizes of a resize."""
    return Size(held.cpus, held.grown, held.cpu_milli, held.memory)


def _asked(state: State, record: ContainerRecord, held: Allocation, after: Size) -> State:
    """The state in which the container holds both sizes: all CPUs of both, and the larger memory."""
    before = size_of(held)
    if after == before:
        return state if state.allocation_of(record) == held else state.with_allocation(record.key, held)
    # The runtime may apply either size until it confirms, so both must be there.
    larger = after.memory if _bytes(after) > _bytes(before) else before.memory
    both = replace(held, cpus=before.cpus | after.cpus, memory=larger, resize=Resize(before, after))
    return state.with_allocation(record.key, both)


def _bytes(size: Size) -> int:
    return sum(block.size_bytes for block in size.memory)


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
    return dataclasses.replace(refusal, advice=advice)


def advised_pod_growth(
    node: Node, state: State, pod: PodRecord, refusal: AdmissionRefusal
) -> AdmissionRefusal:
    """The same for a pod's new total."""
    if refusal.kind is not RefusalKind.CPUS:
        return refusal
    most = (pod.cpu_milli or 0) + refusal.available * 1000
    fits_alone = len(alone(state, pod).available(node)) >= refusal.requested
    advice = Advice(_obstacle(state, pod, fits_alone=fits_alone), holders_of(state, pod))
    return dataclasses.replace(
        refusal, advice=dataclasses.replace(advice, pod_cpu_milli=most if refusal.available else 0)
    )


def _obstacle(state: State, pod: PodRecord, *, fits_alone: bool) -> Obstacle:
    has_others = len(state.allocations) > len(state.allocations_of(pod.uid))
    return Obstacle.HOLDERS if has_others and fits_alone else Obstacle.MACHINE


def _of(event: UpdateContainer, size: int) -> Resources:
    """The request for `size` CPUs."""
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
