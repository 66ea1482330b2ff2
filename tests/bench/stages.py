"""Where the time of a request goes: the functions of each stage are timed from outside, in the bench's own process.

A stage's time is without that of stages it calls. What no stage has is the loop's: the way from one stage to the next. It is
the CPU time of the thread, which waits for nothing here, so that a busy machine does not smear it. The clocks take some
microseconds an event, and are part of it.
"""

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from nri_plugin.agent.serving import handler
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.link import RuntimeConnection, Transport
from nri_plugin.agent.serving.pod_facts import PodFactsLookup
from nri_plugin.agent.serving.recorder import Recorder
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.session import PluginSession
from tests.bench.agent import MEDIUM, in_memory, site_in
from tests.bench.event_cost import COUNTERS, EACH, LIVES, costs
from tests.bench.figures import at
from tests.bench.whole_agent import Step, WholeAgent, crowd, life

READ, DECODE, FACTS, DECIDE, VALIDATE = "read", "decode", "facts of the pod", "decide", "validate"
CHECKPOINT, WRITES, LOG, HISTORY = "checkpoint", "cgroup writes", "log line", "history"
OBSERVERS, ENCODE, SEND, READ_BACK = "metrics, status", "encode the answer", "send", "read back"
WAITING, REST = "cgroup writes that waited", "the rest"
STAGES = (
    READ,
    DECODE,
    FACTS,
    DECIDE,
    VALIDATE,
    CHECKPOINT,
    WRITES,
    LOG,
    HISTORY,
    OBSERVERS,
    ENCODE,
    SEND,
    READ_BACK,
    WAITING,
    REST,
)

FUNCTIONS: Sequence[tuple[object, str, str]] = (
    (Transport, "receive", READ),
    (PluginSession, "receive_data", DECODE),
    (PodFactsLookup, "__call__", FACTS),
    (Handler, "_decide_on", DECIDE),
    (handler, "check", VALIDATE),
    (CheckpointSaver, "save", CHECKPOINT),
    (Handler, "_write", WRITES),
    (Handler, "_log_decision", LOG),
    (Recorder, "decided", HISTORY),
    (Recorder, "flush", HISTORY),
    (Handler, "_observe", OBSERVERS),
    (RuntimeConnection, "reply", ENCODE),
    (RuntimeConnection, "send", SEND),
    (Handler, "read_back", READ_BACK),
    (Handler, "write_waiting", WAITING),
    (Loop, "run_once", REST),
)
"""The functions of the stages: where one is renamed, it is renamed here."""

CROWDS = (0, 600)
"""Pods of five containers each."""

COUNTED = (6, 600)
"""The same, for what is counted."""


@dataclass(slots=True)
class StageClock:
    """Nanoseconds of each stage, before and after an answer was sent.

    Attributes:
        spent: by stage, and whether the answer was out.
        is_answered: the answer is out, and nothing was read since.
    """

    spent: defaultdict[tuple[str, bool], int] = field(default_factory=lambda: defaultdict(int))
    is_answered: bool = False
    _open: list[str] = field(default_factory=list)
    _since: int = 0

    def enter(self, stage: str) -> None:
        """Stop the clock of the stage above, start that of `stage`."""
        self._charge()
        self._open.append(stage)
        self.is_answered = self.is_answered and stage != READ

    def leave(self) -> None:
        """Stop the clock of the innermost stage; once the answer is sent, everything else comes after it."""
        self._charge()
        self.is_answered |= self._open.pop() == SEND

    def _charge(self) -> None:
        now = time.thread_time_ns()
        if self._open:
            self.spent[self._open[-1], self.is_answered] += now - self._since
        self._since = now


