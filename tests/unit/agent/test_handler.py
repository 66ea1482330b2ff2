import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.agent.cpusets import PORTION
from nri_plugin.agent.serving.handler import LONGEST_WAIT_S, MOST_UNACCOUNTED
from nri_plugin.agent.serving.outcome import RequestOutcome, condensed
from nri_plugin.core.decision import CpusetWrite, Decision
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Effect, Node, TopologyManagerPolicy
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod
from tests.agent_fakes import Bench
from tests.builders import container, cpu_resources, cpus, node, pod

SHARED_POD, EXCLUSIVE_POD = pod("shared", "Burstable"), pod("exclusive", cpu=2)


def run(bench: Bench, of: Pod, what: Container) -> nri.NRIResponse:
    """Bring a container to life, as a runtime does."""
    bench.ask(nri.RunPodSandbox(of))
    answer = bench.ask(nri.CreateContainer(of, what))
    assert answer.refusal == ""
    bench.cgroups.values[what.cgroups_path] = bench.handler.state.desired_cpus(
        bench.handler.node, bench.handler.state.containers[what.id]
    )
    for event in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
        assert bench.ask(event(of, what)).refusal == ""
    return answer.response


class FakeHistory:
    """Takes notes of what would be recorded."""

    def __init__(self, journal: list[str], *, broken: bool = False) -> None:
        self._journal, self._broken = journal, broken

    def decided(self, node: Node, before: State, event: object, decision: Decision, **_: object) -> None:
        if self._broken:
            raise OSError("no such recording")
        self._journal.append(f"record {type(event).__name__}")

    def changed(self, node: Node, state: State) -> None:
        self._journal.append("record the node")


@pytest.fixture
def bench() -> Bench:
    """A node on which one shared container runs."""
    made = Bench(node(pool_floor=False))
    run(made, SHARED_POD, container(SHARED_POD, cpu=0.5))
    made.forget()
    return made


def create_exclusive(bench: Bench, count: int = 2, number: int = 0) -> nri.NRIEvent:
    return nri.CreateContainer(EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=count, number=number))


def test_an_exclusive_container_is_saved_then_others_are_shrunk_then_it_is_answered(bench: Bench):
    answer = bench.ask(create_exclusive(bench))
    shared = container(SHARED_POD).cgroups_path
    assert bench.journal == ["save", f"write {shared}=0-1,4-15", "answer"]
    assert answer.response == nri.CreateContainerResponse(resources=answer.response.resources)
    assert answer.response.resources.cpus == "2-3"
    assert bench.checkpoint.saved == bench.handler.state


def test_a_state_that_did_not_change_is_not_saved_again(bench: Bench):
    before = bench.handler.state
    bench.ask(nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    assert bench.handler.state == before
    assert bench.journal == ["answer"]


def test_a_refusal_of_policy_carries_its_reason_and_changes_nothing():
    bench = Bench(node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE))
    before = bench.handler.state
    answer = bench.ask(nri.CreateContainer(EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=12)))
    assert answer.refusal.startswith("TopologyAffinityError: ")
    assert bench.journal == ["refuse"]
    assert bench.handler.state is before
    assert bench.lines.texts("WARNING") == ["refused"]
    assert bench.lines.fields("refused")["err"] == answer.refusal


def test_a_checkpoint_that_cannot_be_saved_refuses_the_container_and_changes_nothing(bench: Bench):
    before, values = bench.handler.state, dict(bench.cgroups.values)
    bench.checkpoint.failures = 1
    answer = bench.ask(create_exclusive(bench))
    assert "no space left" in answer.refusal
    assert bench.journal == ["save failed", "refuse"]
    assert bench.handler.state is before
    assert bench.cgroups.values == values


