"""Synchronize: first start, restart and reconnect compare the stored state with the containers that exist.

Allocations of pods that go on are kept, those of other pods are released. A container that the state does not know is
adopted with the CPUs it has where these are consistent, else placed, else it runs in the shared pool and is marked
`unplaced`. Invariant: a running container with exclusive CPUs is not moved.

The stored state may be older than the containers, because the checkpoint could not be saved for a while. An unknown
container that runs on exclusive CPUs was given them later, so it keeps them, and a stored allocation that overlaps and on
which no container runs has ended.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from nri_plugin.core.decision import Decision
from nri_plugin.core.found_pods import with_pools
from nri_plugin.core.placement import adopted, place
from nri_plugin.core.pods import with_parts_inside, within_total
from nri_plugin.core.pool import all_writes, pending_updates
from nri_plugin.core.requests import (
    ContainerRequest,
    annotated,
    container_record,
    container_request,
    pod_record,
    pod_uid,
    regime_of,
    stored_cpus,
    with_late_facts,
    without_admission,
)
from nri_plugin.core.resize import at_start, followed, fraction_before, shares_on
from nri_plugin.core.reuse import handed_over, init_memory_released, lives
from nri_plugin.model import bounds
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import Node
from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    Phase,
    PodRecord,
    QOSClass,
    Regime,
    allocation_key,
    pod_of,
)
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import Synchronize, SynchronizeResponse
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod

_PHASE = {
    ContainerState.CREATED: Phase.CREATED,
    ContainerState.STOPPED: Phase.STOPPED,
}
"""By the state a listed container reports; everything else runs."""


@dataclass(frozen=True, slots=True)
class _Unseen:
    """A container that the stored state does not know, or of which it lacks a resize.

    Attributes:
        request: None where an annotation refuses it.
    """

    record: ContainerRecord
    container: Container
    request: ContainerRequest | None

    def having(self, cpus: CPUSet) -> "_Unseen":
        """The same with these CPUs; with what the runtime has stored where they are empty."""
        return dataclasses.replace(self, record=replace(self.record, stored_cpus=cpus)) if cpus else self


def synchronize(node: Node, state: State, event: Synchronize) -> Decision:
    """Fold the runtime's list into the stored state."""
    # 1. The pods and containers that exist, with what is stored about them.
    before, state = state, _without_former_pods(node, state, event)
    pods = _pods(node, state, event)
    pods = {**_unlisted(node, state, event, pods), **pods}
    uid_by_sandbox = {pod.sandbox_id: uid for uid, pod in pods.items()}
    uid_by_sandbox |= {pod.id: pod_uid(pod) for pod in event.pods}
    listed = {c.id: c for c in event.containers if uid_by_sandbox.get(c.pod_id) in pods}
    records = {c.id: _record(pods[uid_by_sandbox[c.pod_id]], c, state) for c in listed.values()}
    # 2. The allocations of pods that go on; unconfirmed resizes are settled by what the runtime has stored.
    going_on = _going_on(records, event.pods)
    kept = _settled(records, {key: one for key, one in state.allocations.items() if pod_of(key) in going_on})
    regimes = _with_regimes(node, state, pods, records, kept)
    pods = {uid: pod if uid in going_on else without_admission(pod) for uid, pod in regimes.items()}
    after = State(pods, records, kept)
    # What was created while the agent was away runs, whatever was said of its pod before.
    for pod in [one for one in pods.values() if one.refusal is not None and lives(after, one)]:
        after = after.with_pod(replace(pod, refusal=None))
    pods = dict(after.pods)
    # 3. Containers without a record: first free their CPUs from outdated allocations, then adopt or place them.
    strange = [c for c in listed.values() if c.id not in state.containers]
    may_hold = _may_hold(after) | {records[c.id].pod_uid for c in strange if c.env}
    unseen = [
        _Unseen(records[c.id], c, _request(node, pods[records[c.id].pod_uid], c))
        for c in strange
        if records[c.id].pod_uid in may_hold
    ]
    unseen = _with_resized(node, state, after, unseen, listed.values())
    after = _without_outdated(node, after, unseen) if unseen else after
    after, pools = with_pools(node, after, [(one.record, one.request) for one in unseen])
    steps = [f"kept={len(after.allocations)}", f"released={len(before.allocations) - len(after.allocations)}"]
    after, adopted_steps = _adopt_all(node, after, unseen)
    shared = [c.id for c in strange if records[c.id].pod_uid not in may_hold]
    adopted_steps = ["adopted"] * sum(
        records[one].phase is not Phase.STOPPED for one in shared
    ) + adopted_steps
    # 4. Resizes that were missed.
    after = _resized_meanwhile(node, state, after, listed)
    # 5. Starts that were missed: ended init containers before a running container release their memory. Facts tell them.
    informed = {uid for uid, pod in pods.items() if pod.facts is not None}
    for record in records.values() if informed else ():
        if record.pod_uid in informed and record.phase is Phase.RUNNING:
            after = init_memory_released(after, record)
    # 6. Every cgroup is compared: other writers may have been here while the agent was away. Those that a slice bounds
    #    are compared after the answer.
    after, updates = pending_updates(node, after, late=True)
    return Decision(
        after,
        SynchronizeResponse(updates),
        writes=all_writes(node, after, before=before, waits=True),
        steps=(*steps, *adopted_steps, *(("pod-pool-kept",) * pools)),
    )


