"""The centre: `decide(node, state, event) -> Decision`, pure.

The same function serves first starts, restarts, trials and explanations: a trial is a decision that is not stored.
Nothing here does I/O, reads a clock or logs.

The steps for every event: find or adopt the pod and the container, change the state, and derive the cgroup writes from the
states before and after.

    RunPodSandbox          remember the pod
    CreateContainer        place the container or refuse it        the only event that allocates in the usual case;
                           the refusal of a pod is kept with its facts
    PostCreateContainer    it exists
    StartContainer         write its cgroup, which exists only now; ended init containers return their memory
    PostStartContainer     read its effective CPUs back
    UpdateContainer        resize in place, or keep the runtime from writing an old cpuset
    PostUpdateContainer    the resize is done
    StopContainer          keep the allocation: a crash loop must not lose its CPUs
    RemoveContainer        drop the record
    StopPodSandbox         release the allocations of the pod

Events of our own: `core/drift.py` has those of cgroups and the machine, `core/pod_news.py` those of pods.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from nri_plugin.core.advice import advised
from nri_plugin.core.decision import Decision, EffectiveCheck, InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved, MachineChanged, OwnEvent, follow_machine, repair_drift
from nri_plugin.core.found_pods import with_facts
from nri_plugin.core.kernel_settings import NO_QUOTA, replies_quota
from nri_plugin.core.placement import Placement
from nri_plugin.core.pod_news import (
    PodFactsTold,
    PodHasEnded,
    PodNews,
    PodRejected,
    facts_told,
    has_ended,
    rejected,
)
from nri_plugin.core.pods import Unfit, admit, within_total
from nri_plugin.core.pool import floor_writes, own_write, pending_updates, pins, pool_writes
from nri_plugin.core.quiet import housekeeping_variables
from nri_plugin.core.requests import (
    ContainerRequest,
    annotated,
    container_record,
    container_request,
    cpu_milli,
    has_too_many_devices,
    heard_annotations,
    informed,
    limit_milli,
    pod_record,
    pod_uid,
    regime_of,
    remembered,
    stored_cpus,
    stored_mems,
    with_late_facts,
    without_admission,
)
from nri_plugin.core.resize import (
    advised_pod_growth,
    advised_resize,
    followed,
    fraction_before,
    refuse_pod_total,
    resized,
    shares_on,
)
from nri_plugin.core.reuse import init_memory_released, inits_ended, inits_known
from nri_plugin.core.synchronize import adopt, synchronize
from nri_plugin.model import bounds
from nri_plugin.model.bounds import Cut
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import Effect, Node, TopologyManagerPolicy
from nri_plugin.model.records import Allocation, ContainerRecord, Phase, PodRecord, PodRefusal, Regime
from nri_plugin.model.refusals import AdmissionRefusal, RefusalKind, kind_of
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources

Handler: TypeAlias = Callable[[Node, State, Any], Decision]


def decide(
    node: Node, state: State, event: nri.NRIEvent | InformedCreate | UnsavedStart | OwnEvent | PodNews
) -> Decision:
    """The decision on `event` on `node` in `state`.

    Never raises for anything in the event. A refusal of policy comes back as `Decision.refusal`; its state allocates
    nothing.
    """
    handler = _HANDLERS.get(type(event))
    if handler is None:
        return Decision(state, nri.empty_response(event))
    return handler(node, state, event)


def _run_pod(node: Node, state: State, event: nri.RunPodSandbox) -> Decision:
    """Remember the pod; never refuse it here (a refused sandbox can keep containerd from restarting)."""
    pod = pod_record(event.pod, node.options, state.pods.get(pod_uid(event.pod)), run_seen=True)
    state = _ended_before_forgotten(state, event.pod).with_pod(pod)
    return Decision(state, writes=floor_writes(node, state, pod), steps=("pod",))


def _stop_pod(node: Node, state: State, event: nri.StopPodSandbox) -> Decision:
    """Release the pod's allocations. The end of an older sandbox of a pod that has a new one releases nothing.

    Differs: the kubelet keeps what a pod has while its sandbox is made anew, as after the death of the pause process;
        here: the pod is admitted anew with its new sandbox, and may get other CPUs or be refused. Why: the runtime
        does not tell whether a new sandbox follows. Option: none.
    """
    pod = state.pods.get(_uid(state, event.pod))
    if pod is None or pod.sandbox_id != event.pod.id:
        return Decision(state, steps=("unknown-sandbox",))
    stopped = {one.id: replace(one, phase=Phase.STOPPED) for one in state.containers_of(pod.uid)}
    # The records stay until the runtime removes the containers: a late event would adopt an unknown container again.
    after = state.released(pod.uid).with_containers(stopped)
    # A new sandbox of the pod gets a new hint: other pods may have taken the CPUs of the old one.
    after = after.with_pod(without_admission(pod))
    return Decision(after, writes=pool_writes(node, state, after), steps=("released",))


def _remove_pod(node: Node, state: State, event: nri.RemovePodSandbox) -> Decision:
    pod = state.pods.get(_uid(state, event.pod))
    if pod is None or pod.sandbox_id != event.pod.id:
        return Decision(state, steps=("unknown-sandbox",))
    after = state.without_pod(pod.uid)
    return Decision(after, writes=pool_writes(node, state, after), steps=("released", "forgotten"))


def _create(node: Node, state: State, event: nri.CreateContainer) -> Decision:
    return _informed_create(node, state, InformedCreate(event))


def unrefused(node: Node, state: State, event: nri.CreateContainer | InformedCreate) -> Decision:
    """As `decide`, for a container that is created in any case: where policy refuses it, it runs in the shared pool."""
    known = event if isinstance(event, InformedCreate) else InformedCreate(event)
    return _informed_create(node, state, known, may_refuse=False)


def _informed_create(
    node: Node, before: State, known: InformedCreate, *, may_refuse: bool = True
) -> Decision:
    """Place the container and tell the runtime, or refuse with the kubelet's reason."""
    container = known.event.container
    # 1. The request: the runtime's message and the facts. Annotations come last and may refuse the container.
    state, pod, request = creation_context(node, before, known)
    overruled = None
    # 2. The placement of the container, and of the rest of its pod: hints, merge, CPUs, memory. Its state is a trial until
    # the decision is returned.
    standing = _standing_refusal(node, pod, known) if pod.refusal or known.has_ended else None
    placed = Unfit(state, request, standing) if standing else _admitted(node, state, pod, request, known)
    if isinstance(placed, Unfit):
        # 3. Refused: advice is looked for now, because only now it is worth the time.
        refusal = standing or advised(node, placed.state, pod, placed.request, placed.refusal)
        if may_refuse and pod.namespace not in node.options.never_refuse:
            # Without facts there is nothing to keep: the next try says as much as this one.
            after = before if standing or not known.facts else _with_refusal(node, before, known, refusal)
            return Decision(after, refusal=refusal, steps=("refused", *refusal.steps))
        # In a namespace that is never refused, the container runs in the shared pool and holds nothing.
        overruled, placed = refusal, Placement(state, None, ("never-refuse", *refusal.steps))
    state, allocation = placed.state, placed.allocation
    # 4. The pod: under pod scope the placement has merged its hint. Facts that no later event needs are dropped.
    pod = remembered(state.pods[pod.uid])
    if pod.regime is Regime.WHOLE and not pod.is_admitted:
        # It runs although it was refused as a whole: its containers get what fits.
        pod = replace(pod, regime=Regime.CLAIMS)
    if pod.refusal is not None:
        pod = replace(pod, refusal=None)
    # 5. The container's own cpuset and memory nodes travel in the response. They follow from the allocations.
    cpus = state.desired_cpus_of(node, request.key) if pins(node, state) else NO_CPUS
    is_claimed = allocation is not None and bool(allocation.claim)
    mems = allocation.mems if allocation else NO_NODES
    record = container_record(
        pod,
        container,
        Phase.CREATING,
        unplaced=bounds.reason(str(overruled or "") or placed.unresized),
        stored=(cpus, mems),
    )
    record = placed.remembered_by(record)
    if placed.unresized and allocation is None:
        record = replace(record, limit_milli=fraction_before(state, pod.uid, record.name))
    quota = NO_QUOTA if replies_quota(node, state, record) else None
    sets_something = (cpus or mems) and not is_claimed  # two plugins that set a cpuset fail the creation
    resources = Resources(cpus=str(cpus), mems=str(mems), cpu_quota_us=quota) if sets_something else None
    # 6. The other containers: the response carries those that only the runtime can update, the rest are cgroup writes.
    state, updates = pending_updates(node, state.with_pod(pod).with_container(record), except_id=record.id)
    steps = ("devices-not-counted", *placed.steps) if has_uncounted_devices(known) else placed.steps
    variables = housekeeping_variables(node, state, record.key)
    return Decision(
        state,
        nri.CreateContainerResponse(resources=resources, updates=updates, env=variables),
        overruled=overruled,
        writes=pool_writes(node, before, state),
        steps=steps,
    )


