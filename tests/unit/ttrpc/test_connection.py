"""The two ends of a connection against each other and against bad peers."""

import pytest

from nri_plugin.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.ttrpc import server as server_module
from nri_plugin.ttrpc.connection import Call, ClientConnection, Refused, Reply, ServerConnection
from nri_plugin.ttrpc.envelope import (
    Code,
    Request,
    Response,
    Status,
    decode_response,
    encode_request,
    encode_response,
)
from nri_plugin.ttrpc.frame import Frame, FrameReader, MessageType


def request_frame(stream_id, timeout_ns=0, flags=0):
    return Frame(
        stream_id, MessageType.REQUEST, flags, encode_request(Request("s", "m", b"p", timeout_ns))
    ).encode()


def statuses(server):
    frames = FrameReader().feed(server.data_to_send())
    return [(frame.stream_id, decode_response(frame.data).status.code) for frame in frames]


def test_a_call_and_its_reply():
    client, server = ClientConnection(), ServerConnection()
    stream = client.call("svc", "Method", b"argument", now=10.0, timeout=2.0, metadata=(("k", "v"),))
    (call,) = server.receive_data(client.data_to_send(), now=100.0)
    assert call == Call(1, "svc", "Method", b"argument", 102.0, (("k", "v"),))
    assert server.reply(call.stream_id, b"result") is None
    assert client.receive_data(server.data_to_send()) == [Reply(stream, None, b"result")]


def test_stream_ids_are_odd_and_rising_and_replies_may_come_in_any_order():
    client, server = ClientConnection(), ServerConnection()
    streams = [client.call("s", "m", b"", 0.0) for _ in range(3)]
    assert streams == [1, 3, 5]
    server.receive_data(client.data_to_send(), 0.0)
    for stream in (5, 1, 3):
        server.reply(stream, bytes([stream]))
    assert [reply.stream_id for reply in client.receive_data(server.data_to_send())] == [5, 1, 3]


def test_ids_may_skip_values():
    server = ServerConnection()
    calls = server.receive_data(request_frame(3) + request_frame(9), 0.0)
    assert [call.stream_id for call in calls] == [3, 9]


def test_an_error_status_reaches_the_caller():
    client, server = ClientConnection(), ServerConnection()
    client.call("s", "m", b"", 0.0)
    server.receive_data(client.data_to_send(), 0.0)
    server.fail(1, Status(Code.NOT_FOUND, "no such thing"))
    assert client.receive_data(server.data_to_send()) == [Reply(1, Status(Code.NOT_FOUND, "no such thing"))]


@pytest.mark.parametrize("stream_id", [0, 2, 1000])
def test_an_even_id_is_invalid(stream_id):
    server = ServerConnection()
    (refused,) = server.receive_data(request_frame(stream_id), 0.0)
    assert isinstance(refused, Refused)
    assert statuses(server) == [(stream_id, Code.INVALID_ARGUMENT)]


@pytest.mark.parametrize("second", [5, 3, 1])
def test_an_id_that_is_not_above_the_last_is_invalid(second):
    server = ServerConnection()
    server.receive_data(request_frame(5), 0.0)
    (refused,) = server.receive_data(request_frame(second), 0.0)
    assert refused == Refused(second, Status(Code.INVALID_ARGUMENT, refused.status.message))
    assert server.is_open(5)


def test_an_undecodable_request_is_invalid_and_the_connection_lives_on():
    server = ServerConnection()
    bad = Frame(1, MessageType.REQUEST, 0, b"\xff\xff").encode()
    refused, call = server.receive_data(bad + request_frame(3), 0.0)
    assert isinstance(refused, Refused)
    assert isinstance(call, Call)
    assert statuses(server) == [(1, Code.INVALID_ARGUMENT)]


@pytest.mark.parametrize("message_type", [0, 2, 4, 255])
def test_other_message_types_are_ignored(message_type):
    server = ServerConnection()
    assert server.receive_data(Frame(1, message_type, 0, b"?").encode(), 0.0) == []
    assert server.data_to_send() == b""


def test_an_oversize_request_is_exhausted_and_skipped():
    server = ServerConnection(max_receive=100)
    stream = Frame(1, MessageType.REQUEST, 0, b"z" * 101).encode() + request_frame(3)
    refused, call = server.receive_data(stream, 0.0)
    assert refused.status.code == Code.RESOURCE_EXHAUSTED
    assert call.stream_id == 3


def test_an_oversize_reply_becomes_an_error_status():
    server = ServerConnection()
    server.receive_data(request_frame(1), 0.0)
    status = server.reply(1, b"x" * (4 << 20))
    assert status is not None
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert statuses(server) == [(1, Code.RESOURCE_EXHAUSTED)]
    assert not server.is_open(1)


