"""Any payload in front of every method. Allowed: RemoteProtocolError when read, LocalProtocolError when written."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import codec, events
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources

METHODS = sorted(
    {*pb.DESCRIPTOR.services_by_name["Plugin"].methods_by_name} - {"ValidateContainerAdjustment"}
)


def field(number, wire_type, body):
    return bytes([number << 3 | wire_type]) + body


@st.composite
def messages(draw, depth=3):
    """Bytes that often are messages: known field numbers, any wire type, nested."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        number = draw(st.integers(1, 15))
        if draw(st.booleans()):
            body = draw(messages(depth=depth - 1)) if depth else draw(st.binary(max_size=8))
            parts.append(field(number, 2, bytes([min(len(body), 127)]) + body))
        else:
            wire_type = draw(st.sampled_from([0, 1, 5, 3, 4, 7]))
            parts.append(field(number, wire_type, draw(st.binary(max_size=10))))
    return b"".join(parts)


@pytest.mark.parametrize("method", METHODS)
@given(payload=st.one_of(st.binary(max_size=200), messages()))
def test_reading_any_payload(method, payload):
    with contextlib.suppress(RemoteProtocolError):
        assert codec.decode_request(method, payload) is not None


anything = st.one_of(st.none(), st.integers(-(1 << 70), 1 << 70))
texts = st.text(st.characters(), max_size=5)
resources = st.builds(
    Resources,
    cpu_shares=anything,
    cpu_quota_us=anything,
    cpu_period_us=anything,
    cpus=texts,
    mems=texts,
    memory_limit_bytes=anything,
    hugepage_limits=st.lists(st.tuples(texts, st.integers(-1, 1 << 65)), max_size=2).map(tuple),
)
updates = st.lists(
    st.builds(ContainerUpdate, st.sampled_from(["", "c1", "c2", "c3"]), resources), max_size=3
).map(tuple)


@given(st.one_of(st.none(), resources), updates, st.dictionaries(texts, texts, max_size=2))
def test_writing_any_answer(adjusted, others, texts_by_key):
    event = events.CreateContainer(Pod("p"), Container("c1"))
    response = events.CreateContainerResponse(adjusted, others, texts_by_key)
    try:
        data = codec.encode_response(event, response)
    except LocalProtocolError:
        return
    ids = [update.container_id for update in pb.CreateContainerResponse.FromString(data).update]
    assert len(set(ids)) == len(ids)
    assert not set(ids) & {"", "c1"}
