"""The only writer of `cpuset.cpus` and partitions, behind the independent validator.

Invariant: nothing in this module writes a value that `nri_plugin.core.validator` has not passed. No other module may
import the writing parts of `nri_plugin.host`.

* Decisions: `check` judges a decision as a whole and returns its writes as `CheckedWrites`, before anything is saved.
  `CpusetWriter` takes nothing else. Repairs of drift are decisions, too. What is taken back is judged write by write.
* Sandboxes and partitions of running containers: `PartitionWriter`.
* The slices of a pool floor that has been switched off: `lift_floor`.
* All cgroups, when the agent leaves the node: `release`.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.drift import Observed, OwnEvent, Target
from nri_plugin.core.kernel_settings import Partition, allocated_cgroups, limits
from nri_plugin.core.pool import floor_writes
from nri_plugin.core.requests import qos_slices, slice_pattern
from nri_plugin.core.validator import (
    new_violations,
    opening_violations,
    partition_violations,
    write_violations,
)
from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.mounts import CpusetTree
from nri_plugin.host.partitions import ON_V1, Partitions, Settled, end_all
from nri_plugin.model.errors import HostError, InvariantError, NriPinError
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import CgroupRef, State
from nri_plugin.process.logs import say
from nri_plugin.wire.nri.events import NRIEvent

MOST_UNWRITTEN = 64
"""So many failed writes are tried again while the runtime waits; the sweep finds all others, and nobody waits for it."""


class CgroupFiles(Protocol):
    """The part of `nri_plugin.host.cgroup_write.WritableCgroups` that is used here; its docstrings hold."""

    @property
    def version(self) -> int:
        """1 or 2."""

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet, *, compare: bool = True) -> WriteOutcome:
        """Set the cpuset."""

    def read_cpus(self, ref: CgroupRef) -> CPUSet | None:
        """Return the CPUs a cgroup was given."""

    def make_room(self, ref: CgroupRef, cpus: CPUSet) -> None:
        """Widen the cgroups above where they keep it from holding `cpus`."""

    def read_effective(self, ref: CgroupRef) -> CPUSet | None:
        """Return the CPUs the kernel grants."""

    def is_removed(self, ref: CgroupRef) -> bool:
        """Return whether the cgroup is gone."""

    def missing_error(self, ref: CgroupRef) -> HostError:
        """Return why there is nothing to write to."""

    def observe(self, ref: CgroupRef) -> tuple[CPUSet | None, CPUSet | None] | None:
        """Return the CPUs it was given and those its processes run on."""

    def directories(self, ref: CgroupRef) -> list[str]:
        """Return where its cpuset files are."""


# Decisions


@dataclass(frozen=True, slots=True)
class CheckedWrites:
    """Writes that the validator has passed. Only `check` makes one."""

    writes: tuple[CpusetWrite, ...]


def check(node: Node, before: State, event: NRIEvent | OwnEvent, decision: Decision) -> CheckedWrites:
    """Judge a whole decision: state, response and writes.

    Raises:
        InvariantError: it would break something that was sound before.
    """
    violations = new_violations(node, before, event, decision)
    if violations:
        raise InvariantError(violations, decision.steps)
    return CheckedWrites(decision.writes)


class WriteError(HostError):
    """One of several writes failed; `done` are those before it, and itself: it may have been half done.

    Half done: a container may have cgroups of its own, and some were changed before one refused.
    """

    def __init__(self, cause: HostError, done: Sequence[CpusetWrite]) -> None:
        super().__init__(cause.path, cause.detail)
        self.done = tuple(done)


class CpusetWriter:
    """Writes and reads the cpusets of containers and slices.

    Args:
        cgroups: the tree; None where there is none and the runtime updates containers instead.

    Attributes:
        outcomes: counts the results of writes; the handler clears it at every event.
        unwritten: the latest writes that failed and left a cgroup other than it should be; the handler clears it.
    """

    def __init__(self, cgroups: CgroupFiles | None) -> None:
        self.outcomes: Counter[WriteOutcome] = Counter()
        self.unwritten: deque[CpusetWrite] = deque(maxlen=MOST_UNWRITTEN)
        self._cgroups = cgroups

    @classmethod
    def on(cls, tree: CpusetTree | None) -> Self:
        """Return a writer for the cgroups of `tree`."""
        return cls(WritableCgroups(tree) if tree is not None else None)

    def apply(self, checked: CheckedWrites) -> None:
        """Write in the given order, which is shrinking before growing, and stop at the first failure.

        Raises:
            WriteError: a write failed.
        """
        for number, write in enumerate(checked.writes):
            try:
                self._write(write)
            except HostError as error:
                raise WriteError(error, checked.writes[: number + 1]) from None

    def attempt(self, checked: CheckedWrites) -> Iterator[HostError]:
        """Write as many as can be written; yield what failed."""
        for write in checked.writes:
            try:
                self._write(write)
            except HostError as error:
                self.unwritten.append(write)
                yield error

    def undo(self, node: Node, before: State, done: Sequence[CpusetWrite]) -> Iterator[NriPinError]:
        """Put back what `before` desires, last write first, so that shrinking precedes growing here, too.

        A cgroup that did not change is left alone.
        """
        for write in reversed(done):
            back = replace(write, cpus=_desired_cpus(node, before, write), compare=True)
            try:
                _refuse(write_violations(node, before, back))
                self._write(back)
            except (HostError, InvariantError) as error:
                self.unwritten.append(write)
                yield error

    def read_effective(self, target: CgroupRef) -> CPUSet | None:
        """Return the CPUs the kernel grants, None when there is no such cgroup.

        Raises:
            HostError: unreadable.
        """
        return self._cgroups.read_effective(target) if self._cgroups else None

    def is_removed(self, target: CgroupRef) -> bool:
        """Return whether the cgroup is gone; False where nothing tells."""
        return self._cgroups is not None and self._cgroups.is_removed(target)

    def observe(self, target: Target) -> Observed | None:
        """Return the cgroup as it is, None when it is gone.

        Raises:
            HostError: unreadable.
        """
        found = self._cgroups.observe(target.cgroup) if self._cgroups else None
        return Observed(target, *found) if found else None

    def directories(self, target: CgroupRef) -> list[str]:
        """Return the directories with its cpuset files.

        Raises:
            HostError: its name leaves the tree.
        """
        return self._cgroups.directories(target) if self._cgroups else []

    def _write(self, write: CpusetWrite) -> None:
        if self._cgroups is None:
            raise HostError("cgroup root", f"no cgroup tree to write {write.cpus} to; set cgroupRoot")
        if write.make_room:
            self._cgroups.make_room(write.target, write.cpus)
        outcome = self._cgroups.write_cpus(write.target, write.cpus, compare=write.compare)
        self.outcomes[outcome] += 1
        if outcome is WriteOutcome.MISSING and write.must_exist:
            raise self._cgroups.missing_error(write.target)


def _desired_cpus(node: Node, state: State, write: CpusetWrite) -> CPUSet:
    """Return what the cgroup of `write` should hold by `state`: a container's CPUs, or the pool for a slice."""
    record = state.containers.get(write.container_id)
    return state.desired_cpus(node, record) if record else state.shared_pool(node)


