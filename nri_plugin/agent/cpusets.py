"""Giving every container all CPUs again, so that nothing of us is left on a node.

Order: partitions end from the leaves up, then sets are widened from the slices down: at no moment has a container
less than before. Nothing is emptied, for the kernel refuses to clear a set of a cgroup that has processes, and no
cgroup that was never given a set gets one; what somebody narrowed above is named and left. Memory nodes stay: taking
pages along would hold processes up.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from nri_plugin.core.decision import CpusetWrite
from nri_plugin.core.drift import Observed, Target
from nri_plugin.core.kernel_settings import QuotaWrite, limits, promised
from nri_plugin.core.pool import floor_writes
from nri_plugin.core.requests import qos_slices, slice_pattern
from nri_plugin.host.cgroup import Cgroups, WriteOutcome
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.partitions import end_all
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import CgroupRef, State
from nri_plugin.process.logs import say

# ----------------------------------------------------------------------------------------------------
# Cpuset writes of a decision, all or none, and what the kernel made of them.


MOST_UNWRITTEN = 64
"""So many are tried again while the runtime waits; the sweep looks after all, without anybody waiting."""


class CgroupFiles(Protocol):
    """The part of `nri_plugin.host.cgroup.Cgroups` that is used here; its docstrings hold."""

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet, *, compare: bool = True) -> WriteOutcome:
        """Set the cpuset."""

    def read_effective(self, ref: CgroupRef) -> CPUSet | None:
        """The CPUs the kernel grants."""

    def is_removed(self, ref: CgroupRef) -> bool:
        """Whether the cgroup is gone."""

    def missing_error(self, ref: CgroupRef) -> HostError:
        """Why there is nothing to write to."""

    def observe(self, ref: CgroupRef) -> tuple[CPUSet | None, CPUSet | None] | None:
        """What it was given and what its processes run on."""

    def directories(self, ref: CgroupRef) -> list[str]:
        """Where its cpuset files are."""

    def make_room(self, ref: CgroupRef, cpus: CPUSet) -> None:
        """See that nothing above keeps it from holding `cpus`."""


class WriteError(HostError):
    """One of several writes failed; `done` are those before it, and itself: it may have been half done.

    Half done: of a container with cgroups of its own below, some were changed before one refused.
    """

    def __init__(self, cause: HostError, done: Sequence[CpusetWrite]) -> None:
        super().__init__(cause.path, cause.detail)
        self.done = tuple(done)


class Effects:
    """Carries out the writes of decisions.

    Args:
        cgroups: the tree, None where there is none and the runtime is asked instead.

    Attributes:
        outcomes: what became of the writes since somebody last cleared it.
        unwritten: the latest writes that failed and left a cgroup other than it should be, since somebody last
            cleared it.
    """

    def __init__(self, cgroups: CgroupFiles | None) -> None:
        self.outcomes: Counter[WriteOutcome] = Counter()
        self.unwritten: deque[CpusetWrite] = deque(maxlen=MOST_UNWRITTEN)
        self._cgroups = cgroups

    def carry_out(self, writes: Sequence[CpusetWrite]) -> None:
        """Write in the given order, which is shrinking before growing, and stop at the first failure.

        Raises:
            WriteError: a write failed.
        """
        for number, write in enumerate(writes):
            try:
                self._write(write, write.cpus)
            except HostError as error:
                raise WriteError(error, writes[: number + 1]) from None

    def attempt(self, writes: Sequence[CpusetWrite]) -> Iterator[HostError]:
        """Write as many as can be; yields what failed."""
        for write in writes:
            try:
                self._write(write, write.cpus)
            except HostError as error:
                self.unwritten.append(write)
                yield error

    def undo(self, node: Node, before: State, done: Sequence[CpusetWrite]) -> Iterator[HostError]:
        """Put back what `before` promised_cpus, last write first, so that shrinking precedes growing here too.

        What was not changed after all is left alone.
        """
        for write in reversed(done):
            try:
                self._write(replace(write, compare=True), promised_cpus(node, before, write))
            except HostError as error:
                self.unwritten.append(write)
                yield error

    def read_effective(self, target: CgroupRef) -> CPUSet | None:
        """The CPUs the kernel grants, None when there is no such cgroup.

        Raises:
            HostError: unreadable.
        """
        return self._cgroups.read_effective(target) if self._cgroups else None

    def is_removed(self, target: CgroupRef) -> bool:
        """Whether the cgroup is gone; False where nobody can tell."""
        return self._cgroups is not None and self._cgroups.is_removed(target)

    def observe(self, target: Target) -> Observed | None:
        """The cgroup as it is, None when it is gone.

        Raises:
            HostError: unreadable.
        """
        found = self._cgroups.observe(target.cgroup) if self._cgroups else None
        return Observed(target, *found) if found else None

    def directories(self, target: CgroupRef) -> list[str]:
        """Directories with its cpuset files.

        Raises:
            HostError: its name leaves the tree.
        """
        return self._cgroups.directories(target) if self._cgroups else []

    def _write(self, write: CpusetWrite, cpus: CPUSet) -> None:
        if self._cgroups is None:
            raise HostError("cgroup root", f"no cgroup tree to write {cpus} to; set cgroupRoot")
        if write.make_room:
            self._cgroups.make_room(write.target, cpus)
        outcome = self._cgroups.write_cpus(write.target, cpus, compare=write.compare)
        self.outcomes[outcome] += 1
        if outcome is WriteOutcome.MISSING and write.must_exist:
            raise self._cgroups.missing_error(write.target)


def promised_cpus(node: Node, state: State, write: CpusetWrite) -> CPUSet:
    """What the cgroup of `write` should hold by `state`: a container's CPUs, or the pool for a slice."""
    record = state.containers.get(write.container_id)
    return state.desired_cpus(node, record) if record else state.shared_pool(node)


