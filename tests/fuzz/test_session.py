"""A runtime that has lost its mind in front of a session. Allowed: RemoteProtocolError, after which it is closed."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.events import ConfigureResponse, EmptyResponse, Request
from nri_plugin.wire.nri.mux import mux_frames
from nri_plugin.wire.nri.session import PluginSession, SessionStage
from nri_plugin.wire.ttrpc.frame import Frame, encode_request
from nri_plugin.wire.ttrpc.frame import RequestEnvelope as Envelope
from tests.lab.runtime.profile import CONTAINERD_2_4
from tests.lab.runtime.session import RuntimeSession
from tests.protocol.peer import PINNING, Link, plugin

METHODS = [*pb.DESCRIPTOR.services_by_name["Plugin"].methods_by_name, "Nonsense"]
SERVICES = ["nri.pkg.api.v1alpha1.Plugin", "nri.pkg.api.v1alpha1.Runtime", ""]

payloads = st.one_of(
    st.just(b""),
    st.just(pb.SynchronizeRequest(containers=[pb.Container(id="c")], more=True).SerializeToString()),
    st.just(pb.StateChangeEvent(event=6).SerializeToString()),
    st.binary(max_size=30),
)
calls = st.builds(
    lambda stream, method, service, payload, timeout: Frame(
        stream, 1, 0, encode_request(Envelope(service, method, payload, timeout))
    ).encode(),
    st.integers(0, 60),
    st.sampled_from(METHODS),
    st.sampled_from(SERVICES),
    payloads,
    st.sampled_from([0, 1, 2_000_000_000, -1]),
)
other_frames = st.builds(
    lambda stream, kind, flags, data: Frame(stream, kind, flags, data).encode(),
    st.integers(0, 60),
    st.integers(0, 5),
    st.integers(0, 7),
    st.binary(max_size=30),
)
wires = st.one_of(
    st.builds(
        lambda to, frame: b"".join(mux_frames(to, frame)),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.one_of(calls, other_frames),
    ),
    st.binary(min_size=1, max_size=20),
)


@settings(max_examples=300)
@given(st.lists(wires, max_size=15), st.integers(1, 50), st.sampled_from(["answer", "refuse", "wait"]))
def test_a_session_survives_any_runtime(chunks, step, manner):
    session = plugin()
    session.register(0.0)
    now = 0.0
    data = b"".join(chunks)
    try:
        for start in range(0, len(data), step):
            now += 0.3
            for event in session.receive_data(data[start : start + step], now):
                if isinstance(event, Request) and manner == "answer":
                    is_configure = session.stage is SessionStage.CONFIGURING
                    session.respond(event.call, ConfigureResponse() if is_configure else EmptyResponse(), now)
                elif isinstance(event, Request) and manner == "refuse":
                    session.refuse(event.call, 2, "no", now)
            session.data_to_send()
            session.overdue(now)
            session.next_check(now)
        session.receive_data(b"", now)
    except RemoteProtocolError:
        assert session.stage is SessionStage.CLOSED


@given(st.integers(0, 600), st.integers(0, 255))
def test_a_flipped_byte_is_an_event_an_error_or_silence(position, value):
    """A real exchange with one byte changed somewhere."""
    link = Link(CONTAINERD_2_4)
    link.session.register(0.0)
    wire = bytearray()
    runtime = link.runtime
    runtime.receive_data(link.session.data_to_send(), 0.0)
    runtime.configure(0.0)
    wire += runtime.data_to_send()
    wire[position % len(wire)] = value
    with contextlib.suppress(RemoteProtocolError):
        link.session.receive_data(bytes(wire), 0.0)
        link.session.receive_data(b"", 0.0)


@given(st.lists(wires, max_size=15))
def test_the_simulated_runtime_never_raises(chunks):
    runtime = RuntimeSession(CONTAINERD_2_4)
    for chunk in chunks:
        runtime.receive_data(chunk, 0.0)
    runtime.overdue(100.0)


@given(st.integers(-5, 120).map(str) | st.text(max_size=3), st.text(max_size=5))
def test_an_identity_is_taken_or_refused(index, name):
    with contextlib.suppress(LocalProtocolError):
        assert len(PluginSession(name, index, PINNING).plugin_index) == 2
