"""One request of the runtime, from its bytes to the reply and the work after it. Start to read here.

     1 receive    `RuntimeConnection.receive`: read the socket; the session turns bytes into events     I/O
     2 inform     facts that the runtime does not send: devices, the pod's object                      I/O, bounded
     3 decide     `core.engine.decide`: state and event in, a decision out                              pure
     4 check      the independent validator judges the whole decision                                  pure
     5 save       write the checkpoint, before anything else depends on the decision                   I/O
     6 write      the cpusets that must be right before the answer                                     I/O
     7 keep       the decided state becomes the state of the agent; repair of cgroups that a failed
                  write left                                                                           I/O
     8 reply      `RuntimeConnection.reply`: the session turns the response into bytes; send them       I/O
     9 account    log line, recording, counters and other observers                                    I/O, bounded
    10 read back  compare the effective cpusets with the written ones                                  I/O
    11 the rest   cpusets of containers that a written slice bounds, in portions between requests       I/O

The runtime waits until step 8. Steps 9 to 11 follow the answer. `Handler.answer` does steps 2 to 7 in this order.
`link.py` opens the connection, waits for bytes and calls `receive`, `Handler.answer`, `reply`, `send`, `account` and
`read_back`. A timer of the loop calls `write_waiting`. Everything runs in one thread. Watches of the agent are timers of
the same loop, so they work between two requests.

Invariant: the state in memory changes only when every step up to 6 succeeded. A refused container leaves allocations and
cgroups as they were; memory and checkpoint keep that its pod was refused.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from msgspec import structs

from nri_plugin.agent.cpusets import PORTION, CheckedWrites, CpusetWriter, WaitingWrites, WriteError, check
from nri_plugin.agent.serving.checkpoint_saver import DEFAULT_SAVE_S, IN_TROUBLE_S, CheckpointSaver
from nri_plugin.agent.serving.outcome import (
    REFUSABLE,
    LineLevels,
    Observer,
    RequestOutcome,
    RequestReply,
    decision_fields,
    name_of,
)
from nri_plugin.agent.serving.recorder import Recorder
from nri_plugin.core.decision import Decision, EffectiveCheck, InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved, OwnEvent, Target, drifts, may_be_read
from nri_plugin.core.pod_news import PodFactsTold, PodNews
from nri_plugin.core.requests import told_apart
from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef, ContainerRecord, PodRecord, pod_of
from nri_plugin.model.state import State
from nri_plugin.process.logs import LogRateLimit, new_op, say, say_trace
from nri_plugin.wire.nri.events import (
    CreateContainer,
    EmptyResponse,
    NRIEvent,
    PostCreateContainer,
    PostStartContainer,
    RemoveContainer,
    RemovePodSandbox,
    Request,
    StartContainer,
    Synchronize,
    empty_response,
)
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod

Decide = Callable[[Node, State, NRIEvent | InformedCreate | UnsavedStart | OwnEvent | PodNews], Decision]
Inform = Callable[[Node, Request], NRIEvent | InformedCreate]

MOST_UNACCOUNTED = 96
"""Parts of accounts that may wait while the runtime goes on asking: those of 32 requests."""

LONGEST_WAIT_S = 10.0
"""The longest time between two portions of waiting writes. The loop begins one whenever no request waits, and several in a
second while requests come in a burst."""

STARTS = (PostCreateContainer, StartContainer, PostStartContainer)
"""Events that may be the first of a container that was created while the agent was away."""


# Refusals that are repeated
#
# Refusals that are answered from memory while nothing has changed that could change them.
#
# With `--on-refusal retry` the kubelet creates a refused container again and again. Placement and advice are then looked for
# each time, while the runtime waits. Deciding is pure: the same node, the same state and the same request give the same
# refusal. Only a container that is created again has another id.
#
# Invariant: a refusal is remembered for one state and one node, by identity. The agent replaces the state with every event
# that changes something, and the node with every reload of the configuration and every change of the machine. So all is
# forgotten then, and after a restart of the agent.

MOST_REFUSALS = 256
"""Containers whose refusal is remembered. On a full node, more than these seldom wait at once."""

Creation: TypeAlias = CreateContainer | InformedCreate


class RefusalMemory:
    """The last refusals; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._state: State | None = None
        self._refused: dict[tuple[str, str], tuple[InformedCreate, Decision]] = {}

    def recall(self, node: Node, state: State, creation: Creation) -> Decision | None:
        """The decision on the same request; None where there is none, or anything has changed since."""
        if node is not self._node or state is not self._state:
            return None
        request = _without_ids(creation)
        known, decision = self._refused.get(_key(request), (None, None))
        return decision if known == request else None

    def keep(self, node: Node, state: State, creation: Creation, decision: Decision) -> None:
        """Remember the decision, if it is a refusal.

        Providers of hints from other packages may answer otherwise the next time, so a node that has any is always asked.
        """
        if decision.refusal is None or node.hint_providers:
            return
        if node is not self._node or state is not self._state:
            self._node, self._state, self._refused = node, state, {}
        request = _without_ids(creation)
        self._refused.pop(_key(request), None)
        self._refused[_key(request)] = request, decision
        if len(self._refused) > MOST_REFUSALS:
            del self._refused[next(iter(self._refused))]


