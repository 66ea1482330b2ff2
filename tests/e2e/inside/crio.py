"""CRI-O: its configuration, its version, its images."""

import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from .runtime import Runtime, version_of

_CONFIG = Path("/run/crio.toml")
_POLICY = Path("/run/crio-policy.json")
_DRIVER = "vfs"  # this root may lie on an overlay, which cannot be the upper layer of another one

# conmon_cgroup: as cgroupfs wants it. disable_hostport_mapping: this root has no iptables.
_TEXT = """[crio]
storage_driver = "{driver}"
[crio.runtime]
cgroup_manager = "{manager}"
conmon_cgroup = "pod"
apparmor_profile = "unconfined"
default_runtime = "lab"
disable_hostport_mapping = true
irqbalance_config_restore_file = "disable"
[crio.runtime.runtimes.lab]
runtime_path = "{binary}"
[crio.image]
pause_image = "localhost/pause:1"
signature_policy = "{policy}"
[crio.nri]
enable_nri = true
"""


class Crio(Runtime):
    """One CRI-O of this root."""

    socket: ClassVar[Path] = Path("/run/crio/crio.sock")
    log: ClassVar[Path] = Path("/out/crio.log")
    # without CAP_SYS_RESOURCE a process may not give itself a better score, and CRI-O has no option for that
    lowest_score: ClassVar[int] = int(Path("/proc/self/oom_score_adj").read_text())

    def command(self) -> list[str]:
        """Write its configuration; return the command that starts it."""
        text = _TEXT.format(
            driver=_DRIVER,
            manager="systemd" if self.systemd else "cgroupfs",
            binary=shutil.which(self.binary),
            policy=_POLICY,
        )
        lines = "".join(f'nri_{key} = "{value}"\n' for key, value in self.nri.items())
        _CONFIG.write_text(text + lines + self.tables)
        _POLICY.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        return ["crio", "--config", str(_CONFIG), "--config-dir", ""]

    def tells_configuration(self) -> list[str]:
        """The command that prints its whole configuration."""
        return [*self.command(), "config"]


def version() -> str:
    """Version of the CRI-O on the PATH, as `1.34.0`."""
    return version_of("crio")


def import_images(directory: Path) -> None:
    """Load every image file of `directory` into the store that CRI-O uses."""
    _POLICY.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    for path in sorted(directory.glob("*.tar")):
        target = f"containers-storage:[{_DRIVER}@/var/lib/containers/storage+/run/containers/storage]localhost/{path.stem}:1"
        command = ["skopeo", "--policy", str(_POLICY), "copy", "-q", f"oci-archive:{path}", target]
        subprocess.run(command, check=True, capture_output=True)
