"""Kubernetes manifests as pods for one node: Pods, workloads, and lists of them as kubectl prints.

Resources get the defaults of the API server of Kubernetes 1.36 (a limit is the request if none is set) and its validation. A
note counts the pods to which 1.37 gives other ones. Fields that decide which node a pod goes to are ignored with a note:
here every pod goes to the one node.

Objects are plain values as YAML or JSON gives them. An error has the path of the wrong value; the caller, who has the
text, finds its line.

Source: Kubernetes v1.36 pkg/apis/core/v1/defaults.go and core/validation.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from nri_plugin.config.values import either
from nri_plugin.kube.noderesourcetopology import parse_amount
from nri_plugin.kube.pod_demand import (
    CPU,
    HUGEPAGES,
    MEMORY,
    ContainerDemand,
    ContainerKind,
    PodDemand,
    is_affine,
    is_native,
    pod_demand,
)
from nri_plugin.model.errors import KubeObjectError, NriPinError
from nri_plugin.model.quantity import parse_quantity
from nri_plugin.model.records import Amounts, QOSClass
from nri_plugin.simulator.runtime.pods import ContainerSpec, PodSpec

# Defaults and validation of resources


Path: TypeAlias = tuple[str | int, ...]
"""From the number of the document to a key."""
Object: TypeAlias = Mapping[str, Any]

STORAGE = "ephemeral-storage"
STANDARD = (CPU, MEMORY, STORAGE)

OF_A_POD = ("containers", "initContainers", "overhead", "resources")
OF_A_CONTAINER = ("name", "resources", "restartPolicy")
OF_RESOURCES = ("limits", "requests", "claims")
"""Keys that decide about resources. A misspelt key is refused, because ignoring it would simulate another pod."""

LONGEST_LABEL = 63
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

LOOK_LIKE_THEM = ("resizePolicy", "restartPolicyRules")
"""Valid keys of containers that resemble those above."""


class ManifestError(NriPinError):
    """An object that the API server would refuse.

    Attributes:
        path: where; begins with the number of the document.
    """

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{words(path)}: {detail}")
        self.path = path
        self.detail = detail


def words(path: Path) -> str:
    """A path as text, `spec.containers[0].name`, without the number of the document."""
    text = ""
    for part in path[1:]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def checked_mapping(value: object, path: Path) -> Object:
    """Keys and values.

    Raises:
        ManifestError: it is something else.
    """
    if isinstance(value, Mapping):
        return value
    raise ManifestError(path, f"expected keys and values, found {_found(value)}")


def refuse_slips(found: Object, path: Path, read: Sequence[str]) -> None:
    """Check that no key resembles one of `read`; all other keys are ignored.

    Raises:
        ManifestError: one does; names the key that it resembles.
    """
    by_lower = {key.lower(): key for key in read}
    for key in map(str, found):
        if key in read or key in LOOK_LIKE_THEM:
            continue
        close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.8)
        if close:
            raise ManifestError((*path, key), f"unknown key; did you mean {by_lower[close[0]]}?")


def checked_list(value: object, path: Path) -> Sequence[Any]:
    """A list; null is an empty one.

    Raises:
        ManifestError: it is something else.
    """
    if value is None or isinstance(value, list):
        return value or []
    raise ManifestError(path, f"expected a list, found {_found(value)}")


def checked_text(value: object, path: Path, what: str) -> str:
    """Text.

    Raises:
        ManifestError: it is something else.
    """
    if isinstance(value, str):
        return value
    raise ManifestError(path, f"expected {what}, found {_found(value)}")


def defaulted(obj: Object, path: Path) -> Object:
    """The pod with every request that follows from a limit.

    Raises:
        ManifestError: containers or resources are not what they should be.
    """
    spec = checked_mapping(obj.get("spec"), (*path, "spec"))
    refuse_slips(spec, (*path, "spec"), OF_A_POD)
    seen: set[str] = set()
    filled = dict(spec)
    for part in ("initContainers", "containers"):
        where = (*path, "spec", part)
        filled[part] = [
            _defaulted_container(one, (*where, number), seen)
            for number, one in enumerate(checked_list(spec.get(part), where))
        ]
    if not filled["containers"]:
        raise ManifestError((*path, "spec", "containers"), "a pod has at least one container")
    if spec.get("resources"):
        filled["resources"] = _pod_level({**obj, "spec": filled}, (*path, "spec", "resources"))
    return {**obj, "spec": filled}


def _defaulted_container(value: object, path: Path, seen: set[str]) -> Object:
    found = checked_mapping(value, path)
    refuse_slips(found, path, OF_A_CONTAINER)
    name = checked_text(found.get("name") or None, (*path, "name"), "the name of a container")
    if len(name) > LONGEST_LABEL or not _LABEL.fullmatch(name):
        raise ManifestError(
            (*path, "name"),
            f"expected at most {LONGEST_LABEL} small letters, digits and inner '-', found {name[:80]!r}",
        )
    if name in seen:
        raise ManifestError((*path, "name"), f"container {name} is there already; rename one of them")
    seen.add(name)
    where = (*path, "resources")
    resources = _resources(found.get("resources") or {}, where)
    _check(_amounts(resources, "limits", where), _amounts(resources, "requests", where), where)
    limits, requests = (_as_text(resources.get(part) or {}) for part in ("limits", "requests"))
    # Source: core/v1/defaults.go, SetDefaults_Pod: a limit is the request if none is set
    return {**found, "resources": {"limits": limits, "requests": limits | requests}}


def _resources(value: object, path: Path) -> Object:
    found = checked_mapping(value, path)
    refuse_slips(found, path, OF_RESOURCES)
    odd = next((str(key) for key in found if key not in OF_RESOURCES), None)
    if odd is not None:
        raise ManifestError((*path, odd), f"unknown key; known are {either(*OF_RESOURCES)}")
    return found


def _as_text(amounts: Object) -> dict[str, str]:
    """Numbers as text: YAML reads 0.5 as a floating-point number."""
    return {name: str(value) for name, value in amounts.items()}


def _amounts(resources: Object, part: str, path: Path) -> dict[str, Fraction]:
    where = (*path, part)
    given = checked_mapping(resources.get(part) or {}, where)
    return {name: _amount(name, value, (*where, name)) for name, value in given.items()}


def _amount(name: str, value: object, path: Path) -> Fraction:
    if is_native(name) and name not in STANDARD and not name.startswith(HUGEPAGES) and "/" not in name:
        close = difflib.get_close_matches(name, STANDARD, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close else "devices are named as in vendor.example/device"
        raise ManifestError(path, f"is no resource of containers; {hint}")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ManifestError(path, f"expected an amount such as 500m or 2Gi, found {_found(value)}")
    size = name.removeprefix(HUGEPAGES)
    try:
        amount = parse_quantity(str(value))
        page = parse_quantity(size) if size != name else Fraction(0)
    except ValueError as error:
        raise ManifestError(path, str(error)) from None
    if amount < 0:
        raise ManifestError(path, f"{value} is negative; the smallest amount is 0")
    if not is_native(name) and amount.denominator != 1:
        raise ManifestError(path, f"{value} is no whole number; devices are counted")
    if page and amount % page:
        raise ManifestError(path, f"{value} is no multiple of {size}, the size of a page")
    return amount


def _check(limits: Mapping[str, Fraction], requests: Mapping[str, Fraction], path: Path) -> None:
    """The API server's validation of requests against limits."""
    named = {*limits, *requests}
    if any(name.startswith(HUGEPAGES) for name in named) and not named & {CPU, MEMORY}:
        raise ManifestError(path, "huge pages need cpu or memory beside them")
    for name, amount in requests.items():
        where, limit = (*path, "requests", name), limits.get(name)
        if limit is not None and amount > limit:
            raise ManifestError(where, f"{_short(amount)} is more than the limit, {_short(limit)}; lower it")
        overcommits = name in STANDARD
        if not overcommits and limit != amount:
            said = "no limit" if limit is None else f"limit {_short(limit)}"
            raise ManifestError(where, f"must equal its limit, found {_short(amount)} and {said}")


