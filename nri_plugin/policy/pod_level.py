"""Pods with resources of their own (`spec.resources`): the CPUs and memory of the pod, and how its containers share them.

The names of this module:

* *block*: the CPUs that the pod as a whole owns. No other pod runs on them.
* *slice*: the CPUs of the block that one container owns.
* *pod shared pool*: the CPUs of the block that no sidecar and no app container owns. All its other containers run there.

A container owns a slice when its requests and limits of CPU and memory are set and equal, and its CPUs are whole. It has
a claim on memory under the same condition without the last part. All other containers share what the claims leave.

The steps for a pod, in the kubelet's order: `refuse_empty_pool` for CPUs and each memory resource, `take_block` under the
merged hint of the pod, `sets_of` for the containers, and `memory_of` for each container's part of the pod's memory.

Source: KEP-5526, kubelet v1.36.2 pkg/kubelet/cm/cpumanager/policy_static.go and memorymanager/policy_static.go
    (AllocatePod).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nri_plugin.model.errors import EmptyPodSharedPoolError
from nri_plugin.model.options import Options, PodSharedPoolRule
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, MemoryBlock, PodFacts, QOSClass
from nri_plugin.model.refusals import EmptyPodSharedPool
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import CPUTables
from nri_plugin.policy.cpu_policy import allocate_cpus, take_cpus
from nri_plugin.policy.memory_state import MEMORY

# ----------------------------------------------------------------------------------------------------
# Claims: the part of the pod's resources that one container has for itself.


def has_own_resources(facts: PodFacts | None) -> bool:
    """Whether the pod sets CPU, memory or huge pages for itself; an empty `resources` field does not count."""
    amounts = facts.pod_resources if facts else None
    return amounts is not None and amounts != Amounts()


def is_eligible(facts: PodFacts, one: ContainerFacts) -> bool:
    """Whether the container may own part of the pod: CPU and memory are set, and requests equal limits."""
    amounts = one.amounts
    return (
        facts.qos is QOSClass.GUARANTEED
        and 0 < amounts.cpu_request_milli == amounts.cpu_limit_milli
        and 0 < amounts.memory_request_bytes == amounts.memory_limit_bytes
    )


def cpu_claim(facts: PodFacts, one: ContainerFacts) -> int:
    """The number of CPUs that the container owns; 0 when it runs in a shared pool."""
    whole, rest = divmod(one.amounts.cpu_request_milli, 1000)
    return whole if not rest and is_eligible(facts, one) else 0


def memory_claim(facts: PodFacts, one: ContainerFacts) -> Mapping[str, int]:
    """The bytes by resource that the container owns; empty when it has no claim.

    Whole CPUs are not needed for it: a container of the pod shared pool may own memory.

    Differs: the kubelet 1.36 takes a container without a claim through the allocation of memory, and so refuses
        its pod under container scope and under the policy none; here: such a container needs no memory nodes,
        as in 1.37. Why: it asks for nothing that could be missing. Option: none.
    """
    return _memory_of(one.amounts) if is_eligible(facts, one) else {}


def pod_cpus(facts: PodFacts) -> int:
    """The number of CPUs of the pod's block; 0 for a pod that gets none: not Guaranteed, or a fraction of a CPU."""
    amounts = facts.pod_resources
    if amounts is None or facts.qos is not QOSClass.GUARANTEED or amounts.cpu_request_milli % 1000:
        return 0
    return amounts.cpu_request_milli // 1000


def pod_memory(facts: PodFacts) -> Mapping[str, int]:
    """The bytes by resource of the pod as a whole; empty for a pod that is not Guaranteed.

    Differs: the kubelet admits a pod whose memory is written as a fraction, such as `1.5Gi`, without memory,
        and refuses it where a container is written so; here: the amount counts in bytes. Why: `1.5Gi` is a
        whole number of bytes. Option: none.
    """
    amounts = facts.pod_resources
    return _memory_of(amounts) if amounts is not None and facts.qos is QOSClass.GUARANTEED else {}


