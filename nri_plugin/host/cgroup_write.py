"""Writes CPUs of cgroups: one value at a time, in an order in which the kernel accepts every step.

Only values change. No cgroup or file is made, no cpuset is emptied, and a value that is already right is not written. One
`write()` carries a whole value, so no process sees half of one.

Only `nri_plugin.agent.cpusets` may import this module: every write passes the validator there.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

from cgroupspy.interfaces import BaseFileInterface

from nri_plugin.host.cgroup import (
    CPUS,
    GONE,
    TOP,
    Cgroups,
    CpusetFilesV1,
    CpusetFilesV2,
    WriteOutcome,
    host_error,
)
from nri_plugin.host.mounts import CpusetTree
from nri_plugin.host.sysfs_files import write_value
from nri_plugin.model import bits
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet


class _Writing:
    """Writes `cpuset.cpus`; opening never creates and never follows a link.

    Differs: cgroupspy opens a file for writing with creation and truncation; here: opening never creates, and
        truncates only on a tree of ordinary files. Why: on a kernel tree truncation wakes watchers a second
        time; on ordinary files it is needed. Option: none.
    """

    truncates = False
    filepath: Callable[[bytes], bytes]

    def set_property(self, filename: bytes, value: str) -> None:
        """Write the whole value at once."""
        write_value(os.fsdecode(self.filepath(filename)), value, truncate=self.truncates)


class _WritableFilesV1(_Writing, CpusetFilesV1):
    cpus = BaseFileInterface("cpuset.cpus")


class _WritableFilesV2(_Writing, CpusetFilesV2):
    cpus = BaseFileInterface("cpuset.cpus")


class WritableCgroups(Cgroups):
    """Cgroups whose CPUs can be set.

    Attributes:
        nested_left: steps that may still be made in cgroups inside of containers; the caller sets it. What is left of such a
            change is made by further calls with the same value.
    """

    def __init__(self, tree: CpusetTree) -> None:
        super().__init__(tree)
        self._files = _WritableFilesV1 if tree.version == 1 else _WritableFilesV2
        self.nested_left = MOST_NESTED
        self._changes: dict[str, tuple[str, Iterator[None]]] = {}

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet, *, compare: bool = True) -> WriteOutcome:
        """Make `cpuset.cpus` of the cgroup equal `cpus`.

        Args:
            ref: the cgroup.
            cpus: the value.
            compare: read first and leave an equal value alone.

        Raises:
            HostError: the kernel refused the value, or `cpus` is empty: a cpuset that was set can
                never be cleared, and an empty one would mean "all CPUs of the parent".
        """
        if not cpus:
            raise HostError(os.path.join(self.directory(ref), CPUS), "an empty cpuset is never written")
        put = self._put_nested if self.version == 1 and ref.path else self._put
        outcomes = [self._write(directory, cpus, put, compare) for directory in self.directories(ref)]
        wins = (one for one in (WriteOutcome.LATER, WriteOutcome.WRITTEN) if one in outcomes)
        return next(wins, outcomes[0])

    def make_room(self, ref: CgroupRef, cpus: CPUSet) -> None:
        """Widen the cgroups above that lack some of `cpus`; the others stay as they are.

        Raises:
            HostError: the kernel refused a value.
        """
        directory, top = self.directory(ref), self.tree.directory
        if self.version == 2 and self._read(directory, "cpus") is None:
            return_files(top, directory)
        widen_above(self._open, top, directory, cpus.mask, self.version)

    def _write(
        self, directory: str, cpus: CPUSet, put: Callable[[str, str], WriteOutcome], compare: bool
    ) -> WriteOutcome:
        text = _list_of(cpus.mask)
        try:
            if compare and _mask_of(self._open(directory).cpus) == cpus.mask:
                self._changes.pop(directory, None)
                return WriteOutcome.UNCHANGED
            return put(directory, text)
        except OSError as error:
            if error.errno in GONE:
                return WriteOutcome.MISSING
            raise host_error(os.path.join(directory, CPUS), error, text, self.version) from error
        except ValueError as error:
            raise HostError(directory, f"a cpuset below it holds no CPU list: {error}") from error

    def _put(self, directory: str, text: str) -> WriteOutcome:
        try:
            self._open(directory).cpus = text
        except OSError as error:
            if error.errno != errno.EPERM or self.version == 1:
                raise
            self._put_above(directory, text)
        return WriteOutcome.WRITTEN

    def _put_above(self, directory: str, text: str) -> None:
        """Bound our own container by the cgroup above it, its pod's.

        Where cgroup v2 is mounted with nsdelegate, as systemd does, a process may not write the root of its own
        cgroup namespace, and that is the container the agent itself runs in; everything above it may be written.

        Source: kernel kernel/cgroup/cgroup.c, cgroup_file_write().
        """
        above = self._open(os.path.dirname(directory))
        if _mask_of(above.cpus) != _mask_of(text):
            above.cpus = text

    def _put_nested(self, directory: str, text: str) -> WriteOutcome:
        """On v1, set the cgroups inside a container as well. Those in a pod or a slice belong to others."""
        former, change = self._changes.pop(directory, ("", iter(())))
        goes_on = former == text
        if not goes_on:
            try:
                return self._put(directory, text)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            change = change_with_children(self._open, directory, _mask_of(text))
        while self.nested_left > 0:
            self.nested_left -= 1
            try:
                next(change)
            except StopIteration:
                return WriteOutcome.WRITTEN
            except (OSError, ValueError) as error:
                if goes_on:
                    raise
                # What a container does inside of itself refuses no other container: the call after the answer fails.
                change = map(_raise, (error,))
                break
        self._changes[directory] = text, change
        return WriteOutcome.LATER

    def give_up(self, ref: CgroupRef) -> None:
        """Drop what is left of a change inside the cgroup.

        Raises:
            HostError: its name leaves the tree.
        """
        for directory in self.directories(ref):
            self._changes.pop(directory, None)

    def _open(self, directory: str) -> Any:
        files = super()._open(directory)
        if not self.tree.is_kernel:
            files.truncates = True
        return files


# A change of the shared pool reads and writes the same two texts in every container.
@lru_cache(maxsize=256)
def _list_of(mask: int) -> str:
    return bits.format_list(mask)


@lru_cache(maxsize=256)
def _mask_of(text: str) -> int:
    """The mask of a kernel list; -1 for another text, which is equal to no mask."""
    try:
        return bits.parse_list(text)
    except ValueError:
        return -1


# Cgroup v1: a cpuset with other cpusets below it, as in a container with a runtime inside. The kernel requires that a parent
# holds all CPUs of its children, so one write can neither narrow nor move it. Afterwards every cgroup below is within the
# new set; one that was wholly outside has all of it. Source: Linux, kernel/cgroup/cpuset-v1.c, validate_change_legacy().
#
# The container decides how many cgroups it nests, and how deeply. So the change is made in steps: the caller takes as many as
# it has time for, and goes on later. Nothing recurses.


MOST_NESTED = 64
"""Steps of such changes, of one cgroup each, while the runtime waits. A step takes up to a millisecond."""

PATH_BYTES = 2048
"""Longer paths are not opened: the kernel takes 4,096 bytes. What is deeper is reached from a directory that is kept open."""

MOST_KEPT_OPEN = 16
"""Directories that are kept open for one change: a chain 10,000 deep needs as many."""

MOST_WALKS = 3
"""Attempts at a change while the container goes on making cgroups."""


class CpusFile(Protocol):
    """A cgroup's own CPUs as the text of a kernel list."""

    cpus: str


