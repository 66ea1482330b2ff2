"""A running irqbalance: which CPUs it keeps interrupts away from, by its socket.

irqbalance moves interrupts every few seconds and knows nothing of containers. One command on each connection tells it
which CPUs to leave alone; that lasts until irqbalance ends. Each connection shows who asks, and has to be uid 0.

Source: irqbalance 1.9 ui.h, irqbalance.c (sock_handle).
"""

import os
import re
import socket
import struct
from dataclasses import dataclass

from nri_plugin.host.cri import peer_of
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet

DIRECTORY = "run/irqbalance"
_NAME = re.compile(r"irqbalance[0-9]+\.sock\Z")
_ANSWER_S = 2.0
_BANNED = re.compile(r"BANNED ([0-9a-fA-F,]+)")
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class IRQBalanceProcess:
    """One irqbalance.

    Attributes:
        path: of its socket; the name holds its process id, so another one after a restart has another path.
    """

    path: str

    def banned(self) -> CPUSet:
        """The CPUs that it keeps interrupts away from.

        Raises:
            HostError: it does not answer, or in another form.
        """
        answer = self._ask("setup")
        found = _BANNED.search(answer)
        if found is None:
            raise HostError(self.path, f"irqbalance does not say which CPUs it leaves alone: {answer[:80]!r}")
        return CPUSet(int(found[1].replace(",", ""), 16))

    def ban(self, cpus: CPUSet) -> None:
        """Keep interrupts away from exactly these CPUs, from its next round on; none: those of its configuration.

        Raises:
            HostError: it does not answer.
        """
        self._ask(f"settings cpus {cpus or 'NULL'}")

    def _ask(self, command: str) -> str:
        credentials = _CREDENTIALS.pack(os.getpid(), os.geteuid(), os.getegid())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(_ANSWER_S)
                peer.connect(self.path)
                if peer_of(peer)[1] not in (0, os.geteuid()):
                    raise HostError(self.path, "belongs to another user than root, so no irqbalance is asked")
                peer.sendmsg([command.encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
                if not command.startswith("setup"):
                    return ""
                return peer.recv(1 << 16).decode("ascii", "replace")
        except OSError as error:
            raise HostError(
                self.path, f"irqbalance does not answer: {(error.strerror or str(error)).lower()}"
            ) from None


def running(root: str = "/") -> tuple[IRQBalanceProcess, ...]:
    """Every irqbalance that has a socket below this root."""
    directory = os.path.join(root, DIRECTORY)
    try:
        names = sorted(filter(_NAME.match, os.listdir(directory)))
    except OSError:
        return ()
    return tuple(IRQBalanceProcess(os.path.join(directory, name)) for name in names)