def _pod_level(obj: Object, path: Path) -> Object:
    """Pod-level resources. With limits, a missing request is the sum of the containers' requests, else the limit.

    Huge pages that the pod does not name are those of its containers, as limit and request.

    Source: kubernetes v1.36 core/v1/defaults.go, defaultPodRequests and defaultHugePagePodLimits.
    """
    resources = _resources(obj["spec"]["resources"], path)
    if resources.get("claims") is not None:
        raise ManifestError((*path, "claims"), "a pod as a whole has no claims")
    for part in ("limits", "requests"):
        for name in _amounts(resources, part, path):
            if not is_affine(name):
                raise ManifestError(
                    (*path, part, name), "a pod as a whole has cpu, memory and hugepages-SIZE only"
                )
    summed = _summed(obj["spec"], "requests")
    texts = {part: _as_text(resources.get(part) or {}) for part in ("limits", "requests")}
    pages = {
        name: amount
        for name, amount in summed.items()
        if name.startswith(HUGEPAGES) and name not in texts["requests"]
    }
    said = pages | texts["limits"] if any(texts.values()) else {}
    overcommitted = {name: amount for name, amount in summed.items() if said and name in STANDARD}
    filled = said | overcommitted | texts["requests"]
    bounds, asked = (
        {name: parse_quantity(value) for name, value in amounts.items()} for amounts in (said, filled)
    )
    _check(bounds, asked, path)
    _check_containers(
        obj["spec"], bounds, asked, {name: parse_quantity(one) for name, one in summed.items()}, path
    )
    return {"limits": said, "requests": filled}


