"""Whatever arrives on the agent's socket: no exception leaves the loop, no promise breaks, the next runtime is served."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.mux import mux_frames
from tests.agent_fakes import Bench
from tests.agent_runtime import Rig, is_synchronized
from tests.builders import container, node, pod
from tests.lab.runtime.profile import CONTAINERD_2_1
from tests.lab.runtime.session import RuntimeSession

POD = pod("exclusive", cpu=2)
CREATE = nri.CreateContainer(POD, container(POD, cpu=2))


def runtime_messages() -> list[bytes]:
    """What a runtime sends up to a container's creation, message by message, as if every answer had come."""
    session = RuntimeSession(CONTAINERD_2_1)
    session.configure(1000.0)
    messages = [session.data_to_send()]
    session.synchronize((POD,), (), 1000.0)
    messages.append(session.data_to_send())
    session.is_ready, session.mask = True, CONTAINERD_2_1.legal_mask
    session.call(CREATE, 1000.0)
    return [*messages, session.data_to_send()]


VALID = runtime_messages()


@st.composite
def mutations(draw: st.DrawFn) -> list[bytes]:
    """The valid messages, one of them with a few bytes cut out, changed or added."""
    which = draw(st.integers(0, len(VALID) - 1))
    data = bytearray(VALID[which])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return [*VALID[:which], bytes(data), *VALID[which + 1 :]]


def garbage() -> st.SearchStrategy[list[bytes]]:
    framed = st.builds(
        lambda number, data: b"".join(mux_frames(number, data)),
        st.sampled_from([1, 2, 3]),
        st.binary(min_size=1, max_size=64),
    )
    return st.one_of(mutations(), st.lists(st.one_of(st.binary(max_size=200), framed), max_size=4))


@settings(max_examples=150)
@given(messages=garbage(), size=st.integers(1, 400), ends=st.booleans())
def test_no_bytes_end_the_agent_or_break_a_promise(messages: list[bytes], size: int, ends: bool):
    rig = Rig(Bench(node(pool_floor=False)))
    try:
        rig.serves = False
        rig.start()
        for data in messages:
            for at in range(0, len(data), size):
                rig.send_raw(data[at : at + size])
        if ends:
            rig.kill()
            rig.settle()
        assert violations(rig.bench.handler.node, rig.bench.handler.state) == []
        rig.pass_time(6.0)
        rig.serves = True
        rig.kill()
        rig.settle()
        rig.pass_time(6.0)
        assert is_synchronized(rig.peer)
        assert not [text for text in rig.bench.lines.texts("ERROR") if text.startswith("internal error")]
    finally:
        rig.close()


def test_the_untouched_bytes_create_a_container():
    rig = Rig(Bench(node(pool_floor=False)))
    try:
        rig.serves = False
        rig.start()
        for data in VALID:
            rig.send_raw(data)
        assert CREATE.container.id in rig.bench.handler.state.containers
        assert len(rig.peers) == 1
    finally:
        rig.close()
