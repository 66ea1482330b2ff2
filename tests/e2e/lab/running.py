"""Guests that run now: an interrupted command ends them at once, and believes nothing of what they said afterwards."""

import subprocess
import threading

from .shell import Interrupted


class Running:
    """The processes of guests; after `interrupt` there are none, and none is taken in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self.is_interrupted = False

    def add(self, process: "subprocess.Popen[bytes]") -> None:
        """Take a process in.

        Raises:
            Interrupted: no guest is wanted any more; the process was ended.
        """
        with self._lock:
            if not self.is_interrupted:
                self._processes.add(process)
                return
        end(process)
        raise Interrupted("interrupted before the guest was up")

    def remove(self, process: "subprocess.Popen[bytes]") -> None:
        """Forget one that has ended; doing it twice does nothing."""
        with self._lock:
            self._processes.discard(process)

    def interrupt(self) -> None:
        """End all, and have those fail that wait for an answer."""
        with self._lock:
            self.is_interrupted = True
            for process in self._processes:
                process.kill()


RUNNING = Running()


def end(process: "subprocess.Popen[bytes]") -> None:
    """End it, whatever it does; doing it twice does nothing."""
    process.kill()
    process.wait()