def _standing_refusal(node: Node, pod: PodRecord, known: InformedCreate) -> AdmissionRefusal | None:
    """The refusal of a pod that no placement may replace; None where the pod is placed again.

    A refused pod is placed again with the facts that are known of it, as a whole. The devices of its other containers are
    not kept. So where the exporter is late, the refusal stands that was made with them.
    """
    last = pod.refusal
    if last is not None and last.is_final:
        return AdmissionRefusal(kind_of(last.reason), f"the pod is set to Failed: {last.message}")
    if known.has_ended:
        return AdmissionRefusal(RefusalKind.OTHER, "the pod has ended in the cluster")
    has_hints = node.options.topology_manager_policy is not TopologyManagerPolicy.NONE
    if last is not None and last.with_devices and known.facts is None and has_hints:
        why = f"the exporter did not tell the devices of the pod, which was refused before: {last.message}"
        return AdmissionRefusal(kind_of(last.reason), why)
    return None


def _with_refusal(node: Node, before: State, known: InformedCreate, refusal: AdmissionRefusal) -> State:
    """The state with the refusal and the facts of the pod, so that a late exporter makes no other decision of it."""
    pod = _inhabited(node, before, known.event.pod)
    # The rules of a pod that was found running are settled with its facts, when a container of it is admitted.
    if pod.regime is not Regime.FOUND:
        pod = remembered(informed(pod, known.facts))
    with_devices = bool(known.devices_by_container)
    pod = replace(pod, refusal=PodRefusal(refusal.reason, refusal.message, with_devices))
    return before if before.pods.get(pod.uid) == pod else before.with_pod(pod)


