"""Cpuset writes of a decision, all or none, and what the kernel made of them."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from nri_plugin.cpuset import CPUSet
from nri_plugin.decision import CpusetWrite
from nri_plugin.drift import Observed, Target
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup import WriteOutcome
from nri_plugin.options import Node
from nri_plugin.state import CgroupRef, State

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
        """Put back what `before` promised, last write first, so that shrinking precedes growing here too.

        What was not changed after all is left alone.
        """
        for write in reversed(done):
            try:
                self._write(replace(write, compare=True), promised(node, before, write))
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


def promised(node: Node, state: State, write: CpusetWrite) -> CPUSet:
    """What the cgroup of `write` should hold by `state`: a container's CPUs, or the pool for a slice."""
    record = state.containers.get(write.container_id)
    return state.desired_cpus(node, record) if record else state.shared_pool(node)
