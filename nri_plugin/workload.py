"""From what a runtime says about a pod and a container to what the kubelet must have meant.

The runtime sends neither QoS class nor requests; both follow from what it does send.
"""

from dataclasses import dataclass
from functools import lru_cache

from nri_plugin.cpuset import CPUSet
from nri_plugin.nodemask import NodeMask
from nri_plugin.nri.messages import Container, Pod, Resources
from nri_plugin.options import SMTOddCounts
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.state import CgroupRef, PodRecord, QOSClass, allocation_key

MIN_SHARES = 2
"""What the kubelet writes for "no request" (kubelet v1.36 cm/helpers_linux.go MinShares)."""

MAX_SHARES = 262144
"""Where shares stop, 256 CPUs; a larger request looks the same (same source, MaxShares)."""

OWN_ANNOTATIONS = "nri-pin/"
"""What annotations meant for us begin with; the others are not remembered."""

_SLICE = ".slice"
_KUBEPODS = "kubepods"
_CLASSES = ("burstable", "besteffort")


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks for.

    Attributes:
        pod_uid: pod it belongs to.
        name: its name in the pod.
        qos: the pod's QoS class.
        cpu_milli: CPU request; None when shares are at their end and no limit tells it.
        memory_bytes: memory limit, which is also the request of a Guaranteed container; 0 = none.
        hugepages: (`hugepages-SIZE`, bytes) for each page size with a limit above zero.
        smt_odd_counts: its own rule for a count that does not fill its last core; None for the node's.
        wanted_exclusive: exclusive CPUs asked for by annotation; 0 = none.
        devices: what it has been given.
        pod_devices: what all containers of its pod have been given, where somebody knows that.
    """

    pod_uid: str
    name: str
    qos: QOSClass
    cpu_milli: int | None = 0
    memory_bytes: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()
    smt_odd_counts: SMTOddCounts | None = None
    wanted_exclusive: int = 0
    devices: tuple[DeviceResource, ...] = ()
    pod_devices: tuple[DeviceResource, ...] = ()

    @property
    def key(self) -> str:
        """Key of its allocation."""
        return allocation_key(self.pod_uid, self.name)

    @property
    def exclusive_cpus(self) -> int:
        """How many CPUs it gets to itself: whole CPUs of a Guaranteed pod, or those it wants by annotation.

        Source: kubelet v1.36 policy_static.go, guaranteedCPUs.
        """
        if self.qos is not QOSClass.GUARANTEED or self.cpu_milli is None or self.cpu_milli % 1000:
            return self.wanted_exclusive
        return self.cpu_milli // 1000

    @property
    def memory_by_resource(self) -> dict[str, int]:
        """Bytes by resource name, for the memory policy; empty unless Guaranteed."""
        if self.qos is not QOSClass.GUARANTEED:
            return {}
        return (
            {"memory": self.memory_bytes, **dict(self.hugepages)}
            if self.memory_bytes
            else dict(self.hugepages)
        )


def milli_from_shares(shares: int | None) -> int:
    """The CPU request in thousandths that the kubelet turned into `shares`; 0 = no request.

    The kubelet rounds down, so rounding up gives back the request exactly for 3 to 256000.
    """
    if shares is None or shares <= MIN_SHARES:
        return 0
    return -(-shares * 1000 // 1024)


def cpu_milli(resources: Resources | None, qos: QOSClass) -> int | None:
    """The CPU request; from 256 CPUs on it is told by the limit, or not at all (None)."""
    if resources is None:
        return 0
    if (resources.cpu_shares or 0) < MAX_SHARES or qos is not QOSClass.GUARANTEED:
        return milli_from_shares(resources.cpu_shares)
    quota, period = resources.cpu_quota_us or 0, resources.cpu_period_us or 0
    return quota * 1000 // period if quota > 0 and period > 0 else None


def qos_of(cgroup_parent: str) -> QOSClass:
    """QoS class by the pod's cgroup parent; outside the kubelet's tree nothing is promised.

    Source: kubelet v1.36 cm/qos_container_manager_linux.go: Guaranteed pods sit directly below
        `kubepods`, the others below a slice named after their class.
    """
    if _KUBEPODS not in cgroup_parent or "besteffort" in cgroup_parent:
        return QOSClass.BEST_EFFORT
    return QOSClass.BURSTABLE if "burstable" in cgroup_parent else QOSClass.GUARANTEED


def container_request(pod: PodRecord, container: Container) -> ContainerRequest:
    """What `container` of `pod` asks for."""
    return ContainerRequest(
        pod_uid=pod.uid,
        name=container.name,
        qos=pod.qos,
        cpu_milli=cpu_milli(container.resources, pod.qos),
        memory_bytes=container.resources.memory_limit_bytes or 0,
        hugepages=_hugepages(container.resources),
    )


def pod_request(pod: PodRecord) -> ContainerRequest:
    """The whole pod's request in the form of a container's, for pod scope."""
    return ContainerRequest(pod.uid, "", pod.qos, pod.cpu_milli, pod.memory_bytes or 0, pod.hugepages)


def pod_record(pod: Pod, *, run_seen: bool) -> PodRecord:
    """What is remembered of a pod."""
    qos = qos_of(pod.cgroup_parent)
    resources = pod.resources
    return PodRecord(
        uid=pod_uid(pod),
        sandbox_id=pod.id,
        name=pod.name,
        namespace=pod.namespace,
        qos=qos,
        cgroup_parent=pod.cgroup_parent,
        cpu_milli=cpu_milli(resources, qos) if resources is not None else None,
        memory_bytes=resources.memory_limit_bytes if resources is not None else None,
        hugepages=_hugepages(resources) if resources is not None else (),
        annotations=tuple(
            pair for pair in sorted(pod.annotations.items()) if pair[0].startswith(OWN_ANNOTATIONS)
        ),
        run_seen=run_seen,
    )


def pod_uid(pod: Pod) -> str:
    """The pod's uid; a pod that nobody gave one is known by its sandbox."""
    return pod.uid or pod.id


