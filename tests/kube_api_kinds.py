"""Part of the tests' API server: which kinds of objects it knows, and how it tells clients of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

VERBS = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]


@dataclass(frozen=True)
class Kind:
    """A kind; `schemas` by version for custom ones, `with_status` where it has that subresource."""

    group: str
    kind: str
    plural: str
    versions: tuple[str, ...] = ("v1",)
    is_namespaced: bool = True
    short_names: tuple[str, ...] = ()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    storage_version: str = ""
    with_status: bool = False

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def full_name(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def stored_as(self) -> str:
        return self.storage_version or self.versions[-1]

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


BUILT_IN = (
    Kind("", "Namespace", "namespaces", is_namespaced=False, short_names=("ns",)),
    Kind("", "Node", "nodes", is_namespaced=False, short_names=("no",), with_status=True),
    Kind("", "Pod", "pods", short_names=("po",), with_status=True),
    Kind("", "ServiceAccount", "serviceaccounts", short_names=("sa",)),
    Kind("", "ConfigMap", "configmaps", short_names=("cm",)),
    Kind("", "Service", "services", short_names=("svc",)),
    Kind("", "Secret", "secrets"),
    Kind("apps", "DaemonSet", "daemonsets", short_names=("ds",), with_status=True),
    Kind("apps", "Deployment", "deployments", short_names=("deploy",), with_status=True),
    Kind("policy", "PodDisruptionBudget", "poddisruptionbudgets", short_names=("pdb",)),
    Kind("rbac.authorization.k8s.io", "Role", "roles"),
    Kind("rbac.authorization.k8s.io", "RoleBinding", "rolebindings"),
    Kind("rbac.authorization.k8s.io", "ClusterRole", "clusterroles", is_namespaced=False),
    Kind("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", is_namespaced=False),
    Kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", is_namespaced=False),
    Kind(
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        is_namespaced=False,
    ),
    Kind(
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        is_namespaced=False,
    ),
    Kind("events.k8s.io", "Event", "events", short_names=("ev",)),
    Kind("monitoring.coreos.com", "PodMonitor", "podmonitors"),
    Kind(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        is_namespaced=False,
        short_names=("crd",),
    ),
)


def from_crd(crd: Mapping[str, Any]) -> Kind:
    """The kind that a CustomResourceDefinition brings."""
    spec = crd["spec"]
    names = spec["names"]
    served = [version for version in spec["versions"] if version["served"]]
    return Kind(
        spec["group"],
        names["kind"],
        names["plural"],
        tuple(version["name"] for version in served),
        spec["scope"] == "Namespaced",
        tuple(names.get("shortNames", ())),
        {version["name"]: version["schema"]["openAPIV3Schema"] for version in served},
        next(version["name"] for version in spec["versions"] if version["storage"]),
    )


def discovery(kinds: Iterable[Kind], path: str) -> dict[str, Any] | None:
    """What `/api`, `/apis`, a group version or `/openapi/v3` answer; None for other paths."""
    kinds = list(kinds)
    pairs = sorted({(kind.group, version) for kind in kinds for version in kind.versions})
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(pairs)}
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64"}
    if path == "/openapi/v3":
        prefix = {(g, v): f"apis/{g}/{v}" if g else f"api/{v}" for g, v in pairs}
        return {"paths": {one: {"serverRelativeURL": f"/openapi/v3/{one}"} for one in prefix.values()}}
    for group, version in pairs:
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        mine = [kind for kind in kinds if kind.group == group and version in kind.versions]
        if path == base:
            return _resources(mine, group, version)
        if path == f"/openapi/v3{base}":
            return _open_api(mine, version, base)
    return None


def _groups(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    groups: dict[str, list[str]] = {}
    for group, version in pairs:
        if group:
            groups.setdefault(group, []).append(version)
    rows = []
    for group, versions in groups.items():
        all_versions = [{"groupVersion": f"{group}/{one}", "version": one} for one in reversed(versions)]
        rows.append({"name": group, "versions": all_versions, "preferredVersion": all_versions[0]})
    return rows


def _resources(kinds: list[Kind], group: str, version: str) -> dict[str, Any]:
    rows = []
    for kind in kinds:
        row: dict[str, Any] = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.is_namespaced,
            "kind": kind.kind,
            "verbs": VERBS,
        }
        if kind.short_names:
            row["shortNames"] = list(kind.short_names)
        rows.append(row)
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows}


def _open_api(kinds: list[Kind], version: str, base: str) -> dict[str, Any]:
    """As little as lets a client see that dry runs and strict fields are understood."""
    queries = [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldValidation")
    ]
    paths = {}
    for kind in kinds:
        gvk = {"group": kind.group, "version": version, "kind": kind.kind}
        space = "/namespaces/{namespace}" if kind.is_namespaced else ""
        verb = {"x-kubernetes-group-version-kind": gvk, "parameters": queries, "responses": {}}
        paths[f"{base}{space}/{kind.plural}/{{name}}"] = {"patch": verb, "put": verb}
    return {"openapi": "3.0.0", "info": {"title": "tests", "version": "1"}, "paths": paths, "components": {}}
