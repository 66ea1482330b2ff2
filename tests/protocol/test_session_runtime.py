"""The runtime we test with: it must behave, and misbehave, as the Go library of each release does."""

import pytest

from nri_plugin.model.errors import RemoteProtocolError
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.codec import RUNTIME_SERVICE
from nri_plugin.wire.nri.events import (
    ConfigureResponse,
    CreateContainer,
    CreateContainerResponse,
    EmptyResponse,
    EventMask,
    Request,
    Shutdown,
    StartContainer,
    SynchronizeResponse,
)
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources
from nri_plugin.wire.nri.mux import HEADER, mux_frames
from nri_plugin.wire.ttrpc.connection import ClientConnection, ServerConnection
from nri_plugin.wire.ttrpc.frame import Frame, RPCStatus
from tests.lab.runtime.adjusting import Ownership
from tests.lab.runtime.profile import (
    CONTAINERD_1_7,
    CONTAINERD_2_1,
    CONTAINERD_2_4,
    PROFILES,
    Answered,
    Configured,
    ConnectionLost,
    RegistrationRejected,
    Synchronized,
)
from tests.lab.runtime.session import GoTrunkReader, RuntimeSession
from tests.protocol.peer import CONTAINER, POD, Link

CREATE = CreateContainer(POD, CONTAINER)
every_release = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


