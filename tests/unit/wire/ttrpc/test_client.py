"""The end that calls, in front of good and bad servers."""

import pytest

from nri_plugin.model.errors import LocalProtocolError
from nri_plugin.wire.ttrpc.connection import ClientConnection
from nri_plugin.wire.ttrpc.frame import Code, Frame, MessageType, ResponseEnvelope, RPCStatus, encode_response


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


def test_a_reply_that_cannot_be_decoded_fails_its_call():
    client = ClientConnection()
    client.call("s", "m", b"", 0.0)
    (reply,) = client.receive_data(Frame(1, MessageType.RESPONSE, 0, b"\xff").encode())
    assert reply.status.code == Code.INTERNAL


def test_a_status_with_a_code_nobody_named_is_kept():
    client = ClientConnection()
    client.call("s", "m", b"", 0.0)
    data = encode_response(ResponseEnvelope(RPCStatus(1234, "odd")))
    (reply,) = client.receive_data(Frame(1, MessageType.RESPONSE, 0, data).encode())
    assert reply.status == RPCStatus(1234, "odd")


def test_stream_ids_run_out():
    client = ClientConnection()
    client._next_stream_id = 0xFFFFFFFF
    assert client.call("s", "m", b"", 0.0) == 0xFFFFFFFF
    with pytest.raises(LocalProtocolError, match="used up"):
        client.call("s", "m", b"", 0.0)
