"""What an event costs beside 3,000 containers is what it costs beside 30: counted, never timed."""

import pytest

from tests.bench.event_cost import COUNTERS, LIVES, MOVES_THE_POOL, Costs, costs
from tests.bench.whole_agent import life

FEW_PODS, MANY_PODS = 6, 600
"""Of five containers each."""

MOST = 1.2
"""Times the work beside few containers."""

SLACK = {"calls": 100, "bytecodes": 2000, "bytes at once": 192 << 10}
"""One pass of the interpreter over 3,000 containers takes 15,000 bytecodes. A decision copies the dictionaries of the state
that it changes, without the interpreter: one of 3,000 containers and one of 600 pods take 170 KB, and some 20 microseconds.
A second copy of the containers would be too much."""

STEPS = [step.name for exclusive in (False, True) for step in life(0, exclusive=exclusive)]


@pytest.fixture(scope="module")
def counted() -> tuple[Costs, Costs]:
    return costs(FEW_PODS), costs(MANY_PODS)


def _too_much(counted: tuple[Costs, Costs], step: str, moment: int) -> list[str]:
    few, many = (each[step] for each in counted)
    return [
        f"{many[what][moment]} {what} beside {5 * MANY_PODS} containers, {few[what][moment]} beside {5 * FEW_PODS}"
        for what in COUNTERS
        if many[what][moment] > MOST * few[what][moment] + LIVES * SLACK.get(what, 0)
    ]


@pytest.mark.parametrize("step", STEPS)
def test_an_answer_takes_no_more_work_beside_many_containers(counted: tuple[Costs, Costs], step: str) -> None:
    assert _too_much(counted, step, 0) == []


@pytest.mark.parametrize("step", [step for step in STEPS if step not in MOVES_THE_POOL])
def test_an_event_with_what_follows_takes_no_more_work_beside_many_containers(
    counted: tuple[Costs, Costs], step: str
) -> None:
    assert _too_much(counted, step, 1) == []


def test_an_exclusive_creation_is_counted_with_its_checkpoint_and_what_follows(
    counted: tuple[Costs, Costs],
) -> None:
    """The counters see the event at all: it is saved before the answer, and files of shared containers follow."""
    few, many = (each["CreateContainer exclusive"] for each in counted)
    assert few.keys() == COUNTERS.keys()
    assert all(until_answer > 0 for until_answer, _ in few.values())
    assert many["bytes written"][1] > 10 * many["bytes written"][0]