def adopt(
    node: Node, state: State, record: ContainerRecord, container: Container
) -> tuple[State, tuple[str, ...]]:
    """Allocate to a container that already exists, as far as still possible.

    Never refuses: a container that policy would have refused runs in the shared pool, marked `unplaced`.
    """
    pod = state.pods[record.pod_uid]
    try:
        request = annotated(node.options, pod, container_request(node.options, pod, container))
        as_it_is = adopted(node, state, request, record.stored_cpus, record.stored_mems)
        if as_it_is is not None:
            return with_parts_inside(as_it_is, pod.uid), ("adopted",)
        placed = place(node, state, pod, within_total(state, pod, with_late_facts(pod, request)))
    except AdmissionError as error:
        return state.with_container(replace(record, unplaced=bounds.reason(str(error)))), (
            "unplaced",
            error.reason,
        )
    return with_parts_inside(placed.state, pod.uid), placed.steps


def _record(pod: PodRecord, container: Container, state: State) -> ContainerRecord:
    """The record of a listed container: the stored one where nothing has changed, which then need not be saved again."""
    known = state.containers.get(container.id)
    record = container_record(pod, container, _PHASE.get(container.state, Phase.RUNNING), known)
    return known if record == known else record


def _may_hold(state: State) -> set[str]:
    """The pods of which a container may hold something, or does: all others run in the shared pool.

    Exclusive CPUs and memory are for Guaranteed pods, and for those with an annotation that is heard.
    """
    holding = {pod_of(key) for key in state.allocations}
    asking = (uid for uid, pod in state.pods.items() if pod.qos is QOSClass.GUARANTEED or pod.annotations)
    return holding.union(asking)


def _pods(node: Node, state: State, event: Synchronize) -> dict[str, PodRecord]:
    """One record per uid; of several sandboxes, the one containers live in, else the known, else the last."""
    inhabited = {container.pod_id for container in event.containers}
    chosen: dict[str, Pod] = {}
    for pod in event.pods:
        other = chosen.get(pod_uid(pod))
        if other is None or _rank(state, inhabited, pod) >= _rank(state, inhabited, other):
            chosen[pod_uid(pod)] = pod
    # The end of these pods may not be reported, because a restarted runtime forgets pods.
    return {
        uid: pod_record(pod, node.options, state.pods.get(uid), run_seen=False) for uid, pod in chosen.items()
    }


def _without_former_pods(node: Node, state: State, event: Synchronize) -> State:
    """The state without pods divided as wholes in a sandbox that is gone, of which a container was placed anew since.

    The allocations of a pod end with its sandbox, and an outdated checkpoint still has them. The agent gave a container of
    the new sandbox other CPUs than its part, perhaps without facts that it had before. Such a pod is found as one that no
    checkpoint tells of. A sandbox that was made while no agent was there has no such container: it keeps what its pod had.
    """
    uid_by_sandbox = {pod.id: pod_uid(pod) for pod in event.pods}
    going_on, anew = set[str](), set[str]()
    for one in event.containers:
        uid = uid_by_sandbox.get(one.pod_id, "")
        pod, whole = state.pods.get(uid), allocation_key(uid, "")
        if pod is None or one.state is ContainerState.STOPPED or whole not in state.allocations:
            continue
        part, cpus = state.allocations.get(allocation_key(uid, one.name)), stored_cpus(one.resources)
        if one.id in state.containers or one.pod_id == pod.sandbox_id:
            going_on.add(uid)
        elif part is not None and cpus and cpus != part.cpus - node.topology.offline:
            anew.add(uid)
    for uid in anew - going_on:
        state = state.without_pod(uid)
    return state


