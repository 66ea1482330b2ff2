"""Where `nri-pin top` looks: the agent's status socket, and its checkpoint while the agent is away."""

import os
import socket
from dataclasses import dataclass

from nri_plugin.app.status_rows import DriftRow, RefusalRow, RuntimeRow, Status, decode
from nri_plugin.cli.state_source import Seen, seen
from nri_plugin.errors import CheckpointError, HostError
from nri_plugin.host.checkpoint import FILE_NAME, read_checkpoint

SOCKET_NAME = "agent.sock"
ANSWER_S = 2.0
"""An agent that is there tells everything within milliseconds of being asked."""
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known at one moment.

    Attributes:
        seen: the promises and the machine.
        is_connected: whether the agent itself tells.
        source: who tells, in words.
        refusals: the latest, oldest first; none without the agent.
        drifts: the same.
        runtime: who asks the agent; None for nobody, and without the agent.
    """

    seen: Seen
    is_connected: bool
    source: str
    refusals: tuple[RefusalRow, ...] = ()
    drifts: tuple[DriftRow, ...] = ()
    runtime: RuntimeRow | None = None

    @property
    def is_placing(self) -> bool:
        """Whether what is created now is placed: an agent answers, and a runtime asks it."""
        return self.is_connected and self.runtime is not None


class Feed:
    """The agent of a state directory, as far as it is there.

    Args:
        state_dir: of the agent.
        machine: a named machine, for a checkpoint from elsewhere.
        root: of the machine.
    """

    def __init__(self, state_dir: str, machine: str | None = None, root: str | None = None) -> None:
        self._socket_path = os.path.join(state_dir, SOCKET_NAME)
        self._file = os.path.join(state_dir, FILE_NAME)
        self._machine, self._root = machine, root
        self._peer: socket.socket | None = None
        self._data = b""
        self._known: tuple[tuple[int, int, int], Sample] | None = None

    def fileno(self) -> int:
        """Of the connection, -1 without one."""
        return -1 if self._peer is None else self._peer.fileno()

    def first(self) -> Sample:
        """What is known now.

        Raises:
            HostError: the agent does not answer and there is no checkpoint.
        """
        self._connect()
        if self._peer is not None:
            self._peer.settimeout(ANSWER_S)
            while self._peer is not None:
                sample = self._received()
                if sample is not None:
                    self._peer.setblocking(False)
                    return sample
        return self._from_file()

    def next(self) -> Sample | None:
        """What is new; None when nothing is. Tries to reach an agent that was away.

        Raises:
            HostError: the agent went and there is no checkpoint.
        """
        if self._peer is None:
            self._connect()
        if self._peer is not None:
            self._peer.setblocking(False)
            sample = self._received()
            if sample is not None or self._peer is not None:
                return sample
        return self._from_file()

    def close(self) -> None:
        """Hang up."""
        if self._peer is not None:
            self._peer.close()
            self._peer, self._data = None, b""

    def _connect(self) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(ANSWER_S)
            peer.connect(self._socket_path)
        except OSError:
            peer.close()
            return
        self._peer, self._data = peer, b""

    def _received(self) -> Sample | None:
        """The newest whole line there is; hangs up when the other side did."""
        if self._peer is None:
            return None
        try:
            while part := self._peer.recv(CHUNK):
                self._data += part
                if self._peer.gettimeout() and self._data.endswith(b"\n"):
                    break
            else:
                self.close()
                return None
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return None
        return self._newest()

    def _newest(self) -> Sample | None:
        lines, end, rest = self._data.rpartition(b"\n")
        if not end:
            return None
        self._data = rest
        try:
            status = decode(lines.rpartition(b"\n")[2] + b"\n")
        except ValueError as error:
            self.close()
            raise HostError(self._socket_path, f"{error}; use the same version of both programs") from None
        return self._told(status)

    def _told(self, status: Status) -> Sample:
        found = Seen(status.state, status.node, has_parts=True, machine="of the agent")
        source = f"agent at {self._socket_path}"
        return Sample(found, True, source, status.refusals, status.drifts, status.runtime)

    def _from_file(self) -> Sample:
        try:
            status = os.stat(self._file)
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if self._known is None or self._known[0] != stamp:
                self._known = stamp, self._read_file()
        except FileNotFoundError:
            raise HostError(
                self._socket_path,
                f"no agent answers, and there is no checkpoint {self._file}; name the agent's --state-dir",
            ) from None
        except CheckpointError as error:
            raise HostError(self._socket_path, f"no agent answers, and of its checkpoint: {error}") from None
        except OSError as error:
            raise HostError(self._file, f"cannot be read: {error.strerror}; run as root") from None
        return self._known[1]

    def _read_file(self) -> Sample:
        checkpoint = read_checkpoint(self._file)
        if checkpoint is None:
            raise FileNotFoundError
        found = seen(checkpoint, self._machine, self._root)
        return Sample(found, False, f"{self._file}, generation {checkpoint.generation}")
