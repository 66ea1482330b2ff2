"""Every event of the protocol has its place in each table that events must stand in."""

from typing import get_args

import pytest

from nri_plugin.agent.agent import SUBSCRIPTION
from nri_plugin.agent.metrics import EVENTS
from nri_plugin.core import engine
from nri_plugin.core.drift import OwnEvent
from nri_plugin.core.pod_news import PodNews
from nri_plugin.recording.rows import RECORDED
from nri_plugin.wire.nri import codec, events, releases
from nri_plugin.wire.nri.messages import EventMask
from tests.lab.runtime.codec import EVENT_BIT

ALL = get_args(events.NRIEvent)
WITHOUT_BIT = {events.Configure, events.Synchronize, events.Shutdown}
"""Every plugin gets them, so that no bit of a subscription stands for them."""

DECIDES_NOTHING = {
    events.Configure,
    events.Shutdown,
    events.PostUpdatePodSandbox,
    events.ValidateContainerAdjustment,
}
SUBSCRIBED = [kind for kind in ALL if kind in EVENT_BIT and EVENT_BIT[kind] & SUBSCRIPTION]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_simulated_runtime_can_send_it(kind: type) -> None:
    assert (kind in EVENT_BIT) != (kind in WITHOUT_BIT)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_something_is_decided_and_recorded_or_nothing_of_both(kind: type) -> None:
    assert (kind in engine._HANDLERS) == (kind not in DECIDES_NOTHING)
    assert (kind in RECORDED) == (kind not in DECIDES_NOTHING)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_agent_asks_for_every_event_that_it_decides_on(kind: type) -> None:
    is_decided = kind in EVENT_BIT and kind not in DECIDES_NOTHING
    assert (kind in SUBSCRIBED) == is_decided


def test_the_newest_release_knows_every_event_that_a_plugin_may_ask_for() -> None:
    every = EventMask(0)
    for bit in EVENT_BIT.values():
        every |= bit
    assert every == releases.MASK_SINCE_0_10


@pytest.mark.parametrize("kind", SUBSCRIBED, ids=lambda kind: kind.__name__)
def test_what_the_agent_asks_for_is_decided_on_and_counted(kind: type) -> None:
    assert kind not in DECIDES_NOTHING
    assert kind.__name__ in EVENTS


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_its_response_that_changes_nothing_can_be_encoded(kind: type) -> None:
    assert type(events.EMPTY_RESPONSES.get(kind, events.ACKNOWLEDGED)) in codec._WRITERS


def test_every_response_belongs_to_one_event() -> None:
    own = [type(response) for response in events.EMPTY_RESPONSES.values()]
    assert {*own, events.EmptyResponse} == set(get_args(events.NRIResponse)) == set(codec._WRITERS)
    assert len(own) == len(set(own))
    assert set(events.EMPTY_RESPONSES) <= set(ALL)


@pytest.mark.parametrize("kind", get_args(OwnEvent | PodNews), ids=lambda kind: kind.__name__)
def test_events_of_our_own_are_decided_and_recorded(kind: type) -> None:
    assert kind in engine._HANDLERS
    assert kind in RECORDED
