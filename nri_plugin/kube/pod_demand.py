"""Requests of a pod, read from its object: by container, as a whole, its QoS class, and what it holds exclusively.

A pod may set resources of its own (`spec.resources`). Only nodes with pod-level resource managers bind them to NUMA nodes:
`under_pod_scope` and `under_container_scope` are the pod as such a node sees it.

Amounts are thousandths, as in `noderesourcetopology`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from nri_plugin.kube.noderesourcetopology import parse_amount
from nri_plugin.model.errors import KubeObjectError

MALFORMED = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""Raised where an object has not the form that its reader expects."""

CPU, MEMORY = "cpu", "memory"
HUGEPAGES = "hugepages-"
_STORAGE = frozenset({"ephemeral-storage", "storage"})

Amounts = Mapping[str, int]
Object = Mapping[str, Any]


class QoS(StrEnum):
    """The pod's quality-of-service class."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(StrEnum):
    """Kind of a container in its pod; the values are the names in refusals."""

    APP = "app-container"
    INIT = "init-container"
    SIDECAR = "sidecar-container"


def is_native(name: str) -> bool:
    """Whether Kubernetes itself defines the resource; others come from device plugins."""
    return "/" not in name or "kubernetes.io/" in name


def is_affine(name: str) -> bool:
    """Whether the resource belongs to NUMA nodes: CPUs, memory, huge pages."""
    return name in {CPU, MEMORY} or name.startswith(HUGEPAGES)


def is_host_level(name: str) -> bool:
    """Whether the resource may belong to no NUMA node."""
    return name in _STORAGE or not is_native(name)


@dataclass(frozen=True)
class ContainerDemand:
    """One container of the spec."""

    name: str
    kind: ContainerKind
    requests: Amounts
    limits: Amounts = field(default_factory=dict)

    @property
    def is_eligible(self) -> bool:
        """Whether it may own part of a Guaranteed pod: CPU and memory are set, and requests equal limits.

        Source: KEP-5526, as `nri_plugin.policy.pod_level`.
        """
        return all(0 < self.requests.get(name, 0) == self.limits.get(name) for name in (CPU, MEMORY))


@dataclass(frozen=True)
class PodDemand:
    """A pod.

    Attributes:
        namespace, name, uid, node, scheduler, phase: of the object, empty if it has none.
        qos: its class.
        containers: init containers and sidecars in their order, then app containers.
        overhead: of the runtime class.
        own: CPU, memory and huge pages of the pod itself; empty for a pod without resources of its own.
        is_unschedulable: kube-scheduler has found no node for it.
    """

    namespace: str
    name: str
    uid: str = ""
    qos: QoS = QoS.BEST_EFFORT
    containers: tuple[ContainerDemand, ...] = ()
    overhead: Amounts = field(default_factory=dict)
    node: str = ""
    scheduler: str = ""
    phase: str = ""
    own: Amounts = field(default_factory=dict)
    is_unschedulable: bool = False

    @property
    def key(self) -> str:
        """The pod's uid, else namespace and name."""
        return self.uid or f"{self.namespace}/{self.name}"

    @property
    def is_guaranteed(self) -> bool:
        """Whether CPUs and memory are bound to NUMA nodes for it."""
        return self.qos is QoS.GUARANTEED

    @cached_property
    def effective(self) -> dict[str, int]:
        """Requests of the pod: the larger of all app containers and of any init container, plus overhead.

        Source: scheduler-plugins, which does not add up sidecars.
        """
        return self._effective(sidecars_stay=False)

    @cached_property
    def effective_with_sidecars(self) -> dict[str, int]:
        """The same with sidecars beside all containers that start after them.

        Source: Kubernetes, the pod's requests since 1.29.
        Differs: the scheduler plugin does not add up sidecars; here: they count beside all containers that
            start after them. Why: the pod's requests include them since Kubernetes 1.29. Option:
            `--no-sidecars`.
        """
        return self._effective(sidecars_stay=True)

    @cached_property
    def under_pod_scope(self) -> "PodDemand":
        """The pod for pod-level managers under pod scope: one container with the pod's own amounts and all devices.

        A fraction of a CPU is not bound. The overhead is not part of the pod's own amounts.
        """
        if not self.own:
            return self
        request = {
            name: amount for name, amount in self.effective_with_sidecars.items() if not is_affine(name)
        }
        request.update(_bound(self.own))
        return replace(
            self, containers=(ContainerDemand(self.name, ContainerKind.APP, request),), overhead={}
        )

    @cached_property
    def under_container_scope(self) -> "PodDemand":
        """The pod for pod-level managers under container scope: only eligible containers have CPUs and memory bound."""
        if not self.own:
            return self
        overhead = {name: amount for name, amount in self.overhead.items() if not is_affine(name)}
        return replace(self, containers=tuple(map(self._of_eligible, self.containers)), overhead=overhead)

    def _of_eligible(self, one: ContainerDemand) -> ContainerDemand:
        request = {name: amount for name, amount in one.requests.items() if not is_affine(name)}
        if self.is_guaranteed and one.is_eligible:
            request.update(_bound({name: one.requests[name] for name in one.requests if is_affine(name)}))
        return replace(one, requests=request)

    @cached_property
    def asks_for_devices(self) -> bool:
        """Whether any container, init containers included, requests a resource that Kubernetes does not define."""
        return any(not is_native(name) for container in self.containers for name in container.requests)

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """A key that is equal for pods with equal answers on every node."""
        # Limits count only where they decide which containers are eligible.
        rows = tuple(
            (one.kind, tuple(sorted(one.requests.items())), bool(self.own) and one.is_eligible)
            for one in self.containers
        )
        return self.qos, rows, tuple(sorted(self.overhead.items())), tuple(sorted(self.own.items()))

    def holds_exclusively(self, nrt_names: Iterable[str]) -> bool:
        """Whether the pod holds resources of single NUMA nodes: listed devices, whole CPUs, memory."""
        listed = frozenset(nrt_names)
        return any(
            self._is_exclusive(name, amount, listed)
            for container in self.containers
            if container.kind is not ContainerKind.INIT
            for name, amount in container.requests.items()
        )

    def _is_exclusive(self, name: str, amount: int, listed: frozenset[str]) -> bool:
        if not is_native(name):
            return name in listed
        if not self.is_guaranteed or amount <= 0:
            return False
        return amount % 1000 == 0 if name == CPU else is_affine(name)

    def _effective(self, *, sidecars_stay: bool) -> dict[str, int]:
        running: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in self.containers:
            if container.kind is ContainerKind.APP or (
                container.kind is ContainerKind.SIDECAR and sidecars_stay
            ):
                _add(running, container.requests)
                continue
            beside = running if sidecars_stay else {}
            for name, amount in container.requests.items():
                peak[name] = max(peak.get(name, 0), beside.get(name, 0) + amount)
        total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in [*running, *peak]}
        _add(total, self.overhead)
        return total


