"""What the engine makes of ends, of news that comes late or twice, and of nodes where it has nothing to say."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    CPUManagerPolicy,
    Effect,
    MemoryManagerPolicy,
    Node,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Phase
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources
from tests.builders import container, cpu_resources, cpus, machine, node, nodes, pod

EMPTY = State()


def run(on: Node, state: State, of: Pod, *containers: Container) -> State:
    """Through the whole start of a pod and its containers, as a runtime plays it."""
    state = decide(on, state, nri.RunPodSandbox(of)).state
    for what in containers:
        for event in (nri.CreateContainer, nri.PostCreateContainer, nri.StartContainer):
            decision = decide(on, state, event(of, what))
            assert decision.refusal is None, decision.refusal
            state = decision.state
    return state


def written(decision: Decision) -> dict[str, str]:
    return {write.container_id: str(write.cpus) for write in decision.writes if write.container_id}


def test_a_removed_pod_is_forgotten_with_its_promises_and_the_pool_grows_back_though_nobody_told_its_stop() -> (
    None
):
    on = node(pool_floor=False)
    shared = pod("s", "Burstable")
    before = run(on, EMPTY, shared, container(shared, cpu=1))
    decision = decide(
        on, run(on, before, pod(), container(pod(), cpu=2)), nri.RemovePodSandbox(Pod(id="sb-p1"))
    )
    assert decision.state == before
    assert decision.steps == ("released", "forgotten")
    assert written(decision) == {"s-c-0": "0-15"}


def test_a_stopped_pod_is_still_known_its_containers_are_over_and_its_hint_is_open_again() -> None:
    on = node(
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        topology_manager_scope=TopologyManagerScope.POD,
    )
    of = pod(cpu=8)
    state = run(on, EMPTY, of, container(of, "a", cpu=4), container(of, "b", cpu=4))
    assert state.pods["p1"].affinity == nodes(1)
    decision = decide(on, state, nri.StopPodSandbox(of))
    known = decision.state.pods["p1"]
    assert (known.affinity, known.affinity_preferred) == (None, True)
    assert {record.phase for record in decision.state.containers.values()} == {Phase.STOPPED}
    assert decision.steps == ("released",)


@pytest.mark.parametrize("event", [nri.StopPodSandbox, nri.RemovePodSandbox])
@pytest.mark.parametrize("sandbox", ["sb-p2", "older"])
def test_the_end_of_a_sandbox_that_is_nobodys_changes_nothing(event: type, sandbox: str) -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    uid = "p1" if sandbox == "older" else "p2"
    decision = decide(on, state, event(pod(uid, sandbox=sandbox)))
    assert decision == Decision(state, steps=("unknown-sandbox",))


def test_the_stop_of_an_unknown_container_is_answered_and_changes_nothing() -> None:
    decision = decide(node(), EMPTY, nri.StopContainer(pod(), container(pod(), cpu=2)))
    assert decision == Decision(EMPTY, nri.StopContainerResponse(), steps=("unknown",))


def test_the_stop_of_an_unknown_container_still_carries_what_others_wait_for() -> None:
    on = node(effect=Effect.UPDATE)
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    state = run(on, state, pod(), container(pod(), cpu=2))
    state = decide(on, state, nri.StopPodSandbox(pod())).state
    decision = decide(on, state, nri.StopContainer(pod("x"), container(pod("x"))))
    assert decision.response == nri.StopContainerResponse(
        (ContainerUpdate("s-c-0", Resources(cpus="0-15"), ignore_failure=True),)
    )


def test_the_removal_of_an_unknown_container_changes_nothing() -> None:
    decision = decide(node(), EMPTY, nri.RemoveContainer(pod(), container(pod())))
    assert decision == Decision(EMPTY, steps=("unknown",))


def test_a_removed_container_leaves_its_cpus_to_its_name_while_the_pods_end_will_be_told() -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    decision = decide(on, state, nri.RemoveContainer(pod(), container(pod())))
    assert decision.steps == ("removed",)
    assert not decision.state.containers
    assert decision.state.exclusive == cpus("2-3")


def test_after_a_restart_the_dead_container_of_a_pod_leaves_its_cpus_to_the_next_instance() -> None:
    """A pod in CrashLoopBackOff, whose only container has no record in the runtime for a while."""
    on, first = node(), container(pod(), cpu=2)
    state = run(on, EMPTY, pod(), first)
    for event in (
        nri.Synchronize((pod(),), (replace(first, resources=replace(first.resources, cpus="2-3")),)),
        nri.StopContainer(pod(), first),
        nri.RemoveContainer(pod(), first),
        nri.RunPodSandbox(pod("b")),
        nri.CreateContainer(pod("b"), container(pod("b"), cpu=2)),
        nri.CreateContainer(pod(), container(pod(), cpu=2, number=1)),
    ):
        decision = decide(on, state, event)
        state = decision.state
    assert decision.refusal is None
    assert {key: str(one.cpus) for key, one in state.allocations.items()} == {"p1/c": "2-3", "b/c": "4-5"}
    assert decide(on, state, nri.StopPodSandbox(pod())).state.exclusive == cpus("4-5")


def test_where_no_cgroup_can_be_seen_the_last_container_of_a_pod_whose_end_may_go_untold_ends_it() -> None:
    on = node(pool_floor=False, effect=Effect.UPDATE)
    shared = pod("s", "Burstable")
    state = run(on, EMPTY, shared, container(shared, cpu=1))
    first, last = container(pod(), "a", cpu=2), container(pod(), "b", cpu=2)
    for what in (first, last):
        for event in (nri.CreateContainer, nri.PostCreateContainer, nri.StartContainer):
            state = decide(on, state, event(pod(), what)).state
    one_left = decide(on, state, nri.RemoveContainer(pod(), first))
    assert one_left.steps == ("removed",)
    assert one_left.state.exclusive == cpus("2-5")
    none_left = decide(on, one_left.state, nri.RemoveContainer(pod(), last))
    assert none_left.steps == ("removed", "last-of-pod")
    assert none_left.state.exclusive == cpus("")
    assert list(none_left.state.pods) == ["s"]


def test_without_a_cpu_policy_starts_are_not_read_back_and_updates_not_answered_with_ours() -> None:
    on = node(cpu_manager_policy=CPUManagerPolicy.NONE)
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    started = decide(on, state, nri.PostStartContainer(pod(), container(pod(), cpu=2)))
    assert started == Decision(state)
    foreign = nri.UpdateContainer(pod(), container(pod(), cpu=2), Resources(cpus="8-9"))
    assert decide(on, state, foreign) == Decision(state, nri.UpdateContainerResponse())
    resize = nri.UpdateContainer(pod(), container(pod(), cpu=2), cpu_resources(4))
    assert decide(on, state, resize).refusal is None


def test_a_container_found_running_when_its_start_is_over_is_adopted_and_put_right() -> None:
    decision = decide(node(), EMPTY, nri.PostStartContainer(pod(), container(pod(), cpu=2)))
    assert decision.steps[0] == "discovered"
    assert written(decision) == {"p1-c-0": "2-3"}
    assert [check.cpus for check in decision.checks] == [cpus("2-3")]


def test_a_container_is_not_created_where_its_shared_pool_lost_its_last_cpu() -> None:
    """CPUs go offline; a container without a cpuset would then run on everybody's."""
    small = machine(nodes=1, cores=2)
    state = run(node(small, reserved="2-3"), EMPTY, pod(), container(pod(), cpu=2))
    left = node(replace(small, online=cpus("0-1")), reserved="0")
    shared = pod("s", "Burstable")
    decision = decide(left, state, nri.CreateContainer(shared, container(shared, cpu=1)))
    assert decision.refusal
    assert decision.refusal.kind is RefusalKind.CPUS
    assert "all online CPUs 0-1 are exclusive; bring CPUs online" in str(decision.refusal)
    assert decision.state is state


