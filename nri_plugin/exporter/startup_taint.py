"""The startup taint: no pod is scheduled to a node whose agent is not ready.

The kubelet registers a new Node with the taint (`registerWithTaints`). The exporter removes it once the agent answers the
runtime, and puts it back when the agent has been away for a while. Pods that are bound to the node already are not
affected: `required_plugins` of the runtime is for those.

Invariant: a write changes no other taint. It names the version of the Node that it was made from, so the API server refuses
it if anybody has changed the Node since.
"""

import logging
from collections.abc import Callable, Sequence

from nri_plugin.kube.api_client import NODES, KubeClient, Object
from nri_plugin.kube.watch import WatchBackoff
from nri_plugin.model.errors import KubeAPIError
from nri_plugin.process.logs import say

TAINT_KEY = "nri-pin/agent-not-ready"
TAINT: Object = {"key": TAINT_KEY, "effect": "NoSchedule"}

AWAY_S = 15.0
"""A restarted agent is back in a second; every node of a rollout would be tainted and untainted otherwise."""

CONFLICT = 409
FORBIDDEN = 403


class StartupTaint:
    """Keeps the taint on the Node exactly while the agent is away. It is a sink of a `Follower` of the Node.

    Args:
        client: of the cluster.
        node_name: of the Node.
        log: for changes, and for failures when they begin.
        clock: seconds that only grow.
        woken: called in the follower's thread when the Node has changed.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        log: logging.Logger,
        clock: Callable[[], float],
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._node_name, self._log, self._clock = client, node_name, log, clock
        self._woken = woken
        self._node: Object | None = None
        self._is_ready, self._away_since = False, clock()
        self._backoff, self._not_before = WatchBackoff(), clock()
        self._trouble = ""

    def hear(self, *, is_ready: bool) -> None:
        """Note whether the agent answers the runtime."""
        if self._is_ready and not is_ready:
            self._away_since = self._clock()  # before the other: `step` reads them in another thread
        self._is_ready = is_ready

    def listed(self, objects: Sequence[Object]) -> None:
        """Take the Node; none while it is not registered."""
        self._take(objects[0] if objects else None)

    def changed(self, obj: Object) -> None:
        """Take a version of the Node."""
        known = self._node
        # The answer to a write may come before the watch has brought the versions before it.
        if known is None or _uid(known) != _uid(obj) or _version(obj) >= _version(known):
            self._take(obj)

    def deleted(self, obj: Object) -> None:  # noqa: ARG002 - the protocol names it
        """Note that the Node is not registered any more."""
        self._take(None)

    def failed(self, error: KubeAPIError) -> None:
        """Log a failure of the watch."""
        self._failed(error)

    def due_s(self) -> float | None:
        """Return the seconds until `step` has something to do; None while the taint is as it should be."""
        node = self._node
        return None if node is None else self._due_s(node, is_ready=self._is_ready)

    def _due_s(self, node: Object, *, is_ready: bool) -> float | None:
        if (TAINT_KEY in _keys(node)) is not is_ready:
            return None
        now = self._clock()
        until_away = 0.0 if is_ready else self._away_since + AWAY_S - now
        return max(0.0, until_away, self._not_before - now)

    def step(self) -> None:
        """Remove the taint or put it back, if that is due. Failures are logged and tried again later."""
        # Other threads set both at any time.
        node, is_ready = self._node, self._is_ready
        if node is None or self._due_s(node, is_ready=is_ready) != 0.0:
            return
        others = [one for one in _taints(node) if one.get("key") != TAINT_KEY]
        taints = others if is_ready else [*others, TAINT]
        version = (node.get("metadata") or {}).get("resourceVersion", "")
        patch = {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}
        try:
            stored = self._client.merge_patch(NODES, self._node_name, patch)
        except KubeAPIError as error:
            self._not_before = self._clock() + self._backoff.next_s(error.retry_after_s)
            # Nodes change every few seconds; the watch brings the new version.
            if error.status != CONFLICT:
                self._failed(error)
            return
        self._trouble = ""
        self._backoff.reset()
        self.changed(stored)  # the watch may have brought a version after it already
        text = (
            "the agent is ready: pods may be scheduled to the node"
            if is_ready
            else "the agent is away: no new pod is scheduled to the node until it is back"
        )
        level = logging.INFO if is_ready else logging.WARNING
        say(self._log, level, text, node=self._node_name, taint=TAINT_KEY)

    def _take(self, node: Object | None) -> None:
        self._node = node
        self._woken()

    def _failed(self, error: KubeAPIError) -> None:
        advice = "; helm upgrade with exporter.startupTaint=true" if error.status == FORBIDDEN else ""
        trouble = f"{error}{advice}"
        if trouble != self._trouble:
            say(
                self._log,
                logging.WARNING,
                "the startup taint cannot be kept, will be tried again",
                node=self._node_name,
                err=trouble,
            )
        self._trouble = trouble


def _taints(node: Object) -> Sequence[Object]:
    """Return the taints; none of a Node of another form, as a proxy may make it."""
    spec = node.get("spec")
    taints = spec.get("taints") if isinstance(spec, dict) else None
    return [one for one in taints if isinstance(one, dict)] if isinstance(taints, list) else []


def _keys(node: Object) -> set[str]:
    return {str(one.get("key")) for one in _taints(node)}


def _uid(node: Object) -> str:
    return str((node.get("metadata") or {}).get("uid", ""))


def _version(node: Object) -> int:
    text = str((node.get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