def _unlisted(
    node: Node, state: State, event: Synchronize, listed: Mapping[str, PodRecord]
) -> dict[str, PodRecord]:
    """Known pods that are not listed although a container of theirs is: the runtime lost their sandbox."""
    known = {pod.sandbox_id: pod for pod in state.pods.values()}
    inhabited = {container.pod_id for container in event.containers if container.id in state.containers}
    heard = node.options.annotation_namespaces
    return {
        pod.uid: replace(pod, run_seen=False, annotations=pod.annotations if pod.namespace in heard else ())
        for key, pod in known.items()
        if key in inhabited and pod.uid not in listed
    }


def _with_regimes(
    node: Node,
    state: State,
    pods: Mapping[str, PodRecord],
    records: Mapping[str, ContainerRecord],
    kept: Mapping[str, Allocation],
) -> dict[str, PodRecord]:
    """The pods; those of which a container exists, or holds something, have the rules by which it was admitted.

    Where the stored state knows something of such a pod and not its rules, an import wrote it.
    """
    known = {one.pod_uid for one in state.containers.values()} | {pod_of(key) for key in kept}
    listed = {one.pod_uid for one in records.values()}
    found = {}
    for uid, pod in pods.items():
        regime, is_admitted = pod.regime, pod.is_admitted
        if regime is None and allocation_key(uid, "") in kept:
            regime, is_admitted = Regime.WHOLE, True
        elif regime is None and uid in known:
            now = regime_of(node.options, pod)
            # What runs without a share of its pod was admitted by itself.
            regime = Regime.EACH if now is Regime.WHOLE and not is_admitted else now
        elif regime is None and uid in listed:
            regime = Regime.FOUND
        is_same = regime is pod.regime and is_admitted == pod.is_admitted
        found[uid] = pod if is_same else replace(pod, regime=regime, is_admitted=is_admitted)
    return found


def _rank(state: State, inhabited: set[str], pod: Pod) -> tuple[bool, bool]:
    known = state.pods.get(pod_uid(pod))
    return pod.id in inhabited, known is not None and known.sandbox_id == pod.id


def _going_on(records: Mapping[str, ContainerRecord], listed: Sequence[Pod]) -> set[str]:
    """The uids of pods that go on and keep their allocations.

    A pod goes on when one of its containers does, or its sandbox still has a process. That keeps the CPUs of a pod whose
    only container is about to be restarted. It releases those of a pod that ended while the agent was away and is only
    listed until it is removed.

    CRI-O lists no ended pods, and its sandboxes usually have no process. There every listed pod goes on.
    """
    alive = {record.pod_uid for record in records.values() if record.phase is not Phase.STOPPED}
    with_process = {pod_uid(pod) for pod in listed if pod.pid}
    if with_process and alive <= with_process:
        return alive | with_process
    # Where one has ended all the same, its cgroup is gone, and the agent notices that.
    return alive | {pod_uid(pod) for pod in listed}


def _settled(
    records: Mapping[str, ContainerRecord], allocations: Mapping[str, Allocation]
) -> dict[str, Allocation]:
    """Settle unconfirmed resizes: the cpuset that the runtime has stored tells whether they were done."""
    stored = {record.key: record.stored_cpus for record in records.values()}
    return {
        key: one.settled_by(stored[key]) if key in stored else one.settled(is_done=False)
        for key, one in allocations.items()
    }


