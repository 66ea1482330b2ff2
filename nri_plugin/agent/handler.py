"""One event from decision to answer, in the one order that keeps every promise.

decide -> check independently -> save -> write cgroups -> answer -> read back. The state in memory changes only when all
that had to succeed did: a refused container leaves memory, checkpoint and cgroups as they were.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from nri_plugin.agent.checkpoint_keeper import DEFAULT_SAVE_S, IN_TROUBLE_S, CheckpointKeeper, CheckpointStore
from nri_plugin.agent.cpusets import CheckedWrites, CpusetWriter, WriteError, check
from nri_plugin.agent.outcome import (
    REFUSABLE,
    Answer,
    History,
    LineLevels,
    Observer,
    Outcome,
    condensed,
    counted,
    empty_response,
    granted,
    name_of,
    who,
)
from nri_plugin.core.decision import CpusetWrite, Decision, EffectiveCheck, InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved, Observed, OwnEvent, Target, drifts
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import CgroupRef, PodRecord, State, pod_of
from nri_plugin.process.logs import new_op, say, say_trace
from nri_plugin.process.loop import Loop
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
)
from nri_plugin.wire.nri.messages import Pod

# ----------------------------------------------------------------------------------------------------
# Pods that are over although nobody told us.
#
# A runtime that was restarted tells nothing any more of the end of older pods, nor of containers that had
# ended before. What such a pod was promised would be held until the next Synchronize. But the kubelet makes
# a pod's cgroup before anything else of the pod and removes it after everything else: it is the witness.


LOOK_PAUSE_S = 10.0
"""Between two looks; whoever is refused for want of CPUs makes us look at once."""

SOON_S = 0.5
"""From the removal of a pod's last container to a look: where the pod is over its cgroup goes about then."""


def ended_pods(state: State, is_removed: Callable[[CgroupRef], bool]) -> list[PodRecord]:
    """Pods whose cgroup is gone, of those that were promised something or that only their end would remove."""
    holders = dict.fromkeys(pod_of(key) for key in state.allocations)
    lived_in = {record.pod_uid for record in state.containers.values()}
    left = (uid for uid, pod in state.pods.items() if not pod.run_seen and uid not in lived_in)
    pods = (state.pods[uid] for uid in {**holders, **dict.fromkeys(left)} if uid in state.pods)
    return [pod for pod in pods if pod.cgroup_parent and is_removed(CgroupRef(pod.cgroup_parent))]


def untold_removal(pod: PodRecord) -> RemovePodSandbox:
    """What the runtime should have told."""
    return RemovePodSandbox(Pod(id=pod.sandbox_id, uid=pod.uid, name=pod.name, namespace=pod.namespace))


class EndedPodsWatch:
    """Releases what ended pods hold: by the clock, and soon after the last container of a pod was removed.

    Args:
        release: looks once and releases; see `Handler.release_ended`.
        loop: has the clock.
    """

    def __init__(self, release: Callable[[], bool], loop: Loop) -> None:
        self._release, self._loop = release, loop

    def start(self, pause_s: float = LOOK_PAUSE_S) -> None:
        """Look after `pause_s` and by the clock from then on."""
        self._loop.set_timer("ended pods", self._loop.clock() + pause_s, self._look)

    def __call__(self, outcome: Outcome) -> None:
        """Be told of an outcome: a pod without a container, whose end may go untold, may be over."""
        if not isinstance(outcome.event, RemoveContainer):
            return
        record, after = outcome.before.containers.get(outcome.event.container.id), outcome.decision.state
        pod = after.pods.get(record.pod_uid) if record else None
        if pod is not None and not pod.run_seen and not after.containers_of(pod.uid):
            self.start(SOON_S)

    def _look(self) -> None:
        self._release()
        self.start()


# ----------------------------------------------------------------------------------------------------


Decide = Callable[[Node, State, NRIEvent | InformedCreate | UnsavedStart | OwnEvent], Decision]
Inform = Callable[[Node, Request], NRIEvent | InformedCreate]


STARTS = (PostCreateContainer, StartContainer, PostStartContainer)
"""Events that may be the first ones of a container that was created while nobody listened."""


@dataclass(slots=True)
class Flow:
    """How far one event has come."""

    known: NRIEvent | InformedCreate | UnsavedStart
    before: State
    decision: Decision
    decide_s: float = 0.0
    failed: bool = False


