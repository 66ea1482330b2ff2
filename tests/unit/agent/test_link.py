import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin.agent.agent import PluginIdentity
from nri_plugin.agent.serving import link as module
from nri_plugin.agent.serving.link import (
    MADE_PAUSE_S,
    ReconnectBackoff,
    RuntimeAbsentError,
    RuntimeLink,
    SocketWatch,
    Transport,
    adopt,
    connect,
)
from nri_plugin.model.errors import HostError, RemoteProtocolError
from nri_plugin.process.loop import Loop
from tests.agent_fakes import Clock


@pytest.fixture
def pair() -> Iterator[tuple[Transport, socket.socket]]:
    ours, theirs = socket.socketpair()
    made = Transport(ours)
    yield made, theirs
    made.close()
    theirs.close()


def test_connect_reaches_a_listening_socket(tmp_path: Path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with connect(path) as sock:
            assert not sock.get_inheritable()


def test_no_socket_means_the_runtime_is_absent(tmp_path: Path):
    with pytest.raises(RuntimeAbsentError, match="s: no such file or directory; is the container runtime"):
        connect(str(tmp_path / "s"))


def test_nobody_behind_the_socket_means_the_runtime_is_absent(tmp_path: Path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        with pytest.raises(RuntimeAbsentError, match="connection refused"):
            connect(path)


@pytest.mark.parametrize("path", ["x" * 200, "a\0b"])
def test_an_impossible_path_is_an_error_of_the_host(path: str):
    with pytest.raises(HostError):
        connect(path)


def test_an_adopted_socket_is_not_passed_on_to_programs_we_start():
    ours, theirs = socket.socketpair()
    os.set_inheritable(ours.fileno(), True)
    with theirs, adopt(ours.detach()) as sock:
        assert not sock.get_inheritable()
        theirs.send(b"x")
        assert sock.recv(1) == b"x"


def test_a_file_is_not_adopted(tmp_path: Path):
    with (
        open(tmp_path / "f", "w") as file,
        pytest.raises(HostError, match="not the socket that the runtime announced"),
    ):
        adopt(file.fileno())


def test_a_closed_descriptor_is_not_adopted():
    with pytest.raises(HostError, match="file descriptor 987: not the socket"):
        adopt(987)


def test_receive_tells_bytes_nothing_and_end_apart(pair):
    ours, theirs = pair
    assert ours.receive() == b""
    theirs.send(b"abc")
    assert ours.receive() == b"abc"
    theirs.close()
    assert ours.receive() is None


def test_a_reset_connection_has_ended(pair):
    ours, theirs = pair
    ours.send(b"unread")
    theirs.close()
    assert ours.receive() is None


def test_send_keeps_what_the_socket_does_not_take(pair):
    ours, theirs = pair
    data = bytes(range(256)) * 8192
    ours.send(data)
    assert ours.has_unsent
    got = bytearray()
    while len(got) < len(data):
        got += theirs.recv(1 << 16)
        ours.send(b"")
    assert not ours.has_unsent
    assert bytes(got) == data


def test_a_peer_that_never_reads_is_an_error_before_memory_is(pair, monkeypatch: pytest.MonkeyPatch):
    ours, _ = pair
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 1 << 20)
    with pytest.raises(RemoteProtocolError, match="bytes of answers unread, more than 1048576"):
        ours.send(bytes(4 << 20))


def test_sending_to_a_closed_peer_is_told_by_the_next_receive(pair):
    ours, theirs = pair
    theirs.close()
    ours.send(b"x")
    assert not ours.has_unsent
    assert ours.receive() is None


def test_the_first_try_is_immediate_and_pauses_double_up_to_five_seconds():
    backoff = ReconnectBackoff(draw=lambda: 0.0)
    pauses = [backoff.next_pause() for _ in range(9)]
    assert pauses == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_after_a_session_the_next_try_is_immediate_again():
    backoff = ReconnectBackoff(draw=lambda: 0.0)
    for _ in range(5):
        backoff.next_pause()
    backoff.reset()
    assert backoff.next_pause() == 0.0


def test_jitter_shortens_a_pause_by_at_most_a_quarter():
    backoff = ReconnectBackoff(draw=lambda: 1.0)
    backoff.next_pause()
    assert backoff.next_pause() == pytest.approx(0.075)


def test_pauses_stay_at_their_longest_for_ever():
    backoff = ReconnectBackoff(draw=lambda: 0.0)
    assert {backoff.next_pause() for _ in range(5000)} >= {5.0}


def _away(path: Path) -> None:
    """The runtime has ended in order and its socket is gone."""


def _killed(path: Path) -> None:
    """The runtime was killed and its socket is still there."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def _never_there(path: Path) -> None:
    path.parent.rmdir()
    path.parent.parent.rmdir()


def _linked(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to(path.parent.with_name("elsewhere"))
    path.parent.readlink().mkdir()


@pytest.mark.parametrize("before", [_away, _killed, _never_there, _linked])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["", "the directory is replaced"])
def test_the_agent_connects_within_milliseconds_of_a_new_socket(
    tmp_path: Path, before: Callable[[Path], None], is_replaced: bool
):
    path = tmp_path / "run" / "nri" / "nri.sock"
    path.parent.mkdir(parents=True)
    before(path)
    clock = Clock()
    loop = Loop(clock)
    link = RuntimeLink(
        loop,
        open_socket=lambda: connect(str(path)),
        new_session=PluginIdentity("nri-pin", "90").session,
        log=logging.getLogger("made"),
        made=SocketWatch(str(path)),
    )
    try:
        link.connect()
        for _ in range(20):  # it has been away for long: the next attempt by the clock is seconds away
            clock.now += 5.0
            loop.run_once()
        if is_replaced and path.parent.is_dir() and not path.parent.is_symlink():
            path.unlink(missing_ok=True)
            path.parent.rmdir()
            loop.run_once()
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            loop.run_once()  # refused: nothing listens yet
            listener.listen()
            listener.setblocking(False)
            clock.now += MADE_PAUSE_S
            loop.run_once()
            accepted, _ = listener.accept()
            accepted.close()
    finally:
        link.close()
        loop.close()
