"""Layer 3: a guest with a kernel and a machine of its own, driven over a virtio-serial port."""

import base64
import binascii
import contextlib
import io
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from .guest_recipe import GuestRecipe, command_for
from .progress import say
from .running import RUNNING, end
from .shell import Interrupted, LabError, run

_START_LIMIT_S = 30  # until QEMU has read its options and opened the port
_ANSWER_LIMIT_S = 600  # the longest silence between two lines of a running command
_CHUNK = 1 << 18
# files may grow while they are read (status 1); anything worse is said
_PACK = (
    "cd {path} && {{ tar -czf /run/packed . 2>/run/packing; [ $? -le 1 ]; }} && base64 -w 60000 /run/packed"
    " || {{ tail -n 5 /run/packing; exit 2; }}"
)


class QemuRefused(LabError):  # noqa: N818 - it is an answer, not a fault
    """QEMU ended before it had opened the port: a second try would tell the same."""


class Guest:
    """A running guest; leaving the context ends it and forgets every change to its disk.

    It ends with this process too, however that ends, and hears nothing of what is typed at this terminal.
    """

    def __init__(self, recipe: GuestRecipe, console: Path) -> None:
        self._console, self._boot_limit_s = console, recipe.boot_limit_s
        self._open: list[io.BufferedRWPair | socket.socket] = []
        # a directory of its own: names of unix sockets end at 107 bytes
        with tempfile.TemporaryDirectory(prefix="guest-") as directory:
            path = f"{directory}/port"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(1)
                self._process = _started(command_for(recipe, console, path), self._qemu_said)
                try:
                    self._port = self._connect(listener)
                except BaseException:
                    self.close()
                    raise

    @property
    def _qemu_said(self) -> Path:
        return self._console.with_suffix(".qemu")

    def _connect(self, listener: socket.socket) -> io.BufferedRWPair:
        self._connection = self._accepted(listener)
        self._connection.settimeout(self._boot_limit_s)
        port = self._connection.makefile("rwb")
        self._open = [port, self._connection]
        try:
            self.seconds_to_boot = float(json.loads(port.readline())["ready"])
        except TimeoutError as error:
            raise LabError(f"the guest was not up after {self._boot_limit_s} s; {self._ends()}") from error
        except (OSError, ValueError) as error:
            raise self._gone() from error
        self._connection.settimeout(_ANSWER_LIMIT_S)
        return port

    def _accepted(self, listener: socket.socket) -> socket.socket:
        """The other end of the port, as soon as QEMU opens it; QEMU's own words where it does not."""
        listener.settimeout(0.1)
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            try:
                return listener.accept()[0]
            except TimeoutError:
                if RUNNING.is_interrupted:
                    raise Interrupted("interrupted before the guest was up") from None
                if (status := self._process.poll()) is not None:
                    raise QemuRefused(f"QEMU ended with status {status}; {self._ends()}") from None
        raise LabError(f"QEMU did not open the port within {_START_LIMIT_S} s; {self._ends()}")

    def be_patient(self) -> None:
        """From now on it may be silent for as long as it likes, as a shell is whose person thinks."""
        self._connection.settimeout(None)

    def run(self, shell_text: str, hear: Callable[[str], None] = lambda _line: None) -> int:
        """Run a command in the guest, give every line it prints to `hear`, return its status."""
        self._send({"run": shell_text})
        while True:
            answer = self._receive()
            if "line" in answer:
                hear(answer["line"])
            if "rc" in answer:
                return int(answer["rc"])

    def must_run(self, shell_text: str, what: str) -> list[str]:
        """Run a command that has to succeed, return the lines it printed.

        Raises:
            LabError: it ended with another status than 0; the text begins with `what` and ends with what was said.
        """
        lines: list[str] = []
        if status := self.run(shell_text, lines.append):
            raise LabError(f"{what} ended with status {status} in the guest: {' | '.join(lines[-5:])[-800:]}")
        return lines

    def put(self, source: Path, target: str) -> None:
        """Copy a file into the guest, where it must not exist yet.

        Raises:
            LabError: the guest could not write it.
        """
        data = source.read_bytes()
        for at in range(0, len(data), _CHUNK):
            self._send({"put": target, "data": base64.b64encode(data[at : at + _CHUNK]).decode()})
            answer = self._receive()
            if answer.get("rc"):
                raise LabError(f"the guest could not write {target}: {answer.get('line', answer)}")

    def put_directory(self, source: Path, target: str) -> None:
        """Copy a directory into the guest, where it must not exist yet; its files keep their owners and modes.

        Raises:
            LabError: it cannot be packed, or the guest could not write it.
        """
        with tempfile.TemporaryDirectory() as directory:
            packed = Path(directory, "packed")
            run(["tar", "-C", source, "-cf", packed, "."])
            self.put(packed, "/run/packed")
        self.must_run(f"mkdir -p {target} && tar -C {target} -xf /run/packed", f"unpacking {target}")

    def get_directory(self, path: str, target: Path) -> None:
        """Copy a directory out of the guest.

        Raises:
            LabError: it cannot be read, or did not arrive.
        """
        lines = self.must_run(_PACK.format(path=path), f"packing {path}")
        target.mkdir(parents=True, exist_ok=True)
        try:
            data = base64.b64decode("".join(lines), validate=True)
        except binascii.Error as error:
            raise LabError(
                f"{path} did not arrive from the guest: {error}; run again, the guest's console is in the work folder"
            ) from error
        done = subprocess.run(["tar", "-C", str(target), "-xz"], input=data, check=False, capture_output=True)
        if done.returncode:
            said = done.stderr.decode(errors="replace")[-500:]
            raise LabError(
                f"{path} did not arrive whole from the guest: {said}; run again, the guest's console is in the work folder"
            )

    def close(self) -> None:
        """End the guest; doing it twice does nothing."""
        end(self._process)
        RUNNING.remove(self._process)
        for each in self._open:
            with contextlib.suppress(OSError):  # what was not sent has nobody to go to
                each.close()

    def __enter__(self) -> "Guest":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: dict[str, str]) -> None:
        try:
            self._port.write((json.dumps(message) + "\n").encode())
            self._port.flush()
        except OSError as error:
            raise self._gone() from error

    def _receive(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self._port.readline())
        except TimeoutError as error:
            raise LabError(f"the guest said nothing for {_ANSWER_LIMIT_S} s; {self._ends()}") from error
        except (OSError, ValueError) as error:  # nothing at all, or half a line
            raise self._gone() from error
        return answer

    def _gone(self) -> LabError:
        if RUNNING.is_interrupted:
            return Interrupted("interrupted")
        try:
            status = f"ended with status {self._process.wait(1)}"
        except subprocess.TimeoutExpired:
            status = "still runs"
        return LabError(f"the guest ended, QEMU {status}; {self._ends()}")

    def _ends(self) -> str:
        """How console and QEMU's own words end, as far as there are any."""
        found = [("its console", self._console), ("QEMU's output", self._qemu_said)]
        said = [f"{what} ends with: {text}" for what, file in found if (text := _end_of(file))]
        return "; ".join(said) or "neither its console nor QEMU said anything"


def boot(recipe: GuestRecipe, console: Path) -> Guest:
    """Start a guest, a second time if the first start fails: emulated boots do, once in a while.

    The second try has a console of its own beside the first one's.
    """
    try:
        return Guest(recipe, console)
    except (QemuRefused, Interrupted):
        raise
    except LabError as error:
        say(f"starting the guest once more: {error}")
        return Guest(recipe, console.with_name(f"{console.stem}-2{console.suffix}"))


def _started(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("w") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
    RUNNING.add(process)
    return process


def _end_of(file: Path) -> str:
    return file.read_text(errors="replace").strip()[-800:] if file.exists() else ""
