"""The multiplexer: what leaves fits every known reader, what comes is cut however it arrives."""

import pytest

from nri_plugin.model.errors import RemoteProtocolError
from nri_plugin.wire.nri.mux import HEADER, MAX_PAYLOAD_BYTES, MuxReader, mux_frames


@pytest.mark.parametrize(
    ("frame_bytes", "parts"),
    [
        (0, [0]),
        (10, [10]),
        (4095, [4095]),
        (4096, [4096]),
        (4097, [4096, 1]),
        (8193, [4096, 4097]),
        (4_194_314, [4096, 4_190_218]),
    ],
)
def test_a_frame_leaves_as_its_first_4096_bytes_and_one_rest(frame_bytes, parts):
    frame = bytes(range(256)) * (frame_bytes // 256) + b"x" * (frame_bytes % 256)
    sent = mux_frames(2, frame)
    assert [HEADER.unpack(part[:8]) for part in sent] == [(2, length) for length in parts]
    assert b"".join(part[8:] for part in sent) == frame


@pytest.mark.parametrize("chunk", [1, 3, 8, 9, 1000])
def test_pieces_join_to_each_connections_bytes(chunk):
    stream = (
        HEADER.pack(1, 3) + b"abc" + HEADER.pack(7, 0) + HEADER.pack(2, 2) + b"xy" + HEADER.pack(1, 1) + b"d"
    )
    reader, joined = MuxReader(), {}
    for start in range(0, len(stream), chunk):
        for connection_id, part in reader.feed(stream[start : start + chunk]):
            joined[connection_id] = joined.get(connection_id, b"") + bytes(part)
    assert joined == {1: b"abcd", 2: b"xy"}
    assert not reader.is_incomplete


@pytest.mark.parametrize("missing", [1, 2, 5, 9])
def test_a_cut_stream_is_incomplete(missing):
    reader = MuxReader()
    reader.feed((HEADER.pack(1, 3) + b"abc")[:-missing])
    assert reader.is_incomplete


def test_payload_is_passed_on_before_its_frame_is_whole():
    reader = MuxReader()
    assert [bytes(part) for _, part in reader.feed(HEADER.pack(1, MAX_PAYLOAD_BYTES) + b"first")] == [
        b"first"
    ]


def test_a_hostile_length_is_refused_at_its_header():
    with pytest.raises(RemoteProtocolError, match="mux frame of 4294967295 bytes, at most 16777216"):
        MuxReader().feed(HEADER.pack(1, 0xFFFFFFFF))


def test_the_first_byte_over_the_limit_is_refused():
    MuxReader().feed(HEADER.pack(1, MAX_PAYLOAD_BYTES))
    with pytest.raises(RemoteProtocolError):
        MuxReader().feed(HEADER.pack(1, MAX_PAYLOAD_BYTES + 1))
