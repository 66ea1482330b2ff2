"""Refused pods are set to Failed, as the kubelet does with pods that it does not admit, so that others replace them.

A pod is set to Failed only while every app container of it waits; init containers may have run. Three programs have to agree:

1. The agent, which knows what runs. The exporter asks it to reject the pod; from then on it admits no container of the pod, also
   where the exporter is late or the agent is restarted. A pod of which a container lives is not rejected.
2. The API server. One patch of `pods/status` sets phase, reason and message. It names the version that was read, so a pod that
   changes meanwhile is read again.
3. The kubelet. It takes a changed status alone for its own old news, starts no sync, and its status manager writes its own status
   back within 10 s. A pod with a changed annotation is an update: it is synced, and a pod in the phase Failed is ended. So the
   patch changes the annotation `REFUSED`, too, each time to another value. The API server takes annotations with a status, so no
   right to patch pods is needed.

Until its sandbox is gone, a rejected pod is followed in the watch of the node's pods, and is patched again after growing pauses
where its phase is not Failed. The kubelet ends a failed pod: it kills its sidecars and releases its devices, and the scheduler no
longer counts its requests.

A back-off keeps a controller from creating pods for this node without end: after each failed pod the next one of its owner
waits twice as long. A pod that waits is tried again by the kubelet meanwhile, so it runs once there is room for it. Pods
without a controller do not come back, so they do not wait.

Source: kubelet v1.37, rejectPod; config/config.go, checkAndUpdatePod (update or reconcile); status/status_manager.go, syncBatch;
    podWorkers.UpdatePod, which ends pods with the phase Failed. API server v1.37, registry/core/pod, podStatusStrategy.
Differs: the kubelet fails each pod at once, as often as its controller creates one (kubernetes issue 84869), and before
    anything of it runs; here: pods of one controller fail after growing pauses, and a later container may be refused
    after init containers have run. Why: failed pods must not pile up. Option: none.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nri_plugin.agent.observing.status_client import AgentStatus, RefusalRow
from nri_plugin.kube.api_client import PODS, KubeClient, Object
from nri_plugin.kube.pod_demand import MALFORMED
from nri_plugin.kube.pod_facts import MIRROR, PodsHere
from nri_plugin.model.errors import HostError, KubeAPIError
from nri_plugin.model.records import PodRecord, PodRefusal

# The back-off


FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 1800.0
"""Pauses of 10, 20, 40, ... s let six pods of one owner fail in ten minutes, and later one in half an hour."""

CALM_S = 600.0
"""The least time without a failed pod after the end of a pause, after which an owner counts as new."""

MOST_OWNERS = 1024
"""Owners with a pause of their own; a node has fewer pods. Others share one."""

MOST_PODS = 4096
"""Waiting pods that are remembered; more than a node can create in ten minutes."""

OTHERS = ""


class OwnerBackoff:
    """Decides when the next pod of an owner may be failed. Times are seconds that only grow.

    Attributes:
        pauses: end and length of the last pause, by the owner's uid; at most `MOST_OWNERS` and one for `OTHERS`.
    """

    def __init__(self) -> None:
        self.pauses: dict[str, tuple[float, float]] = {}

    def until_s(self, owner: str) -> float:
        """Return the time until which pods of the owner wait."""
        until_s, _ = self.pauses.get(owner) or self.pauses.get(OTHERS) or (0.0, 0.0)
        return until_s

    def failed(self, owner: str, now_s: float) -> None:
        """Begin the next pause of the owner, of which a pod was failed."""
        self.pauses = {
            key: (until_s, length_s)
            for key, (until_s, length_s) in self.pauses.items()
            if now_s < until_s + max(length_s, CALM_S)
        }
        before = self.pauses.get(owner) or self.pauses.get(OTHERS)
        length_s = min(2.0 * before[1], LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
        has_room = owner in self.pauses or len(self.pauses) < MOST_OWNERS
        self.pauses[owner if has_room else OTHERS] = now_s + length_s, length_s


# One pod


REASONS = ("TopologyAffinityError", "SMTAlignmentError", "EmptyPodSharedPoolError")
OTHER_REASON = "UnexpectedAdmissionError"
"""The kubelet's message for all other reasons (kubelet v1.36 cm/topologymanager, cm/admission)."""