def creation_context(
    node: Node, state: State, known: InformedCreate
) -> tuple[State, PodRecord, ContainerRequest]:
    """The state in which a new container is placed, its pod, and its request before annotations are applied."""
    event = known.event
    pod = informed(_inhabited(node, state, event.pod), known.facts)
    state = _ended_before_forgotten(state, event.pod)
    pod = replace(pod, regime=regime_of(node.options, pod))
    state = _failed_instance_forgotten(state.with_pod(pod), pod.uid, event.container.name)
    state = inits_ended(inits_known(state, pod), pod, event.container.name)
    if pod.regime is Regime.FOUND and pod.facts is not None:
        state = with_facts(node, state, pod, pod.facts)
        pod = state.pods[pod.uid]
    request = container_request(node.options, pod, event.container)
    if request.key not in state.allocations:
        request = within_total(state, pod, with_late_facts(pod, request))
    if not (known.devices or known.pod_devices) or has_uncounted_devices(known):
        return state, pod, request
    return state, pod, replace(request, devices=known.devices, pod_devices=known.pod_devices)


def _admitted(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, known: InformedCreate
) -> Placement | Unfit:
    try:
        request = annotated(node.options, pod, request)
    except AdmissionError as error:
        return Unfit(state, request, error.refusal)
    devices = () if has_uncounted_devices(known) else known.devices_by_container
    # A container that is started again may have been resized since.
    state, request, kept = followed(node, state, request)
    if not kept:
        request, kept = shares_on(state, request)
    placed = admit(node, state, pod, request, dict(devices))
    return dataclasses.replace(placed, unresized=kept) if kept and isinstance(placed, Placement) else placed


def has_uncounted_devices(known: InformedCreate) -> bool:
    """Whether the container has more devices than the bounds allow; then there are no device hints for it.

    Differs: the kubelet makes hints of any number of devices; here: a container with more than 256 devices,
        or with devices of more than 16 resources, has no device hints. Why: the author of a pod must not
        decide how long the runtime waits. Option: none.
    """
    is_cut, has_any = Cut.DEVICES in known.event.container.cut, bool(known.devices or known.pod_devices)
    return is_cut or (has_any and has_too_many_devices(known.devices, known.pod_devices))


