"""Refused pods are set to Failed, as the kubelet does with pods that it does not admit, so that others replace them.

A pod is set to Failed only while every app container of it waits; init containers may have run. The write names the
version that was read, so a pod that changes meanwhile stays. The kubelet ends a failed pod: it kills its sidecars and
releases its devices, and the scheduler no longer counts its requests.

A brake keeps a controller from creating pods for this node without end. `Brake` decides for pods of one owner and shape:
after each failed pod the next one waits twice as long. A change after which the node has something that it did not have
when such pods were refused (`Room`) brings one pod its turn earlier. Jobs that come and go give back what was there
before, and end no wait. Pods that were refused themselves are counted as gone, because their end returns only what they
took.

Invariant: pods of one owner and shape are failed at most `MOST_IN_WINDOW` times in any `WINDOW_S`, whatever changes. While
nothing changes, the pauses between them never shrink.

Source: kubelet v1.36, rejectPod, and podWorkers.UpdatePod, which ends pods with the phase Failed.
Differs: the kubelet fails each pod at once, as often as its controller creates one (kubernetes issue 84869), and before
    anything of it runs; here: pods of one controller fail after growing pauses, and a later container may be refused
    after init containers have run. Why: failed pods must not pile up. Option: none.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from nri_plugin.agent.status_client import AgentStatus, RefusalRow
from nri_plugin.core.hint_providers import memory_state_of
from nri_plugin.kube.api_client import PODS, KubeClient, Object
from nri_plugin.kube.pod_demand import pod_demand
from nri_plugin.kube.pod_facts import MIRROR
from nri_plugin.model.errors import KubeAPIError, KubeObjectError
from nri_plugin.model.records import pod_of
from nri_plugin.model.sets import NO_CPUS, CPUSet

PodName = tuple[str, str]
"""Namespace and name."""

# The brake


FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 1800.0
"""Pauses of 10, 20, 40, ... s let six pods of one owner and shape fail in ten minutes, and later one in half an hour."""

WINDOW_S, MOST_IN_WINDOW = 600.0, 10

MOST_GROUPS = 1024
"""Groups with a pause of their own; a node has fewer pods. Others share one."""

MOST_ROOMS = 4
"""Rooms of a group that are compared, the latest: jobs come and go on a few sets of CPUs."""

MOST_PODS = 4096
"""Refused pods that are remembered, the latest; more than a node can create in ten minutes."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has for further pods.

    Attributes:
        node: machine, options and reserved CPUs.
        available: CPUs that may become exclusive.
        allocated: bytes by NUMA node and resource, where memory is allocated.
        freed_devices: pods with devices that have ended, counted since the exporter began.
    """

    node: tuple[object, ...] = ()
    available: CPUSet = NO_CPUS
    allocated: Mapping[tuple[int, str], int] = field(default_factory=dict)
    freed_devices: int = 0

    def has_more_than(self, other: "Room", *, with_devices: bool) -> bool:
        """Whether a pod that found no place in the other room may find one here; `with_devices`: it asks for some."""
        return (
            self.node != other.node
            or not self.available <= other.available
            or any(self.allocated.get(place, 0) < size for place, size in other.allocated.items())
            or (with_devices and self.freed_devices > other.freed_devices)
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that are refused for the same reason: those of one owner with equal requests.

    Attributes:
        owner: the uid of the controller; the namespace for pods without a controller.
        shape: `PodDemand.shape`, as a hash.
        with_devices: they ask for devices.
    """

    owner: str
    shape: int
    with_devices: bool = False


