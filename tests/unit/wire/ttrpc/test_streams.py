"""Streaming calls: every shape, and every way to get one wrong."""

import pytest

from nri_plugin.model.errors import LocalProtocolError
from nri_plugin.wire.ttrpc.connection import (
    Call,
    CallRefused,
    ClientConnection,
    Reply,
    ServerConnection,
    StreamEnd,
    StreamMessage,
)
from nri_plugin.wire.ttrpc.frame import (
    Code,
    Flags,
    Frame,
    FrameReader,
    MessageType,
    RequestEnvelope,
    RPCStatus,
    encode_request,
)


class Pair:
    """A client and a server that take streams."""

    def __init__(self):
        self.client, self.server = ClientConnection(), ServerConnection(allows_streams=True)

    def to_server(self):
        return self.server.receive_data(self.client.data_to_send(), 0.0)

    def to_client(self):
        return self.client.receive_data(self.server.data_to_send())


@pytest.fixture
def pair():
    return Pair()


def flags_of(data):
    return [(frame.type, frame.flags, frame.data) for frame in FrameReader().feed(data)]


def test_both_sides_send(pair):
    stream = pair.client.open_stream("s", "Chat", b"", 0.0)
    assert pair.to_server() == [Call(1, "s", "Chat", b"", None, (), is_streaming=True, has_more=True)]
    pair.client.send(stream, b"hello")
    pair.client.send(stream, b"")
    assert pair.to_server() == [StreamMessage(1, b"hello"), StreamMessage(1, b"")]
    pair.server.send(1, b"welcome")
    assert pair.to_client() == [StreamMessage(1, b"welcome")]
    pair.client.end(stream)
    assert pair.to_server() == [StreamEnd(1)]
    pair.server.send(1, b"bye")
    pair.server.end(1)
    assert pair.to_client() == [StreamMessage(1, b"bye"), StreamEnd(1)]
    assert not pair.server.is_open(1)
    assert pair.client.close() == []


def test_only_the_client_sends(pair):
    stream = pair.client.open_stream("s", "Upload", b"first", 0.0)
    pair.client.send(stream, b"second")
    pair.client.end(stream)
    call, message, end = pair.to_server()
    assert (call.payload, call.has_more) == (b"first", True)
    assert (message, end) == (StreamMessage(1, b"second"), StreamEnd(1))
    pair.server.reply(1, b"sum")
    assert pair.to_client() == [Reply(1, None, b"sum")]


def test_only_the_server_sends(pair):
    pair.client.open_stream("s", "Watch", b"what", 0.0, sends=False)
    (call,) = pair.to_server()
    assert (call.is_streaming, call.has_more) == (True, False)
    pair.server.send(1, b"news")
    pair.server.end(1)
    assert pair.to_client() == [StreamMessage(1, b"news"), StreamEnd(1)]


def test_flags_on_the_wire(pair):
    pair.client.open_stream("s", "m", b"", 0.0)
    pair.client.end(1)
    pair.client.open_stream("s", "m", b"", 0.0, sends=False)
    pair.client.call("s", "m", b"", 0.0)
    flags = [flag for _, flag, _ in flags_of(pair.client.data_to_send())]
    assert flags == [Flags.REMOTE_OPEN, Flags.REMOTE_CLOSED | Flags.NO_DATA, Flags.REMOTE_CLOSED, 0]


def test_the_server_may_end_with_its_last_message(pair):
    pair.client.open_stream("s", "m", b"", 0.0)
    last = Frame(1, MessageType.DATA, Flags.REMOTE_CLOSED, b"last").encode()
    assert pair.client.receive_data(last) == [StreamMessage(1, b"last"), StreamEnd(1)]


def test_an_error_ends_a_stream_of_any_shape(pair):
    pair.client.open_stream("s", "m", b"", 0.0)
    pair.to_server()
    pair.server.send(1, b"one")
    pair.server.fail(1, RPCStatus(Code.ABORTED, "no"))
    assert pair.to_client() == [StreamMessage(1, b"one"), Reply(1, RPCStatus(Code.ABORTED, "no"))]