def _post_create(node: Node, before: State, event: nri.PostCreateContainer) -> Decision:
    state, record, steps = _found(node, before, event.pod, event.container, Phase.CREATED)
    state = state.with_container(replace(record, phase=Phase.CREATED))
    return Decision(state, writes=pool_writes(node, before, state), steps=(*steps, "created"))


def _start(node: Node, before: State, event: nri.StartContainer) -> Decision:
    """Write the cgroup at the last moment before the process runs: the pool may have changed since creation."""
    state, record, steps = _found(node, before, event.pod, event.container, Phase.CREATED)
    path = event.container.cgroups_path or record.cgroup.path
    record = replace(record, phase=Phase.RUNNING, cgroup=replace(record.cgroup, path=path))
    # The kubelet has placed all containers of the pod, so its ended init containers no longer need their memory.
    state = init_memory_released(state.with_container(record), record)
    writes = (*pool_writes(node, before, state), *own_write(node, state, record))
    return Decision(state, writes=writes, steps=(*steps, "started"))


def _post_start(node: Node, before: State, event: nri.PostStartContainer) -> Decision:
    """Check a container that runs. Where its start was lost or ignored, do the work of that event now."""
    state, record, steps = _found(node, before, event.pod, event.container, Phase.RUNNING)
    unseen = record.phase in (Phase.CREATING, Phase.CREATED)
    if unseen:
        # Its StartContainer was lost, or the runtime ignored our refusal of it.
        record = replace(record, phase=Phase.RUNNING)
        state, steps = init_memory_released(state.with_container(record), record), (*steps, "start-unseen")
    if record.phase is Phase.STOPPED:  # it ended so soon that its end was reported first
        return Decision(state, steps=steps)
    if not pins(node, state):
        return Decision(state, steps=steps)
    check = EffectiveCheck(record.cgroup, state.desired_cpus(node, record), record.id)
    # A start that was seen has been written already; only steps of repair need writes here.
    writes = (*pool_writes(node, before, state), *own_write(node, state, record)) if steps else ()
    return Decision(state, writes=writes, checks=(check,), steps=steps)


def _update(node: Node, before: State, event: nri.UpdateContainer) -> Decision:
    """Resize in place, and keep the runtime from writing an old cpuset; leave the rest of the request unchanged.

    The runtime applies the request's cpuset or, where that is empty, the stored one. An update of ours replaces the whole
    request and loses fields that NRI does not carry, so it is sent only when the applied value would not be ours.
    """
    state, record, steps = _found(node, before, event.pod, event.container, Phase.RUNNING)
    if not pins(node, state):
        return Decision(state, nri.UpdateContainerResponse(), steps=steps)
    held = state.allocation_of(record)
    if held is not None and held.claim:
        return Decision(state, nri.UpdateContainerResponse(), steps=(*steps, "claimed"))
    # 1. The size: what a resize asks for must be available before the runtime may go on.
    try:
        state = resized(node, state, record, event.container, event.resources)
    except AdmissionError as error:
        refusal = advised_resize(node, state, record, event, error.refusal)
        return Decision(before, refusal=refusal, steps=("refused", "resize"))
    allocation = state.allocation_of(record)
    resize = allocation.resize if allocation else None
    # 2. The cpuset that the runtime should apply. During a resize it writes the cpuset itself, so it gets the CPUs
    #    after it; the cgroup has them once the runtime confirms.
    asked = resize.after.cpus & node.topology.online if resize else CPUSet()
    desired = asked or state.desired_cpus(node, record)
    record = replace(record, limit_milli=limit_milli(event.resources) or record.limit_milli)
    # 3. Our own update, only where the runtime would apply something else. A request with a quota would restore it.
    lifts = replies_quota(node, state, record) and (event.resources.cpu_quota_us or 0) > 0
    own = _reasserted(desired, allocation, event, lifts=lifts)
    stored = desired if own and resize is None else stored_cpus(event.container.resources)
    # A container that has what it asks for is no longer marked.
    is_right = bool(allocation and allocation.cpus) or limit_milli(event.resources) % 1000 != 0
    record = replace(record, stored_cpus=stored, unplaced="" if is_right else record.unplaced)
    # 4. The other containers: a resize changes the shared pool.
    state, updates = pending_updates(node, state.with_container(record), except_id=record.id)
    own_updates = (ContainerUpdate(record.id, own),) if own else ()
    running = record.phase is Phase.RUNNING
    return Decision(
        state,
        nri.UpdateContainerResponse((*own_updates, *updates)),
        writes=(*pool_writes(node, before, state), *(own_write(node, state, record) if running else ())),
        steps=(*steps, *(("resize",) if resize else ()), "reasserted" if own else "agrees"),
    )


