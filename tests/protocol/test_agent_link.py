"""The agent's connection against the runtime's side of every NRI release."""

import dataclasses
import socket
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from nri_plugin.agent.agent import SUBSCRIPTION, PluginIdentity
from nri_plugin.core.decision import Decision
from nri_plugin.model.errors import ConfigError, RemoteProtocolError
from nri_plugin.model.options import Effect, TopologyManagerPolicy
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import EventMask
from tests.agent_fakes import Bench
from tests.agent_runtime import Rig, is_synchronized
from tests.builders import container, node, pod
from tests.lab.runtime.profile import (
    CONTAINERD_1_7,
    CONTAINERD_2_1,
    PROFILES,
    Answered,
    Configured,
    RegistrationRejected,
    Synchronized,
)

POD = pod("exclusive", cpu=2)
CREATE = nri.CreateContainer(POD, container(POD, cpu=2))
SILENT = "connection to the container runtime ended"

KNOWN_EVERYWHERE = EventMask(0x07FF)


class NotedSocket:
    """A socket that tells when something is sent."""

    def __init__(self, sock: socket.socket, order: list[str]) -> None:
        self._sock, self._order = sock, order

    def send(self, data: bytes) -> int:
        self._order.append("send")
        return self._sock.send(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    """Makes rigs and closes them."""
    rigs: list[Rig] = []

    def new(bench: Bench | None = None, **options: object) -> Rig:
        rigs.append(Rig(bench or Bench(node(pool_floor=False)), **options))  # type: ignore[arg-type]
        return rigs[-1]

    yield new
    for rig in rigs:
        rig.close()


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_release_gets_registration_subscription_and_an_answer(make, profile):
    rig = make(profile=profile)
    assert rig.link.runtime is None
    rig.start()
    assert is_synchronized(rig.peer)
    assert rig.link.runtime.runtime_version == profile.runtime_version
    (configured,) = rig.peer.of(Configured)
    assert configured in {Configured(SUBSCRIPTION), Configured(SUBSCRIPTION & KNOWN_EVERYWHERE)}
    answer = rig.ask(CREATE)
    assert answer.response.resources.cpus == "2-3"
    assert rig.ask(nri.StartContainer(POD, CREATE.container)).error == ""


def test_the_subscription_is_legal_on_every_release_and_never_zero():
    assert SUBSCRIPTION & KNOWN_EVERYWHERE
    assert SUBSCRIPTION & ~KNOWN_EVERYWHERE == EventMask.UPDATE_POD_SANDBOX


def test_annotations_are_heard_in_the_namespaces_of_the_configuration_that_is_in_force(make):
    heard = node(pool_floor=False, annotation_namespaces=frozenset({"default"}))
    bench = Bench(heard)
    rig = make(bench)
    rig.start()
    asks = {"nri-pin/exclusive-cpus.container.c": "2", "other/x": "1"}
    for uid, cpus, kept in (("b1", "2-3", 1), ("b2", "0-1,4-15", 0)):
        of = replace(pod(uid, "Burstable", cpu=2.5), annotations=asks)
        rig.ask(nri.RunPodSandbox(of))
        assert len(bench.handler.state.pods[uid].annotations) == kept
        answer = rig.ask(nri.CreateContainer(of, container(of, cpu=2.5)))
        assert answer.response.resources.cpus == cpus
        bench.handler.change_node(dataclasses.replace(heard, options=node(pool_floor=False).options))


def test_registration_does_not_wait_for_the_runtime_to_say_something(make):
    rig = make()
    rig.serves = False
    rig.link.connect()
    assert rig.peer.sock.recv(4096)


def test_the_words_of_a_refusal_reach_the_runtime_and_the_connection_stays(make):
    bench = Bench(node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE))
    rig = make(bench)
    rig.start()
    answer = rig.ask(nri.CreateContainer(POD, container(POD, cpu=12)))
    assert answer.error.startswith("TopologyAffinityError: ")
    assert rig.ask(CREATE).response.resources.cpus == "2-3"
    assert len(rig.peers) == 1


