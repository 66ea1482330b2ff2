"""Allocations there and back through the kubelet's files are the same."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_plugin.checkpoint.kubelet_export import cpu_file, kubelet_refusals, memory_file
from nri_plugin.checkpoint.kubelet_files import load_refusal
from nri_plugin.checkpoint.kubelet_import import File, allocations_in, imported
from nri_plugin.model.options import MemoryManagerPolicy
from nri_plugin.model.records import Allocation, MemoryBlock, allocation_key
from nri_plugin.model.sets import NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from tests.builders import GIB, machine, node

NODE = node(machine(nodes=4, memory=64 * GIB), memory_manager_policy=MemoryManagerPolicy.STATIC)
WITH_PODS = node(
    machine(nodes=4, memory=64 * GIB),
    memory_manager_policy=MemoryManagerPolicy.STATIC,
    pod_level_managers=True,
)
CPUS_ONLY = node(machine(nodes=4, memory=64 * GIB))
"""Memory over different sets of nodes, as it is drawn here, a kubelet refuses by chance (`kubelet_doubts`)."""
NAMES = st.sampled_from(["db", "web", "a-b", "x"])
BLOCKS = st.lists(
    st.builds(
        MemoryBlock,
        st.sets(st.integers(0, 3), min_size=1).map(NodeMask.from_ids),
        st.just("memory"),
        st.integers(1, GIB),
    ),
    max_size=1,
).map(tuple)


@st.composite
def promises(draw: st.DrawFn) -> State:
    """Exclusive CPUs that do not overlap, and memory, as the agent makes them from what a kubelet had."""
    keys = draw(st.lists(st.tuples(st.sampled_from(["u1", "u2", "u3"]), NAMES), unique=True, max_size=5))
    free = list(range(2, 32))
    allocations = {}
    for uid, name in keys:
        cpus = CPUSet.from_ids(draw(st.sets(st.sampled_from(free), max_size=4)))
        free = [cpu for cpu in free if cpu not in cpus]
        memory = draw(BLOCKS)
        mems = reduce(NodeMask.__or__, (block.nodes for block in memory), NO_NODES)
        if cpus or memory:
            allocations[allocation_key(uid, name)] = Allocation(
                cpus, mems, memory, 1000 * len(cpus), NODE.topology.nodes_of(cpus), preferred=False
            )
    return State(allocations=allocations)


@given(promises(), st.booleans())
def test_promises_outlive_the_way_through_a_kubelets_files(state: State, pod_level: bool) -> None:
    of = WITH_PODS if pod_level else NODE
    there = allocations_in(File("cpu", cpu_file(of, state)), File("memory", memory_file(of, state)))
    assert imported(NODE, there).allocations == state.allocations


@st.composite
def with_pods(draw: st.DrawFn) -> State:
    """As `promises`, and pods with CPUs and memory as wholes: a slice each, and two containers or more in their pool."""
    state = draw(promises())
    free = [cpu for cpu in range(2, 32) if cpu not in state.exclusive]
    for uid in draw(st.lists(st.sampled_from(["L1", "L2", "L3"]), unique=True, min_size=1)):
        memory = draw(BLOCKS)
        mems = reduce(NodeMask.__or__, (block.nodes for block in memory), NO_NODES)
        sizes = draw(st.lists(st.integers(1, 3), max_size=2))
        pool = draw(st.integers(0, 2))
        left = draw(st.integers(0, 1)) if not pool and sizes else 0
        if sum(sizes) + pool + left > len(free):
            continue
        taken, free = free[: sum(sizes) + pool + left], free[sum(sizes) + pool + left :]
        block = CPUSet.from_ids(taken)
        base = Allocation(mems=mems, affinity=NODE.topology.nodes_of(block), preferred=False)
        allocations = {
            allocation_key(uid, ""): replace(base, cpus=block, memory=memory, cpu_milli=1000 * len(block))
        }
        for number, size in enumerate(sizes):
            cpus, taken = CPUSet.from_ids(taken[:size]), taken[size:]
            allocations[allocation_key(uid, f"own{number}")] = replace(base, cpus=cpus, cpu_milli=1000 * size)
        for number in range(draw(st.integers(2, 3)) if pool else 0):
            cpus = CPUSet.from_ids(taken)
            allocations[allocation_key(uid, f"all{number}")] = replace(base, cpus=cpus, is_pod_shared=True)
        held = {key: one for key, one in allocations.items() if one.cpus or one.mems}
        state = replace(state, allocations={**state.allocations, **held})
    return state


@given(with_pods())
def test_pods_as_wholes_outlive_the_way_through_a_kubelets_files(state: State) -> None:
    assert kubelet_refusals(CPUS_ONLY, state) == []
    files = {"cpu": cpu_file(NODE, state), "memory": memory_file(NODE, state)}
    there = allocations_in(*(File(name, data) for name, data in files.items()))
    back = imported(NODE, there)
    assert back.allocations == state.allocations
    assert violations(NODE, back) == violations(NODE, state) == []
    for name, policy in (("cpu", "static"), ("memory", "Static")):
        assert load_refusal(files[name], name, policy, pod_level=True) == ""