def _post_update(node: Node, before: State, event: nri.PostUpdateContainer) -> Decision:
    """The runtime confirms a resize: the allocation has the new size, and returned CPUs join the shared pool."""
    record = before.containers.get(event.container.id)
    held = before.allocation_of(record) if record else None
    if record is None or held is None or held.resize is None:
        return Decision(before, steps=("nothing-asked",))
    after = before.with_allocation(record.key, held.settled(is_done=True))
    # The runtime has stored the cpuset that it wrote. From now on it re-applies that one at every update.
    after = after.with_container(replace(record, stored_cpus=held.resize.after.cpus))
    return Decision(after, writes=pool_writes(node, before, after), steps=("resized",))


def _update_pod(node: Node, state: State, event: nri.UpdatePodSandbox) -> Decision:
    """Refuse a new total of the pod that its containers cannot get. It comes before the resizes of the containers."""
    pod = state.pods.get(_uid(state, event.pod))
    if pod is None or event.resources is None:
        return Decision(state, steps=("unknown",))
    total = cpu_milli(event.resources, pod.qos)
    try:
        refuse_pod_total(node, state, pod, total, event.resources.memory_limit_bytes or 0)
    except AdmissionError as error:
        refusal = advised_pod_growth(node, state, pod, error.refusal)
        return Decision(state, refusal=refusal, steps=("refused", "resize"))
    memory = event.resources.memory_limit_bytes or pod.memory_bytes
    limit = limit_milli(event.resources) or pod.limit_milli
    after = state.with_pod(
        replace(pod, cpu_milli=total or pod.cpu_milli, memory_bytes=memory, limit_milli=limit)
    )
    return Decision(state if after == state else after, steps=("pod-total",))


def _stop(node: Node, state: State, event: nri.StopContainer) -> Decision:
    """Keep the allocation of a stopped container: a crash loop does not lose its CPUs."""
    record = state.containers.get(event.container.id)
    steps: tuple[str, ...] = ("unknown",)
    if record is not None:
        state, steps = state.with_container(replace(record, phase=Phase.STOPPED)), ("stopped",)
    state, updates = pending_updates(node, state, except_id=event.container.id)
    return Decision(state, nri.StopContainerResponse(updates), steps=steps)


def _remove(node: Node, state: State, event: nri.RemoveContainer) -> Decision:
    """Drop the record of an ended container. Its allocation stays, even when it was the pod's last record.

    A pod between two instances of its only container has no container in the runtime. Where the end of the pod may not be
    reported, its cgroup shows it (`nri_plugin.agent.serving.handler`). Only where cgroups cannot be seen does the last record
    end the pod.

    Source: kubelet v1.36.2 pkg/kubelet/cm/cpumanager/cpu_manager.go and memorymanager/memory_manager.go
        (removeStaleState): allocations end with the pod.
    """
    record = state.containers.get(event.container.id)
    if record is None:
        return Decision(state, steps=("unknown",))
    after = state.without_container(record.id)
    pod = state.pods.get(record.pod_uid)
    is_told = pod is not None and pod.run_seen
    if after.containers_of(record.pod_uid) or is_told or node.options.effect is Effect.CGROUP:
        return Decision(after, steps=("removed",))
    after = after.without_pod(record.pod_uid)
    return Decision(after, writes=pool_writes(node, state, after), steps=("removed", "last-of-pod"))


def _unsaved_start(node: Node, state: State, unsaved: UnsavedStart) -> Decision:
    """Handle the event as for a known container that runs in the shared pool."""
    event = unsaved.event
    pod = _lived_in(node, state, event.pod)
    record = container_record(pod, event.container, Phase.CREATING, unplaced=bounds.reason(unsaved.why))
    return decide(node, state.with_pod(pod).with_container(record), event)