def _with_resized(
    node: Node, before: State, state: State, unseen: Sequence[_Unseen], listed: Iterable[Container]
) -> list[_Unseen]:
    """The unknown containers, and the known ones of which an outdated checkpoint lacks a resize, with the CPUs that they have.

    The runtime was not told of CPUs that were offline, or out of the pods' reach, at that time. They are those of the
    stored allocation where the container asks for as many together.
    """
    taken, found = NO_CPUS, list[_Unseen]()
    for one in unseen:
        cpus = one.record.stored_cpus
        if one.request is not None and one.request.exclusive_cpus == len(cpus) and _liveliness(one.record):
            taken |= cpus
    for one in unseen:
        held, former = state.allocations.get(one.record.key), before.pods.get(one.record.pod_uid)
        is_same = former is not None and former.sandbox_id == one.container.pod_id
        cpus = _cpus_since(held, one, taken) if held is not None else NO_CPUS
        if held is not None and is_same and not cpus:
            cpus = _cpus_kept(held, one, taken)
        found.append(one.having(cpus))
    for container in listed:
        if container.id not in before.containers:
            continue
        record = state.containers[container.id]
        held = state.allocations.get(record.key)
        if held is not None and held.cpus and record.stored_cpus != held.cpus:
            one = _Unseen(record, container, _request(node, state.pods[record.pod_uid], container))
            cpus = _cpus_since(held, one, taken)
            if cpus and cpus != held.cpus:
                found.append(one.having(cpus))
    return found


def _cpus_since(held: Allocation, one: _Unseen, taken: CPUSet) -> CPUSet:
    """The CPUs that a container has by its stored allocation and by the runtime; empty where it asks for another number.

    It keeps what it has grown by until another container has it: a runtime that restarted may have forgotten the growth.
    """
    stored, request = one.record.stored_cpus, one.request
    if request is None or not stored:
        return NO_CPUS
    returned = held.cpus - at_start(held) - stored
    cpus = held.cpus | stored if returned.isdisjoint(taken) else (held.cpus | stored) - returned
    count = len(held.cpus) if request.cpu_milli == held.cpu_milli else request.exclusive_cpus
    return cpus if len(cpus) == count and (cpus - stored).isdisjoint(taken) else NO_CPUS


def _cpus_kept(held: Allocation, one: _Unseen, taken: CPUSet) -> CPUSet:
    """The CPUs of an instance made in the same sandbox: it keeps those of the first one, whatever size it asks for."""
    stored, first = one.record.stored_cpus, at_start(held)
    is_sound = stored <= held.cpus and (first - stored).isdisjoint(taken)
    return first | stored if stored and is_sound else NO_CPUS


def _resized_meanwhile(node: Node, before: State, after: State, listed: Mapping[str, Container]) -> State:
    """The state in which allocations have the sizes that their running containers have; those that cannot are marked."""
    changed_records = {}
    instances = Counter(one.key for one in after.containers.values() if one.phase is not Phase.STOPPED)
    for record in after.containers.values():
        held, former = after.allocations.get(record.key), before.containers.get(record.id)
        # Only a limit tells that a container without an allocation was resized.
        is_as_before = former is not None and former.limit_milli == record.limit_milli and not record.unplaced
        if record.phase is Phase.STOPPED or (held is None and (former is None or is_as_before)):
            continue
        if instances[record.key] > 1:
            continue  # a runtime that crashed gave the name twice, and the allocation is that of one of them
        if held is not None and record.stored_cpus and record.stored_cpus != held.cpus:
            continue  # a runtime that restarted may have forgotten the last update, its size as well as its CPUs
        request = _request(node, after.pods[record.pod_uid], listed[record.id])
        if request is None:
            continue
        is_marked = former is not None and former.unplaced and former.limit_milli == record.limit_milli
        if is_marked and held is not None and request.cpu_milli != held.cpu_milli:
            continue  # the agent was there; a restart of it changes nothing
        after, _, kept = followed(node, after, request)
        limit = record.limit_milli
        if held is None:
            _, kept = shares_on(before, request)
            limit = fraction_before(before, record.pod_uid, record.name) if kept else limit
            # It may be unplaced for another reason.
            kept = kept or (record.unplaced if request.exclusive_cpus else "")
        now = replace(record, unplaced=bounds.reason(kept), limit_milli=limit)
        if now != record:
            changed_records[record.id] = now
    return after.with_containers(changed_records) if changed_records else after


