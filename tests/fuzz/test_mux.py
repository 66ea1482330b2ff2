"""Any bytes at all in front of the mux reader. Allowed: RemoteProtocolError."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import RemoteProtocolError
from nri_plugin.wire.nri.mux import HEADER, MuxReader
from tests.lab.runtime.session import GoTrunkReader

frames = st.builds(
    lambda connection, length, data: HEADER.pack(connection, length) + data,
    st.one_of(st.integers(0, 3), st.integers(0, 0xFFFFFFFF)),
    st.one_of(st.integers(0, 40), st.integers(0, 0xFFFFFFFF)),
    st.binary(max_size=40),
)
hostile = st.lists(st.one_of(st.binary(max_size=64), frames), max_size=20)


@given(hostile)
def test_a_mux_reader_survives_and_holds_a_header_at_most(chunks):
    reader = MuxReader()
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            assert sum(len(part) for _, part in reader.feed(chunk)) <= len(chunk)
            assert len(reader._header) < 8


@given(hostile)
def test_the_simulated_runtime_survives(chunks):
    reader = GoTrunkReader()
    with contextlib.suppress(RemoteProtocolError):
        for chunk in chunks:
            reader.feed(chunk)
