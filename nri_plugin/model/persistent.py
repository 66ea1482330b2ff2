"""An immutable mapping whose changed copy shares all but one path with the original.

A copied dictionary costs what a node has; a changed `PersistentMap` costs what the change touches, and so do the
differences of two versions and a sum over all entries that is asked for again after a change.

The structure is a trie over the hash of the keys:

    branch   a tuple of 8 children, chosen by 3 bits of the hash for each level
    leaf     a dictionary of up to 24 entries, (number, value) by key; one that grows larger becomes a branch

Invariants: no branch or leaf changes after it was made. Every entry has a number that counts insertions, so that iteration
follows the order of insertion, as in a dictionary. A replaced value keeps its place. Iteration sorts, so it costs more than
that of a dictionary; no request of the runtime iterates.

Source: P. Bagwell, Ideal Hash Trees, 2001.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import is_not, itemgetter
from typing import Any, Generic, TypeVar, cast

from nri_plugin.model.frozen import made_quickly

Key = TypeVar("Key")
Value = TypeVar("Value")
Part = TypeVar("Part")
Total = TypeVar("Total")

_BITS = 3
_WIDTH = 1 << _BITS
_MASK = _WIDTH - 1
_LARGEST_LEAF = 24
_DEEPEST = 60 // _BITS
"""Levels; below them all keys have the same hash, and a leaf may have any size."""


@dataclass(frozen=True, eq=False)
class RunningSum(Generic[Key, Value, Part, Total]):
    """A sum over all entries that a changed copy takes over from its original, less what left and plus what came.

    Attributes:
        part: what an entry adds; None for nothing.
        of: the sum of some parts.
        moved: a sum without one part and with another; None for no part.
    """

    part: Callable[[Key, Value], Part | None]
    of: Callable[[Iterable[Part]], Total]
    moved: Callable[[Total, Part | None, Part | None], Total]


Tally = RunningSum[Key, Value, Part, Mapping[Part, int]]


def tally(part: Callable[[Key, Value], Part | None]) -> Tally[Key, Value, Part]:
    """How many entries have the same part, by part."""
    return RunningSum(part, lambda parts: dict(Counter(parts)), _recounted)


def _recounted(counts: Mapping[Part, int], left: Part | None, came: Part | None) -> Mapping[Part, int]:
    changed = dict(counts)
    if left is not None:
        others = changed.pop(left) - 1
        if others:
            changed[left] = others
    if came is not None:
        changed[came] = changed.get(came, 0) + 1
    return changed


@made_quickly
@dataclass(frozen=True, slots=True)
class Change(Generic[Key, Value]):
    """A key whose value differs between two mappings; None where it is missing."""

    key: Key
    before: Value | None
    after: Value | None


_Entry = tuple[int, Any]
_Leaf = dict[Any, _Entry]
_Branch = tuple[Any, ...]
_Tree = _Leaf | _Branch
_EMPTY: _Leaf = {}


class PersistentMap(Mapping[Key, Value]):
    """An immutable mapping; see the module. `PersistentMap.of` makes one from a mapping.

    Args:
        root: the trie.
        count: its entries.
        inserted: the number of the next entry.
        group: gives the group of an entry, for `keys_in`; None where nobody asks for groups.
        groups: the keys by group, once `keys_in` was called.
        sums: the known ones.
        wanted: the sums that this mapping, its originals or its copies were asked for; they share the list.
    """

    __slots__ = ("_count", "_group", "_groups", "_inserted", "_sums", "_wanted", "root")

    def __init__(
        self,
        root: "_Tree",
        count: int,
        inserted: int,
        group: Callable[[Key, Value], object] | None,
        groups: "PersistentMap[object, tuple[Key, ...]] | None",
        sums: "dict[_AnySum, Any]",
        wanted: "list[_AnySum]",
    ) -> None:
        self.root, self._count, self._inserted = root, count, inserted
        self._group, self._groups, self._sums, self._wanted = group, groups, sums, wanted

    @classmethod
    def of(
        cls, entries: Mapping[Key, Value], group: Callable[[Key, Value], object] | None = None
    ) -> "PersistentMap[Key, Value]":
        """The mapping with these entries, in their order."""
        numbered = [(hash(key), key, (number, value)) for number, (key, value) in enumerate(entries.items())]
        return cls(_tree(numbered, 0), len(numbered), len(numbered), group, None, {}, [])

    # Reading

    def __getitem__(self, key: Key) -> Value:
        return _leaf_of(self.root, key)[key][1]  # type: ignore[no-any-return]

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of `key`, or else `default`."""
        entry = _leaf_of(self.root, key).get(key)
        return default if entry is None else entry[1]

    def __contains__(self, key: object) -> bool:
        return _leaf_of(self.root, key).get(key) is not None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Key]:
        return iter([key for _, key, _ in self._in_order()])

    def items(self) -> Any:
        """The entries in the order of insertion."""
        return [(key, value) for _, key, value in self._in_order()]

    def values(self) -> Any:
        """The values in the order of insertion."""
        return [value for _, _, value in self._in_order()]

    def in_any_order(self) -> Iterator[tuple[Key, Value]]:
        """The entries one by one, without the cost of the order."""
        return ((key, entry[1]) for key, entry in _entries(self.root))

    def _in_order(self) -> list[tuple[int, Key, Value]]:
        found = [(number, key, value) for key, (number, value) in _entries(self.root)]
        found.sort(key=itemgetter(0))
        return found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PersistentMap):
            if self.root is other.root:
                return True
            if self._count != other._count:
                return False
            return all(old == new for _, old, new in _differences(other.root, self.root))
        return isinstance(other, Mapping) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PersistentMap.of, (dict(self.items()), self._group)

    # Changed copies

    def with_item(self, key: Key, value: Value) -> "PersistentMap[Key, Value]":
        """A copy in which `key` has `value`; a new key comes last."""
        former = _leaf_of(self.root, key).get(key)
        if former is not None and former[1] is value:
            return self
        is_new = former is None
        number = self._inserted if former is None else former[0]
        groups = self._groups
        if groups is not None and self._group is not None:
            before = None if former is None else self._group(key, former[1])
            groups = _moved(groups, key, before, self._group(key, value))
        root = _with(self.root, hash(key), 0, key, (number, value))
        sums = self._moved_sums(key, former, value)
        count, inserted = self._count + is_new, self._inserted + is_new
        return PersistentMap(root, count, inserted, self._group, groups, sums, self._wanted)

    def with_items(self, entries: Mapping[Key, Value]) -> "PersistentMap[Key, Value]":
        """A copy with all of `entries`."""
        if len(entries) * _WIDTH > self._count:
            # So many paths change that a new tree costs less.
            return PersistentMap.of({**dict(self.items()), **entries}, self._group)
        made = self
        for key, value in entries.items():
            made = made.with_item(key, value)
        return made

    def without(self, *keys: Key) -> "PersistentMap[Key, Value]":
        """A copy without `keys`, as far as they are there."""
        made = self
        for key in keys:
            made = made._without(key)
        return made

    def _without(self, key: Key) -> "PersistentMap[Key, Value]":
        former, groups = _leaf_of(self.root, key).get(key), self._groups
        if former is None:
            return self
        if groups is not None and self._group is not None:
            groups = _moved(groups, key, self._group(key, former[1]), None)
        root, sums = _without(self.root, hash(key), key), self._moved_sums(key, former, None)
        return PersistentMap(root, self._count - 1, self._inserted, self._group, groups, sums, self._wanted)

    def _moved_sums(self, key: Key, former: "_Entry | None", value: Value | None) -> "dict[_AnySum, Any]":
        """The sums of a copy in which the entry of `key` is another one; None for none."""
        sums = {}
        for wanted in tuple(self._wanted):  # another thread may add one
            total = self.total(wanted)
            left = None if former is None else wanted.part(key, former[1])
            came = None if value is None else wanted.part(key, value)
            is_same = left is came or left == came
            sums[wanted] = total if is_same else wanted.moved(total, left, came)
        return sums

    # Whole mappings, at the cost of what has changed

    def keys_in(self, group: object) -> tuple[Key, ...]:
        """The keys of the entries in `group`, in the order in which they came to it.

        The first call looks at all entries; copies keep the answer up to date.
        """
        if self._group is None:
            raise ValueError("this mapping has no groups")
        if self._groups is None:
            found: dict[object, list[Key]] = {}
            for key, value in self.items():
                found.setdefault(self._group(key, value), []).append(key)
            self._groups = PersistentMap.of({one: tuple(keys) for one, keys in found.items()})
        return cast("tuple[Key, ...]", self._groups.get(group, ()))

    def changes_from(self, other: "PersistentMap[Key, Value]") -> list[Change[Key, Value]]:
        """The keys whose value is another object than in `other`: removed ones first, then in the order of insertion."""
        if not other:
            return [Change(key, None, value) for _, key, value in self._in_order()]
        found = [Change(key, old, new) for key, old, new in _differences(other.root, self.root)]
        if len(found) > 1:
            found.sort(key=lambda one: self._rank(one.key))
        return found

    def in_order(self, keys: Iterable[Key]) -> list[Key]:
        """These keys in the order of their insertion."""
        return sorted(keys, key=self._rank)

    def _rank(self, key: Key) -> int:
        entry = _leaf_of(self.root, key).get(key)
        return -1 if entry is None else entry[0]

    def total(self, wanted: RunningSum[Key, Value, Any, Total]) -> Total:
        """The sum over all entries.

        The first call looks at all of them. Copies keep the sum up to date, also those of a mapping that was not asked
        itself: it looks once, too.
        """
        known = self._sums.get(wanted, _UNKNOWN)
        if known is not _UNKNOWN:
            return cast("Total", known)
        parts = (wanted.part(key, entry[1]) for key, entry in _entries(self.root))
        found = self._sums[wanted] = wanted.of(part for part in parts if part is not None)
        if wanted not in self._wanted:
            self._wanted.append(wanted)
        return found


