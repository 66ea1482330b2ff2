"""The end that is called, in front of good and bad clients."""

import pytest

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.ttrpc import connection as server_module
from nri_plugin.wire.ttrpc.connection import Call, CallRefused, ServerConnection
from nri_plugin.wire.ttrpc.frame import (
    Code,
    Frame,
    FrameReader,
    MessageType,
    RequestEnvelope,
    RPCStatus,
    decode_response,
    encode_request,
)


def request_frame(stream_id, timeout_ns=0, flags=0):
    return Frame(
        stream_id, MessageType.REQUEST, flags, encode_request(RequestEnvelope("s", "m", b"p", timeout_ns))
    ).encode()


def statuses(server):
    frames = FrameReader().feed(server.data_to_send())
    return [(frame.stream_id, decode_response(frame.data).status.code) for frame in frames]


def test_ids_may_skip_values():
    server = ServerConnection()
    calls = server.receive_data(request_frame(3) + request_frame(9), 0.0)
    assert [call.stream_id for call in calls] == [3, 9]


@pytest.mark.parametrize("stream_id", [0, 2, 1000])
def test_an_even_id_is_invalid(stream_id):
    server = ServerConnection()
    (refused,) = server.receive_data(request_frame(stream_id), 0.0)
    assert isinstance(refused, CallRefused)
    assert statuses(server) == [(stream_id, Code.INVALID_ARGUMENT)]


@pytest.mark.parametrize("second", [5, 3, 1])
def test_an_id_that_is_not_above_the_last_is_invalid(second):
    server = ServerConnection()
    server.receive_data(request_frame(5), 0.0)
    (refused,) = server.receive_data(request_frame(second), 0.0)
    assert refused == CallRefused(second, RPCStatus(Code.INVALID_ARGUMENT, refused.status.message))
    assert server.is_open(5)


def test_an_undecodable_request_is_invalid_and_the_connection_lives_on():
    server = ServerConnection()
    bad = Frame(1, MessageType.REQUEST, 0, b"\xff\xff").encode()
    refused, call = server.receive_data(bad + request_frame(3), 0.0)
    assert isinstance(refused, CallRefused)
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


def test_a_reply_can_be_given_once():
    server = ServerConnection()
    server.receive_data(request_frame(1), 0.0)
    server.reply(1)
    with pytest.raises(LocalProtocolError, match="no call waits on stream 1"):
        server.reply(1)
    with pytest.raises(LocalProtocolError, match="no call waits on stream 1"):
        server.fail(1, RPCStatus(2, ""))


def test_failing_with_ok_is_refused_and_the_call_still_waits():
    server = ServerConnection()
    server.receive_data(request_frame(1), 0.0)
    with pytest.raises(LocalProtocolError, match="status OK"):
        server.fail(1, RPCStatus(Code.OK))
    assert server.is_open(1)


def test_no_timeout_is_no_deadline():
    (call,) = ServerConnection().receive_data(request_frame(1, timeout_ns=0), 5.0)
    assert call.deadline is None


def test_calls_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr(server_module, "MAX_OPEN_CALLS", 2)
    server = ServerConnection()
    *accepted, refused = server.receive_data(b"".join(request_frame(i) for i in (1, 3, 5)), 0.0)
    assert [call.stream_id for call in accepted] == [1, 3]
    assert refused.status.code == Code.RESOURCE_EXHAUSTED


def test_a_lost_stream_says_so():
    with pytest.raises(RemoteProtocolError, match="the stream is lost"):
        ServerConnection().receive_data(b"\xff" * 10, 0.0)
