"""What is there once everything was prepared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .prepare import Prepared

CHECKOUT = Path(__file__).resolve().parents[3]
KERNEL_FROM = "trixie"
"""Guests run the kernel that this root holds, unless they name another suite's."""


@dataclass(frozen=True, slots=True)
class Lab:
    """Everything that was prepared; `disks` are (image, kernel) by root name and the kernel's suite."""

    work: Path
    roots: Mapping[str, Prepared]
    disks: Mapping[tuple[str, str], tuple[Path, Path]]