def test_a_checkpoint_failure_refuses_over_the_wire_and_nothing_changed(make):
    rig = make()
    rig.start()
    before = rig.bench.handler.state
    rig.bench.checkpoint.failures = 1
    assert "no space left" in rig.ask(CREATE).error
    assert rig.bench.handler.state is before


def test_a_killed_runtime_is_connected_to_again_at_once(make):
    rig = make()
    rig.start()
    rig.ask(CREATE)
    rig.kill()
    rig.settle()
    rig.settle()
    assert len(rig.peers) == 2
    assert is_synchronized(rig.peer)


def test_a_runtime_that_synchronizes_and_hangs_up_at_once_is_tried_in_growing_pauses(make):
    rig = make()
    rig.start()
    connections = []
    for _ in range(5):
        rig.kill()
        rig.settle()
        rig.pass_time(0.1)
        connections.append(len(rig.peers))
    assert connections == [2, 3, 3, 4, 4]


def test_a_runtime_that_was_served_for_a_while_is_never_waited_for(make):
    rig = make()
    rig.start()
    for number in range(2, 6):
        rig.pass_time(1.0)
        rig.kill()
        rig.settle()
        rig.settle()
        assert len(rig.peers) == number


def test_an_absent_runtime_is_waited_for_in_growing_pauses_with_one_line(make):
    rig = make()
    rig.is_up = False
    rig.start()
    for seconds in (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        rig.pass_time(seconds)
    assert rig.bench.lines.texts("WARNING") == ["no connection to the container runtime"]
    rig.is_up = True
    rig.pass_time(4.9)
    assert rig.peers == []
    rig.pass_time(0.1)
    assert is_synchronized(rig.peer)


def test_a_second_absence_is_told_again(make):
    rig = make()
    rig.is_up = False
    rig.start()
    rig.is_up = True
    rig.pass_time(5.0)
    rig.is_up = False
    rig.kill()
    rig.pass_time(5.0)
    assert rig.bench.lines.texts("WARNING").count("no connection to the container runtime") == 2


def test_a_lasting_absence_is_said_again_at_long_intervals(make):
    rig = make()
    rig.is_up = False
    rig.start()
    for _ in range(600):
        rig.pass_time(2.0)
    assert rig.bench.lines.texts("WARNING") == ["no connection to the container runtime"] * 2
    assert (
        rig.bench.lines.fields("no connection to the container runtime")["trying_again"]
        == "at most every 5 s"
    )


def test_a_runtime_that_hangs_up_on_every_try_is_said_once(make):
    rig = make()
    rig.serves = False
    rig.link.connect()
    for _ in range(20):
        rig.kill()
        rig.pass_time(5.0)
    assert len(rig.peers) > 5
    assert rig.link.lost == 0, "none of these connections served the runtime"
    assert rig.bench.lines.texts("WARNING").count("connection to the container runtime ended") == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n" * 20,
        b"\x00\x00\x00\x01\xff\xff\xff\xff" + b"x" * 64,
        b"\x00\x00\x00\x01\x00\x00\x00\x0a\x7f\xff\xff\xff\x00\x00\x00\x03\x01\x00",
        b"\x00\x00\x00\x01\x00\x00\x00\x0c\x00\x00\x00\x02\x00\x00\x00\x03\x01\x00\xff\xff",
    ],
    ids=["ones", "http", "huge-mux-frame", "huge-ttrpc-frame", "garbage-request"],
)
def test_garbage_ends_in_a_new_connection_that_works(make, garbage: bytes):
    rig = make()
    rig.start()
    rig.send_raw(garbage)
    rig.pass_time(11.0)  # what is only incomplete is given up after a while
    rig.settle()
    assert len(rig.peers) == 2
    assert rig.link.lost == 1
    assert SILENT in rig.bench.lines.texts("WARNING")
    assert rig.bench.lines.fields(SILENT)["err"]
    assert rig.ask(CREATE).response.resources.cpus == "2-3"


