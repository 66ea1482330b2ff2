"""The kernel settings of a pod beside the cpusets of its containers: CFS quotas, partitions, the CPUs of its sandbox.

A CFS quota throttles even a container that has all its CPUs to itself, because the period of the quota and the load of its
threads are not aligned. So it is lifted from such containers and from their pods, and restored when they run in the shared
pool. The sandbox (pause) of a pod has no cpuset of its own and would run on the CPUs of all containers.

All of this is derived from the state and reconciled periodically. None of it is worth a refused container.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nri_plugin.core.annotations import isolation
from nri_plugin.core.pool import pins
from nri_plugin.core.reuse import live_keys
from nri_plugin.model.options import Effect, Isolation, Node
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    Phase,
    PodRecord,
    QOSClass,
    allocation_key,
    pod_of,
)
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.pod_level import has_own_resources

NO_QUOTA = -1
PERIOD_US = 100_000
"""Source: kubelet v1.36 cm/helpers_linux.go, the default of cpuCFSQuotaPeriod."""

MOST_BY_SHARES_MILLI = 256_000
"""From here on only the quota tells NRI plugins the CPU request, so the runtime has to keep it."""


@dataclass(frozen=True, slots=True)
class QuotaWrite:
    """The CFS quota of one cgroup.

    Attributes:
        target: the cgroup, a container's or a pod's.
        quota_us: microseconds each `PERIOD_US`, or NO_QUOTA.
    """

    target: CgroupRef
    quota_us: int


def lifts_quota(node: Node, state: State, record: ContainerRecord) -> bool:
    """Whether the container has a quota that should not throttle it: it runs on CPUs of its own.

    A Burstable container keeps a limit below the CPUs that its annotation gave it: that limit is intended.

    Source: kubelet v1.36, feature gate DisableCPUQuotaWithExclusiveCPUs.
    """
    held = state.allocation_of(record)
    if not node.options.lift_cpu_quota or held is None or not record.limit_milli:
        return False
    if held.is_pod_shared or held.claim:
        return False
    pod = state.pods.get(record.pod_uid)
    is_whole = pod is not None and pod.qos is QOSClass.GUARANTEED
    is_whole = is_whole or record.limit_milli >= 1000 * len(held.in_force)
    return is_whole and bool(held.in_force & node.topology.online)


def replies_quota(node: Node, state: State, record: ContainerRecord) -> bool:
    """Whether the runtime is told to lift it; the value it stores survives every rewrite of the cgroup."""
    held = state.allocation_of(record)
    return held is not None and held.cpu_milli < MOST_BY_SHARES_MILLI and lifts_quota(node, state, record)


def quotas(node: Node, state: State) -> Iterator[QuotaWrite]:
    """The quota of every running container with exclusive CPUs, and of their pods; pods come last.

    Only limits that were set are ever written back. The kubelet gives a pod a quota when all of its containers have a
    limit, which the runtime does not tell of a pod that is not Guaranteed. So such a pod only loses its quota, and the
    limits of its containers remain.
    """
    if node.options.effect is Effect.CGROUP:
        yield from _quotas(state, lambda record: lifts_quota(node, state, record))


def limits(state: State) -> Iterator[QuotaWrite]:
    """The same with nothing lifted, for the end of the agent."""
    return _quotas(state, lambda _record: False)


def _quotas(state: State, lifts: Callable[[ContainerRecord], bool]) -> Iterator[QuotaWrite]:
    lifted: dict[str, bool] = {}
    for record, held in _exclusive(state):
        if not record.limit_milli:
            continue
        is_lifted = lifts(record)
        lifted[record.pod_uid] = is_lifted or lifted.get(record.pod_uid, False)
        if record.cgroup.path:
            yield QuotaWrite(record.cgroup, _quota(_limit_milli(state, record, held), is_lifted=is_lifted))
    # The pod's quota is the sum of its containers' and would throttle an exclusive container as well.
    for uid, is_any_lifted in lifted.items():
        pod = state.pods.get(uid)
        is_lifted = is_any_lifted and not _throttles_shared(state, pod)
        has_quota = pod is not None and (is_lifted or pod.qos is QOSClass.GUARANTEED)
        if pod is not None and has_quota and pod.limit_milli and pod.cgroup_parent:
            yield QuotaWrite(CgroupRef(pod.cgroup_parent), _quota(pod.limit_milli, is_lifted=is_lifted))


def _throttles_shared(state: State, pod: PodRecord | None) -> bool:
    """Whether the pod has resources of its own, and a container that only the pod's quota bounds.

    Source: kubelet v1.36.2 cm/pod_container_manager_linux.go: such a pod keeps its quota as long as one of its containers,
        an ended init container included, shares CPUs.
    """
    if pod is None:
        return False
    if pod.facts is None:
        # It was found running or imported, and its allocations tell what they can.
        is_whole = allocation_key(pod.uid, "") in state.allocations
        return is_whole and any(one.is_pod_shared for one in state.allocations_of(pod.uid).values())
    if not has_own_resources(pod.facts):
        return False
    held = (state.allocations.get(allocation_key(pod.uid, one.name)) for one in pod.facts.containers)
    return any(one is None or not one.cpus or one.is_pod_shared for one in held)


def _limit_milli(state: State, record: ContainerRecord, held: Allocation) -> int:
    """For a Guaranteed pod's container its request: a failed resize changes the last limit told, not the request."""
    pod = state.pods.get(record.pod_uid)
    is_request = pod is not None and pod.qos is QOSClass.GUARANTEED
    return (held.cpu_milli if is_request else 0) or record.limit_milli


