"""Sets a refused pod to Failed, as the kubelet does with one it does not admit, so that its controller makes another.

A pod is failed only while nothing of it has ever run and while it is still as it was read: the write names the version.

Differs: the kubelet refuses a whole pod before anything of it runs; here a later container may be refused after others,
init containers too, have run. Their work is not thrown away: that pod is left to wait.
"""

from typing import Any

from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import KubeClient, Object
from nri_plugin.kube.pod_facts import MIRROR
from nri_plugin.kube.resources import PODS

REASONS = ("TopologyAffinityError", "SMTAlignmentError")
OTHER_REASON = "UnexpectedAdmissionError"
"""What the kubelet says of everything else (kubelet v1.36 cm/topologymanager, cm/admission)."""


class Rejecter:
    """Fails pods of one node.

    Args:
        client: of the cluster.
        node_name: of no other node's pods.
    """

    def __init__(self, client: KubeClient, node_name: str) -> None:
        self._client, self._node_name = client, node_name

    def reject(self, namespace: str, name: str, uid: str, reason: str, detail: str) -> str:
        """Fail the pod; empty when done, else why it is left to wait."""
        try:
            pod = self._client.get(PODS, name, namespace)
            obstacle = why_not(pod, uid, self._node_name)
            if not obstacle:
                patch = rejection(pod, reason, detail)
                self._client.merge_patch(PODS, name, patch, namespace=namespace, subresource="status")
        except KubeAPIError as error:
            return str(error)
        return obstacle


def why_not(pod: Object, uid: str, node_name: str) -> str:
    """Why this pod is not to be failed, empty where it is."""
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    cases = (
        (MIRROR in (metadata.get("annotations") or {}), "a static pod has no controller that makes another"),
        (metadata.get("uid") != uid, "another pod of that name has come"),
        (spec.get("nodeName") != node_name, f"it is on node {spec.get('nodeName')}, not {node_name}"),
        (bool(metadata.get("deletionTimestamp")), "it is being deleted"),
        ((status.get("phase") or "Pending") != "Pending", f"its phase is {status.get('phase')}, not Pending"),
        (_has_begun(status), "a container of it has run"),
    )
    return next((words for applies, words in cases if applies), "")


def rejection(pod: Object, reason: str, detail: str) -> dict[str, Any]:
    """The patch of the pod's status, good for the version that was read only.

    Source: kubelet v1.36, rejectPod: phase, reason, and a message that begins like this.
    """
    metadata = {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}
    known = reason if reason in REASONS else OTHER_REASON
    status = {"phase": "Failed", "reason": known, "message": f"Pod was rejected: {detail}"}
    return {"metadata": metadata, "status": status}


def _has_begun(status: Object) -> bool:
    """Whether any container runs or has run."""
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return any(
        one.get("restartCount") or any(_ran(one.get(part) or {}) for part in ("state", "lastState"))
        for kind in kinds
        for one in status.get(kind) or ()
    )


def _ran(state: Object) -> bool:
    return "running" in state or "terminated" in state
