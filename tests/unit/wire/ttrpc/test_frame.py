"""Frames: cut the same way however the bytes arrive, and bounded."""

import pytest

from nri_plugin.model.errors import RemoteProtocolError
from nri_plugin.wire.ttrpc.frame import HEADER, Frame, FrameReader, MessageType, OversizeFrame

FRAMES = [
    Frame(1, MessageType.REQUEST, 0, b""),
    Frame(3, MessageType.REQUEST, 2, b"x"),
    Frame(1, MessageType.RESPONSE, 0, b"y" * 5000),
    Frame(5, MessageType.DATA, 5, b""),
    Frame(0xFFFFFFFF, 200, 255, b"unknown type"),
]
STREAM = b"".join(frame.encode() for frame in FRAMES)


def test_header_is_length_stream_type_flags_big_endian():
    assert (
        Frame(3, MessageType.RESPONSE, 1, b"abc").encode()
        == bytes.fromhex("00000003 00000003 02 01") + b"abc"
    )


@pytest.mark.parametrize("chunk", [1, 2, 7, 9, 10, 11, 4096, len(STREAM)])
def test_frames_come_out_whole_for_every_chunk_size(chunk):
    reader = FrameReader()
    read = []
    for start in range(0, len(STREAM), chunk):
        read += reader.feed(STREAM[start : start + chunk])
    assert read == FRAMES
    assert not reader.is_incomplete
    assert reader.frames_read == len(FRAMES)


def test_trailing_bytes_belong_to_the_next_frame():
    reader = FrameReader()
    assert reader.feed(FRAMES[2].encode() + FRAMES[1].encode()[:5]) == [FRAMES[2]]
    assert reader.is_incomplete
    assert reader.feed(FRAMES[1].encode()[5:]) == [FRAMES[1]]


def test_a_frame_of_exactly_the_limit_is_accepted():
    reader = FrameReader(max_data=100)
    frame = Frame(1, 1, 0, b"z" * 100)
    assert reader.feed(frame.encode()) == [frame]


@pytest.mark.parametrize("chunk", [1, 13, 10_000])
def test_a_longer_frame_is_reported_at_its_header_and_skipped(chunk):
    reader = FrameReader(max_data=100)
    after = Frame(3, 1, 0, b"after")
    stream = Frame(1, 1, 0, b"z" * 101).encode() + after.encode()
    read = []
    for start in range(0, len(stream), chunk):
        read += reader.feed(stream[start : start + chunk])
    assert read == [OversizeFrame(1, 1, 101), after]


def test_a_skipped_frame_holds_no_memory_and_counts_as_incomplete():
    reader = FrameReader(max_data=100, max_skip=10_000)
    reader.feed(HEADER.pack(5000, 1, 1, 0) + b"z" * 4000)
    assert reader.is_incomplete
    assert len(reader._buffer) == 0


def test_a_length_that_cannot_be_meant_is_refused():
    with pytest.raises(RemoteProtocolError, match="4294967295 bytes, at most 16777216"):
        FrameReader().feed(b"\xff\xff\xff\xff" + b"\0" * 6)


def test_memoryviews_are_copied_so_that_the_buffer_may_be_reused():
    buffer = bytearray(FRAMES[2].encode())
    reader = FrameReader()
    (frame,) = reader.feed(memoryview(buffer))
    buffer[:] = b"\0" * len(buffer)
    assert frame == FRAMES[2]