def _refuse(violations: Sequence[str]) -> None:
    if violations:
        raise InvariantError(violations)


# Sandboxes and partitions


class PartitionWriter:
    """Writes what belongs to running pods beside the cpusets of their containers.

    Args:
        cgroups: the tree.
        partitions: those of this node that the agent has made.
    """

    def __init__(self, cgroups: CgroupFiles, partitions: Partitions) -> None:
        self._cgroups, self._partitions = cgroups, partitions

    @classmethod
    def on(cls, tree: CpusetTree) -> Self:
        """Return a writer for `tree`; cgroup v1 has no partitions."""
        return cls(WritableCgroups(tree), Partitions(tree.directory, no_partitions(tree)))

    def __len__(self) -> int:
        """Return how many partitions there are."""
        return len(self._partitions)

    def write_sandbox(self, node: Node, state: State, ref: CgroupRef, cpus: CPUSet) -> None:
        """Write the cpuset of a pod's sandbox.

        Raises:
            HostError: it could not be written.
            InvariantError: its processes would run on exclusive CPUs of others.
        """
        _refuse(write_violations(node, state, CpusetWrite(ref, cpus)))
        self._cgroups.write_cpus(ref, cpus)

    def adopt(self, *states: State) -> list[HostError]:
        """Take over partitions that an earlier agent may have made for these states; return what is wrong with some."""
        known = {ref: cpus for state in states for ref, cpus in allocated_cgroups(state)}
        return self._partitions.adopt(known.items())

    def end_others(self, node: Node, wanted: Mapping[CgroupRef, Partition], now_s: float) -> list[HostError]:
        """End partitions that are not in `wanted`, and bring lost CPUs back; return what the kernel refused.

        This takes CPUs from no container: the CPUs of a partition that ends go back to the cgroups above it.
        """
        return self._partitions.end_others(wanted) + self._partitions.mend(node.topology.online, now_s)

    def make(self, node: Node, state: State, wanted: Mapping[CgroupRef, Partition]) -> Iterator[Settled]:
        """Make those that are not there yet; the validator and the kernel may refuse some."""
        refused = partition_violations(node, state, wanted.values())
        for ref, problems in refused.items():
            yield Settled(wanted[ref], str(InvariantError(problems)))
        yield from self._partitions.make({ref: one for ref, one in wanted.items() if ref not in refused})


def no_partitions(tree: CpusetTree) -> str:
    """Return why `tree` has no partitions; empty where the kernel decides."""
    return ON_V1 if tree.version == 1 else ""