def change_with_children(
    open_files: Callable[[str], CpusFile], directory: str, wanted: int
) -> Iterator[None]:
    """Set the cpuset at `directory` to the mask `wanted`, its children first; yields after each cgroup.

    Until the children have changed, the set is the union of the old and the new one, so the kernel accepts every step.

    Raises:
        OSError: the kernel refused a step.
        ValueError: a cpuset holds no kernel list.
    """
    for walk in range(MOST_WALKS):
        kept_open = _KeptOpen()
        try:
            yield from _change(open_files, directory, wanted, kept_open)
        finally:
            kept_open.close()
        try:
            open_files(directory).cpus = bits.format_list(wanted)
        except OSError as error:
            # The container has made another cgroup meanwhile.
            if error.errno != errno.EBUSY or walk + 1 == MOST_WALKS:
                raise
        else:
            return


def _raise(error: Exception) -> None:
    raise error


def _change(
    open_files: Callable[[str], CpusFile], top: str, wanted: int, kept_open: "_KeptOpen"
) -> Iterator[None]:
    """Widen from the top down where CPUs are missing, and narrow from the bottom up; the top itself stays wide."""
    coming, changed = [(top, wanted)], list[tuple[str, int]]()
    while coming:
        directory, target = coming.pop()
        yield
        with _suppressed_if_gone():
            files = open_files(directory)
            held = bits.parse_list(files.cpus)
            if directory != top:
                if not held & ~target:
                    continue
                target = held & target or target
                changed.append((directory, target))
            if held | target != held:
                files.cpus = bits.format_list(held | target)
            coming += [(child, target) for child in _children(directory, kept_open)]
    for directory, target in reversed(changed):
        yield
        with _suppressed_if_gone():
            open_files(directory).cpus = bits.format_list(target)


