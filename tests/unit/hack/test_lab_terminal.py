"""A person's terminal in a guest: what is typed arrives, what is said is shown, and the end ends it."""

import os
import socket
import threading
from pathlib import Path
from typing import cast

import pytest

from tests.e2e.lab.guest import Guest
from tests.e2e.lab.terminal import attach


class PlayedGuest:
    """A guest whose shell says what it was told, in capitals, until the input ends."""

    def __init__(self, terminal: str) -> None:
        self.prepared: list[str] = []
        self.is_patient = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(terminal)
        self._listener.listen(1)

    def must_run(self, shell_text: str, _what: str) -> list[str]:
        self.prepared.append(shell_text)
        return []

    def be_patient(self) -> None:
        self.is_patient = True

    def run(self, shell_text: str) -> int:
        assert "/dev/hvc0" in shell_text
        connection, _ = self._listener.accept()
        with self._listener, connection:
            while not (heard := connection.recv(4096)).endswith(b"\x04"):
                connection.sendall(heard.upper())
        return 0


def test_what_is_typed_reaches_the_shell_until_the_input_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    guest = PlayedGuest(f"{tmp_path}/terminal")
    typed, keyboard = os.pipe()
    with os.fdopen(typed) as stdin, capfd.disabled():
        monkeypatch.setattr("sys.stdin", stdin)
        shown, screen = os.pipe()
        with os.fdopen(screen, "w") as stdout, os.fdopen(shown, "rb") as seen:
            monkeypatch.setattr("sys.stdout", stdout)
            person = threading.Thread(
                target=attach, args=(cast("Guest", guest), f"{tmp_path}/terminal", ["--systemd"])
            )
            person.start()
            os.write(keyboard, b"ls\n")
            said = b""
            while b"LS\n" not in said:
                said += os.read(seen.fileno(), 4096)
            os.close(keyboard)
            person.join(20)
    assert not person.is_alive()
    assert said.startswith(b"The guest runs")
    assert guest.is_patient
    assert "e2e.inside.up --systemd" in guest.prepared[0]
