"""What is written before an answer and what may wait, where a slice bounds the containers below it."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.agent.serving.handler import unreported_removal
from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.core.drift import MachineChanged
from nri_plugin.core.engine import decide
from nri_plugin.core.pod_news import PodHasEnded
from nri_plugin.core.pool import (
    all_writes,
    bounded_writes,
    files_wait,
    floor_writes,
    late_write,
    own_write,
    waiting_containers,
)
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.records import Allocation, CgroupRef, Phase
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod
from tests.builders import container, cpus, node, pod

BURSTABLE, BEST_EFFORT = CgroupRef("/kubepods/burstable"), CgroupRef("/kubepods/besteffort")
SHARED, GUARANTEED = pod("s", "Burstable"), pod("g")
ON = node()


def run(on: Node, state: State, of: Pod, what: Container) -> State:
    for event in (
        nri.RunPodSandbox(of),
        nri.CreateContainer(of, what),
        nri.StartContainer(of, what),
    ):
        state = decide(on, state, event).state
    return state


def shared_state(on: Node = ON) -> State:
    """A Burstable and a Guaranteed container run in the shared pool."""
    state = run(on, State(), SHARED, container(SHARED, cpu=0.5))
    return run(on, state, GUARANTEED, container(GUARANTEED, cpu=1.5))


def create(state: State, uid: str = "x", cpu: int = 2, on: Node = ON) -> Decision:
    return decide(on, state, nri.CreateContainer(pod(uid), container(pod(uid), cpu=cpu)))


def shown(writes: tuple[CpusetWrite, ...]) -> list[tuple[str, str]]:
    return [(write.target.path or write.target.parent, str(write.cpus)) for write in writes]


def test_a_smaller_pool_is_written_to_the_slices_then_to_containers_that_no_slice_bounds() -> None:
    state = shared_state()
    decision = create(state)
    assert shown(decision.writes) == [
        ("/kubepods/burstable", "0-1,4-15"),
        ("/kubepods/besteffort", "0-1,4-15"),
        ("/kubepods/podg/g-c-0", "0-1,4-15"),
    ]
    assert files_wait(ON, state, decision.state)
    assert list(waiting_containers(ON, decision.state)) == ["s-c-0"]


def test_a_larger_pool_is_written_to_no_slice_before_the_answer() -> None:
    before = run(ON, shared_state(), pod("x"), container(pod("x"), cpu=2))
    decision = decide(ON, before, nri.StopPodSandbox(pod("x")))
    assert shown(decision.writes) == [("/kubepods/podg/g-c-0", "0-15")]
    assert files_wait(ON, before, decision.state)


def test_a_file_that_waited_gets_the_pool_of_the_moment_at_which_it_is_written() -> None:
    state = create(create(shared_state()).state, "y").state
    (write,) = late_write(ON, state, "s-c-0", compare=False)
    assert write == CpusetWrite(write.target, cpus("0-1,6-15"), "s-c-0", compare=False)
    stopped = decide(ON, state, nri.StopContainer(SHARED, container(SHARED))).state
    assert late_write(ON, stopped, "s-c-0", compare=False) == ()
    assert late_write(ON, stopped, "never-there", compare=False) == ()
    assert [*bounded_writes(stopped, CpusetWrite(BURSTABLE, cpus("4")))] == []


def test_while_no_cpu_is_left_to_share_nothing_is_written_late() -> None:
    everything = State(
        containers=shared_state().containers, allocations={"x/c": Allocation(cpus=cpus("0-15"))}
    )
    assert late_write(ON, everything, "s-c-0", compare=False) == ()


def test_in_place_of_a_slice_the_containers_below_it_are_written() -> None:
    writes = bounded_writes(shared_state(), CpusetWrite(BURSTABLE, cpus("4-7"), bounds=True))
    assert [(write.container_id, str(write.cpus)) for write in writes] == [("s-c-0", "4-7")]
    assert bounded_writes(shared_state(), CpusetWrite(BEST_EFFORT, cpus("4-7"), bounds=True)) == []


@pytest.mark.parametrize("options", [{"pool_floor": False}, {"cpu_manager_policy": CPUManagerPolicy.NONE}])
def test_without_slices_that_bound_them_nothing_waits(options: dict[str, object]) -> None:
    before = run(ON, shared_state(), pod("x"), container(pod("x"), cpu=2))
    on = node(**options)
    decision = decide(on, before, nri.StopPodSandbox(pod("x")))
    assert {write.container_id for write in decision.writes if write.container_id} == {"s-c-0", "g-c-0"}
    assert not files_wait(on, before, decision.state)


def test_under_policy_none_the_slices_are_opened_last() -> None:
    before = run(ON, shared_state(), pod("x"), container(pod("x"), cpu=2))
    on = node(cpu_manager_policy=CPUManagerPolicy.NONE)
    writes = decide(on, before, nri.StopPodSandbox(pod("x"))).writes
    assert [write.target for write in writes[2:]] == [BURSTABLE, BEST_EFFORT]


def _pinned() -> State:
    return run(ON, State(), pod("x"), container(pod("x"), cpu=2))


_ENDS = {
    "removed": (nri.RemovePodSandbox(pod("x")),),
    "stopped and removed before a slice could be written": (
        nri.StopPodSandbox(pod("x")),
        nri.RemovePodSandbox(pod("x")),
    ),
    "its cgroup is gone": (unreported_removal(_pinned().pods["x"]),),
    "ended, says the exporter, and removed": (PodHasEnded(pod("x")), nri.RemovePodSandbox(pod("x"))),
    "not in the runtime's list": (nri.Synchronize((), ()),),
}


@pytest.mark.parametrize("policy", [CPUManagerPolicy.STATIC, CPUManagerPolicy.NONE])
@pytest.mark.parametrize("ends", _ENDS.values(), ids=_ENDS)
def test_the_slices_widen_with_the_end_of_the_last_pod_however_it_became_known(
    ends: tuple[nri.NRIEvent, ...], policy: CPUManagerPolicy
) -> None:
    on, state = node(cpu_manager_policy=policy), _pinned()
    held = {BURSTABLE: cpus("0-1,4-15"), BEST_EFFORT: cpus("0-1,4-15")}
    for event in ends:
        decision = decide(on, state, event)
        held |= {write.target: write.cpus for write in decision.writes if write.target in held}
        state = decision.state
    assert not state.pods
    assert held == {BURSTABLE: cpus("0-15"), BEST_EFFORT: cpus("0-15")}


def test_a_pool_that_has_nothing_in_common_with_the_former_one_is_written_as_a_whole() -> None:
    state, on = shared_state(), node(reserved="")
    before = replace(state, allocations={"x/c": Allocation(cpus=cpus("0-7"))})
    after = replace(state, allocations={"y/c": Allocation(cpus=cpus("8-15"))})
    assert not files_wait(on, before, after)


def test_a_slice_above_a_container_with_cpus_of_its_own_is_no_floor() -> None:
    """Policy or annotations gave a Burstable container exclusive CPUs, which the pool does not have."""
    other = pod("o", "Burstable")
    state = run(ON, shared_state(), other, container(other, cpu=2))
    state = state.with_allocation("o/c", Allocation(cpus=cpus("8-9")))
    assert [write.target for write in floor_writes(ON, state)] == [BEST_EFFORT]
    decision = create(state)
    assert shown(decision.writes) == [
        ("/kubepods/besteffort", "0-1,4-7,10-15"),
        ("/kubepods/burstable/pods/s-c-0", "0-1,4-7,10-15"),
        ("/kubepods/podg/g-c-0", "0-1,4-7,10-15"),
    ]
    assert [write.make_room for write in own_write(ON, state, state.containers["o-c-0"])] == [True]


def test_an_owner_whose_cpus_are_all_offline_follows_the_pool() -> None:
    state = run(ON, shared_state(), pod("o"), container(pod("o"), cpu=2))
    assert str(state.allocations["o/c"].cpus) == "2-3"
    on = dataclasses.replace(ON, topology=replace(ON.topology, online=ON.topology.online - cpus("2-3")))
    writes = shown(create(state, on=on).writes)
    assert ("/kubepods/podo/o-c-0", "0-1,6-15") in writes
    assert [each for each in shown(create(state).writes) if "podo" in each[0]] == []


def test_an_allocation_of_a_pod_that_is_not_known_opens_no_slice() -> None:
    state = shared_state().with_allocation("gone/c", Allocation(cpus=cpus("8-9")))
    assert len(floor_writes(ON, state)) == 2


def test_only_a_container_that_a_slice_bounds_leaves_the_cgroups_above_it_alone_when_it_starts() -> None:
    state = shared_state()
    rooms = {key: own_write(ON, state, record)[0].make_room for key, record in state.containers.items()}
    assert rooms == {"s-c-0": False, "g-c-0": True}
    unbounded = own_write(node(pool_floor=False), state, state.containers["s-c-0"])
    assert unbounded[0].make_room


def test_after_synchronize_the_files_below_slices_wait_and_slices_only_shrink_before() -> None:
    state = create(shared_state()).state
    writes = all_writes(ON, state, waits=True)
    assert shown(writes) == [
        ("/kubepods/burstable", "0-1,4-15"),
        ("/kubepods/besteffort", "0-1,4-15"),
        ("/kubepods/podg/g-c-0", "0-1,4-15"),
    ]
    assert [(write.narrows, write.bounds) for write in writes] == [(True, True)] * 2 + [(False, False)]


def test_a_changed_machine_narrows_slices_before_files_and_widens_them_after() -> None:
    writes = decide(ON, shared_state(), MachineChanged()).writes
    assert [(write.target.path or write.target.parent, write.narrows) for write in writes] == [
        ("/kubepods/burstable", True),
        ("/kubepods/besteffort", True),
        ("/kubepods/burstable/pods/s-c-0", False),
        ("/kubepods/podg/g-c-0", False),
        ("/kubepods/burstable", False),
        ("/kubepods/besteffort", False),
    ]


def test_containers_that_do_not_run_are_in_no_write() -> None:
    state = shared_state()
    for key in ("s-c-0", "g-c-0"):
        state = state.with_container(replace(state.containers[key], phase=Phase.CREATED))
    assert [write.container_id for write in create(state).writes] == ["", ""]
