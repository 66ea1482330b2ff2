"""Refused pods of one owner are failed after growing pauses."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from nri_plugin.exporter.refused_pods import CALM_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, OwnerBackoff

OWNERS = [f"rs-{number}" for number in range(3)]
PAUSES = (0.0, 1.0, 9.0, 13.0, 45.0, 300.0, 900.0)


@given(st.lists(st.tuples(st.sampled_from(OWNERS), st.sampled_from(PAUSES))))
@example([(OWNERS[0], 1.0)] * 1500)
@example([(OWNERS[0], 11.0)] * 500)
@example([(OWNERS[0], 45.0)] * 200)
def test_pauses_grow_until_it_is_calm_and_six_pods_fail_in_ten_minutes(refusals: list[tuple[str, float]]):
    backoff, now = OwnerBackoff(), 0.0
    failed_at: dict[str, list[float]] = {}
    for owner, pause in refusals:
        now += pause
        assert backoff.until_s(owner) <= now + LONGEST_PAUSE_S
        if now >= backoff.until_s(owner):
            backoff.failed(owner, now)
            failed_at.setdefault(owner, []).append(now)
    for times in failed_at.values():
        gaps = [later - earlier for earlier, later in pairwise(times)]
        calm = next((at for at, gap in enumerate(gaps) if gap >= CALM_S), len(gaps))
        assert all(gap >= FIRST_PAUSE_S * 2**at for at, gap in enumerate(gaps[:calm]))
        assert all(times[at + 6] - times[at] >= CALM_S for at in range(len(times) - 6))
