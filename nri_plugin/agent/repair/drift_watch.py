"""Finds and repairs drift: cgroups whose cpuset is not the desired one.

* A watch (inotify) reports values that were written.
* A sweep finds the rest: effective sets that shrank with a parent, removed files, cgroups without a watch.
* `Pacing` backs off where another writer undoes every repair.

A report or a sweep puts cgroups into a queue. The queue is worked off in slices of half a millisecond; the loop answers
the runtime between two slices.
"""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.drift import (
    Cause,
    CpusetsObserved,
    Drift,
    Observed,
    Target,
    drifts,
    may_be_read,
    new_targets,
    targets,
)
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import LogRateLimit, say, say_trace
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import Synchronize


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """A cgroup that differed from the desired cpuset, and one repair.

    Attributes:
        number: counts all reports since the start of the agent.
        cgroup: the cgroup.
        container_id: of its container; empty for a QoS slice.
        name: `namespace/pod/container`, or the slice.
        found: the CPUs that were written to it; None where it had no cpuset files.
        effective: the CPUs that its processes ran on.
        desired: the CPUs they should run on.
        cause: the likely cause.
        noticed_by: `watch` or `sweep`.
        round: how often in a row this cgroup was repaired; from 4 on another writer undoes each repair.
        is_fight: whether another writer undoes each repair.
        next_after_s: seconds until it is repaired again, should it drift again.
        error: why it could not be repaired; empty when it was.
    """

    number: int
    cgroup: CgroupRef
    container_id: str
    name: str
    found: CPUSet | None
    effective: CPUSet | None
    desired: CPUSet
    cause: Cause
    noticed_by: str
    round: int
    is_fight: bool
    next_after_s: float
    error: str = ""


Reporter = Callable[[DriftReport], None]


# Pacing: a writer that undoes every repair does not give up. Each further round waits longer, up to minutes, so that the
# two do not use up the node's time. When the other writer stops, the next round repairs the cgroup for good. Jitter keeps
# both from writing in step.


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 300.0
CALM_S = 60.0
"""A cgroup without drift for this time, and for longer than twice the last pause, starts again at round 1."""

FIGHT_ROUNDS = 4
"""A runtime that writes its stored value once or twice is no fight."""


@dataclass(frozen=True, slots=True)
class Round:
    """The latest repair of one cgroup.

    Attributes:
        number: 1 for the first since the cgroup was calm.
        at: seconds, monotonic.
        next_at: the earliest time of the next repair.
        is_refused: whether the kernel did not give the CPUs, so that no other writer is to blame.
    """

    number: int
    at: float
    next_at: float
    is_refused: bool = False

    @property
    def is_fight(self) -> bool:
        """Return whether another writer undoes every repair."""
        return self.number >= FIGHT_ROUNDS and not self.is_refused

    @property
    def pause_s(self) -> float:
        """Return the seconds until the next repair."""
        return self.next_at - self.at


class Pacing:
    """The rounds of repairs, by cgroup.

    Args:
        draw: jitter, from 0 to 1.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._rounds: dict[Target, Round] = {}

    def due_at(self, key: Target) -> float:
        """Return the earliest time of the next repair; in the past for a cgroup that was calm."""
        latest = self._rounds.get(key)
        return latest.next_at if latest else float("-inf")

    def took_place(self, key: Target, now: float, *, is_refused: bool = False) -> Round:
        """Note an attempt at a repair."""
        former = self._rounds.get(key)
        number = 1 if former is None or _is_calm(former, now) else former.number + 1
        pause = min(FIRST_PAUSE_S * 2.0 ** (number - 1), LONGEST_PAUSE_S) * (0.75 + self._draw() / 2)
        latest = self._rounds[key] = Round(number, now, now + pause, is_refused)
        return latest

    def forget(self, key: Target) -> None:
        """Forget a cgroup that is gone."""
        self._rounds.pop(key, None)

    def forget_calm(self, now: float) -> list[Target]:
        """Forget the cgroups that have become calm; returns those that were fought over."""
        calm = [key for key, latest in self._rounds.items() if _is_calm(latest, now)]
        return [key for key in calm if self._rounds.pop(key).is_fight]

    @property
    def fights(self) -> list[Target]:
        """Return the cgroups that are fought over."""
        return [key for key, latest in self._rounds.items() if latest.is_fight]


def _is_calm(latest: Round, now: float) -> bool:
    return now - latest.at > max(CALM_S, 2 * latest.pause_s)


SWEEP_PAUSE_S = 5.0
"""Seconds between two sweeps. A sweep reads two small files of each container, 40 us."""

FIRST_SWEEP_S = 10.0
"""Seconds from the start to the first sweep where no Synchronize comes. What the machine has changed while no agent was there
is written with the answer to Synchronize and is no drift; a slow runtime sends that after seconds."""

SLICE = 8
"""Cgroups that are read without a break: half a millisecond."""

CONFIRM_S = 0.2
"""Seconds after which a doubtful drift must still be there. A change in two steps looks like drift between them."""

DOUBTFUL = frozenset({Cause.NARROWED_ABOVE, Cause.NEVER_SET})
"""Causes that may be of a moment: effective sets follow a write late, and some writers empty a file first."""

FOLLOW_S = 0.05
"""Seconds from an answer until containers that came or went are watched. A burst of events causes one update."""


class DriftWatch:
    """Watches the cpusets of all containers and slices that the agent writes.

    Args:
        handler: has the state, and writes.
        loop: runs all work.
        log: takes one line for each repair.
        watch: reports cgroups that were written; None where the kernel has no watch left.
        machine_moved: checks whether the machine changed; then differences are not drift.
        report: called with every repair.
        draw: jitter of the pauses.

    Attributes:
        made: called with directories that were made in watched ones; with None where notices were lost.
    """

    def __init__(
        self,
        handler: Handler,
        loop: Loop,
        log: logging.Logger,
        *,
        watch: CgroupWatch[Target] | None,
        machine_moved: Callable[[], bool],
        report: Reporter,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._handler, self._loop, self._log = handler, loop, log
        self._watch, self._machine_moved, self._report = watch, machine_moved, report
        self._pacing = Pacing(draw)
        self._known: dict[Target, None] = {}  # all cgroups that are watched and swept
        self._unreported: dict[Target, None] = {}  # those of containers that the runtime did not report
        self._followed: tuple[Node, State] | None = None  # what they were derived from
        self._queue: dict[Target, str] = {}  # to be read by the next slices, with `noticed_by`
        self._waiting: dict[Target, str] = {}  # drifted, and not due for a repair yet
        self._doubted: dict[Target, float] = {}  # drifted for a doubtful cause, since when
        self._count = 0
        self._no_watch = LogRateLimit()
        self.made: Callable[[set[str] | None], None] = lambda _directories: None

    def start(self) -> None:
        """Start to listen and to sweep; the first sweep comes after Synchronize, which repairs by itself."""
        if self._watch is not None:
            self._loop.watch(self._watch, self._noticed)
        self._loop.set_timer("sweep", self._loop.clock() + FIRST_SWEEP_S, self._sweep)

    def __call__(self, outcome: RequestOutcome) -> None:
        """Observe an outcome: containers may have come or gone. After Synchronize every cgroup is checked."""
        if isinstance(outcome.event, Synchronize):
            self._loop.set_timer("sweep", self._loop.clock() + FOLLOW_S, self._sweep)
        elif outcome.decision.state is not outcome.before:
            self._loop.set_timer("follow", self._loop.clock() + FOLLOW_S, self._follow)

    @property
    def watches(self) -> int:
        """Return how many directories the kernel watches."""
        return len(self._watch) if self._watch is not None else 0

    @property
    def fights(self) -> int:
        """Return how many cgroups another writer changes after every repair."""
        return len(self._pacing.fights)

    @property
    def waiting(self) -> int:
        """Return how many cgroups have drifted and wait for the end of their pause."""
        return len(self._waiting)

    def _follow(self) -> None:
        """Watch the cgroups that exist now, and forget the others."""
        node, state = self._handler.node, self._handler.state
        followed, self._followed = self._followed, (node, state)
        if followed is not None and followed[0] is node:
            gone, fresh = new_targets(node, followed[1], state)
        else:
            now_there = targets(node, state)
            gone = [one for one in self._known if one not in now_there and one not in self._unreported]
            fresh = [target for target in now_there if target not in self._known]
        for target in gone:
            self._let_go(target)
        self._known.update(dict.fromkeys(fresh))
        self._enqueue(fresh, "sweep")

    def _let_go(self, target: Target) -> None:
        self._known.pop(target, None)
        if self._watch is not None:
            self._watch.discard(target)
        self._pacing.forget(target)
        self._queue.pop(target, None)
        self._waiting.pop(target, None)
        self._doubted.pop(target, None)

    def include(self, unreported: Target) -> None:
        """Keep a container off exclusive CPUs of others: the runtime did not report it."""
        self._unreported[unreported] = self._known[unreported] = None
        self.look_at_unreported()

    def exclude(self, unreported: Target) -> None:
        """Forget a container of `include`: it is gone, or was reported."""
        self._unreported.pop(unreported, None)
        self._let_go(unreported)

    def look_at_unreported(self) -> None:
        """Check the containers of `include` now: CPUs of the shared pool may have become exclusive."""
        for target in self._unreported:
            self._pacing.forget(target)  # no other writer has undone the former repair
            self._waiting.pop(target, None)
        self._enqueue(self._unreported, "sweep")

    def watch_folder(self, folder: CgroupRef) -> None:
        """Report directories that are made in this cgroup and above to `made`."""
        self._ensure_watched(Target(folder), reports_made=True)

    def forget_folder(self, folder: CgroupRef) -> None:
        """Undo `watch_folder`."""
        if self._watch is not None:
            self._watch.discard(Target(folder))

    def _noticed(self) -> None:
        changed = self._watch.read() if self._watch is not None else set()
        self._enqueue(self._known if changed is None else changed, "watch")
        if self._watch is not None and (self._watch.made or changed is None):
            self.made(self._watch.made if changed is not None else None)

    def _sweep(self) -> None:
        self._machine_moved()
        self._follow()
        for target in self._pacing.forget_calm(self._loop.clock()):
            say(self._log, logging.INFO, "a cpuset is no longer contested", cgroup=_path(target))
        self._enqueue(self._known, "sweep")
        self._loop.set_timer("sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _enqueue(self, some: Iterable[Target], noticed_by: str) -> None:
        for target in some:
            if target in self._known and target not in self._waiting:
                self._queue.setdefault(target, noticed_by)
        if self._queue:
            self._loop.set_timer("drift", self._loop.clock(), self._look)

    def _look(self) -> None:
        """Check one slice of the queue; the loop answers the runtime before the next."""
        batch = {target: self._queue.pop(target) for target in list(self._queue)[:SLICE]}
        if self._queue:
            self._loop.set_timer("drift", self._loop.clock(), self._look)
        try:
            self._repair(batch)
        except NriPinError as error:
            say(self._log, logging.ERROR, "drift not repaired", err=error)
        except Exception:  # noqa: BLE001 - an error here must not keep containers from being placed
            say_trace(self._log, "internal error, drift not repaired")

    def _repair(self, batch: dict[Target, str]) -> None:
        found = self._drifted(batch)
        # CPUs that went offline leave every cpuset. That is no drift, and the desired sets are others then.
        if found and self._machine_moved():
            found = self._drifted(batch)
        now = self._loop.clock()
        self._doubt(batch, found, now)
        # Some have to wait: for the confirmation of a doubtful cause, or for the end of their pause.
        due = [one for one in found if self._due_at(one.observed.target) <= now]
        self._wait({one.observed.target for one in found if one not in due}, batch)
        if not due:
            return
        # The engine decides on repairs, and the validator checks them, as for an event of the runtime.
        _, errors = self._handler.put_right(CpusetsObserved(tuple(one.observed for one in due)))
        for one in due:
            error = _error_of(one, errors, self._handler)
            latest = self._pacing.took_place(one.observed.target, now, is_refused=bool(error))
            self._doubted.pop(one.observed.target, None)
            self._tell(one, batch[one.observed.target], latest, error)

    def _doubt(self, batch: Iterable[Target], found: Iterable[Drift], now: float) -> None:
        """Note since when a drift with a doubtful cause is there; forget the others."""
        doubtful = {one.observed.target for one in found if one.cause in DOUBTFUL}
        for target in batch:
            if target not in doubtful:
                self._doubted.pop(target, None)
        for target in doubtful:
            self._doubted.setdefault(target, now)

    def _due_at(self, target: Target) -> float:
        return max(self._pacing.due_at(target), self._doubted.get(target, float("-inf")) + CONFIRM_S)

    def _drifted(self, batch: Iterable[Target]) -> tuple[Drift, ...]:
        handler = self._handler
        # Our own writes are noticed, too. Those that wait come by thousands, and the next sweep reads their files.
        some = batch if handler.is_settled else may_be_read(handler.node, handler.state, batch)
        unfinished = handler.cpusets.unfinished
        some = [target for target in some if target.cgroup not in unfinished]
        observed = [one for target in some if (one := self._observed(target)) is not None]
        return drifts(handler.node, handler.state, observed, is_settled=handler.is_settled)

    def _observed(self, target: Target) -> Observed | None:
        try:
            self._ensure_watched(target)
            return self._handler.cpusets.observe(target)
        except HostError as error:
            say(self._log, logging.DEBUG, "cgroup unreadable", err=error)
            return None

    def _ensure_watched(self, target: Target, *, reports_made: bool = False) -> None:
        """Watch the cgroup; called before it is read, so that no write in between goes unnoticed."""
        if self._watch is None:
            return
        try:
            directories = self._handler.cpusets.directories(target.cgroup)
            self._watch.add(target, directories, reports_made=reports_made)
        except HostError as error:
            if self._no_watch.is_due(error.detail, self._loop.clock()):
                say(
                    self._log,
                    logging.WARNING,
                    "cgroups cannot be watched; the periodic sweep finds drift",
                    err=error,
                )

    def _wait(self, some: Iterable[Target], batch: dict[Target, str]) -> None:
        for target in some:
            self._waiting[target] = batch[target]
        if self._waiting:
            first = min(self._due_at(target) for target in self._waiting)
            self._loop.set_timer("drift again", first, self._try_again)

    def _try_again(self) -> None:
        now = self._loop.clock()
        due = [target for target in self._waiting if self._due_at(target) <= now]
        for target in due:
            self._queue[target] = self._waiting.pop(target)
        self._wait((), {})
        self._enqueue((), "")

    def _tell(self, drift: Drift, noticed_by: str, latest: Round, error: str) -> None:
        self._count += 1
        observed = drift.observed
        report = DriftReport(
            number=self._count,
            cgroup=observed.target.cgroup,
            container_id=observed.target.container_id,
            name=self._name(observed.target),
            found=observed.cpus,
            effective=observed.effective,
            desired=drift.desired,
            cause=drift.cause,
            noticed_by=noticed_by,
            round=latest.number,
            is_fight=latest.is_fight,
            next_after_s=latest.pause_s,
            error=error,
        )
        text = "cpuset drifted and could not be repaired" if error else "cpuset drifted and was repaired"
        if latest.is_fight:
            text = "another writer changes a cpuset after every repair"
        say(self._log, logging.WARNING, text, **_fields(report))
        self._report(report)

    def _name(self, target: Target) -> str:
        state = self._handler.state
        record = state.containers.get(target.container_id)
        pod = state.pods.get(record.pod_uid) if record else None
        return f"{pod.namespace}/{pod.name}/{record.name}" if pod and record else _path(target)


def _path(target: Target) -> str:
    return target.cgroup.path or target.cgroup.parent


def _error_of(drift: Drift, errors: Sequence[HostError], handler: Handler) -> str:
    """Return why the cgroup still differs from the desired one; empty when it does not, or is gone."""
    target = drift.observed.target
    try:
        after = handler.cpusets.observe(target)
    except HostError as error:
        return str(error)
    if after is None or (after.cpus == after.effective == drift.desired):
        return ""
    directories = handler.cpusets.directories(target.cgroup)
    refused = [error for error in errors if any(error.path.startswith(one) for one in directories)]
    if refused or errors:
        return str((refused or errors)[0])
    return f"its processes still run on {after.effective}: a cgroup above it, which the agent does not widen, has fewer CPUs"


def _fields(report: DriftReport) -> dict[str, object]:
    return {
        "name": report.name,
        "container": report.container_id or None,
        "desired": report.desired,
        "found": "no files" if report.found is None else report.found or "nothing",
        "effective": report.effective,
        "cause": report.cause,
        "noticed_by": report.noticed_by,
        "round": report.round if report.round > 1 else None,
        "next_after_s": round(report.next_after_s, 1) if report.round > 1 else None,
        "err": report.error or None,
    }
