import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_plugin.checkpoint.file import CheckpointFile, Origin
from nri_plugin.checkpoint.format import Encoder, decode
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model import bounds
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from tests.property.checkpoint_states import drawn, states

facts = st.none() | st.builds(
    NodeFacts,
    online=drawn(CPUSet),
    reserved=drawn(CPUSet),
    numa_nodes=st.dictionaries(st.integers(0, 70), drawn(CPUSet), max_size=3).map(
        lambda by_node: tuple(sorted(by_node.items()))
    ),
    memory_nodes=drawn(NodeMask),
)


def document(state: State, generation: int = 1, node: NodeFacts | None = None) -> bytes:
    return b"".join(Encoder().encode(state, generation, node))


@given(states, st.integers(0, 1 << 40), facts)
def test_what_is_encoded_is_decoded(state: State, generation: int, node: NodeFacts | None) -> None:
    found = decode(document(state, generation, node))
    assert found.state == state
    assert (found.generation, found.facts) == (generation, node)


foreign = st.dictionaries(
    st.sampled_from([bounds.OWN_ANNOTATIONS, "", "other/"]).flatmap(
        lambda prefix: (
            st.text("ab", max_size=3).map(prefix.__add__)
            | st.integers(1, 2 * bounds.ANNOTATION_KEY_CHARS).map(lambda length: prefix + "k" * length)
        )
    ),
    st.text("ab", max_size=3) | st.integers(1, 1000).map("9".__mul__),
    max_size=2 * bounds.ANNOTATIONS,
)


@given(states, foreign)
def test_of_older_checkpoints_only_bounded_annotations_are_kept(
    state: State, annotations: dict[str, str]
) -> None:
    """A release without bounds wrote all annotations of a pod, in any order and of any length."""
    written = {uid: replace(pod, annotations=tuple(annotations.items())) for uid, pod in state.pods.items()}
    kept = tuple(bounds.own_annotations(annotations)[0].items())
    bounded = {uid: replace(pod, annotations=kept) for uid, pod in state.pods.items()}
    found = decode(document(replace(state, pods=written))).state
    assert found == replace(state, pods=bounded)
    assert decode(document(found)).state == found


@given(states)
def test_order_of_records_survives(state: State) -> None:
    found = decode(document(state)).state
    assert list(found.containers) == list(state.containers)
    assert list(found.allocations) == list(state.allocations)


@given(states)
def test_document_is_plain_json_with_one_record_a_line(state: State) -> None:
    data = document(state)
    parsed = json.loads(data)
    assert len(parsed["containers"]) == len(state.containers)
    body, _, _ = data.rpartition(b',\n"checksum"')
    assert parsed["checksum"] == f"crc32:{zlib.crc32(body):08x}"
    for line in data.split(b'"containers":[\n')[1].split(b"\n],")[0].splitlines():
        json.loads(line.rstrip(b",") or b"{}")


@given(st.lists(states, max_size=3))
def test_remembered_lines_never_change_the_document(sequence: list[State]) -> None:
    encoder = Encoder()
    for generation, state in enumerate(sequence):
        assert b"".join(encoder.encode(state, generation, None)) == document(state, generation)


@given(states, st.data())
def test_one_flipped_bit_anywhere_is_noticed(state: State, data: st.DataObject) -> None:
    sound = document(state)
    bit = data.draw(st.integers(0, len(sound) * 8 - 1))
    damaged = bytearray(sound)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match="it "):
        decode(bytes(damaged))


@given(states, st.data())
def test_any_truncation_is_noticed(state: State, data: st.DataObject) -> None:
    sound = document(state)
    with pytest.raises(ValueError, match="it "):
        decode(sound[: data.draw(st.integers(0, len(sound) - 1))])


@given(
    states,
    st.binary(min_size=1, max_size=20)
    .map(lambda rest: rest.replace(b"\n", b"") or b"x")
    .flatmap(lambda rest: st.sampled_from((rest, rest + b"\n"))),
)
def test_anything_after_the_end_is_damage_or_a_record_that_was_being_written(
    state: State, rest: bytes
) -> None:
    if rest.rstrip(b"\n") == rest:
        read = decode(document(state) + rest)
        assert read.is_cut
        assert read.state == state
    else:
        with pytest.raises(ValueError, match="it "):
            decode(document(state) + rest)


@given(st.lists(states, min_size=1, max_size=3))
def test_file_holds_the_last_state_and_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, sequence: list[State]
) -> None:
    directory = tmp_path_factory.mktemp("state")
    file = CheckpointFile(str(directory), durable=False)
    for state in sequence:
        file.save(state)
    assert CheckpointFile(str(directory)).load().state == sequence[-1]
    Path(file.path).write_bytes(b"")
    fallen_back = CheckpointFile(str(directory)).load()
    if len(sequence) > 1:
        assert (fallen_back.state, fallen_back.origin) == (sequence[-2], Origin.PREVIOUS)
    else:
        assert (fallen_back.state, fallen_back.origin) == (None, Origin.NONE)
