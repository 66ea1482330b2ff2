"""However a recording was damaged, it is read as far as it makes sense, and what does not is named."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.model.errors import HostError
from nri_plugin.recording.reader import read
from tests.unit.recording.test_recording import day

WHOLE = day() + day()
EDITS = st.lists(
    st.tuples(
        st.integers(0, len(WHOLE) - 1),
        st.integers(0, 30),
        st.binary(max_size=4) | st.sampled_from([b"\n", b'"', b"9", b"-", b",", b"0-9", b"null", b"{}"]),
    ),
    min_size=1,
    max_size=6,
)


@given(edits=EDITS)
@settings(max_examples=300, deadline=None)
def test_any_damage_is_survived(edits: list[tuple[int, int, bytes]]) -> None:
    data = WHOLE
    for where, length, put in edits:
        data = data[:where] + put + data[where + length :]
    with TemporaryDirectory() as folder:
        path = Path(folder, "tape")
        path.write_bytes(data)
        try:
            recording = read(str(path))
        except HostError:
            return
        moments, entries = list(recording.moments()), list(recording.entries())
        assert len(moments) <= len(entries)
        assert len(moments) == 12 or recording.problems or data.count(b"\n") != WHOLE.count(b"\n")
