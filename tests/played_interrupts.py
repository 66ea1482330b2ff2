"""A played kernel: interrupts, the mask of later ones, workqueue masks and wake-up latencies, with the kernel's rules.

It stands in for `nri_plugin.host.interrupts.KernelSettingFiles`. Its rules are those that Linux 6.1, 6.12 and 7.2 were seen
to follow: a line without remapping moves at its next interrupt; a line whose last CPU goes offline gets all online CPUs; a
new line gets the online CPUs of the default mask, or its driver's hint; a managed line answers EIO where the mode of its file
does not tell. `refuse` answers any errno to the next writes.
"""

import errno
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from nri_plugin.core.quiet import Interrupt, SettingKind
from nri_plugin.host.interrupts import Listed, RefusedError
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet


@dataclass(slots=True)
class PlayedLine:
    """One interrupt line."""

    actions: tuple[str, ...]
    chip: str
    cpus: CPUSet
    effective: CPUSet
    is_managed: bool = False
    node: int = -1
    device: str = ""
    remaps: bool = False
    keeps_one: bool = False
    """Its controller shows only the CPU that it delivers to."""

    def set(self, cpus: CPUSet) -> None:
        """Its value is set, by whomever."""
        self.cpus = CPUSet(cpus.mask & -cpus.mask) if self.keeps_one else cpus

    def fire(self) -> None:
        """One interrupt: a pending move takes place."""
        if not self.is_managed:
            self.effective = CPUSet(self.cpus.mask & -self.cpus.mask)


@dataclass(slots=True)
class PlayedKernel:
    """The kernel of a machine.

    Attributes:
        present: all CPUs.
        online: those online.
        shows_mode: whether the mode of a file tells that a line is managed (Linux 6.12).
        writes: every write that was tried, in order: (name, value).
        refuse: errno for the next writes, by name; `*` for any.
        races: values that somebody else sets right behind our next write, by name.
        lacks: what `missing` answers.
    """

    present: CPUSet
    online: CPUSet
    shows_mode: bool = True
    lines: dict[int, PlayedLine] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    writes: list[tuple[str, str]] = field(default_factory=list)
    refuse: dict[str, int] = field(default_factory=dict)
    races: dict[str, str] = field(default_factory=dict)
    lacks: str = ""
    reads: int = 0

    @classmethod
    def of(cls, cpus: int, *, shows_mode: bool = True) -> "PlayedKernel":
        """A machine with so many CPUs and no line yet."""
        every = CPUSet((1 << cpus) - 1)
        masks = {"default": str(every), "workqueue/": str(every), "workqueue/writeback": str(every)}
        latencies = {f"latency/{cpu}": "0" for cpu in every}
        steering = {f"rps/eth0/queues/rx-{queue}": str(cpus) for queue, cpus in enumerate((every, CPUSet()))}
        return cls(every, every, shows_mode, values=masks | latencies | steering)

    def add(
        self, number: int, name: str, cpus: str = "", *, managed: bool = False, **more: object
    ) -> PlayedLine:
        """A line is requested: it gets the default mask unless `cpus` says otherwise."""
        own = CPUSet.parse(cpus) if cpus else CPUSet.parse(self.values["default"]) & self.online
        own = own or self.online
        line = PlayedLine((name,), f"PCI-MSIX {number}", own, own, is_managed=managed, **more)  # type: ignore[arg-type]
        if not managed:
            line.fire()
        self.lines[number] = line
        return line

    def snapshot(self) -> dict[str, str]:
        """Every setting as text."""
        return self.values | {f"irq/{number}": str(line.cpus) for number, line in self.lines.items()}

    # What others do

    def foreign(self, name: str, value: str) -> None:
        """Somebody else sets a value; the kernel refuses what it would refuse to us."""
        if name.startswith("irq/"):
            line = self.lines.get(int(name[4:]))
            if line is not None and not line.is_managed and CPUSet.parse(value) & self.online:
                line.set(CPUSet.parse(value))
        else:
            self.values[name] = value

    def set_online(self, online: CPUSet) -> None:
        """CPUs go and come. A line whose last CPU goes gets every online CPU, and keeps that."""
        self.online = online
        for line in self.lines.values():
            if line.is_managed:
                continue
            if not line.cpus & online:
                line.set(online)
            if not line.effective & online:
                line.fire()

    # The interface of KernelSettingFiles

    def missing(self, _kinds: Collection[SettingKind]) -> str:
        """Which mount is missing."""
        return self.lacks

    def interrupts(self, *, with_devices: bool = False, only: Iterable[int] | None = None) -> Listed:
        """As the files show them."""
        if self.lacks:
            raise HostError("/proc/irq", self.lacks)
        self.reads += 1
        found = [
            Interrupt(
                number,
                line.actions,
                line.chip,
                line.cpus,
                line.effective,
                not (line.is_managed and self.shows_mode),
                line.node,
                line.device if with_devices else "",
            )
            for number, line in sorted(self.lines.items())
            if only is None or number in set(only)
        ]
        return Listed(
            tuple(one for one in found if one.is_settable), tuple(one for one in found if not one.is_settable)
        )

    def online_cpus(self) -> CPUSet:
        """The CPUs that are online now."""
        return self.online

    def effective(self, number: int) -> CPUSet | None:
        """Where it is delivered."""
        line = self.lines.get(number)
        return line.effective if line else None

    def workqueues(self) -> tuple[str, ...]:
        """The masks."""
        return ("workqueue/", "workqueue/writeback")

    def receive_queues(self) -> tuple[str, ...]:
        """Two of one device; packets of the second are not steered."""
        return tuple(name for name in self.values if name.startswith(SettingKind.STEERING))

    def read(self, name: str) -> str | None:
        """A value."""
        if name.startswith("irq/"):
            line = self.lines.get(int(name[4:]))
            return str(line.cpus) if line else None
        return self.values.get(name)

    def write(self, name: str, value: str) -> None:
        """A write of ours, and perhaps another one before it is read back."""
        self._write(name, value)
        if name in self.races:
            self.foreign(name, self.races.pop(name))

    def _write(self, name: str, value: str) -> None:
        self.writes.append((name, value))
        for key in (name, "*"):
            if key in self.refuse:
                raise RefusedError(name, self.refuse.pop(key) if key == "*" else self.refuse[key])
        if name.startswith("irq/"):
            self._write_line(name, CPUSet.parse(value))
            return
        free = (SettingKind.LATENCY, SettingKind.STEERING)
        if not name.startswith(free) and not CPUSet.parse(value) & self.online:
            raise RefusedError(name, errno.EINVAL)
        self.values[name] = value

    def _write_line(self, name: str, cpus: CPUSet) -> None:
        line = self.lines.get(int(name[4:]))
        if line is None:
            raise RefusedError(name, errno.ENOENT)
        if line.is_managed:
            raise RefusedError(name, errno.EPERM if self.shows_mode else errno.EIO)
        if not cpus & self.online:
            raise RefusedError(name, errno.EINVAL)
        line.set(cpus)
        if line.remaps:
            line.fire()


def machine(*, shows_mode: bool = True) -> PlayedKernel:
    """Four CPUs: a movable line, one of a driver's hint, a managed one, the timer."""
    kernel = PlayedKernel.of(4, shows_mode=shows_mode)
    kernel.add(0, "timer", "0-3", managed=True)
    kernel.add(24, "rng")
    kernel.add(25, "eth0-rx", "0-3")
    kernel.add(26, "nvme0q1", "0-1", managed=True)
    kernel.add(27, "nvme0q2", "2-3", managed=True)
    kernel.add(28, "config", "1,3", remaps=True)
    return kernel