def _key(request: InformedCreate) -> tuple[str, str]:
    return request.event.pod.id, request.event.container.name


def _without_ids(creation: Creation) -> InformedCreate:
    """The request without the fields that are new with each try; no decision reads them, or the labels of a container."""
    known = creation if isinstance(creation, InformedCreate) else InformedCreate(creation)
    container = structs.replace(
        known.event.container,
        id="",
        cgroups_path="",
        pid=0,
        state=ContainerState.UNKNOWN,
        labels=_NONE,
        annotations=_NONE,
    )
    return structs.replace(known, event=replace(known.event, container=container))


_NONE: MappingProxyType[str, str] = MappingProxyType({})


@dataclass(slots=True)
class RequestFlow:
    """The facts of one request; each step fills in its own.

    Attributes:
        request: the event with its deadline.
        op: the 8-hex name of the request in log lines.
        began: its arrival, in seconds of the monotonic clock.
        before: the state at its arrival.
        base: the state that was decided on: `before` without the pods that were found to have ended.
        known: the event with the facts of step 2.
        decision: the result of step 3; the bare state `before` until then.
        decide_s: seconds that the decision took.
        from_memory: the decision is the refusal of an earlier request that was the same.
        failed: an error other than a refusal by policy occurred: a bug, a file, a cgroup.
        changed: the request changed the state of the agent.
        written: what became of the cpusets of step 6, as counts.
        total_s: seconds until the answer was ready.
    """

    request: Request
    op: str
    began: float
    before: State
    base: State
    known: NRIEvent | InformedCreate | UnsavedStart
    decision: Decision
    decide_s: float = 0.0
    from_memory: bool = False
    failed: bool = False
    changed: bool = False
    written: Mapping[WriteOutcome, int] = field(default_factory=dict)
    total_s: float = 0.0

    @property
    def event(self) -> NRIEvent:
        """The event as the runtime sent it."""
        return self.request.event


