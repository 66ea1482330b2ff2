"""The cgroups that a kubelet makes before the first pod: the QoS levels, with all controllers handed down."""

import subprocess
from pathlib import Path

from .observe import CGROUPS

_SLICES = ("kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice")


def make_kubepods(*, systemd: bool = False) -> None:
    """Make the levels on cgroup v2 for the driver that is used; systemd has to know of its own."""
    if systemd:
        subprocess.run(["systemctl", "start", *_SLICES], check=True, timeout=120)
    top = CGROUPS / (_SLICES[0] if systemd else "kubepods")
    below = _SLICES[1:] if systemd else ("burstable", "besteffort")
    _hand_down(CGROUPS)
    for directory in (top, *(top / name for name in below)):
        directory.mkdir(exist_ok=True)
        _hand_down(directory)


def _hand_down(directory: Path) -> None:
    controllers = (directory / "cgroup.controllers").read_text().split()
    wanted = [f"+{name}" for name in ("cpuset", "cpu", "memory", "pids") if name in controllers]
    (directory / "cgroup.subtree_control").write_text(" ".join(wanted))
