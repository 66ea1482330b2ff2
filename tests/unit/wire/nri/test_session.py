"""A plugin's session against a peer that can say anything."""

import pytest

from nri_plugin.model import bounds
from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import decode
from nri_plugin.wire.nri import session as session_module
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.codec import PLUGIN_SERVICE, RUNTIME_SERVICE
from nri_plugin.wire.nri.events import (
    Configure,
    ConfigureResponse,
    CreateContainerResponse,
    EmptyResponse,
    EventMask,
    Registered,
    RegistrationRefused,
    Request,
    Shutdown,
    StopContainerResponse,
    Synchronize,
    SynchronizeResponse,
)
from nri_plugin.wire.nri.messages import ContainerUpdate, Resources
from nri_plugin.wire.nri.mux import HEADER
from nri_plugin.wire.nri.session import PluginSession, SessionStage
from nri_plugin.wire.ttrpc.connection import Call, Reply
from nri_plugin.wire.ttrpc.frame import Code, RPCStatus
from tests.protocol.peer import PINNING, RawPeer, plugin

CREATE = pb.CreateContainerRequest(
    pod=pb.PodSandbox(id="p"), container=pb.Container(id="c")
).SerializeToString()
CONFIGURE = pb.ConfigureRequest(
    runtime_name="containerd", runtime_version="2.1.9", request_timeout=2000
).SerializeToString()
UPDATES = (ContainerUpdate("d", Resources(cpus="4")),)


@pytest.fixture
def peer():
    return RawPeer(plugin()).bring_up()


def codes(heard):
    return [reply.status.code if reply.status else 0 for reply in heard if isinstance(reply, Reply)]


# ----------------------------------------------------------------- registering


@pytest.mark.parametrize("index", ["", "1", "100", "1a", "\u0661\u0660", "-1", "10\n"])
def test_an_index_the_runtime_would_refuse_is_refused_here(index):
    with pytest.raises(LocalProtocolError, match="must be two digits"):
        PluginSession("nri-pin", index, PINNING)


@pytest.mark.parametrize("name", ["", "nri pin", "nri/pin", "é", "name\n"])
def test_a_name_the_runtime_would_refuse_is_refused_here(name):
    with pytest.raises(LocalProtocolError, match="letters, digits and"):
        PluginSession(name, "10", PINNING)


@pytest.mark.parametrize("name", ["a", "nri-pin", "A_b.c+1"])
def test_a_good_name_is_taken(name):
    assert PluginSession(name, "00", PINNING).plugin_name == name


def test_an_empty_subscription_is_refused_before_connecting():
    with pytest.raises(LocalProtocolError, match="would mean every event"):
        PluginSession("nri-pin", "10", EventMask(0))


def test_register_plugin_is_the_first_call_on_the_runtimes_connection():
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    (call,) = peer.hear()
    assert isinstance(call, Call)
    assert (call.stream_id, call.service, call.method) == (1, RUNTIME_SERVICE, "RegisterPlugin")
    message = pb.RegisterPluginRequest.FromString(call.payload)
    assert (message.plugin_name, message.plugin_idx, message.NRI_version) == ("nri-pin", "10", "v0.12.2")


def test_registering_twice_is_refused():
    session = plugin()
    session.register(0.0)
    with pytest.raises(LocalProtocolError, match="register is out of order: this connection is registering"):
        session.register(0.0)


def test_the_runtimes_reply_is_reported():
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    peer.hear()
    peer.server.reply(1)
    assert peer.session.receive_data(peer.wire(), 0.0) == [Registered()]


def test_a_refused_registration_is_reported_with_its_reason():
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    peer.hear()
    peer.server.fail(1, RPCStatus(Code.UNKNOWN, "invalid plugin index"))
    assert peer.session.receive_data(peer.wire(), 0.0) == [RegistrationRefused(2, "invalid plugin index")]


# ---------------------------------------------------------------- out of order


@pytest.mark.parametrize("method", ["Synchronize", "CreateContainer", "StateChange", "Shutdown"])
def test_nothing_but_configure_may_come_first(method):
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    payload = pb.StateChangeEvent(event=1).SerializeToString() if method == "StateChange" else b""
    assert peer.say(method, payload) == []
    assert codes(peer.hear()) == [Code.FAILED_PRECONDITION]
    assert peer.session.stage is SessionStage.REGISTERING


def test_a_second_configure_is_refused_and_changes_nothing(peer):
    assert peer.say("Configure", CONFIGURE) == []
    assert codes(peer.hear()) == [Code.FAILED_PRECONDITION]
    assert peer.session.stage is SessionStage.READY


