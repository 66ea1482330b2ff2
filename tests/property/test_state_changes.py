"""Laws of the differences between two states."""

from hypothesis import given
from msgspec.structs import replace

from nri_plugin.cli.state.changes import changes
from nri_plugin.model.state import State
from tests.property.checkpoint_states import states as any_states


def named_by_kubernetes(state: State) -> State:
    """Keys are `UID/NAME`, and neither part can hold a slash."""
    records = {
        key: replace(one, pod_uid=one.pod_uid.replace("/", "-"), name=one.name.replace("/", "-"))
        for key, one in state.containers.items()
    }
    return replace(state, containers=records)


states = any_states.map(named_by_kubernetes)

OPPOSITE = {"gained": "lost", "grew": "shrank", "new": "gone", "moved": "moved", "changed": "changed"}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}


@given(states, states)
def test_there_is_a_difference_exactly_where_states_are_not_equal(before: State, after: State) -> None:
    assert bool(changes(before, after)) == (before != after)


@given(states)
def test_nothing_differs_from_itself(state: State) -> None:
    assert changes(state, state) == []


@given(states, states)
def test_the_way_back_is_the_opposite(before: State, after: State) -> None:
    there, back = changes(before, after), changes(after, before)
    assert sorted((one.key, OPPOSITE[one.what]) for one in there) == sorted(
        (one.key, one.what) for one in back
    )
    assert {(one.key, one.before, one.after) for one in there} == {
        (one.key, one.after, one.before) for one in back
    }
