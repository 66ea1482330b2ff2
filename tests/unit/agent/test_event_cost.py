"""What an event costs beside 3,000 containers is what it costs beside 30: counted, never timed."""

import pytest

from tests.bench.event_cost import COUNTERS, Costs, costs
from tests.bench.whole_agent import life

FEW_PODS, MANY_PODS = 6, 600
"""Of five containers each."""

MOST = 1.2
"""Times the work beside few containers."""

STEPS = [step.name for exclusive in (False, True) for step in life(0, exclusive=exclusive)]

MOVES_THE_POOL = ("CreateContainer exclusive", "StopPodSandbox exclusive")
"""After the answer, the cpuset of each shared container follows."""

HOLDS = {
    f"{event} {kind}"
    for event in ("PostStartContainer", "PostUpdateContainer")
    for kind in ("shared", "exclusive")
}
GROWS = pytest.mark.xfail(
    strict=True,
    reason="the state is copied, the checkpoint is written and containers are looked at as a whole",
)


@pytest.fixture(scope="module")
def counted() -> tuple[Costs, Costs]:
    return costs(FEW_PODS), costs(MANY_PODS)


def _marked(names: list[str]) -> list[object]:
    return [name if name in HOLDS else pytest.param(name, marks=GROWS) for name in names]


def _too_much(counted: tuple[Costs, Costs], step: str, moment: int) -> list[str]:
    few, many = (each[step] for each in counted)
    return [
        f"{many[what][moment]} {what} beside {5 * MANY_PODS} containers, {few[what][moment]} beside {5 * FEW_PODS}"
        for what in COUNTERS
        if many[what][moment] > MOST * few[what][moment]
    ]


@pytest.mark.parametrize("step", _marked(STEPS))
def test_an_answer_takes_no_more_work_beside_many_containers(counted: tuple[Costs, Costs], step: str) -> None:
    assert _too_much(counted, step, 0) == []


@pytest.mark.parametrize("step", _marked([step for step in STEPS if step not in MOVES_THE_POOL]))
def test_an_event_with_what_follows_takes_no_more_work_beside_many_containers(
    counted: tuple[Costs, Costs], step: str
) -> None:
    assert _too_much(counted, step, 1) == []


def test_an_exclusive_creation_is_counted_with_its_checkpoint(counted: tuple[Costs, Costs]) -> None:
    """The counters see the event at all: its answer calls functions, allocates and is saved first."""
    cost = counted[0]["CreateContainer exclusive"]
    assert cost.keys() == COUNTERS.keys()
    assert all(until_answer > 0 for until_answer, _ in cost.values())
