"""First start, restart and reconnect: one comparison of what is remembered with what exists.

What agrees is kept; what is gone is released; what was born unseen is adopted as it is when that
is consistent, else placed, else it runs in the shared pool and is marked. Nothing that runs and
was promised its CPUs is moved.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nri_plugin.annotations import annotated
from nri_plugin.decision import Decision
from nri_plugin.errors import AdmissionError
from nri_plugin.nri.events import Synchronize, SynchronizeResponse
from nri_plugin.nri.messages import Container, ContainerState, Pod
from nri_plugin.options import Node
from nri_plugin.placement import adopted, place
from nri_plugin.pool import all_writes, pending_updates
from nri_plugin.state import Allocation, ContainerRecord, Phase, PodRecord, State
from nri_plugin.workload import (
    cgroup_ref,
    container_request,
    limit_milli,
    pod_record,
    pod_uid,
    renewed,
    stored_cpus,
    stored_mems,
)

_PHASE = {
    ContainerState.CREATED: Phase.CREATED,
    ContainerState.STOPPED: Phase.STOPPED,
}
"""By the state a listed container reports; everything else runs."""


def synchronize(node: Node, state: State, event: Synchronize) -> Decision:
    """Fold what the runtime lists into what is remembered."""
    pods = {**_unlisted(state, event), **_pods(state, event)}
    uid_by_sandbox = {pod.sandbox_id: uid for uid, pod in pods.items()}
    uid_by_sandbox |= {pod.id: pod_uid(pod) for pod in event.pods}
    listed = {c.id: c for c in event.containers if uid_by_sandbox.get(c.pod_id) in pods}
    records = {c.id: _record(state, pods[uid_by_sandbox[c.pod_id]], c) for c in listed.values()}
    after = State(pods, records, _settled(records, _kept(state, records, event.pods)))
    steps = [f"kept={len(after.allocations)}", f"released={len(state.allocations) - len(after.allocations)}"]
    unseen = [(records[c.id], c) for c in listed.values() if c.id not in state.containers]
    after, adopted_steps = _adopt_all(node, after, unseen)
    after, updates = pending_updates(node, after, late=True)
    return Decision(
        after,
        SynchronizeResponse(updates),
        writes=all_writes(node, after),
        steps=(*steps, *adopted_steps),
    )


def adopt(
    node: Node, state: State, record: ContainerRecord, container: Container
) -> tuple[State, tuple[str, ...]]:
    """Give a container that already exists what it should have had, as far as still possible.

    Never refuses: what policy would have refused runs in the shared pool, marked `unplaced`.
    """
    pod = state.pods[record.pod_uid]
    try:
        request = annotated(node.options, pod, container_request(pod, container))
        as_it_is = adopted(node, state, request, record.stored_cpus, record.stored_mems)
        if as_it_is is not None:
            return as_it_is, ("adopted",)
        placed = place(node, state, pod, request)
    except AdmissionError as error:
        return state.with_container(replace(record, unplaced=str(error))), ("unplaced", error.reason)
    return placed.state, placed.steps


def _pods(state: State, event: Synchronize) -> dict[str, PodRecord]:
    """One record per uid; of several sandboxes, the one containers live in, else the known, else the last."""
    inhabited = {container.pod_id for container in event.containers}
    chosen: dict[str, Pod] = {}
    for pod in event.pods:
        rival = chosen.get(pod_uid(pod))
        if rival is None or _rank(state, inhabited, pod) >= _rank(state, inhabited, rival):
            chosen[pod_uid(pod)] = pod
    return {uid: _remembered(state, pod) for uid, pod in chosen.items()}


def _unlisted(state: State, event: Synchronize) -> dict[str, PodRecord]:
    """Known pods that are not listed although a container of theirs is: the runtime does not know how they are."""
    known = {pod.sandbox_id: pod for pod in state.pods.values()}
    inhabited = {container.pod_id for container in event.containers if container.id in state.containers}
    return {pod.uid: replace(pod, run_seen=False) for key, pod in known.items() if key in inhabited}


def _rank(state: State, inhabited: set[str], pod: Pod) -> tuple[bool, bool]:
    known = state.pods.get(pod_uid(pod))
    return pod.id in inhabited, known is not None and known.sandbox_id == pod.id


def _remembered(state: State, pod: Pod) -> PodRecord:
    """The pod's record; from now on its end may go untold (a restarted runtime forgets)."""
    fresh = pod_record(pod, run_seen=False)
    return renewed(fresh, state.pods.get(fresh.uid))


def _kept(
    state: State, records: Mapping[str, ContainerRecord], listed: Iterable[Pod]
) -> Mapping[str, Allocation]:
    """Allocations of pods that go on.

    A pod goes on when one of its containers does, or its sandbox still has a process: that keeps the
    CPUs of a pod whose only container is about to be restarted, and frees those of a pod that ended
    while nobody watched and is only listed until it is cleaned up.
    """
    alive = {record.pod_uid for record in records.values() if record.phase is not Phase.STOPPED}
    alive |= {pod_uid(pod) for pod in listed if pod.pid}
    return {key: value for key, value in state.allocations.items() if key.partition("/")[0] in alive}


def _settled(
    records: Mapping[str, ContainerRecord], allocations: Mapping[str, Allocation]
) -> Mapping[str, Allocation]:
    """Resizes of whose end nothing was heard: what the runtime has stored tells whether they were done."""
    stored = {record.key: record.stored_cpus for record in records.values()}
    return {
        key: one.settled(is_done=one.resize is not None and stored.get(key) == one.resize.after.cpus)
        for key, one in allocations.items()
    }


def _adopt_all(
    node: Node, state: State, unseen: list[tuple[ContainerRecord, Container]]
) -> tuple[State, list[str]]:
    """First those that are consistent as they are, so that no newly placed one takes their CPUs.

    Of two that say the same, one reused the CPUs of the other: the one that runs keeps them.
    """
    waiting, steps = [], []
    for record, container in sorted(unseen, key=lambda pair: pair[0].phase is not Phase.RUNNING):
        if record.phase is Phase.STOPPED:
            continue
        as_it_is = _as_it_is(node, state, record, container)
        if as_it_is is None:
            waiting.append((record, container))
        else:
            state = as_it_is
            steps.append("adopted")
    for record, container in waiting:
        state, how = adopt(node, state, record, container)
        steps.extend(how)
    return state, steps


def _as_it_is(node: Node, state: State, record: ContainerRecord, container: Container) -> State | None:
    """The state in which it keeps what it has; None when it should not, or asks for what cannot be."""
    pod = state.pods[record.pod_uid]
    try:
        request = annotated(node.options, pod, container_request(pod, container))
    except AdmissionError:
        return None
    return adopted(node, state, request, record.stored_cpus, record.stored_mems)


def _record(state: State, pod: PodRecord, container: Container) -> ContainerRecord:
    known = state.containers.get(container.id)
    return ContainerRecord(
        id=container.id,
        pod_uid=pod.uid,
        name=container.name,
        phase=_PHASE.get(container.state, Phase.RUNNING),
        cgroup=cgroup_ref(pod, container),
        stored_cpus=stored_cpus(container.resources),
        stored_mems=stored_mems(container.resources),
        limit_milli=limit_milli(container.resources) or (known.limit_milli if known else 0),
        unplaced=known.unplaced if known else "",
        affinity=known.affinity if known else None,
        affinity_preferred=known.affinity_preferred if known else True,
    )