def _without_outdated(node: Node, state: State, unseen: Sequence[_Unseen]) -> State:
    """The state without allocations that ended while the checkpoint could not be saved.

    A claim is the allocation of an unknown container, where its CPUs are exactly what it asks for. A running container
    wins over one that only exists, and both win over an allocation without a living container. Of two that run the known
    one wins: its allocation changes by a resize alone, and one whose resize is not stored counts as unknown.
    """
    # 1. The known containers, by allocation: how alive the liveliest container of each is.
    strange = {one.record.id for one in unseen}
    holding = {pod_of(key) for key in state.allocations}
    holders: dict[str, int] = {}
    for record in state.containers.values() if holding else ():
        if record.pod_uid in holding and record.id not in strange:
            for key in (record.key, allocation_key(record.pod_uid, "")):
                holders[key] = max(holders.get(key, 0), _liveliness(record))
    empty = replace(state, allocations={})
    for one in sorted(unseen, key=lambda one: -_liveliness(one.record)):
        record = one.record
        if allocation_key(record.pod_uid, "") in state.allocations:
            continue  # a pod with resources of its own was divided as a whole: no container of it has a claim alone
        # 2. The claim, as if the container were alone on the machine: whether it is consistent in itself.
        claimed = _as_it_is(node, empty, one)
        claim = claimed.allocation_of(record) if claimed else None
        if claim is None:
            continue
        # 3. The allocations in its way. The claim wins only where it is livelier than all of them.
        clashing = [key for key, held in state.allocations.items() if _clashes(record.key, claim, key, held)]
        if clashing and all(holders.get(key, 0) < _liveliness(record) for key in clashing):
            # The claim may still be refused beside the other allocations; then nothing is freed.
            freed = _freed(state, record, claim, clashing)
            taken = _as_it_is(node, freed, one)
            if taken is not None:
                state, holders[record.key] = taken, _liveliness(record)
    return state


def _liveliness(record: ContainerRecord) -> int:
    return {Phase.STOPPED: 0, Phase.RUNNING: 2}.get(record.phase, 1)


def _clashes(claimant: str, claim: Allocation, key: str, held: Allocation) -> bool:
    if key != claimant:
        # The CPUs of a pod as a whole include those of its containers.
        return not claim.cpus.isdisjoint(held.cpus) and key != allocation_key(pod_of(claimant), "")
    return claim.cpus != held.cpus or (bool(claim.mems) and claim.mems != held.mems)


def _freed(state: State, record: ContainerRecord, claim: Allocation, clashing: Sequence[str]) -> State:
    """The state without the clashing allocations; an ended container of the same pod keeps what it did not pass on."""
    for key in clashing:
        if pod_of(key) == record.pod_uid and key != record.key:
            state = handed_over(state, [key], claim.cpus, claim.memory)
        else:
            state = state.without_allocation(key)
            owner = state.pods[pod_of(key)]
            if owner.regime is not Regime.WHOLE:
                # A container that is created later counts as missing, not as one that shares.
                state = state.with_pod(replace(owner, is_admitted=False))
    return state


def _adopt_all(node: Node, state: State, unseen: Sequence[_Unseen]) -> tuple[State, list[str]]:
    """First those that are consistent as they are, so that no newly placed one takes their CPUs.

    Of two with the same CPUs, one reused those of the other: the one that runs keeps them.
    """
    waiting, steps = [], []
    for one in sorted(unseen, key=lambda one: one.record.phase is not Phase.RUNNING):
        if one.record.phase is Phase.STOPPED:
            continue
        as_it_is = _as_it_is(node, state, one)
        if as_it_is is None:
            waiting.append(one)
        else:
            state = as_it_is
            steps.append("adopted")
    for one in waiting:
        state, how = adopt(node, state, one.record, one.container)
        steps.extend(how)
    return state, steps


def _as_it_is(node: Node, state: State, one: _Unseen) -> State | None:
    """The state in which it keeps what it has; None when it should not, or its request is refused."""
    if one.request is None:
        return None
    after = adopted(node, state, one.request, one.record.stored_cpus, one.record.stored_mems)
    return after and with_parts_inside(after, one.record.pod_uid)


def _request(node: Node, pod: PodRecord, container: Container) -> ContainerRequest | None:
    try:
        return annotated(node.options, pod, container_request(node.options, pod, container))
    except AdmissionError:
        return None
