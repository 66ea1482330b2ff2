"""Refused pods of one owner and shape are failed ever less often."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from nri_plugin.exporter.refused_pods import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MOST_IN_WINDOW,
    WINDOW_S,
    Brake,
    Group,
    Room,
)
from nri_plugin.model.sets import CPUSet

GROUPS = [Group(f"rs-{number}", number) for number in range(3)]
ROOMS = [Room(available=CPUSet.of(number)) for number in range(8)]
PAUSES = (0.0, 1.0, 9.0, 13.0, 45.0, 300.0, 900.0)
SAME = ROOMS[:1]

Refusals = list[tuple[Group, float, Room]]


def played(refusals: Refusals) -> dict[Group, list[float]]:
    """The times at which pods of each group fail."""
    brake, now = Brake(), 0.0
    failed_at: dict[Group, list[float]] = {}
    for group, pause, room in refusals:
        now += pause
        wait = brake.wait(group, room, now)
        if wait is None:
            brake = brake.failed(group, room, now)
            failed_at.setdefault(group, []).append(now)
        else:
            # The wait ends when it was said to.
            assert brake.wait(group, room, wait.until_s) is None
            assert now < wait.until_s <= now + LONGEST_PAUSE_S
    return failed_at


def refusals(rooms: list[Room]) -> st.SearchStrategy[Refusals]:
    return st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from(PAUSES), st.sampled_from(rooms)))


@given(refusals(SAME))
@example([(GROUPS[0], 1.0, ROOMS[0])] * 1500)
@example([(GROUPS[0], 11.0, ROOMS[0])] * 500)
@example([(GROUPS[0], 45.0, ROOMS[0])] * 200)
def test_pods_of_a_group_fail_ever_less_often_while_nothing_changes(found: Refusals) -> None:
    for times in played(found).values():
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert all(gap >= FIRST_PAUSE_S for gap in gaps)
        calm = next((at for at, gap in enumerate(gaps) if gap >= WINDOW_S), len(gaps))
        least = [FIRST_PAUSE_S * 2**at for at in range(calm)]
        assert all(gap >= want for gap, want in zip(gaps, least, strict=False))


@given(refusals(ROOMS))
@example([(GROUPS[0], 1.0, ROOMS[at % 8]) for at in range(1500)])
@example([(GROUPS[0], 61.0, ROOMS[at % 8]) for at in range(300)])
@example([(GROUPS[0], 0.0, ROOMS[at % 8]) for at in range(100)])
def test_pods_of_a_group_fail_ten_times_in_ten_minutes_at_most_whatever_changes(found: Refusals) -> None:
    for times in played(found).values():
        for first, *rest in (times[at : at + MOST_IN_WINDOW + 1] for at in range(len(times))):
            assert len(rest) < MOST_IN_WINDOW or rest[-1] - first >= WINDOW_S
