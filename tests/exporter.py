"""A stand-in for the exporter: what it was asked, and one answer as told."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 30.0
"""Only ever waited for by a failing test."""


class Exporter:
    """A stand-in: serves one connection as told, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "exporter.sock")
        self.asked = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread: threading.Thread | None = None

    def serve(self, play: Callable[[socket.socket], None]) -> None:
        def run() -> None:
            peer, _ = self._listener.accept()
            with peer:
                peer.settimeout(PATIENCE_S)
                while not self.asked.endswith(b"\n"):
                    self.asked += peer.recv(4096)
                play(peer)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def answers(self, text: str) -> None:
        self.serve(lambda peer: peer.sendall(text.encode()))

    def close(self) -> None:
        self._listener.close()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