def test_events_may_come_without_synchronize():
    peer = RawPeer(plugin(prelaunched=True))
    peer.session.register(0.0)
    (request,) = peer.say("Configure", b"")
    peer.session.respond(request.call, ConfigureResponse(), 0.0)
    (created,) = peer.say("CreateContainer", CREATE)
    assert peer.session.respond(created.call, CreateContainerResponse(), 0.0) == ""
    assert peer.session.next_check(0.0) is None


# ------------------------------------------------------------------- configure


def configured(wanted, payload=CONFIGURE, response=None):
    peer = RawPeer(plugin(wanted))
    peer.session.register(0.0)
    peer.hear()
    (request,) = peer.say("Configure", payload)
    peer.session.respond(request.call, response or ConfigureResponse(), 0.0)
    (reply,) = peer.hear()
    return pb.ConfigureResponse.FromString(reply.payload).events


def test_what_the_runtime_does_not_know_is_left_out():
    assert configured(EventMask(0x1FFF)) == 0x07FF


def test_a_chosen_subscription_is_sent_as_it_is():
    assert configured(PINNING, response=ConfigureResponse(EventMask.CREATE_CONTAINER)) == 0x8


def test_a_chosen_subscription_the_runtime_does_not_know_is_refused_and_the_call_still_waits():
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    (request,) = peer.say("Configure", CONFIGURE)
    with pytest.raises(
        LocalProtocolError, match="0x2800 has bits 0x2800 that this runtime does not know; it knows 0x7ff"
    ):
        peer.session.respond(request.call, ConfigureResponse(EventMask(0x2800)), 0.0)
    assert peer.session.respond(request.call, ConfigureResponse(), 0.0) == ""


def test_mask_zero_is_never_sent():
    peer = RawPeer(plugin(EventMask.UPDATE_POD_SANDBOX))
    peer.session.register(0.0)
    (request,) = peer.say("Configure", CONFIGURE)
    for response in (ConfigureResponse(), ConfigureResponse(EventMask(0))):
        with pytest.raises(LocalProtocolError, match="would mean every event"):
            peer.session.respond(request.call, response, 0.0)


def test_the_runtimes_introduction_is_kept(peer):
    assert peer.session.runtime == Configure(runtime_name="containerd")


def test_a_refused_configure_ends_the_session():
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    (request,) = peer.say("Configure", CONFIGURE)
    assert peer.session.refuse(request.call, Code.INTERNAL, "bad configuration", 0.0) == ""
    assert peer.session.stage is SessionStage.FAILED


# ----------------------------------------------------------------- synchronize


def sync_part(*names, more):
    return pb.SynchronizeRequest(
        containers=[pb.Container(id=name) for name in names], more=more
    ).SerializeToString()


def to_sync():
    peer = RawPeer(plugin())
    peer.session.register(0.0)
    (request,) = peer.say("Configure", CONFIGURE)
    peer.session.respond(request.call, ConfigureResponse(), 0.0)
    peer.hear()
    return peer


def test_parts_are_joined_and_acknowledged_without_updates():
    peer = to_sync()
    for part in (sync_part("a", "b", more=True), sync_part("c", more=True)):
        assert peer.say("Synchronize", part) == []
        (reply,) = peer.hear()
        assert pb.SynchronizeResponse.FromString(reply.payload) == pb.SynchronizeResponse(more=True)
    last = sync_part("d", more=False)
    (request,) = peer.say("Synchronize", last)
    assert [container.id for container in request.event.containers] == ["a", "b", "c", "d"]
    peer.session.respond(request.call, SynchronizeResponse(UPDATES), 0.0)
    (reply,) = peer.hear()
    message = pb.SynchronizeResponse.FromString(reply.payload)
    assert not message.more
    assert message.update[0].container_id == "d"


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_values_of_a_part_are_made_once_and_after_its_answer(asked, monkeypatch):
    peer, made = to_sync(), []
    original = decode.container

    def container(message):
        made.append(message.id)
        return original(message)

    monkeypatch.setattr(decode, "container", container)
    for part, before in ((("a", "b"), []), (("c",), ["a", "b"])):
        peer.say("Synchronize", sync_part(*part, more=True))
        assert made == before  # the answer is queued, and no value of this part was made
        for _ in range(asked):
            peer.session.read_ahead()
        assert made == ([*before, *part] if asked else before)
    (request,) = peer.say("Synchronize", sync_part("d", more=False))
    peer.session.read_ahead()
    assert made == ["a", "b", "c", "d"]
    assert [one.id for one in request.event.containers] == made


