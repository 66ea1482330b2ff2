"""Facts of pods for the agent, read from the objects of the node's pods.

`facts_of` reads one object, `PodsHere` keeps the facts of all pods of the node. `nri_plugin.core.decision` describes the
wire format to the agent; both sides are tested against each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.kube.noderesourcetopology import parse_amount
from nri_plugin.kube.pod_demand import CPU, HUGEPAGES, MEMORY, pod_demand
from nri_plugin.model.errors import KubeAPIError, KubeObjectError

Object = Mapping[str, Any]
Words = dict[str, Any]

MIRROR, STATIC_UID = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
"""Annotations of a static pod's mirror; the second holds the uid that kubelet and runtime know (kubelet v1.36 config)."""

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")

POD_LEVEL = (CPU, MEMORY)
"""Resources that a pod may set as a whole, huge pages beside them (kubernetes v1.36 component-helpers/resource)."""


@dataclass(frozen=True, slots=True)
class PodObject:
    """The parts of a pod's object that events name.

    Attributes:
        resource_version: of the object as it was read last; empty if it is not known.
        list_by_container: `initContainers`, `containers` or `ephemeralContainers`, by the container's name.
    """

    resource_version: str = ""
    list_by_container: Mapping[str, str] = field(default_factory=dict)


def facts_of(obj: Object) -> Words:
    """Return the facts of a v1 Pod, as decoded from JSON.

    Requests are those that the kubelet has granted, if the status has them: during a resize in place the specification
    may already have others.

    Raises:
        KubeObjectError: the object does not match its schema.
    """
    qos = str(pod_demand(obj).qos)
    try:
        metadata, spec, status = (obj.get(part) or {} for part in ("metadata", "spec", "status"))
        words = {"uid": uid_of(metadata), "qos": qos, "containers": list(_containers(spec, status))}
        whole = spec.get("resources") or {}
        return {**words, "pod_resources": _amounts(whole)} if _is_set(whole) else words
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise KubeObjectError(f"the pod does not match its schema: {error}") from None


def uid_of(metadata: Object) -> str:
    """Return the pod's uid in the runtime."""
    annotations = metadata.get("annotations") or {}
    is_mirror = MIRROR in annotations and STATIC_UID in annotations
    return str(annotations[STATIC_UID] if is_mirror else metadata.get("uid") or "")


def _containers(spec: Object, status: Object) -> Iterator[Words]:
    granted = {
        one.get("name"): one.get("allocatedResources") or {}
        for part in ("initContainerStatuses", "containerStatuses")
        for one in status.get(part) or ()
    }
    for one in spec.get("initContainers") or ():
        kind = "sidecar" if one.get("restartPolicy") == "Always" else "init"
        yield {**_container(one, granted), "kind": kind}
    for one in spec.get("containers") or ():
        yield _container(one, granted)


def _container(obj: Object, granted: Mapping[str, Object]) -> Words:
    resources, name = obj.get("resources") or {}, str(obj["name"])
    requests = {**(resources.get("requests") or {}), **granted.get(name, {})}
    return {"name": name, **_amounts({**resources, "requests": requests})}


def _amounts(resources: Object) -> Words:
    """Return the amounts that are set, of the resources that the agent uses."""
    words: Words = {}
    for what, verb in (("requests", "request"), ("limits", "limit")):
        given = resources.get(what) or {}
        if CPU in given:
            words[f"cpu_{verb}_milli"] = parse_amount(given[CPU])
        if MEMORY in given:
            words[f"memory_{verb}_bytes"] = _whole(given[MEMORY])
    pages = {
        name: _whole(value)
        for name, value in (resources.get("requests") or {}).items()
        if name.startswith(HUGEPAGES)
    }
    return {**words, "hugepages": pages} if pages else words


def _whole(value: object) -> int:
    return -(-parse_amount(value) // 1000)


def _is_set(resources: Object) -> bool:
    """Source: kubernetes v1.36, IsPodLevelResourcesSet."""
    names = [name for part in ("requests", "limits") for name in resources.get(part) or ()]
    return any(name in POD_LEVEL or name.startswith(HUGEPAGES) for name in names)


class PodsHere:
    """The facts of the node's pods, fed by a watch and read by other threads.

    A pod is found by namespace and name, which are unique in the cluster, and its uid must agree. The uid of a static
    pod comes from its own annotations. So a pod cannot replace the facts of another pod.

    While the cluster does not answer, the last facts stay valid.

    Args:
        lost: called when the cluster does not answer, once for each reason.
    """

    def __init__(self, lost: Callable[[KubeAPIError], None]) -> None:
        self._lost, self._trouble = lost, ""
        self._by_name: dict[tuple[str, str], tuple[Words, PodObject]] = {}

    @property
    def known(self) -> int:
        """The number of pods with facts."""
        return len(self._by_name)

    def facts(self, namespace: str, name: str, uid: str) -> Words | None:
        """Return the facts of a pod; None if it is unknown."""
        words, _ = self._by_name.get((namespace, name), (None, None))
        return words if words is not None and words["uid"] == uid else None

    def object_of(self, namespace: str, name: str, uid: str) -> PodObject:
        """Return the pod's object; empty if the pod is unknown."""
        words, pod = self._by_name.get((namespace, name), (None, None))
        return pod if pod is not None and words is not None and words["uid"] == uid else PodObject()

    def listed(self, objects: Sequence[Object]) -> None:
        """Replace all pods by these."""
        self._by_name = {name: known for obj in objects for name, known in _readable(obj)}
        self._trouble = ""

    def changed(self, obj: Object) -> None:
        """Add or update a pod."""
        self._by_name.pop(_name(obj), None)
        self._by_name.update(_readable(obj))

    def deleted(self, obj: Object) -> None:
        """Remove a pod."""
        self._by_name.pop(_name(obj), None)

    def failed(self, error: KubeAPIError) -> None:
        """Report that the watch failed, once for each reason."""
        if str(error) != self._trouble:
            self._lost(error)
        self._trouble = str(error)


def _name(obj: Object) -> tuple[str, str]:
    metadata = obj.get("metadata") or {}
    return metadata.get("namespace") or "", metadata.get("name") or ""


def _readable(obj: Object) -> Iterator[tuple[tuple[str, str], tuple[Words, PodObject]]]:
    """Yield name and facts of a pod; nothing if its object is malformed. The agent then infers the facts."""
    with suppress(KubeObjectError):
        yield _name(obj), (facts_of(obj), _pod_object(obj))


def _pod_object(obj: Object) -> PodObject:
    spec = obj.get("spec") or {}
    lists = {
        str(one["name"]): name
        for name in CONTAINER_LISTS
        for one in spec.get(name) or ()
        if isinstance(one, Mapping) and "name" in one
    }
    return PodObject(str((obj.get("metadata") or {}).get("resourceVersion") or ""), lists)