def test_after_a_failed_save_the_next_event_saves_even_an_unchanged_state(bench: Bench):
    bench.checkpoint.failures = 1
    bench.ask(create_exclusive(bench))
    bench.forget()
    bench.ask(nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    assert bench.journal == ["save", "answer"]


def test_a_release_that_cannot_be_saved_is_released_in_memory_said_and_saved_at_the_next_event(bench: Bench):
    run(bench, EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=2))
    bench.forget()
    bench.checkpoint.failures = 1
    assert bench.ask(nri.StopPodSandbox(EXCLUSIVE_POD)).refusal == ""
    assert bench.handler.state.exclusive == CPUSet()
    assert bench.lines.texts("ERROR") == ["the checkpoint cannot be saved"]
    assert bench.journal[0] == "save failed"
    bench.ask(nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    assert bench.checkpoint.saved == bench.handler.state


@pytest.mark.parametrize(("left", "timeout"), [(2.0, 1.0), (0.5, 0.25), (-1.0, 0.0), (None, 1.0)])
def test_a_save_may_take_half_of_the_time_that_is_left(bench: Bench, left: float | None, timeout: float):
    bench.ask(create_exclusive(bench), time_left=left)
    assert bench.checkpoint.timeouts[-1] == pytest.approx(timeout)


def test_a_failed_write_puts_back_the_others_and_the_checkpoint_and_refuses():
    bench = Bench(node(pool_floor=False))
    first, second = pod("a", "Burstable"), pod("b", "Burstable")
    run(bench, first, container(first, cpu=0.5))
    run(bench, second, container(second, cpu=0.5))
    before = bench.handler.state
    bench.forget()
    bench.cgroups.failing = {container(second).cgroups_path}
    answer = bench.ask(create_exclusive(bench))
    done = container(first).cgroups_path
    assert bench.journal == [
        "save",
        f"write {done}=0-1,4-15",
        f"write {container(second).cgroups_path} failed",
        f"write {done}=0-15",
        "save",
        "refuse",
    ]
    assert "was not taken" in answer.refusal
    assert bench.handler.state is before
    assert bench.checkpoint.saved == before


def test_what_cannot_be_put_back_is_said(bench: Bench):
    first = container(SHARED_POD).cgroups_path
    writes = (
        CpusetWrite(CgroupRef(SHARED_POD.cgroup_parent, first), cpus("4-7")),
        CpusetWrite(CgroupRef("/b"), cpus("4")),
    )

    def decide(on, state, event):
        bench.cgroups.failing = {"/b"}
        return Decision(state, nri.CreateContainerResponse(), writes=writes)

    bench.handler._decide = decide
    write = bench.cgroups.write_cpus

    def refuse_to_grow(ref, value, *, compare):
        if len(value) > 4:
            raise HostError("/x", "no")
        return write(ref, value, compare=compare)

    bench.cgroups.write_cpus = refuse_to_grow  # type: ignore[method-assign]
    assert bench.ask(create_exclusive(bench)).refusal
    assert "cpuset not restored" in bench.lines.texts("ERROR")


def test_a_failed_write_at_a_release_keeps_the_release_and_writes_the_rest():
    bench = Bench(node(pool_floor=False))
    first, second = pod("a", "Burstable"), pod("b", "Burstable")
    for of in (first, second):
        run(bench, of, container(of, cpu=0.5))
    run(bench, EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=2))
    bench.cgroups.failing = {container(first).cgroups_path}
    answer = bench.ask(nri.StopPodSandbox(EXCLUSIVE_POD))
    assert answer.refusal == ""
    assert bench.handler.state.exclusive == CPUSet()
    assert bench.cgroups.values[container(second).cgroups_path] == cpus("0-15")
    assert "cpuset not written" in bench.lines.texts("ERROR")


def test_a_container_is_not_started_on_cpus_that_could_not_be_taken_from_it(bench: Bench):
    late = pod("late", "Burstable")
    what = container(late, cpu=0.5)
    bench.ask(nri.RunPodSandbox(late))
    bench.ask(nri.CreateContainer(late, what))
    bench.ask(create_exclusive(bench))
    bench.cgroups.failing = {what.cgroups_path}
    assert "was not taken" in bench.ask(nri.StartContainer(late, what)).refusal


def test_a_start_is_put_right_before_it_is_answered(bench: Bench):
    late = pod("late", "Burstable")
    what = container(late, cpu=0.5)
    bench.ask(nri.RunPodSandbox(late))
    assert bench.ask(nri.CreateContainer(late, what)).response.resources.cpus == "0-15"
    bench.cgroups.missing = {what.cgroups_path}
    bench.ask(create_exclusive(bench))
    bench.cgroups.missing = set()
    bench.forget()
    bench.ask(nri.StartContainer(late, what))
    assert bench.journal == ["save", f"write {what.cgroups_path}=0-1,4-15", "answer"]