_AnySum = RunningSum[Any, Any, Any, Any]
_UNKNOWN = object()


def persistent(mapping: Mapping[Key, Value]) -> PersistentMap[Key, Value]:
    """The mapping with its own type: a state names its mappings by what its callers may give."""
    return mapping  # type: ignore[return-value]


def _leaf_of(tree: _Tree, key: object) -> _Leaf:
    if type(tree) is tuple:
        bits = hash(key)
        while type(tree) is tuple:
            tree = tree[bits & _MASK]
            bits >>= _BITS
    return tree  # type: ignore[return-value]


def _entries(tree: _Tree) -> Iterator[tuple[Any, _Entry]]:
    # Not a generator in a generator: an entry would pass through one for each level.
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield from one.items()
        else:
            waiting.extend(reversed(one))


def _tree(entries: Iterable[tuple[int, Any, _Entry]], level: int) -> _Tree:
    """The tree of (remaining bits of the hash, key, entry)."""
    some = list(entries)
    if not some:
        return _EMPTY
    if len(some) <= _LARGEST_LEAF or level >= _DEEPEST:
        return {key: entry for _, key, entry in some}
    parts: list[list[tuple[int, Any, _Entry]]] = [[] for _ in range(_WIDTH)]
    for bits, key, entry in some:
        parts[bits & _MASK].append((bits >> _BITS, key, entry))
    return tuple([_tree(part, level + 1) for part in parts])


