"""Pods as specified, and the NRI messages and pod facts that kubelet, runtime and exporter make of them.

A manifest or a scenario gives a `PodSpec` (`simulate.manifests`, `scenario.steps`). From it come `pod_message` and
`container_message`, which travel in NRI events (as far as placement reads them), and `pod_facts`, which the agent adds to CreateContainer.

`nri_plugin.core.requests` computes requests from messages; it shares no code with this module, so that each checks the
other.

Source: kubelet v1.36 cm/helpers_linux.go (shares and quota),
    kuberuntime/util (sum of a pod); containerd's and CRI-O's filling of NRI messages.
"""

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from msgspec.structs import replace

from nri_plugin.core.requests import pod_total
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.topology import Topology
from nri_plugin.wire.nri.messages import Container, ContainerState, DeviceNode, Pod, Resources

MIN_SHARES = 2
MAX_SHARES = 262144
PERIOD_US = 100_000
MIN_QUOTA_US = 1000

# The runtime


@dataclass(frozen=True, slots=True)
class RuntimeKind:
    """How a runtime fills its messages.

    Attributes:
        name: as a scenario names it.
        cgroup_prefix: first part of a container's scope.
        undoes_failed_creation: a refused container is followed by StopContainer and RemoveContainer.
        zero_resources: absent times and limits are sent as 0 rather than left out.
    """

    name: str
    cgroup_prefix: str = "cri-containerd"
    undoes_failed_creation: bool = True
    zero_resources: bool = False

    @property
    def is_containerd(self) -> bool:
        """Whether it is containerd, else CRI-O."""
        return self.cgroup_prefix != "crio"


RUNTIMES = {
    each.name: each
    for each in (
        RuntimeKind("containerd-1.7"),
        RuntimeKind("containerd-2.1"),
        RuntimeKind("containerd-2.4"),
        RuntimeKind("cri-o", cgroup_prefix="crio", undoes_failed_creation=False, zero_resources=True),
    )
}
DEFAULT_RUNTIME = "containerd-2.1"


# Paths of cgroups
#
# NRI carries names, not paths: with the systemd driver a pod's parent is the last slice and a container's path is
# `slice:prefix:id`. Runtimes expand them to directories as here.
#
# Source: runc libcontainer, systemd slice expansion; the kubelet's pod cgroup names.


class Driver(StrEnum):
    """The cgroup driver of kubelet and runtime."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class Names:
    """How one cgroup is named on the wire and on disk.

    Attributes:
        wire: the name in NRI messages.
        path: the directory under the hierarchy's root, without a leading slash.
    """

    wire: str
    path: str


_QOS_PARTS = {
    QOSClass.GUARANTEED: (),
    QOSClass.BURSTABLE: ("burstable",),
    QOSClass.BEST_EFFORT: ("besteffort",),
}


def pod_names(driver: Driver, qos: QOSClass, uid: str) -> Names:
    """The pod's cgroup."""
    parts = ("kubepods", *_QOS_PARTS[qos], f"pod{uid}")
    if driver is Driver.CGROUPFS:
        path = "/".join(parts)
        return Names("/" + path, path)
    slice_name = "-".join(part.replace("-", "_") for part in parts) + ".slice"
    return Names(slice_name, expand_slice(slice_name))


def container_names(driver: Driver, pod: Names, prefix: str, container_id: str) -> Names:
    """The container's cgroup; `prefix` is the runtime's, `cri-containerd` or `crio`."""
    if driver is Driver.SYSTEMD:
        return Names(f"{pod.wire}:{prefix}:{container_id}", f"{pod.path}/{prefix}-{container_id}.scope")
    leaf = f"crio-{container_id}" if prefix == "crio" else container_id
    return Names(f"{pod.wire}/{leaf}", f"{pod.path}/{leaf}")


def expand_slice(name: str) -> str:
    """The directory of a systemd slice: `a-b.slice` lies in `a.slice`."""
    parts = name.removesuffix(".slice").split("-")
    return "/".join("-".join(parts[: count + 1]) + ".slice" for count in range(len(parts)))


