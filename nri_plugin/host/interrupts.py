"""Interrupts, workqueue masks, wake-up latencies and receive steering: reads and writes their files, decides nothing.

A name of `nri_plugin.core.quiet` stands for one file each. All of them belong to uid 0, which needs no capability to write
them, but for the steering of received packets. The root is the folder that holds the machine's `proc` and `sys`.

Source: kernel Documentation/core-api/irq/irq-affinity.rst, Documentation/core-api/workqueue.rst,
    Documentation/ABI/testing/sysfs-kernel-irq and sysfs-devices-power; errors were seen on Linux 6.1, 6.12 and 7.2.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nri_plugin.core.quiet import Interrupt, SettingKind
from nri_plugin.host.sysfs_files import read_value, write_value
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet

IRQS = "proc/irq"
ONLINE = "sys/devices/system/cpu/online"
DEFAULT_MASK = "default_smp_affinity"
ABOUT_IRQS = "sys/kernel/irq"
WORKQUEUES = "sys/devices/virtual/workqueue"
LATENCIES = "sys/devices/system/cpu"
NETWORK = "sys/class/net"
PCI_DEVICES = "sys/bus/pci/devices"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""The same in every container."""

FIXED = frozenset({errno.EIO, errno.EPERM})
"""Errors for an interrupt that the kernel lets nobody set: a managed one, or one of a single CPU. EIO before Linux 6.12,
where the mode of the file does not tell."""

ABSENT = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR})
"""Errors for an interrupt that was freed since it was listed."""

NOT_GRANTED = frozenset({errno.EROFS, errno.EACCES})
"""Errors for files that this process may not write: a mount is missing."""


class RefusedError(Exception):
    """The kernel refused a write.

    Attributes:
        number: the errno.
        word: its name, as `EIO`.
    """

    def __init__(self, path: str, number: int) -> None:
        super().__init__(path, number)
        self.path, self.number = path, number
        self.word = errno.errorcode.get(number, str(number))

    def __str__(self) -> str:
        return f"{self.path}: {os.strerror(self.number).lower()} ({self.word})"


Writer = Callable[[str, str], None]