def _with(tree: _Tree, bits: int, level: int, key: Any, entry: _Entry) -> _Tree:
    if isinstance(tree, tuple):
        at = bits & _MASK
        child = _with(tree[at], bits >> _BITS, level + 1, key, entry)
        return (*tree[:at], child, *tree[at + 1 :])
    entries = {**tree, key: entry}
    if len(entries) <= _LARGEST_LEAF or level >= _DEEPEST:
        return entries
    # Some hashes are shorter than the trie is deep; a negative one stays negative, so every level has bits to choose by.
    shift = _BITS * level
    return _tree([(hash(one) >> shift, one, entries[one]) for one in entries], level)


def _without(tree: _Tree, bits: int, key: Any) -> _Tree:
    if isinstance(tree, tuple):
        at = bits & _MASK
        child = _without(tree[at], bits >> _BITS, key)
        children = (*tree[:at], child, *tree[at + 1 :])
        return _EMPTY if all(one is _EMPTY for one in children) else children
    entries = dict(tree)
    del entries[key]
    return entries or _EMPTY


def _differences(before: _Tree, after: _Tree) -> Iterator[tuple[Any, Any, Any]]:
    """(key, old value, new value) of entries that are not the same object; equal subtrees are skipped."""
    if before is after:
        return
    if type(before) is tuple and type(after) is tuple:
        # Mostly one child differs: it is found without a step of the interpreter for each of them.
        for old, new in compress(zip(before, after, strict=True), map(is_not, before, after)):
            yield from _differences(old, new)
        return
    left = before if isinstance(before, dict) else dict(_entries(before))
    right = after if isinstance(after, dict) else dict(_entries(after))
    missing = len(left) - len(right)
    # A copy has the entries of its original but for those that were set, so these few are found in the same way.
    for key in compress(right, map(is_not, right.values(), map(left.get, right))):
        one, other = left.get(key), right[key]
        if one is None:
            missing += 1
            yield key, None, other[1]
        elif one[1] is not other[1]:
            yield key, one[1], other[1]
    if missing:
        for key, entry in left.items():
            if key not in right:
                yield key, entry[1], None


def _moved(
    groups: "PersistentMap[object, tuple[Any, ...]]", key: Any, before: object, after: object
) -> "PersistentMap[object, tuple[Any, ...]]":
    """The groups once `key` has left one and come to another; None for no group."""
    if before == after:
        return groups
    if before is not None:
        left = tuple(one for one in groups.get(before, ()) if one != key)
        groups = groups.with_item(before, left) if left else groups.without(before)
    if after is not None:
        groups = groups.with_item(after, (*groups.get(after, ()), key))
    return groups