def test_a_part_that_cannot_be_decoded_gets_no_answer():
    peer = to_sync()
    peer.say("Synchronize", sync_part("a", more=True))
    peer.hear()
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        peer.say("Synchronize", b"\x12\xff")
    assert peer.session.data_to_send() == b""


def test_the_size_of_a_synchronize_counts_all_parts():
    peer = to_sync()
    parts = [sync_part("a", more=True), sync_part("b", more=False)]
    peer.say("Synchronize", parts[0])
    (request,) = peer.say("Synchronize", parts[1])
    assert request.size_bytes == sum(map(len, parts))


def test_an_endless_synchronize_is_refused(monkeypatch):
    monkeypatch.setattr(bounds, "SYNCHRONIZED", 9)
    peer = to_sync()
    for number in range(9):
        peer.say("Synchronize", sync_part(f"x{number}", more=True))
    with pytest.raises(RemoteProtocolError, match="lists 10 pods or containers so far, at most 9 are kept"):
        peer.say("Synchronize", sync_part("y", more=True))


def test_events_during_a_split_synchronize_are_out_of_order():
    peer = to_sync()
    peer.say("Synchronize", sync_part("a", more=True))
    peer.hear()
    assert peer.say("CreateContainer", CREATE) == []
    assert codes(peer.hear()) == [Code.FAILED_PRECONDITION]


@pytest.mark.parametrize("how", ["refused", "late", "too long"])
def test_a_lost_synchronize_asks_for_a_new_connection_at_once(how):
    peer = to_sync()
    (request,) = peer.say("Synchronize", b"")
    assert peer.session.overdue(1.0) is None
    if how == "refused":
        peer.session.refuse(request.call, Code.INTERNAL, "no", 1.0)
    elif how == "late":
        assert request.deadline == 2.0
        peer.session.respond(request.call, SynchronizeResponse(), 2.1)
    else:
        long = tuple(ContainerUpdate(f"{n}" * 1000, Resources(cpus="0")) for n in range(2000))
        assert "over the limit" in str(peer.session.respond(request.call, SynchronizeResponse(long), 1.0))
    assert "answer to Synchronize was an error or too late" in peer.session.overdue(2.1)


def test_a_good_synchronize_leaves_nothing_to_watch(peer):
    assert peer.session.stage is SessionStage.READY
    assert peer.session.next_check(0.0) is None
    assert peer.session.overdue(1e9) is None


# --------------------------------------------------------------------- answers


def test_a_request_knows_its_deadline_and_size(peer):
    (request,) = peer.say("CreateContainer", CREATE, now=50.0)
    assert request == Request(request.call, 52.0, request.event, len(CREATE))


def test_a_refusal_reaches_the_runtime_and_the_session_goes_on(peer):
    (request,) = peer.say("CreateContainer", CREATE)
    assert peer.session.refuse(request.call, Code.UNKNOWN, "TopologyAffinityError: no", 0.0) == ""
    (reply,) = peer.hear()
    assert reply.status == RPCStatus(Code.UNKNOWN, "TopologyAffinityError: no")
    assert peer.say("CreateContainer", CREATE)
    assert peer.session.overdue(0.5) is None


def test_an_answer_of_the_wrong_kind_leaves_the_call_waiting(peer):
    (request,) = peer.say("CreateContainer", CREATE)
    with pytest.raises(LocalProtocolError):
        peer.session.respond(request.call, StopContainerResponse(), 0.0)
    assert peer.hear() == []
    assert peer.session.respond(request.call, EmptyResponse(), 0.0) == ""


def test_a_second_answer_is_dropped(peer):
    (request,) = peer.say("CreateContainer", CREATE)
    peer.session.respond(request.call, EmptyResponse(), 0.0)
    peer.hear()
    assert "no longer waiting" in str(peer.session.respond(request.call, EmptyResponse(), 0.0))
    assert "no longer waiting" in str(peer.session.refuse(request.call, 2, "no", 0.0))
    assert peer.hear() == []


def test_an_answer_after_the_end_is_dropped(peer):
    (request,) = peer.say("CreateContainer", CREATE)
    assert peer.session.receive_data(b"", 0.0) == []
    assert "no longer waiting" in str(peer.session.respond(request.call, EmptyResponse(), 0.0))
    assert peer.session.data_to_send() == b""


