"""Reconciles what the kernel holds beside the cpusets of containers: CPU quotas, sandboxes and partitions.

`core.kernel_settings` derives the desired settings from the state. `KernelSettingsReconciler` writes them soon after
every change, and a slow sweep looks at all of them. It works in slices, between which the runtime is answered. No answer
waits for it: a failure costs a log line and another try.

Quotas need more, because the kubelet writes a pod's quota back once a second for as long as a resize is pending.
`QuotaReconciler` hears of such a write by inotify and undoes it in the next round of the loop. It never backs off.
Instead the work is bounded: after each round it does not listen for `DEAF_S`, however many cgroups others write. A look
after every update of the runtime, and the sweep, find quotas that no watch reports.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol

from nri_plugin.agent.cpusets import PartitionWriter
from nri_plugin.agent.handler import Handler
from nri_plugin.agent.outcome import RequestOutcome
from nri_plugin.core.kernel_settings import (
    NO_QUOTA,
    Partition,
    QuotaWrite,
    partitions,
    quotas,
    sandboxes,
)
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.model.errors import HostError, InvariantError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import CgroupRef, State
from nri_plugin.process.logs import LogRateLimit, Repeats, say, say_trace
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import (
    PostUpdateContainer,
    PostUpdatePodSandbox,
    Synchronize,
    UpdateContainer,
    UpdatePodSandbox,
)
from nri_plugin.wire.nri.messages import Pod

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


class QuotaReconciler:
    """Writes quotas where they are not as wanted.

    Args:
        files: the quotas.
        watch: reports cgroups that were written; None where the kernel gives no watch.
        loop: where it runs.
        log: a line for the first change of each quota, and for each one that another writer puts back.
        counted: called for every quota that was written back and lifted again.

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
        self._trouble, self._no_watch = LogRateLimit(), LogRateLimit()
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
        """The next `reconcile` also looks at those that were right when they were looked at last."""
        self._unsure |= self._wanted.keys()

    def reconcile(self, wanted: Iterable[QuotaWrite]) -> Iterator[None]:
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
        """Look at the written quotas, and listen again a little later; our own writes are among them."""
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
        """A quota that comes back is logged once, not once a second; the counter has every one.

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


SWEEP_PAUSE_S = 10.0
"""Between two looks at everything."""

FOLLOW_S = 0.05
"""From an event to the reconciliation of its consequences; a burst is one change."""

UPDATES = (UpdateContainer, PostUpdateContainer, UpdatePodSandbox, PostUpdatePodSandbox)
"""The kubelet writes quotas, or lets the runtime write them, when it asks for one of these."""

SANDBOX_STAYS = "the cpuset of a pod's sandbox could not be written: it may run on exclusive CPUs of others"
PARTITION_STAYS = "a partition could not be ended or mended: the owners of its CPUs may not get them"

MOST_SWEEPS = 30
"""A partition that the kernel refused is tried at ever fewer sweeps, in the end every five minutes."""


@dataclass(slots=True)
class RefusedPartition:
    """A partition that the kernel did not grant.

    Attributes:
        partition: the partition.
        trouble: the kernel's answer.
        pause: sweeps from one try to the next.
        left: how many of them are still to come.
    """

    partition: Partition
    trouble: str
    pause: int = 1
    left: int = 1


class KernelSettingsReconciler:
    """Writes the settings of `nri_plugin.core.kernel_settings` where they differ, in slices.

    Args:
        handler: knows the state.
        loop: where it runs.
        log: a line for what changes, and for what fails.
        writer: of sandboxes and partitions.
        cpu_quotas: None where the node has none that we see.

    The counts may be read by any thread.
    """

    def __init__(
        self,
        handler: Handler,
        loop: Loop,
        log: logging.Logger,
        writer: PartitionWriter,
        cpu_quotas: QuotaReconciler | None,
    ) -> None:
        self._handler, self._loop, self._log = handler, loop, log
        self._writer, self._quotas = writer, cpu_quotas
        self._former: State | None = handler.state  # an agent that ended may have made partitions for these
        self._reconciled = handler.state
        self._refused: dict[CgroupRef, RefusedPartition] = {}
        self._steps: Iterator[None] = iter(())
        self._is_due = False
        self._sandboxes_done: dict[CgroupRef, CPUSet] = {}
        self._trouble = LogRateLimit()

    @property
    def lifted(self) -> int:
        """Cgroups without the CPU quota they would have."""
        return self._quotas.lifted if self._quotas is not None else 0

    @property
    def watches(self) -> int:
        """Watches the kernel holds for us."""
        return self._quotas.watches if self._quotas is not None else 0

    @property
    def partitions(self) -> int:
        """Partitions that are made."""
        return len(self._writer)

    @property
    def refused(self) -> int:
        """Partitions that the kernel did not grant."""
        return len(self._refused)

    def start(self) -> None:
        """Begin the sweep, and to listen."""
        if self._quotas is not None:
            self._quotas.start()
        self._loop.set_timer("kernel settings sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def __call__(self, outcome: RequestOutcome) -> None:
        """Take note of an outcome: its consequences are written soon after the answer."""
        if isinstance(outcome.event, Synchronize):
            self._former = self._former or self._handler.state
            self.look_again()
        elif outcome.decision.state is not outcome.before:
            self.look_again()
        if self._quotas is not None and isinstance(outcome.event, UPDATES):
            self._quotas.updated(_cgroup_parent(outcome.decision.state, outcome.event.pod))

    def look_again(self) -> None:
        """Soon; something changed that may have ended a partition: a cpuset beside it, the machine."""
        if not self._is_due:
            self._is_due = True
            self._loop.set_timer("kernel settings", self._loop.clock() + FOLLOW_S, self._begin)

    def _sweep(self) -> None:
        """Look at everything again, also at settings that were right before."""
        self._sandboxes_done = dict.fromkeys(self._sandboxes_done, NO_CPUS)
        if self._quotas is not None:
            self._quotas.doubt_all()
        for one in self._refused.values():
            one.left -= 1
        self._begin()
        self._loop.set_timer("kernel settings sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _begin(self) -> None:
        """Begin with the state as it is now; settings that are done are passed over."""
        self._is_due = False
        self._steps = self._reconcile()
        self._go_on()

    def _go_on(self) -> None:
        try:
            taken = sum(1 for _ in islice(self._steps, SLICE))
        except Exception:  # noqa: BLE001 - whatever is wrong here, containers go on being placed
            say_trace(self._log, "internal error while quotas, sandboxes and partitions were reconciled")
            return
        if taken == SLICE:
            self._loop.set_timer("kernel settings slice", self._loop.clock(), self._go_on)

    def _reconcile(self) -> Iterator[None]:
        """Yield after each step, which is a file or a few."""
        node, state = self._handler.node, self._handler.state
        self._reconciled = state
        pool, rest = state.shared_pool(node), dict(sandboxes(node, state))
        wanted = {one.target: one for one in partitions(node, state)}
        # A partition ends before a sandbox gets its CPUs: a sibling with one of them would make it invalid.
        self._end_partitions(wanted)
        yield from self._write_sandboxes(pool, rest)
        # Sandboxes leave the CPUs of a partition before it is made, for the same reason.
        yield from self._make_partitions(node, state, wanted)
        if self._quotas is not None:
            yield from self._quotas.reconcile(quotas(node, state))

    def _end_partitions(self, wanted: dict[CgroupRef, Partition]) -> None:
        if self._former is not None:
            for trouble in self._writer.adopt(self._former, self._handler.state):
                self._say(PARTITION_STAYS, trouble)
            self._former = None
        for trouble in self._writer.end_others(self._handler.node, wanted, self._loop.clock()):
            self._say(PARTITION_STAYS, trouble)

    def _make_partitions(
        self, node: Node, state: State, wanted: dict[CgroupRef, Partition]
    ) -> Iterator[None]:
        """Make partitions; the sweep tries refused ones again, and a changed reason is logged."""
        for ref in [ref for ref, one in self._refused.items() if wanted.get(ref) != one.partition]:
            del self._refused[ref]
        waiting = {ref for ref, one in self._refused.items() if one.left > 0}
        due = {ref: one for ref, one in wanted.items() if ref not in waiting}
        for settled in self._writer.make(node, state, due):
            one, refused = settled.partition, self._refused.get(settled.partition.target)
            if not settled.trouble:
                self._refused.pop(one.target, None)
                self._tell_partition(logging.INFO, "partition made", one)
            elif refused is not None and refused.trouble == settled.trouble:
                refused.pause = refused.left = min(2 * refused.pause, MOST_SWEEPS)
            else:
                self._refused[one.target] = RefusedPartition(one, settled.trouble)
                self._tell_partition(
                    logging.WARNING, "no partition, it has an ordinary cpuset", one, err=settled.trouble
                )
            yield

    def _tell_partition(self, level: int, text: str, one: Partition, **fields: object) -> None:
        say(self._log, level, text, container=one.container_id, cpus=one.cpus, kind=one.kind, **fields)

    def _write_sandboxes(self, pool: CPUSet, wanted: dict[CgroupRef, CPUSet]) -> Iterator[None]:
        """Some runtimes make no sandbox, and then there is nothing to write until the next sweep either.

        A sandbox that needs no cpuset any more gets the current pool, which is every CPU where nothing is pinned.
        """
        done = self._sandboxes_done
        for ref in done.keys() - wanted.keys():
            del done[ref]
            if pool:
                self._write_sandbox(ref, pool)
            yield
        for ref, cpus in wanted.items():
            if done.get(ref) != cpus:
                if self._write_sandbox(ref, cpus):
                    done[ref] = cpus
                yield

    def _write_sandbox(self, ref: CgroupRef, cpus: CPUSet) -> bool:
        node, state = self._handler.node, self._handler.state
        try:
            self._writer.write_sandbox(node, state, ref, cpus)
        except HostError as error:
            self._say(SANDBOX_STAYS, error)
            return False
        except InvariantError as error:
            # The pool of an earlier slice may hold CPUs that are exclusive by now; the next round has the new pool.
            if state is self._reconciled:
                self._say(SANDBOX_STAYS, error)
            return False
        return True

    def _say(self, text: str, error: NriPinError) -> None:
        if self._trouble.is_due(str(error), self._loop.clock()):
            say(self._log, logging.WARNING, text, todo=REMEDY, err=error)


def _cgroup_parent(state: State, told: Pod) -> str:
    """The pod's cgroup, also when the event brings only the sandbox id; empty for an unknown pod."""
    pod = state.pods.get(told.uid)
    pod = pod or next((one for one in state.pods.values() if one.sandbox_id == told.id), None)
    return pod.cgroup_parent if pod is not None else ""
