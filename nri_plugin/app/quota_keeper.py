"""Keeps exclusive containers and their pods without a CFS quota, whoever writes one back.

A write by somebody else is reported by inotify and undone in the next turn of the loop. The kubelet writes a pod's
quota once a second for as long as a resize is pending, so lifting it never backs off. The work is bounded instead:
after each round nothing is listened to for `DEAF_S`, however often and to however many cgroups others write.

Two more ways find what no watch reports, for example where the kernel has no watch left: a look after every update
that the runtime was asked for, and the sweep of `KernelSideKeeper`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

from nri_plugin.app.logs import say, say_trace
from nri_plugin.app.loop import Loop
from nri_plugin.app.reminder import Reminder, Repeats
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.kernel_side import NO_QUOTA, QuotaWrite
from nri_plugin.state import CgroupRef

DEAF_S = 0.05
"""Between two rounds, so that a quota is gone within 100 ms and an endless writer costs 20 short rounds a second."""

UPDATE_S = 0.05
"""After an update of the runtime: the kubelet writes the pod's cgroup just before or after it asks for one."""

QUOTA_STAYS = "a CPU quota could not be changed: a container with exclusive CPUs may be throttled"
REMEDY = (
    "it is tried again every 10 s; where this goes on, see that the agent may write the file named in err: as root, "
    "with the cgroup tree mounted read-write"
)

SLICE = 32
"""Files looked at without a break: a millisecond or two, as long as the runtime may wait for us."""

UNWATCHED = "a CPU quota that somebody writes back is noticed at updates and by the sweep only"

NoticedBy = Literal["watch", "update", "sweep"]
Counted = Callable[[NoticedBy], None]


class QuotaFiles(Protocol):
    """The part of `nri_plugin.host.cpu_quota.CPUQuotas` that is used here; its docstrings hold."""

    def set(self, ref: CgroupRef, quota_us: int) -> bool:
        """Lift the quota, or put one back."""

    def directories(self, ref: CgroupRef) -> list[str]:
        """Where its quota files are."""


