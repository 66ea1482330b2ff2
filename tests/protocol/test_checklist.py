"""What breaks naive plugins, line by line, against a runtime that behaves as each NRI release does.

The headings are the acceptance list of the protocol reference. Most facts are shown twice: in memory, and
through a real pair of sockets.
"""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import codec, events
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.codec import PLUGIN_SERVICE
from nri_plugin.wire.nri.events import (
    ConfigureResponse,
    CreateContainer,
    CreateContainerResponse,
    EmptyResponse,
    EventMask,
    Registered,
    RegistrationRefused,
    Request,
    StartContainer,
    SynchronizeResponse,
    UpdateContainer,
    UpdateContainerResponse,
)
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources
from nri_plugin.wire.nri.mux import HEADER as MUX_HEADER
from nri_plugin.wire.nri.mux import PLUGIN_CONNECTION
from nri_plugin.wire.nri.session import PluginSession, SessionStage
from nri_plugin.wire.ttrpc.frame import Code, Frame, MessageType, encode_request
from nri_plugin.wire.ttrpc.frame import RequestEnvelope as Envelope
from tests.lab.runtime.profile import (
    CONTAINERD_1_7,
    CONTAINERD_2_1,
    CONTAINERD_2_2,
    CONTAINERD_2_4,
    CRIO_1_36,
    PROFILES,
    Configured,
    ConnectionLost,
    PluginRegistered,
    RegistrationRejected,
    RuntimeProfile,
    Synchronized,
)
from tests.lab.runtime.session import RuntimeSession
from tests.protocol.peer import CONTAINER, PINNING, POD, Link, RawPeer, SocketLink, plugin

every_release = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
every_way = pytest.mark.parametrize("way", [Link, SocketLink])
CREATE = CreateContainer(POD, CONTAINER)
EVERYTHING = EventMask(0x1FFF)


