"""Whatever a plugin may put into an adjustment arrives as it was, and so does all of a pod and container."""

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.errors import LocalProtocolError
from nri_plugin.wire.nri import codec, events, tables
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.decode import DETAILS
from nri_plugin.wire.nri.events import Adjustment, check, is_removal
from nri_plugin.wire.nri.messages import Container, FieldOwners, Pod
from tests.lab.runtime import codec as runtime_codec
from tests.lab.runtime.adjusting import Ownership, adjusted

CREATE = events.CreateContainer(Pod("p"), Container("new"))
texts = st.text(max_size=4)
by_type = {
    FieldDescriptor.CPPTYPE_STRING: texts | st.sampled_from(["k", "-k"]),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 9),  # some of them newer than we are
}


def is_map(field):
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def contents(field):
    """What one field of a message may hold, as the message's constructor takes it."""
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return st.dictionaries(by_type[FieldDescriptor.CPPTYPE_STRING], one(value), max_size=2)
    return st.lists(one(field), max_size=2) if field.is_repeated else one(field)


def one(field):
    return by_type[field.cpp_type] if field.message_type is None else trees(field.message_type)


def trees(descriptor):
    fields = {field.name: st.deferred(lambda field=field: contents(field)) for field in descriptor.fields}
    return st.fixed_dictionaries({}, optional=fields)


def is_legal(adjustment):
    try:
        check(adjustment)
    except LocalProtocolError:
        return False
    return True


def messages(kind):
    return trees(kind.DESCRIPTOR).map(lambda tree: kind(**tree))


any_adjustments = messages(pb.ContainerAdjustment).map(tables.ADJUSTMENT.read)
adjustments = any_adjustments.filter(is_legal)
containers = messages(pb.Container).map(DETAILS.container)
pods = messages(pb.PodSandbox).map(DETAILS.pod)
owners = st.builds(
    FieldOwners,
    st.dictionaries(st.integers(1, 50), texts, max_size=2),
    st.dictionaries(st.integers(1, 50), st.dictionaries(texts, texts, min_size=1, max_size=2), max_size=2),
)


@given(adjustments)
def test_an_adjustment_survives_the_wire(adjustment):
    data = codec.encode_response(CREATE, events.CreateContainerResponse(adjustment=adjustment))
    answer = runtime_codec.decode_answer(CREATE, data)
    assert answer.whole() == adjustment


@given(any_adjustments)
def test_an_adjustment_is_sent_or_refused_and_nothing_else(adjustment):
    response = events.CreateContainerResponse(adjustment=adjustment)
    try:
        data = codec.encode_response(CREATE, response)
    except LocalProtocolError:
        assert not is_legal(adjustment)
    else:
        assert runtime_codec.decode_answer(CREATE, data).whole() == adjustment


@given(pods, containers)
def test_all_of_a_pod_and_container_survives_the_wire(pod, container):
    event = events.StartContainer(pod, container)
    method, payload = runtime_codec.encode_event(event)
    assert codec.decode_request(method, payload, DETAILS) == event


@given(any_adjustments, st.dictionaries(texts, owners, max_size=2), st.lists(st.just("10-a"), max_size=2))
def test_a_validation_survives_the_wire(adjustment, owned, plugins):
    event = events.ValidateContainerAdjustment(
        Pod("p"), Container("c"), adjustment, (), owned, tuple(plugins)
    )
    assert codec.decode_request(*runtime_codec.encode_event(event)) == event


@given(containers, adjustments)
def test_an_adjusted_container_has_no_dashes_and_what_was_set(container, adjustment):
    after = adjusted(container, adjustment)
    for key, text in adjustment.annotations.items():
        if not is_removal(key):
            assert after.annotations[key] == text
    for name in adjustment.env:
        if is_removal(name) and name[1:] not in adjustment.env:
            assert not any(entry.partition("=")[0] == name[1:] for entry in after.env)
    paths = {device.path for device in after.devices}
    assert {device.path for device in adjustment.devices if not is_removal(device.path)} <= paths


@given(adjustments)
def test_a_legal_adjustment_never_conflicts_with_itself(adjustment):
    assert Ownership().adjust("10-a", "c1", adjustment) == ""


@given(adjustments)
def test_what_one_plugin_set_another_may_not(adjustment):
    owned = Ownership()
    owned.adjust("10-a", "c1", adjustment)
    sets_once_for_all = adjustment.args[:1] not in {(), ("",)}
    if sets_once_for_all or adjustment.memory_policy is not None or adjustment.cdi_devices:
        assert "both tried to set" in owned.adjust("20-b", "c1", adjustment)


def test_the_empty_adjustment_is_no_bytes():
    response = events.CreateContainerResponse(adjustment=Adjustment())
    assert codec.encode_response(CREATE, response) == b""