def _newer_differs(spec: Object) -> bool:
    """Whether Kubernetes 1.37 gives the defaulted pod other resources, or another QoS class.

    It sums requests also without a limit of the pod, fills in the limits that every container has, and takes the class from
    the containers if the pod's own amounts are empty.

    Source: kubernetes v1.37 api/pod/util.go, DefaultPodLevelResources; core/v1/helper/qos, ComputePodQOS.
    """
    if spec.get("resources") is None:
        return False
    requests, limits = (spec["resources"].get(part) or {} for part in ("requests", "limits"))
    everybody = [one["resources"] for part in ("initContainers", "containers") for one in spec[part]]
    inside = {name for one in everybody for name in one["requests"] if name in (CPU, MEMORY)}
    if not requests and not limits:
        return bool(inside)
    return any(
        name not in requests or (name not in limits and all(name in one["limits"] for one in everybody))
        for name in {*requests, *inside}
    )


def _summed(spec: Object, part: str) -> dict[str, str]:
    """What the containers request, or have as limits, together."""
    inside = {
        kind: [{**one, "resources": {"requests": one["resources"][part]}} for one in spec[kind]]
        for kind in ("initContainers", "containers")
    }
    amounts = pod_demand(
        {"spec": {**spec, **inside, "resources": None, "overhead": None}}
    ).effective_with_sidecars
    return {name: f"{amount}m" for name, amount in amounts.items() if is_affine(name)}


def _check_containers(
    spec: Object,
    limits: Mapping[str, Fraction],
    requests: Mapping[str, Fraction],
    summed: Mapping[str, Fraction],
    path: Path,
) -> None:
    """The API server's validation of containers against the pod as a whole.

    Source: kubernetes v1.36 core/validation/validation.go, validatePodResourceConsistency.
    """
    for name, amount in summed.items():
        if name in requests and amount > requests[name]:
            where = (*path, "requests", name)
            detail = f"{_short(requests[name])} is less than its containers ask for; ask for {_short(amount)} or more"
            raise ManifestError(where, detail)
    for number, one in enumerate(spec["containers"]):
        for name, text in one["resources"]["limits"].items():
            if name in limits and parse_quantity(text) > limits[name]:
                where = (*path[:-1], "containers", number, "resources", "limits", name)
                raise ManifestError(
                    where, f"{text} is more than the limit of the pod, {_short(limits[name])}"
                )