@dataclass(frozen=True, slots=True)
class Partition:
    """A cpuset partition: a scheduling domain of one container.

    Attributes:
        target: the container's cgroup.
        cpus: the CPUs of its allocation that are online.
        kind: the value of `cpuset.cpus.partition`, `root` or `isolated`.
        container_id: the container.
    """

    target: CgroupRef
    cpus: CPUSet
    kind: str
    container_id: str


def allocated_cgroups(state: State) -> Iterator[tuple[CgroupRef, CPUSet]]:
    """Every cgroup that may have been made a partition, and the allocated CPUs of its container."""
    for uid in dict.fromkeys(map(pod_of, state.holders)):
        for record in state.containers_of(uid):
            held = state.allocation_of(record)
            if held is not None and held.cpus and record.cgroup.path:
                yield record.cgroup, held.cpus


_WORDS = {Isolation.PARTITION: "root", Isolation.ISOLATED: "isolated"}


def partitions(node: Node, state: State) -> Iterator[Partition]:
    """The partition of every running container that should have one.

    Where two instances of one container run, neither has one: their cpusets are the same, and a partition shares no CPU.
    For the same reason a container of a pod's shared pool has none, nor an init container while others of its pod run on
    its CPUs.
    """
    if node.options.effect is not Effect.CGROUP:
        return
    some = list(_exclusive(state))
    running = Counter(record.key for record, _ in some)
    for record, held in some:
        pod = state.pods.get(record.pod_uid)
        if (
            not record.cgroup.path
            or pod is None
            or running[record.key] > 1
            or _has_company(state, record, held)
        ):
            continue
        word = _WORDS.get(isolation(node.options, pod, record.name))
        cpus = held.in_force & node.topology.online
        if word and cpus:
            yield Partition(record.cgroup, cpus, word, record.id)


def _has_company(state: State, record: ContainerRecord, held: Allocation) -> bool:
    """Whether other containers of the pod run on CPUs of this init container."""
    others = live_keys(state, record.pod_uid) - {record.key} if held.is_init else ()
    return any(
        not held.cpus.isdisjoint(state.allocations[key].cpus) for key in others if key in state.allocations
    )


def sandboxes(node: Node, state: State) -> Iterator[tuple[CgroupRef, CPUSet]]:
    """The shared pool for the sandbox of every pod that no slice above bounds.

    Also for that of a pod which owns CPUs as a whole: these are divided among its containers.
    """
    pool = state.shared_pool(node)
    if node.options.effect is not Effect.CGROUP or not pins(node, state) or not pool:
        return
    unbounded = state.guaranteed_pods if node.options.pool_floor else state.pods.values()
    for pod in unbounded:
        if pod.sandbox_path:
            yield CgroupRef(pod.cgroup_parent, pod.sandbox_path), pool


def _exclusive(state: State) -> Iterator[tuple[ContainerRecord, Allocation]]:
    """Running containers with exclusive CPUs of ours."""
    for uid in dict.fromkeys(map(pod_of, state.holders)):
        for record in state.containers_of(uid):
            held = state.allocation_of(record)
            if held is None or not held.cpus or held.is_pod_shared or held.claim:
                continue
            if record.phase is Phase.RUNNING:
                yield record, held


def _quota(limit_milli: int, *, is_lifted: bool) -> int:
    return NO_QUOTA if is_lifted else limit_milli * PERIOD_US // 1000
