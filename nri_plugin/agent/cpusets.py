"""Step 6 of a request, and the only writer of `cpuset.cpus` and partitions, behind the independent validator.

Invariant: every value that this module writes has passed `nri_plugin.core.validator`. No other module may import the
writing parts of `nri_plugin.host`; import-linter enforces it.

| writes of | passed by | written by |
|---|---|---|
| decisions, also repairs of drift | `check`, as a whole, before anything is saved | `CpusetWriter`, which takes `CheckedWrites` only |
| files that waited until the answer was out | `WaitingWrites.take`, a portion at a time | the same |
| an undone decision | write by write | `CpusetWriter.undo` |
| sandboxes and partitions | one by one | `PartitionWriter` |
| slices of a pool floor that was switched off | one by one | `lift_floor` |
| all cgroups, when the agent leaves the node | one by one | `release` |
"""

import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from msgspec.structs import replace

from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.drift import Observed, OwnEvent, Target
from nri_plugin.core.kernel_settings import Partition, allocated_cgroups, limits
from nri_plugin.core.pool import (
    bounded_writes,
    files_wait,
    floor_writes,
    late_write,
    slices_of,
    waiting_containers,
)
from nri_plugin.core.validator import (
    new_violations,
    opening_violations,
    partition_violations,
    write_violations,
)
from nri_plugin.host.cgroup import ContainerCgroup, WriteOutcome, containers_in, is_empty, kubelet_folders
from nri_plugin.host.cgroup_write import MOST_NESTED, WritableCgroups
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.mounts import CpusetTree
from nri_plugin.host.partitions import ON_V1, Partitions, Settled, end_all
from nri_plugin.host.task_affinity import InheritedAffinity, inherited
from nri_plugin.model.errors import HostError, InvariantError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import say
from nri_plugin.wire.nri.events import NRIEvent

MOST_UNWRITTEN = 64
"""Failed writes that are repaired while the runtime waits; the sweep repairs all further ones."""


# Decisions


@dataclass(frozen=True, slots=True)
class CheckedWrites:
    """Writes that the validator has passed. Only `check` and `WaitingWrites` make one.

    Attributes:
        writes: in their order.
        state: the state that they follow from.
    """

    writes: tuple[CpusetWrite, ...]
    state: State = field(default_factory=State)


def check(node: Node, before: State, event: NRIEvent | OwnEvent, decision: Decision) -> CheckedWrites:
    """Judge a whole decision: state, response and writes.

    Raises:
        InvariantError: it would break something that was sound before.
    """
    violations = new_violations(node, before, event, decision)
    if violations:
        raise InvariantError(violations, decision.steps)
    return CheckedWrites(decision.writes, decision.state)


