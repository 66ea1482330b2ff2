"""Laws of the persistent mapping: it behaves as a dictionary, and shares what did not change."""

import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.persistent import Change, PersistentMap, RunningSum, Tally, tally

TOTAL: RunningSum[object, int, int, int] = RunningSum(
    lambda _key, value: value or None, sum, lambda total, left, came: total - (left or 0) + (came or 0)
)
COUNTS: Tally[object, int, int] = tally(lambda _key, value: value // 3 or None)


class Colliding:
    """A key of few hashes, so that leaves with equal hashes occur."""

    def __init__(self, name: int) -> None:
        self.name = name

    def __hash__(self) -> int:
        return -1 - (self.name & 1) if self.name & 2 else (self.name & 1) << 70

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and other.name == self.name

    def __repr__(self) -> str:
        return f"Colliding({self.name})"


names = st.one_of(st.integers(-400, 400), st.integers(0, 60).map(Colliding), st.text(max_size=2))
steps = st.lists(st.tuples(names, st.one_of(st.none(), st.integers(0, 9))), max_size=120)
Step = tuple[object, int | None]


def played(start: PersistentMap[object, int], some: list[Step]) -> PersistentMap[object, int]:
    for key, value in some:
        start = start.without(key) if value is None else start.with_item(key, value)
    return start


def as_dictionary(start: dict[object, int], some: list[Step]) -> dict[object, int]:
    found = dict(start)
    for key, value in some:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def parity(_key: object, value: int) -> int:
    return value % 2


@given(steps, steps)
def test_it_behaves_as_a_dictionary(first: list[Step], second: list[Step]) -> None:
    expected = as_dictionary(as_dictionary({}, first), second)
    found = played(PersistentMap.of(as_dictionary({}, first)), second)
    assert list(found.items()) == list(expected.items())
    assert list(found) == list(expected)
    assert list(found.values()) == list(expected.values())
    assert len(found) == len(expected)
    assert found == expected
    assert found == PersistentMap.of(expected)
    for key, _value in (*first, *second):
        assert (key in found) == (key in expected)
        assert found.get(key, -1) == expected.get(key, -1)
    assert pickle.loads(pickle.dumps(PersistentMap.of({"a": 1}))) == {"a": 1}


@given(steps, steps)
def test_a_changed_copy_leaves_the_original_alone(first: list[Step], second: list[Step]) -> None:
    original = played(PersistentMap.of({}, parity), first)
    sums, odd = original.total(TOTAL), set(original.keys_in(1))
    counts = dict(original.total(COUNTS))
    kept = dict(original.items())
    changed = played(original, second)
    assert dict(original.items()) == kept
    assert original.total(TOTAL) == sums == sum(kept.values())
    assert set(original.keys_in(1)) == odd
    assert changed.total(TOTAL) == sum(changed.values())
    assert original.total(COUNTS) == counts
    assert changed.total(COUNTS) == Counter(value // 3 for value in changed.values() if value >= 3)


@given(steps, steps)
def test_the_changes_lead_from_one_to_the_other(first: list[Step], second: list[Step]) -> None:
    before = played(PersistentMap.of({}), first)
    after = played(before, second)
    replayed = dict(before.items())
    for one in after.changes_from(before):
        assert before.get(one.key) == one.before
        assert one.before is not one.after
        if one.after is None:
            del replayed[one.key]
        else:
            replayed[one.key] = one.after
    assert replayed == dict(after.items())
    # New keys come in the order in which they were inserted.
    assert [key for key in replayed if key not in before] == [key for key in after if key not in before]
    assert (before == after) == (dict(before.items()) == dict(after.items()))


@given(steps, steps)
def test_groups_follow_the_changes(first: list[Step], second: list[Step]) -> None:
    found = played(PersistentMap.of({}, parity), first)
    found.keys_in(0)
    found = played(found, second)
    for group in (0, 1, 2):
        assert set(found.keys_in(group)) == {key for key, value in found.items() if value % 2 == group}
        assert len(set(found.keys_in(group))) == len(found.keys_in(group))


@given(steps, st.dictionaries(names, st.integers(0, 9)))
def test_many_at_once_are_as_one_after_the_other(first: list[Step], more: dict[object, int]) -> None:
    start = played(PersistentMap.of({}, parity), first)
    at_once = start.with_items(more)
    assert list(at_once.items()) == list({**dict(start.items()), **more}.items())
    assert list(start.without(*more)) == [key for key in start if key not in more]


def test_one_change_among_many_is_found_without_looking_at_the_others() -> None:
    compared = []

    class Value(int):
        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return int.__eq__(self, other)

        __hash__ = int.__hash__

    before = PersistentMap.of({number: Value(number) for number in range(5000)})
    after = before.with_item(17, Value(1))
    assert after.changes_from(before) == [Change(17, Value(17), Value(1))]
    compared.clear()
    assert after != before
    assert len(compared) == 1


def test_a_sum_after_one_change_looks_at_one_entry() -> None:
    seen = []

    def noted(key: int, value: int) -> int:
        seen.append(key)
        return value

    wanted: Tally[int, int, int] = tally(noted)
    before = PersistentMap.of(dict.fromkeys(range(5000), 1))
    assert before.total(wanted) == {1: 5000}
    seen.clear()
    assert before.with_item(7, 2).total(wanted) == {1: 4999, 2: 1}
    assert seen == [7, 7]