def test_the_longest_reply_is_sent():
    server = ServerConnection()
    server.receive_data(request_frame(1), 0.0)
    payload = b"x" * ((4 << 20) - 5)  # tag and length take five bytes
    assert server.reply(1, payload) is None
    assert len(server.data_to_send()) == (4 << 20) + 10


def test_an_oversize_request_of_ours_is_refused_and_uses_up_its_id():
    client = ClientConnection()
    with pytest.raises(LocalProtocolError, match="over the limit of 4194304"):
        client.call("s", "m", b"x" * (4 << 20), 0.0)
    assert client.data_to_send() == b""
    assert client.call("s", "m", b"", 0.0) == 3


def test_an_oversize_reply_to_us_fails_the_call():
    client = ClientConnection(max_receive=100)
    client.call("s", "m", b"", 0.0)
    (reply,) = client.receive_data(Frame(1, MessageType.RESPONSE, 0, b"z" * 101).encode())
    assert reply.status.code == Code.RESOURCE_EXHAUSTED


def test_a_reply_can_be_given_once():
    server = ServerConnection()
    server.receive_data(request_frame(1), 0.0)
    server.reply(1)
    with pytest.raises(LocalProtocolError, match="no call waits on stream 1"):
        server.reply(1)
    with pytest.raises(LocalProtocolError, match="no call waits on stream 1"):
        server.fail(1, Status(2, ""))


def test_failing_with_ok_is_refused_and_the_call_still_waits():
    server = ServerConnection()
    server.receive_data(request_frame(1), 0.0)
    with pytest.raises(LocalProtocolError, match="status OK"):
        server.fail(1, Status(Code.OK))
    assert server.is_open(1)


def test_no_timeout_is_no_deadline():
    (call,) = ServerConnection().receive_data(request_frame(1, timeout_ns=0), 5.0)
    assert call.deadline is None


def test_our_own_deadlines_end_calls_once():
    client = ClientConnection()
    client.call("s", "slow", b"", 0.0, timeout=2.0)
    client.call("s", "forever", b"", 0.0)
    assert client.next_deadline() == 2.0
    assert client.expire(1.9) == []
    (reply,) = client.expire(2.0)
    assert (reply.stream_id, reply.status.code) == (1, Code.DEADLINE_EXCEEDED)
    assert client.next_deadline() is None
    assert client.expire(99.0) == []


def test_a_late_reply_is_dropped():
    client = ClientConnection()
    client.call("s", "m", b"", 0.0, timeout=1.0)
    client.expire(1.0)
    assert client.receive_data(Frame(1, MessageType.RESPONSE, 0, b"").encode()) == []


def test_a_cancelled_call_is_forgotten():
    client = ClientConnection()
    client.cancel(client.call("s", "m", b"", 0.0, timeout=1.0))
    assert client.receive_data(Frame(1, MessageType.RESPONSE, 0, b"").encode()) == []
    assert client.close() == []


def test_closing_ends_every_waiting_call():
    client = ClientConnection()
    client.call("s", "m", b"", 0.0)
    client.call("s", "m", b"", 0.0)
    assert [reply.status.code for reply in client.close()] == [Code.UNAVAILABLE] * 2
    assert client.close() == []


def test_a_reply_that_cannot_be_decoded_fails_its_call():
    client = ClientConnection()
    client.call("s", "m", b"", 0.0)
    (reply,) = client.receive_data(Frame(1, MessageType.RESPONSE, 0, b"\xff").encode())
    assert reply.status.code == Code.INTERNAL


def test_a_status_with_a_code_nobody_named_is_kept():
    client = ClientConnection()
    client.call("s", "m", b"", 0.0)
    data = encode_response(Response(Status(1234, "odd")))
    (reply,) = client.receive_data(Frame(1, MessageType.RESPONSE, 0, data).encode())
    assert reply.status == Status(1234, "odd")


def test_calls_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_OPEN_CALLS", 2)
    server = ServerConnection()
    *accepted, refused = server.receive_data(b"".join(request_frame(i) for i in (1, 3, 5)), 0.0)
    assert [call.stream_id for call in accepted] == [1, 3]
    assert refused.status.code == Code.RESOURCE_EXHAUSTED


def test_stream_ids_run_out():
    client = ClientConnection()
    client._next_stream_id = 0xFFFFFFFF
    assert client.call("s", "m", b"", 0.0) == 0xFFFFFFFF
    with pytest.raises(LocalProtocolError, match="used up"):
        client.call("s", "m", b"", 0.0)


def test_a_lost_stream_says_so():
    with pytest.raises(RemoteProtocolError, match="the stream is lost"):
        ServerConnection().receive_data(b"\xff" * 10, 0.0)