def _found(
    node: Node, state: State, pod: Pod, container: Container, phase: Phase
) -> tuple[State, ContainerRecord, tuple[str, ...]]:
    """The container's record. An unknown container is adopted: runtimes lose events while a plugin connects."""
    record = state.containers.get(container.id)
    if record is not None:
        return state, record, ()
    known = _lived_in(node, state, pod)
    record = container_record(known, container, phase)
    state, steps = adopt(node, state.with_pod(known).with_container(record), record, container)
    return state, state.containers[record.id], ("discovered", *steps)


def _inhabited(node: Node, state: State, pod: Pod) -> PodRecord:
    """The record of the pod in which a container is created.

    Where the sandbox is not the known one, the event of its start was lost, and the end of the old sandbox must no longer
    end the pod. Annotations are taken from the event: the namespaces in which they are read may have changed.
    """
    known = state.pods.get(pod_uid(pod))
    if known is not None and known.sandbox_id == pod.id:
        heard = heard_annotations(pod, node.options)
        return known if heard == known.annotations else replace(known, annotations=heard)
    return pod_record(pod, node.options, known, run_seen=False)


def _lived_in(node: Node, state: State, pod: Pod) -> PodRecord:
    """The record of a pod in which an unknown container exists."""
    known = _inhabited(node, state, pod)
    return replace(known, regime=known.regime or Regime.FOUND, refusal=None)


def _uid(state: State, pod: Pod) -> str:
    """The pod's uid, also when the event brings only the sandbox id."""
    if pod.uid:
        return pod.uid
    known = state.pod_of_sandbox(pod.id)
    return known.uid if known else pod.id


def _ended_before_forgotten(state: State, pod: Pod) -> State:
    """The state without containers that ended in an earlier sandbox of the pod.

    The runtime keeps them for a while. Those of the new sandbox are created for the first time.
    """
    known = state.pods.get(pod_uid(pod))
    if known is None or known.sandbox_id == pod.id:
        return state
    for record in state.containers_of(known.uid):
        if record.phase is Phase.STOPPED:
            state = state.without_container(record.id)
    return state


def _failed_instance_forgotten(state: State, uid: str, name: str) -> State:
    """The state without an instance that was never created: some runtimes do not report a failed creation.

    An instance that ran may still run, because a runtime that crashed can lose a container and give its name again. Its
    record stays, and it follows the shared pool until its end is reported.
    """
    for record in state.containers_of(uid):
        if record.name == name and record.phase is Phase.CREATING:
            state = state.without_container(record.id)
    return state


def _reasserted(
    desired: CPUSet, allocation: Allocation | None, event: nri.UpdateContainer, *, lifts: bool
) -> Resources | None:
    """Our cpus, our mems where the request has others, no quota where it has one; None when the request agrees."""
    coming = stored_cpus(event.resources) or stored_cpus(event.container.resources)
    mems = allocation.mems if allocation else None
    foreign_mems = bool(mems and event.resources.mems and stored_mems(event.resources) != mems)
    if coming == desired and not foreign_mems and not lifts:
        return None
    quota = NO_QUOTA if lifts else None
    return Resources(cpus=str(desired), mems=str(mems) if foreign_mems else "", cpu_quota_us=quota)


_HANDLERS: dict[type, Handler] = {
    nri.Synchronize: synchronize,
    nri.RunPodSandbox: _run_pod,
    nri.StopPodSandbox: _stop_pod,
    nri.RemovePodSandbox: _remove_pod,
    nri.CreateContainer: _create,
    InformedCreate: _informed_create,
    UnsavedStart: _unsaved_start,
    nri.PostCreateContainer: _post_create,
    nri.StartContainer: _start,
    nri.PostStartContainer: _post_start,
    nri.UpdateContainer: _update,
    nri.PostUpdateContainer: _post_update,
    nri.UpdatePodSandbox: _update_pod,
    nri.StopContainer: _stop,
    nri.RemoveContainer: _remove,
    CpusetsObserved: repair_drift,
    MachineChanged: follow_machine,
    PodFactsTold: facts_told,
    PodHasEnded: has_ended,
    PodRejected: rejected,
}
"""The function for each event; all other events change nothing."""
DECIDED: Final = frozenset(_HANDLERS)
"""The events that can change the state or cause writes. They are subscribed to, recorded and counted."""
