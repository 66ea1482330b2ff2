"""One event from decision to answer, in the one order that keeps every promise.

decide -> check independently -> save -> write cgroups -> answer -> read back. The state in memory changes only when all
that had to succeed did: a refused container leaves memory, checkpoint and cgroups as they were.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from nri_plugin.app.answer import Answer, empty_response
from nri_plugin.app.decision_line import condensed, counted, granted, name_of, who
from nri_plugin.app.effects import Effects, WriteError
from nri_plugin.app.ended_pods import ended_pods, untold_removal
from nri_plugin.app.logs import new_op, say, say_trace
from nri_plugin.app.outcome import History, Observer, Outcome
from nri_plugin.app.validation import new_violations
from nri_plugin.cpuset import CPUSet
from nri_plugin.decision import CpusetWrite, Decision, EffectiveCheck
from nri_plugin.drift import Observed, OwnEvent, Target
from nri_plugin.errors import CheckpointError, HostError, InvariantError, NriPinError
from nri_plugin.facts import InformedCreate
from nri_plugin.nri.events import (
    CreateContainer,
    EmptyResponse,
    NRIEvent,
    Request,
    StartContainer,
    UpdateContainer,
    UpdatePodSandbox,
)
from nri_plugin.options import Node
from nri_plugin.state import CgroupRef, State

Decide = Callable[[Node, State, NRIEvent | InformedCreate | OwnEvent], Decision]
Inform = Callable[[Node, Request], NRIEvent | InformedCreate]

REFUSABLE = (CreateContainer, UpdateContainer, UpdatePodSandbox)
"""Events that are refused when anything fails; all others are facts, and an error would only break the pod."""

DEFAULT_SAVE_S = 1.0
"""A save may take this long when the runtime set no deadline: half of the runtimes' default of 2 s."""


class CheckpointStore(Protocol):
    """Where the state outlives the process."""

    def save(self, state: State, timeout_s: float) -> None:
        """Keep `state`.

        Raises:
            CheckpointError: it was not kept, or not in time.
        """

    def close(self, timeout_s: float) -> bool:
        """Finish what is queued; returns whether that was done in time."""


