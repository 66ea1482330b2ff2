"""Which happenings are told, and how."""

from dataclasses import replace
from itertools import pairwise

import pytest

from nri_plugin.kube.pod_events import (
    AGAIN_S,
    BURST,
    LONGEST_AGAIN_S,
    REFILL_S,
    EventRate,
    Happening,
    event_object,
    told,
)

REFUSED = Happening("u", "default", "web", "app", "TopologyAffinityError", "TopologyAffinityError: no node")


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rate(clock: Clock) -> EventRate:
    return EventRate(clock)


def test_the_same_words_are_told_once_in_a_while(rate: EventRate, clock: Clock) -> None:
    assert [rate.takes(REFUSED) for _ in range(3)] == [True, False, False]
    clock.now += AGAIN_S
    assert rate.takes(REFUSED)
    assert rate.left_out == 0


def test_what_does_not_end_is_told_less_and_less_often(rate: EventRate, clock: Clock) -> None:
    assert rate.takes(REFUSED)
    told_at = [clock.now]
    while clock.now < 16_000.0:
        clock.now += 10.0
        if rate.takes(REFUSED):
            told_at.append(clock.now)
    pauses = [later - earlier for earlier, later in pairwise(told_at)]
    assert pauses == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, 8 * AGAIN_S, LONGEST_AGAIN_S, LONGEST_AGAIN_S]


def test_what_was_quiet_for_a_pause_more_is_told_as_new(rate: EventRate, clock: Clock) -> None:
    assert rate.takes(REFUSED)
    for _ in range(2):
        clock.now += 2 * AGAIN_S
        assert rate.takes(REFUSED)
    clock.now += AGAIN_S
    assert rate.takes(REFUSED)


def test_a_flood_is_held_to_a_burst_and_what_trickles_after(rate: EventRate, clock: Clock) -> None:
    flood = [replace(REFUSED, pod=f"web-{number}") for number in range(2 * BURST)]
    assert sum(map(rate.takes, flood)) == BURST
    assert rate.left_out == BURST
    clock.now += 2 * REFILL_S
    assert [rate.takes(replace(REFUSED, pod=f"late-{number}")) for number in range(3)] == [True, True, False]


def test_what_is_about_no_pod_is_not_told(rate: EventRate) -> None:
    assert told(iter([replace(REFUSED, pod=""), REFUSED]), rate) == [REFUSED]


def test_an_event_regards_the_pod_and_names_the_container() -> None:
    event = event_object(REFUSED, "n1", "2026-01-02T03:04:05.000006Z")
    assert (event["reason"], event["type"]) == ("TopologyAffinityError", "Warning")
    assert event["note"] == "container app: TopologyAffinityError: no node"
    assert (event["regarding"]["uid"], event["regarding"]["fieldPath"]) == ("u", "spec.containers{app}")
    assert (event["metadata"]["namespace"], event["reportingInstance"]) == ("default", "n1")


def test_a_note_is_never_longer_than_the_api_takes() -> None:
    event = event_object(replace(REFUSED, note="x" * 5000), "n1", "now")
    assert len(event["note"]) == 1024
    assert event["note"].endswith("...")
