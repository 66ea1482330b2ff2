"""What a guest is started from, and QEMU's command line.

Emulation in one thread: slower than several, and it never hung. Hardware acceleration only where a guest has come up
with it (`accelerator`): the device file promises nothing, inside another virtual machine stock kernels often do not.
"""

from dataclasses import dataclass
from pathlib import Path

from .qemu_machine import GuestMachine
from .shell import DIES_WITH_US

_KERNEL_LINE = "console=ttyS0 root=/dev/nvme0n1 rootwait rw panic=-1 quiet"
_FASTER_BOOT = "random.trust_cpu=on mitigations=off nokaslr"
EMULATION = "tcg,thread=single"
_BOOT_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class GuestRecipe:
    """What a guest is started from.

    Attributes:
        init: its first process with its kernel parameters.
        accelerator: QEMU's.
        boot_limit_s: how long it may take until it answers.
        terminal: the socket to offer the guest's /dev/hvc0 on; empty for none.
    """

    disk: Path
    kernel: Path
    machine: GuestMachine
    init: str = "/sbin/lab-init"
    accelerator: str = EMULATION
    boot_limit_s: float = _BOOT_LIMIT_S
    terminal: str = ""


def command_for(recipe: GuestRecipe, console: Path, port: str) -> list[str]:
    """QEMU with its options; it dies with the thread that starts it."""
    guest = recipe.machine
    command = [*DIES_WITH_US, "nice", "-n", "10", "qemu-system-x86_64", "-machine", guest.machine]
    command += ["-accel", recipe.accelerator, "-cpu", guest.cpu, *guest.arguments]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-serial", f"file:{console}"]
    # each names its bus: with further host bridges QEMU would choose one of them
    command += ["-device", "virtio-serial-pci,bus=pcie.0", "-chardev", f"socket,id=port,path={port}"]
    command += ["-device", "virtserialport,chardev=port,name=lab"]
    if recipe.terminal:
        command += ["-chardev", f"socket,id=terminal,path={recipe.terminal},server=on,wait=off"]
        command += ["-device", "virtconsole,chardev=terminal"]
    command += ["-drive", f"if=none,id=disk,format=raw,file={recipe.disk},snapshot=on,cache=unsafe"]
    command += ["-device", "nvme,drive=disk,serial=disk,bus=pcie.0"]
    words = " ".join([_KERNEL_LINE, _FASTER_BOOT, *guest.kernel, f"init={recipe.init}"])
    return [*command, "-kernel", str(recipe.kernel), "-append", words]