@pytest.mark.parametrize("event", [nri.CreateContainer, nri.UpdateContainer])
def test_an_exception_in_a_decision_refuses_with_one_line_and_logs_the_traceback(event: type):
    def broken(*_: object) -> Decision:
        raise KeyError("no such thing")

    bench = Bench(node(), decide=broken)
    what = container(EXCLUSIVE_POD, cpu=2)
    made = (
        event(EXCLUSIVE_POD, what, what.resources)
        if event is nri.UpdateContainer
        else event(EXCLUSIVE_POD, what)
    )
    answer = bench.ask(made)
    assert answer.refusal == "internal error: KeyError: 'no such thing'"
    assert bench.lines.texts("ERROR") == ["internal error"]


@pytest.mark.parametrize(
    ("event", "response"),
    [
        (nri.RunPodSandbox(SHARED_POD), nri.EmptyResponse()),
        (nri.StartContainer(SHARED_POD, container(SHARED_POD)), nri.EmptyResponse()),
        (nri.StopContainer(SHARED_POD, container(SHARED_POD)), nri.StopContainerResponse()),
        (nri.Synchronize((SHARED_POD,), ()), nri.SynchronizeResponse()),
    ],
)
def test_an_exception_at_any_other_event_is_answered_with_nothing(
    event: nri.NRIEvent, response: nri.NRIResponse
):
    def broken(*_: object) -> Decision:
        raise ZeroDivisionError

    bench = Bench(node(), decide=broken)
    answer = bench.ask(event)
    assert answer.response == response
    assert not answer.refusal
    assert bench.ask(event).response == response


def test_a_decision_that_overlaps_is_refused_and_not_carried_out():
    one, two = (Allocation(cpus=cpus("2-3"), cpu_milli=2000) for _ in range(2))

    def overlapping(on, state: State, event) -> Decision:
        after = state.with_allocation("p/a", one).with_allocation("p/b", two)
        return Decision(after, nri.CreateContainerResponse(), steps=("packed",))

    bench = Bench(node(), decide=overlapping)
    answer = bench.ask(create_exclusive(bench))
    assert answer.refusal.startswith(
        "decision would break an invariant: CPU 2 is exclusive to both p/a and p/b"
    )
    assert answer.refusal.endswith("(steps: packed)")
    assert bench.journal == ["refuse"]
    assert bench.handler.state == State()


def test_a_flaw_that_was_there_before_blocks_nobody():
    state = State().with_allocation("p/a", Allocation(cpus=cpus("0-1"), cpu_milli=2000))
    bench = Bench(node(), state)  # 0-1 became reserved while the container ran
    assert violations(bench.handler.node, bench.handler.state)
    assert bench.ask(create_exclusive(bench)).refusal == ""


def test_an_event_the_engine_leaves_bare_gets_the_response_its_kind_must_have():
    bench = Bench(node(), decide=lambda on, state, event: Decision(state))
    what = container(SHARED_POD)
    assert (
        bench.ask(nri.UpdateContainer(SHARED_POD, what, what.resources)).response
        == nri.UpdateContainerResponse()
    )
    assert bench.ask(nri.StopContainer(SHARED_POD, what)).response == nri.StopContainerResponse()


def test_checks_are_read_back_and_a_difference_is_said(bench: Bench):
    what = container(SHARED_POD, cpu=0.5)
    answer = bench.ask(nri.PostStartContainer(SHARED_POD, what))
    bench.cgroups.values[what.cgroups_path] = cpus("0-3")
    bench.handler.read_back(answer.checks)
    assert bench.lines.texts("WARNING") == ["effective cpuset differs from the desired one"]
    fields = bench.lines.fields("effective cpuset differs from the desired one")
    assert (str(fields["desired"]), str(fields["observed"])) == ("0-15", "0-3")


def test_a_check_that_agrees_or_has_no_cgroup_says_nothing(bench: Bench):
    what = container(SHARED_POD, cpu=0.5)
    answer = bench.ask(nri.PostStartContainer(SHARED_POD, what))
    bench.lines.lines.clear()
    bench.handler.read_back(answer.checks)
    del bench.cgroups.values[what.cgroups_path]
    bench.handler.read_back(answer.checks)
    assert bench.lines.lines == []


