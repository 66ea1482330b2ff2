"""Refused pods are set to Failed, as the kubelet does with pods that it does not admit, so that others replace them.

A pod is set to Failed only while every app container of it waits; init containers may have run. The write names the
version that was read, so a pod that changes meanwhile stays. The kubelet ends a failed pod: it kills its sidecars and
releases its devices, and the scheduler no longer counts its requests.

A brake keeps a controller from creating pods for this node without end. `Brake` decides for pods of one owner and shape:
after each failed pod the next one waits twice as long. A change that could change the answer ends the wait
(`NodeChanges`): another node, another configuration, or the end of another pod. Pods that were refused themselves are no
other pods, because their end returns only what they took.

Invariant: while nothing changes, pods of one owner and shape are failed at pauses that never shrink, at most
`MOST_IN_WINDOW` in any `WINDOW_S`.

Source: kubelet v1.36, rejectPod, and podWorkers.UpdatePod, which ends pods with the phase Failed.
Differs: the kubelet fails each pod at once, as often as its controller creates one (kubernetes issue 84869), and before
    anything of it runs; here: pods of one controller fail after growing pauses, and a later container may be refused
    after init containers have run. Why: failed pods must not pile up. Option: none.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.agent.status_client import AgentStatus, RefusalRow
from nri_plugin.kube.api_client import PODS, KubeClient, Object
from nri_plugin.kube.pod_demand import pod_demand
from nri_plugin.kube.pod_facts import MIRROR
from nri_plugin.model.errors import KubeAPIError, KubeObjectError
from nri_plugin.model.state import pod_of

PodName = tuple[str, str]
"""Namespace and name."""

# The brake


FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 1800.0
"""Pauses of 10, 20, 40, ... s let six pods of one owner and shape fail in ten minutes, and later one in half an hour."""

WINDOW_S, MOST_IN_WINDOW = 600.0, 10

MOST_GROUPS = 1024
"""Groups with a pause of their own; a node has fewer pods. Others share one."""

MOST_PODS = 4096
"""Refused pods that are remembered, the latest; more than a node can create in ten minutes."""


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that are refused for the same reason: those of one owner with equal requests.

    Attributes:
        owner: the uid of the controller; the namespace for pods without a controller.
        shape: `PodDemand.shape`, as a hash.
    """

    owner: str
    shape: int


OTHERS = Group("", 0)
"""All groups for which the table has no room."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The time after a failed pod.

    Attributes:
        until_s: its end.
        length_s: its length.
        generation: the `NodeChanges.generation` in which it is valid.
    """

    until_s: float
    length_s: float
    generation: int


@dataclass(frozen=True, slots=True)
class Brake:
    """Decides when the next pod of a group may be failed. Times are seconds that only grow.

    Attributes:
        pauses: by group; at most `MOST_GROUPS` and one for `OTHERS`.
    """

    pauses: Mapping[Group, Pause] = field(default_factory=dict)

    def waits_until(self, group: Group, generation: int, now_s: float) -> float | None:
        """Return when a pod of the group may be failed; None for now."""
        pause = self.pauses.get(self._key(group))
        if pause is None or pause.generation != generation or now_s >= pause.until_s:
            return None
        return pause.until_s

    def failed(self, group: Group, generation: int, now_s: float) -> "Brake":
        """Return the brake after a pod of the group was failed."""
        kept = {key: pause for key, pause in self.pauses.items() if not _is_over(pause, now_s)}
        fresh = Brake(kept)
        key = fresh._key(group)
        before = kept.get(key)
        if before is None or before.generation != generation:
            length_s = FIRST_PAUSE_S
        else:
            length_s = min(2.0 * before.length_s, LONGEST_PAUSE_S)
        return Brake({**kept, key: Pause(now_s + length_s, length_s, generation)})

    def _key(self, group: Group) -> Group:
        has_room = len(self.pauses) - (OTHERS in self.pauses) < MOST_GROUPS
        return group if group in self.pauses or has_room else OTHERS


def _is_over(pause: Pause, now_s: float) -> bool:
    """Whether the group counts as new. Forgetting a short pause sooner would let more pods fail in a window."""
    return now_s >= pause.until_s + max(pause.length_s, WINDOW_S)


