"""The embedded runtime's socket: plugins that are good, late, gone, greedy or never come."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.model.errors import HostError
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec, RuntimeIdentity
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.events import EventMask
from nri_plugin.wire.nri.messages import (
    ContainerUpdate,
    Resources,
)
from nri_plugin.wire.nri.session import PluginSession
from tests.builders import machine
from tests.lab.runtime.plugin_link import NRIServer, PluginLostError
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.runtime.runtime import PluginRefusedError, Record, Runtime
from tests.simulated_node import NoMirror, SimulatedNode

POD = PodSpec("db", "shop", (ContainerSpec("db", 2000, 2000, 1 << 30, 1 << 30),))
PATIENCE_S = 30.0
"""Only ever waited for by a failing test."""
Answer = Callable[[events.NRIEvent], events.NRIResponse | str | None]


class Plugin(threading.Thread):
    """A plugin in a thread: `answer` gives a response, a refusal as text, or None for no answer at all."""

    def __init__(self, path: Path, answer: Answer, name: str = "test") -> None:
        super().__init__(daemon=True)
        self.answer = answer
        self.session = PluginSession(name, "10", EventMask(0x1FFF))
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        self.start()

    def run(self) -> None:
        with self.sock, suppress(OSError):
            self.serve()

    def serve(self) -> None:
        self.session.register(time.monotonic())
        while True:
            self.sock.sendall(self.session.data_to_send())
            data = self.sock.recv(1 << 16)
            if not data:
                return
            for event in self.session.receive_data(data, time.monotonic()):
                if isinstance(event, events.Request):
                    self.react(event)

    def react(self, request: events.Request) -> None:
        now = time.monotonic()
        if isinstance(request.event, events.Configure):
            self.session.respond(request.call, events.ConfigureResponse(), now)
            return
        answer = self.answer(request.event)
        if isinstance(answer, str):
            self.session.refuse(request.call, 2, answer, now)
        elif answer is not None:
            self.session.respond(request.call, answer, now)

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.join()


def agreeable(event: events.NRIEvent) -> events.NRIResponse:
    if isinstance(event, events.Synchronize):
        return events.SynchronizeResponse()
    if isinstance(event, events.CreateContainer):
        return events.CreateContainerResponse(resources=Resources(cpus="2-3"))
    if isinstance(event, events.StopContainer):
        return events.StopContainerResponse()
    return events.EmptyResponse()


@pytest.fixture
def connect() -> Iterator[Callable[..., Plugin]]:
    """Makes plugins that are gone when the test is over."""
    plugins: list[Plugin] = []

    def make(server: NRIServer, answer: Answer = agreeable, *, joins: bool = True) -> Plugin:
        plugins.append(Plugin(server._path, answer))
        if joins:
            server.wait_for_plugin()
        return plugins[-1]

    yield make
    for plugin in plugins:
        plugin.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NRIServer]:
    made = NRIServer(node_runtime("containerd-2.1"), tmp_path / "n.sock")
    yield made
    made.close()


def node_runtime(name: str, request_timeout: float = PATIENCE_S) -> Runtime:
    behaviour = BEHAVIOURS[name]
    profile = replace(behaviour.profile, registration_timeout=PATIENCE_S, request_timeout=request_timeout)
    tree = SimulatedNode(machine()).tree
    who = RuntimeIdentity(replace(behaviour, profile=profile), Driver.CGROUPFS, 1 << 34)
    return Runtime(who, NoMirror(tree))


def lose_patience(server: NRIServer) -> None:
    """From now on an answer is waited for as long as it takes to see that none comes."""
    assert server.link is not None
    session = server.link.session
    session.profile = replace(session.profile, request_timeout=0.05)


def test_an_adjustment_comes_through_the_socket(server: NRIServer, connect) -> None:
    connect(server)
    server.runtime.run_pod(POD)
    assert server.runtime.create(POD.key, POD.containers[0]).message.resources.cpus == "2-3"
    assert server.link is not None
    assert [type(event).__name__ for event in server.link.asked] == [
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
    ]
    assert len(server.link.took_s) == 3


def test_a_refusal_comes_with_its_words_and_the_plugin_stays(server: NRIServer, connect) -> None:
    def refuse(event: events.NRIEvent) -> events.NRIResponse | str:
        return "no room" if isinstance(event, events.CreateContainer) else agreeable(event)

    connect(server, refuse)
    server.runtime.run_pod(POD)
    with pytest.raises(PluginRefusedError, match="no room"):
        server.runtime.create(POD.key, POD.containers[0])
    assert server.link is not None
    assert server.link.is_alive


def test_a_late_answer_costs_the_plugin_and_the_container_is_created_without_it(
    server: NRIServer, connect
) -> None:
    def late(event: events.NRIEvent) -> events.NRIResponse | None:
        return None if isinstance(event, events.CreateContainer) else agreeable(event)

    connect(server, late)
    server.runtime.run_pod(POD)
    lose_patience(server)
    assert server.runtime.create(POD.key, POD.containers[0]).message.resources.cpus == ""
    assert server.link is not None
    assert not server.link.is_alive


def test_a_plugin_that_goes_in_the_middle_is_done_without(server: NRIServer, connect) -> None:
    def leave(event: events.NRIEvent) -> events.NRIResponse | None:
        if isinstance(event, events.CreateContainer):
            plugin.sock.shutdown(socket.SHUT_RDWR)
            return None
        return agreeable(event)

    plugin = connect(server, leave)
    server.runtime.run_pod(POD)
    assert server.runtime.create(POD.key, POD.containers[0]).message.resources.cpus == ""


def test_a_plugin_that_comes_back_is_taken_in_between_requests(server: NRIServer, connect) -> None:
    connect(server).close()
    assert server.link is not None
    assert not server.link.is_alive
    connect(server, joins=False)
    server.settle()
    assert server.link.is_alive


def test_updates_at_synchronize_are_applied(server: NRIServer, connect) -> None:
    server.runtime.run_pod(POD)
    record = server.runtime.create(POD.key, POD.containers[0])

    def update(event: events.NRIEvent) -> events.NRIResponse:
        if isinstance(event, events.Synchronize):
            assert [each.id for each in event.containers] == [record.message.id]
            return events.SynchronizeResponse((ContainerUpdate(record.message.id, Resources(cpus="7")),))
        return agreeable(event)

    connect(server, update)
    assert record.message.resources.cpus == "7"


def test_a_synchronize_that_fails_loses_the_plugin(server: NRIServer, connect) -> None:
    connect(server, lambda _event: "cannot", joins=False)
    with pytest.raises(PluginLostError, match="cannot"):
        server.wait_for_plugin()


def test_a_silent_synchronize_makes_a_zombie_of_nri_0_6(tmp_path: Path, connect) -> None:
    server = NRIServer(node_runtime("containerd-1.7", 0.05), tmp_path / "n.sock")
    connect(server, lambda _event: None, joins=False)
    with pytest.raises(PluginLostError, match="lost before it was synchronized"):
        server.wait_for_plugin()
    server.close()


def test_nobody_comes(server: NRIServer, connect) -> None:
    with pytest.raises(PluginLostError, match=r"no plugin connected to .*n\.sock within 0\.001 s"):
        server.wait_for_plugin(0.001)


def test_a_restart_makes_the_socket_anew(server: NRIServer, connect) -> None:
    connect(server)
    server.restart()
    assert server.link is not None
    assert not server.link.is_alive
    connect(server).close()


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 150)
    with pytest.raises(HostError, match="no socket can be made"):
        NRIServer(node_runtime("containerd-2.1"), path)


def create(server: NRIServer) -> Record:
    server.runtime.run_pod(POD)
    return server.runtime.create(POD.key, POD.containers[0])