def _memory_of(amounts: Amounts) -> dict[str, int]:
    told = {MEMORY: amounts.memory_request_bytes, **dict(amounts.hugepages)}
    return {resource: size for resource, size in told.items() if size > 0}


# ----------------------------------------------------------------------------------------------------
# Admission of the pod as a whole.


def refuse_empty_cpu_pool(facts: PodFacts) -> None:
    """Refuse a pod whose exclusive containers leave no CPU to those that share.

    Raises:
        EmptyPodSharedPoolError: a container would have no CPU to run on.
    """
    claims = [cpu_claim(facts, one) for one in facts.containers]
    _refuse_empty(facts, "cpu", pod_cpus(facts), claims, [not claim for claim in claims])


def refuse_empty_memory_pool(facts: PodFacts, rule: PodSharedPoolRule = PodSharedPoolRule.KUBELET) -> None:
    """Refuse a pod whose exclusive containers leave nothing of a memory resource to those that share.

    Args:
        facts: the pod's.
        rule: `cpu-and-memory` does not look at huge pages. Those that a sharing container asks for are always left, since
            the pod has at least the sum of its containers.

    Raises:
        EmptyPodSharedPoolError: of the first such resource, `memory` first.

    Differs: the kubelet names a random one of several exhausted memory resources in its message; here: the
        first one is named, ordinary memory before huge pages. Why: equal requests get equal answers. Option:
        none.
    Differs: the kubelet refuses a pod whose exclusive containers leave no huge pages to the others; here: the
        rule `cpu-and-memory` admits it. Why: the API server gives a pod the sum of its containers' huge pages,
        and most sidecars need none. Option: `podSharedPoolRule: kubelet` (the default).
    """
    claims = [memory_claim(facts, one) for one in facts.containers]
    for resource, size in pod_memory(facts).items():
        if resource != MEMORY and rule is PodSharedPoolRule.CPU_AND_MEMORY:
            continue
        _refuse_empty(
            facts, resource, size, [one.get(resource, 0) for one in claims], [not one for one in claims]
        )


def _refuse_empty(
    facts: PodFacts, resource: str, amount: int, claims: list[int], is_shared: list[bool]
) -> None:
    """Walk the containers in the order in which they start.

    A plain init container ends before the next container starts, so its claim leaves the amount as it is. It needs a
    share only beside the sidecars that run already.
    """
    taken, shares = 0, False
    for one, claim, shared in zip(facts.containers, claims, is_shared, strict=True):
        if one.kind is Kind.INIT:
            if shared and taken >= amount:
                raise EmptyPodSharedPoolError(
                    EmptyPodSharedPool(resource, one.name, taken, amount, is_init=True)
                )
        elif shared:
            shares = True
        else:
            taken += claim
    if shares and taken >= amount:
        name = next(
            one.name
            for one, shared in zip(facts.containers, is_shared, strict=True)
            if shared and one.kind is not Kind.INIT
        )
        raise EmptyPodSharedPoolError(EmptyPodSharedPool(resource, name, taken, amount, is_init=False))


def take_block(
    tables: CPUTables,
    facts: PodFacts,
    available: CPUSet,
    affinity: NodeMask | None,
    *,
    reserved: CPUSet,
    options: Options,
) -> CPUSet:
    """The CPUs of the pod's block; empty for a pod that gets none.

    Args:
        tables: the machine.
        facts: the pod's.
        available: CPUs that can become exclusive. Those of ended init containers of the pod do not count.
        affinity: the merged hint of the pod; None for anywhere.
        reserved: CPUs for the system.
        options: how CPUs are chosen.

    Raises:
        AdmissionError: as `policy.cpu_policy.allocate_cpus`, with the numbers of the pod; or no CPU is left to share.
    """
    count = pod_cpus(facts)
    if count:
        refuse_empty_cpu_pool(facts)
    return allocate_cpus(tables, count, available, affinity, reserved=reserved, options=options)


# ----------------------------------------------------------------------------------------------------
# The containers inside the block.


@dataclass(frozen=True, slots=True)
class PodPart:
    """The part of one container in its pod's block.

    Attributes:
        cpus: the CPUs that it runs on.
        is_shared: other containers of the pod run there too.
    """

    cpus: CPUSet
    is_shared: bool


