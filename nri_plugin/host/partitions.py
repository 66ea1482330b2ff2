"""Writes cpuset partitions of containers: made from the top down, ended from the leaf up, read back, never left invalid.

A nested partition takes its CPUs from `cpuset.cpus.exclusive` of every cgroup above it. Three steps would take CPUs out of
use for good:

* CPUs are removed above while the leaf still has them. So leaves end before the cgroups above shrink.
* A leaf is removed while its partition is invalid. So an invalid partition becomes a member at once.
* The cpuset of a sibling holds one of the CPUs. So siblings get CPUs only after the partition ended.

A leaf that was removed while the agent was away has lost its CPUs. `Partitions.mend` makes them usable again.

Only `nri_plugin.agent.cpusets` may import this module: every partition passes the validator there.

Source: kernel Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.partition (6.7 and later); order and leaks were
    seen on kernel 6.12.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from nri_plugin.core.kernel_settings import Partition
from nri_plugin.host.cgroup import CPUS, EXCLUSIVE, GONE, MENDED, cgroup_path
from nri_plugin.host.sysfs_files import read_value, write_value
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet

PARTITION, EFFECTIVE = "cpuset.cpus.partition", "cpuset.cpus.effective"
MEMBER = "member"

LOST_AFTER_S = 5.0
"""The kernel frees a removed cgroup in the background: within milliseconds, on a large busy machine tenths of a second."""

NO_MORE = (
    "a container was removed while its partition was invalid, and its kernel may fall over the next partition: "
    "there is none until the next boot"
)

ON_V1 = "cgroup v1 has no partitions; boot with cgroup v2, or set isolation: none"


@dataclass(frozen=True, slots=True)
class Settled:
    """The result for one partition: `trouble` is the kernel's reason why there is none; empty if it was made."""

    partition: Partition
    trouble: str = ""