def test_a_late_answer_is_sent_and_then_the_end_is_expected(peer):
    (request,) = peer.say("CreateContainer", CREATE)
    assert peer.session.respond(request.call, EmptyResponse(), 2.5) == ""
    assert codes(peer.hear()) == [0]
    assert peer.session.next_check(2.5) == 3.5
    assert peer.session.overdue(3.4) is None
    assert "after its deadline" in peer.session.overdue(3.5)


def test_an_answer_that_is_too_long_becomes_an_error(peer):
    (request,) = peer.say("CreateContainer", CREATE)
    why = str(peer.session.respond(request.call, CreateContainerResponse(env={"A": "x" * (4 << 20)}), 0.0))
    assert "over the limit of 4194304" in why
    assert codes(peer.hear()) == [Code.RESOURCE_EXHAUSTED]
    assert peer.session.overdue(0.0) is None


def test_shutdown_is_an_event(peer):
    (request,) = peer.say("Shutdown")
    assert request.event == Shutdown()
    assert peer.session.respond(request.call, EmptyResponse(), 0.0) == ""


def test_unknown_methods_and_services_are_unimplemented(peer):
    assert peer.say("RunTheFuture") == []
    assert peer.say("Configure", service="nri.pkg.api.v2.Plugin") == []
    first, second = peer.hear()
    assert first.status == RPCStatus(Code.UNIMPLEMENTED, "method RunTheFuture")
    assert second.status == RPCStatus(Code.UNIMPLEMENTED, "service nri.pkg.api.v2.Plugin")


def test_a_streaming_call_is_unimplemented_and_the_session_goes_on(peer):
    peer.client.call(PLUGIN_SERVICE, "Watch", b"", 0.0)
    wire = bytearray(peer.wire())
    wire[17] = 0x02  # the frame's flags: the client sends more
    assert peer.session.receive_data(wire, 0.0) == []
    assert codes(peer.hear()) == [Code.UNIMPLEMENTED]
    assert peer.say("CreateContainer", CREATE)


def test_a_state_change_of_the_future_is_acknowledged(peer):
    assert peer.say("StateChange", pb.StateChangeEvent(event=15).SerializeToString()) == []
    assert codes(peer.hear()) == [0]


# ---------------------------------------------------------------------- the end


def test_the_end_is_no_error_and_comes_once(peer):
    assert peer.session.receive_data(b"", 0.0) == []
    assert peer.session.receive_data(b"", 0.0) == []
    assert peer.session.stage is SessionStage.CLOSED
    assert peer.session.overdue(1e9) is None


def test_the_end_in_the_middle_of_a_frame_is_an_error(peer):
    peer.client.call("s", "m", b"payload", 0.0)
    peer.session.receive_data(peer.wire()[:-3], 0.0)
    with pytest.raises(RemoteProtocolError, match="in the middle of a frame"):
        peer.session.receive_data(b"", 0.0)


def test_an_error_is_final(peer):
    with pytest.raises(RemoteProtocolError) as first:
        peer.session.receive_data(b"\xff" * 8, 0.0)
    with pytest.raises(RemoteProtocolError) as second:
        peer.say("CreateContainer", CREATE)
    assert first.value is second.value
    assert peer.session.stage is SessionStage.CLOSED


def test_bytes_after_the_end_are_an_error(peer):
    peer.session.receive_data(b"", 0.0)
    with pytest.raises(RemoteProtocolError, match="after the end"):
        peer.session.receive_data(b"x", 0.0)


def test_a_garbled_request_closes_the_connection(peer):
    with pytest.raises(RemoteProtocolError, match="CreateContainer request of 3 bytes cannot be decoded"):
        peer.say("CreateContainer", b"\x0a\xff\xff")


def test_a_request_longer_than_any_runtime_can_send_closes_the_connection(peer):
    peer.client.call("s", "m", b"\0" * session_module.MAX_MESSAGE_BYTES, 0.0)
    (frame,) = peer.client.frames_to_send()
    middle = len(frame) // 2
    wire = b"".join(HEADER.pack(1, len(part)) + part for part in (frame[:middle], frame[middle:]))
    with pytest.raises(RemoteProtocolError, match=r"unusable: request of 167813\d\d bytes is longer"):
        peer.session.receive_data(wire, 0.0)


def test_the_longest_message_of_nri_0_6_is_accepted():
    peer = to_sync()
    room = (16 << 20) + 4096 - 10 - 200
    big = pb.SynchronizeRequest(
        containers=[pb.Container(id="x", env=["A=" + "y" * room])]
    ).SerializeToString()
    (request,) = peer.say("Synchronize", big)
    assert isinstance(request.event, Synchronize)
