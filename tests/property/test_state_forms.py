"""Promises there and back through other forms are the same, as far as both forms hold them."""

from dataclasses import replace
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.checkpoint.format import decode
from nri_plugin.checkpoint.forms import checkpoint_file, losses_to_cpu, losses_to_version, without_newer
from nri_plugin.checkpoint.kubelet_state import File, allocations_in, cpu_file, imported, memory_file
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.options import MemoryManagerPolicy
from nri_plugin.model.sets import NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import Allocation, MemoryBlock, State, allocation_key
from tests.builders import GIB, machine, node
from tests.property.checkpoint_states import states

NODE = node(machine(nodes=4, memory=64 * GIB), memory_manager_policy=MemoryManagerPolicy.STATIC)
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


@given(promises(), st.sampled_from([2, 3]), st.sampled_from([1, 2]))
def test_promises_outlive_the_way_through_a_kubelets_files(state: State, cpus: int, memory: int) -> None:
    there = allocations_in(
        File("cpu", cpu_file(NODE, state, cpus)), File("memory", memory_file(NODE, state, memory))
    )
    assert imported(NODE, there).allocations == state.allocations
    assert losses_to_cpu(state, cpus, has_memory_file=True).allocations == ()


@given(states)
def test_version_1_of_a_checkpoint_holds_all_but_what_is_named(state: State) -> None:
    read = decode(checkpoint_file(state, NodeFacts.of(NODE), 7, version=1))
    assert (read.state, read.generation) == (without_newer(state), 7)
    losses = losses_to_version(state)
    assert (read.state == state) == (not losses.allocations and not losses.others)


@given(states)
def test_version_2_of_a_checkpoint_holds_everything(state: State) -> None:
    assert decode(checkpoint_file(state, None)).state == state


@given(promises())
def test_memory_is_named_as_lost_where_only_cpus_are_written(state: State) -> None:
    lost = losses_to_cpu(state, 2, has_memory_file=False).allocations
    assert len(lost) == sum(1 for one in state.allocations.values() if one.memory)
    back = imported(NODE, allocations_in(File("cpu", cpu_file(NODE, state)), None)).allocations
    kept = {key: replace(one, mems=NO_NODES, memory=()) for key, one in state.allocations.items() if one.cpus}
    assert back == kept
