"""Reconciles the kernel settings beside the cpusets of containers: cpusets of sandboxes, partitions, CPU quotas.

`core.kernel_settings` derives the desired settings from the state. Two reconcilers write them:

* `KernelSettingsReconciler` compares all settings `FOLLOW_S` after each change of the state, and every `SWEEP_PAUSE_S`.
* `QuotaReconciler` reacts to single quotas as well. The kubelet writes the quota of a pod once a second while a resize is
  pending. An inotify watch reports such a write, and the quota is lifted in the next round of the loop.

Both work in slices of `SLICE` files. The loop answers the runtime between two slices. No answer waits for these settings:
a failure costs a log line and another attempt.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from nri_plugin.agent.cpusets import PartitionWriter
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.kernel_settings import (
    NO_QUOTA,
    Partition,
    QuotaWrite,
    partitions,
    quotas,
    sandboxes,
)
from nri_plugin.host.cgroup_watch import CgroupWatch
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.model.errors import HostError, InvariantError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import LogRateLimit, Repeats, say, say_trace
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri.events import (
    PostUpdateContainer,
    PostUpdatePodSandbox,
    Synchronize,
    UpdateContainer,
    UpdatePodSandbox,
)

SLICE = 32
"""Files that are handled without a break: a millisecond or two, as long as the runtime may wait for the agent."""

REMEDY = (
    "the agent tries again every 10 s; if this goes on, see that it may write the file named in err: as root, with the "
    "cgroup tree mounted read-write"
)

# CPU quotas

DEAF_S = 0.05
"""Seconds without listening after each notice of the kernel. A quota that was written back is gone within 100 ms, and
another writer that never stops costs 20 short rounds a second."""

UPDATE_S = 0.05
"""Seconds from an update of the runtime to a check. The kubelet writes the pod's cgroup just before or after it."""

QUOTA_STAYS = "CPU quota not changed: a container with exclusive CPUs may be throttled"
UNWATCHED = (
    "quotas cannot be watched; only updates and the periodic sweep find a CPU quota that was written back"
)

NoticedBy = Literal["watch", "update", "sweep"]
Counted = Callable[[NoticedBy], None]


