"""A guest's disk: the root with its start-up files, as an ext4 image that every boot uses as a snapshot."""

import shutil
from pathlib import Path

from .guest_units import write_units
from .kernel import extract_kernel, kernel_in
from .progress import step
from .shell import LabError, run

_NEEDED = (
    "crypto",
    "fs/overlayfs",
    "drivers/block",
    "drivers/char",
    "drivers/net",
    "drivers/virtio",
    "net/core",
)
"""Directories of modules: overlay, virtio and the devices behind it."""

_START_FILES = {"guest_init.sh": "sbin/lab-init", "guest_server.py": "sbin/lab-server"}


def build_disk(name: str, root: Path, kernel_root: Path, key: str, work: Path) -> tuple[Path, Path]:
    """Return the disk image of `root` and the kernel of `kernel_root`, made now or kept."""
    disk, kernel = work / f"guest-{name}-{key}.img", work / f"vmlinux-{name}-{key}"
    done = work / f"guest-{name}-{key}.done"
    if done.exists():
        return disk, kernel
    for leftover in [*work.glob(f"guest-{name}-*"), *work.glob(f"vmlinux-{name}-*")]:
        leftover.unlink()
    with step(f"building the disk of the {name} guest"):
        added = _add_kernel_modules(root, kernel_root)
        run(["chroot", root, "/sbin/depmod", _only(kernel_root / "usr/lib/modules", "*").name])
        for source, target in _START_FILES.items():
            shutil.copy(Path(__file__).parent / source, root / target)
            (root / target).chmod(0o755)
        write_units(root)
        run(
            [
                "mke2fs",
                "-q",
                "-t",
                "ext4",
                "-O",
                "^has_journal,^metadata_csum",
                "-m0",
                "-d",
                root,
                disk,
                "1500M",
            ]
        )
        if added is not None:
            shutil.rmtree(added)
        extract_kernel(kernel_in(kernel_root), kernel)
    done.touch()
    return disk, kernel


def _add_kernel_modules(root: Path, kernel_root: Path) -> Path | None:
    """Copy the modules that guests need into a root without any; returns where they are.

    Kernels differ in what is built in: Linux 6.1 has virtio as modules.
    """
    if root == kernel_root:
        return None
    modules = _only(kernel_root / "usr/lib/modules", "*")
    target = root / "usr/lib/modules" / modules.name
    shutil.rmtree(target, ignore_errors=True)
    for name in _NEEDED:
        if (modules / "kernel" / name).exists():
            shutil.copytree(modules / "kernel" / name, target / "kernel" / name)
    for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
        shutil.copy(modules / name, target / name)
    return target


def _only(directory: Path, pattern: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise LabError(
            f"expected one {pattern} in {directory}, found {len(found)}; delete that root and run again"
        )
    return found[0]