# ----------------------------------------------------------------------------------------------------
# Opens the Burstable and BestEffort slices again where `poolFloor` has been switched off.
#
# What was written to a slice outlives the agent that wrote it. Left there it would keep containers off promised CPUs
# for ever: a Burstable container with exclusive CPUs off its own, and everything else after an uninstall.


class Slices(Protocol):
    """What lifting needs of a cgroup tree."""

    @property
    def version(self) -> int:
        """1 or 2; version 1 has no floor."""

    def read_cpus(self, ref: CgroupRef) -> CPUSet | None:
        """What a cgroup was given; None when it does not exist."""

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet) -> object:
        """Give it something else."""


def lift_floor(cgroups: Slices | None, node: Node, state: State, log: logging.Logger) -> None:
    """Give slices that say what a floor would say all online CPUs; those that say anything else are somebody's own.

    Does nothing while the floor is on.
    """
    if cgroups is None or cgroups.version == 1 or node.options.pool_floor:
        return
    on = replace(node.options, pool_floor=True, cpu_manager_policy=CPUManagerPolicy.STATIC)
    for write in floor_writes(replace(node, options=on), state, state.pods.values()):
        try:
            found = cgroups.read_cpus(write.target)
            if found and is_floor(found, node, state):
                cgroups.write_cpus(write.target, node.topology.online)
                say(log, logging.INFO, "pool floor lifted", cgroup=write.target.parent, was=found)
        except HostError as error:
            say(log, logging.WARNING, "pool floor not lifted", err=error)


def is_floor(cpus: CPUSet, node: Node, state: State) -> bool:
    """Whether `cpus` are narrowed by what is promised, or also by what is reserved, and by nothing else."""
    online, kept = node.topology.online, state.exclusive | node.reserved
    return cpus != online and not cpus & state.exclusive and cpus | kept == online | kept


# ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Released:
    """What became of it.

    Attributes:
        widened: cgroups that were given all CPUs.
        already: cgroups that had them.
        gone: containers of the checkpoint that are no more.
        limited: cgroups whose CPU quota was put back.
        failures: one sentence each.
    """

    widened: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def release(cgroups: Cgroups, state: State, online: CPUSet) -> Released:
    """Give `online` to the slices, sandboxes and containers of `state`; whatever fails, the rest is done.

    Quotas that were lifted come back: what runs on everybody's CPUs has the limit it asked for.
    """
    found = Released()
    containers = [record.cgroup for record in state.containers.values() if record.cgroup.path]
    sandboxes = [
        CgroupRef(pod.cgroup_parent, pod.sandbox_path) for pod in state.pods.values() if pod.sandbox_path
    ]
    if cgroups.version == 2:
        found.failures += map(str, end_all(cgroups.tree.directory, promised(state), online))
    for ref in (*slices_of(state), *sandboxes):
        _guarded(found, _widen_if_set, cgroups, ref, online, found)
    for ref in containers:
        _guarded(found, _widen, cgroups, ref, online, found)
    quotas = CPUQuotas.beside(cgroups.tree)
    for write in limits(state) if quotas else ():
        _guarded(found, _limit, quotas, write, found)
    return found


def slices_of(state: State) -> list[CgroupRef]:
    """The Burstable and BestEffort slices of all pods known."""
    patterns = {slice_pattern(pod.cgroup_parent) for pod in state.pods.values()}
    return [ref for pattern in sorted(patterns) for ref in qos_slices(pattern)]


def _guarded(found: Released, step: object, *arguments: object) -> None:
    assert callable(step)
    try:
        step(*arguments)
    except HostError as error:
        found.failures.append(str(error))


def _limit(quotas: CPUQuotas, write: QuotaWrite, found: Released) -> None:
    if quotas.set(write.target, write.quota_us):
        found.limited.append(write.target.path or write.target.parent)


def _widen_if_set(cgroups: Cgroups, ref: CgroupRef, online: CPUSet, found: Released) -> None:
    if cgroups.read_cpus(ref):  # one without a set of its own has its parent's
        _widen(cgroups, ref, online, found)


def _widen(cgroups: Cgroups, ref: CgroupRef, online: CPUSet, found: Released) -> None:
    name = ref.path or ref.parent
    outcome = cgroups.write_cpus(ref, online)
    if outcome is WriteOutcome.MISSING:
        found.gone.append(name)
        return
    (found.widened if outcome is WriteOutcome.WRITTEN else found.already).append(name)
    left = cgroups.read_effective(ref)
    if left is not None and left != online:
        found.failures.append(f"{name} runs on {left} still, not on {online}: something above it holds less")