def sets_of(
    tables: CPUTables,
    facts: PodFacts,
    block: CPUSet,
    options: Options,
    slices: Mapping[str, CPUSet] = MappingProxyType({}),
) -> dict[str, PodPart]:
    """The CPUs of each container of the pod, by name; empty for a pod without a block.

    Slices come out of the block by the same choice as the block came out of the machine, without a hint. The sidecars
    before a container run beside it, so it gets none of their slices. Plain init containers end: a later container may
    get the CPUs that one of them had. Only the number of CPUs of the pod has to fill cores under full-pcpus-only, so two
    containers of a pod may share a core.

    Args:
        tables: of the machine.
        facts: the pod's.
        block: the CPUs of the pod.
        options: how CPUs are chosen.
        slices: those that containers have already, by name.

    Raises:
        InsufficientCPUsError: the claims of the containers are larger than the pod.

    Differs: the kubelet stores the CPUs of the pod before it divides them, loses them where the division
        fails, and on uneven cores gives containers CPUs outside of them; here: the pod is allocated after the
        division, and every slice is part of its CPUs. Why: no CPU is lost or given to two pods. Option: none.
    """
    if not block:
        return {}
    left, parts = block, {}
    kept = _union(
        slices[one.name].mask for one in facts.containers if one.name in slices and one.kind is not Kind.INIT
    )
    for one, beside in _with_sidecars(facts):
        count = cpu_claim(facts, one)
        if count:
            # A plain init container ends before the later ones start, so it may have CPUs of theirs.
            offered = left if one.kind is Kind.INIT else left - CPUSet(kept)
            cpus = slices.get(one.name) or take_cpus(tables, offered, count, options)
            # A plain init container gives its slice back at its end.
            left = left if one.kind is Kind.INIT else left - cpus
            parts[one.name] = PodPart(cpus, is_shared=False)
        elif one.kind is Kind.INIT:
            # Later sidecars and app containers are not there yet, so it may run on their CPUs.
            taken = (parts[name].cpus.mask for name in beside if not parts[name].is_shared)
            parts[one.name] = PodPart(block - CPUSet(_union(taken)), is_shared=True)
        else:
            parts[one.name] = PodPart(CPUSet(), is_shared=True)
    return {
        # The pool is known when all slices are: a sidecar starts with the final one.
        name: PodPart(left, is_shared=True) if part.is_shared and not part.cpus else part
        for name, part in parts.items()
    }


def _with_sidecars(facts: PodFacts) -> Iterator[tuple[ContainerFacts, tuple[str, ...]]]:
    """Each container, with the names of the sidecars that are listed before it."""
    sidecars: tuple[str, ...] = ()
    for one in facts.containers:
        yield one, sidecars
        if one.kind is Kind.SIDECAR:
            sidecars = (*sidecars, one.name)


def _union(masks: Iterator[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def memory_of(facts: PodFacts, pod_blocks: tuple[MemoryBlock, ...]) -> dict[str, tuple[MemoryBlock, ...]]:
    """Each container's part of the pod's memory, by name, as the kubelet keeps its books.

    The memory is allocated once, for the pod. These parts tell who may use how much of it: a container with a claim its
    claim, all others what the claims leave. All are on the pod's NUMA nodes.
    """
    claims = {one.name: memory_claim(facts, one) for one in facts.containers}
    kept = [claims[one.name] for one in facts.containers if one.kind is not Kind.INIT]
    parts = {}
    for one, sidecars in _with_sidecars(facts):
        # A plain init container shares with the sidecars before it, the others with all that go on running.
        beside = [claims[name] for name in sidecars] if one.kind is Kind.INIT else kept
        own = claims[one.name]
        sizes = [
            own.get(block.resource, 0)
            if own
            else block.size_bytes - sum(claim.get(block.resource, 0) for claim in beside)
            for block in pod_blocks
        ]
        parts[one.name] = tuple(
            MemoryBlock(block.nodes, block.resource, size)
            for block, size in zip(pod_blocks, sizes, strict=True)
            if size > 0
        )
    return parts
