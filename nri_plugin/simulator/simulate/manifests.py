"""Kubernetes manifests as pods for one node: Pods, workloads, and lists of them as kubectl prints.

Resources get the API server's defaults and validation (`nri_plugin.simulator.simulate.pod_resources`). Fields that decide
which node a pod goes to are ignored with a note: here every pod goes to the one node.

Objects are plain values as YAML or JSON gives them. An error has the path of the wrong value; the caller, who has the
text, finds its line.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
from nri_plugin.model.errors import KubeObjectError
from nri_plugin.model.records import Amounts, QOSClass
from nri_plugin.simulator.simulate.pod_resources import (
    ManifestError,
    Object,
    Path,
    checked_list,
    checked_mapping,
    checked_text,
    defaulted,
    newer_differs,
    refuse_slips,
)
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec

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
            self._newer += newer_differs(filled["spec"])
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