def test_a_check_that_cannot_be_read_is_said(bench: Bench):
    answer = bench.ask(nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    bench.cgroups.failing = {container(SHARED_POD).cgroups_path}
    bench.handler.read_back(answer.checks)
    assert bench.lines.texts("WARNING") == ["effective cpuset unreadable"]


def test_one_line_per_decision_names_who_what_and_how_long(bench: Bench):
    bench.ask(create_exclusive(bench))
    assert len(bench.lines.lines) == 1
    fields = bench.lines.fields("decided")
    assert {"op", "event", "pod", "container", "cpus", "steps", "took_us"} <= set(fields)
    assert (fields["event"], fields["pod"], fields["cpus"]) == ("CreateContainer", "default/exclusive", "2-3")


def test_a_hint_that_may_not_be_the_best_is_marked(bench: Bench):
    bench.ask(create_exclusive(bench))
    assert bench.lines.fields("decided")["exact"] is None
    doubtful = Bench(node(), decide=lambda _, state, __: Decision(state, steps=("inexact-hint", "exclusive")))
    doubtful.ask(create_exclusive(doubtful))
    assert doubtful.lines.fields("decided")["exact"] == "no"


def test_events_that_change_nothing_are_said_at_debug_level_only(bench: Bench):
    bench.ask(nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    assert {level for level, _, _ in bench.lines.lines} == {"DEBUG"}


def test_a_synchronize_that_agrees_with_the_checkpoint_writes_nothing(bench: Bench):
    run(bench, EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=2))
    listed = nri.Synchronize(
        (SHARED_POD, EXCLUSIVE_POD),
        (
            container(SHARED_POD, cpu=0.5, cpus="0-15"),
            container(EXCLUSIVE_POD, cpu=2, cpus="2-3"),
        ),
    )
    bench.ask(listed)
    bench.forget()
    bench.ask(listed)
    assert bench.journal == ["answer"]


def test_without_a_cgroup_tree_changes_travel_in_the_answer():
    bench = Bench(node(effect=Effect.UPDATE))
    run(bench, SHARED_POD, container(SHARED_POD, cpu=0.5))
    bench.forget()
    answer = bench.ask(create_exclusive(bench))
    assert bench.journal == ["save", "answer"]
    assert [update.resources.cpus for update in answer.response.updates] == ["0-1,4-15"]


def test_close_finishes_the_checkpoint(bench: Bench):
    bench.handler.close()
    assert bench.journal == ["close"]


def test_a_new_node_applies_from_the_next_event(bench: Bench):
    bench.handler.change_node(dataclasses.replace(bench.handler.node, reserved=cpus("0-3")))
    assert bench.ask(create_exclusive(bench)).response.resources.cpus == "4-5"


def test_a_new_node_is_described_in_the_checkpoint_at_the_next_event(bench: Bench):
    described = []
    bench.handler._describe = described.append
    new = dataclasses.replace(bench.handler.node, reserved=cpus("0-3"))
    bench.handler.change_node(new)
    bench.ask(nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    assert described == [new]
    assert bench.journal == ["save", "answer"]


def test_repeated_steps_are_counted_and_a_long_story_is_cut():
    assert condensed(["kept=0", *["adopted"] * 3000, "unplaced"]) == "kept=0 adopted*3000 unplaced"
    assert len(condensed(["a", "b"] * 1000)) < 510


def test_whoever_counts_is_told_what_came_of_every_event():
    told: list[RequestOutcome] = []
    bench = Bench(node(pool_floor=False), observe=told.append)
    before = bench.handler.state
    bench.ask(create_exclusive(bench))
    large = pod("large", cpu=64)
    bench.ask(nri.CreateContainer(large, container(large, cpu=64)))
    bench.checkpoint.failures = 1
    other = pod("other", cpu=2)
    bench.ask(nri.CreateContainer(other, container(other, cpu=2)))
    assert [(bool(outcome.refusal), outcome.failed) for outcome in told] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert told[0].before is before
    assert told[0].decision.state is told[1].before
    assert told[1].decision.refusal is not None


def test_a_mistake_in_counting_costs_no_answer():
    def observe(outcome: RequestOutcome) -> None:
        raise ValueError(outcome.refusal)

    bench = Bench(node(pool_floor=False), observe=observe)
    assert bench.ask(create_exclusive(bench)).refusal == ""
    assert bench.lines.texts("ERROR") == ["internal error after an answer, part of its account is lost"]


def test_nothing_is_logged_recorded_or_counted_before_the_reply_is_queued():
    told: list[RequestOutcome] = []
    bench = Bench(node(pool_floor=False), observe=told.append)
    bench.handler._history = FakeHistory(bench.journal)  # type: ignore[assignment]
    assert bench.handler.answer(nri.Request(1, None, create_exclusive(bench))).refusal == ""
    assert (bench.journal, bench.lines.lines, told) == (["save"], [], [])
    bench.handler.account()
    assert bench.journal == ["save", "record CreateContainer"]
    assert bench.lines.texts("INFO") == ["decided"]
    assert len(told) == 1
    bench.handler.account()
    assert len(told) == 1


def test_accounts_give_way_while_the_runtime_asks_until_too_many_wait():
    told: list[RequestOutcome] = []
    bench = Bench(node(pool_floor=False), observe=told.append)
    bench.handler.answer(nri.Request(1, None, create_exclusive(bench)))
    bench.handler.account(lambda: True)
    assert (bench.lines.texts("INFO"), told) == (["decided"], []), "one part at least"
    started = nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5))
    for number in range(MOST_UNACCOUNTED):
        bench.handler.answer(nri.Request(2 + number, None, started))
    bench.handler.account(lambda: True)
    assert len(bench.handler._unaccounted) == MOST_UNACCOUNTED
    assert [type(one.event) for one in told[:2]] == [nri.CreateContainer, nri.PostStartContainer]
    bench.handler.close()
    assert len(told) == 1 + MOST_UNACCOUNTED


