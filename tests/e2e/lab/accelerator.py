"""Which accelerator guests get: found by a short boot, never by the presence of a device file.

Inside another virtual machine `/dev/kvm` is often there while a stock kernel does not come up under it.
"""

from dataclasses import replace
from pathlib import Path

from .guest import Guest
from .guest_recipe import EMULATION, GuestRecipe
from .progress import say
from .qemu_machine import guest_machine
from .ready import KERNEL_FROM, Lab
from .shell import Interrupted, LabError
from .writing import write_whole

_HARDWARE = "kvm"
_DEVICE = Path("/dev/kvm")
_LIMIT_S = 20.0
_SMALLEST = "pack:1 numa:1(memory=512MiB) l3:1 core:2 pu:1\n"


def accelerator(lab: Lab, root: str) -> str:
    """The fastest that works here; the answer is kept until this machine boots again."""
    if not _DEVICE.exists():
        return EMULATION
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    kept = lab.work / f"accelerator-{boot_id}"
    if not kept.exists():
        for leftover in lab.work.glob("accelerator-*"):
            leftover.unlink()
        write_whole(kept, _probe(lab, root))
    return kept.read_text()


def _probe(lab: Lab, root: str) -> str:
    recipe = GuestRecipe(
        *lab.disks[root, KERNEL_FROM], guest_machine(_SMALLEST, "probe"), boot_limit_s=_LIMIT_S
    )
    try:
        with Guest(replace(recipe, accelerator=_HARDWARE), lab.work / "probe.log") as guest:
            say(f"guests run under {_HARDWARE}: one came up in {guest.seconds_to_boot} s")
            return _HARDWARE
    except Interrupted:
        raise
    except LabError as error:
        say(f"{_DEVICE} is there, but no guest came up under it; guests are emulated: {str(error)[:200]}")
        return EMULATION
