"""Binding a pod to a node, as kube-scheduler would have done."""

from collections.abc import Mapping

from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.resources import PODS


class KubeBinder:
    """Creates bindings; the API server copies their annotations to the pod.

    Args:
        client: may create `pods/binding`.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Bind the pod of this uid.

        Raises:
            KubeAPIError: the pod is gone, bound already or another of the name, or there was no answer.
        """
        metadata: dict[str, object] = {"name": name, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._client.send("POST", PODS.path(name, namespace, "binding"), body=binding)