class Partitions:
    """The partitions of containers in a cgroup tree.

    Args:
        top: the root of the tree.
        why_none: the reason why none can be made there; empty to ask the kernel.
    """

    def __init__(self, top: str, why_none: str = "") -> None:
        self._top, self._why_none = top, why_none
        self._made: dict[CgroupRef, Partition] = {}
        self._ended = CPUSet()
        self._lost_since_s: float | None = None

    def __len__(self) -> int:
        """The number of partitions."""
        return len(self._made)

    def adopt(self, allocated: Iterable[tuple[CgroupRef, CPUSet]]) -> list[HostError]:
        """Take over the partitions of an earlier agent in these cgroups, and above cgroups that were removed since.

        Args:
            allocated: cgroups of containers with their exclusive CPUs.

        Returns:
            The errors of some; the others were taken over.
        """
        troubles = []
        for ref, cpus in allocated:
            try:
                directory = self._directory(ref)
                word = _read(directory, PARTITION).partition(" ")[0]
                if word not in ("", MEMBER):
                    self._made[ref] = Partition(ref, _cpus(directory), word, "")
                elif cpus and not os.path.isdir(directory):
                    # The cgroup is gone, and the cgroups above may still claim its CPUs: `end_others` shrinks them.
                    self._made.setdefault(ref, Partition(ref, cpus, "", ""))
            except HostError as error:
                troubles.append(error)
        return troubles

    def end_others(self, wanted: Mapping[CgroupRef, Partition]) -> list[HostError]:
        """End partitions that are not wanted unchanged, or are invalid; then shrink the cgroups above them.

        Returns:
            The writes that the kernel refused. The others were done; the next call tries the refused ones again.
        """
        troubles: list[HostError] = []
        ended = []
        for ref, made in list(self._made.items()):
            if self._is_as_wanted(made, wanted.get(ref)):
                continue
            try:
                end(self._directory(ref))
            except HostError as error:
                troubles.append(error)
            else:
                ended.append(self._made.pop(ref))
        # All leaves have ended: two of them may have shared a cgroup above.
        for one in ended:
            self._ended |= one.cpus
            troubles += self._shrink_above(one.target, one.cpus)
        return troubles

    @property
    def returning(self) -> CPUSet:
        """CPUs of ended partitions that were not seen in the root's effective set since."""
        return self._ended

    @property
    def is_in_doubt(self) -> bool:
        """Whether CPUs are unreachable that the kernel may still return."""
        return self._lost_since_s is not None

    def mend(self, online: CPUSet, now_s: float) -> list[HostError]:
        """Make the CPUs usable again of partitions that were invalid when their cgroups were removed.

        The kernel keeps these CPUs isolated although no cgroup has them. A partition of all of them below the root, made
        and ended, returns them. The kernel still has the removed cgroup in its list of nested partitions, and the next
        partition that ends can crash the machine. So none is made until the next boot, and the cgroup of this partition
        stays as a mark for later agents.

        Source: seen on kernel 6.12, "list_del corruption" in remote_partition_disable.

        Args:
            online: CPUs that the machine has now.
            now_s: monotonic seconds.

        Returns:
            The write that the kernel refused; it is not tried again.
        """
        lost = self._lost(online, now_s) if self._ended else CPUSet()
        if not lost:
            return []
        self._ended, self._lost_since_s = CPUSet(), None
        directory = os.path.join(self._top, MENDED)
        try:
            _make_and_end(directory, lost)
        except HostError as error:
            return [error]
        left = lost - self._reachable(online)
        said = f"CPUs {left} of a removed partition cannot be used; switch them offline and online"
        return [HostError(directory, said)] if left else []

    def _lost(self, online: CPUSet, now_s: float) -> CPUSet:
        """Those that are out of reach at two looks that are LOST_AFTER_S apart.

        The kernel gives back the CPUs of a valid partition a moment after its cgroup was removed.
        """
        self._ended -= self._reachable(online)
        for one in self._made.values():
            self._ended -= one.cpus
        lost = self._ended & online
        if not lost:
            self._lost_since_s = None
            return lost
        if self._lost_since_s is None:
            self._lost_since_s = now_s
        return lost if now_s - self._lost_since_s >= LOST_AFTER_S else CPUSet()

    def _reachable(self, online: CPUSet) -> CPUSet:
        """The CPUs that the root of the tree can run on; all of them if the kernel has no such file."""
        try:
            return CPUSet.parse(_read(self._top, EFFECTIVE)) or online
        except ValueError:
            return online

    def make(self, wanted: Mapping[CgroupRef, Partition]) -> Iterator[Settled]:
        """Make the missing partitions. One that the kernel refuses stays an ordinary cpuset."""
        spoilt = NO_MORE if os.path.isdir(os.path.join(self._top, MENDED)) else ""
        why_none = self._why_none or spoilt
        for ref, partition in wanted.items():
            if ref in self._made:
                continue
            trouble = why_none or self._make(partition)
            if trouble is not None:
                yield Settled(partition, trouble)

    def _is_as_wanted(self, made: Partition, wanted: Partition | None) -> bool:
        if wanted is None or (made.cpus, made.kind) != (wanted.cpus, wanted.kind):
            return False
        return _read(self._directory(made.target), PARTITION) == made.kind

    def _make(self, partition: Partition) -> str | None:
        """Return why there is none; empty if it was made, None if its cgroup is gone."""
        try:
            leaf = self._directory(partition.target)
            if not os.path.isdir(leaf):
                return None
            # From the root down: a cgroup can claim only CPUs that the one above claims.
            for directory in reversed(list(self._above(partition.target))):
                _set(directory, _cpus(directory) | partition.cpus)
            _set(leaf, partition.cpus)
            _write(leaf, PARTITION, partition.kind)
        except HostError as error:
            self._give_up(partition)
            return str(error)
        # The kernel accepts the write and makes the partition invalid if it cannot have the CPUs. Only the file shows that.
        found = _read(leaf, PARTITION)
        if found == partition.kind:
            self._made[partition.target] = partition
            return ""
        self._give_up(partition)
        return f"{os.path.join(leaf, PARTITION)}: the kernel says {found or 'nothing'}"

    def _give_up(self, partition: Partition) -> None:
        try:
            end(self._directory(partition.target))
        except HostError:
            return  # the leaf still claims its CPUs, so the cgroups above have to keep them
        self._shrink_above(partition.target, partition.cpus)

    def _shrink_above(self, ref: CgroupRef, cpus: CPUSet) -> list[HostError]:
        """Take `cpus` from the cgroups above, from the leaf up, except those of other partitions below them."""
        troubles = []
        for directory in self._above(ref):
            needed = CPUSet()
            for one in self._made.values():
                if self._directory(one.target).startswith(f"{directory}/"):
                    needed |= one.cpus
            try:
                _set(directory, _cpus(directory) - (cpus - needed))
            except HostError as error:
                troubles.append(error)
        return troubles

    def _above(self, ref: CgroupRef) -> Iterator[str]:
        """The cgroups above it without the root, the nearest first."""
        directory = os.path.dirname(self._directory(ref))
        while directory.startswith(f"{self._top}/"):
            yield directory
            directory = os.path.dirname(directory)

    def _directory(self, ref: CgroupRef) -> str:
        return os.path.join(self._top, cgroup_path(ref))


