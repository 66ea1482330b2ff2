import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin import __main__
from nri_plugin.agent.serving import supervisor
from nri_plugin.agent.serving.supervisor import Life

Started = tuple[int, "subprocess.Popen[bytes]"]


@pytest.fixture
def life() -> Iterator[tuple[Life, socket.socket]]:
    """An agent's end, and the supervisor's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = Life(ours.detach())
    with theirs:
        yield agent, theirs
    agent.close()


@pytest.fixture
def agent() -> Iterator[Callable[..., Started]]:
    """Starts a program in place of an agent that never says anything; what it is given was said before."""
    started: list[subprocess.Popen[bytes]] = []
    kept: list[socket.socket] = []

    def start(*messages: bytes) -> Started:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for message in messages:
            theirs.send(message)
        started.append(subprocess.Popen(["sleep", "1000"], pass_fds=[theirs.fileno()]))
        theirs.close()
        kept.append(ours)
        return ours.fileno(), started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
    for one in kept:
        one.close()


def followed(life: int, process: "subprocess.Popen[bytes]", plugin: str = "") -> tuple[bool, bytes | None]:
    descriptor = os.pidfd_open(process.pid)
    try:
        return supervisor._follow(life, descriptor, b"former", plugin)
    finally:
        os.close(descriptor)


def test_the_start_knows_an_agent_with_a_supervisor_by_its_variable():
    assert __main__.LIFE == supervisor.LIFE
    assert __main__.agent_arguments([], {supervisor.LIFE: "3"}) == []


def test_what_the_agent_says_arrives(life: tuple[Life, socket.socket]):
    agent, peer = life
    assert agent.beat()
    agent.drop_in("a: b\n")
    agent.quit()
    assert [peer.recv(1 << 16) for _ in range(3)] == [b"a", b"ca: b\n", b"q"]


def test_a_supervisor_that_ended_is_noticed(life: tuple[Life, socket.socket]):
    agent, peer = life
    peer.close()
    assert not agent.beat()
    agent.quit()


def test_a_supervisor_that_stands_still_does_not_hold_the_agent_up(life: tuple[Life, socket.socket]):
    agent, _ = life
    for _ in range(10_000):
        assert agent.beat()


def test_the_socket_is_not_left_to_programs_that_the_agent_starts():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.set_inheritable(ours.fileno(), True)
    descriptor = ours.detach()
    agent = Life(descriptor)
    assert not os.get_inheritable(descriptor)
    assert agent.beat()
    agent.close()
    theirs.close()


def test_an_agent_that_is_killed_did_not_mean_to_end(agent: Callable[..., Started]):
    life, process = agent(b"a")
    process.kill()
    assert followed(life, process) == (False, b"former")


def test_the_newest_drop_in_is_kept(agent: Callable[..., Started]):
    life, process = agent(b"cone", b"ctwo", b"a")
    process.kill()
    assert followed(life, process) == (False, b"two")


def test_an_agent_that_said_so_meant_to_end(agent: Callable[..., Started]):
    life, process = agent(b"a", b"q")
    process.kill()
    assert followed(life, process) == (True, b"former")


def test_a_silent_agent_is_killed(agent: Callable[..., Started], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "SILENT_S", 0.0)
    life, process = agent()
    process.send_signal(signal.SIGSTOP)
    assert followed(life, process) == (False, b"former")
    assert process.wait() == -signal.SIGKILL


def test_an_agent_whose_plugin_is_gone_is_told_to_end_when_it_next_speaks(
    agent: Callable[..., Started], tmp_path: Path
):
    life, process = agent(b"a")
    followed(life, process, str(tmp_path / "90-nri-pin"))
    assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("environment", "program", "plugin"),
    [
        ({}, "/opt/nri/plugins/90-nri-pin", "/opt/nri/plugins/90-nri-pin"),
        ({}, "/opt/nri-pin/lib/nri_plugin/__main__.py", ""),
        ({supervisor.PLUGIN: "/p/07-pin"}, "/opt/nri-pin/lib/nri_plugin/__main__.py", "/p/07-pin"),
        ({}, "-c", ""),
    ],
)
def test_the_plugin_is_the_file_that_the_runtime_started(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], program: str, plugin: str
):
    monkeypatch.setattr("sys.argv", [program])
    assert supervisor._plugin_file(environment) == plugin


def test_where_no_process_is_to_be_had_the_agent_serves_without(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert supervisor.begin({}) == ""


def test_where_no_process_is_to_be_had_an_agent_is_started_later(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_arguments: object) -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    before = set(os.listdir("/proc/self/fd"))
    assert supervisor._start({}, b"text") is None
    assert set(os.listdir("/proc/self/fd")) == before