# Pods


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container of a pod as in its manifest; 0 = not given.

    Attributes:
        hugepages: (`hugepages-SIZE`, bytes).
        devices_asked: (resource of a device plugin, how many).
        devices: device nodes it is given.
        cdi_devices: CDI names it is given.
        is_sidecar: whether an init container runs beside the containers that start after it.
    """

    name: str
    cpu_request_milli: int = 0
    cpu_limit_milli: int = 0
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()
    env: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    devices_asked: tuple[tuple[str, int], ...] = ()
    is_sidecar: bool = False

    @property
    def amounts(self) -> Amounts:
        """Requests and limits."""
        return Amounts(
            self.cpu_request_milli,
            self.cpu_limit_milli,
            self.memory_request_bytes,
            self.memory_limit_bytes,
            self.hugepages,
        )


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod as in its manifest; `forced_qos` overrides the class that follows from the requests.

    Attributes:
        init_containers: run one after the other before the app containers; sidecars go on running.
        whole: pod-level resources (`spec.resources`); None if it sets none.
        overhead: of its runtime class, thousandths of CPUs and bytes by resource; no message to the node has it.
    """

    name: str
    namespace: str = "default"
    containers: tuple[ContainerSpec, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    forced_qos: QOSClass | None = None
    init_containers: tuple[ContainerSpec, ...] = ()
    whole: Amounts | None = None
    overhead: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> str:
        """`NAMESPACE/NAME`."""
        return f"{self.namespace}/{self.name}"

    @property
    def members(self) -> tuple[tuple[ContainerSpec, Kind], ...]:
        """All containers in the order in which the kubelet creates them, with their kinds."""
        inits = ((each, Kind.SIDECAR if each.is_sidecar else Kind.INIT) for each in self.init_containers)
        return (*inits, *((each, Kind.APP) for each in self.containers))

    @property
    def qos(self) -> QOSClass:
        """The quality-of-service class the kubelet gives it."""
        if self.forced_qos is not None:
            return self.forced_qos
        everyone = [requests_and_limits(replace(each.amounts, hugepages=())) for each, _ in self.members]
        if self.whole is not None:  # its own amounts decide, whatever its containers ask for
            everyone = [requests_and_limits(replace(self.whole, hugepages=()))]
        if not any(everyone):
            return QOSClass.BEST_EFFORT
        is_guaranteed = all(
            len(each) == 2 and all(request == limit for request, limit in each.values()) for each in everyone
        )
        return QOSClass.GUARANTEED if is_guaranteed else QOSClass.BURSTABLE


def requests_and_limits(amounts: Amounts) -> dict[str, tuple[int, int]]:
    """(request, limit) of each resource that has one: CPUs in thousandths, all others in bytes."""
    found = {
        "cpu": (amounts.cpu_request_milli, amounts.cpu_limit_milli),
        "memory": (amounts.memory_request_bytes, amounts.memory_limit_bytes),
        **{name: (size, size) for name, size in amounts.hugepages},
    }
    return {name: both for name, both in found.items() if any(both)}


UNKNOWN_MEMORY_BYTES = 64 << 30
"""For oom_score_adj if the size is unknown."""


@dataclass(frozen=True, slots=True)
class RuntimeIdentity:
    """Which node, runtime and cgroup driver a pod's messages are made for.

    `on` takes what a machine tells.

    Attributes:
        memory_bytes: the node's memory capacity, of which oom_score_adj takes its share.
        page_sizes_kb: sizes of huge pages that its kernel has.
    """

    kind: RuntimeKind
    driver: Driver
    memory_bytes: int
    page_sizes_kb: tuple[int, ...] = ()

    @classmethod
    def on(cls, topology: Topology, kind: RuntimeKind, driver: Driver) -> Self:
        """The identity of a runtime on a machine."""
        memory_bytes = sum(node.memory_bytes or 0 for node in topology.nodes) or UNKNOWN_MEMORY_BYTES
        sizes = {size_kb for node in topology.nodes for size_kb, _ in node.hugepages}
        return cls(kind, driver, memory_bytes, tuple(sorted(sizes)))


def shares_from_milli(cpu_milli: int) -> int:
    """CPU shares for a request; the minimum for none."""
    return min(max(cpu_milli * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota_from_milli(cpu_milli: int) -> int:
    """Microseconds in each period for a CPU limit; 0 = no limit."""
    return max(cpu_milli * PERIOD_US // 1000, MIN_QUOTA_US) if cpu_milli else 0


def container_resources(spec: ContainerSpec, who: RuntimeIdentity, whole: Amounts | None = None) -> Resources:
    """The container's resources as its OCI spec holds them.

    A container without a limit gets that of its pod (`whole`), where the pod has resources of its own. One without a
    request, too, gets shares for this limit.

    Source: kubelet v1.35.3 kuberuntime_container_linux.go, getCPULimit and calculateLinuxResources.
    """
    absent, pod = 0 if who.kind.zero_resources else None, whole or Amounts()
    cpu_limit_milli = spec.cpu_limit_milli or pod.cpu_limit_milli
    return Resources(
        cpu_shares=shares_from_milli(spec.cpu_request_milli or cpu_limit_milli),
        cpu_quota_us=quota_from_milli(cpu_limit_milli) or absent,
        cpu_period_us=PERIOD_US,
        memory_limit_bytes=spec.memory_limit_bytes or pod.memory_limit_bytes or absent,
        hugepage_limits=_page_limits(spec, who),
    )


def _page_limits(spec: ContainerSpec, who: RuntimeIdentity) -> tuple[tuple[str, int], ...]:
    """Limits by page size: 0 for each size that the kernel has and the container does not ask for.

    Source: kubelet v1.35.3 kuberuntime_container_linux.go, GetHugepageLimitsFromResources.
    """
    sizes = {page_size(hugepages_name(size_kb)): 0 for size_kb in who.page_sizes_kb}
    return tuple((sizes | {page_size(name): size for name, size in spec.hugepages}).items())


def pod_resources(pod: PodSpec) -> Resources:
    """The pod's resources: its own, else those of its containers at their peak; absent parts are sent as 0."""
    own = pod.whole or Amounts()
    cpu_milli = own.cpu_request_milli or _most(pod, lambda each: each.cpu_request_milli)
    limit_milli = own.cpu_limit_milli or _most(pod, lambda each: each.cpu_limit_milli)
    return Resources(
        cpu_shares=shares_from_milli(cpu_milli),
        cpu_quota_us=quota_from_milli(limit_milli),
        cpu_period_us=PERIOD_US,
        memory_limit_bytes=own.memory_limit_bytes or _most(pod, lambda each: each.memory_limit_bytes),
    )


def _most(pod: PodSpec, amount: Callable[[ContainerSpec], int]) -> int:
    return pod_total(
        [(amount(each), each.is_sidecar) for each in pod.init_containers], map(amount, pod.containers)
    )


def pod_facts(pod: PodSpec, uid: str) -> PodFacts:
    """The pod facts that the exporter would send."""
    return PodFacts(
        uid=uid,
        qos=pod.qos,
        containers=tuple(ContainerFacts(each.name, kind, each.amounts) for each, kind in pod.members),
        pod_resources=pod.whole,
    )


class Telling(StrEnum):
    """When the stand-in tells the facts of a pod."""

    LOST = "lost"
    """Never: the exporter does not know the pod."""
    KNOWN = "known"
    """Whenever it is asked, so they are repeated."""
    LATE = "late"
    """From the second question about the pod on."""
    ONCE = "once"
    """At the first question about the pod only."""


class ToldFacts:
    """Facts by pod. A question is one about the creation of a container."""

    def __init__(self) -> None:
        self._tellings: dict[str, tuple[PodSpec, Telling]] = {}
        self._asked: dict[str, int] = {}

    def tell(self, pod: PodSpec, telling: Telling) -> None:
        """Set how the exporter tells of the pod, and count its questions from 0 again."""
        self._tellings[pod.key] = pod, telling
        self._asked.pop(pod.key, None)

    def forget(self, key: str) -> None:
        """The pod has ended."""
        self._tellings.pop(key, None)

    def is_known_in_time(self, key: str) -> bool:
        """Whether the first creation of the pod is decided with its facts."""
        return key in self._tellings and self._tellings[key][1] in (Telling.KNOWN, Telling.ONCE)

    def facts(self, key: str, uid: str) -> PodFacts | None:
        """The facts for the next question about the pod; None where they are not told."""
        pod, telling = self._tellings.get(key, (None, Telling.LOST))
        number = self._asked.get(key, 0)
        self._asked[key] = number + 1
        is_told = {Telling.KNOWN: True, Telling.LATE: number > 0, Telling.ONCE: number == 0}.get(telling)
        return pod_facts(pod, uid) if pod is not None and is_told else None


def hugepages_name(size_kb: int) -> str:
    """The resource of a page size."""
    return f"hugepages-{format_bytes(size_kb * 1024)}"


def page_size(resource: str) -> str:
    """The page size of a resource in the form of runtimes: `hugepages-2Mi` is `2MB` to them."""
    return resource.removeprefix("hugepages-").replace("i", "B")


def pod_message(pod: PodSpec, uid: str, sandbox_id: str, who: RuntimeIdentity) -> tuple[Pod, Names]:
    """The sandbox as plugins see it, and its cgroup."""
    names = pod_names(who.driver, pod.qos, uid)
    sandbox = container_names(who.driver, names, who.kind.cgroup_prefix, sandbox_id)
    message = Pod(
        id=sandbox_id,
        name=pod.name,
        uid=uid,
        namespace=pod.namespace,
        annotations=pod.annotations,
        cgroup_parent=names.wire,
        cgroups_path=sandbox.wire,
        resources=pod_resources(pod),
        # CRI-O drops the infra container, and with it the only process of a sandbox.
        pid=4000 + int(sandbox_id[:4], 16) % 20000 if who.kind.is_containerd else 0,
    )
    return message, names


def container_message(
    pod: PodSpec, sandbox: Pod, parent: Names, spec: ContainerSpec, container_id: str, who: RuntimeIdentity
) -> tuple[Container, Names]:
    """A container that is about to be created, and where its cgroup will be."""
    names = container_names(who.driver, parent, who.kind.cgroup_prefix, container_id)
    message = Container(
        id=container_id,
        pod_id=sandbox.id,
        name=spec.name,
        state=ContainerState.UNKNOWN,
        env=("PATH=/usr/bin:/bin", *spec.env),
        devices=spec.devices,
        cdi_devices=spec.cdi_devices,
        resources=container_resources(spec, who, pod.whole),
        cgroups_path=names.wire,
    )
    return message, names


def stable_uid(*parts: str) -> str:
    """A pod uid that is derived from `parts`, so that it is the same in every run."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(parts)))


def stable_id(*parts: str) -> str:
    """A 64-digit id as runtimes use, derived from `parts`."""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()
