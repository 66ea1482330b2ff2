"""Laws of simulations: whatever the pods are, nobody shares what belongs to one, and sums are sums of rows."""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.model.sets import CPUSet
from nri_plugin.model.violations import violations
from nri_plugin.simulator.machine.source import machine_from
from nri_plugin.simulator.simulate.comparison import compare
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import read_short
from nri_plugin.simulator.simulate.simulate import play, simulate
from nri_plugin.simulator.simulate.simulation import ContainerStatus, Simulation

MACHINE = machine_from(
    b"topology: pack:2 numa:2(memory=2GiB) l3:2 core:2 pu:2(indexes=core)\n"
    b"nodes: {1: {memory: 0}, 2: {memory: 0}}\n"
    b"devices:\n  - {resource: a.b/gpu, count: 1, nodes: 0}\n  - {resource: a.b/gpu, count: 2, nodes: 3}\n",
    "x",
    "x",
)
"""Two of the four NUMA nodes have CPUs and no memory."""

CONFIGS = st.fixed_dictionaries(
    {
        "topologyManagerPolicy": st.sampled_from(("none", "best-effort", "restricted", "single-numa-node")),
        "topologyManagerScope": st.sampled_from(("container", "pod")),
        "memoryManagerPolicy": st.sampled_from(("None", "Static")),
    }
)
CONTAINER = st.one_of(
    st.builds("{{cpu: {}, memory: {}Mi}}".format, st.integers(1, 9), st.integers(1, 900)),
    st.builds("{{requests: {{cpu: {}m}}}}".format, st.integers(1, 2000)),
    st.builds("{{cpu: 1, memory: 8Mi, a.b/gpu: {}}}".format, st.integers(1, 2)),
    st.just("{}"),
)
POD = st.tuples(
    st.lists(CONTAINER, min_size=1, max_size=2), st.lists(CONTAINER, max_size=1), st.integers(1, 3)
)
PODS = st.lists(POD, min_size=1, max_size=7)


def text(pods: list[Any]) -> str:
    lines = []
    for number, (apps, inits, count) in enumerate(pods):
        containers = ", ".join(f"c{place}: {each}" for place, each in enumerate(apps))
        before = ", ".join(f"i{place}: {each}" for place, each in enumerate(inits))
        lines.append(
            f"- {{pod: p{number}, count: {count}, containers: {{{containers}}}, initContainers: {{{before}}}}}"
        )
    return "\n".join(lines)


def simulated(pods: list[Any], sets: dict[str, str]) -> Simulation:
    return simulate(MACHINE, read_short(text(pods), "p.yaml"), choose(MACHINE.topology, sets=sets))


@settings(max_examples=60, deadline=None)
@given(PODS, CONFIGS)
def test_exclusive_cpus_belong_to_one_and_owners_say_the_same(pods: list[Any], sets: dict[str, str]) -> None:
    found = simulated(pods, sets)
    seen = CPUSet()
    by_key = Counter(owner.container for owner in found.owners if owner.kind == "exclusive")
    for row in found.containers:
        own = CPUSet.parse(row.cpus) if row.exclusive else CPUSet()
        assert own.isdisjoint(seen)
        seen |= own
        assert len(own) == row.exclusive == by_key.pop(row.key, 0)
    reserved = CPUSet.parse(found.configuration.reserved)
    assert seen.isdisjoint(reserved)
    assert [owner.cpu for owner in found.owners] == list(found.machine.online)


@settings(max_examples=60, deadline=None)
@given(PODS, CONFIGS)
def test_pods_stay_in_the_order_of_the_file_and_each_is_told_once(
    pods: list[Any], sets: dict[str, str]
) -> None:
    plan = read_short(text(pods), "p.yaml")
    found = simulated(pods, sets)
    assert [step.target for step in found.steps] == [step.pod.key for step in plan.steps]  # type: ignore[union-attr]
    total = found.totals
    assert total.pods == len(plan.steps) == total.pods_placed + total.pods_partly + total.pods_refused
    refused = [
        row.key for step in found.steps for row in step.containers if row.status is ContainerStatus.REFUSED
    ]
    assert sorted(refused) == sorted(key for group in found.refused for key in group.containers)
    assert not any("invariant" in group.text for group in found.refused)


@settings(max_examples=30, deadline=None)
@given(PODS, CONFIGS)
def test_what_is_left_adds_up_and_the_state_is_sound(pods: list[Any], sets: dict[str, str]) -> None:
    plan = read_short(text(pods), "p.yaml")
    chosen = choose(MACHINE.topology, sets=sets)
    node = play(MACHINE, plan, chosen).node
    assert violations(chosen.node, node.state) == []
    found = simulated(pods, sets)
    total = found.totals
    assert total.exclusive_cpus + total.available_cpus + total.reserved_cpus == len(found.machine.online)
    assert sum(row.available for row in found.numa_nodes) == total.available_cpus
    assert sum(row.available for row in found.caches) == total.available_cpus
    assert all(0 <= row.fragmentation <= 1 for row in (*found.numa_nodes, *found.caches))
    assert all(0 <= row.allocated <= row.allocatable for row in found.memory)


@settings(max_examples=20, deadline=None)
@given(PODS, CONFIGS)
def test_the_same_question_has_the_same_answer_and_differs_in_nothing(
    pods: list[Any], sets: dict[str, str]
) -> None:
    one, other = simulated(pods, sets), simulated(pods, sets)
    assert one == other
    found = compare(one, other)
    assert (found.containers, found.configuration) == ((), ())
    assert all(row.before == row.after and row.better == 0 for row in found.sums)