class Handler:
    """Handles requests and owns the state: all steps but 1 and 8.

    Args:
        node: the node that decisions are made for.
        state: pods, containers and allocations.
        decide: the engine.
        cpusets: writes and reads the cpusets of cgroups.
        checkpoint: saves the state.
        log: takes one line for each decision.
        clock: seconds, monotonic; deadlines are on the same clock.
        describe: called with every new node; it stores the facts of the node beside the saved state.
        inform: adds facts to an event; by default none.
        history: records events and decisions.

    Attributes:
        state: replaced as a whole; other threads may read it.
        machine_moved: checks whether the machine changed, and follows the change; the watch of the machine sets it.
        observers: called with every outcome, after its answer; most are made with the handler, so after it.
        marks: fields in the log line of every decision.
        writer: the class of `cpusets`, for another cgroup tree.
    """

    marks: ClassVar[Mapping[str, object]] = {}
    writer: ClassVar[type[CpusetWriter]] = CpusetWriter

    def __init__(
        self,
        node: Node,
        state: State,
        *,
        decide: Decide,
        cpusets: CpusetWriter,
        checkpoint: CheckpointSaver,
        log: logging.Logger,
        clock: Callable[[], float],
        describe: Callable[[Node], None] | None = None,
        inform: Inform | None = None,
        history: Recorder | None = None,
    ) -> None:
        self.node = node
        self.state = state
        self._decide = decide
        self.cpusets = cpusets
        self.checkpoint = checkpoint
        self._waiting = WaitingWrites()
        self._waiting_since = 0.0
        self._log = log
        self._clock = clock
        self._describe = describe
        self._inform = inform or (lambda _node, request: request.event)
        self._history = history
        self._levels = LineLevels()
        self._refusals = RefusalMemory()
        self._nested = LogRateLimit()
        self._unaccounted: deque[Callable[[], None]] = deque()
        self.machine_moved: Callable[[], bool] = lambda: False
        self.observers: tuple[Observer, ...] = ()

    # ------------------------------------------------------------ the steps in their order

    def handle(self, request: Request) -> RequestReply:
        """Answer a request whose reply goes nowhere, and account for it; never raises."""
        reply = self.answer(request)
        self.account()
        return reply

    def answer(self, request: Request) -> RequestReply:
        """Do steps 2 to 7 of one request; never raises."""
        request = self._told_apart(request)
        event, before = request.event, self.state
        flow = RequestFlow(request, new_op(), self._clock(), before, before, event, Decision(before))
        self.cpusets.outcomes.clear()
        try:
            # Step 2: waits for the exporter, but only for a share of the time that is left for this request.
            flow.known, asked = self._inform(self.node, request), self._clock()
            # Step 3: the engine gets the state of this moment. Nothing outside of `flow` changes.
            self._decide_on(flow)
            flow.decide_s = self._clock() - asked
            # Steps 4 to 7: the first that fails ends the request, and undoes what the steps before it did.
            reply = self._carry_out(flow)
        except NriPinError as error:
            reply = self._failed(flow, error, str(error))
        except Exception as error:  # noqa: BLE001 - an error in one decision must not end the agent
            say_trace(self._log, "internal error", op=flow.op, event=name_of(event))
            reply = self._failed(flow, error, f"internal error: {type(error).__name__}: {error}")
        flow.changed, flow.written = self.state is not before, dict(self.cpusets.outcomes)
        # Also for refusals and failures. The list keeps the order of events: a recording of them is replayed.
        self._unaccounted += (
            partial(self._log_decision, flow, reply),
            partial(self._record, flow, reply),
            partial(self._observe, flow, reply),
        )
        # A container may still run on CPUs that this answer gives away, so the repair comes before the answer.
        self._write_stale()
        if WriteOutcome.LATER in flow.written:
            self._unaccounted.append(self._warn_of_unfinished)
        flow.total_s = self._clock() - flow.began
        return reply

    def _told_apart(self, request: Request) -> Request:
        """Give a pod whose uid another living pod has a uid of its own; the log says so once."""
        event = told_apart(self.state, request.event)
        if event is request.event:
            return request
        given = {pod.uid for pod in _pods_of(request.event)}
        for pod in _pods_of(event):
            if pod.uid not in given and pod.uid not in self.state.pods:
                text = "another living pod has the same uid; this one is placed as a pod of its own"
                say(self._log, logging.WARNING, text, pod=f"{pod.namespace}/{pod.name}", uid=pod.uid)
        return replace(request, event=event)

    def _decide_on(self, flow: RequestFlow) -> None:
        """Step 3: decide. A container is not refused because of CPUs that ended pods still hold."""
        if not isinstance(flow.known, CreateContainer | InformedCreate):
            flow.decision = self._decide(self.node, self.state, flow.known)
            return
        self._decide_on_creation(flow, flow.known)
        # CPUs may have gone out of reach, or returned, since the watch looked. Only an allocation or a refusal depends on it.
        is_due = flow.decision.refusal is not None or makes_allocations(self.state, flow.decision.state)
        if is_due and self.machine_moved():
            self._decide_on_creation(flow, flow.known)
        # Some runtimes never report the end of a pod. Looking for ended pods reads the cgroup tree, so it is done only
        # before a refusal. Each release is a request with a decision, a save and a log line.
        if flow.decision.refusal is not None and self.release_ended():
            flow.base = self.state
            self._decide_on_creation(flow, flow.known)

    def _decide_on_creation(self, flow: RequestFlow, creation: CreateContainer | InformedCreate) -> None:
        """Decide, or repeat the refusal of the same request where nothing has changed since."""
        remembered = self._refusals.recall(self.node, self.state, creation)
        flow.from_memory = remembered is not None
        flow.decision = remembered or self._decide(self.node, self.state, creation)
        if remembered is None:
            # A refusal is kept with the pod, so the next try comes to the state of this decision.
            self._refusals.keep(self.node, flow.decision.state, creation, flow.decision)

    def _carry_out(self, flow: RequestFlow) -> RequestReply:
        """Steps 4 to 7.

        Raises:
            InvariantError: the decision would break an invariant that held before.
            CheckpointError: it makes an allocation, and that cannot be saved.
            WriteError: a cpuset could not be written.
        """
        if flow.decision.refusal is not None:
            if flow.decision.state is not self.state:
                self._save(flow)
                self.state = flow.decision.state
            return RequestReply(refusal=str(flow.decision.refusal))
        # Step 4: before anything outside of memory depends on the decision.
        checked = check(self.node, self.state, flow.event, flow.decision)
        # Step 5: after a crash, the checkpoint must hold every allocation that a cgroup or the runtime knows.
        self._save(flow)
        if self._is_unsaved_start(flow):
            # Only memory would hold the allocation of this container. A restart would give it the CPUs that the runtime
            # has stored, so a second decision keeps it on those.
            flow.known = UnsavedStart(flow.event, self.checkpoint.trouble)  # type: ignore[arg-type]
            flow.decision = self._decide(self.node, self.state, flow.known)
            checked = check(self.node, self.state, flow.event, flow.decision)
            self._save(flow)
        # Step 6: shared containers leave the CPUs before the answer gives them to the new container.
        self._write(flow, checked)
        # Step 7: no later step can fail the request.
        self._leave_waiting(is_unknown=isinstance(flow.event, Synchronize), after=flow.decision.state)
        self.state = flow.decision.state
        self.checkpoint.tell_unsaved(self.state)
        response = flow.decision.response
        if isinstance(response, EmptyResponse):
            response = empty_response(flow.event)
        return RequestReply(response, checks=flow.decision.checks)

    def _save(self, flow: RequestFlow) -> None:
        """Step 5: save the decided state.

        Raises:
            CheckpointError: it could not be saved, and the event would make an allocation that no restart could find.
        """
        state = flow.decision.state
        is_new = makes_allocations(self.state, state)
        time_s = self._time_to_save(flow.request)
        # A release is served even when it is not saved, so it does not wait for a disk that failed the last time.
        if self.checkpoint.trouble and not is_new:
            time_s = min(time_s, IN_TROUBLE_S)
        error = self.checkpoint.save(state, time_s)
        if error is not None and is_new and not self._serves_unsaved(flow.event, state):
            raise error

    def _serves_unsaved(self, event: NRIEvent, after: State) -> bool:
        """Return whether allocations that cannot be saved are kept in memory.

        Those of containers that are not created are not: no restart would find them, and nothing waits for them. Those
        of a resize are not. After a restart, the runtime's list has the CPUs of a container's creation. Some
        runtimes forget the CPUs of an update when they restart themselves.
        """
        if isinstance(event, CreateContainer):
            return self.checkpoint.serves or event.pod.namespace in self.node.options.never_refuse
        if isinstance(event, PodFactsTold):
            return False
        before = self.state.allocations
        is_resize = any(before.get(key, held) != held for key, held in after.allocations.items())
        return not (is_resize and isinstance(event, REFUSABLE))

    def _time_to_save(self, request: Request) -> float:
        """Return half of the seconds that are left for the request; the other half is needed to refuse in time."""
        if request.deadline is None:
            return DEFAULT_SAVE_S
        return max(0.0, (request.deadline - self._clock()) / 2)

    def _is_unsaved_start(self, flow: RequestFlow) -> bool:
        """Return whether the first event of a container finds CPUs that neither checkpoint nor runtime has."""
        event, after = flow.event, flow.decision.state
        if not self.checkpoint.trouble or not isinstance(event, STARTS):
            return False
        record = after.containers.get(event.container.id)
        held = after.allocation_of(record) if record is not None else None
        is_first = event.container.id not in self.state.containers
        return is_first and record is not None and held is not None and held.cpus != record.stored_cpus

    def _write(self, flow: RequestFlow, checked: CheckedWrites) -> None:
        """Step 6: write all or nothing where the event can be refused, otherwise as much as possible.

        Raises:
            WriteError: a write failed; cgroups and checkpoint have been restored.
        """
        event, op = flow.event, flow.op
        if not isinstance(event, (*REFUSABLE, StartContainer)):
            for error in self.cpusets.attempt(checked):
                say(self._log, logging.ERROR, "cpuset not written", op=op, event=name_of(event), err=error)
            return
        try:
            for slip in self.cpusets.apply(checked):
                say(self._log, logging.ERROR, "slice not written, its containers are", op=op, err=slip)
        except WriteError as error:
            # In reverse order of steps 5 and 6: the checkpoint must not lack an allocation that a cgroup still has.
            for failure in self.cpusets.undo(self.node, self.state, error.done):
                say(self._log, logging.ERROR, "cpuset not restored", op=op, err=failure)
            self.checkpoint.save(self.state, self._time_to_save(flow.request))
            raise

    def _failed(self, flow: RequestFlow, error: Exception, why: str) -> RequestReply:
        """Return the reply after a failed step: a refusal where the runtime takes one, else an empty response."""
        flow.failed = True
        event = flow.event
        # A container whose own cpuset could not be written would start on CPUs that belong to others.
        if isinstance(event, REFUSABLE) or (
            isinstance(event, StartContainer) and isinstance(error, WriteError)
        ):
            return RequestReply(refusal=why)
        say(self._log, logging.ERROR, "event not acted on", op=flow.op, event=name_of(event), err=why)
        return RequestReply(empty_response(event), failed=True)

    def account(self, is_asked: Callable[[], bool] = lambda: False) -> None:
        """Step 9, for all requests that have been answered since the last call; never raises.

        It comes after the answers, so an error in it must not reach the connection to the runtime. While the runtime asks for
        something (`is_asked`), the rest is left for a later call, up to `MOST_UNACCOUNTED` parts.
        """
        waiting = self._unaccounted
        while waiting:
            try:
                waiting.popleft()()
            except Exception:  # noqa: BLE001 - one that fails leaves the others
                with suppress(Exception):
                    say_trace(self._log, "internal error after an answer, part of its account is lost")
            if len(waiting) <= MOST_UNACCOUNTED and is_asked():
                return

    def _record(self, flow: RequestFlow, reply: RequestReply) -> None:
        """Note the event; a timer of the loop writes it."""
        if self._history is not None:
            self._history.decided(
                self.node,
                flow.base,
                flow.known,
                flow.decision,
                refusal=reply.refusal,
                failed=flow.failed,
                op=flow.op,
                took_us=round(flow.total_s * 1e6),
            )

    def _observe(self, flow: RequestFlow, reply: RequestReply) -> None:
        outcome = RequestOutcome(
            node=self.node,
            event=flow.event,
            before=flow.before,
            decision=flow.decision,
            refusal=reply.refusal,
            failed=flow.failed,
            decide_s=flow.decide_s,
            total_s=flow.total_s,
            from_memory=flow.from_memory,
        )
        for observer in self.observers:
            observer(outcome)

    def _log_decision(self, flow: RequestFlow, reply: RequestReply) -> None:
        event = flow.event
        level = self._levels.level_of(event, reply.refusal, self._clock(), changed=flow.changed)
        if not self._log.isEnabledFor(level):
            return  # making the fields of a line that is not written costs more than many a decision
        say(
            self._log,
            level,
            "refused" if reply.refusal else "decided",
            op=flow.op,
            event=name_of(event),
            **self.marks,
            **decision_fields(event, reply.response, flow.written, flow.decision.steps),
            took_us=round(flow.total_s * 1e6),
            err=reply.refusal,
        )

    def read_back(self, checks: Iterable[EffectiveCheck]) -> None:
        """Step 10: compare effective cpusets with the desired ones, after the answer was sent.

        A difference is only logged here; `DriftWatch` repairs it.
        """
        for one in checks:
            try:
                observed = self.cpusets.read_effective(one.target)
            except HostError as error:
                say(
                    self._log,
                    logging.WARNING,
                    "effective cpuset unreadable",
                    container=one.container_id,
                    err=error,
                )
                continue
            if observed is not None and observed != one.cpus:
                say(
                    self._log,
                    logging.WARNING,
                    "effective cpuset differs from the desired one",
                    container=one.container_id,
                    desired=one.cpus,
                    observed=observed,
                )

    # ------------------------------------------------------------ what waits until the answer is out

    def _leave_waiting(self, after: State, *, is_unknown: bool) -> None:
        waited = self.is_waiting
        self._waiting.follow(self.node, self.state, after, is_unknown=is_unknown)
        if self.is_waiting and not waited:
            self._waiting_since = self._clock()

    @property
    def is_waiting(self) -> bool:
        """Return whether cgroups wait to be written."""
        return bool(self._waiting)

    @property
    def has_rest(self) -> bool:
        """Return whether `write_waiting` has work, also inside of containers."""
        return self.is_waiting or bool(self.cpusets.unfinished)

    def _warn_of_unfinished(self) -> None:
        for target in self.cpusets.unfinished:
            if self._nested.is_due(target.path, self._clock()):
                text = "a container has many cgroups inside; they are written after the answers"
                say(self._log, logging.WARNING, text, cgroup=target.path)

    def write_waiting(self, most: int = PORTION) -> bool:
        """Write the next of the cgroups that may wait; return whether more are left."""
        if not self.is_waiting:
            return self._write_unfinished()
        self._waiting_since = self._clock()
        try:
            for error in self.cpusets.attempt(self._waiting.take(self.node, self.state, most)):
                say(self._log, logging.ERROR, "cpuset not written", event="after the answer", err=error)
        except NriPinError as error:
            say(self._log, logging.ERROR, "cpusets not written after the answer", err=error)
        return self.has_rest

    def _write_unfinished(self) -> bool:
        if self.cpusets.unfinished:
            try:
                self.cpusets.go_on(self.node, self.state)
            except NriPinError as error:
                say(self._log, logging.ERROR, "cpuset not written", event="after the answer", err=error)
        return self.has_rest

    @property
    def is_settled(self) -> bool:
        """Return whether all cgroups are expected to hold their desired values.

        Each portion brings the cgroups that wait nearer to their turn. Where none is written for too long, the wait is not
        believed, so that drift is found in any case.
        """
        return not self.is_waiting or self._clock() - self._waiting_since > LONGEST_WAIT_S

    # ------------------------------------------------------------ calls of the watches and of a reload

    def change_node(self, node: Node, cpusets: CpusetWriter | None = None) -> None:
        """Decide for `node`, and write to `cpusets`, from the next event on; allocations stay."""
        self.account()  # a recording has the events in their order: these were decided for the former node
        self.node = node
        self.cpusets = cpusets or self.cpusets
        if self._history is not None:
            self._history.changed(node, self.state)
        if self._describe is not None:
            self._describe(node)
            self.checkpoint.outdate()

    def release_ended(self) -> bool:
        """Release allocations of pods whose end was not reported; return whether there were any."""
        ended = ended_pods(self.state, self.cpusets.is_removed)
        for pod in ended:
            self.drop_pod(pod)
        return bool(ended)

    def drop_pod(self, pod: PodRecord) -> None:
        """Do what the event of its removal would have done."""
        say(
            self._log,
            logging.WARNING
            if pod.run_seen
            else logging.INFO,  # some runtimes never report the end of older pods
            "a pod has ended and the runtime did not report it, its cgroup is gone",
            pod=f"{pod.namespace}/{pod.name}",
        )
        self.handle(Request(0, None, unreported_removal(pod)))

    def drop_container(self, record: ContainerRecord) -> None:
        """Do what the event of its removal would have done; its allocation stays."""
        pod = unreported_removal(self.state.pods[record.pod_uid]).pod
        text = "a container was removed and the runtime did not report it, its cgroup is gone"
        say(self._log, logging.WARNING, text, pod=f"{pod.namespace}/{pod.name}", container=record.id)
        event = RemoveContainer(pod, Container(record.id, pod_id=pod.id, name=record.name))
        self.handle(Request(0, None, event))

    def take(self, event: PodNews) -> None:
        """Handle news of a pod like a request that has no deadline and whose answer goes nowhere."""
        self.handle(Request(0, None, event))  # type: ignore[arg-type] # an event of our own

    def put_right(self, event: OwnEvent) -> tuple[Decision, list[HostError]]:
        """Decide and write for an event that the agent noticed itself; return the errors of failed writes.

        Such an event never changes an allocation, but the node may have changed.

        Raises:
            InvariantError: the validator refuses the decision; nothing was written.
        """
        try:
            return self._put_right(event)
        finally:
            self.account()

    def _put_right(self, event: OwnEvent) -> tuple[Decision, list[HostError]]:
        decision = self._decide(self.node, self.state, event)
        checked = check(self.node, self.state, event, decision)
        if self._history is not None:
            self._unaccounted.append(partial(self._history.decided, self.node, self.state, event, decision))
        self.keep_saved()
        return decision, list(self.cpusets.attempt(checked))

    def _write_stale(self) -> None:
        """Step 7: repair the cgroups of failed writes of this and earlier events.

        A failed write is not repeated. The cgroup is compared with the current state, and narrowing comes first. A repair
        that fails is tried again at the next event and by the sweep.
        """
        failed = self.cpusets.unwritten
        if not failed:
            return
        stale = {Target(write.target, write.container_id): write for write in failed}
        failed.clear()
        due = list(stale)
        if not self.is_settled:
            # A file below a slice has its turn later; until then the slice bounds it.
            due = may_be_read(self.node, self.state, stale)
            failed.extend(write for target, write in stale.items() if target not in due)
        observed = []
        for target in due:
            with suppress(HostError):
                observed.append(self.cpusets.observe(target))
        seen = [one for one in observed if one is not None]
        found = drifts(self.node, self.state, seen, is_settled=self.is_settled)
        if not found:
            return
        try:
            self._put_right(CpusetsObserved(tuple(one.observed for one in found)))
        except NriPinError as error:
            say(self._log, logging.ERROR, "cpuset not repaired", err=error)

    def keep_saved(self) -> None:
        """Save the state if the checkpoint holds another one."""
        self.checkpoint.save(self.state, IN_TROUBLE_S if self.checkpoint.trouble else DEFAULT_SAVE_S)

    def close(self) -> None:
        """Finish accounts, waiting writes, checkpoint and recording."""
        self.account()
        while self.is_waiting:
            self.write_waiting()
        self.checkpoint.close(self.state)
        if self._history is not None:
            self._history.close()


