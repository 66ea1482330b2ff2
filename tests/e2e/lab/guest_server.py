"""The guest's side of the virtio-serial port: JSON lines in, JSON lines out.

`{"put": PATH, "data": BASE64}` appends to a file and is answered by `{"rc": 0}`; `{"run": SHELL_TEXT}` is answered by
one `{"line": TEXT}` for each line printed, as it comes, and `{"rc": STATUS}` at the end. A daemon that keeps the
output open does not hold the answer back: the end is the end of the started process. When nobody is at the other end
any more, the guest ends at once. Standard library only: it starts before anything else.
"""

import base64
import json
import os
import select
import subprocess
from pathlib import Path

_PORT = Path("/dev/vport0p1")


def _find_port() -> str:
    if _PORT.exists():
        return str(_PORT)
    return "/dev/" + next(Path("/sys/class/virtio-ports").glob("vport*")).name


class Server:
    """Answers one request after the other, until the other side is gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = b""

    def send(self, **message: object) -> None:
        """Write one message; the port takes what fits and no more."""
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self._port, data) :]

    def requests(self) -> None:
        """Read requests and answer them; a port without anybody behind it is empty, and ends this."""
        while True:
            while b"\n" not in self._buffer:
                data = os.read(self._port, 1 << 16)
                if not data:
                    return
                self._buffer += data
            line, self._buffer = self._buffer.split(b"\n", 1)
            try:
                self._answer(json.loads(line))
            except Exception as error:  # noqa: BLE001 - the guest must stay reachable
                self.send(rc=255, line=repr(error))

    def _answer(self, request: dict[str, str]) -> None:
        if "put" in request:
            with Path(request["put"]).open("ab") as file:
                file.write(base64.b64decode(request["data"]))
            self.send(rc=0)
            return
        process = subprocess.Popen(
            ["/bin/sh", "-c", request["run"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._forward(process)
        self.send(rc=process.returncode)

    def _forward(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        output, rest = process.stdout.fileno(), b""
        while True:
            ended = process.poll() is not None
            if not select.select([output], [], [], 0 if ended else 0.2)[0]:
                if ended:
                    break
                continue
            data = os.read(output, 1 << 16)
            if not data:
                process.wait()
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.send(line=line.decode(errors="replace"))
        if rest:
            self.send(line=rest.decode(errors="replace"))
        process.stdout.close()


def _end_the_guest() -> None:
    """A reboot, which QEMU is told to take as the end; init systems would take their time."""
    Path("/proc/sysrq-trigger").write_text("b")


if __name__ == "__main__":
    server = Server(os.open(_find_port(), os.O_RDWR))
    server.send(ready=Path("/proc/uptime").read_text().split()[0])
    server.requests()
    _end_the_guest()