def data(flags, payload=b"", stream_id=1):
    return Frame(stream_id, MessageType.DATA, flags, payload).encode()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([data(Flags.REMOTE_CLOSED, b"x")], "ended with data"),
        ([data(Flags.REMOTE_CLOSED)], "ended with data"),
        ([data(Flags.REMOTE_CLOSED | Flags.NO_DATA, b"x")], "ended with data"),
        ([data(Flags.REMOTE_CLOSED | Flags.NO_DATA), data(0, b"more")], "no longer active"),
        ([data(0, b"x", stream_id=7)], "no longer active"),
    ],
)
def test_what_a_client_gets_wrong_is_invalid(pair, frames, why):
    pair.client.open_stream("s", "m", b"", 0.0)
    pair.to_server()
    *_, refused = pair.server.receive_data(b"".join(frames), 0.0)
    assert isinstance(refused, CallRefused)
    assert refused.status.code == Code.INVALID_ARGUMENT
    assert why in refused.status.message
    assert not pair.server.is_open(refused.stream_id)


def test_data_for_a_plain_call_ends_it(pair):
    pair.client.call("s", "m", b"", 0.0)
    pair.to_server()
    (refused,) = pair.server.receive_data(data(0, b"x"), 0.0)
    assert refused.status.code == Code.INVALID_ARGUMENT
    (reply,) = pair.to_client()
    assert reply.status == refused.status


def test_a_frame_without_message_and_without_end_is_nothing(pair):
    pair.client.open_stream("s", "m", b"", 0.0)
    pair.to_server()
    assert pair.server.receive_data(data(Flags.NO_DATA), 0.0) == []


def test_streams_are_unimplemented_where_they_are_not_allowed():
    server = ServerConnection()
    request = Frame(
        1, MessageType.REQUEST, Flags.REMOTE_OPEN, encode_request(RequestEnvelope("s", "m"))
    ).encode()
    (refused,) = server.receive_data(request, 0.0)
    assert refused.status == RPCStatus(Code.UNIMPLEMENTED, "streaming calls are not served here")


def test_messages_need_an_open_stream(pair):
    plain = pair.client.call("s", "m", b"", 0.0)
    watch = pair.client.open_stream("s", "m", b"", 0.0, sends=False)
    pair.to_server()
    for stream in (plain, watch, 99):
        with pytest.raises(LocalProtocolError, match="not open for our messages"):
            pair.client.send(stream, b"x")
        with pytest.raises(LocalProtocolError, match="not open for our messages"):
            pair.client.end(stream)
    for stream in (plain, 99):
        with pytest.raises(LocalProtocolError, match="a plain call takes one reply"):
            pair.server.send(stream, b"x")
        with pytest.raises(LocalProtocolError, match="a plain call takes one reply"):
            pair.server.end(stream)


def test_a_client_cannot_send_after_its_end(pair):
    stream = pair.client.open_stream("s", "m", b"", 0.0)
    pair.client.end(stream)
    with pytest.raises(LocalProtocolError):
        pair.client.send(stream, b"x")


def test_a_message_that_is_too_long_is_refused_and_the_stream_lives(pair):
    stream = pair.client.open_stream("s", "m", b"", 0.0)
    with pytest.raises(LocalProtocolError, match="over the limit of 4194304"):
        pair.client.send(stream, b"x" * ((4 << 20) + 1))
    pair.client.send(stream, b"x" * (4 << 20))
    *_, message = pair.to_server()
    assert len(message.payload) == 4 << 20


def test_an_oversize_message_ends_the_call_at_either_end():
    client, server = ClientConnection(max_receive=100), ServerConnection(max_receive=100, allows_streams=True)
    client.open_stream("s", "m", b"", 0.0)
    server.receive_data(client.data_to_send(), 0.0)
    long = data(0, b"x" * 101)
    (refused,) = server.receive_data(long, 0.0)
    (reply,) = client.receive_data(long)
    assert refused.status.code == reply.status.code == Code.RESOURCE_EXHAUSTED
    assert not server.is_open(1)
    assert client.close() == []


def test_messages_for_a_plain_call_or_nobody_are_dropped(pair):
    pair.client.call("s", "m", b"", 0.0)
    assert pair.client.receive_data(data(0, b"x") + data(0, b"x", stream_id=9)) == []


def test_a_streams_deadline_ends_it_like_any_call(pair):
    pair.client.open_stream("s", "m", b"", 0.0, timeout=1.0)
    assert pair.client.next_deadline() == 1.0
    (reply,) = pair.client.expire(1.0)
    assert reply.status.code == Code.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", [-1.0, 0.0, 1e300, float("inf")])
def test_any_timeout_fits_the_wire(pair, timeout):
    pair.client.call("s", "m", b"", 0.0, timeout=timeout)
    (call,) = pair.to_server()
    assert call.deadline > 0