def _pods_of(event: NRIEvent) -> tuple[Pod, ...]:
    return event.pods if isinstance(event, Synchronize) else (event.pod,)  # type: ignore[union-attr]


def ended_pods(state: State, is_removed: Callable[[CgroupRef], bool]) -> list[PodRecord]:
    """Return pods whose cgroup is gone, if they hold an allocation or if no other event would remove them."""
    holders = dict.fromkeys(pod_of(key) for key in state.allocations)
    lived_in = {record.pod_uid for record in state.containers.values()}
    left = (uid for uid, pod in state.pods.items() if not pod.run_seen and uid not in lived_in)
    pods = (state.pods[uid] for uid in {**holders, **dict.fromkeys(left)} if uid in state.pods)
    return [pod for pod in pods if pod.cgroup_parent and is_removed(CgroupRef(pod.cgroup_parent))]


def unreported_removal(pod: PodRecord) -> RemovePodSandbox:
    """Return the event that the runtime should have sent."""
    return RemovePodSandbox(Pod(id=pod.sandbox_id, uid=pod.uid, name=pod.name, namespace=pod.namespace))


def makes_allocations(before: State, after: State) -> bool:
    """Return whether an allocation in `after` is new or changed; a release makes none."""
    changes = after.changed_allocations(before)
    return any(one.after is not None and one.after != one.before for one in changes)