@pytest.fixture(autouse=True)
def _close_sockets(monkeypatch):
    """Sockets of a link are closed at the end of its test."""
    links: list[SocketLink] = []
    begin = SocketLink.__init__

    def remember(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        links.append(self)

    monkeypatch.setattr(SocketLink, "__init__", remember)
    yield
    for link in links:
        link.close()


# --------------------------------------- 1 register, configure, synchronize


@every_release
@every_way
def test_01_register_configure_synchronize(profile, way):
    link = way(profile)
    assert link.register() == [PluginRegistered("nri-pin", "10", "v0.12.2")]
    request = link.configure("text: 1")
    assert request.event.config == "text: 1"
    assert request.event.runtime_name == profile.runtime_name
    assert bool(request.event.request_timeout_ms) is (profile.release >= (0, 7))
    link.session.respond(request.call, ConfigureResponse(), 0.0)
    assert link.exchange()[1] == [Configured(PINNING)]
    request = link.synchronize((POD,), (CONTAINER,))
    assert request.event == events.Synchronize((POD,), (CONTAINER,))
    update = ContainerUpdate("c1", Resources(cpus="0"), ignore_failure=True)
    link.session.respond(request.call, SynchronizeResponse((update,)), 0.0)
    assert link.exchange()[1] == [Synchronized((update,))]
    assert link.session.stage is SessionStage.READY


@every_release
def test_01_one_byte_at_a_time(profile):
    link = Link(profile, chunk=1).establish()
    request = link.ask(CREATE)
    answered = link.answer(request, CreateContainerResponse(Resources(cpus="0-3", mems="0")))
    assert answered.response.resources == Resources(cpus="0-3", mems="0")


@every_way
def test_01_configure_may_come_before_the_reply_to_register_plugin(way):
    link = way(runtime=RuntimeSession(CONTAINERD_2_4, holds_registration_reply=True))
    link.register()
    request = link.configure()
    assert link.session.stage is SessionStage.CONFIGURING
    link.session.respond(request.call, ConfigureResponse(), 0.0)
    assert link.exchange()[0] == [Registered()]
    assert link.synchronize().event == events.Synchronize()


# ------------------------------------------------------- 2 mask by version

MASKS = [
    (CONTAINERD_1_7, 0x07FF),
    (CONTAINERD_2_1, 0x07FF),
    (CONTAINERD_2_2, 0x1FFF),
    (CRIO_1_36, 0x1FFF),
    (CONTAINERD_2_4, 0x1FFF),
    (RuntimeProfile("0.9.0", "cri-o", "1.32.4"), 0x07FF),
    (RuntimeProfile("0.10.0", "cri-o", "1.34.1"), 0x1FFF),
    (RuntimeProfile("0.12.0", "containerd", "v2.3.0"), 0x1FFF),
]


@pytest.mark.parametrize(
    ("profile", "mask"), MASKS, ids=lambda value: getattr(value, "runtime_version", None)
)
def test_02_a_plugin_that_wants_everything_gets_what_the_release_knows(profile, mask):
    link = Link(profile, plugin(EVERYTHING))
    link.register()
    link.session.respond(link.configure().call, ConfigureResponse(), 0.0)
    assert link.exchange()[1] == [Configured(EventMask(mask))]


@pytest.mark.parametrize("profile", [CONTAINERD_1_7, CONTAINERD_2_1])
def test_02_one_bit_too_many_would_close_the_connection(profile):
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    runtime = RuntimeSession(profile)
    runtime.receive_data(peer.session.data_to_send(), 0.0)
    runtime.configure(0.0)
    (request,) = [
        event
        for event in peer.session.receive_data(runtime.data_to_send(), 0.0)
        if isinstance(event, Request)
    ]
    peer.session._server.reply(request.call, pb.ConfigureResponse(events=0x0FFF).SerializeToString())
    (lost,) = runtime.receive_data(peer.session.data_to_send(), 0.0)
    assert lost == ConnectionLost("invalid plugin events 0xfff, known are 0x7ff")


# ------------------------------------- 3 StateChange and dedicated methods

NINE = [
    events.RunPodSandbox(POD),
    events.StopPodSandbox(POD),
    events.RemovePodSandbox(POD),
    events.PostCreateContainer(POD, CONTAINER),
    events.StartContainer(POD, CONTAINER),
    events.PostStartContainer(POD, CONTAINER),
    events.PostUpdateContainer(POD, CONTAINER),
    events.RemoveContainer(POD, CONTAINER),
]
OTHERS = [
    events.CreateContainer(POD, CONTAINER),
    events.UpdateContainer(POD, CONTAINER, Resources(cpu_shares=0, cpus="1")),
    events.StopContainer(POD, CONTAINER),
]
SINCE_0_10 = [
    events.UpdatePodSandbox(POD, Resources(cpu_shares=2), Resources(memory_limit_bytes=0)),
    events.PostUpdatePodSandbox(POD),
]


@every_release
@every_way
@pytest.mark.parametrize("event", NINE + OTHERS + SINCE_0_10, ids=lambda event: type(event).__name__)
def test_03_every_event_is_the_same_on_every_release(profile, way, event):
    link = way(profile, plugin(EVERYTHING)).establish()
    request = link.ask(event)
    if request is None:
        assert event in SINCE_0_10
        assert profile.release < (0, 10)
        return
    assert request.event == event
    assert link.answer(request, EmptyResponse()).error == ""


def test_03_unknown_methods_are_answered_with_12():
    peer = RawPeer(plugin()).bring_up()
    peer.say("EventOfTheYear2030")
    (reply,) = peer.hear()
    assert reply.status.code == 12


def test_03_a_release_that_is_answered_12_falls_back_for_good(monkeypatch):
    link = Link(CONTAINERD_2_4).establish()
    monkeypatch.delitem(codec._READERS, "StartContainer")
    request = link.ask(StartContainer(POD, CONTAINER))
    assert request.event == StartContainer(POD, CONTAINER)  # it came inside StateChange
    assert link.answer(request, EmptyResponse()).error == ""
    assert not link.runtime._own_methods


# ------------------------------------------------------------ 4 reply sizes

SIZES = [0, 100, *range(4076, 4111), 6000, 1_000_000, (4 << 20) - 1, 4 << 20]


def sized_reply(frame_data_bytes):
    """An answer to CreateContainer whose ttrpc frame carries that many bytes."""
    low, high = 0, frame_data_bytes
    while low < high:
        middle = (low + high + 1) // 2
        if _data_bytes(middle) <= frame_data_bytes:
            low = middle
        else:
            high = middle - 1
    return CreateContainerResponse(env={"A": "x" * low})


def _data_bytes(env_bytes):
    payload = pb.CreateContainerResponse()
    payload.adjust.env.add(key="A", value="x" * env_bytes)
    length = payload.ByteSize()
    return length + 1 + (1 if length < 128 else 2 if length < 16384 else 3 if length < 2097152 else 4)


@every_release
@every_way
@pytest.mark.parametrize("size", SIZES)
def test_04_replies_of_any_size_are_read(profile, way, size):
    link = way(profile).establish()
    request = link.ask(CREATE)
    response = EmptyResponse() if size == 0 else sized_reply(size)
    answered = link.answer(request, response)
    assert answered.error == ""
    assert answered.response == (CreateContainerResponse() if size == 0 else response)
    assert link.ask(CREATE) is not None  # and the connection lives on


@every_release
def test_04_a_reply_that_is_too_long_is_a_normal_error(profile):
    link = Link(profile).establish()
    request = link.ask(CREATE)
    answered = link.answer(request, CreateContainerResponse(env={"A": "x" * (4 << 20)}))
    assert "over the limit of 4194304" in answered.error
    assert answered.response is None
    assert link.ask(CREATE) is not None


def test_04_the_runtime_we_test_with_fails_where_the_real_one_does():
    """One mux frame of 4097 bytes, or 257 of them for one message: the plugin is lost."""
    for pieces in (
        lambda frame: [frame],
        lambda frame: [frame[at : at + 4096] for at in range(0, len(frame), 4096)],
    ):
        link = Link(CONTAINERD_2_1).establish()
        request = link.ask(CREATE)
        link.session.respond(request.call, CreateContainerResponse(env={"A": "x" * 3_900_000}), 0.0)
        (frame,) = link.session._server.frames_to_send()
        wire = b"".join(MUX_HEADER.pack(PLUGIN_CONNECTION, len(piece)) + piece for piece in pieces(frame))
        lost, answered = link.runtime.receive_data(wire, 0.0)
        assert isinstance(lost, ConnectionLost)
        assert answered.is_fail_open


# ------------------------------------------------------------ 5 synchronize


def node(pods=600, containers=3000):
    """As many pods and containers as a large node has; about 9.5 MB."""
    return (
        tuple(Pod(f"pod-{n}", f"pod-{n}", annotations={"a": "x" * 600}) for n in range(pods)),
        tuple(
            Container(f"container-{n}", f"pod-{n % pods}", env=("A=" + "y" * 3000,))
            for n in range(containers)
        ),
    )


@every_release
@every_way
def test_05_a_node_of_3000_containers_synchronizes(profile, way):
    pods, containers = node()
    link = way(profile)
    link.register()
    link.session.respond(link.configure().call, ConfigureResponse(), 0.0)
    link.exchange()
    request = link.synchronize(pods, containers)
    assert request.event.pods == tuple(replace(one, annotations={}) for one in pods)
    assert request.event.containers == tuple(replace(one, env=()) for one in containers)
    assert request.size_bytes > 9_000_000
    update = ContainerUpdate("container-7", Resources(cpus="0"))
    link.session.respond(request.call, SynchronizeResponse((update,)), 0.0)
    assert link.exchange()[1] == [Synchronized((update,))]
    parts = link.runtime._client._next_stream_id // 2 - 1
    assert parts == 1 if profile is CONTAINERD_1_7 else parts > 3


# ------------------------------------------------------------- 6 late answers


@every_release
def test_06_a_late_answer_loses_the_connection_and_a_new_one_resynchronizes(profile):
    link = Link(profile).establish()
    request = link.ask(CREATE)
    lost, answered = link.runtime.overdue(request.deadline)
    assert lost == ConnectionLost("context deadline exceeded")
    assert answered.is_fail_open
    link.now = request.deadline + 0.1
    assert link.session.respond(request.call, EmptyResponse(), link.now) == ""
    assert link.runtime.receive_data(link.session.data_to_send(), link.now) == []
    assert link.session.overdue(link.now + 1.0) is not None
    link.session.receive_data(b"", link.now)
    assert Link(profile).establish().ask(CREATE) is not None


def test_06_a_late_synchronize_makes_a_zombie_of_0_6_1_and_we_close():
    link = Link(CONTAINERD_1_7)
    link.register()
    link.session.respond(link.configure().call, ConfigureResponse(), 0.0)
    link.exchange()
    request = link.synchronize()
    assert link.runtime.overdue(2.5) == []
    assert link.runtime.is_zombie
    link.session.respond(request.call, SynchronizeResponse(), 2.5)
    assert link.runtime.receive_data(link.session.data_to_send(), 2.5) == []
    assert link.runtime.call(CREATE, 3.0) is None  # never another event
    assert "answer to Synchronize was an error or too late" in link.session.overdue(2.5)


@pytest.mark.parametrize("profile", [CONTAINERD_2_1, CONTAINERD_2_4])
def test_06_a_late_synchronize_closes_newer_releases(profile):
    link = Link(profile)
    link.register()
    link.session.respond(link.configure().call, ConfigureResponse(), 0.0)
    link.exchange()
    link.synchronize()
    (lost,) = link.runtime.overdue(2.0)
    assert lost == ConnectionLost("failed to synchronize plugin: context deadline exceeded")


# ------------------------------------------------------------- 7 error status


@every_release
@every_way
def test_07_an_error_status_passes_and_the_connection_stays(profile, way):
    link = way(profile).establish()
    request = link.ask(CREATE)
    link.session.refuse(request.call, Code.UNKNOWN, "TopologyAffinityError: wants 4 CPUs, node has 2", 0.0)
    (answered,) = link.exchange()[1]
    assert answered.error == "TopologyAffinityError: wants 4 CPUs, node has 2"
    assert link.session.overdue(100.0) is None
    assert link.answer(link.ask(CREATE), EmptyResponse()).error == ""


# ----------------------------------------------------------------- 8 updates


@every_release
def test_08_duplicate_updates_are_coalesced(profile):
    link = Link(profile).establish()
    halves = (
        ContainerUpdate("c2", Resources(cpus="4")),
        ContainerUpdate("c2", Resources(cpus="4", mems="1")),
    )
    answered = link.answer(link.ask(CREATE), CreateContainerResponse(updates=halves))
    assert answered.response.updates == (ContainerUpdate("c2", Resources(cpus="4", mems="1")),)


@every_release
def test_08_the_runtime_we_test_with_refuses_what_we_never_send(profile):
    link = Link(profile).establish()
    request = link.ask(CREATE)
    message = pb.CreateContainerResponse()
    for _ in range(2):
        message.update.add(container_id="c2").linux.resources.cpu.cpus = "4"
    link.session._server.reply(request.call, message.SerializeToString())
    (answered,) = link.runtime.receive_data(link.session.data_to_send(), 0.0)
    word = "CPU pinning" if profile is CONTAINERD_1_7 else "CPUSetCPUs"
    assert answered.error == f'plugins "10-nri-pin" and "10-nri-pin" both tried to set {word}'


def test_08_an_update_of_the_created_container_is_refused_here():
    link = Link().establish()
    request = link.ask(CREATE)
    response = CreateContainerResponse(updates=(ContainerUpdate("c1", Resources(cpus="1")),))
    with pytest.raises(LocalProtocolError, match="put it into the adjustment"):
        link.session.respond(request.call, response, 0.0)
    assert link.answer(request, CreateContainerResponse(Resources(cpus="1"))).error == ""


def test_08_an_update_of_the_updated_container_itself_is_fine():
    link = Link().establish()
    own = (ContainerUpdate("c1", Resources(cpus="1")),)
    request = link.ask(UpdateContainer(POD, CONTAINER, Resources(cpus="7")))
    assert link.answer(request, UpdateContainerResponse(own)).response == UpdateContainerResponse(own)


# -------------------------------------------------------------- 9 prelaunched

CHILD = """
    import os, socket, sys
    sys.path.insert(0, ROOT)
    from nri_plugin.wire.nri.events import ConfigureResponse, EmptyResponse, Request
    from nri_plugin.wire.nri.events import EventMask
    from nri_plugin.wire.nri.session import PluginSession
    assert set(os.environ) - {"LC_CTYPE"} == {"NRI_PLUGIN_NAME", "NRI_PLUGIN_IDX", "NRI_PLUGIN_SOCKET"}, os.environ
    trunk = socket.socket(fileno=int(os.environ["NRI_PLUGIN_SOCKET"]))
    session = PluginSession(os.environ["NRI_PLUGIN_NAME"], os.environ["NRI_PLUGIN_IDX"], EventMask(0x6FF), prelaunched=True)
    session.register(0.0)
    trunk.sendall(session.data_to_send())
    while data := trunk.recv(65536):
        for event in session.receive_data(data, 0.0):
            if isinstance(event, Request):
                is_configure = type(event.event).__name__ == "Configure"
                session.respond(event.call, ConfigureResponse() if is_configure else EmptyResponse(), 0.0)
        trunk.sendall(session.data_to_send())
"""


@every_release
def test_09_a_plugin_launched_with_fd_3_and_an_empty_environment(profile, tmp_path):
    ours, theirs = socket.socketpair()
    # A child's inherited descriptors keep their numbers, so the runtime's end is moved to where 3 is expected.
    script = f"import os; os.dup2({theirs.fileno()}, 3) if {theirs.fileno()} != 3 else None\n"
    script += f"ROOT = {str(Path(__file__).parents[2])!r}\n" + textwrap.dedent(CHILD)
    environment = {"NRI_PLUGIN_NAME": "pin", "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3"}
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    theirs.close()
    runtime = RuntimeSession(profile, launched_as=("pin-of-file", "55"))
    try:
        with ours:
            ours.settimeout(20)
            assert wait_for(ours, runtime, PluginRegistered) == PluginRegistered(
                "pin-of-file", "55", "v0.12.2"
            )
            runtime.configure(0.0, "config: from drop-in")
            wait_for(ours, runtime, Configured)
            if profile.keeps_zombies:
                runtime.is_ready = True  # before 0.7 a launched plugin is never synchronized
            else:
                runtime.synchronize((), (), 0.0)
                wait_for(ours, runtime, Synchronized)
            runtime.call(CREATE, 0.0)
            answered = wait_for(ours, runtime, type(None))
            assert answered.error == ""
    finally:
        child.wait(20)
    assert child.returncode == 0


def wait_for(sock, runtime, kind):
    """Exchanges bytes until the first event; it must be of that kind (NoneType: any)."""
    while True:
        sock.sendall(runtime.data_to_send())
        data = sock.recv(65536)
        assert data, "the plugin went away"
        for event in runtime.receive_data(data, 0.0):
            assert kind is type(None) or isinstance(event, kind), event
            return event


# ---------------------------------------------------------- 10 bad identity


def test_10_a_bad_name_or_index_is_refused_before_connecting():
    for name, index in (("bad name", "10"), ("", "10"), ("ok", "7"), ("ok", "100")):
        with pytest.raises(LocalProtocolError):
            PluginSession(name, index, PINNING)


@every_release
def test_10_a_refused_registration_is_told_once_and_needs_no_watchdog(profile):
    session = plugin()
    session.plugin_index = "7"
    link = Link(profile, session)
    session.register(0.0)
    (rejected,) = link.to_runtime()
    assert isinstance(rejected, RegistrationRejected)
    (refused,) = link.to_plugin()
    assert isinstance(refused, RegistrationRefused)
    assert "two digits" in refused.message


# ------------------------------------------------------ 11 another connection


def test_11_registering_waits_while_another_connection_holds_the_runtime_up():
    link = Link()
    link.session.register(0.0)
    assert link.session.overdue(5.1) is None
    link.now = 29.0
    link.exchange()
    assert link.configure()
    assert link.session.overdue(29.5) is None


def test_11_but_not_for_ever():
    session = plugin(registration_timeout=60.0)
    session.register(0.0)
    assert session.overdue(59.9) is None
    assert "no Configure within 60 s" in session.overdue(60.0)


@every_release
def test_11_a_silent_connection_is_closed_by_the_runtime_after_five_seconds(profile):
    runtime = RuntimeSession(profile)
    runtime.accept(0.0)
    assert runtime.overdue(4.9) == []
    assert runtime.overdue(5.0) == [ConnectionLost("plugin registration timed out")]


# -------------------------------------------------------------- 12 unknowns


def framed(connection_id, data):
    return MUX_HEADER.pack(connection_id, len(data)) + data


@pytest.mark.parametrize("connection_id", [0, 3, 99, 0xFFFFFFFF])
def test_12_an_unknown_mux_id_is_ignored(connection_id):
    link = Link().establish()
    assert link.session.receive_data(framed(connection_id, b"\xff" * 1000), 0.0) == []
    assert link.ask(CREATE) is not None


@pytest.mark.parametrize("connection_id", [1, 2])
@pytest.mark.parametrize("message_type", [0, 4, 77, 255])
def test_12_an_unknown_message_type_is_ignored(connection_id, message_type):
    link = Link().establish()
    frame = Frame(1, message_type, 0, b"whatever").encode()
    assert link.session.receive_data(framed(connection_id, frame), 0.0) == []
    assert link.ask(CREATE) is not None


def test_12_unknown_fields_and_metadata_are_ignored():
    peer = RawPeer(plugin()).bring_up()
    payload = pb.CreateContainerRequest(container=pb.Container(id="c")).SerializeToString()
    payload += b"\xc2\x3e\x04\x0a\x02hi"  # field 1000, a message
    metadata = (("traceparent", "00-1-1-01"), ("traceparent", "again"), ("x", ""))
    request = (
        encode_request(Envelope(PLUGIN_SERVICE, "CreateContainer", payload, 0, metadata)) + b"\xf8\x07\x01"
    )
    data = framed(PLUGIN_CONNECTION, Frame(101, MessageType.REQUEST, 0, request).encode())
    (seen,) = peer.session.receive_data(data, 0.0)
    assert seen == Request(101, None, CreateContainer(Pod(""), Container("c")), len(payload))


def test_12_a_reply_nobody_waits_for_is_ignored():
    link = Link().establish()
    for stream_id in (2, 77, 0xFFFFFFFF):
        frame = Frame(stream_id, MessageType.RESPONSE, 0, b"\xff\xff").encode()
        assert link.session.receive_data(framed(2, frame), 0.0) == []


# ------------------------------------------------------- 13 runtime restarts


@pytest.mark.parametrize("left_in_socket", [0, 3, 50])
def test_13_a_runtime_that_dies_and_comes_back_finds_us_each_time(left_in_socket):
    for _ in range(20):
        link = SocketLink().establish()
        link.runtime.call(CREATE, 0.0)
        link.runtime_socket.send(link.runtime.data_to_send()[:left_in_socket])
        link.runtime_socket.close()
        if left_in_socket:
            assert link.session.receive_data(link.plugin_socket.recv(1000), 0.0) == []
            with pytest.raises(RemoteProtocolError, match="in the middle of a frame"):
                link.session.receive_data(link.plugin_socket.recv(1000), 0.0)
        else:
            assert link.session.receive_data(link.plugin_socket.recv(1000), 0.0) == []
        assert link.session.stage is SessionStage.CLOSED


# -------------------------------------------------------------- 15 bad bytes


@pytest.mark.parametrize(
    "wire",
    [
        b"\xff" * 8,
        framed(PLUGIN_CONNECTION, b"\xff\xff\xff\xff\0\0\0\1\1\0"),
        framed(2, b"\xff\xff\xff\xff\0\0\0\1\2\0"),
        framed(PLUGIN_CONNECTION, Frame(2, MessageType.REQUEST, 0, b"").encode()),
        framed(PLUGIN_CONNECTION, Frame(101, MessageType.REQUEST, 0, b"\xff\xff").encode()),
        framed(PLUGIN_CONNECTION, Frame(101, MessageType.DATA, 0, b"").encode()),
    ],
    ids=[
        "mux length",
        "frame length",
        "reply length",
        "even stream id",
        "garbled request",
        "data of no stream",
    ],
)
@every_way
def test_15_bad_bytes_close_the_connection_with_a_reason_and_the_next_one_works(wire, way):
    link = way().establish()
    with pytest.raises(RemoteProtocolError) as caught:
        link.session.receive_data(wire, 0.0)
    assert str(caught.value)
    assert link.session.stage is SessionStage.CLOSED
    assert way().establish().ask(CREATE) is not None


def test_15_a_truncated_frame_is_noticed_after_ten_seconds():
    link = Link().establish()
    link.runtime.call(CREATE, 0.0)
    link.session.receive_data(link.runtime.data_to_send()[:-1], 100.0)
    assert link.session.next_check(100.0) == 110.0
    assert link.session.overdue(109.9) is None
    assert "a frame is incomplete" in link.session.overdue(110.0)


def test_15_a_hostile_length_allocates_nothing():
    link = Link().establish()
    link.session.receive_data(framed(1, b"")[:4] + (16 << 20).to_bytes(4, "big"), 0.0)
    link.session.receive_data((16 << 20).to_bytes(4, "big") + b"\0\0\0\1\1\0", 0.0)
    assert len(link.session._server._reader._buffer) < 100
