"""The services of a node, as far as a migration needs them: one small interface, and systemd behind it."""

import subprocess
from typing import Protocol

from nri_plugin.model.errors import HostError

SYSTEMCTL_S = 180
"""A unit that does not stop is killed by systemd after 90 s."""

NO_SYSTEMD = (
    "cannot reach systemd, and nri-pin migrate works through it; run it on the node as root, or in a pod that sees the "
    "node's files and processes; where another program starts the kubelet, migrate by hand: deploy/guide/migrate.md"
)
IN_CHROOT = "in chroot, ignoring"
"""systemctl says this, does nothing, and ends with exit code 0."""

UNREACHED = ("not been booted with systemd", "failed to connect to", "failed to run command", IN_CHROOT)
"""Parts of what systemctl, or chroot, says where there is no systemd. The exit codes do not tell."""


class Services(Protocol):
    """Starts and stops units. Each call may be repeated."""

    def start(self, unit: str) -> None:
        """Start it."""

    def stop(self, unit: str) -> None:
        """Stop it."""

    def restart(self, unit: str) -> None:
        """Stop and start it."""

    def enable(self, unit: str, *, on: bool) -> None:
        """Choose whether it starts with the machine."""

    def reload(self) -> None:
        """Read the unit files again."""

    def show(self, unit: str, name: str) -> str:
        """A property of a unit; empty where it has none."""


class Systemd:
    """systemd of this node, or of the node whose root file system is mounted at `root`.

    Below another root the node's own program is called. It reaches the node's systemd by its socket, as long as this
    process sees the processes of the node: otherwise the program takes itself for one in a chroot, and does nothing.
    """

    def __init__(self, root: str = "/") -> None:
        self._prefix = [] if root == "/" else ["chroot", root]

    def start(self, unit: str) -> None:
        """Start it, also after it has failed too often."""
        self._call("reset-failed", unit, is_needed=False)
        self._call("start", unit)

    def stop(self, unit: str) -> None:
        """Stop it."""
        self._call("stop", unit)

    def restart(self, unit: str) -> None:
        """Stop and start it."""
        self._call("restart", unit)

    def enable(self, unit: str, *, on: bool) -> None:
        """Choose whether it starts with the machine."""
        self._call("enable" if on else "disable", unit)

    def reload(self) -> None:
        """Read the unit files again."""
        self._call("daemon-reload")

    def show(self, unit: str, name: str) -> str:
        """A property of a unit; empty where it has none."""
        return self._call("show", "--value", "-p", name, unit).strip()

    def _call(self, *words: str, is_needed: bool = True) -> str:
        command = [*self._prefix, "systemctl", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SYSTEMCTL_S)
        except FileNotFoundError:
            raise HostError(command[0], f"is not there: {NO_SYSTEMD}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(" ".join(command), f"failed: {error}") from None
        if is_needed and (done.returncode or IN_CHROOT in done.stderr):
            raise HostError(" ".join(command), _why(done))
        return done.stdout


def _why(done: "subprocess.CompletedProcess[str]") -> str:
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    is_unreached = any(part in said.lower() for part in UNREACHED)
    return f"{NO_SYSTEMD}; systemctl said: {said}" if is_unreached else said