def test_what_was_decided_before_a_change_of_the_node_is_recorded_before_it():
    bench = Bench(node(pool_floor=False))
    bench.handler._history = FakeHistory(bench.journal)  # type: ignore[assignment]
    for number in range(2):
        bench.handler.answer(nri.Request(number, None, create_exclusive(bench, number=number)))
    bench.forget()
    bench.handler.account(lambda: True)
    bench.handler.change_node(node(pool_floor=False, reserved="0-1"))
    assert bench.journal == ["record CreateContainer", "record CreateContainer", "record the node"]


def test_the_repair_of_a_failed_write_comes_before_the_reply_and_is_recorded_after_the_request(narrow: Bench):
    narrow.handler._history = FakeHistory(narrow.journal)  # type: ignore[assignment]
    narrow.cgroups.failing = set()
    shared = container(SHARED_POD, cpu=0.5)
    narrow.handler.answer(nri.Request(1, None, nri.PostStartContainer(SHARED_POD, shared)))
    assert narrow.journal == [f"write {shared.cgroups_path}=0-15"]
    narrow.handler.account()
    assert narrow.journal[1:] == ["record PostStartContainer", "record CpusetsObserved"]


def test_a_log_and_a_recording_that_fail_cost_neither_the_answer_nor_the_count():
    told: list[RequestOutcome] = []
    bench = Bench(node(pool_floor=False), observe=told.append)

    def broken(_: object) -> None:
        raise OSError("no such log")

    bench.lines.emit = broken  # type: ignore[method-assign]
    bench.handler._history = FakeHistory([], broken=True)  # type: ignore[assignment]
    assert bench.ask(create_exclusive(bench)).refusal == ""
    assert len(told) == 1
    assert bench.handler.state.exclusive == cpus("2-3")


def test_each_line_has_the_writes_of_its_own_request_also_where_two_were_answered_at_once(bench: Bench):
    bench.handler.answer(nri.Request(1, None, create_exclusive(bench)))
    shared = container(SHARED_POD, cpu=0.5)
    bench.handler.answer(nri.Request(2, None, nri.PostStartContainer(SHARED_POD, shared)))
    bench.handler.account()
    assert [(level, fields.get("writes")) for level, _, fields in bench.lines.lines] == [
        ("INFO", 1),
        ("DEBUG", None),
    ]


def test_the_line_of_a_decision_counts_what_was_written_and_what_was_right_already(bench: Bench):
    shared = container(SHARED_POD, cpu=0.5)
    second = container(SHARED_POD, "second", cpu=0.5)
    bench.cgroups.values[second.cgroups_path] = cpus("2-3")
    bench.ask(nri.Synchronize((SHARED_POD,), (shared, second)))
    fields = bench.lines.fields("decided")
    assert {name: fields.get(name) for name in ("writes", "checked", "missing")} == {
        "writes": 1,
        "checked": 1,
        "missing": None,
    }


