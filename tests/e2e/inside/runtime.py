"""A container runtime of this root, as a node runs it, but without a network: started, stopped, asked for its log."""

import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from .report import tell
from .waiting import wait_for

NRI_SOCKET = Path("/run/nri/nri.sock")
_PLUGINS = Path("/opt/nri/plugins")
"""NRI plugins that a runtime starts itself, before it takes requests."""
_START_LIMIT_S = 60


@dataclass
class Runtime:
    """What all runtimes have in common. NRI keeps every default, the two seconds for a request among them.

    Attributes:
        binary: the OCI runtime.
        nri: lines for its NRI table.
        tables: further tables of its configuration.
        environment: what is added to ours.
        socket: where it serves CRI.
        log: what it says.
        lowest_score: the best oom_score_adj that its containers may have.
    """

    binary: str = "runc"
    systemd: bool = False
    nri: dict[str, str] = field(default_factory=dict)
    tables: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    socket: ClassVar[Path]
    log: ClassVar[Path]
    lowest_score: ClassVar[int] = -1000
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def command(self) -> list[str]:
        """Write its configuration; return the command that starts it."""
        raise NotImplementedError

    def tells_configuration(self) -> list[str]:
        """The command that prints its whole configuration."""
        raise NotImplementedError

    def request_limit(self) -> str:
        """Time a plugin has for a request, as the runtime itself prints its configuration."""
        printed = _printed(self.tells_configuration())
        found = re.search(r"plugin_request_timeout = ['\"](\w+)['\"]", printed)
        return found[1] if found else "not told"

    def start(self) -> float:
        """Start it and wait until it takes requests and plugins; return the seconds that took."""
        command = self.command()
        sockets = (self.socket, NRI_SOCKET)
        for path in sockets:
            path.unlink(missing_ok=True)
        began = time.monotonic()
        with self.log.open("a") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )
        self._process = process
        try:
            wait_for(
                lambda: all(path.exists() for path in sockets) or process.poll() is not None,
                _START_LIMIT_S,
                f"{command[0]} is up",
            )
        except TimeoutError as error:
            if not any(_PLUGINS.glob("*")):  # it waits for nobody but itself
                tell("slow", what=str(error))
            raise
        if process.returncode is not None:
            raise RuntimeError(f"{command[0]} ended with status {process.returncode}; see {self.log.name}")
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop it; containers go on running, as they do on a node."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def log_lines(self, *words: str) -> list[str]:
        """Return the lines of its log that hold every one of `words`."""
        return [line for line in self.log.read_text().splitlines() if all(word in line for word in words)]


def version_of(program: str) -> str:
    """Version of a program on the PATH, as `2.1.9`."""
    printed = _printed([program, "--version"])
    found = re.search(r"\sv?(\d+\.\d+\.\d+)", printed)
    return found[1] if found else printed.strip()


def _printed(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
