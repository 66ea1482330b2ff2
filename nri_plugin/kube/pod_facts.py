"""Facts of pods for the agent, read from the objects of the node's pods.

`facts_of` reads one object, `PodsHere` keeps the facts of all pods of the node. `nri_plugin.core.decision` describes the
wire format to the agent; both sides are tested against each other.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.kube.noderesourcetopology import parse_amount
from nri_plugin.kube.pod_demand import CPU, HUGEPAGES, MALFORMED, MEMORY, is_affine, pod_demand
from nri_plugin.model.errors import KubeAPIError, KubeObjectError

Object = Mapping[str, Any]
Words = dict[str, Any]

MIRROR, STATIC_UID = "kubernetes.io/config.mirror", "kubernetes.io/config.hash"
"""Annotations of a static pod's mirror; the second holds the uid that kubelet and runtime know (kubelet v1.36 config)."""

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")

ENDED = ("Succeeded", "Failed")
"""The phases of a pod whose containers have all ended and are not started again. The kubelet never leaves them."""

ENDED_KEPT = 1024
"""Deleted pods that are remembered; the agent asks for a few of those of the last minutes."""


@dataclass(frozen=True, slots=True)
class PodObject:
    """The parts of a pod's object that events name.

    Attributes:
        resource_version: of the object as it was read last; empty if it is not known.
        list_by_container: `initContainers`, `containers` or `ephemeralContainers`, by the container's name.
        has_ended: its phase is a final one.
        is_mirror: it shows a static pod, which the kubelet runs without it.
    """

    resource_version: str = ""
    list_by_container: Mapping[str, str] = field(default_factory=dict)
    has_ended: bool = False
    is_mirror: bool = False


def facts_of(obj: Object) -> Words:
    """Return the facts of a v1 Pod, as decoded from JSON.

    Amounts are those that the kubelet has allocated, if the status has them: during a resize in place the specification
    may already have others, and the kubelet may never grant these.

    Raises:
        KubeObjectError: the object does not match its schema.
    """
    qos = str(pod_demand(obj).qos)
    try:
        metadata, spec, status = (obj.get(part) or {} for part in ("metadata", "spec", "status"))
        words = {"uid": uid_of(metadata), "qos": qos, "containers": list(_containers(spec, status))}
        whole = spec.get("resources") or {}
        if not _is_set(whole):
            return words
        # The status may have the sum of the containers for a resource that the pod does not set.
        told = status.get("allocatedResources") or {}
        set_here = {**(whole.get("limits") or {}), **(whole.get("requests") or {})}
        allocated = {name: amount for name, amount in told.items() if name in set_here}
        return {**words, "pod_resources": _amounts(_allocated(whole, allocated))}
    except MALFORMED as error:
        raise KubeObjectError(f"the pod does not match its schema: {error}") from None


def uid_of(metadata: Object) -> str:
    """Return the pod's uid in the runtime."""
    of_mirror = (metadata.get("annotations") or {}).get(STATIC_UID)
    return str(of_mirror if _is_mirror(metadata) else metadata.get("uid") or "")


def _is_mirror(metadata: Object) -> bool:
    annotations = metadata.get("annotations") or {}
    return MIRROR in annotations and STATIC_UID in annotations


def _containers(spec: Object, status: Object) -> Iterator[Words]:
    allocated = {
        one.get("name"): one.get("allocatedResources") or {}
        for part in ("initContainerStatuses", "containerStatuses")
        for one in status.get(part) or ()
    }
    for one in spec.get("initContainers") or ():
        kind = "sidecar" if one.get("restartPolicy") == "Always" else "init"
        yield {**_container(one, allocated), "kind": kind}
    for one in spec.get("containers") or ():
        yield _container(one, allocated)


def _container(obj: Object, allocated: Mapping[str, Object]) -> Words:
    name = str(obj["name"])
    return {"name": name, **_amounts(_allocated(obj.get("resources") or {}, allocated.get(name, {})))}


def _allocated(resources: Object, allocated: Object) -> Object:
    """Return `resources` of a specification with the requests in `allocated`, and with the limits that equal a request.

    The status has allocated requests only. A resize never changes the QoS class, so a limit that equals its request in
    the specification equals the allocated request, too.

    Source: kubelet v1.36 pkg/kubelet/kubelet_pods.go, convertToAPIContainerStatuses.
    """
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    equal = {
        name: allocated[name]
        for name, limit in limits.items()
        if name in allocated and parse_amount(requests.get(name, limit)) == parse_amount(limit)
    }
    return {"requests": {**requests, **allocated}, "limits": {**limits, **equal}}


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
    """Return whether a pod sets resources as a whole. Source: kubernetes v1.36, IsPodLevelResourcesSet."""
    return any(is_affine(name) for part in ("requests", "limits") for name in resources.get(part) or ())


