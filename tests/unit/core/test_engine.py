"""What the engine answers and promises, event by event."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import CpusetWrite, Decision, InformedCreate, UnsavedStart
from nri_plugin.core.engine import decide, unrefused
from nri_plugin.model.bounds import Cut
from nri_plugin.model.options import (
    CPUManagerPolicy,
    Effect,
    MemoryManagerPolicy,
    Node,
    ReservedMemory,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import CgroupRef, Phase
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.sets import CPUSet, NUMANodeID
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.builders import GIB, container, cpus, machine, node, pod
from tests.topology_rows import topology_of_rows

EMPTY = State()


def create(on: Node, state: State, of: Pod, what: Container) -> Decision:
    return decide(on, state, nri.CreateContainer(of, what))


def run(on: Node, state: State, of: Pod, what: Container) -> State:
    """Through the whole start of a container, as a runtime plays it."""
    for event in (nri.RunPodSandbox(of), nri.CreateContainer(of, what), nri.PostCreateContainer(of, what)):
        decision = decide(on, state, event)
        assert decision.refusal is None, decision.refusal
        state = decision.state
    return start(on, state, of, what).state


def start(on: Node, state: State, of: Pod, what: Container) -> Decision:
    return decide(on, state, nri.StartContainer(of, what))


def granted(decision: Decision) -> Resources:
    assert isinstance(decision.response, nri.CreateContainerResponse)
    assert decision.response.resources is not None
    return decision.response.resources


def own_updates(decision: Decision) -> dict[str, str]:
    assert isinstance(decision.response, nri.UpdateContainerResponse)
    return {update.container_id: update.resources.cpus for update in decision.response.updates}


def test_whole_cpus_of_a_guaranteed_pod_are_exclusive() -> None:
    decision = create(node(), EMPTY, pod(), container(pod(), cpu=4))
    assert granted(decision).cpus == "2-5"
    assert decision.state.exclusive == cpus("2-5")


@pytest.mark.parametrize(("qos", "cpu"), [("Guaranteed", 1.5), ("Burstable", 2), ("BestEffort", 0)])
def test_everything_else_runs_in_the_shared_pool(qos: str, cpu: float) -> None:
    on = node()
    before = run(on, EMPTY, pod("other"), container(pod("other"), cpu=4))
    decision = create(on, before, pod("p1", qos), container(pod("p1", qos), cpu=cpu))
    assert granted(decision).cpus == "0-1,6-15"
    assert decision.state.exclusive == before.exclusive


def test_cpu_policy_none_touches_no_cpuset() -> None:
    on = node(cpu_manager_policy=CPUManagerPolicy.NONE)
    decision = create(on, EMPTY, pod(), container(pod(), cpu=4))
    assert decision.response == nri.CreateContainerResponse()
    assert start(on, decision.state, pod(), container(pod(), cpu=4)).writes == ()


def test_the_slices_above_shared_containers_are_squeezed_before_the_answer() -> None:
    on = node()
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    decision = create(on, state, pod(), container(pod(), cpu=2))
    slices = [CgroupRef(f"/kubepods/{word}") for word in ("burstable", "besteffort")]
    left = cpus("0-1,4-15")
    assert decision.writes == tuple(CpusetWrite(ref, left, compare=False, bounds=True) for ref in slices)


def test_without_pool_floor_no_slice_is_written() -> None:
    on = node(pool_floor=False)
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    decision = create(on, state, pod(), container(pod(), cpu=2))
    assert [write.container_id for write in decision.writes] == ["s-c-0"]


def test_a_created_container_is_put_right_when_it_starts_not_before() -> None:
    on = node(pool_floor=False)
    shared = pod("s", "Burstable")
    late = container(shared, cpu=1)
    state = decide(on, EMPTY, nri.RunPodSandbox(shared)).state
    state = create(on, state, shared, late).state
    state = decide(on, state, nri.PostCreateContainer(shared, late)).state
    decision = create(on, state, pod(), container(pod(), cpu=2))
    assert decision.writes == ()
    started = start(on, decision.state, shared, late)
    assert [(write.container_id, str(write.cpus)) for write in started.writes] == [("s-c-0", "0-1,4-15")]


def test_start_is_read_back() -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    decision = decide(on, state, nri.PostStartContainer(pod(), container(pod(), cpu=2)))
    assert [(check.container_id, check.cpus) for check in decision.checks] == [("p1-c-0", cpus("2-3"))]
    assert decision.state == state


def test_an_update_that_would_put_back_the_stored_cpuset_is_answered_with_ours() -> None:
    on = node()
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    state = create(on, state, pod(), container(pod(), cpu=2)).state
    stale = container(shared, cpu=1, cpus="0-15")
    decision = decide(on, state, nri.UpdateContainer(shared, stale, Resources(cpu_shares=512)))
    assert own_updates(decision) == {"s-c-0": "0-1,4-15"}


def test_an_update_that_agrees_is_left_as_it_is() -> None:
    on = node()
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    current = container(shared, cpu=1, cpus="0-15")
    decision = decide(on, state, nri.UpdateContainer(shared, current, Resources(cpu_shares=512)))
    assert own_updates(decision) == {}


def test_a_foreign_cpuset_in_an_update_is_replaced() -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    mine = container(pod(), cpu=2, cpus="2-3")
    decision = decide(on, state, nri.UpdateContainer(pod(), mine, Resources(cpus="8-9")))
    assert own_updates(decision) == {"p1-c-0": "2-3"}


def test_a_restarted_container_gets_the_same_cpus() -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    state = decide(on, state, nri.StopContainer(pod(), container(pod(), cpu=2))).state
    state = run(on, state, pod("p2"), container(pod("p2"), cpu=4))
    decision = create(on, state, pod(), container(pod(), cpu=2, number=1))
    assert granted(decision).cpus == "2-3"
    assert "kept" in decision.steps


def test_a_stopped_container_keeps_its_cpus_until_its_pod_ends() -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    state = decide(on, state, nri.StopContainer(pod(), container(pod(), cpu=2))).state
    assert state.exclusive == cpus("2-3")
    decision = decide(on, state, nri.StopPodSandbox(pod()))
    assert not decision.state.exclusive


def test_the_pool_grows_back_when_a_pod_ends() -> None:
    on = node(pool_floor=False)
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    state = run(on, state, pod(), container(pod(), cpu=2))
    decision = decide(on, state, nri.StopPodSandbox(pod()))
    assert [(write.container_id, str(write.cpus)) for write in decision.writes] == [("s-c-0", "0-15")]


def test_the_end_of_an_old_sandbox_does_not_end_the_pod() -> None:
    on = node()
    old, new = pod(sandbox="old"), pod(sandbox="new")
    state = run(on, EMPTY, old, container(old, cpu=2))
    state = run(on, state, new, container(new, cpu=2, number=1))
    for event in (nri.StopPodSandbox(old), nri.RemovePodSandbox(old)):
        state = decide(on, state, event).state
    assert state.exclusive == cpus("2-3")


def test_where_no_cgroup_can_be_seen_a_pod_whose_end_goes_untold_ends_with_its_last_container() -> None:
    on = node(effect=Effect.UPDATE)
    what = container(pod(), cpu=2, cpus="2-3")
    state = decide(on, EMPTY, nri.Synchronize((pod(),), (what,))).state
    assert state.exclusive == cpus("2-3")
    state = decide(on, state, nri.StopContainer(pod(), what)).state
    state = decide(on, state, nri.RemoveContainer(Pod(id=""), what)).state
    assert state == EMPTY


def test_cpus_of_a_stopped_init_container_pass_to_the_next_container() -> None:
    on = node(machine(nodes=1, cores=3))
    init, app = container(pod(), "init", cpu=4), container(pod(), "app", cpu=4)
    state = run(on, EMPTY, pod(), init)
    state = decide(on, state, nri.StopContainer(pod(), init)).state
    decision = create(on, state, pod(), app)
    assert granted(decision).cpus == "2-5"
    assert violations(on, decision.state) == []


def test_a_refusal_names_the_kubelets_reason_and_changes_nothing() -> None:
    on = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    decision = create(on, EMPTY, pod(), container(pod(), cpu=10))
    assert decision.refusal
    assert decision.refusal.kind is RefusalKind.TOPOLOGY_AFFINITY
    assert "10 wanted" in str(decision.refusal)
    assert decision.state is EMPTY
    assert decision.writes == ()


def test_full_pcpus_only_refuses_odd_counts() -> None:
    decision = create(node(full_pcpus_only=True), EMPTY, pod(), container(pod(), cpu=3))
    assert decision.refusal
    assert decision.refusal.kind is RefusalKind.SMT_ALIGNMENT


def test_namespaces_in_never_refuse_run_in_the_shared_pool_marked() -> None:
    on = node(
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        never_refuse=frozenset({"kube-system"}),
    )
    system = pod(namespace="kube-system")
    decision = create(on, EMPTY, system, container(system, cpu=10))
    assert granted(decision).cpus == "0-15"
    assert "TopologyAffinityError" in decision.state.containers["p1-c-0"].unplaced


def test_what_cannot_be_refused_is_placed_all_the_same_or_runs_in_the_shared_pool_marked() -> None:
    on = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    too_much = nri.CreateContainer(pod(), container(pod(), cpu=10))
    for event in (too_much, InformedCreate(too_much)):
        decision = unrefused(on, EMPTY, event)
        assert decision.refusal is None
        assert decision.overruled
        assert decision.overruled.kind is RefusalKind.TOPOLOGY_AFFINITY
        assert decision.state.containers["p1-c-0"].unplaced.startswith("TopologyAffinityError")
        assert decision.state.allocations == {}
    fits = nri.CreateContainer(pod(), container(pod(), cpu=2))
    assert unrefused(on, EMPTY, fits) == decide(on, EMPTY, fits)


def test_more_cpus_than_shares_can_tell_without_a_limit_are_refused() -> None:
    huge = replace(container(pod()), resources=Resources(cpu_shares=262144))
    decision = create(node(), EMPTY, pod(), huge)
    assert "set a CPU limit" in str(decision.refusal)


def test_memory_nodes_follow_the_cpus() -> None:
    on = node(
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        reserved_memory=(ReservedMemory(NUMANodeID(0), "memory", GIB),),
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
    )
    state = run(on, EMPTY, pod("a"), container(pod("a"), cpu=4, memory=4 * GIB))
    decision = create(on, state, pod("b"), container(pod("b"), cpu=4, memory=4 * GIB))
    assert (granted(decision).cpus, granted(decision).mems) == ("8-11", "1")


def test_pod_scope_keeps_all_containers_of_a_pod_on_one_node() -> None:
    on = node(
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        topology_manager_scope=TopologyManagerScope.POD,
    )
    whole = pod(cpu=8)
    state = decide(on, EMPTY, nri.RunPodSandbox(whole)).state
    first = create(on, state, whole, container(whole, "a", cpu=4))
    second = create(on, first.state, whole, container(whole, "b", cpu=4))
    assert (granted(first).cpus, granted(second).cpus) == ("8-11", "12-15")


def test_without_cgroups_other_containers_are_changed_by_updates_in_the_reply() -> None:
    on = node(effect=Effect.UPDATE)
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    decision = create(on, state, pod(), container(pod(), cpu=2))
    assert isinstance(decision.response, nri.CreateContainerResponse)
    assert [(u.container_id, u.resources.cpus, u.ignore_failure) for u in decision.response.updates] == [
        ("s-c-0", "0-1,4-15", True)
    ]
    assert decision.writes == ()
    assert decision.state.containers["s-c-0"].stored_cpus == cpus("0-1,4-15")


@pytest.mark.parametrize("kind", [nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer])
def test_a_container_found_while_nothing_can_be_saved_runs_in_the_shared_pool(kind: type) -> None:
    event = kind(pod(), container(pod(), cpu=4))
    after = decide(node(), EMPTY, UnsavedStart(event, "the disk is full")).state
    assert not after.allocations
    assert after.containers[event.container.id].unplaced == "the disk is full"


def test_a_container_nobody_told_us_of_is_adopted_at_its_first_event() -> None:
    on = node()
    decision = start(on, EMPTY, pod(), container(pod(), cpu=2))
    assert decision.state.exclusive == cpus("2-3")
    assert ("p1-c-0", cpus("2-3")) in [(write.container_id, write.cpus) for write in decision.writes]


def test_a_failed_creation_is_forgotten_when_the_name_comes_again() -> None:
    on = node()
    state = create(on, EMPTY, pod(), container(pod(), cpu=2)).state
    state = create(on, state, pod(), container(pod(), cpu=2, number=1)).state
    assert list(state.containers) == ["p1-c-1"]
    assert state.exclusive == CPUSet.parse("2-3")


def test_phases_follow_the_events() -> None:
    on = node()
    state = create(on, EMPTY, pod(), container(pod(), cpu=2)).state
    seen = [state.containers["p1-c-0"].phase]
    for event in (nri.PostCreateContainer, nri.StartContainer, nri.StopContainer):
        state = decide(on, state, event(pod(), container(pod(), cpu=2))).state
        seen.append(state.containers["p1-c-0"].phase)
    assert seen == [Phase.CREATING, Phase.CREATED, Phase.RUNNING, Phase.STOPPED]


def test_events_without_consequence_are_answered() -> None:
    assert decide(node(), EMPTY, nri.Configure()).response == nri.ConfigureResponse()
    assert decide(node(), EMPTY, nri.Shutdown()).response == nri.EmptyResponse()
    assert decide(node(), EMPTY, nri.PostUpdateContainer(pod(), container(pod()))).state is EMPTY


def test_a_container_whose_cgroup_is_not_told_is_changed_by_an_update_and_never_its_pod_by_a_write() -> None:
    on = node(pool_floor=False)
    shared = pod("s", "Burstable")
    nameless = replace(container(shared, cpu=1), cgroups_path="")
    state = run(on, EMPTY, shared, nameless)
    decision = create(on, state, pod(), container(pod(), cpu=2))
    assert decision.writes == ()
    assert isinstance(decision.response, nri.CreateContainerResponse)
    assert [(u.container_id, u.resources.cpus) for u in decision.response.updates] == [("s-c-0", "0-1,4-15")]


def test_the_first_pod_of_any_class_sets_the_floor() -> None:
    decision = decide(node(), EMPTY, nri.RunPodSandbox(pod()))
    assert [write.target.parent for write in decision.writes] == [
        "/kubepods/burstable",
        "/kubepods/besteffort",
    ]


def test_the_last_cpus_of_the_shared_pool_are_refused_with_the_numbers() -> None:
    small = machine(nodes=1, cores=2)
    state = run(node(small, reserved="2-3"), EMPTY, pod("a"), container(pod("a"), cpu=2))
    on = node(small, reserved="0-1")
    decision = create(on, state, pod("b"), container(pod("b"), cpu=2))
    assert "requested=2, available=1" in str(decision.refusal)
    assert "the last CPUs of the shared pool, and reserved CPUs 0-1 are held" in str(decision.refusal)


def test_where_nothing_is_reserved_the_last_cpus_are_refused_with_that_reason() -> None:
    on = node(machine(nodes=1, cores=2), reserved="")
    decision = create(on, EMPTY, pod("b"), container(pod("b"), cpu=len(on.topology.online)))
    assert "the last CPUs of the shared pool, and none are reserved" in str(decision.refusal)


@pytest.mark.parametrize(
    ("offline", "unreachable", "why"),
    [
        ("0-1", "", "reserved CPUs 0-1 are offline"),
        ("0-1", "0-1", "the cgroup above the pods does not have the reserved CPUs 0-1"),
    ],
)
def test_the_last_reachable_cpus_are_refused_with_what_the_reserved_ones_are(
    offline: str, unreachable: str, why: str
) -> None:
    small = machine(nodes=1, cores=2)
    left = small.online - CPUSet.parse(offline)
    on = node(
        replace(small, online=left, offline=CPUSet.parse(offline), unreachable=CPUSet.parse(unreachable))
    )
    decision = create(on, EMPTY, pod("b"), container(pod("b"), cpu=2))
    assert f"the last CPUs of the shared pool, and {why}" in str(decision.refusal)


def test_closer_numa_nodes_are_chosen_when_told_to() -> None:
    rows = [(cpu, cpu, 0, cpu // 2, 0) for cpu in range(8)]
    near = {0: [10, 30, 30, 30], 1: [30, 10, 30, 30], 2: [30, 30, 10, 11], 3: [30, 30, 11, 10]}
    topology = topology_of_rows(rows, distances=near)
    policy = TopologyManagerPolicy.RESTRICTED
    far = node(topology, reserved="", topology_manager_policy=policy)
    close = node(topology, reserved="", topology_manager_policy=policy, prefer_closest_numa_nodes=True)
    assert granted(create(far, EMPTY, pod(), container(pod(), cpu=3))).cpus == "0-2"
    assert granted(create(close, EMPTY, pod(), container(pod(), cpu=3))).cpus == "4-6"


def test_shared_containers_stay_off_strictly_reserved_cpus() -> None:
    strict = node(strict_cpu_reservation=True)
    assert granted(create(strict, EMPTY, pod(), container(pod(), cpu=0.5))).cpus == "2-15"
    state = run(strict, EMPTY, pod(), container(pod(), cpu=14))
    late = create(strict, state, pod("p2"), container(pod("p2"), cpu=0.5))
    assert granted(late).cpus == "0-1"


def test_a_container_whose_start_event_was_lost_is_put_right_once_it_runs_and_follows_the_pool() -> None:
    """CRI-O starts it even when StartContainer was refused; while an agent restarts the event goes to nobody."""
    on = node(pool_floor=False)
    shared = pod("s", "Burstable")
    late = container(shared, cpu=1)
    state = create(on, EMPTY, shared, late).state
    state = decide(on, state, nri.PostCreateContainer(shared, late)).state
    state = create(on, state, pod(), container(pod(), cpu=2)).state
    started = decide(on, state, nri.PostStartContainer(shared, late))
    assert [(write.container_id, str(write.cpus)) for write in started.writes] == [("s-c-0", "0-1,4-15")]
    later = create(on, started.state, pod("p2"), container(pod("p2"), cpu=2))
    assert [(write.container_id, str(write.cpus)) for write in later.writes] == [("s-c-0", "0-1,6-15")]


def test_a_container_whose_end_is_told_before_its_start_was_over_stays_ended() -> None:
    on = node(machine(nodes=1, cores=3))
    init, app = container(pod(), "init", cpu=4), container(pod(), "app", cpu=4)
    state = run(on, EMPTY, pod(), init)
    state = decide(on, state, nri.StopContainer(pod(), init)).state
    late = decide(on, state, nri.PostStartContainer(pod(), init))
    assert late.checks == ()
    assert granted(create(on, late.state, pod(), app)).cpus == "2-5"


def test_init_containers_that_ended_before_the_agent_was_restarted_leave_their_cpus_to_the_next() -> None:
    on = node(machine(nodes=1, cores=3))
    init, app = container(pod(), "init", cpu=4), container(pod(), "app", cpu=4)
    state = decide(on, run(on, EMPTY, pod(), init), nri.StopContainer(pod(), init)).state
    restarted = decide(on, state, nri.Synchronize((pod(),), ())).state
    assert granted(create(on, restarted, pod(), app)).cpus == "2-5"


def test_what_an_init_container_held_and_became_reserved_passes_to_nobody() -> None:
    init, app = container(pod(), "init", cpu=2), container(pod(), "app", cpu=2)
    state = decide(node(), run(node(), EMPTY, pod(), init), nri.StopContainer(pod(), init)).state
    on = node(reserved="0-2")
    decision = create(on, state, pod(), app)
    assert granted(decision).cpus.startswith(("3", "4"))
    assert not decision.state.allocations["p1/app"].cpus & on.reserved


def test_a_new_sandbox_nobody_told_us_of_is_the_pods_own_once_a_container_is_created_in_it() -> None:
    on = node()
    old, new = pod(sandbox="old"), pod(sandbox="new")
    state = run(on, EMPTY, old, container(old, cpu=2))
    again = container(new, cpu=2, number=1)
    for event in (nri.CreateContainer, nri.PostCreateContainer, nri.StartContainer):
        state = decide(on, state, event(new, again)).state
    for gone in (nri.StopPodSandbox(old), nri.RemovePodSandbox(old)):
        state = decide(on, state, gone).state
    assert state.exclusive == cpus("2-3")
    assert not decide(on, state, nri.StopPodSandbox(new)).state.exclusive


def test_an_update_that_leaves_a_request_beyond_256_cpus_as_it_is_is_no_resize() -> None:
    big = node(machine(nodes=2, cores=160))
    whole = Resources(cpu_shares=262144, cpu_quota_us=30_000_000, cpu_period_us=100_000)
    what = replace(container(pod()), resources=whole)
    state = run(big, EMPTY, pod(), what)
    assert len(state.exclusive) == 300
    assert decide(big, state, nri.UpdateContainer(pod(), what, whole)).refusal is None
    without_quota = Resources(cpu_shares=262144, memory_limit_bytes=GIB)
    assert decide(big, state, nri.UpdateContainer(pod(), what, without_quota)).refusal is None
    larger = replace(whole, cpu_quota_us=31_000_000)
    assert len(decide(big, state, nri.UpdateContainer(pod(), what, larger)).state.exclusive) == 310


def test_an_older_instance_of_a_name_leaves_the_pool_as_the_others_do_until_its_end_is_told() -> None:
    """A runtime that crashed can lose sight of a container that runs, and give its name again."""
    of, on = pod("old", "BestEffort"), node(pool_floor=False)
    first, second = container(of), container(of, number=1)
    state = run(on, run(on, EMPTY, of, first), of, second)
    decision = create(on, state, pod("new"), container(pod("new"), cpu=4))
    assert {first.cgroups_path, second.cgroups_path} <= {write.target.path for write in decision.writes}
    state = decide(on, decision.state, nri.StopContainer(of, first)).state
    decision = create(on, state, pod("other"), container(pod("other"), cpu=2))
    assert first.cgroups_path not in {write.target.path for write in decision.writes}


def test_a_container_of_which_devices_were_left_out_has_none_counted() -> None:
    of = pod("a", cpu=2)
    cut = replace(container(of, cpu=2), cut=(Cut.DEVICES,))
    assert create(node(), EMPTY, of, cut).steps[0] == "devices-not-counted"
    assert "devices-not-counted" not in create(node(), EMPTY, of, container(of, cpu=2)).steps