def retried(bench: Bench, event: nri.NRIEvent, seconds: int) -> list[str]:
    """The lines about a request that the kubelet repeats every second, as `LEVEL text`."""
    bench.lines.lines.clear()
    for _ in range(seconds):
        assert bench.ask(event).refusal
        bench.clock.now += 1.0
    return [f"{level} {text}" for level, text, _ in bench.lines.lines]


@pytest.mark.parametrize("asks_pod", [True, False])
def test_a_refused_resize_that_is_retried_is_logged_once(bench: Bench, asks_pod: bool):
    what = container(EXCLUSIVE_POD, cpu=2)
    run(bench, EXCLUSIVE_POD, what)
    pods = nri.UpdatePodSandbox(EXCLUSIVE_POD, resources=cpu_resources(0.5))
    half, more = (nri.UpdateContainer(EXCLUSIVE_POD, what, cpu_resources(cpu)) for cpu in (0.5, 90))
    event = pods if asks_pod else half
    assert retried(bench, event, 1200) == ["WARNING refused"] + ["DEBUG refused"] * 1199
    assert retried(bench, more, 2) == ["WARNING refused", "DEBUG refused"]
    bench.clock.now += 3600.0
    assert retried(bench, event, 2) == ["WARNING refused", "DEBUG refused"]


def test_a_refused_resize_after_one_that_was_done_is_logged_again(bench: Bench):
    what = container(EXCLUSIVE_POD, cpu=2)
    run(bench, EXCLUSIVE_POD, what)
    refused = nri.UpdateContainer(EXCLUSIVE_POD, what, cpu_resources(90))
    assert retried(bench, refused, 1) == ["WARNING refused"]
    assert not bench.ask(nri.UpdateContainer(EXCLUSIVE_POD, what, cpu_resources(2))).refusal
    assert retried(bench, refused, 1) == ["WARNING refused"]


def test_the_same_total_of_a_pod_told_again_is_not_logged(bench: Bench):
    run(bench, EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=2))
    event = nri.UpdatePodSandbox(EXCLUSIVE_POD, resources=cpu_resources(3.5))
    for level in ("INFO", "DEBUG", "DEBUG"):
        bench.lines.lines.clear()
        assert not bench.ask(event).refusal
        assert [found for found, _, _ in bench.lines.lines] == [level]


def test_a_refused_creation_is_logged_each_time(bench: Bench):
    assert retried(bench, create_exclusive(bench, 90), 3) == ["WARNING refused"] * 3


@pytest.fixture
def narrow(bench: Bench) -> Bench:
    """The shared container could not follow when CPUs 2-3 came back to the pool."""
    run(bench, EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=2))
    bench.cgroups.failing = {container(SHARED_POD).cgroups_path}
    bench.ask(nri.StopPodSandbox(EXCLUSIVE_POD))
    assert bench.cgroups.values[container(SHARED_POD).cgroups_path] == cpus("0-1,4-15")
    bench.forget()
    return bench


def test_a_write_that_failed_once_is_made_up_for_before_the_answer(bench: Bench):
    run(bench, EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=2))
    shared, write = container(SHARED_POD).cgroups_path, bench.cgroups.write_cpus
    failures = [HostError(shared, "busy")]

    def fails_once(ref, value, *, compare=True):
        if failures:
            raise failures.pop()
        return write(ref, value, compare=compare)

    bench.cgroups.write_cpus = fails_once  # type: ignore[method-assign]
    bench.ask(nri.StopPodSandbox(EXCLUSIVE_POD))
    assert bench.cgroups.values[shared] == cpus("0-15")


def test_a_write_that_failed_is_made_up_for_also_by_an_event_that_is_refused(narrow: Bench):
    narrow.cgroups.failing = set()
    assert narrow.ask(create_exclusive(narrow, count=64)).refusal
    assert narrow.cgroups.values[container(SHARED_POD).cgroups_path] == cpus("0-15")