class QuotaKeeper:
    """Writes quotas where they are not as wanted.

    Args:
        files: the quotas.
        watch: reports who was written to; None where the kernel gives no watch.
        loop: where it runs.
        log: a line for each quota that is changed first, and for each one that somebody writes back.
        counted: told of every quota that somebody wrote back and that was lifted again.

    Attributes:
        lifted: cgroups without the CPU quota they would have; may be read by any thread.
    """

    def __init__(
        self,
        files: QuotaFiles,
        watch: CgroupWatch[CgroupRef] | None,
        loop: Loop,
        log: logging.Logger,
        counted: Counted,
    ) -> None:
        self._files, self._watch, self._loop, self._log = files, watch, loop, log
        self._counted = counted
        self._wanted: dict[CgroupRef, int] = {}
        self._done: dict[CgroupRef, int] = {}
        self._unsure: set[CgroupRef] = set()
        self._due: dict[CgroupRef, NoticedBy] = {}
        self._updated: set[str] = set()
        self._written_back: Repeats[CgroupRef] = Repeats()
        self._trouble, self._no_watch = Reminder(), Reminder()
        self.lifted = 0

    @property
    def watches(self) -> int:
        """Watches the kernel holds for us."""
        return len(self._watch) if self._watch is not None else 0

    def start(self) -> None:
        """Begin to listen."""
        if self._watch is not None:
            self._loop.watch(self._watch, self._noticed)

    def doubt_all(self) -> None:
        """The next `keep` also looks at those that were right when they were looked at last."""
        self._unsure |= self._wanted.keys()

    def keep(self, wanted: Iterable[QuotaWrite]) -> Iterator[None]:
        """Make these quotas as wanted and let go of all others; one step for each cgroup that is looked at."""
        former, self._wanted = self._wanted, {one.target: one.quota_us for one in wanted}
        for gone in former.keys() - self._wanted.keys():
            self._let_go(gone)
        for ref, quota_us in list(self._wanted.items()):
            if ref in self._unsure or self._done.get(ref) != quota_us:
                self._set(ref, quota_us, "sweep")
                yield
        self.lifted = sum(1 for quota_us in self._done.values() if quota_us == NO_QUOTA)

    def updated(self, cgroup_parent: str) -> None:
        """The runtime was asked to update this pod or a container of it: look at both soon."""
        self._updated.add(cgroup_parent)
        self._loop.set_timer("quotas updated", self._loop.clock() + UPDATE_S, self._look_at_updated)

    def _noticed(self) -> None:
        """Look at what was written, and listen again a little later; that includes what we write ourselves."""
        if self._watch is None:
            return
        changed = self._watch.read()
        self._loop.forget(self._watch)
        self._loop.set_timer("quotas heard", self._loop.clock() + DEAF_S, self.start)
        self._look_at(self._wanted if changed is None else changed, "watch")

    def _look_at_updated(self) -> None:
        parents, self._updated = self._updated, set()
        self._look_at([ref for ref in self._wanted if ref.parent in parents], "update")

    def _look_at(self, some: Iterable[CgroupRef], noticed_by: NoticedBy) -> None:
        for ref in some:
            if self._wanted.get(ref) == NO_QUOTA:
                self._due.setdefault(ref, noticed_by)
        self._go_on()

    def _go_on(self) -> None:
        batch = {ref: self._due.pop(ref) for ref in list(self._due)[:SLICE]}
        if self._due:
            self._loop.set_timer("quotas slice", self._loop.clock(), self._go_on)
        try:
            for ref, noticed_by in batch.items():
                self._set(ref, NO_QUOTA, noticed_by)
        except Exception:  # noqa: BLE001 - whatever is wrong here, containers go on being placed
            say_trace(self._log, "internal error, a CPU quota was not lifted")

    def _let_go(self, ref: CgroupRef) -> None:
        self._done.pop(ref, None)
        self._due.pop(ref, None)
        self._unsure.discard(ref)
        self._written_back.forget(ref)
        if self._watch is not None:
            self._watch.discard(ref)

    def _set(self, ref: CgroupRef, quota_us: int, noticed_by: NoticedBy) -> None:
        self._unsure.discard(ref)
        try:
            self._ensure_watched(ref, quota_us)
            changed = self._files.set(ref, quota_us)
        except HostError as error:
            self._done.pop(ref, None)
            if self._trouble.is_due(str(error), self._loop.clock()):
                say(self._log, logging.WARNING, QUOTA_STAYS, todo=REMEDY, err=error)
            return
        if changed:
            self._tell(ref, quota_us, noticed_by)
        self._done[ref] = quota_us

    def _ensure_watched(self, ref: CgroupRef, quota_us: int) -> None:
        """Before the quota is read, so that no write in between goes unnoticed."""
        if self._watch is None:
            return
        if quota_us != NO_QUOTA:
            self._watch.discard(ref)
            return
        directories = self._files.directories(ref)
        try:
            self._watch.add(ref, directories)
        except HostError as error:
            if self._no_watch.is_due(error.detail, self._loop.clock()):
                say(self._log, logging.WARNING, UNWATCHED, err=error)

    def _tell(self, ref: CgroupRef, quota_us: int, noticed_by: NoticedBy) -> None:
        """A quota that comes back is told once, not once a second; the counter has every one.

        It is no warning: the kubelet and systemd do so in the ordinary course of things, and it is undone.
        """
        cgroup = ref.path or ref.parent
        if quota_us != NO_QUOTA:
            say(self._log, logging.INFO, "CPU quota put back", cgroup=cgroup)
        elif self._done.get(ref) != NO_QUOTA:
            say(self._log, logging.INFO, "CPU quota lifted", cgroup=cgroup)
        else:
            self._counted(noticed_by)
            if self._written_back.is_first(ref, "", self._loop.clock()):
                text = "somebody wrote a CPU quota back, it was lifted again"
                say(self._log, logging.INFO, text, cgroup=cgroup, noticed_by=noticed_by)
