"""The guest's kernel: the uncompressed ELF inside a distribution's bzImage, which QEMU starts directly (PVH).

The bzImage itself would spend the first seconds of every emulated boot on unpacking itself.
"""

import subprocess
from pathlib import Path

from .shell import LabError

_PACKED = (
    (b"\x28\xb5\x2f\xfd", ["zstd", "-dcq"]),
    (b"\xfd7zXZ\0", ["xz", "-dc"]),
    (b"\x1f\x8b\x08", ["gzip", "-dc"]),
    (b"\x02\x21\x4c\x18", ["lz4", "-dcq"]),
)
_SMALLEST_KERNEL = 1 << 20
_PLACES = ("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz")
"""Where releases of Debian have the kernel; the latter since Linux 7."""


def kernel_in(root: Path) -> Path:
    """The compressed kernel in a root or an unpacked package.

    Raises:
        LabError: there is none, or more than one.
    """
    found = [path for place in _PLACES for path in root.glob(place)]
    if len(found) != 1:
        raise LabError(f"expected one kernel in {root}, found {len(found)}; delete that root and run again")
    return found[0]


def extract_kernel(compressed: Path, target: Path) -> None:
    """Write the ELF found in `compressed` to `target`.

    Raises:
        LabError: it holds no ELF in a known compression.
    """
    data = compressed.read_bytes()
    for magic, command in _PACKED:
        at = data.find(magic)
        while at >= 0:
            found = subprocess.run(
                command, input=data[at:], check=False, capture_output=True
            ).stdout  # what follows it is garbage
            if found.startswith(b"\x7fELF") and len(found) > _SMALLEST_KERNEL:
                target.write_bytes(found)
                return
            at = data.find(magic, at + 1)
    raise LabError(
        f"{compressed} holds no kernel compressed with zstd, xz, gzip or lz4; delete that root and run again"
    )
