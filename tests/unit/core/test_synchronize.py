"""Restart and reconnect: what is kept, released, adopted and marked."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import Effect, MemoryManagerPolicy, Node, SMTOddCounts, TopologyManagerPolicy
from nri_plugin.model.records import Amounts, ContainerFacts, MemoryBlock, Phase, PodFacts, QOSClass
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod
from tests.builders import GIB, container, cpus, machine, node, nodes, pod

EMPTY = State()


def listed(on: Node, state: State, *pairs: tuple[Pod, Container]) -> Decision:
    return decide(on, state, nri.Synchronize(tuple(p for p, _ in pairs), tuple(c for _, c in pairs)))


def test_a_second_synchronize_changes_nothing() -> None:
    on = node()
    pairs = [(pod(uid), container(pod(uid), cpu=2, cpus=have)) for uid, have in (("a", "2-3"), ("b", "8-9"))]
    first = listed(on, EMPTY, *pairs)
    second = listed(on, first.state, *pairs)
    assert second.state == first.state
    assert second.response == nri.SynchronizeResponse()


def test_records_that_have_not_changed_stay_the_same_objects() -> None:
    on = node()
    kinds = [(pod("a"), 2), (pod("b", "Burstable"), 0.5)]
    pairs = [(of, container(of, cpu=cpu, cpus="2-3" if cpu == 2 else "")) for of, cpu in kinds]
    first = listed(on, EMPTY, *pairs).state
    moved = (pairs[1][0], replace(pairs[1][1], cgroups_path="/kubepods/burstable/podb/elsewhere"))
    second = listed(on, first, pairs[0], moved).state
    changed = [one.key for one in second.changes_from(first).containers]
    assert changed == [pairs[1][1].id]


def test_shared_containers_count_as_adopted_and_hold_nothing() -> None:
    on = node()
    shared = [pod(uid, "Burstable") for uid in "abc"]
    pairs = [(one, container(one, cpu=2, cpus="4-5")) for one in shared]
    ended = pod("d", "BestEffort")
    pairs.append((ended, container(ended, state=ContainerState.STOPPED)))
    pairs.append((pod("e"), container(pod("e"), cpu=2, cpus="2-3")))
    decision = listed(on, EMPTY, *pairs)
    assert list(decision.state.allocations) == ["e/c"]
    assert decision.steps.count("adopted") == 4
    assert len(decision.state.containers) == 5


def test_a_lost_checkpoint_is_rebuilt_from_what_containers_have() -> None:
    on = node()
    decision = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="12-13")))
    assert decision.state.allocations["p1/c"].cpus == cpus("12-13")
    assert "adopted" in decision.steps


def test_consistent_containers_keep_their_cpus_before_others_are_placed() -> None:
    on = node()
    unpinned = (pod("a"), container(pod("a"), cpu=2, cpus="0-15"))
    pinned = (pod("b"), container(pod("b"), cpu=2, cpus="2-3"))
    state = listed(on, EMPTY, unpinned, pinned).state
    assert state.allocations["b/c"].cpus == cpus("2-3")
    assert state.allocations["a/c"].cpus == cpus("4-5")


def test_two_containers_with_the_same_cpus_do_not_both_keep_them() -> None:
    on = node()
    twins = [(pod(uid), container(pod(uid), cpu=2, cpus="2-3")) for uid in "ab"]
    state = listed(on, EMPTY, *twins).state
    assert violations(on, state) == []
    assert len(state.exclusive) == 4


def test_of_two_with_the_same_cpus_the_one_that_runs_keeps_them() -> None:
    on, mine = node(), pod("p")
    waits = container(mine, "init", cpu=4, cpus="4-7", state=ContainerState.CREATED)
    runs = container(mine, "main", cpu=4, cpus="4-7", state=ContainerState.RUNNING)
    decision = listed(on, EMPTY, (mine, waits), (mine, runs))
    assert decision.state.allocations["p/main"].cpus == cpus("4-7")


def test_reserved_cpus_are_not_adopted_as_exclusive() -> None:
    on = node()
    state = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="0-1"))).state
    assert state.allocations["p1/c"].cpus == cpus("2-3")


def test_a_kept_promise_wins_over_what_the_runtime_stored() -> None:
    on = node(pool_floor=False)
    state = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="2-3"))).state
    again = listed(on, state, (pod(), container(pod(), cpu=2, cpus="0-15")))
    assert again.state.allocations == state.allocations
    assert [str(write.cpus) for write in again.writes] == ["2-3"]


def test_pods_that_are_gone_are_released() -> None:
    on = node()
    state = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="2-3"))).state
    assert listed(on, state).state == EMPTY


def test_a_pod_between_two_instances_of_its_container_keeps_its_cpus() -> None:
    on = node()
    state = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="2-3"))).state
    after = decide(on, state, nri.Synchronize((pod(),), ())).state
    assert after.exclusive == cpus("2-3")


def test_a_pod_whose_sandbox_has_no_process_and_no_container_is_over() -> None:
    on, other = node(), pod("other")
    beside = container(other, cpu=2, cpus="4-5")
    state = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="2-3")), (other, beside)).state
    after = decide(on, state, nri.Synchronize((replace(pod(), pid=0), other), (beside,))).state
    assert after.exclusive == cpus("4-5")


def test_where_the_sandboxes_of_running_pods_have_no_process_every_listed_pod_goes_on() -> None:
    """As on CRI-O, which drops infra containers and lists no ended pods."""
    on, of, other = node(), replace(pod(), pid=0), replace(pod("other"), pid=0)
    with_infra = pod("with-infra")
    beside = container(other, cpu=2, cpus="4-5")
    state = listed(on, EMPTY, (of, container(of, cpu=2, cpus="2-3")), (other, beside)).state
    for pods, containers in (((of, other), (beside,)), ((of, with_infra, other), (beside,)), ((of,), ())):
        after = decide(on, state, nri.Synchronize(pods, containers)).state
        assert after.allocations["p1/c"] == state.allocations["p1/c"]


def test_a_pod_that_is_over_is_admitted_anew_if_it_is_created_again() -> None:
    rows = (
        ContainerFacts("a", amounts=Amounts(2000, 2000, GIB, GIB)),
        ContainerFacts("b", amounts=Amounts(2000, 2000, GIB, GIB)),
    )
    facts = PodFacts("p1", QOSClass.GUARANTEED, rows)
    on, other = node(), pod("other")
    beside = container(other, cpu=2, cpus="4-5")

    def created(state: State, of: Pod) -> State:
        event = nri.CreateContainer(of, container(of, "a", cpu=2, memory=GIB))
        return decide(on, state, InformedCreate(event, facts=facts)).state

    state = created(listed(on, EMPTY, (other, beside)).state, pod())
    assert set(state.allocations) == {"other/c", "p1/a", "p1/b"}
    state = decide(on, state, nri.Synchronize((replace(pod(), pid=0), other), (beside,))).state
    assert set(state.allocations) == {"other/c"}
    assert not state.pods["p1"].is_admitted
    assert set(created(state, pod(sandbox="new")).allocations) == {"other/c", "p1/a", "p1/b"}


def test_what_policy_would_have_refused_runs_shared_and_is_marked() -> None:
    on = node(pool_floor=False, topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    decision = listed(on, EMPTY, (pod(), container(pod(), cpu=10, cpus="0-15")))
    assert "TopologyAffinityError" in decision.state.containers["p1-c-0"].unplaced
    assert not decision.state.exclusive
    assert [str(write.cpus) for write in decision.writes] == ["0-15"]


def test_a_new_policy_does_not_touch_a_container_already_known() -> None:
    before, after = node(reserved="0-15"), node()
    state = listed(before, EMPTY, (pod(), container(pod(), cpu=2, cpus="0-15"))).state
    assert state.containers["p1-c-0"].unplaced
    assert listed(after, state, (pod(), container(pod(), cpu=2, cpus="0-15"))).state == state


def test_memory_nodes_are_adopted_with_the_memory() -> None:
    on = node(memory_manager_policy=MemoryManagerPolicy.STATIC)
    state = listed(on, EMPTY, (pod(), container(pod(), cpu=2, memory=GIB, cpus="8-9", mems="1"))).state
    allocation = state.allocations["p1/c"]
    assert allocation.mems == nodes(1)
    assert allocation.memory == (MemoryBlock(nodes(1), "memory", GIB),)


def test_of_two_sandboxes_of_a_pod_the_inhabited_one_counts() -> None:
    on = node()
    old, new = pod(sandbox="old"), pod(sandbox="new")
    state = decide(on, EMPTY, nri.Synchronize((new, old), (container(new, cpu=2, cpus="2-3"),))).state
    assert state.pods["p1"].sandbox_id == "new"


def test_containers_of_unlisted_pods_are_left_alone() -> None:
    decision = decide(node(), EMPTY, nri.Synchronize((), (container(pod(), cpu=2),)))
    assert decision.state == EMPTY
    assert decision.writes == ()


def test_reported_states_become_phases() -> None:
    on = node()
    states = {"a": ContainerState.CREATED, "b": ContainerState.PAUSED, "c": ContainerState.STOPPED}
    state = listed(
        on, EMPTY, *[(pod(uid), container(pod(uid), state=kind)) for uid, kind in states.items()]
    ).state
    assert [state.containers[f"{uid}-c-0"].phase for uid in "abc"] == [
        Phase.CREATED,
        Phase.RUNNING,
        Phase.STOPPED,
    ]


def test_without_cgroups_the_reply_carries_what_differs() -> None:
    on = node(effect=Effect.UPDATE)
    shared = pod("s", "Burstable")
    decision = listed(
        on,
        EMPTY,
        (pod(), container(pod(), cpu=2, cpus="2-3")),
        (shared, container(shared, cpu=1, cpus="0-15")),
    )
    assert isinstance(decision.response, nri.SynchronizeResponse)
    assert [(u.container_id, u.resources.cpus) for u in decision.response.updates] == [("s-c-0", "0-1,4-15")]


def test_the_runtime_is_told_of_cpus_given_to_a_container_that_already_ran() -> None:
    on = node()
    born_unseen = (pod(), container(pod(), cpu=2, cpus="0-15"))
    first = listed(on, EMPTY, born_unseen)
    assert isinstance(first.response, nri.SynchronizeResponse)
    assert [(u.container_id, u.resources.cpus) for u in first.response.updates] == [("p1-c-0", "2-3")]
    told = (pod(), container(pod(), cpu=2, cpus="2-3"))
    assert listed(on, first.state, told).response == nri.SynchronizeResponse()


def test_a_running_container_whose_pod_the_runtime_does_not_list_keeps_its_promise() -> None:
    """A runtime leaves out a pod whose state it does not know, and lists its containers."""
    on = node()
    known = container(pod(), cpu=2, cpus="2-3")
    state = listed(on, EMPTY, (pod(), known)).state
    after = decide(on, state, nri.Synchronize((), (known,))).state
    assert after.exclusive == cpus("2-3")
    assert after.containers["p1-c-0"].phase is Phase.RUNNING
    assert decide(on, after, nri.Synchronize((), ())).state == EMPTY


def test_the_last_cpus_of_the_shared_pool_are_not_adopted_either() -> None:
    small = machine(nodes=1, cores=2)
    first = listed(node(small, reserved="2-3"), EMPTY, (pod("a"), container(pod("a"), cpu=2, cpus="0-1")))
    on = node(small, reserved="0-1")
    pairs = [
        (pod("a"), container(pod("a"), cpu=2, cpus="0-1")),
        (pod("b"), container(pod("b"), cpu=2, cpus="2-3")),
    ]
    state = listed(on, first.state, *pairs).state
    assert state.exclusive == cpus("0-1")
    assert "the last CPUs of the shared pool" in state.containers["b-c-0"].unplaced
    assert state.shared_pool(on) == cpus("2-3")


def test_a_container_found_at_its_start_keeps_the_exclusive_cpus_it_has() -> None:
    found = container(pod(), cpu=2, cpus="4-5")
    decision = decide(node(), EMPTY, nri.StartContainer(pod(), found))
    assert decision.state.exclusive == cpus("4-5")
    assert "adopted" in decision.steps


def test_another_instance_found_of_a_container_that_has_its_promise_takes_nothing_more() -> None:
    on = node()
    state = decide(on, EMPTY, nri.StartContainer(pod(), container(pod(), cpu=2, cpus="4-5"))).state
    again = container(pod(), cpu=2, number=1, cpus="6-7")
    assert decide(on, state, nri.StartContainer(pod(), again)).state.exclusive == cpus("4-5")


def test_a_container_found_with_a_number_of_cpus_that_policy_refuses_runs_on_unplaced() -> None:
    on = node(smt_odd_counts=SMTOddCounts.REJECT)
    found = container(pod(), cpu=3, cpus="2-6")
    decision = decide(on, EMPTY, nri.StartContainer(pod(), found))
    assert not decision.state.exclusive
    assert "SMTAlignmentError" in decision.state.containers["p1-c-0"].unplaced


def test_a_container_that_lost_a_cpu_to_the_machine_is_adopted_with_it() -> None:
    """Else a lost checkpoint would move it as long as the CPU is offline."""
    whole = machine()
    gone = replace(whole, online=whole.online - cpus("3"), offline=cpus("3"))
    on = node(gone)
    state = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="2-3"))).state
    assert state.allocations["p1/c"].cpus == cpus("2-3")
    twin = listed(
        on, state, *[(pod(uid), container(pod(uid), cpu=2, cpus="2-3")) for uid in ("p1", "p2")]
    ).state
    assert twin.allocations["p1/c"].cpus == cpus("2-3")
    assert twin.allocations["p2/c"].cpus.isdisjoint(cpus("2-3"))
    foreign = listed(on, EMPTY, (pod(), container(pod(), cpu=2, cpus="2,99"))).state
    assert foreign.allocations["p1/c"].cpus <= gone.online


def test_a_container_found_with_an_offline_cpu_that_is_kept_for_the_system_is_placed_anew() -> None:
    topology = machine()
    online = topology.online - cpus("3")
    on = node(replace(topology, online=online, offline=cpus("3")), reserved="0-1,3")
    found = container(pod(), cpu=2, cpus="2-3")
    decision = decide(on, EMPTY, nri.StartContainer(pod(), found))
    assert decision.state.exclusive == cpus("2,4")
    assert "adopted" not in decision.steps


def older_checkpoint(on: Node, *, container_runs: bool = False) -> tuple[State, Pod]:
    """CPUs 2-3 are remembered as those of pod a, whose sandbox is another one by now."""
    before = pod("a", sandbox="former")
    state = listed(on, EMPTY, (before, container(before, cpu=2, cpus="2-3"))).state
    return state, before if container_runs else pod("a", sandbox="new")


def test_who_runs_on_cpus_of_an_allocation_that_nobody_runs_on_keeps_them() -> None:
    on = node()
    state, ended = older_checkpoint(on)
    runs = (pod("b"), container(pod("b"), cpu=2, cpus="2-3"))
    decision = decide(on, state, nri.Synchronize((ended, runs[0]), (runs[1],)))
    assert {key: str(held.cpus) for key, held in decision.state.allocations.items()} == {"b/c": "2-3"}
    assert "released=0" in decision.steps


def test_a_new_instance_that_runs_elsewhere_than_its_former_one_is_not_moved() -> None:
    on = node()
    state, new = older_checkpoint(on)
    others = (pod("b"), container(pod("b"), cpu=2, cpus="2-3"))
    decision = listed(on, state, (new, container(new, cpu=2, cpus="8-9", number=1)), others)
    allocations = {key: str(held.cpus) for key, held in decision.state.allocations.items()}
    assert allocations == {"a/c": "8-9", "b/c": "2-3"}


def test_a_remembered_container_that_runs_keeps_its_cpus_whatever_another_was_told() -> None:
    on = node()
    state, still = older_checkpoint(on, container_runs=True)
    first = (still, container(still, cpu=2, cpus="2-3"))
    after = listed(on, state, first, (pod("b"), container(pod("b"), cpu=2, cpus="2-3"))).state
    assert after.allocations["a/c"].cpus == cpus("2-3")
    assert violations(on, after) == []
    assert len(after.exclusive) == 4


def test_who_runs_wins_over_who_only_exists() -> None:
    on = node()
    state, still = older_checkpoint(on, container_runs=True)
    waits = (still, container(still, cpu=2, cpus="2-3", state=ContainerState.CREATED))
    after = listed(on, state, waits, (pod("b"), container(pod("b"), cpu=2, cpus="2-3"))).state
    assert after.allocations["b/c"].cpus == cpus("2-3")


def test_an_ended_init_container_keeps_what_it_did_not_pass_on() -> None:
    on, mine = node(), pod("p")
    state = listed(on, EMPTY, (mine, container(mine, "init", cpu=4, cpus="4-7"))).state
    ended = container(mine, "init", cpu=4, cpus="4-7", state=ContainerState.STOPPED)
    after = listed(on, state, (mine, ended), (mine, container(mine, "main", cpu=2, cpus="6-7"))).state
    allocations = {key: str(held.cpus) for key, held in after.allocations.items()}
    assert allocations == {"p/init": "4-5", "p/main": "6-7"}


def test_nobody_takes_the_last_cpus_of_the_shared_pool_from_an_older_checkpoint() -> None:
    on = node(reserved="")
    most = (pod("m"), container(pod("m"), cpu=14, cpus="0-1,4-15"))
    former = pod("a", sandbox="former")
    state = listed(on, EMPTY, most).state
    state = state.with_allocation("a/c", replace(state.allocations["m/c"], cpus=cpus("2-3")))
    runs = (pod("b"), container(pod("b"), cpu=2, cpus="2-3"))
    after = decide(on, state, nri.Synchronize((most[0], former, runs[0]), (most[1], runs[1]))).state
    assert after.allocations["a/c"].cpus == cpus("2-3")
    assert after.containers[runs[1].id].unplaced


@pytest.mark.parametrize(
    ("asks", "runs_on", "has"),
    [
        (4, "2-5", "2-5"),  # the record of its resize is lost
        (4, "2-7", "2-3"),  # more than it asks for: its cpuset was not written yet
        (2, "2-5", "2-3"),
    ],
)
def test_a_container_that_has_grown_since_the_checkpoint_keeps_its_cpus(
    asks: int, runs_on: str, has: str
) -> None:
    on = node()
    older = decide(on, EMPTY, nri.CreateContainer(pod(), container(pod(), cpu=2))).state
    older = decide(on, older, nri.StartContainer(pod(), container(pod(), cpu=2, cpus="2-3"))).state
    assert older.allocations["p1/c"].cpus == cpus("2-3")
    grown = container(pod(), cpu=asks, cpus=runs_on)
    assert listed(on, older, (pod(), grown)).state.allocations["p1/c"].cpus == cpus(has)


OUT_OF_REACH = cpus("3")


@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize(
    ("held", "is_known", "asks", "runs_on", "another_has", "has"),
    [
        ("2-3", False, 2, "2", "", "2-3"),  # it was created again
        ("2-3", False, 1, "2", "", "2-3"),  # with a size that is no reason to take CPUs from it
        ("2-3", False, 2, "2", "3", "2,4"),  # another container was given the CPU since
        ("2-3", True, 3, "2,4", "", "2-4"),  # it has grown
        ("2-3", False, 3, "2,4", "", "2-4"),
        ("2-3+4", True, 2, "2", "4", "2-3"),  # it has shrunk
        ("2-3+4", True, 2, "2", "", "2-4"),  # or the runtime has forgotten that it had grown
        ("2-3+4", True, 3, "2,4", "", "2-4"),
    ],
)
def test_a_cpu_that_the_runtime_was_not_told_of_stays_where_the_record_of_a_change_is_lost(
    held: str, is_known: bool, asks: int, runs_on: str, another_has: str, has: str, *, is_back: bool
) -> None:
    """Nobody gets it: the CPU was offline, or out of the pods' reach, when the container was created or resized."""
    topology = machine()
    on = node(topology if is_back else topology.within(topology.online - OUT_OF_REACH))
    first, _, grown = held.partition("+")
    older = listed(node(), EMPTY, (pod("a"), container(pod("a"), cpu=len(cpus(first)), cpus=first))).state
    if grown:
        one = older.allocations["a/c"]
        more = replace(one, cpus=one.cpus | cpus(grown), grown=(cpus(grown),), cpu_milli=3000)
        older = older.with_allocation("a/c", more)
    now = pod("a"), container(pod("a"), cpu=asks, cpus=runs_on, number=0 if is_known else 1)
    other = (pod("b"), container(pod("b"), cpu=1, cpus=another_has))
    after = listed(on, older, now, *[other] if another_has else []).state
    allocations = {key: str(held.cpus) for key, held in after.allocations.items()}
    assert allocations == {"a/c": has} | ({"b/c": another_has} if another_has else {})
    assert violations(on, after) == []


def test_a_filled_up_core_stays_whole_where_one_cpu_of_it_is_out_of_reach() -> None:
    whole = node(smt_odd_counts=SMTOddCounts.ROUND_UP)
    on = dataclasses.replace(whole, topology=whole.topology.within(whole.topology.online - OUT_OF_REACH))
    older = listed(whole, EMPTY, (pod("a"), container(pod("a"), cpu=3, cpus="2-5"))).state
    assert older.allocations["a/c"].cpus == cpus("2-5")
    after = listed(on, older, (pod("a"), container(pod("a"), cpu=3, cpus="2,4-5", number=1))).state
    assert after.allocations["a/c"].cpus == cpus("2-5")