def test_a_peer_that_only_sends_garbage_is_tried_in_growing_pauses(make):
    rig = make()
    rig.serves = False
    rig.start()
    for _ in range(8):
        rig.send_raw(b"\xff" * 64)
        rig.pass_time(0.1)
    assert len(rig.peers) < 6


def test_a_half_sent_frame_at_the_end_of_the_connection_is_no_crash(make):
    rig = make()
    rig.start()
    rig.peer.sock.send(b"\x00\x00\x00\x01\x00\x00\x10\x00abc")
    rig.kill()
    rig.settle()
    rig.settle()
    assert is_synchronized(rig.peer)
    assert len(rig.peers) == 2


def be_late_once(rig: Rig) -> None:
    """The next decision takes longer than the runtime waits."""
    decide, late = rig.bench.handler._decide, [3.0]

    def slow(on, state, event):
        rig.bench.clock.now += late.pop() if late else 0.0
        return decide(on, state, event)

    rig.bench.handler._decide = slow


def test_a_late_answer_to_synchronize_is_followed_by_a_new_connection_at_once(make):
    """NRI 0.6 keeps a plugin that was late connected and never calls it again."""
    rig = make(profile=CONTAINERD_1_7)
    be_late_once(rig)
    rig.start()
    rig.settle()
    assert rig.peers[0].session.is_zombie
    assert len(rig.peers) == 2
    assert is_synchronized(rig.peer)
    assert "Synchronize" in str(rig.bench.lines.fields(SILENT)["err"])


def test_a_kick_for_lateness_is_followed_by_a_new_connection_at_once(make):
    rig = make(profile=CONTAINERD_2_1)
    rig.start()
    be_late_once(rig)
    assert rig.ask(CREATE).is_fail_open
    assert len(rig.peers) == 2
    assert is_synchronized(rig.peer)


def test_a_late_answer_the_runtime_does_not_close_for_is_closed_by_us(make):
    rig = make()
    rig.start()
    be_late_once(rig)
    first = rig.peer
    call = first.session.call(CREATE, rig.bench.clock.now)
    first.sock.sendall(first.session.data_to_send())
    rig.serves = False
    rig.turn()
    assert call is not None
    rig.pass_time(0.9)
    assert len(rig.peers) == 1
    rig.pass_time(0.2)
    assert len(rig.peers) == 2


def test_a_runtime_that_never_configures_is_given_up_after_a_while(make):
    rig = make()
    rig.serves = False
    rig.start()
    rig.pass_time(29.0)
    assert len(rig.peers) == 1
    rig.pass_time(1.5)
    rig.settle()
    assert len(rig.peers) == 2


def test_a_refused_name_ends_the_agent_with_the_runtimes_words(make):
    rig = make()
    rig.link._new_session = lambda _hears: _unchecked_session("")
    rig.start()
    assert rig.peer.of(RegistrationRejected)
    assert rig.loop.run() == 2
    assert "plugin name is empty" in str(
        rig.bench.lines.fields("the runtime refused to register this plugin")["err"]
    )
    assert len(rig.peers) == 1


def _unchecked_session(name: str):
    session = PluginIdentity("nri-pin", "90").session()
    session.plugin_name = name
    return session


def test_a_launched_agent_takes_its_configuration_from_configure(make):
    bench = Bench(node(pool_floor=False))
    texts: list[str] = []

    def prepare(text: str):
        texts.append(text)
        return bench.handler

    identity = PluginIdentity("pin", "10", descriptor=3)
    rig = make(bench, identity=identity, prepare=prepare, config="a: b", launched_as=("pin", "10"))
    rig.start()
    assert texts == ["a: b"]
    assert rig.ask(CREATE).response.resources.cpus == "2-3"


