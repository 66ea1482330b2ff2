"""containerd, as a node runs it, but without a network: started, stopped, asked for its version.

NRI keeps every default of the runtime, the two-second limit on a request among them, unless a test says otherwise.
"""

import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from .report import tell
from .waiting import wait_for

_SOCKETS = (Path("/run/containerd/containerd.sock"), Path("/run/nri/nri.sock"))
_CONFIG = Path("/run/containerd.toml")
_PLUGINS = Path("/opt/nri/plugins")
"""NRI plugins that containerd starts itself, before it takes requests."""
_START_LIMIT_S = 60

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


@dataclass
class Containerd:
    """One containerd of this root.

    Attributes:
        nri: lines for its NRI table.
        tables: further tables of its configuration.
        environment: what is added to ours.
    """

    binary: str = "runc"
    systemd: bool = False
    nri: dict[str, str] = field(default_factory=dict)
    tables: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    log: Path = Path("/out/containerd.log")
    _process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> float:
        """Start it and wait until it takes requests and plugins; return the seconds that took."""
        template = _VERSION_2 if version().startswith("1.") else _VERSION_3
        text = template.format(binary=self.binary, systemd=str(self.systemd).lower()) + _NRI
        lines = "".join(f'{key} = "{value}"\n' for key, value in self.nri.items())
        _CONFIG.write_text(text + lines + self.tables)
        for path in _SOCKETS:
            path.unlink(missing_ok=True)
        began = time.monotonic()
        with self.log.open("a") as log:
            process = subprocess.Popen(
                ["containerd", "-c", str(_CONFIG)],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        self._process = process
        try:
            wait_for(
                lambda: all(path.exists() for path in _SOCKETS) or process.poll() is not None,
                _START_LIMIT_S,
                "containerd is up",
            )
        except TimeoutError as error:
            if not any(_PLUGINS.glob("*")):  # it waits for nobody but itself
                tell("slow", what=str(error))
            raise
        if process.returncode is not None:
            raise RuntimeError(f"containerd ended with status {process.returncode}; see {self.log.name}")
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop it; containers go on running, as they do on a node."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def request_limit(self) -> str:
        """Time a plugin has for a request, as the runtime itself prints its configuration."""
        command = ["containerd", "-c", str(_CONFIG), "config", "dump"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"plugin_request_timeout = ['\"](\w+)['\"]", printed)
        return found[1] if found else "not told"

    def log_lines(self, *words: str) -> list[str]:
        """Return the lines of its log that hold every one of `words`."""
        return [line for line in self.log.read_text().splitlines() if all(word in line for word in words)]


def version() -> str:
    """Version of the installed containerd, as `2.1.9`."""
    printed = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\sv?(\d+\.\d+\.\d+)", printed)
    return found[1] if found else printed.strip()


def import_images(directory: Path) -> None:
    """Load every image file of `directory` into the store that the CRI uses."""
    for path in sorted(directory.glob("*.tar")):
        subprocess.run(
            ["ctr", "-n", "k8s.io", "images", "import", "--local", str(path)], check=True, capture_output=True
        )
