"""Part of the tests' API server: binding a pod to a node, once.

Source: Kubernetes pkg/registry/core/pod/storage/storage.go, BindingREST.
"""

from tests.kube_api_fields import Object
from tests.kube_api_kinds import Kind
from tests.kube_api_store import Key, Store, Write, conflict, failure, precondition_failed

SCHEDULED = {"type": "PodScheduled", "status": "True"}


def bind(store: Store, kind: Kind, key: Key, binding: Object, version: str) -> Object:
    """Give the pod its node and the binding's annotations; the answer's body."""
    target, wanted = binding.get("target", {}), binding.get("metadata", {})
    if target.get("kind", "Node") != "Node":
        text = f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise failure(text)
    if not target.get("name"):
        raise failure("target.name: Required value")

    def bound(pod: Object) -> Object:
        _check(kind, key, pod, wanted.get("uid"))
        annotations = {**pod["metadata"].get("annotations", {}), **wanted.get("annotations", {})}
        metadata = {**pod["metadata"], **({"annotations": annotations} if annotations else {})}
        return {**pod, "metadata": metadata, "spec": {**pod.get("spec", {}), "nodeName": target["name"]}}

    def scheduled(pod: Object) -> Object:
        return {**pod, "status": {**pod.get("status", {}), "conditions": [SCHEDULED]}}

    store.modify(kind, key, bound, Write("kube-scheduler", version, subresource="binding"))
    store.modify(kind, key, scheduled, Write("kube-scheduler", version, subresource="status"))
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _check(kind: Kind, key: Key, pod: Object, uid: str | None) -> None:
    found, node = pod["metadata"]["uid"], pod.get("spec", {}).get("nodeName")
    if uid not in (None, "", found):
        raise conflict(kind, key[3], precondition_failed(kind, key, uid, found))
    if pod["metadata"].get("deletionTimestamp"):
        text = f"pod {key[3]} is being deleted, cannot be assigned to a host"
        raise conflict(kind, key[3], text, "pods/binding")
    if node:
        raise conflict(kind, key[3], f'pod {key[3]} is already assigned to node "{node}"', "pods/binding")
