"""Device hints are the sets of device nodes that every device is near, listed or not, whatever else is true of the machine."""

from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource, device_hint_sets, device_totals

PLACES = st.lists(st.frozensets(st.integers(0, 3), max_size=2), max_size=4)


def resource(places, others=None):
    """Devices at `places`; where the others of the resource are known too, with totals."""
    devices = tuple(Device(f"d{n}", NodeMask.from_ids(nodes)) for n, nodes in enumerate(places))
    every = () if others is None else (*places, *others)
    return DeviceResource("r", devices, device_totals((NodeMask.from_ids(nodes), 1) for nodes in every))


def by_definition(given_places, all_places):
    """Every set of the nodes that have devices, tried one after the other, as the kubelet does."""
    nodes = sorted(frozenset().union(*all_places))
    sets = [frozenset(s) for size in range(1, len(nodes) + 1) for s in combinations(nodes, size)]
    room = [len(s) for s in sets if sum(1 for place in all_places if place & s) >= len(given_places)]
    narrowest = min(room, default=len(nodes))
    fitting = [s for s in sets if all(place & s for place in given_places)]
    return [(NodeMask.from_ids(s).mask, len(s) == narrowest) for s in fitting]


@given(PLACES, PLACES)
def test_hints_are_those_of_the_kubelet_where_all_devices_are_known(places, others):
    hint_sets = device_hint_sets(range(6), [resource(places, others)])
    if not places or not any((*places, *others)):
        assert hint_sets is None
        return
    expected = by_definition(places, (*places, *others))
    assert [tuple(hint) for hint in hint_sets[0].hints] == expected


@given(PLACES)
def test_where_no_others_are_known_the_placed_ones_count_as_all_there_are(places):
    placed = [nodes for nodes in places if nodes]
    hint_sets = device_hint_sets(range(6), [resource(places)])
    if not placed:
        assert hint_sets is None
        return
    assert [tuple(hint) for hint in hint_sets[0].hints] == by_definition(placed, placed)


@given(PLACES, PLACES)
def test_where_more_than_eight_nodes_have_devices_the_same_sets_are_meant_without_a_list(places, others):
    assume(places and all(places))
    nine = [frozenset({node}) for node in range(4, 10)]
    known = [*others, *nine]
    hint_set = device_hint_sets(range(12), [resource(places, known)])[0]
    expected = by_definition(places, [*places, *known])
    if hint_set.rule is None:
        assert [tuple(hint) for hint in hint_set.hints] == expected
        return
    assert hint_set.hints == ()
    assert {mask for mask in range(1, 1 << 12) if mask in hint_set.rule} == {mask for mask, _ in expected}
    assert all(hint_set.names(mask) == preferred for mask, preferred in expected)
