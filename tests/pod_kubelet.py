"""A stand-in for what the kubelet does with the objects of its pods: only an update starts a sync, and its own status wins.

Source: kubelet v1.37: config/config.go, checkAndUpdatePod (an update differs in specification, labels, annotations or deletion,
    anything else is a reconcile); kubelet.go, HandlePodReconcile (no sync); pod_workers.go, UpdatePod (a pod in a final phase is
    ended); status/status_manager.go, syncBatch (a status that differs from the kubelet's own is overwritten, every 10 s).
"""

import copy
from collections.abc import Mapping
from typing import Any

from tests.kube_api_server import KubeAPI

WAITING = {"containerStatuses": [{"name": "app", "state": {"waiting": {"reason": "CreateContainerError"}}}]}


class PodKubelet:
    """Hears of objects and writes its own statuses when a test says so.

    Attributes:
        ended: the names of the pods that it has ended; it starts nothing of them any more.
    """

    def __init__(self, api: KubeAPI) -> None:
        self._api = api
        self._seen: dict[str, object] = {}
        self._own: dict[str, Mapping[str, Any]] = {}
        self.ended: set[str] = set()

    def pods(self) -> list[dict[str, Any]]:
        """The objects of all pods."""
        objects = self._api.store.objects
        return [copy.deepcopy(obj) for key, obj in list(objects.items()) if key[1] == "pods"]

    def hears(self) -> None:
        """Take all objects as they are now: those in between are lost, as in a watch that begins again."""
        for obj in self.pods():
            metadata = obj["metadata"]
            name = metadata["name"]
            fields = ("labels", "annotations", "deletionTimestamp", "deletionGracePeriodSeconds")
            means = obj["spec"], {one: metadata.get(one) for one in fields}
            if self._seen.get(name) != means:
                self._seen[name] = means
                self._sync(name, obj)

    def retries(self) -> None:
        """Its sync that is due anyway, after the back-off of a container: it goes by the objects that it has."""
        for obj in self.pods():
            self._sync(obj["metadata"]["name"], obj)

    def writes_back(self) -> None:
        """Do what the status manager does each 10 s."""
        for obj in self.pods():
            own = self._own.get(obj["metadata"]["name"])
            if own is not None and obj.get("status") != own:
                self._api.put({**obj, "status": own})

    def _sync(self, name: str, obj: Mapping[str, Any]) -> None:
        if name in self.ended:
            return
        if obj.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            self.ended.add(name)
            self._own[name] = dict(obj["status"])
        else:
            self._own[name] = {"phase": "Pending", **WAITING}