def cgroup_ref(pod: PodRecord, container: Container) -> CgroupRef:
    """Where the container's cgroup is, or will be."""
    return CgroupRef(pod.cgroup_parent, container.cgroups_path)


def stored_cpus(resources: Resources) -> CPUSet:
    """The cpuset the runtime reports; an unreadable one counts as none."""
    try:
        return CPUSet.parse(resources.cpus)
    except ValueError:
        return CPUSet()


def stored_mems(resources: Resources) -> NodeMask:
    """The memory nodes the runtime reports; an unreadable list counts as none."""
    try:
        return NodeMask.parse(resources.mems)
    except ValueError:
        return NodeMask()


@lru_cache(maxsize=4096)
def slice_pattern(cgroup_parent: str) -> str:
    """Where the node keeps its Burstable and BestEffort pods, told from where any pod's cgroup is.

    A pattern for `qos_slices`: `/kubepods/burstable/podUID` and `/kubepods/podUID` both give `/kubepods/{}`,
    `kubepods-podUID.slice` gives `kubepods-{}.slice`; empty outside the kubelet's tree. All pods of a
    node have the same, so it is kept.
    """
    head, found, _ = cgroup_parent.rpartition("/")[2].partition(_KUBEPODS)
    if found and cgroup_parent.endswith(_SLICE):
        return f"{head}{_KUBEPODS}-{{}}{_SLICE}"
    head, found, _ = cgroup_parent.partition(f"/{_KUBEPODS}/")
    return f"{head}/{_KUBEPODS}/{{}}" if found else ""


def qos_slices(pattern: str) -> tuple[CgroupRef, ...]:
    """The cgroups of the Burstable and of the BestEffort pods; none for the empty pattern."""
    return tuple(CgroupRef(pattern.replace("{}", word)) for word in _CLASSES) if pattern else ()


def _hugepages(resources: Resources) -> tuple[tuple[str, int], ...]:
    """Source: kubelet names sizes `2MB` towards the runtime and `hugepages-2Mi` in Kubernetes."""
    return tuple(
        (f"hugepages-{size.removesuffix('B')}i", limit)
        for size, limit in resources.hugepage_limits
        if limit > 0
    )
