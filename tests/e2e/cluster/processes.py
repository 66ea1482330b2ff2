"""Programs of the cluster: started with a log of their own, known again by number and start time, ended for certain."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.lab.shell import DIES_WITH_US, LabError
from tests.e2e.lab.writing import write_whole

_END_S = 15.0
_LOG_PART = 1500


class Processes:
    """What runs, in a file, so that a later command ends what an earlier one started.

    Args:
        folder: for the file and for logs.
        is_lasting: False: they end with this process, however that ends.
    """

    def __init__(self, folder: Path, *, is_lasting: bool) -> None:
        self._folder, self._is_lasting = folder, is_lasting
        self._file = folder / "processes.json"
        self._running: dict[str, tuple[int, int]] = {}
        if self._file.exists():
            self._running = {name: tuple(row) for name, row in json.loads(self._file.read_text()).items()}
        self._ours: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a program under that name; its output goes to `NAME.log`, behind what is there."""
        words = [str(word) for word in command]
        with self.log(name).open("ab") as log:
            self._ours[name] = process = subprocess.Popen(
                words if self._is_lasting else [*DIES_WITH_US, *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._running[name] = (process.pid, _start_time(process.pid))
        self._save()

    def log(self, name: str) -> Path:
        """The log of a program."""
        return self._folder / f"{name}.log"

    def names(self) -> list[str]:
        """Those that were started and not ended, in their order."""
        return list(self._running)

    def check(self, name: str) -> None:
        """See that it runs.

        Raises:
            LabError: it has ended; the text carries the end of its log.
        """
        if not self._is_alive(name):
            raise LabError(f"{name} has ended: {self.log(name).read_text(errors='replace')[-_LOG_PART:]}")

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a program and wait for it, in the end with SIGKILL; one that is gone is forgotten."""
        pid, _ = self._running[name]
        deadline = time.monotonic() + _END_S
        while self._is_alive(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            time.sleep(0.05)
        del self._running[name]
        self._save()

    def end_all(self) -> None:
        """End all, the last started first."""
        for name in reversed(self.names()):
            self.end(name)

    def _is_alive(self, name: str) -> bool:
        """Whether that very process runs: its number may belong to another one by now."""
        if (process := self._ours.get(name)) is not None and process.poll() is not None:
            return False
        pid, began = self._running[name]
        return began == _start_time(pid) != 0

    def _save(self) -> None:
        write_whole(self._file, json.dumps(self._running))


def _start_time(pid: int) -> int:
    """In clock ticks since the boot; 0 for a process that is gone or waits to be collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])
