"""Laws of the NRI layer: every event survives the wire, and what we send every known reader can read."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.wire.nri import codec, events
from nri_plugin.wire.nri.events import EventMask
from nri_plugin.wire.nri.messages import (
    Container,
    ContainerState,
    ContainerUpdate,
    DeviceNode,
    Pod,
    Resources,
)
from nri_plugin.wire.nri.mux import MuxReader, mux_frames
from nri_plugin.wire.nri.releases import legal_mask
from nri_plugin.wire.ttrpc.frame import Frame
from tests.lab.runtime import codec as runtime_codec
from tests.lab.runtime.session import GoTrunkReader

texts = st.text(max_size=8)
maps = st.dictionaries(texts, texts, max_size=3)
keys = texts.filter(lambda key: key not in {"", "-"})
named = st.dictionaries(keys, texts, max_size=3)
unsigned = st.none() | st.integers(0, (1 << 64) - 1)
signed = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
resources = st.builds(
    Resources, unsigned, signed, unsigned, texts, texts, signed,
    st.lists(st.tuples(texts, st.integers(0, (1 << 64) - 1)), max_size=2).map(tuple),
)  # fmt: skip
pids = st.integers(0, (1 << 32) - 1)


pods = st.builds(
    Pod,
    texts,
    texts,
    texts,
    texts,
    st.just({}),
    st.just({}),
    texts,
    texts,
    texts,
    st.none() | resources,
    st.none() | resources,
    pids,
)
devices = st.lists(st.builds(DeviceNode, texts, texts, numbers, numbers), max_size=2).map(tuple)
containers = st.builds(
    Container, texts, texts, texts, st.sampled_from(ContainerState), st.just({}), st.just({}), st.just(()),
    devices, st.lists(texts, max_size=2).map(tuple), resources, signed, texts, pids,
    st.lists(texts, max_size=2, unique=True).map(sorted).map(tuple),
)  # fmt: skip
one_container_events = st.sampled_from(
    [
        events.CreateContainer, events.PostCreateContainer, events.StartContainer, events.PostStartContainer,
        events.PostUpdateContainer, events.StopContainer, events.RemoveContainer,
    ]
)  # fmt: skip


@given(one_container_events, pods, containers)
def test_container_events_survive_the_wire(kind, pod, container):
    event = kind(pod, container)
    assert codec.decode_request(*runtime_codec.encode_event(event)) == event


@given(one_container_events.filter(runtime_codec.STATE_CHANGES.__contains__), pods, containers)
def test_state_change_means_the_same_as_the_events_own_method(kind, pod, container):
    event = kind(pod, container)
    assert codec.decode_request(*runtime_codec.encode_state_change(event)) == event


@given(st.lists(pods, max_size=3).map(tuple), st.lists(containers, max_size=3).map(tuple), st.booleans())
def test_synchronize_survives_the_wire(listed_pods, listed_containers, more):
    payload = runtime_codec.encode_synchronize(listed_pods, listed_containers, more=more)
    part = codec.decode_request("Synchronize", payload)
    assert isinstance(part, codec.SynchronizePart)
    assert (part.more, part.pods, part.containers) == (more, len(listed_pods), len(listed_containers))
    assert part.read() == events.Synchronize(listed_pods, listed_containers)


@given(
    st.none() | resources,
    named,
    st.lists(st.tuples(resources, st.booleans()), max_size=3),
)
def test_answers_survive_the_wire(adjusted, env, changes):
    event = events.CreateContainer(Pod("p"), Container("new"))
    updates = tuple(
        ContainerUpdate(f"c{n}", change, may_fail) for n, (change, may_fail) in enumerate(changes)
    )
    response = events.CreateContainerResponse(adjusted, updates, env)
    assert runtime_codec.decode_answer(event, codec.encode_response(event, response)) == response


@given(st.integers(0, 30_000), st.integers(1, 9000))
def test_every_reader_reads_what_we_send(size, chunk):
    """A frame of any size, in reads of any size, by our reader and by one that fails where the Go library does."""
    frame = Frame(1, 2, 0, b"d" * size).encode()
    wire = b"".join(mux_frames(1, frame))
    go, ours, joined, whole = GoTrunkReader(), MuxReader(), b"", []
    for start in range(0, len(wire), chunk):
        piece = wire[start : start + chunk]
        whole += go.feed(piece)
        joined += b"".join(part for _, part in ours.feed(piece))
    assert whole == [(1, frame)]
    assert joined == frame


@given(
    st.sampled_from(["containerd", "cri-o", "other"]),
    st.from_regex(r"v?[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}(-rc\.1|~ds1|\+unknown)?", fullmatch=True) | texts,
    st.booleans(),
    st.sampled_from(["", "v0.12.2"]),
)
def test_the_subscription_is_never_more_than_any_release_of_that_runtime_knows(
    name, version, tells, nri_version
):
    timeout = 2000 if tells else 0
    mask = legal_mask(events.Configure("", name, version, timeout, timeout, nri_version))
    assert mask in (EventMask(0x7FF), EventMask(0x1FFF))
    if not tells and not nri_version:
        assert mask == EventMask(0x7FF)