class NaivePlugin:
    """A plugin with a client and a server and no manners, in front of a runtime."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.client, self.server = ClientConnection(), ServerConnection()
        self.trunk = GoTrunkReader()

    def register(self, name="naive", index="10"):
        payload = pb.RegisterPluginRequest(plugin_name=name, plugin_idx=index).SerializeToString()
        return self.say_service("RegisterPlugin", payload)

    def say_service(self, method, payload, service=RUNTIME_SERVICE):
        self.client.call(service, method, payload, 0.0)
        return self.flush()

    def flush(self):
        frames = [(2, frame) for frame in self.client.frames_to_send()]
        frames += [(1, frame) for frame in self.server.frames_to_send()]
        return self.runtime.receive_data(
            b"".join(part for to, frame in frames for part in mux_frames(to, frame)), 0.0
        )

    def hear(self):
        calls = []
        for connection_id, frame in self.trunk.feed(self.runtime.data_to_send()):
            if connection_id == 1:
                calls += self.server.receive_data(frame, 0.0)
            else:
                calls += self.client.receive_data(frame)
        return calls

    def answer(self, message, stream_id):
        self.server.reply(stream_id, message.SerializeToString())
        return self.flush()

    def bring_up(self, mask=0):
        self.register()
        self.hear()
        self.runtime.configure(0.0)
        (call,) = self.hear()
        (configured,) = self.answer(pb.ConfigureResponse(events=mask), call.stream_id)
        self.runtime.synchronize((), (), 0.0)
        (call,) = self.hear()
        self.answer(pb.SynchronizeResponse(), call.stream_id)
        return configured


# ----------------------------------------------------------------- go reader


@pytest.mark.parametrize("total", [10, 100, 4095, 4096])
def test_a_frame_in_one_mux_frame_is_read_up_to_4096_bytes(total):
    frame = Frame(1, 2, 0, b"x" * (total - 10)).encode()
    assert GoTrunkReader().feed(HEADER.pack(1, total) + frame) == [(1, frame)]


@pytest.mark.parametrize("total", [4097, 6000])
def test_a_longer_mux_frame_cannot_be_allocated(total):
    frame = Frame(1, 2, 0, b"x" * (total - 10)).encode()
    with pytest.raises(RemoteProtocolError, match="room for 4096: cannot allocate memory"):
        GoTrunkReader().feed(HEADER.pack(1, total) + frame)


@pytest.mark.parametrize("total", [4095, 4096, 4097, 4098, 8192, 8193, 200_000, 3_900_000])
def test_the_safe_split_is_read_at_every_size(total):
    frame = Frame(1, 2, 0, b"x" * (total - 10)).encode()
    assert GoTrunkReader().feed(b"".join(mux_frames(1, frame))) == [(1, frame)]


@pytest.mark.parametrize(("pieces", "is_read"), [(256, True), (257, False)])
def test_at_most_256_mux_frames_are_queued(pieces, is_read):
    frame = Frame(1, 2, 0, b"x" * (pieces * 4096 - 10)).encode()
    wire = b"".join(HEADER.pack(1, 4096) + frame[at : at + 4096] for at in range(0, len(frame), 4096))
    if is_read:
        assert GoTrunkReader().feed(wire) == [(1, frame)]
    else:
        with pytest.raises(RemoteProtocolError, match="more than 256"):
            GoTrunkReader().feed(wire)


def test_discarding_an_oversize_message_fails_as_in_the_field():
    frame = Frame(1, 2, 0, b"x" * ((4 << 20) + 1)).encode()
    with pytest.raises(RemoteProtocolError, match="cannot allocate memory"):
        GoTrunkReader().feed(b"".join(mux_frames(1, frame)))


def test_small_pieces_and_several_frames_in_one_are_read():
    frames = [Frame(n, 2, 0, bytes([n]) * n).encode() for n in range(1, 50)]
    stream, reader, read = b"".join(frames), GoTrunkReader(), []
    for at in range(0, len(stream), 37):
        piece = stream[at : at + 37]
        read += reader.feed(HEADER.pack(2, len(piece)) + piece)
    assert read == [(2, frame) for frame in frames]


def test_other_connections_are_dropped():
    assert GoTrunkReader().feed(HEADER.pack(9, 3) + b"abc") == []


# ------------------------------------------------------------------- session


@every_release
def test_mask_zero_is_everything_the_release_knows(profile):
    naive = NaivePlugin(RuntimeSession(profile))
    assert naive.bring_up(mask=0) == Configured(profile.legal_mask)


@every_release
def test_events_outside_the_subscription_are_not_sent(profile):
    naive = NaivePlugin(RuntimeSession(profile))
    naive.bring_up(mask=int(EventMask.START_CONTAINER))
    assert naive.runtime.call(CREATE, 0.0) is None
    assert naive.runtime.call(StartContainer(POD, CONTAINER), 0.0) is not None
    (call,) = naive.hear()
    assert call.method == ("StartContainer" if profile.release >= (0, 12) else "StateChange")


@every_release
def test_nothing_is_called_before_synchronize(profile):
    naive = NaivePlugin(RuntimeSession(profile))
    naive.register()
    assert naive.runtime.call(CREATE, 0.0) is None
    assert naive.runtime.call(Shutdown(), 0.0) is None


@pytest.mark.parametrize(("name", "index", "rejected_by"), [
    ("", "10", "all"), ("ok", "1", "all"), ("ok", "xx", "all"), ("a b", "10", "0.12"), ("ok", "10", "none"),
])  # fmt: skip
@every_release
def test_identity_checks(profile, name, index, rejected_by):
    naive = NaivePlugin(RuntimeSession(profile))
    (event,) = naive.register(name, index)
    expected = rejected_by == "all" or (rejected_by == "0.12" and profile.release >= (0, 12))
    assert isinstance(event, RegistrationRejected) is expected
    (reply,) = naive.hear()
    assert (reply.status is not None) is expected
    assert not naive.runtime.lost  # open, and dead


def split_link(profile, containers=40):
    link = Link(profile)
    naive = NaivePlugin(RuntimeSession(profile))
    naive.register()
    naive.hear()
    naive.runtime.configure(0.0)
    (call,) = naive.hear()
    naive.answer(pb.ConfigureResponse(events=8), call.stream_id)
    big = tuple(Container(f"c{n}", env=("A=" + "x" * 200_000,)) for n in range(containers))
    naive.runtime.synchronize((Pod("p"),), big, 0.0)
    del link
    return naive


def test_a_plugin_that_does_not_say_more_is_lost():
    naive = split_link(CONTAINERD_2_1)
    (call,) = naive.hear()
    assert pb.SynchronizeRequest.FromString(call.payload).more
    (lost,) = naive.answer(pb.SynchronizeResponse(), call.stream_id)
    assert "does not handle split sync requests" in lost.reason


def test_parts_stay_below_4_mib_and_skip_stream_ids():
    naive = split_link(CONTAINERD_2_1)
    seen, streams, events = [], [], []
    while not any(isinstance(event, Synchronized) for event in events):
        (call,) = naive.hear()
        message = pb.SynchronizeRequest.FromString(call.payload)
        assert len(call.payload) < 4 << 20
        seen += [container.id for container in message.containers]
        streams.append(call.stream_id)
        events = naive.answer(pb.SynchronizeResponse(more=message.more), call.stream_id)
    assert seen == [f"c{n}" for n in range(40)]
    assert streams[0] > 3  # the attempt that was too long used up an id


def test_objects_that_are_too_long_end_the_attempt():
    runtime = RuntimeSession(CONTAINERD_2_1)
    runtime.synchronize((), tuple(Container(f"c{n}", env=("x" * (5 << 20),)) for n in range(3)), 0.0)
    assert "failed to synchronize plugin" in runtime.lost


def test_0_6_1_sends_one_message_of_any_length():
    naive = split_link(CONTAINERD_1_7)
    # Our own reader in front of 0.6.1, since a Go plugin could not read it.
    from nri_plugin.wire.nri.mux import MuxReader

    calls = [
        call
        for connection_id, part in MuxReader().feed(naive.runtime.data_to_send())
        if connection_id == 1
        for call in naive.server.receive_data(part, 0.0)
    ]
    (call,) = calls
    assert not pb.SynchronizeRequest.FromString(call.payload).more
    assert len(call.payload) > 8_000_000


def test_a_failed_synchronize_makes_a_zombie_of_0_6_1():
    naive = NaivePlugin(RuntimeSession(CONTAINERD_1_7))
    naive.register()
    naive.hear()
    naive.runtime.configure(0.0)
    (call,) = naive.hear()
    naive.answer(pb.ConfigureResponse(events=8), call.stream_id)
    naive.runtime.synchronize((), (), 0.0)
    (call,) = naive.hear()
    naive.server.fail(call.stream_id, RPCStatus(2, "no"))
    assert naive.flush() == []
    assert naive.runtime.is_zombie
    assert not naive.runtime.lost


def test_a_refused_configure_loses_the_plugin():
    naive = NaivePlugin(RuntimeSession(CONTAINERD_2_4))
    naive.register()
    naive.hear()
    naive.runtime.configure(0.0)
    (call,) = naive.hear()
    naive.server.fail(call.stream_id, RPCStatus(2, "bad config"))
    assert naive.flush() == [ConnectionLost("failed to configure plugin: bad config")]


def test_the_end_of_the_connection_fails_open():
    link = Link().establish()
    call = link.runtime.call(CREATE, 0.0)
    lost, answered = link.runtime.receive_data(b"", 0.0)
    assert lost == ConnectionLost("ttrpc: closed")
    assert answered == Answered(call, CREATE, None, is_fail_open=True)
    assert link.runtime.receive_data(b"more", 0.0) == []
    assert link.runtime.call(CREATE, 0.0) is None


def test_an_answer_that_cannot_be_read_fails_the_request_and_the_plugin_stays():
    link = Link().establish()
    link.runtime.call(CREATE, 0.0)
    (request,) = link.to_plugin()
    link.session._server.reply(request.call, b"\xff\xff")
    (answered,) = link.to_runtime()
    assert "cannot be decoded" in answered.error
    assert not link.runtime.lost


def test_an_update_of_the_created_container_fails_the_request():
    link = Link().establish()
    request = link.ask(CREATE)
    message = pb.CreateContainerResponse()
    message.update.add(container_id="c1", ignore_failure=True).linux.resources.cpu.cpus = "1"
    link.session._server.reply(request.call, message.SerializeToString())
    (answered,) = link.to_runtime()
    assert answered.error == "plugin 10-nri-pin asked update of c1 during creation"


def test_unknown_calls_of_a_plugin_are_unimplemented():
    naive = NaivePlugin(RuntimeSession(CONTAINERD_2_4))
    naive.say_service("Evict", b"")
    naive.say_service("RegisterPlugin", b"", service="nri.v2.Runtime")
    assert [reply.status.code for reply in naive.hear()] == [12, 12]


def test_next_check_is_the_nearest_deadline():
    runtime = RuntimeSession(CONTAINERD_2_4)
    assert runtime.next_check() is None
    runtime.accept(10.0)
    assert runtime.next_check() == 15.0
    naive = NaivePlugin(runtime)
    naive.register()
    runtime.configure(20.0)
    assert runtime.next_check() == 22.0


def test_a_launched_plugin_keeps_the_name_of_its_file():
    naive = NaivePlugin(RuntimeSession(CONTAINERD_2_4, launched_as=("file", "42")))
    (registered,) = naive.register("WRONG", "99 ")
    assert (registered.name, registered.index) == ("file", "42")
    assert naive.runtime.plugin == "42-file"


# ----------------------------------------------------------------- ownership


def test_two_plugins_may_not_set_one_field():
    owners = Ownership()
    assert owners.claim("10-a", "c1", Resources(cpus="0")) == ""
    assert owners.claim("20-b", "c1", Resources(mems="0")) == ""
    assert owners.claim("20-b", "c2", Resources(cpus="0")) == ""
    assert (
        owners.claim("20-b", "c1", Resources(cpus="0"))
        == 'plugins "20-b" and "10-a" both tried to set CPUSetCPUs'
    )


def test_an_update_that_may_fail_is_left_out():
    owners = Ownership()
    one = ContainerUpdate("c1", Resources(cpus="0"))
    other = ContainerUpdate("c1", Resources(cpus="1"), ignore_failure=True)
    assert owners.accept("10-a", (one, other)) == ((one,), "")


# ------------------------------------------------- several events, one plugin


def test_answers_name_their_calls():
    link = Link().establish()
    first, second = link.runtime.call(CREATE, 0.0), link.runtime.call(StartContainer(POD, CONTAINER), 0.0)
    requests = [event for event in link.to_plugin() if isinstance(event, Request)]
    link.session.respond(requests[1].call, EmptyResponse(), 0.0)
    link.session.respond(requests[0].call, CreateContainerResponse(Resources(cpus="1")), 0.0)
    answers = link.to_runtime()
    assert [answer.call for answer in answers] == [second, first]


def test_a_link_can_be_configured_twice_over_two_connections():
    for _ in range(2):
        link = Link()
        link.register()
        link.session.respond(link.configure().call, ConfigureResponse(), 0.0)
        link.exchange()
        link.session.respond(link.synchronize().call, SynchronizeResponse(), 0.0)
        assert link.exchange()[1] == [Synchronized(())]
