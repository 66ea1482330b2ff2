"""Stand-ins for what the agent touches; every one writes what it was asked into one journal, in order."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import Observer, RequestReply
from nri_plugin.core.engine import decide
from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import NRIEvent, Request


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def name_of(ref: CgroupRef) -> str:
    return ref.path or ref.parent


@dataclass
class FakeCgroups:
    """A tree in memory; `failing` names cgroups the kernel refuses, `missing` those that are not there.

    Those that are also in `torn` fail when they are changed already. `nested` has the calls that do not finish a cgroup.
    """

    journal: list[str]
    values: dict[str, CPUSet] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    torn: set[str] = field(default_factory=set)
    without_files: set[str] = field(default_factory=set)
    bounds: dict[str, CPUSet] = field(default_factory=dict)
    nested: dict[str, int] = field(default_factory=dict)
    nested_left: int = 0

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet, *, compare: bool = True) -> WriteOutcome:
        name = name_of(ref)
        if name in self.missing:
            return WriteOutcome.MISSING
        if compare and self.values.get(name) == cpus:
            return WriteOutcome.UNCHANGED
        if self.nested.get(name, 0) > 0:
            self.nested[name] -= 1
            return WriteOutcome.LATER
        if name in self.failing:
            if name in self.torn:
                self.values[name] = cpus
            self.journal.append(f"write {name} failed")
            raise HostError(name, f"{cpus} was not taken")
        self.values[name] = cpus
        self.journal.append(f"write {name}={cpus}")
        return WriteOutcome.WRITTEN

    def read_cpus(self, ref: CgroupRef) -> CPUSet | None:
        return self.values.get(name_of(ref))

    def read_effective(self, ref: CgroupRef) -> CPUSet | None:
        name = name_of(ref)
        if name in self.failing:
            raise HostError(name, "unreadable")
        return self.values.get(name)

    def give_up(self, ref: CgroupRef) -> None:
        self.nested.pop(name_of(ref), None)

    def is_removed(self, ref: CgroupRef) -> bool:
        return name_of(ref) in self.missing

    def missing_error(self, ref: CgroupRef) -> HostError:
        return HostError(name_of(ref), "no such cgroup")

    def observe(self, ref: CgroupRef) -> tuple[CPUSet | None, CPUSet | None] | None:
        """What was written, and what somebody above (`bounds`) lets through of it."""
        name = name_of(ref)
        if name in self.missing or name not in self.values:
            return None
        if name in self.without_files:
            return None, None
        value = self.values[name]
        return value, value & self.bounds.get(name, value) or value

    def directories(self, ref: CgroupRef) -> list[str]:
        return [name_of(ref)]

    def make_room(self, ref: CgroupRef, cpus: CPUSet) -> None:
        name = name_of(ref)
        if name in self.without_files or name in self.bounds:
            self.journal.append(f"make room {name}={cpus}")
            self.without_files.discard(name)
            self.bounds.pop(name, None)


@dataclass
class FakeCheckpoint:
    """A file in memory; `failures` are how many of the next saves fail."""

    journal: list[str]
    saved: State | None = None
    failures: int = 0
    timeouts: list[float] = field(default_factory=list)
    intact: bool = True

    def is_intact(self) -> bool:
        return self.intact

    def save(self, state: State, timeout_s: float) -> None:
        self.timeouts.append(timeout_s)
        if self.failures:
            self.failures -= 1
            self.journal.append("save failed")
            raise CheckpointError("/run/x/state.json", "cannot be saved: no space left")
        self.saved = state
        self.journal.append("save")

    def compact(self) -> None: ...

    def close(self, timeout_s: float) -> None:
        self.journal.append("close")


class LogLines(logging.Handler):
    """Keeps log records as (level, text, fields)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage(), dict(getattr(record, "fields", {}))))

    def texts(self, level: str) -> list[str]:
        return [text for name, text, _ in self.lines if name == level]

    def fields(self, text: str) -> dict[str, object]:
        return next(fields for _, found, fields in self.lines if found == text)


def recording_log() -> tuple[logging.Logger, LogLines]:
    lines = LogLines()
    log = logging.Logger("test", logging.DEBUG)  # noqa: LOG001 - of this bench alone
    log.addHandler(lines)
    return log, lines


class Bench:
    """A handler on fakes, with the real engine unless another `decide` is given."""

    def __init__(
        self,
        node: Node,
        state: State | None = None,
        decide: Callable[..., object] = decide,
        observe: Observer | None = None,
    ) -> None:
        self.journal: list[str] = []
        self.cgroups = FakeCgroups(self.journal)
        self.checkpoint = FakeCheckpoint(self.journal)
        self.clock = Clock()
        self.log, self.lines = recording_log()
        self.handler = Handler(
            node,
            state or State(),
            decide=decide,  # type: ignore[arg-type]
            cpusets=CpusetWriter(self.cgroups),
            checkpoint=CheckpointSaver(self.checkpoint, state or State(), self.log),
            log=self.log,
            clock=self.clock,
        )
        if observe is not None:
            self.handler.observers = (observe,)
        self._calls = 0

    def ask(self, event: NRIEvent, time_left: float | None = 2.0) -> RequestReply:
        """Let the handler answer; the journal gets an `answer` or `refuse`."""
        self._calls += 2
        deadline = None if time_left is None else self.clock.now + time_left
        answer = self.handler.handle(Request(self._calls, deadline, event))
        self.journal.append("refuse" if answer.refusal else "answer")
        return answer

    def forget(self) -> None:
        """Begin a new page of the journal."""
        self.journal.clear()
        self.lines.lines.clear()