class QuotaReconciler:
    """Writes the CPU quotas of cgroups where they are not the desired ones.

    It never backs off: a container with exclusive CPUs would be throttled meanwhile. `DEAF_S` bounds the work instead.

    Args:
        files: the quotas.
        watch: reports cgroups whose quota was written; None where the kernel gives no watch.
        loop: runs the work.
        log: takes one line for the first change of each quota, and one for each cgroup with another writer.
        counted: called for every quota that was written back and lifted again.

    Attributes:
        lifted: cgroups without the CPU quota that the kubelet gave them; safe to read from any thread.
    """

    def __init__(
        self,
        files: CPUQuotas,
        watch: CgroupWatch[CgroupRef] | None,
        loop: Loop,
        log: logging.Logger,
        counted: Counted,
    ) -> None:
        self._files, self._watch, self._loop, self._log = files, watch, loop, log
        self._counted = counted
        self._desired: dict[CgroupRef, int] = {}  # microseconds, or NO_QUOTA
        self._applied: dict[CgroupRef, int] = {}  # as found or written last
        self._unverified: set[CgroupRef] = set()  # to be read again by the next `reconcile`
        self._queue: dict[CgroupRef, NoticedBy] = {}  # to be read again by the next slices
        self._updated_pods: set[str] = set()
        self._written_back: Repeats[CgroupRef] = Repeats()
        self._trouble, self._no_watch = LogRateLimit(), LogRateLimit()
        self.lifted = 0

    @property
    def watches(self) -> int:
        """Directories that the kernel watches."""
        return len(self._watch) if self._watch is not None else 0

    def start(self) -> None:
        """Listen to the watch."""
        if self._watch is not None:
            self._loop.watch(self._watch, self._on_watch)

    def verify_all(self) -> None:
        """Let the next `reconcile` read every quota again."""
        self._unverified |= self._desired.keys()

    def reconcile(self, desired: Iterable[QuotaWrite]) -> Iterator[None]:
        """Apply these quotas and forget all others; yields after each cgroup that was read."""
        former, self._desired = self._desired, {one.target: one.quota_us for one in desired}
        for ref in former.keys() - self._desired.keys():
            self._forget(ref)
        for ref, quota_us in list(self._desired.items()):
            if ref in self._unverified or self._applied.get(ref) != quota_us:
                self._apply(ref, quota_us, "sweep")
                yield
        self.lifted = sum(1 for quota_us in self._applied.values() if quota_us == NO_QUOTA)

    def updated(self, cgroup_parent: str) -> None:
        """Check the quotas of a pod soon: the runtime was asked to update the pod or a container of it."""
        self._updated_pods.add(cgroup_parent)
        self._loop.set_timer("quotas updated", self._loop.clock() + UPDATE_S, self._check_updated_pods)

    def _on_watch(self) -> None:
        """Check the quotas that were written, and listen again after `DEAF_S`."""
        if self._watch is None:
            return
        changed = self._watch.read()  # None: notices were lost
        self._loop.forget(self._watch)
        self._loop.set_timer("quotas heard", self._loop.clock() + DEAF_S, self.start)
        self._check(self._desired if changed is None else changed, "watch")

    def _check_updated_pods(self) -> None:
        pods, self._updated_pods = self._updated_pods, set()
        self._check([ref for ref in self._desired if ref.parent in pods], "update")

    def _check(self, refs: Iterable[CgroupRef], noticed_by: NoticedBy) -> None:
        for ref in refs:
            # A quota that the agent wants is not defended: the kubelet may have changed the limit.
            if self._desired.get(ref) == NO_QUOTA:
                self._queue.setdefault(ref, noticed_by)
        self._do_slice()

    def _do_slice(self) -> None:
        batch = {ref: self._queue.pop(ref) for ref in list(self._queue)[:SLICE]}
        if self._queue:
            self._loop.set_timer("quotas slice", self._loop.clock(), self._do_slice)
        try:
            for ref, noticed_by in batch.items():
                self._apply(ref, NO_QUOTA, noticed_by)
        except Exception:  # noqa: BLE001 - an error here must not keep containers from being placed
            say_trace(self._log, "internal error, a CPU quota was not lifted")

    def _forget(self, ref: CgroupRef) -> None:
        self._applied.pop(ref, None)
        self._queue.pop(ref, None)
        self._unverified.discard(ref)
        self._written_back.forget(ref)
        if self._watch is not None:
            self._watch.discard(ref)

    def _apply(self, ref: CgroupRef, quota_us: int, noticed_by: NoticedBy) -> None:
        """Write the quota where it differs; a failure is logged and tried again by the next `reconcile`."""
        self._unverified.discard(ref)
        try:
            # The watch comes before the read, so that no write in between goes unnoticed.
            self._watch_where_lifted(ref, quota_us)
            is_changed = self._files.set(ref, quota_us)
        except HostError as error:
            self._applied.pop(ref, None)
            if self._trouble.is_due(str(error), self._loop.clock()):
                say(self._log, logging.WARNING, QUOTA_STAYS, todo=REMEDY, err=error)
            return
        if is_changed:
            self._report(ref, quota_us, noticed_by)
        self._applied[ref] = quota_us

    def _watch_where_lifted(self, ref: CgroupRef, quota_us: int) -> None:
        """Watch the cgroup while it must have no quota.

        Raises:
            HostError: the name of the cgroup leaves the tree.
        """
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

    def _report(self, ref: CgroupRef, quota_us: int, noticed_by: NoticedBy) -> None:
        """Log and count a change.

        The counter has every quota that was written back; the log has one line for each cgroup. It is not a warning: the
        kubelet and systemd write quotas in normal operation, and no harm is left.
        """
        cgroup = ref.path or ref.parent
        if quota_us != NO_QUOTA:
            say(self._log, logging.INFO, "CPU quota restored", cgroup=cgroup)
        elif self._applied.get(ref) != NO_QUOTA:
            say(self._log, logging.INFO, "CPU quota lifted", cgroup=cgroup)
        else:
            self._counted(noticed_by)
            if self._written_back.is_first(ref, "", self._loop.clock()):
                text = "CPU quota was written back and lifted again"
                say(self._log, logging.INFO, text, cgroup=cgroup, noticed_by=noticed_by)


# All settings

SWEEP_PAUSE_S = 10.0
"""Seconds between two sweeps, which read every setting again."""

