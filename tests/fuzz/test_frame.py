"""Any bytes at all in front of the frame reader. Allowed: RemoteProtocolError."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import RemoteProtocolError
from nri_plugin.wire.ttrpc.connection import ClientConnection, ServerConnection
from nri_plugin.wire.ttrpc.frame import HEADER, FrameReader

hostile = st.lists(
    st.one_of(
        st.binary(max_size=64),
        st.builds(
            lambda length, stream, kind, flags, data: HEADER.pack(length, stream, kind, flags) + data,
            st.one_of(st.integers(0, 40), st.integers(0, 0xFFFFFFFF)),
            st.one_of(st.integers(0, 9), st.integers(0, 0xFFFFFFFF)),
            st.integers(0, 255),
            st.integers(0, 255),
            st.binary(max_size=40),
        ),
    ),
    max_size=20,
)


@given(hostile)
def test_a_frame_reader_survives_and_stays_small(chunks):
    reader = FrameReader(max_data=1000, max_skip=5000)
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            reader.feed(chunk)
            assert len(reader._buffer) <= 1010


@given(hostile)
def test_both_ends_of_a_connection_survive(chunks):
    server, client = ServerConnection(), ClientConnection()
    client.call("s", "m", b"", 0.0)
    for end in (lambda data: server.receive_data(data, 0.0), client.receive_data):
        with contextlib.suppress(RemoteProtocolError):
            for chunk in chunks:
                end(chunk)
    server.data_to_send()
