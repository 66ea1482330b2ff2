"""The cgroups that a kubelet makes before the first pod: the QoS levels, with all controllers handed down."""

from pathlib import Path

from .observe import CGROUPS


def make_kubepods() -> None:
    """Make `kubepods`, `burstable` and `besteffort` on cgroup v2, for the cgroupfs driver."""
    _hand_down(CGROUPS)
    for directory in (CGROUPS / "kubepods", CGROUPS / "kubepods/burstable", CGROUPS / "kubepods/besteffort"):
        directory.mkdir(exist_ok=True)
        _hand_down(directory)


def _hand_down(directory: Path) -> None:
    controllers = (directory / "cgroup.controllers").read_text().split()
    wanted = [f"+{name}" for name in ("cpuset", "cpu", "memory", "pids") if name in controllers]
    (directory / "cgroup.subtree_control").write_text(" ".join(wanted))
