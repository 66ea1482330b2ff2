"""Many pods that cannot fit, beside the others of a round: of a played ReplicaSet, and single ones."""

import time
from collections.abc import Callable
from typing import Any

from .pod_kinds import NO_CONTROLLER_RUNS, amounts, container, pod

REPLICAS, SINGLES = 200, 50
ROUND_S = 240.0
CONFIG = {"topologyManagerPolicy": "single-numa-node", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}
"""With it one CPU is refused, as it is no whole core."""

MACHINE = "topology: pack:2 numa:1(memory=8GiB) l3:8 core:8 pu:2(indexes=core)"
"""256 CPUs: the kubelet itself refuses what exceeds the sum of them."""

_LOOK_S = 1.0


class Refused:
    """Args:
    node: its name.
    ask: asks the API server.
    path: of pods.
    """

    def __init__(self, node: str, ask: Callable[..., tuple[int, Any]], path: str) -> None:
        self._node, self._ask, self._path = node, ask, path
        self._replicas: set[str] = set()
        self._made = self._singles = 0
        self._began = self._looked = time.monotonic()

    def go_on(self) -> None:
        """Make what is due: singles over the first two thirds of the round, replicas one after the other, also for each that failed."""
        now = time.monotonic()
        while self._singles < min(SINGLES, SINGLES * 1.5 * (now - self._began) / ROUND_S):
            self._singles += 1
            self._make(f"{self._node}-single-{self._singles}", None)
        if len(self._replicas) < REPLICAS:
            self._made += 1
            name = f"{self._node}-replica-{self._made}"
            if self._make(name, 0):
                self._replicas.add(name)
        if now - self._looked > _LOOK_S:
            self._looked = now
            for one in self._pods():
                if one.get("status", {}).get("phase") == "Failed":
                    self._replicas.discard(one["metadata"]["name"])

    def end(self) -> None:
        """Delete them."""
        for one in self._pods():
            self._ask("DELETE", f"{self._path}/{one['metadata']['name']}?gracePeriodSeconds=0")

    def _make(self, name: str, owner: int | None) -> bool:
        spec = {
            "nodeName": self._node,
            "terminationGracePeriodSeconds": 0,
            "containers": [container("a", amounts(1, "16Mi"))],
        }
        made = pod(name, spec, owner)
        if owner is not None:
            made["metadata"]["ownerReferences"][0]["uid"] = NO_CONTROLLER_RUNS.format(
                10**9 + int(self._node.rpartition("-")[2])
            )
        made["metadata"]["labels"] = {"refused": self._node}
        return self._ask("POST", self._path, made)[0] == 201

    def _pods(self) -> list[dict[str, Any]]:
        status, answer = self._ask(
            "GET", f"{self._path}?labelSelector=refused={self._node}&resourceVersion=0"
        )
        return answer["items"] if status == 200 else []
