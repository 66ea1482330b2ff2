"""The clock of `hack/bench stages`: what it charges to whom, and that the functions it names are there."""

import pytest

from tests.bench import stages
from tests.bench.stages import CHECKPOINT, FUNCTIONS, HISTORY, READ, REST, SEND, STAGES, StageClock, watched


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the clock shows, one value a look."""
    times: list[int] = []
    monkeypatch.setattr(stages.time, "thread_time_ns", lambda: times.pop(0))
    return times


def test_each_stage_has_a_function_and_each_function_is_put_back() -> None:
    before = [getattr(owner, name) for owner, name, _ in FUNCTIONS]
    with watched():
        assert all(
            getattr(owner, name) is not old for (owner, name, _), old in zip(FUNCTIONS, before, strict=True)
        )
    assert [getattr(owner, name) for owner, name, _ in FUNCTIONS] == before
    assert {stage for _, _, stage in FUNCTIONS} == set(STAGES)


def test_a_stage_is_not_charged_for_a_stage_that_it_calls(seconds: list[int]) -> None:
    clock = StageClock()
    seconds += [100, 110, 140, 145]
    clock.enter(REST)
    clock.enter(CHECKPOINT)
    clock.leave()
    clock.leave()
    assert clock.spent == {(REST, False): 15, (CHECKPOINT, False): 30}


def test_what_happens_between_two_events_is_charged_to_nobody(seconds: list[int]) -> None:
    clock = StageClock()
    for began in (0, 1000):
        seconds += [began, *(began + at for at in (4, 6, 10, 13, 20, 25, 30))]
        clock.enter(REST)
        clock.enter(READ)
        clock.leave()
        clock.enter(SEND)
        clock.leave()
        clock.enter(HISTORY)
        clock.leave()
        clock.leave()
    after = {(REST, True): 2 * 12 + 4, (HISTORY, True): 2 * 5}
    assert clock.spent == {(REST, False): 4 + 2 * 4, (READ, False): 2 * 2, (SEND, False): 2 * 3, **after}


def test_what_follows_the_sending_is_charged_after_the_answer(seconds: list[int]) -> None:
    clock = StageClock()
    seconds += [0, 10, 13, 20]
    clock.enter(REST)
    clock.enter(SEND)
    clock.leave()
    clock.leave()
    assert clock.spent == {(REST, False): 10, (SEND, False): 3, (REST, True): 7}


def test_creations_are_timed_at_once_and_after_every_kind_of_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "PAUSE_S", 0.0)
    monkeypatch.setattr(stages, "IN_A_ROW", 2)
    lines = stages.after_pauses(2).splitlines()[1:]
    assert [line[:46].strip() for line in lines] == list(stages.BEFORE)
    assert all(float(cell) > 0 for line in lines for cell in line[46:].split())