class PodsHere:
    """The facts of the node's pods, fed by a watch and read by other threads.

    A pod is found by namespace and name, which are unique in the cluster, and its uid must agree. The uid of a static
    pod comes from its own annotations. So a pod cannot replace the facts of another pod.

    While the cluster does not answer, the last facts stay valid. A pod has ended when its phase says so, or when its
    object was here and is gone. That an object was never here proves nothing: the watch may be late, or just begin.

    Args:
        lost: called when the cluster does not answer, once for each reason.
        news: called after each change.
    """

    def __init__(self, lost: Callable[[KubeAPIError], None], news: Callable[[], None] = lambda: None) -> None:
        self._lost, self._news, self._trouble = lost, news, ""
        self._by_name: dict[tuple[str, str], tuple[Words, PodObject]] = {}
        self._deleted: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    @property
    def known(self) -> int:
        """The number of pods with facts."""
        return len(self._by_name)

    def facts(self, namespace: str, name: str, uid: str) -> Words | None:
        """Return the facts of a pod; None if it is unknown."""
        words, _ = self._by_name.get((namespace, name), (None, None))
        return words if words is not None and words["uid"] == uid else None

    def has_ended(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether the pod has ended for sure; False if it is unknown."""
        return self.object_of(namespace, name, uid).has_ended or (namespace, name, uid) in self._deleted

    def is_static(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether the pod is a static one: the kubelet may run it again whatever its mirror shows."""
        return self.object_of(namespace, name, uid).is_mirror

    def is_going_on(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether the pod's object is here and its phase is not a final one."""
        pod = self.object_of(namespace, name, uid)
        return bool(pod.resource_version) and not pod.has_ended

    def object_of(self, namespace: str, name: str, uid: str) -> PodObject:
        """Return the pod's object; empty if the pod is unknown."""
        words, pod = self._by_name.get((namespace, name), (None, None))
        return pod if pod is not None and words is not None and words["uid"] == uid else PodObject()

    def listed(self, objects: Sequence[Object]) -> None:
        """Replace all pods by these."""
        before = self._by_name
        self._by_name = {name: known for obj in objects for name, known in _readable(obj)}
        names = {_name(obj) for obj in objects}
        for name, (words, pod) in before.items():
            now, _ = self._by_name.get(name, (None, None))
            if name not in names or (now is not None and now["uid"] != words["uid"]):
                self._note_deleted(name, words, pod)
        self._trouble = ""
        self._news()

    def changed(self, obj: Object) -> None:
        """Add or update a pod."""
        # In one step: another thread must not find the pod missing while its object is read.
        known = dict(_readable(obj))
        self._by_name.update(known)
        if not known:
            self._by_name.pop(_name(obj), None)
        self._news()

    def deleted(self, obj: Object) -> None:
        """Remove a pod."""
        known = self._by_name.pop(_name(obj), None)
        if known is not None:
            self._note_deleted(_name(obj), *known)

    def _note_deleted(self, name: tuple[str, str], words: Words, pod: PodObject) -> None:
        """Remember that the pod has ended. A mirror may be deleted while its pod goes on; the kubelet makes a new one."""
        if pod.is_mirror:
            return
        self._deleted[*name, str(words["uid"])] = None
        if len(self._deleted) > ENDED_KEPT:
            self._deleted.popitem(last=False)

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
    with suppress(KubeObjectError, *MALFORMED):
        yield _name(obj), (facts_of(obj), _pod_object(obj))


def _pod_object(obj: Object) -> PodObject:
    spec = obj.get("spec") or {}
    lists = {
        str(one["name"]): name
        for name in CONTAINER_LISTS
        for one in spec.get(name) or ()
        if isinstance(one, Mapping) and "name" in one
    }
    metadata, status = obj.get("metadata") or {}, obj.get("status") or {}
    return PodObject(
        str(metadata.get("resourceVersion") or ""),
        lists,
        has_ended=status.get("phase") in ENDED,
        is_mirror=_is_mirror(metadata),
    )
