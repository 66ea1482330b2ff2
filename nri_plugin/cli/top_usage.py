"""What containers use: CPU time from their cgroups, and when they began; nothing where that cannot be read."""

import os
from collections.abc import Iterable

from nri_plugin.errors import HostError
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.state import ContainerRecord

USEC = "usage_usec "
TICKS = os.sysconf("SC_CLK_TCK")


class Usage:
    """Reads cgroups again and again; CPU use is that between two readings.

    Args:
        root: of the cgroup tree.
    """

    def __init__(self, root: str) -> None:
        try:
            self._cgroups: Cgroups | None = Cgroups.open(root)
        except HostError:
            self._cgroups = None
        self._before: dict[str, tuple[float, int]] = {}
        self._began: dict[str, float] = {}
        self.cpus_used: dict[str, float] = {}

    def read(self, records: Iterable[ContainerRecord], now: float) -> bool:
        """Read them all; returns whether any CPU time was found.

        Args:
            records: the containers.
            now: seconds of a clock that never goes back.
        """
        found: dict[str, tuple[float, int]] = {}
        used: dict[str, float] = {}
        for record in records:
            time_us = self._time_us(record)
            if time_us is None:
                continue
            found[record.id] = now, time_us
            before = self._before.get(record.id)
            if before is not None and now > before[0]:
                used[record.id] = max(0.0, (time_us - before[1]) / 1e6 / (now - before[0]))
        self._before, self.cpus_used = found, used
        return bool(found)

    def age_s(self, record: ContainerRecord, uptime_s: float) -> float | None:
        """Seconds since its first process began; None where processes are not visible."""
        began = self._began.get(record.id)
        if began is None:
            began = self._first_process(record)
            if began is None:
                return None
            self._began[record.id] = began
        return max(0.0, uptime_s - began)

    def _time_us(self, record: ContainerRecord) -> int | None:
        text = self._text(record, "cpu.stat")
        for line in (text or "").splitlines():
            if line.startswith(USEC):
                return int(line.removeprefix(USEC))
        return None

    def _first_process(self, record: ContainerRecord) -> float | None:
        pids = (self._text(record, "cgroup.procs") or "").split()
        if not pids:
            return None
        try:
            with open(f"/proc/{pids[0]}/stat", encoding="utf-8", errors="replace") as file:
                return int(file.read().rpartition(")")[2].split()[19]) / TICKS
        except (OSError, ValueError, IndexError):
            return None

    def _text(self, record: ContainerRecord, name: str) -> str | None:
        if self._cgroups is None:
            return None
        try:
            with open(os.path.join(self._cgroups.directory(record.cgroup), name), encoding="ascii") as file:
                return file.read()
        except (OSError, HostError, UnicodeDecodeError):
            return None


def uptime_s() -> float:
    """Seconds since the machine started."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
