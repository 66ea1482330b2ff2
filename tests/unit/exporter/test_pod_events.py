"""Which happenings are told, and how."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from nri_plugin.exporter.events import (
    AGAIN_S,
    BURST,
    LONGEST_AGAIN_S,
    REFILL_S,
    EventRate,
    PodEvent,
    event_object,
)
from nri_plugin.kube.pod_facts import PodObject

REFUSED = PodEvent("u", "default", "web", "app", "TopologyAffinityError", "TopologyAffinityError: no node")


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
    assert [rate.takes(event) for event in (replace(REFUSED, pod=""), REFUSED)] == [False, True]


def test_an_event_regards_the_pod_and_names_the_container() -> None:
    pod = PodObject("17", {"app": "containers"})
    event = event_object(REFUSED, "n1", "2026-01-02T03:04:05.000006Z", pod)
    assert (event["reason"], event["type"]) == ("TopologyAffinityError", "Warning")
    assert event["note"] == "container app: TopologyAffinityError: no node"
    assert (event["metadata"]["namespace"], event["reportingInstance"]) == ("default", "n1")
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "u",
        "resourceVersion": "17",
        "fieldPath": "spec.containers{app}",
    }


@pytest.mark.parametrize("listed_in", ["initContainers", "containers", "ephemeralContainers"])
def test_the_field_path_names_the_list_that_holds_the_container(listed_in: str) -> None:
    regarding = event_object(REFUSED, "n1", "now", PodObject("", {"app": listed_in}))["regarding"]
    assert regarding["fieldPath"] == f"spec.{listed_in}{{app}}"


def test_of_an_unknown_pod_no_field_path_or_version_is_guessed() -> None:
    regarding = event_object(REFUSED, "n1", "now")["regarding"]
    assert sorted(regarding) == ["apiVersion", "kind", "name", "namespace", "uid"]


LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


@pytest.mark.parametrize(
    "pod",
    [
        "big",
        "a",
        "0",
        "web.example.com",
        "p" * 253,
        "p" * 252,
        "p" * 251 + ".p",
        "p" * 250 + "..p",
        "a" * 57 + ".b",
    ],
)
def test_the_name_of_an_event_is_valid_for_every_pod_name(pod: str) -> None:
    prefix = event_object(replace(REFUSED, pod=pod), "n1", "now")["metadata"]["generateName"]
    assert len(prefix) <= 253
    for name in (f"{prefix[:-1]}a", f"{prefix[:58]}x7k2q"):  # as the server checks the prefix; as it cuts it
        assert re.fullmatch(rf"{LABEL}(\.{LABEL})*", name), name


def test_no_text_is_longer_than_the_api_takes_in_bytes() -> None:
    event = event_object(replace(REFUSED, note="\xe9" * 5000, reason="R" * 500), "n" * 253, "now")
    assert len(event["note"].encode()) == 1024
    assert event["note"].endswith("\xe9...")
    assert (len(event["reason"]), len(event["reportingInstance"])) == (128, 128)


def test_a_note_of_the_longest_length_is_whole() -> None:
    note = "x" * (1024 - len("container app: "))
    assert event_object(replace(REFUSED, note=note), "n1", "now")["note"] == f"container app: {note}"


def test_a_note_that_is_no_unicode_is_told_all_the_same() -> None:
    assert event_object(replace(REFUSED, note="a\udcffb"), "n1", "now")["note"] == "container app: a?b"