# A pool floor that has been switched off
#
# A value written to a slice outlives the agent that wrote it. Left there, it would keep containers off CPUs for ever:
# a Burstable container with exclusive CPUs off its own, and everything else after an uninstall.


def lift_floor(tree: CpusetTree | None, node: Node, state: State, log: logging.Logger) -> None:
    """Give all online CPUs to slices that hold the value of a floor; any other value is an administrator's.

    Does nothing while the floor is on.
    """
    if tree is not None and not node.options.pool_floor:
        open_slices(WritableCgroups(tree), node, state, log)


def open_slices(cgroups: CgroupFiles, node: Node, state: State, log: logging.Logger) -> None:
    """Open the slices; a failure costs a line."""
    if cgroups.version == 1:
        return
    on = replace(node.options, pool_floor=True, cpu_manager_policy=CPUManagerPolicy.STATIC)
    for write in floor_writes(replace(node, options=on), state, state.pods.values()):
        try:
            found = cgroups.read_cpus(write.target)
            if found and is_floor(found, node, state):
                opened = replace(write, cpus=node.topology.online)
                _refuse(opening_violations(node.topology.online, state, opened))
                cgroups.write_cpus(opened.target, opened.cpus)
                say(log, logging.INFO, "pool floor lifted", cgroup=write.target.parent, was=found)
        except (HostError, InvariantError) as error:
            say(log, logging.WARNING, "pool floor not lifted", err=error)


def is_floor(cpus: CPUSet, node: Node, state: State) -> bool:
    """Return whether `cpus` are narrowed by allocations, or also by the reservation, and by nothing else."""
    online, kept = node.topology.online, state.exclusive | node.reserved
    return cpus != online and not cpus & state.exclusive and cpus | kept == online | kept


# Release: every container gets all CPUs again, and nothing of the agent is left on the node


@dataclass(slots=True)
class Released:
    """The result of a release.

    Attributes:
        widened: cgroups that were given all CPUs.
        already: cgroups that had them.
        gone: containers of the checkpoint that no longer exist.
        limited: cgroups whose CPU quota was put back.
        failures: one sentence each.
    """

    widened: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def release(tree: CpusetTree, state: State, online: CPUSet) -> Released:
    """Give `online` to the slices, sandboxes and containers of `state`; a failure stops nothing else.

    Partitions end from the leaves up, then sets are widened from the slices down: a container never has less than
    before. Nothing is emptied, because the kernel refuses to clear a set of a cgroup that has processes, and no
    cgroup without a set gets one. A set that somebody narrowed above is named and left. Memory nodes stay: moving
    pages would hold processes up. Quotas that were lifted come back, because exclusive CPUs are over.
    """
    found, cgroups = Released(), WritableCgroups(tree)
    containers = [record.cgroup for record in state.containers.values() if record.cgroup.path]
    sandboxes = [
        CgroupRef(pod.cgroup_parent, pod.sandbox_path) for pod in state.pods.values() if pod.sandbox_path
    ]
    # From here on nothing is exclusive; the validator judges every write by that.
    after = replace(state, allocations={})

    def widen(ref: CgroupRef) -> None:
        _refuse(opening_violations(online, after, CpusetWrite(ref, online)))
        _widen(cgroups, ref, online, found)

    if cgroups.version == 2:
        found.failures += map(str, end_all(tree.directory, allocated_cgroups(state), online))
    # A cgroup without a set of its own has its parent's, and stays so.
    for ref in (*slices_of(state), *sandboxes):
        with _noted(found):
            if cgroups.read_cpus(ref):
                widen(ref)
    for ref in containers:
        with _noted(found):
            widen(ref)
    quotas = CPUQuotas.beside(tree)
    for quota in limits(state) if quotas else ():
        with _noted(found):
            if quotas is not None and quotas.set(quota.target, quota.quota_us):
                found.limited.append(quota.target.path or quota.target.parent)
    return found


def slices_of(state: State) -> list[CgroupRef]:
    """Return the Burstable and BestEffort slices of all known pods."""
    patterns = {slice_pattern(pod.cgroup_parent) for pod in state.pods.values()}
    return [ref for pattern in sorted(patterns) for ref in qos_slices(pattern)]


@contextmanager
def _noted(found: Released) -> Iterator[None]:
    try:
        yield
    except (HostError, InvariantError) as error:
        found.failures.append(str(error))


def _widen(cgroups: WritableCgroups, ref: CgroupRef, online: CPUSet, found: Released) -> None:
    name = ref.path or ref.parent
    outcome = cgroups.write_cpus(ref, online)
    if outcome is WriteOutcome.MISSING:
        found.gone.append(name)
        return
    (found.widened if outcome is WriteOutcome.WRITTEN else found.already).append(name)
    left = cgroups.read_effective(ref)
    if left is not None and left != online:
        found.failures.append(f"{name} runs on {left} still, not on {online}: something above it holds less")