def pod_demand(obj: Object) -> PodDemand:
    """Read the demand of a v1 Pod, as decoded from JSON.

    Raises:
        KubeObjectError: the object does not match its schema.
    """
    try:
        return _pod(obj)
    except MALFORMED as error:
        raise KubeObjectError(f"the pod does not match its schema: {error}") from None


def _pod(obj: Object) -> PodDemand:
    metadata, spec, status = (obj.get(part) or {} for part in ("metadata", "spec", "status"))
    containers = tuple(_containers(spec))
    told = status.get("qosClass")
    return PodDemand(
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")),
        uid=_text(metadata.get("uid")),
        qos=QoS(told) if told in set(QoS) else _qos(spec.get("resources"), containers),
        containers=containers,
        overhead=_amounts(spec.get("overhead")),
        node=_text(spec.get("nodeName")),
        scheduler=_text(spec.get("schedulerName")),
        phase=_text(status.get("phase")),
        own=_own(spec.get("resources") or {}),
        is_unschedulable=not status.get("nominatedNodeName")
        and any(
            (one.get("type"), one.get("status")) == ("PodScheduled", "False")
            for one in status.get("conditions") or ()
        ),
    )


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} in place of text")
    return value or ""


def _own(resources: Object) -> dict[str, int]:
    """Return the pod's own requests, or limits without a request; other resources cannot be set for a pod."""
    amounts = {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}
    return {name: amount for name, amount in amounts.items() if is_affine(name)}


def _bound(amounts: Amounts) -> dict[str, int]:
    """Return the amounts that the managers bind to NUMA nodes: CPUs only if they are whole."""
    return {name: amount for name, amount in amounts.items() if name != CPU or amount % 1000 == 0}


def _containers(spec: Object) -> Iterator[ContainerDemand]:
    for one in spec.get("initContainers") or ():
        yield _container(
            one, ContainerKind.SIDECAR if one.get("restartPolicy") == "Always" else ContainerKind.INIT
        )
    for one in spec.get("containers") or ():
        yield _container(one, ContainerKind.APP)


def _container(obj: Object, kind: ContainerKind) -> ContainerDemand:
    resources = obj.get("resources") or {}
    return ContainerDemand(
        _text(obj.get("name")), kind, _amounts(resources.get("requests")), _amounts(resources.get("limits"))
    )


def _amounts(obj: Object | None) -> dict[str, int]:
    return {name: parse_amount(value) for name, value in (obj or {}).items()}


def _qos(pod_resources: Object | None, containers: tuple[ContainerDemand, ...]) -> QoS:
    """Return the QoS class: only CPUs and memory count, and zero counts as none. Source: Kubernetes, ComputePodQOS."""
    # An empty field counts: such a pod is BestEffort, whatever its containers request.
    if pod_resources is not None:
        requests, limits = _amounts(pod_resources.get("requests")), _amounts(pod_resources.get("limits"))
        containers = (ContainerDemand("", ContainerKind.APP, requests, limits),)
    requested: dict[str, int] = {}
    limited: dict[str, int] = {}
    for container in containers:
        _add(requested, _counted(container.requests))
        _add(limited, _counted(container.limits))
    if not requested and not limited:
        return QoS.BEST_EFFORT
    has_limits = all(len(_counted(container.limits)) == 2 for container in containers)
    return QoS.GUARANTEED if has_limits and requested == limited else QoS.BURSTABLE


def _counted(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in {CPU, MEMORY} and amount > 0}


def _add(total: dict[str, int], amounts: Amounts) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount
