"""Notices who else writes our cgroups, and puts them right: at once by watches, in the end by a slow sweep.

The watch hears of values that are written; the sweep finds what no watch hears of: effective sets that shrank with a
parent, files that vanished, watches that could not be had. Everything runs in the loop's thread in slices of a
millisecond or two, so that a container that starts never waits for thousands of others to be looked at.
"""

import logging
import random
from collections.abc import Callable, Iterable, Sequence

from nri_plugin.app.drift_pacing import Pacing, Round
from nri_plugin.app.drift_report import DriftReport, Reporter
from nri_plugin.app.handler import Handler
from nri_plugin.app.logs import say, say_trace
from nri_plugin.app.loop import Loop
from nri_plugin.app.outcome import Outcome
from nri_plugin.app.reminder import Reminder
from nri_plugin.drift import Cause, CpusetsObserved, Drift, Observed, Target, drifts, targets
from nri_plugin.errors import HostError, NriPinError
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.nri.events import Synchronize

SWEEP_PAUSE_S = 5.0
"""Between two sweeps; each reads two small files a container, 40 us."""

FIRST_SWEEP_S = 1.0
"""A runtime that is there has told what exists by then, and what that changed is written."""

SLICE = 32
"""Cgroups looked at without a break: a millisecond or two."""

CONFIRM_S = 0.2
"""What comes in two steps looks like drift between them: such causes are looked at twice."""

DOUBTFUL = frozenset({Cause.NARROWED_ABOVE, Cause.NEVER_SET})
"""Effective sets come a little after what makes them so, and a file is emptied by some before it is written."""

FOLLOW_S = 0.05
"""Containers that come or go are followed this soon after the answer; a burst is one change."""