FOLLOW_S = 0.05
"""Seconds from an event to the reconciliation of its consequences. A burst of events causes one."""

UPDATES = (UpdateContainer, PostUpdateContainer, UpdatePodSandbox, PostUpdatePodSandbox)
"""The kubelet writes quotas, or lets the runtime write them, when it asks for one of these."""

SANDBOX_STAYS = "cpuset of a pod's sandbox not written: it may run on exclusive CPUs of containers"
PARTITION_STAYS = "partition not ended or repaired: the owners of its CPUs may not get them"

MOST_SWEEPS = 30
"""The longest pause, in sweeps, between two attempts at a partition that the kernel refused: five minutes."""


@dataclass(slots=True)
class RefusedPartition:
    """A partition that the kernel refused.

    Attributes:
        partition: the partition.
        trouble: the kernel's reason.
        pause: sweeps from one attempt to the next; doubles with each refusal for the same reason.
        left: sweeps until the next attempt.
    """

    partition: Partition
    trouble: str
    pause: int = 1
    left: int = 1


class KernelSettingsReconciler:
    """Writes the settings of `nri_plugin.core.kernel_settings` where they differ, in slices.

    Its counts are safe to read from any thread.

    Args:
        handler: has node and state.
        loop: runs the work.
        log: takes a line for each change, and for each failure.
        writer: of sandboxes and partitions.
        cpu_quotas: None on a node without a `cpu` controller that the agent can see.
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
        # An earlier agent may have made partitions for the allocations of this state; None once they were adopted.
        self._to_adopt: State | None = handler.state
        self._reconciled = handler.state
        self._refused: dict[CgroupRef, RefusedPartition] = {}
        self._steps: Iterator[None] = iter(())
        self._is_due = False
        self._written_sandboxes: dict[CgroupRef, CPUSet] = {}
        self._trouble = LogRateLimit()

    @property
    def lifted(self) -> int:
        """Cgroups without the CPU quota that the kubelet gave them."""
        return self._quotas.lifted if self._quotas is not None else 0

    @property
    def watches(self) -> int:
        """Directories that the kernel watches."""
        return self._quotas.watches if self._quotas is not None else 0

    @property
    def partitions(self) -> int:
        """Partitions that exist."""
        return len(self._writer)

    @property
    def returning(self) -> CPUSet:
        """CPUs of ended partitions that the kernel has not given back yet."""
        return self._writer.returning

    @property
    def refused(self) -> int:
        """Partitions that the kernel refused."""
        return len(self._refused)

    # When to reconcile

    def start(self) -> None:
        """Start the sweep, and listen to the watch of quotas."""
        if self._quotas is not None:
            self._quotas.start()
        self._loop.set_timer("kernel settings sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def __call__(self, outcome: RequestOutcome) -> None:
        """Observe an outcome: its consequences are written soon after the answer."""
        if isinstance(outcome.event, Synchronize):
            self._to_adopt = self._to_adopt or self._handler.state
            self.reconcile_soon()
        elif outcome.decision.state is not outcome.before:
            self.reconcile_soon()
        if self._quotas is not None and isinstance(outcome.event, UPDATES):
            told, state = outcome.event.pod, outcome.decision.state
            # The event may have only the id of the sandbox.
            pod = state.pods.get(told.uid) or state.pod_of_sandbox(told.id)
            self._quotas.updated(pod.cgroup_parent if pod is not None else "")

    def reconcile_soon(self) -> None:
        """Reconcile after `FOLLOW_S`, also where a drifted cpuset or a change of the machine may have ended a partition."""
        if not self._is_due:
            self._is_due = True
            self._loop.set_timer("kernel settings", self._loop.clock() + FOLLOW_S, self._begin)

    def _sweep(self) -> None:
        """Reconcile all settings, also those that were right before."""
        self._written_sandboxes = dict.fromkeys(self._written_sandboxes, NO_CPUS)
        if self._quotas is not None:
            self._quotas.verify_all()
        for one in self._refused.values():
            one.left -= 1
        self._begin()
        self._loop.set_timer("kernel settings sweep", self._loop.clock() + SWEEP_PAUSE_S, self._sweep)

    def _begin(self) -> None:
        # A reconciliation that is under way is dropped: the new one starts from the current state and passes over the
        # settings that are right already.
        self._is_due = False
        self._steps = self._reconcile()
        self._do_slice()

    def _do_slice(self) -> None:
        try:
            taken = sum(1 for _ in islice(self._steps, SLICE))
        except Exception:  # noqa: BLE001 - an error here must not keep containers from being placed
            say_trace(self._log, "internal error while quotas, sandboxes and partitions were reconciled")
            return
        if taken == SLICE:
            self._loop.set_timer("kernel settings slice", self._loop.clock(), self._do_slice)

    # What to reconcile

    def _reconcile(self) -> Iterator[None]:
        """Apply all settings; yields after each step, which is one file or a few."""
        node, state = self._handler.node, self._handler.state
        self._reconciled = state
        pool, desired_sandboxes = state.shared_pool(node), dict(sandboxes(node, state))
        desired = {one.target: one for one in partitions(node, state)}
        # A partition ends before a sandbox gets its CPUs: a sibling with one of them would make it invalid.
        self._end_partitions(desired)
        yield from self._write_sandboxes(pool, desired_sandboxes)
        # Sandboxes leave the CPUs of a partition before it is made, for the same reason.
        yield from self._make_partitions(node, state, desired)
        if self._quotas is not None:
            yield from self._quotas.reconcile(quotas(node, state))

    def _end_partitions(self, desired: dict[CgroupRef, Partition]) -> None:
        if self._to_adopt is not None:
            for trouble in self._writer.adopt(self._to_adopt, self._handler.state):
                self._warn(PARTITION_STAYS, trouble)
            self._to_adopt = None
        for trouble in self._writer.end_others(self._handler.node, desired, self._loop.clock()):
            self._warn(PARTITION_STAYS, trouble)

    def _make_partitions(
        self, node: Node, state: State, desired: dict[CgroupRef, Partition]
    ) -> Iterator[None]:
        """Make partitions. A refused one waits for its sweep; it is logged again when the reason changes."""
        for ref in [ref for ref, one in self._refused.items() if desired.get(ref) != one.partition]:
            del self._refused[ref]
        waiting = {ref for ref, one in self._refused.items() if one.left > 0}
        due = {ref: one for ref, one in desired.items() if ref not in waiting}
        for settled in self._writer.make(node, state, due):
            one, refused = settled.partition, self._refused.get(settled.partition.target)
            fields = {"container": one.container_id, "cpus": one.cpus, "kind": one.kind}
            if not settled.trouble:
                self._refused.pop(one.target, None)
                say(self._log, logging.INFO, "partition made", **fields)
            elif refused is not None and refused.trouble == settled.trouble:
                refused.pause = refused.left = min(2 * refused.pause, MOST_SWEEPS)
            else:
                self._refused[one.target] = RefusedPartition(one, settled.trouble)
                text = "no partition, it has an ordinary cpuset"
                say(self._log, logging.WARNING, text, **fields, err=settled.trouble)
            yield

    def _write_sandboxes(self, pool: CPUSet, desired: dict[CgroupRef, CPUSet]) -> Iterator[None]:
        """Write the cpusets of sandboxes. Some runtimes make no sandbox; that is seen again at the next sweep.

        A sandbox that needs no cpuset any more gets the shared pool, which is every CPU where nothing is exclusive.
        """
        written = self._written_sandboxes
        for ref in written.keys() - desired.keys():
            del written[ref]
            if pool:
                self._write_sandbox(ref, pool)
            yield
        for ref, cpus in desired.items():
            if written.get(ref) != cpus:
                if self._write_sandbox(ref, cpus):
                    written[ref] = cpus
                yield

    def _write_sandbox(self, ref: CgroupRef, cpus: CPUSet) -> bool:
        node, state = self._handler.node, self._handler.state
        try:
            self._writer.write_sandbox(node, state, ref, cpus)
        except HostError as error:
            self._warn(SANDBOX_STAYS, error)
            return False
        except InvariantError as error:
            # The state may have changed since the first slice, and `cpus` may be exclusive now. The change has caused
            # another reconciliation, with another pool.
            if state is self._reconciled:
                self._warn(SANDBOX_STAYS, error)
            return False
        return True

    def _warn(self, text: str, error: NriPinError) -> None:
        if self._trouble.is_due(str(error), self._loop.clock()):
            say(self._log, logging.WARNING, text, todo=REMEDY, err=error)