def _short(amount: Fraction) -> str:
    return str(float(amount)) if amount.denominator != 1 else str(int(amount))


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "keys and values"
    return "a list" if isinstance(value, list) else repr(value)[:60]


# Objects


MOST_PODS = 10_000
"""Of one object; more is a typing error."""

KINDS: Mapping[str, tuple[str, str]] = {
    "Pod": ("v1", ""),
    "ReplicationController": ("v1", "replicas"),
    "Deployment": ("apps/v1", "replicas"),
    "StatefulSet": ("apps/v1", "replicas"),
    "ReplicaSet": ("apps/v1", "replicas"),
    "DaemonSet": ("apps/v1", ""),
    "Job": ("batch/v1", "parallelism"),
    "CronJob": ("batch/v1", "parallelism"),
}
"""By kind: its apiVersion, and the key with the number of pods at once, where the kind has one. Items of lists may leave
out the apiVersion."""

NOT_LOOKED_AT = (
    "affinity",
    "ephemeralContainers",
    "nodeSelector",
    "priorityClassName",
    "resourceClaims",
    "schedulingGates",
    "topologySpreadConstraints",
)
"""Keys of a pod that choose a node, or are not simulated."""

OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod of the manifests.

    Attributes:
        path: its place in the documents.
        workload: the owner, `Deployment default/web`; empty for a bare pod.
    """

    path: Path
    pod: PodSpec
    workload: str = ""


@dataclass(slots=True)
class Manifests:
    """Reads objects one after the other and collects their pods.

    Args:
        node: only pods of this node count; empty for all.
    """

    node: str = ""
    pods: list[FoundPod] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _keys: Counter[str] = field(default_factory=Counter)
    _kinds: Counter[str] = field(default_factory=Counter)
    _over: int = 0
    _nodes: Counter[str] = field(default_factory=Counter)
    _elsewhere: int = 0
    _nothing: list[str] = field(default_factory=list)
    _newer: int = 0

    def read(self, obj: object, path: Path) -> None:
        """Read an object.

        Raises:
            ManifestError: it is not what its schema says.
        """
        found = checked_mapping(obj, path)
        kind = checked_text(found.get("kind"), (*path, "kind"), "the kind of the object, such as Pod")
        version = found.get("apiVersion")
        if kind in KINDS and version not in (None, KINDS[kind][0]):
            raise ManifestError((*path, "apiVersion"), f"{kind} is of {KINDS[kind][0]}, found {version}")
        if kind == "List" or kind.endswith("List"):
            for number, item in enumerate(checked_list(found.get("items"), (*path, "items"))):
                self.read(_with_kind(item, kind), (*path, "items", number))
        elif kind == "Pod":
            self._pod(found, path)
        elif kind in KINDS:
            self._workload(kind, found, path)
        else:
            self._kinds[kind] += 1

    def notes(self) -> Iterator[str]:
        """Notes on ignored objects and fields, a sentence each."""
        for kind, count in self._kinds.items():
            yield f"{_times(kind, count)} passed over: no kind of object that makes pods here"
        yield from self._nothing
        if self._newer:
            yield (
                f"spec.resources of {_times('pod', self._newer)} filled in as by Kubernetes 1.36; 1.37 fills in more, or takes "
                "the QoS class from the containers; set requests and limits of the pod"
            )
        if self._over:
            yield f"{_times('pod', self._over)} passed over: Succeeded or Failed, nothing is held by it any more"
        if self._elsewhere:
            yield f"{_times('pod', self._elsewhere)} of other nodes than {self.node} passed over"
        of_workloads = sum(1 for one in self.pods if one.workload)
        if self.node and of_workloads:
            yield f"{_times('pod', of_workloads)} of workloads all taken: they name no node, --node chooses none of them"
        if len(self._nodes) > 1:
            yield (
                f"pods of {len(self._nodes)} nodes are all played on this one machine; --node NAME takes those of one"
            )
        for key, count in sorted(self._keys.items()):
            yield f"{key} of {_times('pod', count)} not looked at: {_why(key)}"

    def _pod(self, obj: Object, path: Path) -> None:
        status = obj.get("status") or {}
        where = (obj.get("spec") or {}).get("nodeName") if isinstance(obj.get("spec"), Mapping) else ""
        if self.node and where != self.node:
            self._elsewhere += 1
        elif isinstance(status, Mapping) and status.get("phase") in OVER:
            self._over += 1
        else:
            if where:
                self._nodes[str(where)] += 1
            self._add(obj, path, "")

    def _workload(self, kind: str, obj: Object, path: Path) -> None:
        version, key = KINDS[kind]
        place = (*path, "spec")
        spec = checked_mapping(obj.get("spec"), place)
        if kind == "CronJob":  # the pods of one of its Jobs
            refuse_slips(spec, place, ("jobTemplate",))
            job = checked_mapping(spec.get("jobTemplate"), (*place, "jobTemplate"))
            place = (*place, "jobTemplate", "spec")
            spec = checked_mapping(job.get("spec"), place)
        refuse_slips(spec, place, (key, "template") if key else ("template",))
        template = checked_mapping(spec.get("template"), (*place, "template"))
        if version == "apps/v1":
            _check_selector(spec, template, place)
        namespace, name = _names(obj, path)
        count = _replicas(spec, key, (*place, key))
        if not count:
            self._nothing.append(f"{kind} {namespace}/{name} has {key} 0: no pods")
        metadata = checked_mapping(template.get("metadata") or {}, (*place, "template", "metadata"))
        for number in range(count):
            made = {**template, "metadata": {**metadata, "namespace": namespace, "name": f"{name}-{number}"}}
            self._add(made, (*place, "template"), f"{kind} {namespace}/{name}")

    def _add(self, obj: Object, path: Path, workload: str) -> None:
        namespace, name = _names(obj, path)
        spec = checked_mapping(obj.get("spec"), (*path, "spec"))
        self._keys.update(key for key in NOT_LOOKED_AT if spec.get(key))
        filled = defaulted(obj, path)
        try:
            demand = pod_demand(filled)
        except KubeObjectError as error:
            raise ManifestError(path, str(error)) from None
        if not (obj.get("status") or {}).get("qosClass"):  # else an API server has filled it in
            self._newer += _newer_differs(filled["spec"])
        pod = _pod_spec(filled, demand, namespace, name, path)
        if pod.key in self._names:
            raise ManifestError(
                (*path, "metadata", "name"), f"pod {pod.key} is there already; rename one of them"
            )
        self._names.add(pod.key)
        self.pods.append(FoundPod(path, pod, workload))


def _check_selector(spec: Object, template: Object, path: Path) -> None:
    """The API server's check that a workload finds its own pods.

    Source: Kubernetes pkg/apis/apps/validation, ValidatePodTemplateSpecForReplicaSet and its siblings.
    """
    if spec.get("selector") is None:
        raise ManifestError(
            (*path, "selector"), "missing; repeat the labels of the template under matchLabels"
        )
    selector = checked_mapping(spec["selector"], (*path, "selector"))
    metadata = checked_mapping(template.get("metadata") or {}, (*path, "template", "metadata"))
    labels = checked_mapping(metadata.get("labels") or {}, (*path, "template", "metadata", "labels"))
    wanted = checked_mapping(selector.get("matchLabels") or {}, (*path, "selector", "matchLabels"))
    for name, value in wanted.items():
        if labels.get(name) != value:
            raise ManifestError(
                (*path, "selector", "matchLabels", name),
                f"{value} is not the label of the template, which is {labels.get(name, 'missing')}; make them equal",
            )


def _pod_spec(obj: Object, demand: PodDemand, namespace: str, name: str, path: Path) -> PodSpec:
    spec = obj["spec"]
    whole = spec.get("resources") or {}
    return PodSpec(
        name=name,
        namespace=namespace,
        containers=tuple(_container(one) for one in demand.containers if one.kind is ContainerKind.APP),
        init_containers=tuple(
            _container(one) for one in demand.containers if one.kind is not ContainerKind.APP
        ),
        labels=_texts(obj, "labels", path),
        annotations=_texts(obj, "annotations", path),
        forced_qos=QOSClass(demand.qos.value),
        whole=_whole(whole),
        overhead=tuple((key, _in_units(key, amount)) for key, amount in demand.overhead.items()),
    )


def _container(one: ContainerDemand) -> ContainerSpec:
    return ContainerSpec(
        name=one.name,
        cpu_request_milli=one.requests.get(CPU, 0),
        cpu_limit_milli=one.limits.get(CPU, 0),
        memory_request_bytes=_in_units(MEMORY, one.requests.get(MEMORY, 0)),
        memory_limit_bytes=_in_units(MEMORY, one.limits.get(MEMORY, 0)),
        hugepages=tuple(
            (name, _in_units(name, amount))
            for name, amount in one.requests.items()
            if name.startswith(HUGEPAGES)
        ),
        devices_asked=tuple(
            (name, _in_units(name, amount))
            for name, amount in one.limits.items()
            if not is_native(name) and amount
        ),
        is_sidecar=one.kind is ContainerKind.SIDECAR,
    )


def _whole(resources: Object) -> Amounts | None:
    """Pod-level resources."""
    requests, limits = (
        {name: parse_amount(value) for name, value in (resources.get(part) or {}).items()}
        for part in ("requests", "limits")
    )
    if not any(map(is_affine, (*requests, *limits))):
        return None
    return _container(ContainerDemand("", ContainerKind.APP, requests, limits)).amounts


def _in_units(name: str, milli: int) -> int:
    """Thousandths for CPUs; all other amounts rounded up to whole units."""
    return milli if name == CPU else -(-milli // 1000)


def _names(obj: Object, path: Path) -> tuple[str, str]:
    metadata = checked_mapping(obj.get("metadata"), (*path, "metadata"))
    name = metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-")
    where = (*path, "metadata", "name")
    return str(metadata.get("namespace") or "default"), checked_text(name or None, where, "a name")


def _replicas(spec: Object, key: str, path: Path) -> int:
    count = spec.get(key) if key else 1
    if count is None:
        return 1
    if type(count) is not int or count < 0:
        raise ManifestError(path, f"expected a number of pods, found {count!r}")
    if count > MOST_PODS:
        raise ManifestError(path, f"{count} pods, more than the {MOST_PODS} that are played of one object")
    return count


def _texts(obj: Object, key: str, path: Path) -> dict[str, str]:
    where = (*path, "metadata", key)
    given = checked_mapping((obj.get("metadata") or {}).get(key) or {}, where)
    return {
        str(name): checked_text(value, (*where, name), "text; put it in quotes")
        for name, value in given.items()
    }


def _with_kind(item: object, kind: str) -> object:
    """The item with its kind, which members of a `PodList` may leave out."""
    if isinstance(item, Mapping) and "kind" not in item and kind != "List":
        return {**item, "kind": kind.removesuffix("List")}
    return item


def _why(key: str) -> str:
    if key == "resourceClaims":
        return "dynamic resource allocation is not simulated"
    if key == "ephemeralContainers":
        return "they ask for nothing"
    return "every pod is played on this one node"


def _times(what: str, count: int) -> str:
    return f"{count} {what}" + "s" * (count != 1)