def test_a_container_without_a_cpu_that_is_never_refused_holds_no_memory() -> None:
    small = machine(nodes=1, cores=2)
    state = run(node(small, reserved="2-3"), EMPTY, pod(), container(pod(), cpu=2))
    left = node(
        replace(small, online=cpus("0-1")),
        reserved="0",
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        never_refuse=frozenset({"vital"}),
    )
    vital = pod("v", namespace="vital")
    decision = decide(left, state, nri.CreateContainer(vital, container(vital, cpu=0.5, memory=1 << 20)))
    assert decision.overruled
    assert decision.response == nri.CreateContainerResponse()
    assert decision.state.allocations == state.allocations


def test_foreign_memory_nodes_in_an_update_are_replaced_by_the_containers_own() -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2))
    key = "p1/c"
    state = state.with_allocation(key, replace(state.allocations[key], mems=nodes(0)))
    mine = container(pod(), cpu=2, cpus="2-3", mems="0")

    def answered(resources: Resources) -> object:
        return decide(on, state, nri.UpdateContainer(pod(), mine, resources)).response

    ours = ContainerUpdate("p1-c-0", Resources(cpus="2-3", mems="0"))
    assert answered(Resources(mems="0-1")) == nri.UpdateContainerResponse((ours,))
    assert answered(Resources(mems="0")) == nri.UpdateContainerResponse()
    assert answered(Resources()) == nri.UpdateContainerResponse()


def test_an_update_of_a_container_that_does_not_run_yet_writes_no_cgroup() -> None:
    on = node(pool_floor=False)
    what = container(pod(), cpu=2)
    state = decide(on, EMPTY, nri.CreateContainer(pod(), what)).state
    state = decide(on, state, nri.PostCreateContainer(pod(), what)).state
    early = decide(on, state, nri.UpdateContainer(pod(), what, Resources(cpus="8-9")))
    assert early.writes == ()
    running = decide(on, state, nri.StartContainer(pod(), what)).state
    late = decide(on, running, nri.UpdateContainer(pod(), what, Resources(cpus="8-9")))
    assert written(late) == {"p1-c-0": "2-3"}


def test_a_second_instance_changes_nothing_for_the_first_whose_end_was_not_told() -> None:
    on = node()
    state = run(on, EMPTY, pod(), container(pod(), cpu=2), container(pod(), "other", cpu=2))
    state = decide(on, state, nri.CreateContainer(pod(), container(pod(), cpu=2, number=1))).state
    assert {id_: record.phase for id_, record in state.containers.items()} == {
        "p1-c-0": Phase.RUNNING,
        "p1-other-0": Phase.RUNNING,
        "p1-c-1": Phase.CREATING,
    }


def test_pods_whose_uids_begin_alike_share_nothing_and_end_alone():
    on = node()
    one, other = pod("team/db-0"), pod("team")
    state = run(on, EMPTY, one, container(one, cpu=2))
    state = run(on, state, other, container(other, cpu=2))
    assert violations(on, state) == []
    assert {key: len(held.cpus) for key, held in state.allocations.items()} == {"team/db-0/c": 2, "team/c": 2}
    listed = nri.Synchronize((one, other), (container(one, cpu=2), container(other, cpu=2)))
    assert decide(on, state, listed).state.allocations == state.allocations
    state = decide(on, state, nri.StopPodSandbox(other)).state
    assert list(state.allocations) == ["team/db-0/c"]
    state = decide(on, state, nri.Synchronize((one,), (container(one, cpu=2),))).state
    assert list(state.allocations) == ["team/db-0/c"]
