"""What is refused, kept in memory, said and written again while the checkpoint cannot be saved."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_plugin.agent.serving.checkpoint_saver import (
    IN_TROUBLE_S,
    LOOK_PAUSE_S,
    CheckpointSaver,
    CheckpointStore,
    CheckpointWriter,
    DirectStore,
)
from nri_plugin.agent.serving.handler import makes_allocations
from nri_plugin.agent.start import warn_of_state_directory
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.model.records import Allocation
from nri_plugin.model.state import State
from nri_plugin.process.loop import Loop
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources
from tests.agent_fakes import Bench, Clock, FakeCheckpoint, recording_log
from tests.builders import container, cpus, node, pod

FOREVER = 1 << 30
RUNNING, LATER = pod("running", cpu=2), pod("later", cpu=2)
SYSTEM = pod("dns", namespace="kube-system")
BEST_EFFORT, BURSTABLE = pod("be", "BestEffort"), pod("bu", "Burstable")
TROUBLE = "/run/x/state.json: cannot be saved: no space left"


def create(of: Pod, cpu: float = 0, number: int = 0) -> nri.CreateContainer:
    return nri.CreateContainer(of, container(of, cpu=cpu, number=number, state=ContainerState.CREATED))


def started(of: Pod, cpu: float, have: str) -> Container:
    return container(of, cpu=cpu, cpus=have)


@pytest.fixture
def bench() -> Bench:
    """A container with CPUs 2-3 runs, and the disk is full."""
    made = Bench(node(pool_floor=False, never_refuse=frozenset({"kube-system"})))
    made.ask(nri.RunPodSandbox(RUNNING))
    made.ask(create(RUNNING, 2))
    made.ask(nri.StartContainer(RUNNING, started(RUNNING, 2, "2-3")))
    made.checkpoint.failures = FOREVER
    made.forget()
    return made


def held(bench: Bench) -> dict[str, str]:
    return {key: str(one.cpus) for key, one in bench.handler.state.allocations.items()}


@pytest.mark.parametrize("of", [BEST_EFFORT, BURSTABLE, SYSTEM])
def test_who_is_promised_nothing_is_created(bench: Bench, of: Pod):
    assert bench.ask(nri.RunPodSandbox(of)).refusal == ""
    assert bench.ask(create(of, 0 if of is not BURSTABLE else 0.5)).refusal == ""
    assert held(bench) == {"running/c": "2-3"}


def test_who_would_be_promised_something_is_refused_with_the_reason(bench: Bench):
    assert bench.ask(create(LATER, 2)).refusal == TROUBLE
    assert held(bench) == {"running/c": "2-3"}
    assert bench.handler.checkpoint.unready() == f"the checkpoint cannot be saved: {TROUBLE}"


def test_a_container_that_is_restarted_has_what_it_was_promised_already(bench: Bench):
    bench.ask(nri.StopContainer(RUNNING, started(RUNNING, 2, "2-3")))
    answer = bench.ask(create(RUNNING, 2, number=1))
    assert (answer.refusal, answer.response.resources.cpus) == ("", "2-3")


def test_a_release_is_served(bench: Bench):
    assert bench.ask(nri.StopPodSandbox(RUNNING)).refusal == ""
    assert held(bench) == {}


def test_a_namespace_that_is_never_refused_has_its_cpus_from_memory(bench: Bench):
    assert bench.ask(create(SYSTEM, 2)).refusal == ""
    assert list(bench.handler.checkpoint.unsaved(bench.handler.state)) == ["dns/c"]


@pytest.mark.parametrize("serves", [False, True])
def test_a_container_that_nobody_announced_gets_nothing_that_a_restart_would_not_find(
    bench: Bench, serves: bool
) -> None:
    bench.handler.checkpoint.serves = serves
    unseen = started(LATER, 2, "")
    assert bench.ask(nri.StartContainer(LATER, unseen)).refusal == ""
    assert held(bench) == {"running/c": "2-3"}
    assert TROUBLE in bench.handler.state.containers[unseen.id].unplaced
    pool = bench.handler.state.shared_pool(bench.handler.node)
    assert any(line.startswith("write ") and line.endswith(f"={pool}") for line in bench.journal)


def test_a_container_that_nobody_announced_keeps_the_cpus_that_the_runtime_tells_of(bench: Bench) -> None:
    bench.ask(nri.StartContainer(LATER, started(LATER, 2, "6-7")))
    assert held(bench) == {"running/c": "2-3", "later/c": "6-7"}


def test_serving_keeps_allocations_in_memory_counts_them_and_names_them_once(bench: Bench):
    bench.handler.checkpoint.serves = True
    assert bench.ask(create(LATER, 2)).refusal == ""
    assert bench.ask(create(BEST_EFFORT)).refusal == ""
    assert held(bench) == {"running/c": "2-3", "later/c": "4-5"}
    assert list(bench.handler.checkpoint.unsaved(bench.handler.state)) == ["later/c"]
    told = [fields for _, text, fields in bench.lines.lines if "memory only" in text]
    assert [fields["name"] for fields in told] == ["default/later/c"]


@pytest.mark.parametrize("serves", [False, True])
def test_a_resize_is_never_left_unsaved(bench: Bench, serves: bool):
    bench.handler.checkpoint.serves = serves
    more = nri.UpdateContainer(RUNNING, started(RUNNING, 2, "2-3"), Resources(cpu_shares=4096))
    assert bench.ask(more).refusal == TROUBLE
    assert held(bench) == {"running/c": "2-3"}


def test_an_update_that_changes_no_allocation_is_answered(bench: Bench):
    same = nri.UpdateContainer(RUNNING, started(RUNNING, 2, "2-3"), Resources(cpu_shares=2048))
    assert bench.ask(same).refusal == ""


def test_the_condition_is_said_when_it_changes_and_not_for_every_event(bench: Bench):
    for number in range(5):
        bench.ask(create(BEST_EFFORT, number=number))
    assert bench.lines.texts("ERROR") == ["the checkpoint cannot be saved"]
    bench.checkpoint.failures = 0
    bench.handler.checkpoint.look(bench.handler.state)
    bench.handler.checkpoint.look(bench.handler.state)
    assert bench.lines.texts("INFO").count("the checkpoint is saved again") == 1
    assert bench.handler.checkpoint.unready() == ""
    assert bench.checkpoint.saved == bench.handler.state


def test_a_stalled_disk_delays_only_the_first_pod_that_needs_no_save(bench: Bench):
    for number in range(3):
        bench.ask(create(BEST_EFFORT, number=number))
    assert bench.checkpoint.timeouts[-3:] == [1.0, IN_TROUBLE_S, IN_TROUBLE_S]
    bench.ask(create(LATER, 2))
    assert bench.checkpoint.timeouts[-1] == 1.0


def test_the_end_tries_once_more_and_names_what_no_checkpoint_holds(bench: Bench):
    bench.handler.checkpoint.serves = True
    bench.ask(create(LATER, 2))
    bench.forget()
    bench.handler.close()
    assert bench.journal == ["save failed", "close"]
    (told,) = [fields for _, text, fields in bench.lines.lines if "no checkpoint holds" in text]
    assert (told["name"], str(told["cpus"])) == ("default/later/c", "4-5")


def test_the_end_of_an_agent_that_could_save_names_nobody(bench: Bench):
    bench.checkpoint.failures = 0
    bench.ask(create(LATER, 2))
    bench.forget()
    bench.handler.close()
    assert bench.lines.texts("WARNING") == []


def test_a_checkpoint_that_is_gone_is_written_by_the_clock(bench: Bench):
    bench.checkpoint.failures, bench.checkpoint.saved = 0, None
    bench.ask(create(BEST_EFFORT))
    bench.forget()
    loop = Loop(Clock())
    loop.repeat("checkpoint", LOOK_PAUSE_S, lambda: bench.handler.checkpoint.look(bench.handler.state))
    loop.clock.now += LOOK_PAUSE_S  # type: ignore[attr-defined]
    loop.run_once()
    assert bench.journal == []
    bench.checkpoint.intact = False
    loop.clock.now += LOOK_PAUSE_S  # type: ignore[attr-defined]
    loop.run_once()
    loop.close()
    assert bench.journal == ["save"]


def test_nothing_counts_as_saved_once_the_directory_is_gone(bench: Bench):
    bench.checkpoint.intact = False
    bench.handler.checkpoint.look(bench.handler.state)
    assert list(bench.handler.checkpoint.unsaved(bench.handler.state)) == ["running/c"]


def state_of(number: int) -> State:
    return State(allocations={f"p{number}/c": Allocation(cpus(str(number)))})


def test_a_directory_that_returns_holds_the_memory_and_nothing_of_what_lay_there(tmp_path: Path):
    here, away = tmp_path / "state", tmp_path / "away"
    file = CheckpointFile(str(here), durable=False)
    log, _ = recording_log()
    saver = CheckpointSaver(DirectStore(file), State(), log, directory=str(here))
    for number in (1, 2):
        assert saver.save(state_of(number), 1.0) is None
    here.rename(away)
    older = CheckpointFile(str(here), durable=False)
    for number in (7, 8):
        older.save(state_of(number))
    saver.look(state_of(2))
    assert CheckpointFile(str(here)).load().state == state_of(2)
    assert not (here / "state.json.previous").exists()


def test_a_file_in_place_of_the_directory_is_named_and_served_around(tmp_path: Path):
    (tmp_path / "state").write_text("")
    log, lines = recording_log()
    file = CheckpointFile(str(tmp_path / "state"), durable=False)
    assert file.load().state is None
    saver = CheckpointSaver(DirectStore(file), State(), log, directory=file.directory)
    warn_of_state_directory(file.directory, saver, log)
    assert "is no directory" in saver.unready()
    assert lines.texts("ERROR") == ["the checkpoint cannot be saved"]
    (tmp_path / "state").unlink()
    saver.look(State())
    assert saver.unready() == ""
    assert file.load().state == State()


def test_only_a_mount_whose_directory_was_removed_asks_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log, _ = recording_log()
    checkpoint = FakeCheckpoint([], failures=FOREVER)
    saver = CheckpointSaver(checkpoint, State(), log, directory=str(tmp_path))
    saver.save(state_of(1), 1.0)
    assert saver.stuck() == ""
    monkeypatch.setattr(
        "nri_plugin.agent.serving.checkpoint_saver.removed_mount", lambda _path: "was removed"
    )
    error = saver.save(state_of(1), 1.0)
    assert str(error) == saver.stuck() == f"{tmp_path}: was removed"
    checkpoint.failures = 0
    saver.look(state_of(1))
    assert saver.stuck() == ""


# --- appending


@pytest.mark.parametrize("store_of", [DirectStore, CheckpointWriter])
def test_events_are_appended_and_an_end_leaves_the_last_state(
    tmp_path: Path, store_of: Callable[[CheckpointFile], CheckpointStore]
) -> None:
    file = CheckpointFile(str(tmp_path), durable=False)
    log, lines = recording_log()
    saver = CheckpointSaver(store_of(file), State(), log, directory=str(tmp_path))
    sizes = []
    for number in range(3):
        assert saver.save(state_of(number), 60.0) is None
        sizes.append(os.stat(file.path).st_size)
    assert sizes == sorted(sizes)
    saver.close(state_of(2))
    assert CheckpointFile(str(tmp_path)).load().state == state_of(2)
    assert lines.lines == []


def test_a_long_journal_is_compacted_by_the_clock_and_never_by_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_plugin.checkpoint.file.LEAST_JOURNAL", 0)
    file = CheckpointFile(str(tmp_path), durable=False)
    saver = CheckpointSaver(DirectStore(file), State(), recording_log()[0], directory=str(tmp_path))
    sizes = []
    for number in range(20):
        saver.save(state_of(number), 60.0)
        sizes.append(os.stat(file.path).st_size)
    assert sizes == sorted(sizes)
    saver.look(state_of(19))
    assert os.stat(file.path).st_size < sizes[-1]


def test_a_thread_compacts_its_file_after_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nri_plugin.checkpoint.file.LEAST_JOURNAL", 0)
    file = CheckpointFile(str(tmp_path), durable=False)
    writer = CheckpointWriter(file)
    sizes = []
    for number in range(20):
        writer.save(state_of(number), 60.0)
        sizes.append(os.stat(file.path).st_size)
    writer.close(60.0)
    assert sizes != sorted(sizes)
    assert CheckpointFile(str(tmp_path)).load().state == state_of(19)


def test_an_event_beside_thousands_of_allocations_costs_the_saver_what_it_changes() -> None:
    def work(count: int) -> int:
        state = State(allocations={f"p{number}/c": Allocation(cpus(str(number))) for number in range(count)})
        after, calls = state.with_allocation("new/c", Allocation(cpus("1"))), 0
        saver = CheckpointSaver(FakeCheckpoint([]), state, recording_log()[0])

        def see(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(see)
        try:
            assert makes_allocations(state, after)
            assert list(saver.unsaved(after)) == ["new/c"]
            assert not saver.is_saved(after)
            saver.save(after, 1.0)
        finally:
            sys.setprofile(None)
        return calls

    assert work(3000) <= work(30) + 10
