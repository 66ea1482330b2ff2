"""One request of the runtime, from its bytes to the reply and what comes after it. Start to read here.

     1 receive    `RuntimeConnection.receive`: read the socket; the session turns bytes into events     I/O
     2 inform     what the runtime does not say: devices, facts of the pod                             I/O, bounded
     3 decide     `core.engine.decide`: state and event in, a decision out                              pure
     4 check      the independent validator judges the whole decision                                  pure
     5 save       append to the checkpoint, before anything follows from the decision                   I/O
     6 write      the cpusets that must be right before the answer                                     I/O
     7 keep       only now is the new state the state of the agent
     8 account    one log line, the recording, counters; repair what an earlier write did not reach
     9 reply      `RuntimeConnection.reply`: the session turns the response into bytes; send them       I/O
    10 read back  compare what the kernel made of the writes, after the answer is out                   I/O

`runtime_link.py` opens the connection, waits for bytes and calls `receive`, `Handler.serve` and `send`. Everything runs
in one thread. Other watches of the agent wait for timers of the same loop and so work between two requests.

Invariant: the state in memory changes only when every step up to 6 succeeded. A refused container leaves memory,
checkpoint and cgroups as they were.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from nri_plugin.agent.checkpoint_saver import DEFAULT_SAVE_S, IN_TROUBLE_S, CheckpointSaver
from nri_plugin.agent.connection import RuntimeConnection
from nri_plugin.agent.cpusets import CheckedWrites, CpusetWriter, WriteError, check
from nri_plugin.agent.outcome import (
    REFUSABLE,
    LineLevels,
    Observer,
    RequestOutcome,
    RequestReply,
    decision_fields,
    empty_response,
    name_of,
)
from nri_plugin.agent.recorder import Recorder
from nri_plugin.core.decision import CpusetWrite, Decision, EffectiveCheck, InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved, OwnEvent, Target, drifts
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.state import CgroupRef, PodRecord, State, pod_of
from nri_plugin.process.logs import new_op, say, say_trace
from nri_plugin.wire.nri.events import (
    CreateContainer,
    EmptyResponse,
    NRIEvent,
    PostCreateContainer,
    PostStartContainer,
    RemovePodSandbox,
    Request,
    StartContainer,
    Synchronize,
)
from nri_plugin.wire.nri.messages import Pod

Decide = Callable[[Node, State, NRIEvent | InformedCreate | UnsavedStart | OwnEvent], Decision]
Inform = Callable[[Node, Request], NRIEvent | InformedCreate]

STARTS = (PostCreateContainer, StartContainer, PostStartContainer)
"""Events that may be the first ones of a container that was created while the agent was away."""


@dataclass(slots=True)
class RequestFlow:
    """What is known about one request, each fact worked out once.

    Attributes:
        request: the event with its deadline.
        op: names the request in log lines.
        began: when, on the monotonic clock.
        before: the state at its arrival.
        base: the state that was decided on: `before` without the pods that turned out to be over.
        known: the event with everything that was found out about it.
        decision: the bare state `before` until something is decided.
        decide_s: seconds the decision took.
        failed: something other than policy went wrong: a bug, a file, a cgroup.
    """

    request: Request
    op: str
    began: float
    before: State
    base: State
    known: NRIEvent | InformedCreate | UnsavedStart
    decision: Decision
    decide_s: float = 0.0
    failed: bool = False

    @property
    def event(self) -> NRIEvent:
        """The event as the runtime sent it."""
        return self.request.event


class Handler:
    """Handles requests and owns the state: steps 2 to 8 and 10.

    Args:
        node: the node decisions are made for.
        state: what is allocated.
        decide: the engine.
        cpusets: the only way to the cpusets of cgroups.
        checkpoint: where the state is saved.
        log: for one line per decision.
        clock: seconds, monotonic; deadlines are on the same clock.
        describe: called with every new node; it stores what readers of the checkpoint have to know of it.
        inform: adds to an event what else is known; by default nothing.
        observe: called with every outcome, once its answer is ready.
        history: records what happened.

    Attributes:
        checkpoint: what is saved of the state.
        cpusets: the only way to the cpusets of cgroups.
        marks: fields of the line of every decision.
        writer: makes `cpusets` for another tree.
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
        observe: Observer | None = None,
        history: Recorder | None = None,
    ) -> None:
        self.node = node
        self.state = state
        self._decide = decide
        self.cpusets = cpusets
        self.checkpoint = checkpoint
        self._log = log
        self._clock = clock
        self._describe = describe
        self._inform = inform or (lambda _node, request: request.event)
        self._observe = observe
        self._history = history
        self._levels = LineLevels()

    # ------------------------------------------------------------ the steps in their order

    def serve(self, connection: RuntimeConnection, request: Request) -> None:
        """Handle a request and queue its reply; the caller sends it, then calls `read_back`."""
        reply = self.handle(request)
        if isinstance(request.event, Synchronize) and not reply.failed:
            connection.synchronized_at = self._clock()
        # Step 9: from here on the runtime goes on with the container.
        connection.reply(request, reply)

    def handle(self, request: Request) -> RequestReply:
        """Steps 2 to 8 of one request; never raises."""
        event, before = request.event, self.state
        flow = RequestFlow(request, new_op(), self._clock(), before, before, event, Decision(before))
        self.cpusets.outcomes.clear()
        try:
            # Step 2: it waits for the exporter for a bounded share of the time that is left.
            flow.known, asked = self._inform(self.node, request), self._clock()
            # Step 3: pure; the engine sees the state as it is now.
            self._decide_on(flow)
            flow.decide_s = self._clock() - asked
            reply = self._carry_out(flow)
        except NriPinError as error:
            reply = self._failed(flow, error, str(error))
        except Exception as error:  # noqa: BLE001 - whatever is wrong in a decision, the node goes on
            say_trace(self._log, "internal error", op=flow.op, event=name_of(event))
            reply = self._failed(flow, error, f"internal error: {type(error).__name__}: {error}")
        self._account(flow, reply)
        return reply

    def _decide_on(self, flow: RequestFlow) -> None:
        """Step 3: decide; a container is not refused for CPUs of pods that are over."""
        flow.decision = self._decide(self.node, self.state, flow.known)
        if flow.decision.refusal is None or not isinstance(flow.known, CreateContainer | InformedCreate):
            return
        if self.release_ended():  # each end is a request of its own
            flow.base = self.state
            flow.decision = self._decide(self.node, self.state, flow.known)

    def _carry_out(self, flow: RequestFlow) -> RequestReply:
        """Steps 4 to 7.

        Raises:
            InvariantError: the decision would break something that was sound.
            CheckpointError: it allocates something, and that cannot be saved.
            WriteError: a cpuset could not be written.
        """
        if flow.decision.refusal is not None:
            return RequestReply(refusal=str(flow.decision.refusal))
        # Step 4: before anything outside of memory knows of the decision.
        checked = check(self.node, self.state, flow.event, flow.decision)
        # Step 5: after a crash the checkpoint must hold everything that a cgroup or the runtime has.
        self._save(flow)
        if self._is_unsaved_start(flow):
            # Only memory holds the allocation of this container, so a restart would take the CPUs that the runtime
            # has on record. The second decision lets it run on those.
            flow.known = UnsavedStart(flow.event, self.checkpoint.trouble)  # type: ignore[arg-type]
            flow.decision = self._decide(self.node, self.state, flow.known)
            checked = check(self.node, self.state, flow.event, flow.decision)
            self._save(flow)
        # Step 6: shared containers leave the CPUs before the answer gives them to the new container.
        self._write(flow, checked)
        # Step 7: nothing can fail any more.
        self.state = flow.decision.state
        self.checkpoint.tell_unsaved(self.state)
        response = flow.decision.response
        bare = isinstance(response, EmptyResponse)
        return RequestReply(empty_response(flow.event) if bare else response, checks=flow.decision.checks)

    def _save(self, flow: RequestFlow) -> None:
        """Step 5: save the decided state.

        Raises:
            CheckpointError: it could not be saved, and the event would make an allocation that no restart could find.
        """
        state = flow.decision.state
        is_new = makes_allocations(self.state, state)
        hurries = self.checkpoint.trouble and not is_new
        time_s = self._time_to_save(flow.request)
        error = self.checkpoint.save(state, min(time_s, IN_TROUBLE_S) if hurries else time_s)
        if error is not None and is_new and not self._serves_unsaved(flow.event, state):
            raise error

    def _serves_unsaved(self, event: NRIEvent, after: State) -> bool:
        """Return whether allocations that cannot be saved are kept in memory.

        A resize never is: after a restart the runtime's list tells with which CPUs a container was created, and some
        runtimes forget at their own restart those that an update gave it.
        """
        if isinstance(event, CreateContainer):
            return self.checkpoint.serves or event.pod.namespace in self.node.options.never_refuse
        before = self.state.allocations
        is_resize = any(before.get(key, held) != held for key, held in after.allocations.items())
        return not (is_resize and isinstance(event, REFUSABLE))

    def _time_to_save(self, request: Request) -> float:
        """Return half of the seconds that are left: the other half is needed to refuse in time."""
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
        """Step 6: write all or none where the event can be refused, else as much as can be.

        Raises:
            WriteError: it failed, and cgroups and checkpoint are again what they were.
        """
        event, op = flow.event, flow.op
        if not isinstance(event, (*REFUSABLE, StartContainer)):
            for error in self.cpusets.attempt(checked):
                say(self._log, logging.ERROR, "cpuset not written", op=op, event=name_of(event), err=error)
            return
        try:
            self.cpusets.apply(checked)
        except WriteError as error:
            self._take_back(flow, error.done)
            raise

    def _take_back(self, flow: RequestFlow, done: Sequence[CpusetWrite]) -> None:
        for error in self.cpusets.undo(self.node, self.state, done):
            say(self._log, logging.ERROR, "cpuset not put back", op=flow.op, err=error)
        self.checkpoint.save(self.state, self._time_to_save(flow.request))

    def _failed(self, flow: RequestFlow, error: Exception, why: str) -> RequestReply:
        """Return the reply where a step failed: a refusal if possible, else one that changes nothing."""
        flow.failed = True
        event = flow.event
        # A start whose own cpuset could not be put right would run on CPUs that belong to others.
        if isinstance(event, REFUSABLE) or (
            isinstance(event, StartContainer) and isinstance(error, WriteError)
        ):
            return RequestReply(refusal=why)
        say(self._log, logging.ERROR, "event not acted on", op=flow.op, event=name_of(event), err=why)
        return RequestReply(empty_response(event), failed=True)

    def _account(self, flow: RequestFlow, reply: RequestReply) -> None:
        """Step 8: log, record, repair stale cgroups, count."""
        total_s, event = self._clock() - flow.began, flow.event
        took_us = round(total_s * 1e6)
        level = self._levels.level_of(
            event, reply.refusal, self._clock(), changed=self.state is not flow.before
        )
        if self._log.isEnabledFor(level):
            fields = decision_fields(event, reply.response, self.cpusets.outcomes, flow.decision.steps)
            say(
                self._log,
                level,
                "refused" if reply.refusal else "decided",
                op=flow.op,
                event=name_of(event),
                **self.marks,
                **fields,
                took_us=took_us,
                err=reply.refusal,
            )
        # The recorder only notes the event; a timer of the loop writes it after the answer.
        if self._history is not None:
            self._history.decided(
                self.node,
                flow.base,
                flow.known,
                flow.decision,
                refusal=reply.refusal,
                failed=flow.failed,
                op=flow.op,
                took_us=took_us,
            )
        # A container may still run on CPUs that this answer gives away, so the repair comes before the answer.
        self._write_stale()
        if self._observe is not None:
            outcome = RequestOutcome(
                node=self.node,
                event=event,
                before=flow.before,
                decision=flow.decision,
                refusal=reply.refusal,
                failed=flow.failed,
                decide_s=flow.decide_s,
                total_s=total_s,
            )
            try:
                self._observe(outcome)
            except Exception:  # noqa: BLE001 - a mistake in a counter is no reason to leave a container waiting
                say_trace(
                    self._log, "a mistake in a counter; the outcome is not counted", event=name_of(event)
                )

    def read_back(self, checks: Iterable[EffectiveCheck]) -> None:
        """Step 10: compare effective cpusets with the desired ones, once the answer is out."""
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

    # ------------------------------------------------------------ what others ask of the state's owner

    def change_node(self, node: Node, cpusets: CpusetWriter | None = None) -> None:
        """Decide for `node` from the next event on; allocations stay."""
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
            say(
                self._log,
                logging.WARNING if pod.run_seen else logging.INFO,  # older pods: some runtimes never tell
                "a pod has ended and the runtime did not report it, its cgroup is gone",
                pod=f"{pod.namespace}/{pod.name}",
            )
            self.handle(Request(0, None, untold_removal(pod)))
        return bool(ended)

    def put_right(self, event: OwnEvent) -> tuple[Decision, list[HostError]]:
        """Decide and write for an event that the agent noticed itself; return the writes that failed.

        Allocations never change by it; the node may have changed.

        Raises:
            InvariantError: the validator refuses the decision; nothing was written.
        """
        decision = self._decide(self.node, self.state, event)
        checked = check(self.node, self.state, event, decision)
        if self._history is not None:
            self._history.decided(self.node, self.state, event, decision)
        self.keep_saved()
        return decision, list(self.cpusets.attempt(checked))

    def _write_stale(self) -> None:
        """Repair, before the answer, cgroups that a write of this or an earlier event did not reach.

        The failed write is not repeated: the cgroup is compared with the state of now, and narrowing comes first. Where
        it fails again, the next event and the sweep try again.
        """
        failed = self.cpusets.unwritten
        if not failed:
            return
        stale = dict.fromkeys(Target(write.target, write.container_id) for write in failed)
        failed.clear()
        observed = []
        for target in stale:
            with suppress(HostError):
                observed.append(self.cpusets.observe(target))
        event = CpusetsObserved(tuple(one for one in observed if one is not None))
        if not drifts(self.node, self.state, event.observed):
            return
        try:
            self.put_right(event)
        except NriPinError as error:
            say(self._log, logging.ERROR, "cpuset not repaired", err=error)

    def keep_saved(self) -> None:
        """Save the state where the checkpoint holds another one."""
        self.checkpoint.save(self.state, IN_TROUBLE_S if self.checkpoint.trouble else DEFAULT_SAVE_S)

    def close(self) -> None:
        """Finish checkpoint and recording."""
        self.checkpoint.close(self.state)
        if self._history is not None:
            self._history.close()

    def _remember(self, state: State) -> None:
        """Take over `state`, and save it."""
        self.state = state
        self.keep_saved()


def ended_pods(state: State, is_removed: Callable[[CgroupRef], bool]) -> list[PodRecord]:
    """Return pods whose cgroup is gone and that hold an allocation, or that only their end would remove."""
    holders = dict.fromkeys(pod_of(key) for key in state.allocations)
    lived_in = {record.pod_uid for record in state.containers.values()}
    left = (uid for uid, pod in state.pods.items() if not pod.run_seen and uid not in lived_in)
    pods = (state.pods[uid] for uid in {**holders, **dict.fromkeys(left)} if uid in state.pods)
    return [pod for pod in pods if pod.cgroup_parent and is_removed(CgroupRef(pod.cgroup_parent))]


def untold_removal(pod: PodRecord) -> RemovePodSandbox:
    """Return the event that the runtime should have sent."""
    return RemovePodSandbox(Pod(id=pod.sandbox_id, uid=pod.uid, name=pod.name, namespace=pod.namespace))


def makes_allocations(before: State, after: State) -> bool:
    """Return whether an allocation in `after` is new or changed; a release makes none."""
    return before.allocations is not after.allocations and any(
        before.allocations.get(key) != held for key, held in after.allocations.items()
    )
