"""Whatever lies where the checkpoint should be: the errors listed here and no others."""

import contextlib
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nri_plugin.checkpoint.file import CheckpointFile, Origin, read_checkpoint
from nri_plugin.checkpoint.format import VERSION, Encoder, decode, last_checksum
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.state import State
from tests.property.checkpoint_states import states

ALLOWED_FROM_BYTES = (ValueError,)
ALLOWED_FROM_FILE = (CheckpointError,)

SOUND = b"".join(Encoder().encode(State(), 1, None))


def sealed(body: bytes) -> bytes:
    """`body` with the checksum it would have to have."""
    return body + b',\n"checksum":"crc32:%08x"}\n' % zlib.crc32(body)


def headed(rest: bytes) -> bytes:
    return sealed(b'{"format":"nri-pin checkpoint","version":%d,' % VERSION + rest)


def decode_or_refuse(data: bytes) -> None:
    with contextlib.suppress(*ALLOWED_FROM_BYTES):
        decode(data)


@given(st.binary(max_size=300))
@example(b"")
@example(b"{}")
@example(SOUND[:-1])
def test_bytes_are_decoded_or_refused(data: bytes) -> None:
    decode_or_refuse(data)


@given(st.binary(max_size=300))
@example(b'"generation":1' + b"[" * 100_000)
@example(b'"writer":"\xff","generation":1')
@example(b'"generation":' + b"9" * 5000)
@example(b'"generation":1e999')
def test_bytes_with_a_true_checksum_are_decoded_or_refused(rest: bytes) -> None:
    decode_or_refuse(headed(rest))


@given(
    st.binary(max_size=300)
    | st.from_regex(rb'"removed":\{"(pods|containers)":\[[0-9"]{0,3}\]\}', fullmatch=True)
)
@example(b'"removed":{"pods":["x"]}')
@example(b'"pods":[{"uid":"u","sandbox_id":"s","qos":"Guaranteed","affinity":"3-1"}]')
@example(b'"allocations":[' + b"[" * 100_000)
def test_records_with_a_true_checksum_are_decoded_or_refused(rest: bytes) -> None:
    document = b"".join(Encoder().encode(State(), 1, None))
    line = b'{"generation":2,' + rest.replace(b"\n", b"")
    decode_or_refuse(
        document + line + b',"checksum":"crc32:%08x"}\n' % zlib.crc32(line, last_checksum(document))
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside `value`."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path, *(found for key, inner in items for found in paths_in(inner, (*path, key)))]


@given(states, st.data())
def test_document_with_one_value_replaced_is_decoded_or_refused(state: State, data: st.DataObject) -> None:
    document = json.loads(b"".join(Encoder().encode(state, 1, None)))
    del document["checksum"]
    *path, last = data.draw(st.sampled_from(paths_in(document)[1:]))
    place = document
    for key in path:
        place = place[key]
    place[last] = data.draw(json_values | st.sampled_from(["0-99999999", "3-1", "0-", "65536", "1,,2"]))
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    decode_or_refuse(sealed(text.encode()[:-1]))


@given(st.binary(max_size=200) | states.map(lambda state: b"".join(Encoder().encode(state, 1, None))[:-9]))
def test_load_never_fails_and_never_loses_the_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("state") / "state.json"
    path.write_bytes(content)
    found = CheckpointFile(str(path.parent)).load()
    assert (found.state, found.origin) == (None, Origin.NONE)
    assert found.reason
    assert found.kept_aside is not None
    assert Path(found.kept_aside).read_bytes() == content


@given(st.binary(max_size=200))
def test_reading_raises_nothing_but_the_allowed(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("state") / "state.json"
    path.write_bytes(content)
    with pytest.raises(ALLOWED_FROM_FILE, match="cannot be used"):
        read_checkpoint(str(path))
