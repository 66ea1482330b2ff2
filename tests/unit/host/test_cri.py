import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from nri_plugin.host import cri
from nri_plugin.host.cri import runtime_version

ANSWER = b"\x0a\x050.1.0" + b"\x12\x0acontainerd" + b"\x1a\x0b1.7.24~ds1-" + b"\x22\x02v1"


@contextmanager
def served(path: str, answer: bytes) -> Iterator[None]:
    """A server of the real gRPC library."""
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", {"Version": handler}),)
    )
    server.add_insecure_port(f"unix://{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@contextmanager
def sending(path: str, sent: bytes) -> Iterator[None]:
    """A listener that sends some bytes, whatever it is asked, and closes."""

    def answer() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(sent)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


def test_a_runtime_gives_its_version(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")
    with served(path, ANSWER):
        assert runtime_version(path) == "1.7.24~ds1-"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x05\x00\x01\x00\x00\x00\x01" + b"\x00\x00\x00\x00\x00",  # no field at all
        b"\x00\x00\x06\x00\x01\x00\x00\x00\x01" + b"\x00\x00\x00\x00\x01\x1a",  # ends within a field
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 1000,  # settings without end
        b"\xff\xff\xff\x00\x01\x00\x00\x00\x01",  # 16 MiB that never come
    ],
)
def test_another_answer_is_no_version(tmp_path: Path, sent: bytes) -> None:
    path = str(tmp_path / "c.sock")
    with sending(path, sent):
        assert runtime_version(path) == ""


def test_a_listener_of_another_user_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "c.sock")
    assert runtime_version(path) == ""
    monkeypatch.setattr(cri, "peer_of", lambda _: (1, os.geteuid() + 1))
    with served(path, ANSWER):
        assert runtime_version(path) == ""
