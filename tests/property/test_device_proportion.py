"""Shares add up, keep to the room, and are as even as whole units allow."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.policy.device_hints import proportional_shares

WEIGHTS = st.dictionaries(st.integers(0, 7), st.integers(1, 8), min_size=1, max_size=5)
ROOMS = st.dictionaries(st.integers(0, 7), st.integers(0, 40))
UNITS = st.sampled_from([1, 2, 4])


@given(st.integers(0, 128), WEIGHTS, ROOMS, UNITS)
def test_shares_add_up_and_keep_to_the_room(count, weights, room, unit):
    shares = proportional_shares(count, weights, room, unit=unit)
    assert sum(shares.values()) == min(count, sum(room.get(node, 0) for node in weights))
    assert all(0 <= share <= room.get(node, 0) for node, share in shares.items())


@given(st.integers(0, 64), WEIGHTS, UNITS)
def test_with_room_everywhere_no_unit_is_better_elsewhere(units, weights, unit):
    shares = proportional_shares(units * unit, weights, dict.fromkeys(range(8), 1000), unit=unit)
    assert all(share % unit == 0 for share in shares.values())
    for one, two in ((a, b) for a in weights for b in weights if shares[a]):
        # moving the last unit of `one` to `two` would make `two` no poorer for each device than `one` was
        assert (2 * shares[one] - unit) * weights[two] <= (2 * shares[two] + unit) * weights[one]


@given(st.integers(0, 64), WEIGHTS, UNITS)
def test_equal_devices_get_equal_cpus_when_they_divide(times, weights, unit):
    count = times * unit * sum(weights.values())
    assert proportional_shares(count, weights, dict.fromkeys(range(8), 10**6), unit=unit) == {
        node: times * unit * weight for node, weight in sorted(weights.items())
    }