@dataclass(slots=True)
class Flow:
    """How far one event has come."""

    known: NRIEvent | InformedCreate
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
        effects: where cgroups are written.
        checkpoint: where the state is saved.
        log: for one line per decision.
        clock: seconds, monotonic, the one deadlines are in.
        describe: told of every new node; what readers of the checkpoint have to know of it is stored there.
        inform: adds to an event what else is known; by default nothing.
        observe: told of every outcome, once its answer is ready.
        history: keeps what happened.

    Attributes:
        marks: fields of the line of every decision.
        new_effects: makes `effects` for another tree.
    """

    marks: ClassVar[Mapping[str, object]] = {}
    new_effects: ClassVar[type[Effects]] = Effects

    def __init__(
        self,
        node: Node,
        state: State,
        *,
        decide: Decide,
        effects: Effects,
        checkpoint: CheckpointStore,
        log: logging.Logger,
        clock: Callable[[], float],
        describe: Callable[[Node], None] | None = None,
        inform: Inform | None = None,
        observe: Observer | None = None,
        history: History | None = None,
    ) -> None:
        self.node = node
        self.state = state
        self._saved: State | None = state
        self._decide = decide
        self._effects = effects
        self._checkpoint = checkpoint
        self._log = log
        self._clock = clock
        self._describe = describe
        self._inform = inform or (lambda _node, request: request.event)
        self._observe = observe
        self._history = history

    def change_node(self, node: Node, effects: Effects | None = None) -> None:
        """Decide for `node` from the next event on, and write where that says; what was promised stays."""
        self.node = node
        self._effects = effects or self._effects
        if self._history is not None:
            self._history.changed(node, self.state)
        if self._describe is not None:
            self._describe(node)
            self._saved = None

    def handle(self, request: Request) -> Answer:
        """Decide and carry out one event; never raises."""
        began, op, before = self._clock(), new_op(), self.state
        flow = Flow(request.event, before, Decision(before))
        self._effects.outcomes.clear()
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
            return self._carry_out(request, flow.decision, op)
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
        ended = ended_pods(self.state, self._effects.is_removed)
        for pod in ended:
            say(
                self._log,
                logging.WARNING,
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
        for check in checks:
            try:
                observed = self._effects.read_effective(check.target)
            except HostError as error:
                say(
                    self._log,
                    logging.WARNING,
                    "effective cpuset unreadable",
                    container=check.container_id,
                    err=error,
                )
                continue
            if observed is not None and observed != check.cpus:
                say(
                    self._log,
                    logging.WARNING,
                    "effective cpuset differs from what was promised",
                    container=check.container_id,
                    desired=check.cpus,
                    observed=observed,
                )

    def observe(self, target: Target) -> Observed | None:
        """A cgroup as it is, None when it is gone; see `Effects.observe`.

        Raises:
            HostError: unreadable.
        """
        return self._effects.observe(target)

    def directories(self, target: Target) -> list[str]:
        """Directories with its cpuset files.

        Raises:
            HostError: its name leaves the tree.
        """
        return self._effects.directories(target.cgroup)

    def read_effective(self, cgroup: CgroupRef) -> CPUSet | None:
        """The CPUs the kernel grants; see `Effects.read_effective`.

        Raises:
            HostError: unreadable.
        """
        return self._effects.read_effective(cgroup)

    def _remember(self, state: State) -> None:
        """Let `state` be what is promised, and save it."""
        self.state = state
        if self._saved is not state:
            self._save_again(new_op())

    def put_right(self, event: OwnEvent) -> tuple[Decision, list[HostError]]:
        """Decide and write what follows from what we noticed ourselves; what failed comes back.

        Promises never change by it; the node they are told for may have.

        Raises:
            InvariantError: the decision would break a promise; nothing was written.
        """
        decision = self._decide(self.node, self.state, event)
        violations = new_violations(self.node, self.state, event, decision)
        if violations:
            raise InvariantError(violations, decision.steps)
        if self._history is not None:
            self._history.decided(self.node, self.state, event, decision)
        if self._saved is not self.state:
            self._save_again(new_op())
        return decision, list(self._effects.attempt(decision.writes))

    def close(self) -> None:
        """Let checkpoint and history be finished."""
        self._checkpoint.close(DEFAULT_SAVE_S)
        if self._history is not None:
            self._history.close()

    def _carry_out(self, request: Request, decision: Decision, op: str) -> Answer:
        event = request.event
        if decision.refusal is not None:
            return Answer(refusal=str(decision.refusal))
        violations = new_violations(self.node, self.state, event, decision)
        if violations:
            raise InvariantError(violations, decision.steps)
        self._save(request, decision.state, op)
        self._write(request, decision, op)
        self.state = decision.state
        bare = isinstance(decision.response, EmptyResponse)
        return Answer(empty_response(event) if bare else decision.response, checks=decision.checks)

    def _save(self, request: Request, state: State, op: str) -> None:
        """Save when there is something new, or something that could not be saved before.

        Raises:
            CheckpointError: it failed and the event can be refused; otherwise it is said and tried again at the next.
        """
        if state is self._saved or state == self._saved:
            return
        try:
            self._checkpoint.save(state, self._time_to_save(request))
        except CheckpointError as error:
            self._saved = None  # what the file holds now is not known
            if isinstance(request.event, REFUSABLE):
                raise
            say(self._log, logging.ERROR, "checkpoint not saved, will be at the next event", op=op, err=error)
        else:
            self._saved = state

    def _time_to_save(self, request: Request) -> float:
        """Seconds: half of what is left of the request's time, the other half is needed to refuse and be heard."""
        if request.deadline is None:
            return DEFAULT_SAVE_S
        return max(0.0, (request.deadline - self._clock()) / 2)

    def _write(self, request: Request, decision: Decision, op: str) -> None:
        """Write all or none where the event can be refused, else as much as can be.

        Raises:
            WriteError: it failed, and cgroups and checkpoint are again what they were.
        """
        event = request.event
        if not isinstance(event, (*REFUSABLE, StartContainer)):
            for error in self._effects.attempt(decision.writes):
                say(self._log, logging.ERROR, "cpuset not written", op=op, event=name_of(event), err=error)
            return
        try:
            self._effects.carry_out(decision.writes)
        except WriteError as error:
            self._take_back(request, error.done, op)
            raise

    def _take_back(self, request: Request, done: Sequence[CpusetWrite], op: str) -> None:
        for error in self._effects.undo(self.node, self.state, done):
            say(self._log, logging.ERROR, "cpuset not put back", op=op, err=error)
        if self._saved is not self.state:
            self._save_again(op, self._time_to_save(request))

    def _save_again(self, op: str, time_s: float = DEFAULT_SAVE_S) -> None:
        """Let the checkpoint say what the memory says: it may hold what came to nothing, or another machine."""
        self._saved = None
        try:
            self._checkpoint.save(self.state, time_s)
        except CheckpointError as error:
            say(
                self._log,
                logging.ERROR,
                "checkpoint not put back, will be at the next event",
                op=op,
                err=error,
            )
        else:
            self._saved = self.state

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
        level = logging.INFO
        if answer.refusal:
            level = logging.WARNING
        elif self.state is before and not isinstance(event, REFUSABLE):
            level = logging.DEBUG
        if self._log.isEnabledFor(level):
            fields = {**who(event), **granted(answer.response), **counted(self._effects.outcomes)}
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
