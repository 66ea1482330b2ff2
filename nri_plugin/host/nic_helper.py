"""Asks the helper process `nri_plugin.host.nic_probe` for the devices of network interfaces.

The runtime waits while the agent waits for the helper. So a helper that is late is ended, and the interfaces are looked up
in sysfs. After a pause the next container starts another helper.
"""

import os
import re
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from nri_plugin.model.errors import HostError

if TYPE_CHECKING:
    import subprocess

COMMAND = (sys.executable, "-P", "-m", "nri_plugin.host.nic_probe")

READY_S = 20.0
"""Its library loads in a quarter of a second; on a machine that boots it may take much longer."""

ANSWER_S = 0.05
"""One interface takes less than a millisecond."""

PAUSE_S = 5.0
"""Between the failure of a helper and the start of the next one."""

LINE_BYTES = 1 << 16

_WORD = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9:._-]{1,64}\Z")

_Answer = dict[str, tuple[str, str] | None]


class _SilentError(Exception):
    """The helper sent no usable line in time."""


class NICHelper:
    """Starts the helper process and asks it.

    Args:
        clock: seconds, monotonic.
        command: of the helper.

    Attributes:
        failures: how many helpers were ended because they failed or were late.
    """

    def __init__(self, clock: Callable[[], float], command: Sequence[str] = COMMAND) -> None:
        self.failures = 0
        self._clock = clock
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._buffer = b""
        self._again_at = clock()

    def start(self, limit_s: float = READY_S) -> None:
        """Start the helper and wait until it is ready.

        Raises:
            HostError: it is not ready in time; says why.
        """
        try:
            self._spawn()
            line = self._line(limit_s)
            said = msgspec.json.decode(line, type=dict[str, str])
        except (OSError, _SilentError, msgspec.DecodeError) as error:
            self.close()
            raise _unusable(str(error)) from None
        if "error" in said:
            self.close()
            raise _unusable(said["error"])
        self._is_ready = True

    def __call__(self, names: Sequence[str]) -> Mapping[str, str]:
        """The directories of interfaces' devices, such as `sys/bus/pci/devices/0000:3b:00.0`, by interface.

        Never raises: without an answer within `ANSWER_S` the result is empty.
        """
        if not names or not self._hears():
            return {}
        try:
            self._send(msgspec.json.encode(list(names)) + b"\n")
            found = msgspec.json.decode(self._line(ANSWER_S), type=_Answer)
        except (OSError, _SilentError, msgspec.DecodeError):
            self._fail()
            return {}
        return {
            name: f"sys/bus/{place[0]}/devices/{place[1]}"
            for name, place in found.items()
            if place is not None and all(map(_WORD.match, place))
        }

    def close(self) -> None:
        """End the helper."""
        process, self._process = self._process, None
        self._is_ready, self._buffer = False, b""
        if process is not None:
            process.kill()
            process.communicate()  # reaps the process and closes the pipes

    def _hears(self) -> bool:
        """Whether the helper is ready. If no helper runs, one is started for later questions; this one does not wait."""
        if self._process is None:
            if self._clock() >= self._again_at:
                with suppress(OSError):
                    self._spawn()
        elif not self._is_ready:
            try:
                self._is_ready = msgspec.json.decode(self._line(0.0)) == {}
            except _SilentError:
                if self._process.poll() is not None:
                    self._fail()
            except (OSError, msgspec.DecodeError):
                self._fail()
        return self._is_ready

    def _spawn(self) -> None:
        import subprocess  # most nodes never need a helper

        # First, so that a command that cannot be started is not tried again before the pause either.
        self._again_at = self._clock() + PAUSE_S
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )

    def _fail(self) -> None:
        self.failures += 1
        self.close()
        self._again_at = self._clock() + PAUSE_S

    def _send(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None or len(line) > LINE_BYTES:
            raise _SilentError("there is no helper")
        self._process.stdin.write(line)

    def _line(self, limit_s: float) -> bytes:
        """The next line.

        Raises:
            _SilentError: there is none in time, or it is too long.
        """
        if self._process is None or self._process.stdout is None:
            raise _SilentError("there is no helper")
        number = self._process.stdout.fileno()
        until = self._clock() + limit_s
        poller = select.poll()
        poller.register(number, select.POLLIN)
        while b"\n" not in self._buffer:
            left_s = max(until - self._clock(), 0.0)
            if not poller.poll(left_s * 1000):
                raise _SilentError(f"it says nothing within {limit_s:g} s")
            block = os.read(number, LINE_BYTES)
            if not block or len(self._buffer) > LINE_BYTES:
                raise _SilentError("it ended" if not block else "its answer has no end")
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _unusable(why: str) -> HostError:
    return HostError(
        "nicLocality: netlink", f"the helper process does not work: {why}; install pyroute2, or use sysfs"
    )