def test_nobody_is_widened_later_onto_cpus_that_became_exclusive_meanwhile(narrow: Bench):
    narrow.handler.state = replace(narrow.handler.state, allocations={"other/c": Allocation(cpus("2-3"))})
    narrow.cgroups.failing = set()
    narrow.ask(nri.PostStartContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    assert narrow.cgroups.values[container(SHARED_POD).cgroups_path] == cpus("0-1,4-15")


def test_a_cgroup_that_cannot_be_written_is_tried_once_at_each_event(narrow: Bench):
    for _ in range(3):
        narrow.ask(nri.PostStartContainer(EXCLUSIVE_POD, container(EXCLUSIVE_POD, cpu=2)))
    assert len([line for line in narrow.journal if line.endswith("failed")]) == 3


POOLED = [f"/kubepods/burstable/podpool/{number}" for number in range(40)]


def with_waiting_files() -> Bench:
    """An exclusive container was created beside forty shared ones below a slice."""
    records = {
        path: ContainerRecord(path, "pool", path[-2:], Phase.RUNNING, CgroupRef(path[:-3].rstrip("/"), path))
        for path in POOLED
    }
    pool = PodRecord("pool", "sb-pool", cgroup_parent="/kubepods/burstable/podpool")
    bench = Bench(node(), State(pods={"pool": pool}, containers=records))
    bench.ask(create_exclusive(bench))
    return bench


def test_files_that_a_slice_bounds_are_written_after_the_answer_in_portions():
    bench = with_waiting_files()
    assert bench.journal == [
        "save",
        "write /kubepods/burstable=0-1,4-15",
        "write /kubepods/besteffort=0-1,4-15",
        "answer",
    ]
    assert bench.handler.is_waiting
    bench.forget()
    assert bench.handler.write_waiting()
    assert len(bench.journal) == PORTION
    while len(bench.journal) < len(POOLED):
        assert bench.handler.write_waiting()
    assert sorted(bench.journal) == sorted(f"write {path}=0-1,4-15" for path in POOLED)
    assert not bench.handler.write_waiting()
    assert not bench.handler.write_waiting()
    assert not bench.handler.is_waiting


def test_an_agent_that_ends_writes_what_waits():
    bench = with_waiting_files()
    bench.handler.close()
    assert {bench.cgroups.values[path] for path in POOLED} == {cpus("0-1,4-15")}


def test_a_file_that_cannot_be_written_late_is_said_and_keeps_no_other_waiting():
    bench = with_waiting_files()
    bench.cgroups.failing = {POOLED[3]}
    while bench.handler.write_waiting():
        pass
    assert bench.lines.texts("ERROR") == ["cpuset not written"]
    assert set(POOLED) - bench.cgroups.values.keys() == {POOLED[3]}


def test_a_file_that_failed_late_is_repaired_once_nothing_waits_any_more():
    bench = with_waiting_files()
    bench.cgroups.values.update(dict.fromkeys(POOLED, cpus("0-15")))
    bench.cgroups.failing = set(POOLED)
    bench.handler.write_waiting()
    bench.cgroups.failing = set()
    # The event comes while other files wait: it leaves the failed ones for later, and does not forget them.
    run(bench, SHARED_POD, container(SHARED_POD, cpu=0.5))
    while bench.handler.write_waiting():
        pass
    assert len([path for path in POOLED if bench.cgroups.values[path] == cpus("0-15")]) == PORTION
    bench.ask(nri.StopContainer(SHARED_POD, container(SHARED_POD, cpu=0.5)))
    assert {bench.cgroups.values[path] for path in POOLED} == {cpus("0-1,4-15")}


def test_a_late_portion_that_the_validator_refuses_is_said(monkeypatch: pytest.MonkeyPatch):
    bench = with_waiting_files()
    monkeypatch.setattr(State, "desired_cpus", lambda *_: cpus("2"))
    assert bench.handler.write_waiting()
    assert bench.lines.texts("ERROR") == ["cpusets not written after the answer"]


def test_files_that_wait_hide_drift_only_while_one_portion_follows_the_other():
    bench = with_waiting_files()
    for _ in range(3):
        bench.clock.now += LONGEST_WAIT_S
        assert not bench.handler.is_settled
        assert bench.handler.write_waiting()
    bench.clock.now += LONGEST_WAIT_S + 1
    assert bench.handler.is_settled
    while bench.handler.write_waiting():
        pass
    assert bench.handler.is_settled


def test_a_slice_that_takes_no_value_is_said_and_refuses_nobody():
    bench = Bench(node())
    bench.cgroups.failing = {"/kubepods/burstable"}
    run(bench, SHARED_POD, container(SHARED_POD, cpu=0.5))
    bench.forget()
    assert bench.ask(create_exclusive(bench)).refusal == ""
    assert "slice not written, its containers are" in bench.lines.texts("ERROR")
    assert bench.cgroups.values[container(SHARED_POD).cgroups_path] == cpus("0-1,4-15")