FAILED, WAITS, LEFT = "failed-pod", "waits", "left"
RESULTS = (FAILED, WAITS, LEFT)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one refused pod.

    Attributes:
        result: one of `RESULTS`.
        advice: the part of the event's note that says what happens next and what to do.
    """

    result: str
    advice: str


REFUSED = "nri-pin/refused"
"""Annotation of a pod that is set to Failed; its value is the version that was read, which no later write has."""

CONFLICT, FORBIDDEN = 409, 403

MOST_TRIES = 3
"""Writes in a row of a pod that others write at the same time."""

LATEST_S = 60.0
"""A status of the agent is never later than this."""

AGAIN_S, LONGEST_AGAIN_S = 1.0, 30.0
"""Pauses before a rejected pod whose phase is not Failed is patched again; they double."""

Reject = Callable[[RefusalRow], PodRefusal | None]
"""Asks the agent to admit no container of the pod any more; returns None where a container of it lives."""


def refusal_of(row: RefusalRow) -> PodRefusal:
    """Return the refusal as the row has it."""
    return PodRefusal(row.reason, row.message or row.detail, is_final=True)


@dataclass(frozen=True, slots=True)
class _RejectedPod:
    """A rejected pod; it may be patched again from `again_at_s` on. `is_counted`: by the back-off, after its first write."""

    again_at_s: float
    pause_s: float
    is_counted: bool


class RefusedPods:
    """Sets refused pods to Failed, at the pace of the back-off.

    Args:
        client: of the cluster.
        node_name: of this node; pods of others are left.
        clock: seconds that only grow.
        wall_clock: seconds since 1970, for the time in an event.
        reject: the agent; without one, it agrees.
        pods: the objects of this node's pods.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
        *,
        reject: Reject = refusal_of,
        pods: PodsHere | None = None,
    ) -> None:
        self._reject, self._pods = reject, pods or PodsHere(lambda _: None)
        self._is_forbidden = False
        self._final: tuple[PodRecord, ...] = ()
        self._rejected: dict[str, _RejectedPod] = {}
        self._client, self._node_name, self._clock = client, node_name, clock
        # One difference for all events, so that the event of a pod that goes on waiting stays the same.
        self._epoch_s = wall_clock() - clock()
        self._backoff = OwnerBackoff()
        # End and outcome of each pod that waits, so that its object is not read at each of its refusals.
        self._waits: dict[str, tuple[float, Outcome]] = {}

    def take(self, status: AgentStatus) -> None:
        """Take a status of the agent before `fail` is called for its new refusals."""
        now_s = self._clock()
        pods = status.state.pods.values()
        self._final = tuple(one for one in pods if one.refusal is not None and one.refusal.is_final)
        self._waits = {uid: one for uid, one in self._waits.items() if now_s < one[0]}

    def fail(self, row: RefusalRow) -> Outcome:
        """Set the pod to Failed if that is possible and due."""
        if row.pod_uid in self._waits:
            return self._waits[row.pod_uid][1]
        try:
            pod = self._client.get(PODS, row.pod, row.namespace)
            if row.pod_uid in self._rejected and (pod.get("status") or {}).get("phase") == "Failed":
                return Outcome(LEFT, "; the pod is set to Failed")
            if is_static(pod):
                return Outcome(LEFT, STATIC_ADVICE)
            obstacle = why_not(pod, row, self._node_name)
            return Outcome(LEFT, _left(row, obstacle)) if obstacle else self._fail_in_time(pod, row)
        except (HostError, KubeAPIError) as error:
            return Outcome(LEFT, _left(row, str(error)))
        except MALFORMED as error:
            return Outcome(LEFT, _left(row, f"its object does not match its schema: {error}"))

    @property
    def undone(self) -> list[PodRecord]:
        """The rejected pods whose phase is not Failed; safe in any thread."""
        return [one for one in self._final if self._pods.is_going_on(one.namespace, one.name, one.uid)]

    def follow(self) -> list[PodRecord]:
        """Set rejected pods to Failed that are not, or not any more; return those of which this was the first write."""
        now_s, first = self._clock(), []
        here = {one.uid for one in self._final}
        # The status that shows a rejection comes later than the answer to it.
        self._rejected = {
            uid: one
            for uid, one in self._rejected.items()
            if uid in here or now_s < one.again_at_s + LATEST_S
        }
        for pod in self.undone:
            known = self._rejected.get(pod.uid)
            is_due = known is None or now_s >= known.again_at_s
            if is_due and self._write_again(pod, known, now_s):
                first.append(pod)
        return first

    def due_s(self) -> float | None:
        """Return the seconds until `follow` has something to do; None while it has nothing."""
        now_s = self._clock()
        waits = [
            self._rejected[one.uid].again_at_s - now_s for one in self.undone if one.uid in self._rejected
        ]
        return max(0.0, min(waits)) if waits else None

    def _write_again(self, pod: PodRecord, known: _RejectedPod | None, now_s: float) -> bool:
        assert pod.refusal is not None
        pause_s = min(2.0 * known.pause_s, LONGEST_AGAIN_S) if known else AGAIN_S
        is_counted = known is not None and known.is_counted
        self._rejected[pod.uid] = _RejectedPod(now_s + pause_s, pause_s, is_counted)
        row = RefusalRow(0, pod.uid, pod.namespace, pod.name, "", pod.refusal.reason, pod.refusal.message)
        with suppress(KubeAPIError, *MALFORMED):
            found = self._client.get(PODS, row.pod, row.namespace)
            if not why_not(found, row, self._node_name) and not self._write(found, row, pod.refusal):
                self._rejected[pod.uid] = _RejectedPod(now_s + pause_s, pause_s, is_counted=True)
                if not is_counted:
                    self._count(found, now_s)
                return not is_counted
        return False

    def _write(self, pod: Object, row: RefusalRow, refusal: PodRefusal) -> str:
        """Set the pod to Failed; return why that must not be done any more, empty if it is done.

        Raises:
            KubeAPIError: the write was refused, or there was no answer.
        """
        for tried in range(1, MOST_TRIES + 1):
            patch = rejection(pod, refusal.reason, refusal.message)
            try:
                self._client.merge_patch(PODS, row.pod, patch, namespace=row.namespace, subresource="status")
                self._is_forbidden = False
                return ""
            except KubeAPIError as error:
                self._is_forbidden = error.status == FORBIDDEN
                if error.status != CONFLICT or tried == MOST_TRIES:
                    raise
            pod = self._client.get(PODS, row.pod, row.namespace)
            if obstacle := why_not(pod, row, self._node_name):
                return obstacle
        return ""

    def _count(self, pod: Object, now_s: float) -> None:
        controller = _controller(pod)
        if controller is not None:
            self._backoff.failed(str(controller.get("uid")), now_s)

    def _fail_in_time(self, pod: Object, row: RefusalRow) -> Outcome:
        controller, now_s = _controller(pod), self._clock()
        until_s = self._backoff.until_s(str(controller.get("uid"))) if controller else 0.0
        if now_s < until_s:
            outcome = Outcome(WAITS, _waits(row, owner_words(pod), self._epoch_s + until_s))
            if len(self._waits) < MOST_PODS:
                self._waits[row.pod_uid] = until_s, outcome
            return outcome
        # A rejected pod waits for nothing but this write. So while writes are forbidden, pods are left to try again.
        refusal = refusal_of(row) if self._is_forbidden else self._reject(row)
        if refusal is None:
            return Outcome(LEFT, _left(row, "a container of it runs"))
        self._rejected[row.pod_uid] = _RejectedPod(now_s + AGAIN_S, AGAIN_S, is_counted=False)
        if obstacle := self._write(pod, row, refusal):
            return Outcome(LEFT, _left(row, obstacle))
        # Only a pod that was failed counts, so that an API server which refuses the write delays no pod.
        self._rejected[row.pod_uid] = _RejectedPod(now_s + AGAIN_S, AGAIN_S, is_counted=True)
        self._count(pod, now_s)
        return Outcome(FAILED, _failed(row, owner_words(pod)))


