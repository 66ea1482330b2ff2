"""Layer 3: a guest with a kernel and a machine of its own, driven over a virtio-serial port.

Emulation in one thread: slower than several, and it never hung. Hardware acceleration only where a guest has come up
with it (`accelerator`): the device file promises nothing, inside another virtual machine stock kernels often do not.
"""

import base64
import io
import json
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from .progress import say
from .qemu_machine import GuestMachine
from .shell import LabError

_KERNEL_LINE = "console=ttyS0 root=/dev/nvme0n1 rootwait rw panic=-1 quiet"
_FASTER_BOOT = "random.trust_cpu=on mitigations=off nokaslr"
EMULATION = "tcg,thread=single"
_BOOT_LIMIT_S = 300
_ANSWER_LIMIT_S = 600  # the longest silence between two lines of a running command
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class GuestRecipe:
    """What a guest is started from.

    Attributes:
        init: its first process with its kernel parameters.
        accelerator: QEMU's.
        boot_limit_s: how long it may take until it answers.
    """

    disk: Path
    kernel: Path
    machine: GuestMachine
    init: str = "/sbin/lab-init"
    accelerator: str = EMULATION
    boot_limit_s: float = _BOOT_LIMIT_S


class Guest:
    """A running guest; leaving the context ends it and forgets every change to its disk."""

    def __init__(self, recipe: GuestRecipe, console: Path) -> None:
        self._console, self._boot_limit_s = console, recipe.boot_limit_s
        # a directory of its own: names of unix sockets end at 107 bytes
        with tempfile.TemporaryDirectory(prefix="guest-") as directory:
            path = f"{directory}/port"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(1)
                command = _command(recipe, console, path)
                log = console.with_suffix(".qemu").open("w")
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                self._port = self._connect(listener)

    def _connect(self, listener: socket.socket) -> io.BufferedRWPair:
        listener.settimeout(10)
        try:
            connection, _ = listener.accept()
            connection.settimeout(self._boot_limit_s)
            port = connection.makefile("rwb")
            self.seconds_to_boot = float(json.loads(port.readline())["ready"])
            connection.settimeout(_ANSWER_LIMIT_S)
        except (OSError, ValueError) as error:
            self.close()
            said = self._console.read_text(errors="replace")[-800:] if self._console.exists() else ""
            raise LabError(f"the guest did not come up ({error!r}); its console ends with: {said}") from error
        self._connection = connection
        return port

    def run(self, shell_text: str, hear: Callable[[str], None] = lambda _line: None) -> int:
        """Run a command in the guest, give every line it prints to `hear`, return its status."""
        self._send({"run": shell_text})
        while True:
            answer = self._receive()
            if "line" in answer:
                hear(answer["line"])
            if "rc" in answer:
                return int(answer["rc"])

    def put(self, source: Path, target: str) -> None:
        """Copy a file into the guest, where it must not exist yet."""
        data = source.read_bytes()
        for at in range(0, len(data), _CHUNK):
            self._send({"put": target, "data": base64.b64encode(data[at : at + _CHUNK]).decode()})
            self._receive()

    def get_directory(self, path: str, target: Path) -> None:
        """Copy a directory of text files out of the guest."""
        lines: list[str] = []
        self.run(f"tar -C {path} -cz . | base64 -w 60000", lines.append)
        target.mkdir(parents=True, exist_ok=True)
        data = base64.b64decode("".join(lines))
        subprocess.run(["tar", "-C", str(target), "-xz"], input=data, check=True)

    def close(self) -> None:
        """End the guest; doing it twice does nothing."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Guest":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: dict[str, str]) -> None:
        self._port.write((json.dumps(message) + "\n").encode())
        self._port.flush()

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._port.readline()
        except TimeoutError as error:
            raise LabError(f"the guest said nothing for {_ANSWER_LIMIT_S} s") from error
        if not line:
            raise LabError(
                f"the guest ended; its console ends with: {self._console.read_text(errors='replace')[-800:]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def boot(recipe: GuestRecipe, console: Path) -> Guest:
    """Start a guest, a second time if the first start fails: emulated boots do, once in a while."""
    try:
        return Guest(recipe, console)
    except LabError as error:
        say(f"starting the guest once more: {error}")
        return Guest(recipe, console)


def _command(recipe: GuestRecipe, console: Path, port: str) -> list[str]:
    guest = recipe.machine
    command = ["nice", "-n", "10", "qemu-system-x86_64", "-machine", guest.machine]
    command += ["-accel", recipe.accelerator, "-cpu", guest.cpu, *guest.arguments]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-serial", f"file:{console}"]
    # each names its bus: with further host bridges QEMU would choose one of them
    command += ["-device", "virtio-serial-pci,bus=pcie.0", "-chardev", f"socket,id=port,path={port}"]
    command += ["-device", "virtserialport,chardev=port,name=lab"]
    command += ["-drive", f"if=none,id=disk,format=raw,file={recipe.disk},snapshot=on,cache=unsafe"]
    command += ["-device", "nvme,drive=disk,serial=disk,bus=pcie.0"]
    words = " ".join([_KERNEL_LINE, _FASTER_BOOT, *guest.kernel, f"init={recipe.init}"])
    return [*command, "-kernel", str(recipe.kernel), "-append", words]
