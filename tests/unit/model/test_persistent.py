"""The persistent mapping beyond its laws (tests/property/test_persistent.py)."""

import copy

import pytest

from nri_plugin.model.persistent import Change, PersistentMap, Tally, tally

MANY = 300
"""Entries: enough for three levels of branches."""


def many() -> PersistentMap[int, str]:
    return PersistentMap.of({number: f"v{number}" for number in range(MANY)}, lambda key, _value: key % 3)


def test_a_missing_key_is_an_error_of_a_dictionary() -> None:
    with pytest.raises(KeyError):
        many()[MANY]
    assert many().get(MANY) is None
    assert MANY not in many()
    assert 7 in many()


def test_the_same_value_again_is_no_change() -> None:
    start = many()
    assert start.with_item(7, start[7]) is start
    assert start.without(MANY) is start


def test_groups_are_asked_of_a_mapping_that_has_some() -> None:
    with pytest.raises(ValueError, match="no groups"):
        PersistentMap.of({1: "a"}).keys_in(1)
    assert many().keys_in(5) == ()
    assert many().without(1).keys_in(1)[0] == 4


def test_a_removed_group_is_empty() -> None:
    start = many()
    assert len(start.keys_in(0)) == 100
    assert start.without(*range(0, MANY, 3)).keys_in(0) == ()


def test_it_shows_its_entries() -> None:
    assert repr(PersistentMap.of({1: "a"})) == "PersistentMap({1: 'a'})"
    assert PersistentMap.of({1: "a"}) != 7


def test_everything_removed_leaves_nothing() -> None:
    start = many()
    empty = start
    for number in range(MANY):
        empty = empty.without(number)
    assert empty == {}
    assert len(empty) == 0
    assert empty.with_item(1, "a") == {1: "a"}
    assert len(empty.changes_from(start)) == MANY


def test_removed_keys_come_first_among_the_changes() -> None:
    start = many()
    after = start.with_item(MANY, "new").without(3).with_item(0, "other")
    assert after.changes_from(start) == [
        Change(3, "v3", None),
        Change(0, "v0", "other"),
        Change(MANY, None, "new"),
    ]


def test_a_copy_has_the_same_entries() -> None:
    start = many()
    assert copy.deepcopy(start.without(*range(200))) == start.without(*range(200))
    assert dict(start.without(*range(290)).in_any_order()) == {
        number: f"v{number}" for number in range(290, MANY)
    }


def remainder(key: int, _value: str) -> int | None:
    """0 counts nowhere."""
    return key % 3 or None


def test_a_tally_follows_what_comes_leaves_and_changes() -> None:
    wanted: Tally[int, str, int] = tally(remainder)
    start = PersistentMap.of({1: "a", 2: "b", 3: "c"})
    assert start.total(wanted) == {1: 1, 2: 1}
    assert start.with_item(4, "d").total(wanted) == {1: 2, 2: 1}
    assert start.with_item(4, "d").without(1).total(wanted) == {1: 1, 2: 1}
    assert start.without(1, 3).total(wanted) == {2: 1}
    assert start.with_item(6, "f").total(wanted) is start.total(wanted)
    assert start.with_item(2, "other").total(wanted) is start.total(wanted)


def test_a_tally_of_what_values_are_moves_with_them() -> None:
    wanted: Tally[int, str, str] = tally(lambda _key, value: value)
    start = PersistentMap.of({1: "a", 2: "a"})
    assert start.total(wanted) == {"a": 2}
    assert start.with_item(1, "b").total(wanted) == {"a": 1, "b": 1}


def test_an_original_that_was_not_asked_looks_at_all_entries_once() -> None:
    seen: list[int] = []

    def noted(key: int, _value: str) -> int:
        seen.append(key)
        return 0

    wanted: Tally[int, str, int] = tally(noted)
    start = many()
    assert start.with_item(MANY, "new").total(wanted) == {0: MANY + 1}
    assert start.with_item(MANY, "other").total(wanted) == {0: MANY + 1}
    seen.clear()
    assert start.without(1).total(wanted) == {0: MANY - 1}
    assert seen == [1]
