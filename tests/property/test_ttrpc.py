"""Laws of frames and connections: how bytes are cut never matters, and a call gets exactly one end."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.wire.ttrpc.connection import ClientConnection, ServerConnection
from nri_plugin.wire.ttrpc.frame import (
    Code,
    Detail,
    Frame,
    FrameReader,
    RequestEnvelope,
    ResponseEnvelope,
    RPCStatus,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

texts = st.text(max_size=10)
frames = st.builds(
    Frame, st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 255), st.binary(max_size=300)
)


def cut(data, cuts):
    """Splits data at the given places, wherever they fall."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_survive_any_cutting(sent, cuts):
    reader = FrameReader()
    read = [
        frame
        for chunk in cut(b"".join(frame.encode() for frame in sent), cuts)
        for frame in reader.feed(chunk)
    ]
    assert read == sent
    assert not reader.is_incomplete


@given(
    st.builds(
        RequestEnvelope,
        texts,
        texts,
        st.binary(max_size=50),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    )
)
def test_requests_round_trip(request):
    assert decode_request(encode_request(request)) == request


details = st.lists(st.builds(Detail, texts, st.binary(max_size=20)), max_size=2).map(tuple)


@given(st.builds(RPCStatus, st.integers(1, 1 << 30), texts, details))
def test_statuses_round_trip(status):
    assert decode_response(encode_response(ResponseEnvelope(status))).status == status


@given(st.binary(max_size=100))
def test_payloads_round_trip(payload):
    assert decode_response(encode_response(ResponseEnvelope(None, payload))) == ResponseEnvelope(
        None, payload
    )


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.booleans()), max_size=10),
    st.lists(st.integers(0, 10_000), max_size=10),
    st.randoms(use_true_random=False),
)
def test_every_call_gets_its_own_end_once_in_any_order(calls, cuts, random):
    client, server = ClientConnection(), ServerConnection()
    expected = {}
    for payload, succeeds in calls:
        expected[client.call("s", "m", payload, 0.0)] = payload if succeeds else None
    seen = [call for chunk in cut(client.data_to_send(), cuts) for call in server.receive_data(chunk, 0.0)]
    random.shuffle(seen)
    for call in seen:
        if expected[call.stream_id] is None:
            server.fail(call.stream_id, RPCStatus(Code.ABORTED, "no"))
        else:
            server.reply(call.stream_id, call.payload)
    ends = [reply for chunk in cut(server.data_to_send(), cuts) for reply in client.receive_data(chunk)]
    assert [reply.stream_id for reply in ends] == [call.stream_id for call in seen]
    assert {reply.stream_id: reply.payload if reply.status is None else None for reply in ends} == expected
