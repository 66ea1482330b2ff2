"""Device hints are the node sets that every device is near, listed or not, whatever else is true of the machine."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.nodemask import NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource, device_wishes

PLACES = st.lists(st.frozensets(st.integers(0, 3), max_size=2), max_size=4)
TOTALS = st.dictionaries(st.integers(0, 3), st.integers(0, 3))


def resource(places, totals):
    devices = tuple(Device(f"d{n}", NodeMask.from_ids(nodes)) for n, nodes in enumerate(places))
    return DeviceResource("r", devices, tuple(sorted(totals.items())))


@given(PLACES, TOTALS)
def test_a_hint_is_any_set_that_each_device_is_near_preferred_at_the_narrowest(places, totals):
    placed = [nodes for nodes in places if nodes]
    wishes = device_wishes(range(4), [resource(places, totals)])
    if not placed:
        assert wishes is None
        return
    sets = [frozenset(s) for size in range(1, 5) for s in combinations(range(4), size)]
    near = [s for s in sets if all(nodes & s for nodes in placed)]
    roomy = [s for s in sets if sum(totals.get(node, 0) for node in s) >= len(placed)]
    narrowest = min(map(len, near + roomy))
    expected = [(NodeMask.from_ids(s).mask, len(s) == narrowest) for s in near]
    assert [tuple(hint) for hint in wishes[0].hints] == expected


@given(PLACES, TOTALS)
def test_on_a_large_machine_the_same_sets_are_meant(places, totals):
    few = device_wishes(range(4), [resource(places, totals)])
    many = device_wishes(range(9), [resource(places, totals)])
    if few is None:
        assert many is None
        return
    for mask, preferred in few[0].hints:
        assert mask in many[0].family
        assert many[0].names(mask) == preferred
        assert mask | 1 << 8 in many[0].family
