"""Any events in any order, lost, doubled and late, on a machine and under options that change, with files that fail.

Nothing that a runtime, a kernel or an operator does may lead to an internal error or a broken invariant.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.model.options import (
    CPUManagerPolicy,
    Effect,
    Node,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod
from tests.agent_fakes import Bench
from tests.builders import GIB, container, cpu_resources, cpus, machine, node, pod
from tests.topology_rows import topology_of_rows

STEPS = 40
ABOUT_PODS = (nri.RunPodSandbox, nri.StopPodSandbox, nri.RemovePodSandbox)
ABOUT_CONTAINERS = (
    nri.CreateContainer,
    nri.PostCreateContainer,
    nri.StartContainer,
    nri.PostStartContainer,
    nri.StopContainer,
    nri.RemoveContainer,
)

PODS = st.builds(
    lambda uid, sandbox, cpu: pod(
        uid, "Burstable" if uid == "c" else "Guaranteed", sandbox=f"sb-{uid}-{sandbox}", cpu=cpu
    ),
    st.sampled_from("abc"),
    st.integers(0, 1),
    st.sampled_from([None, 4, 6]),
)
HELD = st.sampled_from(["", "0-15", "2-3", "4-5", "3,9"])
OFFLINE = st.sampled_from([(), (), (3,), (2, 3), (0, 1)])


def containers(of: Pod) -> st.SearchStrategy[Container]:
    return st.builds(
        lambda name, cpu, number, held: container(of, name, cpu=cpu, memory=GIB, number=number, cpus=held),
        st.sampled_from(["init", "app", "side"]),
        st.sampled_from([0, 0.5, 1, 2, 4]),
        st.integers(0, 2),
        HELD,
    )


@st.composite
def an_event(draw: st.DrawFn) -> nri.NRIEvent:
    of = draw(PODS)
    what = draw(containers(of))
    kind = draw(
        st.sampled_from([*ABOUT_PODS, *ABOUT_CONTAINERS, nri.CreateContainer, nri.UpdateContainer, None])
    )
    if kind is None:
        pods = draw(st.lists(PODS, max_size=3))
        return nri.Synchronize(tuple(pods), tuple(draw(containers(each)) for each in pods))
    if kind is nri.UpdateContainer:
        return nri.UpdateContainer(of, what, cpu_resources(draw(st.sampled_from([1, 2]))))
    return kind(of) if kind in ABOUT_PODS else kind(of, what)


def without(offline: tuple[int, ...]) -> Topology:
    rows = [(cpu, cpu // 2 * 2, cpu // 8, cpu // 8, cpu // 8) for cpu in range(16) if cpu not in offline]
    return topology_of_rows(rows, memory_bytes={0: 16 * GIB, 1: 16 * GIB})


@st.composite
def a_node(draw: st.DrawFn, effect: Effect) -> Node:
    topology = without(draw(OFFLINE)) if draw(st.booleans()) else machine()
    reserved = cpus(draw(st.sampled_from(["0-1", "8-9", "0"]))) & topology.online
    return node(
        topology,
        str(reserved),
        effect=effect,
        strict_cpu_reservation=draw(st.booleans()),
        full_pcpus_only=draw(st.booleans()),
        cpu_manager_policy=draw(st.sampled_from([CPUManagerPolicy.STATIC] * 3 + [CPUManagerPolicy.NONE])),
        topology_manager_policy=draw(st.sampled_from(list(TopologyManagerPolicy))),
        topology_manager_scope=draw(st.sampled_from(list(TopologyManagerScope))),
    )


def bring_trouble(bench: Bench, data: st.DataObject) -> None:
    """Cgroups that refuse or are gone, and saves that fail, during the next event."""
    known = sorted(bench.cgroups.values)
    bench.cgroups.failing = (
        {data.draw(st.sampled_from(known))} if known and data.draw(st.booleans()) else set()
    )
    bench.cgroups.torn = bench.cgroups.failing if data.draw(st.booleans()) else set()
    bench.cgroups.missing = {data.draw(PODS).cgroup_parent} if data.draw(st.booleans()) else set()
    bench.checkpoint.failures = data.draw(st.integers(0, 2))


@given(data=st.data(), effect=st.sampled_from(list(Effect)))
@settings(max_examples=60)
def test_no_order_of_events_and_troubles_leads_to_a_broken_promise(
    data: st.DataObject, effect: Effect
) -> None:
    bench = Bench(data.draw(a_node(effect)))
    for _ in range(data.draw(st.integers(1, STEPS))):
        if data.draw(st.integers(0, 9)) == 0:
            bench.handler.change_node(data.draw(a_node(effect)))
        if data.draw(st.integers(0, 4)) == 0:
            bring_trouble(bench, data)
        event = data.draw(an_event())
        answer = bench.ask(event)
        told = [answer.refusal, *(str(fields.get("err")) for *_, fields in bench.lines.lines)]
        assert not [text for text in told if "internal error" in text or "invariant" in text]
        nobody_shares(bench, event, answer.refusal, answer.response)
        bench.forget()


def nobody_shares(bench: Bench, event: nri.NRIEvent, refusal: str, response: nri.NRIResponse) -> None:
    state = bench.handler.state
    held = [cpu for allocation in state.allocations.values() for cpu in allocation.cpus]
    assert len(held) == len(set(held))
    resources = getattr(response, "resources", None)
    if isinstance(event, nri.CreateContainer) and not refusal and resources is not None:
        allocation = state.allocation_of(state.containers[event.container.id])
        own = allocation.cpus if allocation else CPUSet()
        assert cpus(resources.cpus).isdisjoint(state.exclusive - own)