class NodeChanges:
    """Counts changes after which a refused pod may fit.

    Attributes:
        generation: grows with each change.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._node: tuple[object, ...] = ()
        self._holders: frozenset[str] = frozenset()
        self._with_devices: frozenset[str] = frozenset()
        self._refused_at: dict[str, float] = {}

    def take(
        self,
        status: AgentStatus,
        refusals: Iterable[RefusalRow],
        now_s: float,
        with_devices: frozenset[PodName] = frozenset(),
    ) -> None:
        """Compare a status with the one before.

        Args:
            status: of the agent.
            refusals: those of its refusals that are new.
            now_s: the time.
            with_devices: the pods that have devices.
        """
        # A pod that was refused lately and ends returns only what it took.
        lately = {uid: at for uid, at in self._refused_at.items() if now_s < at + WINDOW_S}
        for row in refusals:
            lately.pop(row.pod_uid, None)  # the latest last
            lately[row.pod_uid] = now_s
        self._refused_at = dict(list(lately.items())[-MOST_PODS:])
        holders = frozenset(map(pod_of, status.state.allocations))
        pods = status.state.pods
        # A kubelet that restarts lists no devices for a while, so those pods have ended only when the runtime lost them.
        ended = (self._holders - holders) | (self._with_devices - pods.keys())
        ended -= self._refused_at.keys()
        named = {uid for uid, pod in pods.items() if (pod.namespace, pod.name) in with_devices}
        self._with_devices = (self._with_devices & pods.keys()) | named
        # By value: each status has a `Node` of its own.
        node = status.node.topology, status.node.options, status.node.reserved
        self.generation += bool(self._node) and (bool(ended) or node != self._node)
        self._node, self._holders = node, holders


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


@dataclass(frozen=True, slots=True)
class _Wait:
    """A pod that waits, so that its object is not read at each of its refusals."""

    until_s: float
    generation: int
    outcome: Outcome


class RefusedPods:
    """Sets refused pods to Failed, at the pace of the brake.

    Args:
        client: of the cluster.
        node_name: of this node; pods of others are left.
        clock: seconds that only grow.
        wall_clock: seconds since 1970, for the time in an event.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._node_name, self._clock = client, node_name, clock
        # One difference for all events, so that the event of a pod that goes on waiting stays the same.
        self._epoch_s = wall_clock() - clock()
        self._brake, self._changes = Brake(), NodeChanges()
        self._waits: dict[str, _Wait] = {}

    def take(
        self,
        status: AgentStatus,
        refusals: Iterable[RefusalRow],
        with_devices: frozenset[PodName] = frozenset(),
    ) -> None:
        """Take a status of the agent before `fail` is called for its new refusals; arguments as in `NodeChanges.take`."""
        now_s = self._clock()
        self._changes.take(status, refusals, now_s, with_devices)
        self._waits = {
            uid: one
            for uid, one in self._waits.items()
            if now_s < one.until_s and one.generation == self._changes.generation
        }

    def fail(self, row: RefusalRow) -> Outcome:
        """Set the pod to Failed if that is possible and due."""
        if row.pod_uid in self._waits:
            return self._waits[row.pod_uid].outcome
        try:
            pod = self._client.get(PODS, row.pod, row.namespace)
            if is_static(pod):
                return Outcome(LEFT, STATIC_ADVICE)
            obstacle = why_not(pod, row, self._node_name)
            return Outcome(LEFT, _left(row, obstacle)) if obstacle else self._fail_in_time(pod, row)
        except KubeAPIError as error:
            return Outcome(LEFT, _left(row, str(error)))

    def _fail_in_time(self, pod: Object, row: RefusalRow) -> Outcome:
        group, now_s, generation = group_of(pod), self._clock(), self._changes.generation
        until_s = self._brake.waits_until(group, generation, now_s)
        if until_s is not None:
            outcome = Outcome(WAITS, _waits(row, owner_words(pod), self._epoch_s + until_s))
            if len(self._waits) < MOST_PODS:
                self._waits[row.pod_uid] = _Wait(until_s, generation, outcome)
            return outcome
        patch = rejection(pod, row.reason, row.detail)
        self._client.merge_patch(PODS, row.pod, patch, namespace=row.namespace, subresource="status")
        # Only a pod that was failed counts, so that an API server which refuses the write delays no pod.
        self._brake = self._brake.failed(group, generation, now_s)
        return Outcome(FAILED, _failed(row, owner_words(pod)))


def group_of(pod: Object) -> Group:
    """Return the group of a pod that this module has read."""
    try:
        shape: object = pod_demand(pod).shape
    except KubeObjectError:
        shape = None
    controller = _controller(pod)
    owner = str(controller.get("uid")) if controller else f"namespace {pod['metadata'].get('namespace')}"
    return Group(owner, hash(shape))


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


def rejection(pod: Object, reason: str, detail: str) -> dict[str, Any]:
    """Return the patch of the pod's status, valid only for the version that was read.

    Source: kubelet v1.36, rejectPod: phase, reason, and a message with this beginning.
    """
    metadata = {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}
    known = reason if reason in REASONS else OTHER_REASON
    status = {"phase": "Failed", "reason": known, "message": f"Pod was rejected: {detail}"}
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
    who = f"pods of {owner} with these requests" if owner else "pods with these requests"
    return (
        f"; {who} were refused here before, so the pod waits until {until} before it is set to Failed, or until a pod "
        f"of this node ends; to have it replaced now: {_delete(row)}"
    )


def _left(row: RefusalRow, obstacle: str) -> str:
    return f"; the pod is not set to Failed: {obstacle}; to have it replaced: {_delete(row)}"


def _delete(row: RefusalRow) -> str:
    return f"kubectl delete pod -n {row.namespace} {row.pod}"