class DriftWatch:
    """Looks after all cgroups that are ours to say.

    Args:
        handler: knows what should be, and writes.
        loop: where it runs.
        log: one line a repair.
        watch: tells who was written to; None where the kernel has none left for us.
        machine_moved: looks whether the machine changed, which is no drift; returns whether it did.
        report: told of every repair.
        draw: jitter of the pauses.
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
        self._pacing: Pacing[Target] = Pacing(draw)
        self._known: dict[Target, None] = {}
        self._queue: dict[Target, str] = {}
        self._waiting: dict[Target, str] = {}
        self._doubted: dict[Target, float] = {}
        self._count = 0
        self._no_watch = Reminder()

    def start(self) -> None:
        """Begin; what Synchronize puts right is not ours to find."""
        if self._watch is not None:
            self._loop.watch(self._watch, self._noticed)
        self._loop.set_timer("sweep", self._loop.clock() + FIRST_SWEEP_S, self._sweep)

    def __call__(self, outcome: Outcome) -> None:
        """Be told of an outcome: containers may have come or gone; after Synchronize nothing is known of any."""
        if isinstance(outcome.event, Synchronize):
            self._loop.set_timer("sweep", self._loop.clock() + FOLLOW_S, self._sweep)
        elif outcome.decision.state is not outcome.before:
            self._loop.set_timer("follow", self._loop.clock() + FOLLOW_S, self._follow)

    @property
    def watches(self) -> int:
        """Watches the kernel holds for us."""
        return len(self._watch) if self._watch is not None else 0

    @property
    def fights(self) -> int:
        """Cgroups that somebody else writes again and again."""
        return len(self._pacing.fights)

    @property
    def waiting(self) -> int:
        """Cgroups known to be drifted that are left so until their pause is over."""
        return len(self._waiting)

    def _follow(self) -> None:
        """Look after those that are there now, and let go of those that are not."""
        now_there = targets(self._handler.node, self._handler.state)
        for gone in self._known.keys() - now_there.keys():
            self._let_go(gone)
        fresh = [target for target in now_there if target not in self._known]
        self._known = now_there
        self._enqueue(fresh, "sweep")

    def _let_go(self, target: Target) -> None:
        if self._watch is not None:
            self._watch.discard(target)
        self._pacing.forget(target)
        self._queue.pop(target, None)
        self._waiting.pop(target, None)
        self._doubted.pop(target, None)

    def _noticed(self) -> None:
        changed = self._watch.read() if self._watch is not None else set()
        self._enqueue(self._known if changed is None else changed, "watch")

    def _sweep(self) -> None:
        self._machine_moved()
        self._follow()
        for target in self._pacing.forget_calm(self._loop.clock()):
            say(self._log, logging.INFO, "nobody fights over a cpuset any more", cgroup=_path(target))
        self._enqueue(self._known, "sweep")
        self._loop.set_timer("sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _enqueue(self, some: Iterable[Target], noticed_by: str) -> None:
        for target in some:
            if target in self._known and target not in self._waiting:
                self._queue.setdefault(target, noticed_by)
        if self._queue:
            self._loop.set_timer("drift", self._loop.clock(), self._look)

    def _look(self) -> None:
        """One slice of the queue; the loop answers the runtime before the next."""
        batch = {target: self._queue.pop(target) for target in list(self._queue)[:SLICE]}
        if self._queue:
            self._loop.set_timer("drift", self._loop.clock(), self._look)
        try:
            self._put_right(batch)
        except NriPinError as error:
            say(self._log, logging.ERROR, "drift not put right", err=error)
        except Exception:  # noqa: BLE001 - whatever is wrong here, containers go on being placed
            say_trace(self._log, "internal error, drift not put right")

    def _put_right(self, batch: dict[Target, str]) -> None:
        found = self._drifted(batch)
        if found and self._machine_moved():
            found = self._drifted(batch)
        now = self._loop.clock()
        self._doubt(batch, found, now)
        due = [one for one in found if self._due_at(one.observed.target) <= now]
        self._wait({one.observed.target for one in found if one not in due}, batch)
        if not due:
            return
        _, errors = self._handler.put_right(CpusetsObserved(tuple(one.observed for one in due)))
        for one in due:
            latest = self._pacing.took_place(one.observed.target, now)
            self._doubted.pop(one.observed.target, None)
            self._tell(one, batch[one.observed.target], latest, _error_of(one, errors, self._handler))

    def _doubt(self, batch: Iterable[Target], found: Iterable[Drift], now: float) -> None:
        """Begin to doubt what may be a moment's, and end it for all others."""
        doubtful = {one.observed.target for one in found if one.cause in DOUBTFUL}
        for target in batch:
            if target not in doubtful:
                self._doubted.pop(target, None)
        for target in doubtful:
            self._doubted.setdefault(target, now)

    def _due_at(self, target: Target) -> float:
        return max(self._pacing.due_at(target), self._doubted.get(target, float("-inf")) + CONFIRM_S)

    def _drifted(self, batch: Iterable[Target]) -> tuple[Drift, ...]:
        observed = [one for target in batch if (one := self._observed(target)) is not None]
        return drifts(self._handler.node, self._handler.state, observed)

    def _observed(self, target: Target) -> Observed | None:
        try:
            self._ensure_watched(target)
            return self._handler.observe(target)
        except HostError as error:
            say(self._log, logging.DEBUG, "cgroup unreadable", err=error)
            return None

    def _ensure_watched(self, target: Target) -> None:
        """Before it is read, so that nothing written in between goes unnoticed."""
        if self._watch is None:
            return
        try:
            self._watch.add(target, self._handler.directories(target))
        except HostError as error:
            if self._no_watch.is_due(error.detail, self._loop.clock()):
                say(self._log, logging.WARNING, "drift is noticed by the sweep only", err=error)

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
        say(self._log, *_line(report), **_fields(report))
        self._report(report)

    def _name(self, target: Target) -> str:
        state = self._handler.state
        record = state.containers.get(target.container_id)
        pod = state.pods.get(record.pod_uid) if record else None
        return f"{pod.namespace}/{pod.name}/{record.name}" if pod and record else _path(target)


def _path(target: Target) -> str:
    return target.cgroup.path or target.cgroup.parent


def _error_of(drift: Drift, errors: Sequence[HostError], handler: Handler) -> str:
    """Why the cgroup is still not what it should be; empty when it is, or is gone."""
    target = drift.observed.target
    try:
        after = handler.observe(target)
    except HostError as error:
        return str(error)
    if after is None or (after.cpus == after.effective == drift.desired):
        return ""
    directories = handler.directories(target)
    refused = [error for error in errors if any(error.path.startswith(one) for one in directories)]
    if refused or errors:
        return str((refused or errors)[0])
    return f"its processes run on {after.effective} still, something above it that is not ours to widen holds less"


def _line(report: DriftReport) -> tuple[int, str]:
    if report.is_fight:
        return logging.WARNING, "fighting with somebody over a cpuset"
    if report.error:
        return logging.WARNING, "cpuset drifted and could not be put right"
    return logging.WARNING, "cpuset drifted and was put right"


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
