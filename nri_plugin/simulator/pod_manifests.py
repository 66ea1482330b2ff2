"""Kubernetes manifests as pods for one node: Pods, what makes pods, and lists of them as kubectl prints.

What the API server would fill in is filled in (a limit is the request where none is set), what it would refuse is
refused. Everything that decides where a pod goes in a cluster, and not what it gets on a node, is passed over and
said: here every pod comes to the one node.

Source: Kubernetes v1.36 API defaults and validation of resources.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nri_plugin.errors import KubeObjectError
from nri_plugin.kube.noderesourcetopology import parse_amount
from nri_plugin.kube.pod_demand import (
    CPU,
    HUGEPAGES,
    MEMORY,
    ContainerDemand,
    Kind,
    PodDemand,
    is_native,
    pod_demand,
)
from nri_plugin.pod_facts import Amounts
from nri_plugin.simulator.manifest_defaults import (
    ManifestError,
    Object,
    Path,
    checked_list,
    checked_mapping,
    checked_text,
    defaulted,
    refuse_slips,
)
from nri_plugin.simulator.pods import ContainerSpec, PodSpec
from nri_plugin.state import QOSClass

MOST_PODS = 10_000
"""Of one object; more is a slip of the finger."""

TEMPLATES: Mapping[str, str] = {
    "Deployment": "replicas",
    "StatefulSet": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "Job": "parallelism",
    "DaemonSet": "",
}
"""By kind: the key that says how many pods there are at once, one where it is empty or left out."""

VERSIONS: Mapping[str, str] = {
    "Pod": "v1",
    "ReplicationController": "v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
}
"""By kind: the apiVersion that an API server has it in; items of lists leave theirs out."""

NOT_LOOKED_AT = (
    "affinity",
    "ephemeralContainers",
    "nodeSelector",
    "priorityClassName",
    "resourceClaims",
    "schedulingGates",
    "topologySpreadConstraints",
)
"""Keys of a pod that decide where it goes, or bring what is not simulated."""

OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Found:
    """A pod of the manifests.

    Attributes:
        path: where it stands.
        workload: what it comes from; empty for a pod of its own.
    """

    path: Path
    pod: PodSpec
    workload: str = ""


@dataclass(slots=True)
class Manifests:
    """Reads objects one after the other.

    Args:
        node: only pods of this node count; empty for all.
    """

    node: str = ""
    pods: list[Found] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _keys: Counter[str] = field(default_factory=Counter)
    _kinds: Counter[str] = field(default_factory=Counter)
    _over: int = 0
    _nodes: Counter[str] = field(default_factory=Counter)
    _elsewhere: int = 0
    _nothing: list[str] = field(default_factory=list)

    def read(self, obj: object, path: Path) -> None:
        """Take in an object.

        Raises:
            ManifestError: it is not what its schema says.
        """
        found = checked_mapping(obj, path)
        kind = checked_text(found.get("kind"), (*path, "kind"), "the kind of the object, such as Pod")
        version = found.get("apiVersion")
        if version is not None and version != VERSIONS.get(kind, version):
            raise ManifestError((*path, "apiVersion"), f"{kind} is of {VERSIONS[kind]}, found {version}")
        if kind == "List" or kind.endswith("List"):
            for number, item in enumerate(checked_list(found.get("items"), (*path, "items"))):
                self.read(_with_kind(item, kind), (*path, "items", number))
        elif kind == "Pod":
            self._pod(found, path)
        elif kind in TEMPLATES:
            self._workload(kind, found, path)
        else:
            self._kinds[kind] += 1

    def notes(self) -> Iterator[str]:
        """What was passed over, a sentence each."""
        for kind, count in self._kinds.items():
            yield f"{_times(kind, count)} passed over: no kind of object that makes pods here"
        yield from self._nothing
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
        key = TEMPLATES[kind]
        spec = checked_mapping(obj.get("spec"), (*path, "spec"))
        refuse_slips(spec, (*path, "spec"), (key, "template") if key else ("template",))
        template = checked_mapping(spec.get("template"), (*path, "spec", "template"))
        namespace, name = _names(obj, path)
        count = _replicas(spec, key, (*path, "spec", key))
        if not count:
            self._nothing.append(f"{kind} {namespace}/{name} has {key} 0: no pods")
        metadata = checked_mapping(template.get("metadata") or {}, (*path, "spec", "template", "metadata"))
        for number in range(count):
            made = {**template, "metadata": {**metadata, "namespace": namespace, "name": f"{name}-{number}"}}
            self._add(made, (*path, "spec", "template"), f"{kind} {namespace}/{name}")

    def _add(self, obj: Object, path: Path, workload: str) -> None:
        namespace, name = _names(obj, path)
        spec = checked_mapping(obj.get("spec"), (*path, "spec"))
        self._keys.update(key for key in NOT_LOOKED_AT if spec.get(key))
        filled = defaulted(obj, path)
        try:
            demand = pod_demand(filled)
        except KubeObjectError as error:
            raise ManifestError(path, str(error)) from None
        pod = _pod_spec(filled, demand, namespace, name, path)
        if pod.key in self._names:
            raise ManifestError(
                (*path, "metadata", "name"), f"pod {pod.key} is there already; rename one of them"
            )
        self._names.add(pod.key)
        self.pods.append(Found(path, pod, workload))


def _pod_spec(obj: Object, demand: PodDemand, namespace: str, name: str, path: Path) -> PodSpec:
    spec = obj["spec"]
    whole = spec.get("resources") or {}
    return PodSpec(
        name=name,
        namespace=namespace,
        containers=tuple(_container(one) for one in demand.containers if one.kind is Kind.APP),
        init_containers=tuple(_container(one) for one in demand.containers if one.kind is not Kind.APP),
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
            (f"{name.removeprefix(HUGEPAGES).removesuffix('i')}B", _in_units(name, amount))
            for name, amount in one.requests.items()
            if name.startswith(HUGEPAGES)
        ),
        devices_asked=tuple(
            (name, _in_units(name, amount))
            for name, amount in one.limits.items()
            if not is_native(name) and amount
        ),
        is_sidecar=one.kind is Kind.SIDECAR,
    )


def _whole(resources: Object) -> Amounts | None:
    """What the pod sets for itself as a whole."""
    parts = {
        part: {name: parse_amount(value) for name, value in (resources.get(part) or {}).items()}
        for part in ("requests", "limits")
    }
    requests, limits = parts["requests"], parts["limits"]
    if not any(name in {CPU, MEMORY} or name.startswith(HUGEPAGES) for name in (*requests, *limits)):
        return None
    return Amounts(
        requests.get(CPU, 0),
        limits.get(CPU, 0),
        _in_units(MEMORY, requests.get(MEMORY, 0)),
        _in_units(MEMORY, limits.get(MEMORY, 0)),
        tuple(
            (name, _in_units(name, amount)) for name, amount in requests.items() if name.startswith(HUGEPAGES)
        ),
    )


def _in_units(name: str, milli: int) -> int:
    """Thousandths of CPUs as they are, everything else whole."""
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
    """A member of a `PodList` need not say that it is a Pod."""
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