class WriteError(HostError):
    """One of several writes failed.

    Attributes:
        done: the writes before it, and the failed one: a container may have nested cgroups, and some of them may have been
            written before another failed.
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
        unwritten: the latest failed writes, whose cgroups may differ from the desired cpuset; the handler clears it.
        unfinished: writes to containers with so many cgroups inside that the runtime does not wait for them.
    """

    def __init__(self, cgroups: WritableCgroups | None) -> None:
        self.outcomes: Counter[WriteOutcome] = Counter()
        self.unwritten: deque[CpusetWrite] = deque(maxlen=MOST_UNWRITTEN)
        self.unfinished: dict[CgroupRef, CpusetWrite] = {}
        self._cgroups = cgroups

    @classmethod
    def on(cls, tree: CpusetTree | None) -> Self:
        """Return a writer for the cgroups of `tree`."""
        return cls(WritableCgroups(tree) if tree is not None else None)

    def apply(self, checked: CheckedWrites) -> list[HostError]:
        """Write in the given order, and stop at the first failure.

        The engine orders the writes so that sets shrink before others grow: no CPU belongs to two containers meanwhile.

        Returns:
            The errors of slices in whose place the files below them have been written.

        Raises:
            WriteError: a write failed.
        """
        done, slices = list[CpusetWrite](), list[HostError]()
        for write, error in self._carry_out(checked):
            done.append(write)
            if error is not None and not write.bounds:
                raise WriteError(error, done)
            if error is not None:
                self.unwritten.append(write)
                slices.append(error)
        return slices

    def attempt(self, checked: CheckedWrites) -> Iterator[HostError]:
        """Write as many as possible; yield the error of each that failed."""
        for write, error in self._carry_out(checked):
            if error is not None:
                self.unwritten.append(write)
                yield error

    def undo(self, node: Node, before: State, done: Sequence[CpusetWrite]) -> Iterator[NriPinError]:
        """Restore the cpusets that `before` desires; yield the error of each write that failed.

        A cgroup that did not change is left alone.
        """
        # In reverse order, so that sets shrink before others grow, as in `apply`.
        for write in reversed(done):
            cpus = _desired_cpus(node, before, write)
            back = replace(write, cpus=cpus, compare=True, narrows=False, bounds=False)
            try:
                _refuse(write_violations(node, before, back))
                self._write(back)
            except (HostError, InvariantError) as error:
                self.unwritten.append(write)
                yield error

    def go_on(self, node: Node, state: State) -> None:
        """Make some steps of the first unfinished write.

        Raises:
            HostError: the kernel refuses one; the sweep tries it again.
            InvariantError: the container would get CPUs of others.
        """
        target, write = next(iter(self.unfinished.items()))
        del self.unfinished[target]
        if write.container_id not in state.containers:
            if self._cgroups is not None:
                self._cgroups.give_up(target)
            return
        now = replace(write, cpus=_desired_cpus(node, state, write), narrows=False, make_room=False)
        _refuse(write_violations(node, state, now))
        self._renew_bound()
        try:
            self._write(replace(now, must_exist=False))
        except HostError:
            self.unwritten.append(now)
            raise

    def _renew_bound(self) -> None:
        if self._cgroups is not None:
            self._cgroups.nested_left = MOST_NESTED

    def widen_kubepods(self, state: State, cpus: CPUSet) -> None:
        """On cgroup v1, give kubepods the CPUs that it lacks; the kernel does not give back those that were offline.

        Raises:
            HostError: the kernel refused.
        """
        if self._cgroups is not None:
            for ref in slices_of(state):
                self._cgroups.make_room(ref, cpus)

    def read_effective(self, target: CgroupRef) -> CPUSet | None:
        """Return the CPUs the kernel grants, None when there is no such cgroup.

        Raises:
            HostError: unreadable.
        """
        return self._cgroups.read_effective(target) if self._cgroups else None

    def is_removed(self, target: CgroupRef) -> bool:
        """Return whether the cgroup is gone; False without a cgroup tree."""
        return self._cgroups is not None and self._cgroups.is_removed(target)

    def observe(self, target: Target) -> Observed | None:
        """Return the observed cpuset of the cgroup, None when it is gone.

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

    def folders(self, state: State) -> Iterator[str]:
        """Yield the cgroups above containers, see `host.cgroup.kubelet_folders`."""
        return kubelet_folders(self._cgroups, state) if self._cgroups else iter(())

    def path_of(self, directory: str) -> str:
        """Return the path of a directory below the root of the tree."""
        return os.path.relpath(directory, self._cgroups.tree.directory) if self._cgroups else directory

    def containers_in(self, folder: str) -> list[ContainerCgroup]:
        """Return the containers and sandboxes directly below a cgroup of `folders`."""
        return list(containers_in(self._cgroups, folder)) if self._cgroups else []

    def has_processes(self, one: ContainerCgroup) -> bool:
        """Return whether a process is in the cgroup; True where that cannot be seen."""
        return self._cgroups is not None and not is_empty(self._cgroups, one.path)

    def inherited_affinity(self, target: CgroupRef) -> InheritedAffinity | None:
        """Return the CPU affinity that a container has from the runtime; None for none, or where it cannot be seen.

        Raises:
            HostError: unreadable.
        """
        return inherited(self._cgroups, target) if self._cgroups else None

    def _carry_out(self, checked: CheckedWrites) -> Iterator[tuple[CpusetWrite, HostError | None]]:
        """Yield each write with its error. In place of a slice that could not be written come the files below it."""
        self._renew_bound()
        for write in checked.writes:
            outcome, error = self._tried(write)
            yield write, error
            if write.bounds and outcome not in _BOUNDING:
                for below in bounded_writes(checked.state, write):
                    yield below, self._tried(below)[1]

    def _tried(self, write: CpusetWrite) -> tuple[WriteOutcome | None, HostError | None]:
        try:
            return self._write(write), None
        except HostError as error:
            return None, error

    def _write(self, write: CpusetWrite) -> WriteOutcome:
        if self._cgroups is None:
            raise HostError("cgroup root", f"no cgroup tree to write {write.cpus} to; set cgroupRoot")
        # The kernel refuses CPUs that a cgroup above does not have.
        if write.make_room:
            self._cgroups.make_room(write.target, write.cpus)
        cpus = write.cpus
        if write.narrows:
            cpus = (self._cgroups.read_cpus(write.target) or cpus) & cpus or cpus
        # An unfinished one goes on after the answer, with the CPUs of that moment.
        outcome = WriteOutcome.LATER
        if write.target not in self.unfinished:
            outcome = self._cgroups.write_cpus(write.target, cpus, compare=write.compare)
        self.outcomes[outcome] += 1
        if outcome is WriteOutcome.LATER:
            self.unfinished[write.target] = write
        # Some cgroups do not exist yet, or no longer; only a start depends on its cgroup.
        if outcome is WriteOutcome.MISSING and write.must_exist:
            raise self._cgroups.missing_error(write.target)
        return outcome


_BOUNDING = frozenset({WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED})
"""Outcomes after which a slice bounds what is below it."""


def _desired_cpus(node: Node, state: State, write: CpusetWrite) -> CPUSet:
    """Return the CPUs that `state` desires for the cgroup of `write`: those of its container, or the pool for a slice."""
    record = state.containers.get(write.container_id)
    return state.desired_cpus(node, record) if record else state.shared_pool(node)


def _refuse(violations: Sequence[str]) -> None:
    if violations:
        raise InvariantError(violations)


# Writes that wait until the answer is out


PORTION = 2
"""Files that are written without a break: some hundredths of a millisecond. The runtime is answered between two portions."""


class WaitingWrites:
    """The files of containers that a slice bounds, and after them slices that may become wider.

    They are written in rounds over all such containers. A pool that changes during a round is followed by another one, and
    only the end of the last round widens slices: no file below holds an exclusive CPU then. Nothing is queued but ids: the
    CPUs of a container are derived when they are written.
    """

    def __init__(self) -> None:
        self._round: Iterator[str] = iter(())
        self._compares = False  # in this round, files may hold the right value already
        self._is_another_due = self._is_another_to_compare = False
        self._is_waiting = False

    def __bool__(self) -> bool:
        """Return whether something waits."""
        return self._is_waiting

    def follow(self, node: Node, before: State, after: State, *, is_unknown: bool = False) -> None:
        """Note that the pool changed, or with `is_unknown` that the cgroups may hold anything; reads no container."""
        if is_unknown or files_wait(node, before, after):
            self._is_waiting = self._is_another_due = True
            self._is_another_to_compare = self._is_another_to_compare or is_unknown

    def take(self, node: Node, state: State, most: int = PORTION) -> CheckedWrites:
        """Return the next portion; the slices are one of their own, when no container waits any more.

        Raises:
            InvariantError: the portion would break an invariant; it is left out.
        """
        ids = list(islice(self._round, most))
        if not ids and self._is_another_due:
            # A container that comes later gets the CPUs of its moment at its start.
            self._round = waiting_containers(node, state)
            self._compares, self._is_another_to_compare = self._is_another_to_compare, False
            self._is_another_due = False
            ids = list(islice(self._round, most))
        writes = tuple(write for one in ids for write in late_write(node, state, one, compare=self._compares))
        if not ids:
            writes, self._is_waiting = floor_writes(node, state), False
        _refuse(write_violations(node, state, *writes))
        return CheckedWrites(writes, state)


# Sandboxes and partitions


class PartitionWriter:
    """Writes the cpusets of sandboxes, and makes and ends the partitions of containers.

    Args:
        cgroups: the tree.
        partitions: those that the agent has made on this node.
        is_v1: whether the kernel takes CPUs that go offline out of every cgroup until they are written again.
    """

    def __init__(self, cgroups: WritableCgroups, partitions: Partitions, *, is_v1: bool = False) -> None:
        self._cgroups, self._partitions, self._is_v1 = cgroups, partitions, is_v1

    @classmethod
    def on(cls, tree: CpusetTree) -> Self:
        """Return a writer for `tree`; cgroup v1 has no partitions."""
        return cls(
            WritableCgroups(tree), Partitions(tree.directory, no_partitions(tree)), is_v1=tree.version == 1
        )

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
        if self._is_v1:
            self._cgroups.make_room(ref, cpus)  # a CPU that was offline is missing in its pod, too
        self._cgroups.write_cpus(ref, cpus)

    def adopt(self, *states: State) -> list[HostError]:
        """Take over partitions that an earlier agent may have made for these states; return the errors."""
        known = {ref: cpus for state in states for ref, cpus in allocated_cgroups(state)}
        return self._partitions.adopt(known.items())

    def end_others(self, node: Node, wanted: Mapping[CgroupRef, Partition], now_s: float) -> list[HostError]:
        """End partitions that are not in `wanted`, and give lost CPUs back to others; return the errors.

        This takes CPUs from no container: the CPUs of a partition that ends go back to the cgroups above it.
        """
        return self._partitions.end_others(wanted) + self._partitions.mend(node.topology.kernel_online, now_s)

    @property
    def returning(self) -> CPUSet:
        """CPUs of ended partitions that the kernel has not given back yet."""
        return self._partitions.returning

    def make(self, node: Node, state: State, wanted: Mapping[CgroupRef, Partition]) -> Iterator[Settled]:
        """Make the missing ones; yield the result of each. The validator and the kernel may refuse some."""
        refused = partition_violations(node, state, wanted.values())
        for ref, problems in refused.items():
            yield Settled(wanted[ref], str(InvariantError(problems)))
        yield from self._partitions.make({ref: one for ref, one in wanted.items() if ref not in refused})


def no_partitions(tree: CpusetTree) -> str:
    """Return why `tree` has no partitions; empty where the kernel decides."""
    return ON_V1 if tree.version == 1 else ""


# A pool floor that was switched off
#
# The value in a slice outlives the agent that wrote it. It would keep containers off CPUs for ever: a Burstable container
# with exclusive CPUs off its own ones, and after an uninstall all others too.


def lift_floor(tree: CpusetTree | None, node: Node, state: State, log: logging.Logger) -> None:
    """Give all online CPUs to slices that hold the value of a floor; does nothing while the floor is on."""
    if tree is not None and not node.options.pool_floor:
        open_slices(WritableCgroups(tree), node, state, log)


def open_slices(cgroups: WritableCgroups, node: Node, state: State, log: logging.Logger) -> None:
    """Give all online CPUs to slices that hold the value of a floor; a failure is logged."""
    if cgroups.version == 1:
        return
    for ref in slices_of(state):
        try:
            found = cgroups.read_cpus(ref)
            # An administrator may have set another value; that one stays.
            if found and is_floor(found, node, state):
                opened = CpusetWrite(ref, node.topology.kernel_online)
                _refuse(opening_violations(opened.cpus, state, opened))
                _write_below(cgroups, node, state, ref)
                cgroups.write_cpus(opened.target, opened.cpus)
                say(log, logging.INFO, "pool floor lifted", cgroup=ref.parent, was=found)
        except (HostError, InvariantError) as error:
            say(log, logging.WARNING, "pool floor not lifted", err=error)


def _write_below(cgroups: WritableCgroups, node: Node, state: State, ref: CgroupRef) -> None:
    """Write the files that only this slice bounds: an agent may have ended while they waited.

    Raises:
        HostError: one could not be written.
        InvariantError: one would be given CPUs that are exclusive to others.
    """
    for container_id in state.ids_below([ref]) if state.exclusive else ():
        for write in late_write(node, state, container_id, compare=True):
            _refuse(write_violations(node, state, write))
            cgroups.write_cpus(write.target, write.cpus)


def is_floor(cpus: CPUSet, node: Node, state: State) -> bool:
    """Return whether `cpus` are narrowed by allocations, or also by the reservation, and by nothing else."""
    every, kept = node.topology.kernel_online, state.exclusive | node.reserved
    is_rest = node.topology.online <= cpus | kept and cpus <= every | kept
    return cpus != every and not cpus & state.exclusive and is_rest


# Release: the agent leaves the node, and every container gets all CPUs


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


def release(tree: CpusetTree, state: State, online: CPUSet, reach: CPUSet = NO_CPUS) -> Released:
    """Give `online` to the slices, sandboxes and containers of `state`; a failure stops nothing else.

    Those that only run on `reach` have all that they can get, if that is known; cgroup v1 accepts no others.

    No container has fewer CPUs at any step than before. Sets are widened, not emptied: the kernel refuses to clear the set
    of a cgroup that has processes. Memory nodes stay, because moving pages would stop processes.
    """
    found, cgroups = Released(), WritableCgroups(tree)
    every, reached = online, online & reach or online
    if cgroups.version == 1:
        online = reached
    containers = [record.cgroup for record in state.containers.values() if record.cgroup.path]
    sandboxes = [
        CgroupRef(pod.cgroup_parent, pod.sandbox_path) for pod in state.pods.values() if pod.sandbox_path
    ]
    # Nothing is exclusive from here on; the validator checks every write against this state.
    after = replace(state, allocations={})

    def widen(ref: CgroupRef) -> None:
        _refuse(opening_violations(online, after, CpusetWrite(ref, online)))
        _widen(cgroups, ref, online, reached, found)

    # Partitions end first: their CPUs are missing in the cgroups above them.
    if cgroups.version == 2:
        found.failures += map(str, end_all(tree.directory, allocated_cgroups(state), every))
    # From the slices down, because the kernel refuses CPUs that a parent does not have. A cgroup without a set has that of
    # its parent, and stays so.
    for ref in (*slices_of(state), *sandboxes):
        with _noted(found):
            if cgroups.read_cpus(ref):
                widen(ref)
    for ref in containers:
        with _noted(found):
            widen(ref)
    # Quotas were lifted for exclusive CPUs, which no container has any more.
    quotas = CPUQuotas.beside(tree)
    for quota in limits(state) if quotas else ():
        with _noted(found):
            if quotas is not None and quotas.set(quota.target, quota.quota_us):
                found.limited.append(quota.target.path or quota.target.parent)
    return found


@contextmanager
def _noted(found: Released) -> Iterator[None]:
    try:
        yield
    except (HostError, InvariantError) as error:
        found.failures.append(str(error))


def _widen(
    cgroups: WritableCgroups, ref: CgroupRef, online: CPUSet, reached: CPUSet, found: Released
) -> None:
    name = ref.path or ref.parent
    outcome = cgroups.write_cpus(ref, online)
    if outcome is WriteOutcome.MISSING:
        found.gone.append(name)
        return
    (found.widened if outcome is WriteOutcome.WRITTEN else found.already).append(name)
    left = cgroups.read_effective(ref)
    if left is not None and not reached <= left:
        found.failures.append(
            f"{name} still runs on {left}, not on {reached}: a cgroup above it has fewer CPUs"
        )
