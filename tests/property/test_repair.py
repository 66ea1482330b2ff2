"""Laws of repair: whatever happened to the file, the result can be used, and holds nothing that was not promised."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.checkpoint.format import Encoder, decode
from nri_plugin.checkpoint.forms import checkpoint_file
from nri_plugin.checkpoint.repair import RepairEvidence, overlaps, plan, salvage
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, allocation_key
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from tests.builders import machine, node
from tests.property.checkpoint_states import states

NODE = node(machine(nodes=2))
FACTS = NodeFacts.of(NODE)


def encoded(state: State, generation: int = 7) -> bytes:
    return b"".join(Encoder().encode(state, generation, FACTS))


@st.composite
def sound(draw: st.DrawFn) -> State:
    """Promises as an agent makes them: apart, on the machine, told to the runtime."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5))
    free = list(range(2, 16))
    pods, containers, allocations = {}, {}, {}
    for name in names:
        cpus = CPUSet.from_ids(draw(st.sets(st.sampled_from(free), min_size=1, max_size=2)))
        free = [cpu for cpu in free if cpu not in cpus]
        uid, key = f"u{name}", allocation_key(f"u{name}", "c")
        mems = draw(st.sampled_from([NodeMask(), NodeMask.of(0), NodeMask.of(1)]))
        stored = cpus if draw(st.booleans()) else CPUSet()
        pods[uid] = PodRecord(uid, f"s{uid}", name, "ns")
        containers[name] = ContainerRecord(
            name, uid, "c", Phase.RUNNING, CgroupRef("/p", f"/p/{name}"), stored, mems
        )
        allocations[key] = Allocation(cpus, mems, cpu_milli=1000 * len(cpus))
    return State(pods, containers, allocations)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Cut short, some bits flipped, or both; flips that make another digit of a digit are the worst."""
    digits = [8 * at + bit for at, byte in enumerate(data) if chr(byte).isdigit() for bit in range(3)]
    flips = draw(st.lists(st.sampled_from(digits) | st.integers(0, 8 * len(data) - 1), max_size=3))
    text = bytearray(data)
    for bit in flips:
        text[bit // 8] ^= 1 << bit % 8
    return bytes(text[: draw(st.just(len(text)) | st.integers(0, len(text)))])


def held(state: State) -> set[tuple[str, CPUSet, NodeMask]]:
    return {(key, one.cpus, one.mems) for key, one in state.allocations.items()}


@given(st.data(), sound())
def test_no_promise_is_invented_and_the_result_is_sound(data: st.DataObject, state: State) -> None:
    made = plan(RepairEvidence(salvage(data.draw(damaged(encoded(state)))), topology=NODE.topology))
    assert not made.undecided
    assert held(made.state) <= held(state)
    again = decode(checkpoint_file(made.state, made.facts, made.generation))
    assert violations(NODE, again.state) == [] or violations(NODE, again.state) == violations(NODE, state)


@given(st.data(), sound())
def test_with_the_generation_before_every_promise_of_it_stays(data: st.DataObject, state: State) -> None:
    former = decode(encoded(state, 6))
    made = plan(
        RepairEvidence(salvage(data.draw(damaged(encoded(state)))), former=former, topology=NODE.topology)
    )
    assert held(made.state) == held(state)
    assert made.generation > 6


@given(st.data(), states)
def test_anything_can_be_salvaged_and_nothing_overlaps(data: st.DataObject, state: State) -> None:
    found = salvage(data.draw(damaged(encoded(state))))
    made = plan(RepairEvidence(found, topology=NODE.topology))
    assert made.undecided or overlaps(made.state) == []
    assert held(made.state) <= {
        (key, one.cpus & NODE.topology.online, one.mems & NODE.topology.nodes_with_memory)
        for key, one in found.allocations.items()
    }


@given(sound(), st.data())
def test_overlaps_are_decided_by_the_cgroups_or_not_at_all(state: State, data: st.DataObject) -> None:
    keys = list(state.allocations)
    if len(keys) < 2:
        return
    one, other = keys[:2]
    both = state.allocations[one].cpus | state.allocations[other].cpus
    clash = replace(
        state, allocations={**state.allocations, other: replace(state.allocations[other], cpus=both)}
    )
    found = {
        record.id: data.draw(st.sampled_from([state.allocations[record.key].cpus, both, CPUSet.of(0)]))
        for record in state.containers.values()
    }
    made = plan(RepairEvidence(whole=decode(encoded(clash)), live=found, topology=NODE.topology))
    by_key = {record.key: found[record.id] for record in state.containers.values()}
    runs = [by_key[key] == clash.allocations[key].cpus for key in (one, other)]
    assert bool(made.undecided) == (runs[0] == runs[1])
    if not made.undecided:
        assert overlaps(made.state) == []
        assert (one if runs[0] else other) in made.state.allocations


def test_a_damage_that_changes_nothing_readable_is_still_not_believed_alone() -> None:
    state = State(allocations={"u/c": Allocation(CPUSet.of(3))})
    made = plan(RepairEvidence(salvage(encoded(state)[:-30]), topology=NODE.topology))
    assert made.state.allocations == {}
    assert len(made.left_out) == 1