OTHERS = Group("", 0)
"""All groups for which the table has no room."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The time after a failed pod.

    Attributes:
        until_s: its end.
        length_s: its length.
        failed_at_s: the times of the failed pods, at most `MOST_IN_WINDOW`, the latest last.
        rooms: in which pods were refused, at most `MOST_ROOMS`, the latest last.
    """

    until_s: float
    length_s: float
    failed_at_s: tuple[float, ...]
    rooms: tuple[Room, ...]

    @property
    def bound_until_s(self) -> float:
        """The time before which no change brings the next pod its turn."""
        return self.failed_at_s[0] + WINDOW_S if len(self.failed_at_s) == MOST_IN_WINDOW else 0.0

    def is_over(self, now_s: float) -> bool:
        """Whether the group counts as new. Forgetting a short pause sooner would let more pods fail in a window."""
        return now_s >= self.until_s + max(self.length_s, WINDOW_S)


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a pod waits; `is_bound`: no change ends it sooner."""

    until_s: float
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Brake:
    """Decides when the next pod of a group may be failed. Times are seconds that only grow.

    Attributes:
        pauses: by group; at most `MOST_GROUPS` and one for `OTHERS`.
    """

    pauses: Mapping[Group, Pause] = field(default_factory=dict)

    def wait(self, group: Group, room: Room, now_s: float) -> Wait | None:
        """Return how long a pod of the group waits that was refused in this room; None for not at all."""
        pause = self._pause(group)
        if pause is None:
            return None
        is_same = any(not room.has_more_than(one, with_devices=group.with_devices) for one in pause.rooms)
        until_s = max(pause.until_s if is_same else 0.0, pause.bound_until_s)
        return Wait(until_s, is_bound=pause.bound_until_s >= until_s) if now_s < until_s else None

    def failed(self, group: Group, room: Room, now_s: float) -> "Brake":
        """Return the brake after a pod of the group was failed that had been refused in this room."""
        fresh = Brake({key: pause for key, pause in self.pauses.items() if not pause.is_over(now_s)})
        before = fresh._pause(group)
        length_s = FIRST_PAUSE_S if before is None else min(2.0 * before.length_s, LONGEST_PAUSE_S)
        failed_at_s = (*(before.failed_at_s if before else ()), now_s)[-MOST_IN_WINDOW:]
        # A room that has no more than this one tells nothing that this one does not tell.
        rooms = [
            one
            for one in (before.rooms if before else ())
            if one.has_more_than(room, with_devices=group.with_devices)
        ]
        pause = Pause(now_s + length_s, length_s, failed_at_s, (*rooms, room)[-MOST_ROOMS:])
        return Brake({**fresh.pauses, fresh._key(group): pause})

    def _pause(self, group: Group) -> Pause | None:
        """The pause of the group; that of the others also holds for a group that gets a place of its own only now."""
        return self.pauses.get(group) or self.pauses.get(OTHERS)

    def _key(self, group: Group) -> Group:
        has_room = len(self.pauses) - (OTHERS in self.pauses) < MOST_GROUPS
        return group if group in self.pauses or has_room else OTHERS


class FreeResources:
    """Follows what the node has for further pods, from status to status."""

    def __init__(self) -> None:
        self._room = Room()
        self._status: AgentStatus | None = None
        self._with_devices: frozenset[str] = frozenset()
        self._refused_at: dict[str, float] = {}

    def take(
        self,
        status: AgentStatus,
        refusals: Iterable[RefusalRow],
        now_s: float,
        with_devices: frozenset[PodName] = frozenset(),
    ) -> None:
        """Take the next status.

        Args:
            status: of the agent.
            refusals: those of its refusals that are new.
            now_s: the time.
            with_devices: the pods that have devices.
        """
        lately = {uid: at for uid, at in self._refused_at.items() if now_s < at + WINDOW_S}
        for row in refusals:
            lately.pop(row.pod_uid, None)  # the latest last
            lately[row.pod_uid] = now_s
        self._refused_at = dict(list(lately.items())[-MOST_PODS:])
        # A kubelet that restarts lists no devices for a while, so those pods have ended only when the runtime lost them.
        pods = status.state.pods
        ended = self._with_devices - pods.keys() - self._refused_at.keys()
        named = {uid for uid, pod in pods.items() if (pod.namespace, pod.name) in with_devices}
        self._with_devices = (self._with_devices & pods.keys()) | named
        # By value: each status has a `Node` of its own. Equal ones are one object, which the rooms of all groups share.
        node = status.node.topology, status.node.options, status.node.reserved
        self._room = replace(
            self._room,
            node=self._room.node if node == self._room.node else node,
            freed_devices=self._room.freed_devices + bool(ended),
        )
        self._status = status

    @property
    def room(self) -> Room:
        """What the node has by the latest status; pods that were refused lately are counted as gone."""
        if self._status is not None:
            node, state = self._status.node, self._status.state
            # A pod that was refused lately and ends returns only what it took.
            others = {
                key: one for key, one in state.allocations.items() if pod_of(key) not in self._refused_at
            }
            state = replace(state, allocations=others)
            allocated = memory_state_of(node, state).allocated
            self._room = replace(self._room, available=state.available(node), allocated=allocated)
            self._status = None
        return self._room


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
class _WaitingPod:
    """A pod that waits, so that its object is not read at each of its refusals."""

    until_s: float
    group: Group
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
        self._brake, self._node = Brake(), FreeResources()
        self._waits: dict[str, _WaitingPod] = {}

    def take(
        self,
        status: AgentStatus,
        refusals: Iterable[RefusalRow],
        with_devices: frozenset[PodName] = frozenset(),
    ) -> None:
        """Take a status of the agent before `fail` is called for its new refusals; arguments as in `FreeResources.take`."""
        now_s = self._clock()
        self._node.take(status, refusals, now_s, with_devices)
        # Pods of one group wait alike.
        due = {
            group
            for group in {one.group for one in self._waits.values()}
            if self._brake.wait(group, self._node.room, now_s) is None
        }
        self._waits = {
            uid: one for uid, one in self._waits.items() if now_s < one.until_s and one.group not in due
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
        group, now_s, room = group_of(pod), self._clock(), self._node.room
        wait = self._brake.wait(group, room, now_s)
        if wait is not None:
            outcome = Outcome(WAITS, _waits(row, owner_words(pod), self._epoch_s + wait.until_s, wait))
            if len(self._waits) < MOST_PODS:
                self._waits[row.pod_uid] = _WaitingPod(wait.until_s, group, outcome)
            return outcome
        patch = rejection(pod, row.reason, row.detail)
        self._client.merge_patch(PODS, row.pod, patch, namespace=row.namespace, subresource="status")
        # Only a pod that was failed counts, so that an API server which refuses the write delays no pod.
        self._brake = self._brake.failed(group, room, now_s)
        return Outcome(FAILED, _failed(row, owner_words(pod)))


def group_of(pod: Object) -> Group:
    """Return the group of a pod that this module has read."""
    shape, with_devices = None, True
    with suppress(KubeObjectError):
        demand = pod_demand(pod)
        shape, with_devices = demand.shape, demand.asks_for_devices
    controller = _controller(pod)
    owner = str(controller.get("uid")) if controller else f"namespace {pod['metadata'].get('namespace')}"
    return Group(owner, hash(shape), with_devices)


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


def _waits(row: RefusalRow, owner: str, until_s: float, wait: Wait) -> str:
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until_s))
    who = f"pods of {owner} with these requests" if owner else "pods with these requests"
    why, sooner = "were refused here before", ", or until this node has room that they did not find"
    if wait.is_bound:
        why, sooner = f"were set to Failed here {MOST_IN_WINDOW} times in ten minutes", ""
    return (
        f"; {who} {why}, so the pod waits until {until} before it is set to Failed{sooner}; "
        f"to have it replaced now: {_delete(row)}"
    )


def _left(row: RefusalRow, obstacle: str) -> str:
    return f"; the pod is not set to Failed: {obstacle}; to have it replaced: {_delete(row)}"


def _delete(row: RefusalRow) -> str:
    return f"kubectl delete pod -n {row.namespace} {row.pod}"