def test_a_launched_agent_without_synchronize_serves_events(make):
    """NRI before 0.7 never synchronizes a plugin it launched."""
    bench = Bench(node(pool_floor=False))
    rig = make(
        bench,
        profile=CONTAINERD_1_7,
        identity=PluginIdentity("pin", "10", descriptor=3),
        prepare=lambda text: bench.handler,
        launched_as=("pin", "10"),
    )
    rig.synchronizes = False
    rig.start()
    rig.pass_time(100.0)
    assert not is_synchronized(rig.peer)
    assert rig.ask(CREATE).response.resources.cpus == "2-3"


def test_a_launched_agent_refuses_a_wrong_configuration_and_ends_with_2(make):
    bench = Bench(node())

    def prepare(text: str):
        raise ConfigError("NRI drop-in:1:1", "unknown key")

    rig = make(
        bench, identity=PluginIdentity("pin", "10", descriptor=3), prepare=prepare, launched_as=("pin", "10")
    )
    rig.start()
    assert rig.loop.run() == 2
    assert "NRI drop-in:1:1: unknown key" in rig.peer.session.lost


def test_a_launched_agent_gives_its_connection_up_when_asked_while_another_serves(make):
    """An answer would let a runtime that requires the plugin create a container that nobody pins."""
    bench = Bench(node())
    rig = make(
        bench,
        profile=CONTAINERD_1_7,
        identity=PluginIdentity("pin", "10", descriptor=3),
        prepare=lambda text: None,
        launched_as=("pin", "10"),
    )
    rig.synchronizes = False
    rig.start()
    assert rig.peer.of(Configured)
    assert rig.ask(CREATE).is_fail_open
    assert rig.loop.run() == 1


def test_a_launched_agent_ends_with_its_connection(make):
    bench = Bench(node())
    rig = make(
        bench,
        identity=PluginIdentity("pin", "10", descriptor=3),
        prepare=lambda text: bench.handler,
        launched_as=("pin", "10"),
    )
    rig.start()
    rig.kill()
    rig.settle()
    assert rig.loop.run() == 1
    assert len(rig.peers) == 1


def test_an_answer_the_protocol_does_not_allow_becomes_an_error_and_the_connection_stays(make):
    rig = make()
    rig.start()
    decide = rig.bench.handler._decide
    update = nri.ContainerUpdate(CREATE.container.id, CREATE.container.resources)

    def twice(on, state, event):
        from nri_plugin.core.decision import Decision

        return Decision(state, nri.CreateContainerResponse(updates=(update, update)))

    rig.bench.handler._decide = twice
    assert rig.ask(CREATE).error
    rig.bench.handler._decide = decide
    assert rig.ask(CREATE).response.resources.cpus == "2-3"
    assert "answer not sent" in rig.bench.lines.texts("ERROR")


def test_a_bug_in_the_session_costs_the_connection_and_not_the_agent(make):
    rig = make()
    rig.start()

    def broken(data, now):
        raise RuntimeError("bug")

    rig.link._connection.session.receive_data = broken  # type: ignore[union-attr, method-assign]
    rig.peer.session.call(CREATE, rig.bench.clock.now)
    rig.settle()
    rig.settle()
    assert len(rig.peers) == 2
    assert "internal error, connection closed" in rig.bench.lines.texts("ERROR")


def test_a_long_list_of_containers_is_synchronized_in_one_piece_and_in_parts(make):
    pods = tuple(pod(f"p{n}", "Burstable") for n in range(40))
    containers = tuple(container(of, f"c{n}", cpu=0.1) for of in pods for n in range(5))
    for profile in (CONTAINERD_1_7, CONTAINERD_2_1):
        rig = make(profile=profile)
        rig.listed = (pods, containers)
        rig.start()
        assert is_synchronized(rig.peer)
        assert len(rig.bench.handler.state.containers) == 200


