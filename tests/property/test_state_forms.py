"""Promises there and back through other forms are the same, as far as both forms hold them."""

import json
from dataclasses import replace
from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.checkpoint.format import VERSION, decode
from nri_plugin.checkpoint.forms import checkpoint_file, losses_to_cpu, losses_to_version, without_newer
from nri_plugin.checkpoint.kubelet_export import cpu_file, kubelet_refusals, memory_file, without_pods
from nri_plugin.checkpoint.kubelet_files import load_refusal
from nri_plugin.checkpoint.kubelet_import import File, allocations_in, imported
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.options import MemoryManagerPolicy
from nri_plugin.model.records import Allocation, MemoryBlock, allocation_key, is_whole_pod
from nri_plugin.model.sets import NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from tests.builders import GIB, machine, node
from tests.property.checkpoint_states import states

NODE = node(machine(nodes=4, memory=64 * GIB), memory_manager_policy=MemoryManagerPolicy.STATIC)
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


@given(promises(), st.sampled_from([2, 3]), st.sampled_from([1, 2]))
def test_promises_outlive_the_way_through_a_kubelets_files(state: State, cpus: int, memory: int) -> None:
    there = allocations_in(
        File("cpu", cpu_file(NODE, state, cpus)), File("memory", memory_file(NODE, state, memory))
    )
    assert imported(NODE, there).allocations == state.allocations
    assert losses_to_cpu(state, cpus, has_memory_file=True).allocations == ()


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


@given(with_pods(), st.sampled_from([3, 4]), st.sampled_from([2, 3]))
def test_pods_as_wholes_outlive_the_way_through_a_kubelets_files(
    state: State, cpus: int, memory: int
) -> None:
    assert kubelet_refusals(CPUS_ONLY, state) == []
    files = {"cpu": cpu_file(NODE, state, cpus), "memory": memory_file(NODE, state, memory)}
    there = allocations_in(*(File(name, data) for name, data in files.items()))
    back = imported(NODE, there)
    assert back.allocations == state.allocations
    assert violations(NODE, back) == violations(NODE, state) == []
    assert losses_to_cpu(state, cpus, has_memory_file=True).allocations == ()
    for name, policy in (("cpu", "static"), ("memory", "Static")):
        assert load_refusal(files[name], name, policy, pod_level=True) == ""


@given(with_pods())
def test_older_forms_of_a_kubelets_files_hold_the_slices_and_name_the_rest(state: State) -> None:
    rest = without_pods(state)
    assert kubelet_refusals(CPUS_ONLY, rest) == []
    there = allocations_in(File("cpu", cpu_file(NODE, state, 2)), File("memory", memory_file(NODE, state, 1)))
    kept = {key: (one.cpus, one.memory) for key, one in rest.allocations.items() if one.cpus or one.memory}
    read = imported(NODE, there).allocations
    assert {key: (one.cpus, one.memory) for key, one in read.items()} == kept
    lost = losses_to_cpu(state, 2, has_memory_file=True).allocations
    assert bool(lost) == (rest != state)


def owners_in_version_2(data: bytes) -> dict[int, str]:
    """The owner of each CPU by the rules of the release that writes version 2: one owner, and no newer field."""
    owners: dict[int, str] = {}
    document = json.loads(data)
    assert document["version"] == 2
    for row in document["pods"]:
        assert "is_admitted" not in row
    for row in document["allocations"]:
        assert not {"is_init", "is_pod_shared"} & row.keys()
        assert not row["key"].endswith("/")
        for cpu in CPUSet.parse(row.get("cpus", "")):
            assert owners.setdefault(cpu, row["key"]) == row["key"], f"CPU {cpu} has two owners"
    return owners


@st.composite
def with_inits(draw: st.DrawFn) -> State:
    """As `with_pods`, and init containers whose CPUs later containers of their pods hold, or each other."""
    state = draw(with_pods())
    for key, one in list(state.allocations.items()):
        uid, _, name = key.rpartition("/")
        for number in range(draw(st.integers(0, 2)) if one.cpus and name else 0):
            cpus = CPUSet.from_ids(draw(st.sets(st.sampled_from(sorted(one.cpus)), min_size=1)))
            init = Allocation(cpus=cpus, cpu_milli=1000 * len(cpus), is_init=True)
            state = state.with_allocation(f"{uid}/init-{name}-{number}", init)
    return state


@given(with_inits())
def test_version_2_of_a_checkpoint_has_one_owner_for_each_cpu_and_names_the_rest(state: State) -> None:
    assert violations(NODE, state) == []
    data = checkpoint_file(state, None, version=2)
    owners = owners_in_version_2(data)
    for key, one in state.allocations.items():
        if not one.is_init and not one.is_pod_shared and not is_whole_pod(key):
            assert {owners[cpu] for cpu in one.cpus} <= {key}
    losses = losses_to_version(state, 2)
    named = [key for key, one in state.allocations.items() if is_whole_pod(key) or one.is_pod_shared]
    assert len(losses.allocations) == len(named)
    assert (decode(data).state == state) == (not losses.allocations and not losses.others)


@given(states, st.sampled_from([1, 2]))
def test_older_versions_of_a_checkpoint_hold_all_but_what_is_named(state: State, version: int) -> None:
    read = decode(checkpoint_file(state, NodeFacts.of(NODE), 7, version=version))
    assert (read.state, read.generation) == (without_newer(state, version), 7)
    losses = losses_to_version(state, version)
    assert (read.state == state) == (not losses.allocations and not losses.others)


@given(states)
def test_the_newest_version_of_a_checkpoint_holds_everything(state: State) -> None:
    assert decode(checkpoint_file(state, None)).state == state
    assert not losses_to_version(state, VERSION).others


@given(promises())
def test_memory_is_named_as_lost_where_only_cpus_are_written(state: State) -> None:
    lost = losses_to_cpu(state, 2, has_memory_file=False).allocations
    assert len(lost) == sum(1 for one in state.allocations.values() if one.memory)
    back = imported(NODE, allocations_in(File("cpu", cpu_file(NODE, state)), None)).allocations
    kept = {key: replace(one, mems=NO_NODES, memory=()) for key, one in state.allocations.items() if one.cpus}
    assert back == kept