@contextmanager
def watched() -> Iterator[StageClock]:
    """A clock that runs in the functions of all stages."""
    clock = StageClock()
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in FUNCTIONS]
    for (owner, name, stage), (_, _, original) in zip(FUNCTIONS, originals, strict=True):
        setattr(owner, name, _timed(clock, stage, original))
    try:
        yield clock
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _timed(clock: StageClock, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def timed(*args: Any, **kwargs: Any) -> Any:
        clock.enter(stage)
        try:
            return call(*args, **kwargs)
        finally:
            clock.leave()

    return timed


Spent = Mapping[tuple[str, bool], int]


def measure(pods: int, rounds: int) -> dict[str, list[Spent]]:
    """The stages of each creation beside so many pods, shared and exclusive in turn, and those of Synchronize."""
    found: dict[str, list[Spent]] = {"shared": [], "exclusive": []}
    with site_in(in_memory(), MEDIUM) as base, watched() as clock:
        agent = WholeAgent(base, crowd(pods, EACH))
        joined = [dict(clock.spent)] if pods else []
        gc.collect()
        gc.freeze()
        gc.disable()  # as in the agent
        try:
            for number in range(rounds + 2):
                for kind, samples in found.items():
                    for step in life(2 * number + (kind == "exclusive"), exclusive=kind == "exclusive"):
                        agent.put(step.event)
                        clock.spent.clear()
                        clock.is_answered = False  # the loop wakes up for the event
                        agent.loop.run_once()
                        agent.do_the_rest()
                        if step.name.startswith("CreateContainer ") and number > 1:  # the first are slower
                            samples.append(dict(clock.spent))
                        agent.finish(step.event)
        finally:
            gc.enable()
            gc.unfreeze()
            agent.close()
    return {**found, "Synchronize": joined} if joined else found


def table(by_pods: Mapping[int, Mapping[str, Sequence[Spent]]]) -> str:
    """The median of each stage, in microseconds of CPU time, and of all together."""
    columns = [
        (f"{kind}, {EACH * pods}", samples)
        for pods, found in by_pods.items()
        for kind, samples in found.items()
    ]
    lines = [_line("CreateContainer beside so many containers, us", [name for name, _ in columns])]
    for is_after, title in ((False, "until the answer is sent"), (True, "after the answer")):
        wholes = [[_whole(spent, is_after) for spent in samples] for _, samples in columns]
        lines.append(_line(title, [_us(each) for each in wholes]))
        for stage in STAGES:
            each = [[spent.get((stage, is_after), 0) for spent in samples] for _, samples in columns]
            if any(map(any, each)):
                lines.append(_line(f"  {stage}", [_us(one) for one in each]))
    return "\n".join(lines)


def _nothing() -> None:
    pass


def _asleep() -> None:
    time.sleep(PAUSE_S)


def _awake() -> None:
    until = time.perf_counter() + PAUSE_S
    while time.perf_counter() < until:
        pass


def _fill_caches() -> None:
    OTHER_DATA[::LINE] = bytes(len(OTHER_DATA) // LINE)


PAUSE_S = 0.02
LINE = 64
OTHER_DATA = bytearray(1 << 26)
"""More than any cache holds."""

BEFORE: Mapping[str, Callable[[], None]] = {
    "at once": _nothing,
    "after 20 ms asleep": _asleep,
    "after 20 ms awake": _awake,
    "at once, with other data in the caches": _fill_caches,
}
"""What happens before a creation: the last one has neither a pause nor a wake-up, and the same work."""

IN_A_ROW = 10
"""Creations after the same, so that a moment of the machine meets all kinds, and code stays warm between two of them."""


def after_pauses(rounds: int) -> str:
    """The CPU time of a creation until its answer, at once and after pauses: what caches cost that others have used."""
    taken: dict[tuple[str, str], list[int]] = defaultdict(list)
    with site_in(in_memory(), MEDIUM) as base:
        agent = WholeAgent(base, crowd(0, EACH))
        gc.collect()
        gc.disable()  # as in the agent
        try:
            for number in range(max(rounds, IN_A_ROW) // IN_A_ROW * IN_A_ROW * len(BEFORE)):
                before = list(BEFORE)[number // IN_A_ROW % len(BEFORE)]
                for kind in ("shared", "exclusive"):
                    for step in life(2 * number + (kind == "exclusive"), exclusive=kind == "exclusive"):
                        took = _creation(agent, step, BEFORE[before])
                        if took and number % IN_A_ROW:  # the first follows another kind of pause
                            taken[before, kind].append(took)
        finally:
            gc.enable()
            agent.close()
    lines = [_line("CPU time until the answer is sent, us", ["shared", "exclusive"])]
    lines += [
        _line(f"  {one}", [_us(taken[one, kind]) for kind in ("shared", "exclusive")]) for one in BEFORE
    ]
    return "\n".join(lines)


def _creation(agent: WholeAgent, step: Step, before: Callable[[], None]) -> int:
    """Play one event; returns the nanoseconds until its answer where it is a creation, else 0."""
    answered: list[int] = []
    agent.put(step.event)
    agent.on_answer = lambda: answered.append(time.thread_time_ns())
    is_creation = step.name.startswith("CreateContainer ")
    if is_creation:
        before()
    began = time.thread_time_ns()
    agent.loop.run_once()
    agent.on_answer = _nothing
    agent.do_the_rest()
    agent.finish(step.event)
    return answered[0] - began if is_creation else 0


def counted() -> str:
    """What the same creations cost beside few and many containers: counted, so a busy machine changes nothing."""
    by_pods = {pods: costs(pods) for pods in COUNTED}
    steps = [f"CreateContainer {kind}" for kind in ("shared", "exclusive")]
    heads = [f"{step.split()[1]}, {EACH * pods}" for pods in COUNTED for step in steps]
    lines = [_line("CreateContainer, until the answer is sent", heads)]
    lines += [
        _line(
            f"  {what}", [f"{by_pods[pods][step][what][0] // LIVES:,}" for pods in COUNTED for step in steps]
        )
        for what in COUNTERS
    ]
    return "\n".join(lines)


def _whole(spent: Spent, is_after: bool) -> int:
    return sum(ns for (_, after), ns in spent.items() if after == is_after)


def _us(values: Sequence[int]) -> str:
    return f"{at(values, 0.5) / 1e3:.1f}"


def _line(what: str, cells: Sequence[str]) -> str:
    return f"{what:46}{''.join(f'{cell:>19}' for cell in cells)}"