class Handler:
    """Answers events; owns the state.

    Args:
        node: the node decisions are made for.
        state: what is remembered.
        decide: the engine.
        cpusets: the only way to the cpusets of cgroups.
        checkpoint: where the state is saved.
        log: for one line per decision.
        clock: seconds, monotonic, the one deadlines are in.
        describe: told of every new node; what readers of the checkpoint have to know of it is stored there.
        inform: adds to an event what else is known; by default nothing.
        observe: told of every outcome, once its answer is ready.
        history: keeps what happened.

    Attributes:
        checkpoint: what is saved of the state.
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
        checkpoint: CheckpointStore | CheckpointKeeper,
        log: logging.Logger,
        clock: Callable[[], float],
        describe: Callable[[Node], None] | None = None,
        inform: Inform | None = None,
        observe: Observer | None = None,
        history: History | None = None,
    ) -> None:
        self.node = node
        self.state = state
        self._decide = decide
        self._cpusets = cpusets
        self.checkpoint = (
            checkpoint
            if isinstance(checkpoint, CheckpointKeeper)
            else CheckpointKeeper(checkpoint, state, log)
        )
        self._log = log
        self._clock = clock
        self._describe = describe
        self._inform = inform or (lambda _node, request: request.event)
        self._observe = observe
        self._history = history
        self._levels = LineLevels()

    def change_node(self, node: Node, cpusets: CpusetWriter | None = None) -> None:
        """Decide for `node` from the next event on, and write where that says; what was promised stays."""
        self.node = node
        self._cpusets = cpusets or self._cpusets
        if self._history is not None:
            self._history.changed(node, self.state)
        if self._describe is not None:
            self._describe(node)
            self.checkpoint.outdate()

    def handle(self, request: Request) -> Answer:
        """Decide and carry out one event; never raises."""
        began, op, before = self._clock(), new_op(), self.state
        flow = Flow(request.event, before, Decision(before))
        self._cpusets.outcomes.clear()
        answer = self._answered(request, flow, op)
        took_s = self._clock() - began
        self._tell(request.event, before, flow.decision, answer, op=op, took_us=round(took_s * 1e6))
        if self._history is not None:
            self._history.decided(
                self.node,
                flow.before,
                flow.known,
                flow.decision,
                refusal=answer.refusal,
                failed=flow.failed,
                op=op,
                took_us=round(took_s * 1e6),
            )
        self._write_stale()
        if self._observe is not None:
            self._report(
                Outcome(
                    node=self.node,
                    event=request.event,
                    before=before,
                    decision=flow.decision,
                    refusal=answer.refusal,
                    failed=flow.failed,
                    decide_s=flow.decide_s,
                    total_s=took_s,
                ),
                self._observe,
            )
        return answer

    def _answered(self, request: Request, flow: Flow, op: str) -> Answer:
        try:
            flow.known, asked = self._inform(self.node, request), self._clock()
            self._decide_on(flow)
            flow.decide_s = self._clock() - asked
            return self._carry_out(request, flow, op)
        except NriPinError as error:
            flow.failed = True
            return self._failed(request.event, error, str(error), op)
        except Exception as error:  # noqa: BLE001 - whatever is wrong in a decision, the node goes on
            flow.failed = True
            say_trace(self._log, "internal error", op=op, event=name_of(request.event))
            why = f"internal error: {type(error).__name__}: {error}"
            return self._failed(request.event, error, why, op)

    def _decide_on(self, flow: Flow) -> None:
        """Decide; nobody is refused for what is held by pods that are over."""
        flow.decision = self._decide(self.node, self.state, flow.known)
        if flow.decision.refusal is None or not isinstance(flow.known, CreateContainer | InformedCreate):
            return
        if self.release_ended():
            flow.before = self.state
            flow.decision = self._decide(self.node, self.state, flow.known)

    def release_ended(self) -> bool:
        """Release what pods hold that are over although nobody told; returns whether there were any."""
        ended = ended_pods(self.state, self._cpusets.is_removed)
        for pod in ended:
            say(
                self._log,
                logging.WARNING if pod.run_seen else logging.INFO,  # older pods: some runtimes never tell
                "a pod is over and the runtime did not tell, its cgroup is gone",
                pod=f"{pod.namespace}/{pod.name}",
            )
            self.handle(Request(0, None, untold_removal(pod)))
        return bool(ended)

    def _report(self, outcome: Outcome, observe: Observer) -> None:
        """Tell who counts; what goes wrong there costs nothing but a line."""
        try:
            observe(outcome)
        except Exception:  # noqa: BLE001 - a mistake in a counter is no reason to leave a container waiting
            say_trace(self._log, "outcome not counted", event=name_of(outcome.event))

    def read_back(self, checks: Iterable[EffectiveCheck]) -> None:
        """Compare what the kernel made of our writes; to be called once the answer is out."""
        for one in checks:
            try:
                observed = self._cpusets.read_effective(one.target)
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
                    "effective cpuset differs from what was promised",
                    container=one.container_id,
                    desired=one.cpus,
                    observed=observed,
                )

    def observe(self, target: Target) -> Observed | None:
        """A cgroup as it is, None when it is gone; see `CpusetWriter.observe`.

        Raises:
            HostError: unreadable.
        """
        return self._cpusets.observe(target)

    def directories(self, target: Target) -> list[str]:
        """Directories with its cpuset files.

        Raises:
            HostError: its name leaves the tree.
        """
        return self._cpusets.directories(target.cgroup)

    def read_effective(self, cgroup: CgroupRef) -> CPUSet | None:
        """The CPUs the kernel grants; see `CpusetWriter.read_effective`.

        Raises:
            HostError: unreadable.
        """
        return self._cpusets.read_effective(cgroup)

    def _remember(self, state: State) -> None:
        """Let `state` be what is promised, and save it."""
        self.state = state
        self.keep_saved()

    def put_right(self, event: OwnEvent) -> tuple[Decision, list[HostError]]:
        """Decide and write what follows from what we noticed ourselves; what failed comes back.

        Promises never change by it; the node they are told for may have.

        Raises:
            InvariantError: the decision would break a promise; nothing was written.
        """
        decision = self._decide(self.node, self.state, event)
        checked = check(self.node, self.state, event, decision)
        if self._history is not None:
            self._history.decided(self.node, self.state, event, decision)
        self.keep_saved()
        return decision, list(self._cpusets.attempt(checked))

    def _write_stale(self) -> None:
        """Put right, before the answer, cgroups that a write did not reach at this event or an earlier one.

        Nobody is widened by what was once meant for it: what is observed is compared with the state of now, and who
        runs on too much is narrowed first. Where it fails again, the next event tries again, and so does the sweep.
        """
        failed = self._cpusets.unwritten
        if not failed:
            return
        stale = dict.fromkeys(Target(write.target, write.container_id) for write in failed)
        failed.clear()
        observed = []
        for target in stale:
            with suppress(HostError):
                observed.append(self._cpusets.observe(target))
        event = CpusetsObserved(tuple(one for one in observed if one is not None))
        if not drifts(self.node, self.state, event.observed):
            return
        try:
            self.put_right(event)
        except NriPinError as error:
            say(self._log, logging.ERROR, "cpuset not put right", err=error)

    def keep_saved(self) -> None:
        """Save what the memory holds where the checkpoint holds something else."""
        self.checkpoint.save(self.state, IN_TROUBLE_S if self.checkpoint.trouble else DEFAULT_SAVE_S)

    def look_at_checkpoint(self) -> None:
        """By the clock: see that the checkpoint is there and holds what the memory holds."""
        self.checkpoint.look(self.state)

    def close(self) -> None:
        """Let checkpoint and history be finished."""
        self.checkpoint.close(self.state)
        if self._history is not None:
            self._history.close()

    def _carry_out(self, request: Request, flow: Flow, op: str) -> Answer:
        event, decision = request.event, flow.decision
        if decision.refusal is not None:
            return Answer(refusal=str(decision.refusal))
        checked = check(self.node, self.state, event, decision)
        self._save(request, decision.state)
        if (
            self.checkpoint.trouble
            and isinstance(event, STARTS)
            and self._is_only_here(event, decision.state)
        ):
            flow.known = UnsavedStart(event, self.checkpoint.trouble)
            decision = flow.decision = self._decide(self.node, self.state, flow.known)
            checked = check(self.node, self.state, event, decision)
            self._save(request, decision.state)
        self._write(request, checked, op)
        self.state = decision.state
        self.checkpoint.tell_unsaved(self.state)
        bare = isinstance(decision.response, EmptyResponse)
        return Answer(empty_response(event) if bare else decision.response, checks=decision.checks)

    def _is_only_here(
        self, event: PostCreateContainer | StartContainer | PostStartContainer, after: State
    ) -> bool:
        """Whether the event is the first one of a container, and the runtime has other CPUs on record than `after`."""
        record = after.containers.get(event.container.id)
        held = after.allocation_of(record) if record is not None else None
        is_first = event.container.id not in self.state.containers
        return is_first and record is not None and held is not None and held.cpus != record.stored_cpus

    def _save(self, request: Request, state: State) -> None:
        """Save `state` before anything follows from it.

        Raises:
            CheckpointError: it could not be saved, and the event would make an allocation that nobody could find
                after a restart.
        """
        is_new = makes_allocations(self.state, state)
        hurries = self.checkpoint.trouble and not is_new
        time_s = self._time_to_save(request)
        error = self.checkpoint.save(state, min(time_s, IN_TROUBLE_S) if hurries else time_s)
        if error is not None and is_new and not self._serves_unsaved(request.event, state):
            raise error

    def _serves_unsaved(self, event: NRIEvent, after: State) -> bool:
        """Whether allocations that cannot be saved are kept in memory.

        A resize never is: after a restart the runtime's list tells with which CPUs a container was created, and some
        runtimes forget at their own restart those that an update gave it.
        """
        if isinstance(event, CreateContainer):
            return self.checkpoint.serves or event.pod.namespace in self.node.options.never_refuse
        before = self.state.allocations
        is_resize = any(before.get(key, held) != held for key, held in after.allocations.items())
        return not (is_resize and isinstance(event, REFUSABLE))

    def _time_to_save(self, request: Request) -> float:
        """Seconds: half of what is left of the request's time, the other half is needed to refuse and be heard."""
        if request.deadline is None:
            return DEFAULT_SAVE_S
        return max(0.0, (request.deadline - self._clock()) / 2)

    def _write(self, request: Request, checked: CheckedWrites, op: str) -> None:
        """Write all or none where the event can be refused, else as much as can be.

        Raises:
            WriteError: it failed, and cgroups and checkpoint are again what they were.
        """
        event = request.event
        if not isinstance(event, (*REFUSABLE, StartContainer)):
            for error in self._cpusets.attempt(checked):
                say(self._log, logging.ERROR, "cpuset not written", op=op, event=name_of(event), err=error)
            return
        try:
            self._cpusets.apply(checked)
        except WriteError as error:
            self._take_back(request, error.done, op)
            raise

    def _take_back(self, request: Request, done: Sequence[CpusetWrite], op: str) -> None:
        for error in self._cpusets.undo(self.node, self.state, done):
            say(self._log, logging.ERROR, "cpuset not put back", op=op, err=error)
        self.checkpoint.save(self.state, self._time_to_save(request))

    def _failed(self, event: NRIEvent, error: Exception, why: str, op: str) -> Answer:
        # A start whose own cpuset could not be put right would run on CPUs that belong to others.
        if isinstance(event, REFUSABLE) or (
            isinstance(event, StartContainer) and isinstance(error, WriteError)
        ):
            return Answer(refusal=why)
        say(self._log, logging.ERROR, "event not acted on", op=op, event=name_of(event), err=why)
        return Answer(empty_response(event), failed=True)

    def _tell(
        self, event: NRIEvent, before: State, decision: Decision, answer: Answer, *, op: str, took_us: int
    ) -> None:
        changed = self.state is not before
        level = self._levels.level_of(event, answer.refusal, self._clock(), changed=changed)
        if self._log.isEnabledFor(level):
            fields = {**who(event), **granted(answer.response), **counted(self._cpusets.outcomes)}
            steps = condensed(decision.steps)
            text = "refused" if answer.refusal else "decided"
            say(
                self._log,
                level,
                text,
                op=op,
                event=name_of(event),
                **self.marks,
                **fields,
                exact="no" if "inexact-hint" in decision.steps else None,
                steps=steps,
                took_us=took_us,
                err=answer.refusal,
            )


def makes_allocations(before: State, after: State) -> bool:
    """Whether somebody holds something in `after` that it did not hold in `before`; a release makes nothing."""
    return before.allocations is not after.allocations and any(
        before.allocations.get(key) != held for key, held in after.allocations.items()
    )
