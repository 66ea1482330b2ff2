"""The Node as owner of the object that is published, so that the garbage collector removes both together.

A Node that is deleted and registered again has another uid, and the garbage collector deletes every object whose owner
has a uid that no longer exists. So the uid is read again when the object vanishes, and now and then.

Invariant: a uid is used only until the object vanishes. Then nothing is published before the Node is found again: with
the former uid the object would be deleted at once, without an owner it would outlive a Node that is gone for good.
"""

import logging
from collections.abc import Callable

from nri_plugin.app.logs import say
from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import KubeClient, Object
from nri_plugin.kube.backoff import Backoff
from nri_plugin.kube.resources import NODES
from nri_plugin.kube.watch import NOT_FOUND

FORBIDDEN = 403

AGAIN_S = 300.0
"""The uid is read again so often where nothing else asks for it: 5,000 nodes make 17 requests a second."""

LONGEST_MISSING_S = 10.0
"""Between two looks for a Node that is missing: its pods wait for the figures once it is back."""


class NodeOwner:
    """Knows the Node's uid.

    Args:
        client: of the cluster.
        node_name: of the Node.
        log: for what changes, and troubles when they begin and end.
        clock: seconds that only grow.

    Attributes:
        reference: for `ownerReferences`; None while the uid is not known.
        is_missing: the Node was known and is to be found again before anything is published.
    """

    def __init__(
        self, client: KubeClient, node_name: str, log: logging.Logger, clock: Callable[[], float]
    ) -> None:
        self._client, self._node_name, self._log, self._clock = client, node_name, log, clock
        self._backoff, self._missing_backoff = Backoff(), Backoff(longest_s=LONGEST_MISSING_S)
        self._look_at = clock()
        self._uid = ""
        self._trouble = ""
        self.reference: Object | None = None
        self.is_missing = False

    def due_s(self) -> float:
        """Seconds until the next look at the Node."""
        return max(0.0, self._look_at - self._clock())

    def doubt(self) -> None:
        """The object has vanished, perhaps because its owner has."""
        if self.reference is not None:
            self.reference, self.is_missing = None, True
            self._look_at = self._clock()

    def look(self) -> None:
        """Read the Node's uid when it is time; failures are logged and tried again later."""
        if self.due_s() > 0.0:
            return
        try:
            uid = str(self._client.get(NODES, self._node_name)["metadata"]["uid"])
        except KubeAPIError as error:
            self._not_found(error)
        else:
            self._found(uid)

    def _found(self, uid: str) -> None:
        if self._uid and uid != self._uid:
            say(
                self._log,
                logging.WARNING,
                "the node was registered again: the object gets its new uid as owner",
                node=self._node_name,
                uid=uid,
                former_uid=self._uid,
            )
        elif self._trouble:
            say(self._log, logging.INFO, "the node is known again", node=self._node_name, uid=uid)
        self._uid, self._trouble, self.is_missing = uid, "", False
        self.reference = {"apiVersion": "v1", "kind": "Node", "name": self._node_name, "uid": uid}
        self._backoff.reset()
        self._missing_backoff.reset()
        self._look_at = self._clock() + AGAIN_S

    def _not_found(self, error: KubeAPIError) -> None:
        if error.status == NOT_FOUND:
            self.doubt()
        elif error.status == FORBIDDEN:  # it cannot be found again either: publish without an owner
            self.is_missing = False
        if self.is_missing:
            text = "nothing is published until the node is found again"
        elif self.reference is None:
            text = "the object has no owner and will outlive its node, unless the node is found later"
        else:
            text = "the node's uid could not be read again"
        if str(error) != self._trouble:
            say(self._log, logging.WARNING, text, node=self._node_name, err=error)
        self._trouble = str(error)
        backoff = self._missing_backoff if self.is_missing else self._backoff
        self._look_at = self._clock() + backoff.next_s(error.retry_after_s)
