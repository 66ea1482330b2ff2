"""containerd: its configuration, its version, its images."""

import subprocess
from pathlib import Path
from typing import ClassVar

from .runtime import Runtime, version_of

_CONFIG = Path("/run/containerd.toml")

# disable_hugetlb_controller: by default containerd keeps limits of huge pages to itself, and no plugin hears of them.
# restrict_oom_score_adj: without CAP_SYS_RESOURCE the OCI runtime may not give a pod's container a better score.
_VERSION_2 = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
disable_apparmor = true
restrict_oom_score_adj = true
disable_hugetlb_controller = false
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{binary}"
SystemdCgroup = {systemd}
"""
_VERSION_3 = """version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
disable_hugetlb_controller = false
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{binary}"
SystemdCgroup = {systemd}
"""
_NRI = """[plugins."io.containerd.nri.v1.nri"]
disable = false
"""


class Containerd(Runtime):
    """One containerd of this root."""

    socket: ClassVar[Path] = Path("/run/containerd/containerd.sock")
    log: ClassVar[Path] = Path("/out/containerd.log")

    def command(self) -> list[str]:
        """Write its configuration; return the command that starts it."""
        template = _VERSION_2 if version().startswith("1.") else _VERSION_3
        text = template.format(binary=self.binary, systemd=str(self.systemd).lower()) + _NRI
        lines = "".join(f'{key} = "{value}"\n' for key, value in self.nri.items())
        _CONFIG.write_text(text + lines + self.tables)
        return ["containerd", "-c", str(_CONFIG)]

    def tells_configuration(self) -> list[str]:
        """The command that prints its whole configuration."""
        return ["containerd", "-c", str(_CONFIG), "config", "dump"]


def version() -> str:
    """Version of the installed containerd, as `2.1.9`."""
    return version_of("containerd")


def import_images(directory: Path) -> None:
    """Load every image file of `directory` into the store that the CRI uses."""
    for path in sorted(directory.glob("*.tar")):
        subprocess.run(
            ["ctr", "-n", "k8s.io", "images", "import", "--local", str(path)], check=True, capture_output=True
        )
