"""Pods that are over although the runtime did not say so."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from nri_plugin.agent.repair.watches import (
    ENDED_PAUSE_S,
    MOST_DROPPED,
    MOST_LOOKED_AT,
    SOON_S,
    EndedPodsWatch,
    LostRemovals,
)
from nri_plugin.agent.serving.handler import ended_pods, unreported_removal
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.engine import decide
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import (
    CreateContainer,
    NRIEvent,
    RemoveContainer,
    RunPodSandbox,
    StartContainer,
    StopContainer,
    Synchronize,
)
from nri_plugin.wire.nri.messages import ContainerState, Pod
from tests.agent_fakes import Bench
from tests.builders import container, cpus, machine, node, pod

SMALL = node(machine(nodes=1, cores=3), pool_floor=False)
A, B = pod("a"), pod("b")


def after_runtime_restart() -> Bench:
    """The runtime lists a pod that was promised all there is, without the container that ended before."""
    bench = Bench(SMALL)
    bench.ask(Synchronize((A,), (container(A, cpu=4, cpus="2-5"),)))
    bench.ask(Synchronize((A,), ()))
    bench.forget()
    return bench


def test_a_pod_between_two_instances_of_its_container_keeps_its_promise() -> None:
    bench = after_runtime_restart()
    assert not bench.handler.release_ended()
    assert "available=0" in bench.ask(CreateContainer(B, container(B, cpu=4))).refusal
    assert bench.handler.state.exclusive == cpus("2-5")


def test_a_pod_whose_cgroup_is_gone_is_let_go_by_the_clock() -> None:
    bench = after_runtime_restart()
    bench.cgroups.missing = {A.cgroup_parent}
    assert bench.handler.release_ended()
    assert bench.handler.state == State()
    assert bench.checkpoint.saved == State()
    assert not bench.handler.release_ended()


def test_nobody_is_refused_for_what_a_pod_holds_whose_cgroup_is_gone() -> None:
    bench = after_runtime_restart()
    bench.cgroups.missing = {A.cgroup_parent}
    assert bench.ask(CreateContainer(B, container(B, cpu=4))).refusal == ""
    assert bench.handler.state.allocations["b/c"].cpus == cpus("2-5")
    assert "a/c" not in bench.handler.state.allocations


def test_pods_without_promises_are_not_looked_at() -> None:
    state = Bench(SMALL).handler.state
    seen: list[CgroupRef] = []
    assert ended_pods(state, lambda ref: bool(seen.append(ref))) == []
    assert seen == []


def test_the_unreported_removal_names_the_pod_and_its_sandbox() -> None:
    (pod_record,) = after_runtime_restart().handler.state.pods.values()
    told = unreported_removal(pod_record).pod
    assert (told.id, told.uid, told.namespace, told.name) == ("sb-a", "a", "default", "a")


class Clock:
    """A loop that keeps one timer."""

    def __init__(self) -> None:
        self.now, self.due, self.then = 100.0, 0.0, lambda: None

    def clock(self) -> float:
        return self.now

    def set_timer(self, name: str, at: float, then: Callable[[], None]) -> None:
        assert name == "ended pods"
        self.due, self.then = at, then


def watched() -> tuple[Clock, list[float], EndedPodsWatch]:
    clock, looks = Clock(), list[float]()
    watch = EndedPodsWatch(lambda: bool(looks.append(clock.now)), clock)  # type: ignore[arg-type]
    watch.start()
    return clock, looks, watch


def outcome(before: State, event: NRIEvent) -> RequestOutcome:
    decision = decide(SMALL, before, event)
    return RequestOutcome(
        node=SMALL,
        event=event,
        before=before,
        decision=decision,
        refusal="",
        failed=False,
        decide_s=0,
        total_s=0,
    )


def test_pods_are_looked_at_by_the_clock() -> None:
    clock, looks, _ = watched()
    for _ in range(2):
        assert clock.due == clock.now + ENDED_PAUSE_S
        clock.now = clock.due
        clock.then()
    assert looks == [110, 120]


@pytest.mark.parametrize(("told", "pause_s"), [(False, SOON_S), (True, ENDED_PAUSE_S)])
def test_a_pod_without_containers_is_looked_at_soon_where_its_end_may_go_untold(
    told: bool, pause_s: float
) -> None:
    clock, _, watch = watched()
    what = container(A, cpu=2)
    state = State()
    for event in (RunPodSandbox(A), CreateContainer(A, what), StopContainer(A, what)):
        state = decide(SMALL, state, event).state
    if not told:
        state = decide(SMALL, state, Synchronize((A,), (replace(what, state=ContainerState.STOPPED),))).state
    watch(outcome(state, StopContainer(A, what)))
    assert clock.due == clock.now + ENDED_PAUSE_S
    watch(outcome(state, RemoveContainer(A, what)))
    assert clock.due == clock.now + pause_s
    watch(outcome(state, RemoveContainer(B, container(B))))  # nobody knows it


def test_a_pod_that_holds_nothing_and_that_only_its_end_would_remove_is_looked_at_too() -> None:
    shared = pod("s", "Burstable")
    state = decide(SMALL, State(), Synchronize((shared,), (container(shared),))).state
    assert ended_pods(state, lambda _: True) == []
    state = decide(SMALL, state, RemoveContainer(shared, container(shared))).state
    assert [one.uid for one in ended_pods(state, lambda _: True)] == ["s"]
    assert ended_pods(decide(SMALL, State(), RunPodSandbox(shared)).state, lambda _: True) == []


# Records whose removal was lost: they hold nothing, and would stay for ever


CREATED = (RunPodSandbox, CreateContainer)
STARTED = (*CREATED, StartContainer)
BARE = replace(pod("x", "BestEffort"), cgroup_parent="/crictl/x")


def after(*parts: tuple[Pod, Sequence[type]]) -> Bench:
    bench = Bench(SMALL)
    for one, kinds in parts:
        for kind in kinds:
            bench.ask(kind(one) if kind is RunPodSandbox else kind(one, container(one)))
    return bench


def looks(bench: Bench, times: int = 2) -> None:
    drop = LostRemovals(bench.handler)
    for number in range(times):
        drop(1000.0 + 10 * number)


@pytest.mark.parametrize(
    ("one", "kinds", "is_gone", "times", "stays"),
    [
        (pod("s", "BestEffort"), STARTED, True, 2, False),
        (pod("s", "BestEffort"), CREATED, True, 2, False),  # the kubelet made the cgroup before the container
        (pod("s", "BestEffort"), STARTED, True, 1, True),
        (pod("s", "BestEffort"), STARTED, False, 9, True),
        (BARE, CREATED, True, 9, True),  # its cgroup comes with the first process
        (BARE, STARTED, True, 2, False),
        (replace(BARE, cgroup_parent=""), STARTED, True, 9, True),
    ],
)
def test_a_pod_whose_cgroup_is_gone_at_two_looks_is_dropped(
    one: Pod, kinds: Sequence[type], is_gone: bool, times: int, stays: bool
) -> None:
    bench = after((one, kinds))
    bench.cgroups.missing = {one.cgroup_parent} if is_gone else set()
    looks(bench, times)
    assert (one.uid in bench.handler.state.pods) == stays
    assert bool(bench.handler.state.containers) == stays
    assert bench.checkpoint.saved == bench.handler.state


@pytest.mark.parametrize(
    ("successor", "is_gone", "stays"),
    [(STARTED[1:], True, False), (CREATED[1:], True, False), (STARTED[1:], False, True), ((), True, True)],
)
@pytest.mark.parametrize("is_stop_lost", [False, True])
def test_a_container_that_another_one_follows_is_dropped(
    successor: Sequence[type], is_gone: bool, stays: bool, is_stop_lost: bool
) -> None:
    shared = pod("s", "BestEffort")
    old = container(shared)
    bench = after((shared, STARTED))
    if not is_stop_lost:
        bench.ask(StopContainer(shared, old))
    new = replace(old, id="new", cgroups_path="/new")
    for kind in successor:
        bench.ask(kind(shared, new))
    bench.cgroups.missing = {old.cgroups_path} if is_gone else set()
    looks(bench)
    assert (old.id in bench.handler.state.containers) == stays
    assert ("new" in bench.handler.state.containers) == bool(successor)


def test_a_look_at_lost_removals_has_an_end_and_a_few_looks_find_all() -> None:
    many = [pod(f"s{number}", "BestEffort") for number in range(3 * MOST_LOOKED_AT // 2)]
    bench = after(*((one, STARTED) for one in many))
    bench.cgroups.missing = {one.cgroup_parent for one in many}
    asked: list[CgroupRef] = []
    is_removed = bench.cgroups.is_removed
    bench.cgroups.is_removed = lambda ref: bool(asked.append(ref)) or is_removed(ref)  # type: ignore[method-assign]
    drop, now, rounds = LostRemovals(bench.handler), 1000.0, 0
    while bench.handler.state != State():
        before = len(bench.handler.state.pods)
        asked.clear()
        now += SOON_S if drop(now) else ENDED_PAUSE_S
        rounds += 1
        assert len(asked) <= MOST_LOOKED_AT + MOST_DROPPED
        assert before - len(bench.handler.state.pods) <= MOST_DROPPED
    assert rounds < 40
    assert now < 1060
