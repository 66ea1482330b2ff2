"""An event of the protocol that is decided on is subscribed to, recorded and counted."""

from dataclasses import fields
from typing import get_args

import pytest

from nri_plugin.agent.agent import SUBSCRIPTION
from nri_plugin.agent.observing.metrics import EVENTS
from nri_plugin.core.drift import OwnEvent
from nri_plugin.core.engine import DECIDED
from nri_plugin.core.pod_news import PodNews
from nri_plugin.recording import rows
from nri_plugin.wire.nri import codec, events

EVERY_PLUGIN_GETS = {events.Configure, events.Synchronize, events.Shutdown}
DECIDES_NOTHING = {events.Configure, events.Shutdown, events.PostUpdatePodSandbox}


def test_the_table_has_every_event_and_every_response_belongs_to_one() -> None:
    assert list(events.EVENTS) == list(get_args(events.NRIEvent))
    own = [type(row.response) for row in events.EVENTS.values() if row.response != events.ACKNOWLEDGED]
    assert {*own, events.EmptyResponse} == set(get_args(events.NRIResponse)) == set(codec._WRITERS)
    assert len(own) == len(set(own))


@pytest.mark.parametrize("kind", events.EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_that_is_decided_on_is_subscribed_to_recorded_and_counted(kind: type) -> None:
    is_decided = kind not in DECIDES_NOTHING
    bit = events.EVENTS[kind].bit
    assert (not bit) == (kind in EVERY_PLUGIN_GETS)
    assert bool(bit & SUBSCRIPTION) == (is_decided and bool(bit))
    assert (kind in DECIDED) == (kind.__name__ in rows._EVENTS) == (kind.__name__ in EVENTS) == is_decided


@pytest.mark.parametrize("kind", sorted(rows._EVENTS.values(), key=str), ids=lambda kind: kind.__name__)
def test_every_field_that_decides_is_recorded(kind: type) -> None:
    assert {one.name for one in fields(kind)} - {"overhead"} == set(rows._NAMES[kind])


@pytest.mark.parametrize(
    "kind", sorted(get_args(OwnEvent | PodNews), key=str), ids=lambda kind: kind.__name__
)
def test_events_of_our_own_are_decided_and_recorded(kind: type) -> None:
    assert kind in DECIDED
    assert kind.__name__ in rows._EVENTS
