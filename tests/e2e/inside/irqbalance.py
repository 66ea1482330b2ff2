"""Debian's irqbalance in a guest: started, ended, and asked by its socket which CPUs it leaves alone.

The client here is not the agent's: it judges what the agent told.
"""

import os
import re
import socket
import struct
import subprocess
from pathlib import Path

from .waiting import wait_for

DIRECTORY = Path("/run/irqbalance")
_BANNED = re.compile(r"BANNED ([0-9a-fA-F,]+)")
_UP_S, _ANSWER_S = 60, 20
ROUND_S = 2
"""Seconds between two of its rounds; ten unless it is told otherwise."""


class IRQBalance:
    """One irqbalance, which leaves these CPUs alone by its own configuration."""

    def __init__(self, own_ban: str) -> None:
        self._environment = {**os.environ, "IRQBALANCE_BANNED_CPULIST": own_ban}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it as its unit does, and wait until it answers."""
        DIRECTORY.mkdir(exist_ok=True)
        with Path("/out/irqbalance.log").open("a") as log:
            command = ["/usr/sbin/irqbalance", "--foreground", f"--interval={ROUND_S}"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        wait_for(lambda: self.banned() is not None, _UP_S, "irqbalance answers")

    def end(self, *, with_directory: bool = False) -> None:
        """End it; systemd removes the directory, too, where a unit says `RuntimeDirectory`."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_ANSWER_S)
            self._process = None
        if with_directory:
            subprocess.run(["rm", "-rf", str(DIRECTORY)], check=True)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def banned(self) -> set[int] | None:
        """The CPUs that it leaves alone; None while it does not answer."""
        assert self._process is not None
        credentials = struct.pack("iII", os.getpid(), 0, 0)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(_ANSWER_S)
                peer.connect(str(DIRECTORY / f"irqbalance{self._process.pid}.sock"))
                peer.sendmsg([b"setup"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
                found = _BANNED.search(peer.recv(1 << 16).decode())
        except OSError:
            return None
        mask = int(found[1].replace(",", ""), 16) if found else 0
        return {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}