def _written(path: str, text: str) -> None:
    write_value(path, text, truncate=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """The interrupts of a machine.

    Attributes:
        movable: those that may be set, as far as the mode of their files tells.
        fixed: those that only the kernel sets.
    """

    movable: tuple[Interrupt, ...]
    fixed: tuple[Interrupt, ...]


class KernelSettingFiles:
    """The files below a root.

    Args:
        root: the folder that holds the machine's `proc` and `sys`.
        write: writes a file; another one stands in for a kernel in tests.
    """

    def __init__(self, root: str = "/", write: Writer = _written) -> None:
        self._root, self._write = root, write

    def path(self, name: str) -> str:
        """The file of a setting."""
        kind, _, which = name.partition("/")
        return os.path.join(self._root, _FILES[SettingKind(kind)].format(which)).replace("//", "/")

    def directory(self, number: int | None) -> str:
        """The directory to watch for writes of an interrupt; None for that of the mask for later ones."""
        top = os.path.join(self._root, IRQS)
        return top if number is None else os.path.join(top, str(number))

    # Interrupts

    def interrupts(self, *, with_devices: bool = False, only: Iterable[int] | None = None) -> Listed:
        """Every interrupt that has a handler.

        Args:
            with_devices: also look up the PCI devices, which takes longer.
            only: look at these numbers instead of all.

        Raises:
            HostError: the directory is not there, or cannot be listed.
        """
        top = os.path.join(self._root, IRQS)
        try:
            numbers = sorted(only or (int(name) for name in os.listdir(top) if name.isdecimal()))
        except OSError as error:
            raise HostError(top, f"cannot be listed: {(error.strerror or '').lower()}") from None
        devices = self._devices() if with_devices else {}
        found = [one for number in numbers if (one := self._interrupt(number, devices)) is not None]
        return Listed(
            tuple(one for one in found if one.is_settable), tuple(one for one in found if not one.is_settable)
        )

    def _interrupt(self, number: int, devices: Mapping[int, str]) -> Interrupt | None:
        """One interrupt; None where it has no handler, or is gone."""
        about, place = os.path.join(self._root, ABOUT_IRQS, str(number)), self.directory(number)
        try:
            actions = read_value(os.path.join(about, "actions"))
            if not actions:
                return None
            chip = (
                f"{read_value(os.path.join(about, 'chip_name'))} {read_value(os.path.join(about, 'hwirq'))}"
            )
            path = os.path.join(place, "smp_affinity_list")
            cpus = CPUSet.parse(read_value(path))
            is_settable = bool(os.stat(path).st_mode & stat.S_IWUSR)
        except (OSError, ValueError):
            return None
        return Interrupt(
            number,
            tuple(one.strip() for one in actions.split(",")),
            chip.strip(),
            cpus,
            self.effective(number),
            is_settable,
            self._node(place),
            devices.get(number, ""),
        )

    def effective(self, number: int) -> CPUSet | None:
        """The CPUs that an interrupt is delivered to; None where the kernel does not tell."""
        try:
            return CPUSet.parse(read_value(os.path.join(self.directory(number), "effective_affinity_list")))
        except (OSError, ValueError):
            return None

    def _node(self, place: str) -> int:
        try:
            return int(read_value(os.path.join(place, "node")))
        except (OSError, ValueError):
            return -1

    def _devices(self) -> dict[int, str]:
        """The PCI address by number. `irq` is a line that is no longer used where there are `msi_irqs`."""
        top, found = os.path.join(self._root, PCI_DEVICES), {}
        with suppress(OSError):
            for address in os.listdir(top):
                for number in self._numbers_of(os.path.join(top, address)):
                    found[number] = address
        return found

    def _numbers_of(self, device: str) -> Iterator[int]:
        try:
            names = os.listdir(os.path.join(device, "msi_irqs"))
        except OSError:
            names = []
            with suppress(OSError):
                names = [read_value(os.path.join(device, "irq"))]
        return (int(name) for name in names if name.isdecimal() and int(name))

    def online_cpus(self) -> CPUSet | None:
        """The CPUs that are online now; None where the kernel does not tell."""
        with suppress(OSError, ValueError):
            return CPUSet.parse(read_value(os.path.join(self._root, ONLINE)))
        return None

    # Values

    def read(self, name: str) -> str | None:
        """The value of a setting; sets of CPUs as lists. None where there is no such file, or it holds something else."""
        path = self.path(name)
        kind = SettingKind(name.partition("/")[0])
        with suppress(OSError, ValueError):
            if kind is SettingKind.WORKQUEUE:
                # Linux 6.8 subtracts isolated partitions from the mask, and shows beside it what was asked for.
                with suppress(OSError, ValueError):
                    return str(CPUSet(_mask(read_value(f"{path}_requested"))))
            text = read_value(path)
            if kind is SettingKind.LATENCY:
                return text
            return str(CPUSet.parse(text) if kind is SettingKind.IRQ else CPUSet(_mask(text)))
        return None

    def write(self, name: str, value: str) -> None:
        """Write the value of a setting, in one `write()`.

        Raises:
            RefusedError: the kernel refused.
        """
        path, kind = self.path(name), SettingKind(name.partition("/")[0])
        text = value if kind in (SettingKind.IRQ, SettingKind.LATENCY) else mask_text(CPUSet.parse(value))
        try:
            self._write(path, text)
        except OSError as error:
            raise RefusedError(path, error.errno or errno.EIO) from None

    def workqueues(self) -> tuple[str, ...]:
        """The names of the masks that bind unbound kernel work and writeback."""
        names = (f"{SettingKind.WORKQUEUE}/", f"{SettingKind.WORKQUEUE}/writeback")
        return tuple(name for name in names if os.path.exists(self.path(name)))

    def receive_queues(self) -> tuple[str, ...]:
        """The names of the receive queues of devices with hardware behind them; those of pods (veth) have none."""
        top, found = os.path.join(self._root, NETWORK), []
        with suppress(OSError):
            for device in sorted(os.listdir(top)):
                if os.path.exists(os.path.join(top, device, "device")):
                    with suppress(OSError):
                        queues = sorted(os.listdir(os.path.join(top, device, "queues")))
                        found += [
                            f"{SettingKind.STEERING}/{device}/queues/{one}"
                            for one in queues
                            if one[:3] == "rx-"
                        ]
        return tuple(found)

    def missing(self, kinds: Collection[SettingKind]) -> str:
        """The first file for settings of these kinds that is not there, or not writable; empty when all are."""
        needed = [
            *([os.path.join(IRQS, DEFAULT_MASK)] if SettingKind.DEFAULT in kinds else []),
            *([os.path.join(WORKQUEUES, "cpumask")] if SettingKind.WORKQUEUE in kinds else []),
            *(
                [os.path.join(LATENCIES, "cpu0/power/pm_qos_resume_latency_us")]
                if SettingKind.LATENCY in kinds
                else []
            ),
        ]
        for one in needed:
            path = os.path.join(self._root, one)
            if not os.path.exists(path):
                return f"{path} is not there"
            if not os.access(path, os.W_OK, effective_ids=True):
                return f"{path} may not be written"
        return ""


_FILES = {
    SettingKind.IRQ: f"{IRQS}/{{}}/smp_affinity_list",
    SettingKind.DEFAULT: f"{IRQS}/{DEFAULT_MASK}",
    SettingKind.WORKQUEUE: f"{WORKQUEUES}/{{}}/cpumask",
    SettingKind.LATENCY: f"{LATENCIES}/cpu{{}}/power/pm_qos_resume_latency_us",
    SettingKind.STEERING: f"{NETWORK}/{{}}/rps_cpus",
}

_WORD = (1 << 32) - 1


def mask_text(cpus: CPUSet) -> str:
    """A set of CPUs in words of 32 bits, the most significant first; never more words than its highest CPU needs.

    Source: kernel lib/bitmap.c, bitmap_parse.
    """
    words, left = [], cpus.mask
    while left:
        words.append(left & _WORD)
        left >>= 32
    first, *rest = reversed(words or [0])
    return ",".join([f"{first:x}", *(f"{word:08x}" for word in rest)])


def _mask(text: str) -> int:
    return int(text.replace(",", ""), 16)


def boot_id() -> str:
    """The id of this boot; empty where the kernel does not tell."""
    try:
        return read_value(BOOT_ID)
    except OSError:
        return ""