def test_log_and_observers_come_after_the_answer_has_left_in_one_send(make):
    order: list[str] = []
    rig = make(Bench(node(pool_floor=False), observe=lambda outcome: order.append("count")))
    rig.start()
    transport = rig.link._connection.transport
    transport.sock = NotedSocket(transport.sock, order)
    rig.bench.lines.emit = lambda _: order.append("log")
    rig.bench.checkpoint.save = lambda *_: order.append("save")
    order.clear()
    assert rig.ask(CREATE).response.resources.cpus == "2-3"
    assert order == ["save", "send", "log", "count"]


def test_what_fails_after_the_answer_costs_neither_connection_nor_agent(make):
    def observe(_: object) -> None:
        raise RuntimeError("a bug")

    rig = make(Bench(node(pool_floor=False), observe=observe))
    rig.start()
    rig.bench.handler.read_back = observe  # type: ignore[method-assign]
    assert rig.ask(CREATE).response.resources.cpus == "2-3"
    for event in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
        assert rig.ask(event(POD, CREATE.container)).error == ""
    assert len(rig.peers) == 1
    assert "internal error after an answer" in rig.bench.lines.texts("ERROR")


def test_effective_values_are_read_after_the_answer_has_left(make):
    rig = make()
    rig.start()
    rig.ask(CREATE)
    order: list[str] = []
    send, read = rig.link._connection.transport.send, rig.bench.cgroups.read_effective  # type: ignore[union-attr]

    def sending(data: bytes) -> None:
        if data:
            order.append("sent")
        send(data)

    def reading(ref):
        order.append("read")
        return read(ref)

    rig.link._connection.transport.send = sending  # type: ignore[union-attr, method-assign]
    rig.bench.cgroups.read_effective = reading  # type: ignore[method-assign]
    rig.ask(nri.StartContainer(POD, CREATE.container))
    order.clear()
    rig.ask(nri.PostStartContainer(POD, CREATE.container))
    assert order == ["sent", "read"]


def test_a_runtime_that_says_goodbye_is_answered(make):
    rig = make()
    rig.start()
    assert isinstance(rig.ask(nri.Shutdown()), Answered)


def test_an_answer_longer_than_the_socket_takes_leaves_in_pieces(make):
    pods = tuple(pod(f"p{n}", "Burstable") for n in range(60))
    listed = tuple(container(of, f"{n:0200}", cpu=0.1) for of in pods for n in range(30))
    rig = make(Bench(node(effect=Effect.UPDATE)))
    rig.listed = (pods, listed)
    written: list[bool] = []
    writable = rig.link._writable

    def note() -> None:
        written.append(True)
        writable()

    rig.link._writable = note
    rig.start()
    assert len(rig.peer.of(Synchronized)[0].updates) == len(listed)
    assert written


def test_an_error_while_the_rest_of_an_answer_is_sent_costs_the_connection_only(make):
    rig = make()
    rig.start()

    def broken(data: bytes) -> None:
        raise RemoteProtocolError("the runtime left 17 MB of answers unread")

    rig.link._connection.transport.send = broken
    rig.link._writable()
    rig.settle()
    assert "17 MB" in str(rig.bench.lines.fields(SILENT)["err"])
    assert is_synchronized(rig.peer)
    assert len(rig.peers) == 2


def test_a_late_wake_up_for_a_connection_that_is_gone_does_nothing(make):
    rig = make()
    rig.start()
    rig.link.close()
    rig.link._readable()
    rig.link._writable()
    rig.link._check()
    assert rig.loop._exit_code is None


def test_an_agent_that_could_not_act_on_synchronize_does_not_call_itself_synchronized(make):
    def fail(*_: object) -> Decision:
        raise RuntimeError("a bug")

    rig = make(Bench(node(pool_floor=False), decide=fail))
    rig.start()
    assert is_synchronized(rig.peer)
    assert not rig.link.is_synchronized