class _KeptOpen:
    """Directories that are reached by a short path."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def short(self, directory: str) -> str:
        """Return a short path of the directory, valid until `close`."""
        if len(self._descriptors) == MOST_KEPT_OPEN:
            raise OSError(errno.ENAMETOOLONG, "cgroups are nested too deeply")
        self._descriptors.append(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        return f"/proc/self/fd/{self._descriptors[-1]}"

    def close(self) -> None:
        """Close the directories."""
        for one in self._descriptors:
            os.close(one)
        self._descriptors.clear()


@contextmanager
def _suppressed_if_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise


def _children(directory: str, kept_open: "_KeptOpen") -> list[str]:
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    if names and len(directory) > PATH_BYTES:
        directory = kept_open.short(directory)
    return [os.path.join(directory, name) for name in names]


# Room above a cgroup. It is missing if the cgroup's value is right and has no effect, or if it has no cpuset files. Cgroups
# above are only widened, by the CPUs of the one below, and never narrowed: they belong to others. What kubepods has is
# decided by others, and the agent takes it for all that pods can reach. So kubepods and the cgroups above it are not written,
# but for kubepods on v1; see `read_reach`.


def widen_above(
    open_files: Callable[[str], CpusFile], top: str, directory: str, wanted: int, version: int
) -> None:
    """Widen every cgroup between `top` and `directory`, from the kubelet's own on, to hold the mask `wanted`.

    Outermost first, because a cgroup cannot get CPUs that the one above lacks. On v2 a cgroup without a value has its
    parent's CPUs and needs none.

    Raises:
        HostError: the kernel refused a value.
    """
    for above in _below_limit(list(_above(top, directory)), version):
        path = os.path.join(above, CPUS)
        text = ""
        try:
            files = open_files(above)
            held = bits.parse_list(files.cpus)
            if not wanted & ~held or (version == 2 and not held):
                continue
            text = bits.format_list(held | wanted)
            files.cpus = text
        except FileNotFoundError:
            return
        except OSError as error:
            raise host_error(path, error, text, version) from error
        except ValueError:
            continue


def _below_limit(directories: list[str], version: int) -> list[str]:
    """Those of the directories, outermost first, that the agent may widen; all outside of the kubelet's tree."""
    for number, one in enumerate(directories):
        if TOP.fullmatch(os.path.basename(one)):
            return directories[number + (version == 2) :]
    return directories


def return_files(top: str, directory: str) -> None:
    """Enable the cpuset controller from `top` down to `directory` again (cgroup v2).

    Outermost first, because a cgroup can only pass on a controller that it has.

    Raises:
        HostError: the kernel refused.
    """
    for above in (top, *_above(top, directory)):
        path = os.path.join(above, "cgroup.subtree_control")
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                if "cpuset" in file.read(4096).split():
                    continue
            with open(path, "r+", encoding="ascii") as file:
                file.write("+cpuset")
        except FileNotFoundError:
            return
        except OSError as error:
            raise host_error(path, error, "+cpuset", 2) from error


def _above(top: str, directory: str) -> Iterator[str]:
    """Directories strictly between the two, outermost first."""
    parts = os.path.relpath(directory, top).split("/")[:-1]
    for count in range(1, len(parts) + 1):
        yield os.path.join(top, *parts[:count])
