"""The agent of this checkout as a process: started, stopped, killed, and asked what it promised."""

import json
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .runtime import Runtime
from .waiting import wait_for

PYTHON = "/opt/nri-pin/bin/python3"
_SYNCHRONIZED = "plugin invocation order"  # containerd says so whenever a plugin has joined
_ENDS_S = 20
# said when the runtime restarts, and when a pod is refused on purpose
_EXPECTED = (
    "connection to the container runtime ended",
    "no connection to the container runtime",
    "pod=default/too-",
    'steps="refused resize"',
    "no longer satisfies the policy and is kept",
    "no partition, it has an ordinary cpuset",
)
# uid 0 with nothing that makes it more than a user, as a pod with `capabilities: drop: [ALL]` is
_BARE = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]
# the same with the capability that an option takes, as `agent.partitions` and `agent.receiveSteering` of the chart give them
_CAPABILITIES = {"isolation": "sys_admin", "receiveSteering": "net_admin"}


@dataclass
class Agent:
    """One agent; `config` is what its configuration file holds, `withheld` options whose capability it does not get."""

    runtime: Runtime
    config: dict[str, Any]
    log: Path = Path("/out/agent.log")
    config_file: Path = Path("/run/nri-pin.yaml")
    withheld: set[str] = field(default_factory=set)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _excused: list[str] = field(default_factory=list, init=False)

    @property
    def pid(self) -> int:
        """Process id while it runs, 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def write_config(self, **changes: Any) -> None:
        """Write the configuration file; JSON is YAML."""
        self.config |= changes
        self.config_file.write_text(json.dumps(self.config))

    def start(self) -> float:
        """Start it and wait until the runtime counts it among its plugins; return the seconds that took."""
        self.write_config()
        joined = self.times_joined()
        began = time.monotonic()
        with self.log.open("a") as log:
            command = [*self._rights(), PYTHON, "-m", "nri_plugin", "run", "--config", str(self.config_file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.wait_until_joined(joined)
        return time.monotonic() - began

    def another(self) -> tuple[bool, str]:
        """Start a second one with the same configuration, and stop it once it waits.

        Return whether it waited for this one and stopped when it was told to, and what it said.
        """
        command = [*_BARE, PYTHON, "-m", "nri_plugin", "run", "--config", str(self.config_file)]
        log = self.log.with_name("second.log")
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            waits = f"another agent (process {self.pid}"
            wait_for(
                lambda: waits in log.read_text() or process.poll() is not None, 60, "the second agent waits"
            )
        finally:
            process.terminate()
            status = process.wait(_ENDS_S)
        said = log.read_text()
        return status == 0 and waits in said, said

    def release(self) -> tuple[int, str]:
        """Give back what it pinned, once it has ended and with its rights; return the status and what was said."""
        command = [
            *self._rights(),
            PYTHON,
            "-m",
            "nri_plugin",
            "release",
            "--state-dir",
            str(self.config.get("stateDir", "/run/nri-pin")),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def doctor(self, *words: str) -> tuple[int, str]:
        """What `nri-pin doctor` says on the node."""
        state_dir = str(self.config.get("stateDir", "/run/nri-pin"))
        command = [PYTHON, "-m", "nri_plugin", "doctor", "--state-dir", state_dir, *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def times_joined(self) -> int:
        """How often the runtime has taken a plugin since its log began."""
        return len(self.runtime.log_lines(_SYNCHRONIZED))

    def wait_until_joined(self, joined_before: int = 0) -> None:
        """Wait until the runtime has taken one more plugin than `joined_before`.

        Raises:
            RuntimeError: the agent ended instead.
        """
        process = self._process

        def happened() -> bool:
            ended = process is not None and process.poll() is not None
            return ended or self.times_joined() > joined_before

        wait_for(happened, 300, "the runtime has taken the agent as a plugin")
        if process is not None and process.returncode is not None:
            said = self.log.read_text().splitlines()[-3:]
            raise RuntimeError(f"the agent ended with status {process.returncode}: {said}")

    def stop(self) -> None:
        """End it the way a node does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it the way the kernel does when memory runs out."""
        self._end(signal.SIGKILL)

    def complaints(self) -> list[str]:
        """Return what it logged above the level of information, without what the scenarios bring about."""
        expected = (*_EXPECTED, *self._excused)
        lines = self.log.read_text().splitlines()
        return [line for line in lines if " INFO " not in line and not any(text in line for text in expected)]

    def lines(self) -> list[str]:
        """What it logged so far; nothing before it was first started."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def excuse(self, lines: list[str]) -> None:
        """Count these lines of its log among those that a scenario brought about."""
        self._excused += lines

    def state(self) -> dict[str, Any]:
        """Return the checkpoint, as the command line shows it.

        Raises:
            RuntimeError: the command failed.
        """
        command = [
            PYTHON,
            "-m",
            "nri_plugin",
            "state",
            "show",
            "--output",
            "json",
            "--state-dir",
            str(self.config.get("stateDir", "/run/nri-pin")),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"state show ended with status {done.returncode}: {done.stderr[-1000:]}")
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown

    def verdict(self) -> str:
        """Return what `state verify` finds, judged by this machine and its cgroups; empty when it is sound."""
        command = [
            PYTHON,
            "-m",
            "nri_plugin",
            "state",
            "verify",
            "--root",
            "/",
            "--cgroup-root",
            "/sys/fs/cgroup",
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def _rights(self) -> list[str]:
        """Those of its configuration; none for options that `withheld` names."""
        added = [
            f",+{capability}"
            for option, capability in _CAPABILITIES.items()
            if self.config.get(option, "none") != "none" and option not in self.withheld
        ]
        return [_BARE[0], f"--bounding-set=-all{''.join(added)}", *_BARE[2:]]

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(how)
            try:
                process.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise RuntimeError(f"the agent did not end {_ENDS_S} s after {how.name}") from None
