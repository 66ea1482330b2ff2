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
)

GROUPS = [Group(f"rs-{number}", number) for number in range(3)]


@given(
    st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from((0.0, 1.0, 9.0, 13.0, 45.0, 300.0, 900.0))))
)
@example([(GROUPS[0], 1.0)] * 1500)
@example([(GROUPS[0], 11.0)] * 500)
@example([(GROUPS[0], 45.0)] * 200)
def test_pods_of_a_group_fail_ever_less_often_while_nothing_changes(
    refusals: list[tuple[Group, float]],
) -> None:
    brake, now = Brake(), 0.0
    failed_at: dict[Group, list[float]] = {}
    for group, pause in refusals:
        now += pause
        until = brake.waits_until(group, 0, now)
        if until is None:
            brake = brake.failed(group, 0, now)
            failed_at.setdefault(group, []).append(now)
        else:
            # The wait ends when it was said to.
            assert brake.waits_until(group, 0, until) is None
            assert now < until <= now + LONGEST_PAUSE_S
    for times in failed_at.values():
        for first, *rest in (times[at : at + MOST_IN_WINDOW + 1] for at in range(len(times))):
            assert len(rest) < MOST_IN_WINDOW or rest[-1] - first >= WINDOW_S
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert all(gap >= FIRST_PAUSE_S for gap in gaps)
        calm = next((at for at, gap in enumerate(gaps) if gap >= WINDOW_S), len(gaps))
        least = [FIRST_PAUSE_S * 2**at for at in range(calm)]
        assert all(gap >= want for gap, want in zip(gaps, least, strict=False))