def owner_words(pod: Object) -> str:
    """Return kind and name of the pod's controller; empty for none."""
    controller = _controller(pod)
    return f"{controller.get('kind')} {controller.get('name')}" if controller else ""


def _controller(pod: Object) -> Object | None:
    references = pod["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)


def is_static(pod: Object) -> bool:
    """Whether the object mirrors a static pod, which a file on the node defines."""
    return MIRROR in (pod["metadata"].get("annotations") or {})


def why_not(pod: Object, row: RefusalRow, node_name: str) -> str:
    """Return why this pod, which is not static, must not be set to Failed; empty if it may."""
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    phase = status.get("phase") or "Pending"
    cases = (
        (metadata.get("uid") != row.pod_uid, "another pod of that name exists"),
        (spec.get("nodeName") != node_name, f"it is on node {spec.get('nodeName')}, not {node_name}"),
        (bool(metadata.get("deletionTimestamp")), "it is being deleted"),
        # Running is the phase of a pod whose containers ran before a restart of the node and now all wait.
        (phase not in ("Pending", "Running"), f"its phase is {phase}"),
        (_has_begun(status), "a container of it runs or has ended"),
        (_has_started(status, row.container), f"its container {row.container} was started meanwhile"),
    )
    return next((words for applies, words in cases if applies), "")


def _has_begun(status: Object) -> bool:
    """Whether any container runs, or has ended and does not wait for its next start; init containers do not count."""
    kinds = ("containerStatuses", "ephemeralContainerStatuses")
    return any(_has_state(one) for kind in kinds for one in status.get(kind) or ())


def _has_started(status: Object, container: str) -> bool:
    """Whether the refused container is an init container that runs or has ended since."""
    return any(
        one.get("name") == container and _has_state(one) for one in status.get("initContainerStatuses") or ()
    )


def _has_state(status: Object) -> bool:
    return not {"running", "terminated"}.isdisjoint(status.get("state") or {})


def rejection(pod: Object, reason: str, message: str) -> dict[str, Any]:
    """Return the patch of the pod's status, valid only for the version that was read.

    Source: kubelet v1.37, rejectPod: phase, reason, and a message with this beginning.
    """
    metadata: dict[str, Any] = {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}
    metadata["annotations"] = {REFUSED: metadata["resourceVersion"]}
    known = reason if reason in REASONS else OTHER_REASON
    status = {"phase": "Failed", "reason": known, "message": f"Pod was rejected: {message}"}
    return {"metadata": metadata, "status": status}


# The words of events: what happens to the pod, and what to do


STATIC_ADVICE = (
    "; the pod is not set to Failed: a static pod has no controller that creates another; lower the requests in its "
    "manifest, or end other pods of this node"
)


def _failed(row: RefusalRow, owner: str) -> str:
    if owner:
        return f"; the pod is set to Failed, {owner} creates another"
    return f"; the pod is set to Failed and has no controller: delete it and create it again ({_delete(row)})"


def _waits(row: RefusalRow, owner: str, until_s: float) -> str:
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until_s))
    return (
        f"; pods of {owner} were refused here before, so the pod waits until {until} before it is set to Failed; it runs "
        f"once it fits; to have it replaced now: {_delete(row)}"
    )


def _left(row: RefusalRow, obstacle: str) -> str:
    return f"; the pod is not set to Failed: {obstacle}; to have it replaced: {_delete(row)}"


def _delete(row: RefusalRow) -> str:
    return f"kubectl delete pod -n {row.namespace} {row.pod}"