def end(leaf: str) -> None:
    """Make a cgroup an ordinary member that claims no CPUs; a missing cgroup needs nothing.

    Raises:
        HostError: the kernel refused.
    """
    if _read(leaf, PARTITION).partition(" ")[0] not in ("", MEMBER):
        _write(leaf, PARTITION, MEMBER)
    _set(leaf, CPUSet())


def end_all(
    top: str,
    allocated: Iterable[tuple[CgroupRef, CPUSet]],
    online: CPUSet,
    wait: Callable[[float], None] = time.sleep,
) -> list[HostError]:
    """End all partitions of these cgroups, all leaves before the cgroups above them; return the errors.

    If CPUs are unreachable afterwards, it waits `LOST_AFTER_S` to know whether they are lost.
    """
    partitions = Partitions(top)
    troubles = [*partitions.adopt(allocated), *partitions.end_others({}), *partitions.mend(online, 0.0)]
    if partitions.is_in_doubt:
        wait(LOST_AFTER_S)
        troubles += partitions.mend(online, LOST_AFTER_S)
    return troubles


def _make_and_end(directory: str, cpus: CPUSet) -> None:
    """Make a partition of `cpus` in the cgroup `directory` and end it; the cgroup stays."""
    # The root of the tree has mode 0555, and the agent has no capability to ignore that. Its owner may change the mode.
    top = os.path.dirname(directory)
    try:
        mode = os.stat(top).st_mode & 0o777
        os.chmod(top, mode | 0o200)
        try:
            os.makedirs(directory, exist_ok=True)
        finally:
            os.chmod(top, mode)
        _write(directory, CPUS, str(cpus))
        _write(directory, PARTITION, "isolated")
        _write(directory, PARTITION, MEMBER)
    except OSError as error:
        raise HostError(directory, f"CPUs {cpus} cannot be brought back ({error.strerror})") from None


def _set(directory: str, cpus: CPUSet) -> None:
    """Write `cpuset.cpus.exclusive` if it differs; a missing cgroup claims no CPUs."""
    if os.path.exists(os.path.join(directory, EXCLUSIVE)) and _cpus(directory) != cpus:
        _write(directory, EXCLUSIVE, str(cpus) or "\n")


def _cpus(directory: str) -> CPUSet:
    try:
        return CPUSet.parse(_read(directory, EXCLUSIVE))
    except ValueError as error:
        raise HostError(os.path.join(directory, EXCLUSIVE), f"holds no CPU list: {error}") from None


def _read(directory: str, name: str) -> str:
    """The text; empty if the file cannot be read."""
    try:
        return read_value(os.path.join(directory, name))
    except OSError:
        return ""


def _write(directory: str, name: str, text: str) -> None:
    path = os.path.join(directory, name)
    try:
        write_value(path, text)
    except OSError as error:
        if error.errno in GONE and name == EXCLUSIVE:
            return
        raise HostError(path, f"{text.strip() or 'nothing'} was not taken ({error.strerror})") from None
