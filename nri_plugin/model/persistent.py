"""An immutable mapping whose changed copy shares all but one path with the original.

A copied dictionary costs what a node has; a changed `PersistentMap` costs what the change touches, and so do the
differences of two versions and a sum over all entries that is asked for again after a change.

The structure is a trie over the hash of the keys:

    branch   up to 8 children, chosen by 3 bits of the hash for each level
    leaf     a dictionary of up to 24 entries; one that grows larger becomes a branch

Invariants: no branch or leaf changes after it was made, except for its remembered sums, which follow from its entries. Every
entry has a number that counts insertions, so that iteration follows the order of insertion, as in a dictionary. A replaced
value keeps its place. Iteration sorts, so it costs more than that of a dictionary; no request of the runtime iterates.

Source: P. Bagwell, Ideal Hash Trees, 2001; cached sums as in R. Hinze and R. Paterson, Finger Trees, 2006.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import is_not, itemgetter
from typing import Any, Generic, TypeVar, cast

from nri_plugin.model.frozen import made_quickly

Key = TypeVar("Key")
Value = TypeVar("Value")
Total = TypeVar("Total")

_BITS = 3
_WIDTH = 1 << _BITS
_MASK = _WIDTH - 1
_LARGEST_LEAF = 24
_DEEPEST = 60 // _BITS
"""Levels; below them all keys have the same hash, and a leaf may have any size."""


@dataclass(frozen=True, eq=False)
class CachedSum(Generic[Key, Value, Total]):
    """A sum over all entries; branches remember theirs, so that only changed paths are added up again.

    Attributes:
        of: the sum of some entries, (key, value); goes over them once.
        join: adds sums. Both take none to many, in any order.
    """

    of: Callable[[Iterable[tuple[Key, Value]]], Total]
    join: Callable[[list[Total]], Total]


@made_quickly
@dataclass(frozen=True, slots=True)
class Change(Generic[Key, Value]):
    """A key whose value differs between two mappings; None where it is missing."""

    key: Key
    before: Value | None
    after: Value | None


_NO_SUMS: Mapping[Any, Any] = {}
_UNKNOWN = object()
_VALUE = itemgetter(1)


class _Leaf:
    """Entries: (number, value) by key."""

    __slots__ = ("entries", "sums")

    def __init__(self, entries: dict[Any, tuple[int, Any]]) -> None:
        self.entries = entries
        self.sums = _NO_SUMS


class _Branch:
    """`_WIDTH` children; empty ones are `_EMPTY`."""

    __slots__ = ("children", "sums")

    def __init__(self, children: "tuple[_Branch | _Leaf, ...]") -> None:
        self.children = children
        self.sums = _NO_SUMS


_Tree = _Branch | _Leaf
_EMPTY = _Leaf({})


class PersistentMap(Mapping[Key, Value]):
    """An immutable mapping; see the module. `PersistentMap.of` makes one from a mapping.

    Args:
        root: the trie.
        count: its entries.
        inserted: the number of the next entry.
        group: gives the group of an entry, for `keys_in`; None where nobody asks for groups.
        groups: the keys by group, once `keys_in` was called.
    """

    __slots__ = ("_count", "_group", "_groups", "_inserted", "root")

    def __init__(
        self,
        root: "_Tree",
        count: int,
        inserted: int,
        group: Callable[[Key, Value], object] | None,
        groups: "PersistentMap[object, tuple[Key, ...]] | None" = None,
    ) -> None:
        self.root, self._count, self._inserted = root, count, inserted
        self._group, self._groups = group, groups

    @classmethod
    def of(
        cls, entries: Mapping[Key, Value], group: Callable[[Key, Value], object] | None = None
    ) -> "PersistentMap[Key, Value]":
        """The mapping with these entries, in their order."""
        numbered = [(hash(key), key, (number, value)) for number, (key, value) in enumerate(entries.items())]
        return cls(_tree(numbered, 0), len(numbered), len(numbered), group)

    # Reading

    def __getitem__(self, key: Key) -> Value:
        return _leaf_of(self.root, key).entries[key][1]  # type: ignore[no-any-return]

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of `key`, or else `default`."""
        entry = _leaf_of(self.root, key).entries.get(key)
        return default if entry is None else entry[1]

    def __contains__(self, key: object) -> bool:
        return _leaf_of(self.root, key).entries.get(key) is not None

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
        former = _leaf_of(self.root, key).entries.get(key)
        if former is not None and former[1] is value:
            return self
        is_new = former is None
        number = self._inserted if former is None else former[0]
        groups = self._groups
        if groups is not None and self._group is not None:
            before = None if former is None else self._group(key, former[1])
            groups = _moved(groups, key, before, self._group(key, value))
        root = _with(self.root, hash(key), 0, key, (number, value))
        return PersistentMap(root, self._count + is_new, self._inserted + is_new, self._group, groups)

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
        root, groups, count = self.root, self._groups, self._count
        for key in keys:
            former = _leaf_of(root, key).entries.get(key)
            if former is None:
                continue
            root, count = _without(root, hash(key), key), count - 1
            if groups is not None and self._group is not None:
                groups = _moved(groups, key, self._group(key, former[1]), None)
        return self if root is self.root else PersistentMap(root, count, self._inserted, self._group, groups)

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
        entry = _leaf_of(self.root, key).entries.get(key)
        return -1 if entry is None else entry[0]

    def total(self, wanted: CachedSum[Key, Value, Total]) -> Total:
        """The sum over all entries."""
        return _total(self.root, wanted)


def persistent(mapping: Mapping[Key, Value]) -> PersistentMap[Key, Value]:
    """The mapping with its own type: a state names its mappings by what its callers may give."""
    return mapping  # type: ignore[return-value]


def _leaf_of(tree: _Tree, key: object) -> _Leaf:
    if type(tree) is _Branch:
        bits = hash(key)
        while type(tree) is _Branch:
            tree = tree.children[bits & _MASK]
            bits >>= _BITS
    return tree  # type: ignore[return-value]


def _entries(tree: _Tree) -> Iterator[tuple[Any, tuple[int, Any]]]:
    # Not a generator in a generator: an entry would pass through one for each level.
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _Leaf):
            yield from one.entries.items()
        else:
            waiting.extend(reversed(one.children))


def _tree(entries: Iterable[tuple[int, Any, tuple[int, Any]]], level: int) -> _Tree:
    """The tree of (remaining bits of the hash, key, entry)."""
    some = list(entries)
    if not some:
        return _EMPTY
    if len(some) <= _LARGEST_LEAF or level >= _DEEPEST:
        return _Leaf({key: entry for _, key, entry in some})
    parts: list[list[tuple[int, Any, tuple[int, Any]]]] = [[] for _ in range(_WIDTH)]
    for bits, key, entry in some:
        parts[bits & _MASK].append((bits >> _BITS, key, entry))
    return _Branch(tuple(_tree(part, level + 1) for part in parts))


def _with(tree: _Tree, bits: int, level: int, key: Any, entry: tuple[int, Any]) -> _Tree:
    if isinstance(tree, _Branch):
        at = bits & _MASK
        child = _with(tree.children[at], bits >> _BITS, level + 1, key, entry)
        return _Branch((*tree.children[:at], child, *tree.children[at + 1 :]))
    entries = {**tree.entries, key: entry}
    if len(entries) <= _LARGEST_LEAF or level >= _DEEPEST:
        return _Leaf(entries)
    # Some hashes are shorter than the trie is deep; a negative one stays negative, so every level has bits to choose by.
    shift = _BITS * level
    return _tree([(hash(one) >> shift, one, entries[one]) for one in entries], level)


def _without(tree: _Tree, bits: int, key: Any) -> _Tree:
    if isinstance(tree, _Branch):
        at = bits & _MASK
        child = _without(tree.children[at], bits >> _BITS, key)
        children = (*tree.children[:at], child, *tree.children[at + 1 :])
        return _EMPTY if all(one is _EMPTY for one in children) else _Branch(children)
    entries = {one: entry for one, entry in tree.entries.items() if one != key}
    return _Leaf(entries) if entries else _EMPTY


def _differences(before: _Tree, after: _Tree) -> Iterator[tuple[Any, Any, Any]]:
    """(key, old value, new value) of entries that are not the same object; equal subtrees are skipped."""
    if before is after:
        return
    if type(before) is _Branch and type(after) is _Branch:
        # Mostly one child differs: it is found without a step of the interpreter for each of them.
        pairs = zip(before.children, after.children, strict=True)
        for old, new in compress(pairs, map(is_not, before.children, after.children)):
            yield from _differences(old, new)
        return
    left = before.entries if isinstance(before, _Leaf) else dict(_entries(before))
    right = after.entries if isinstance(after, _Leaf) else dict(_entries(after))
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


def _total(tree: _Tree, wanted: CachedSum[Any, Any, Total]) -> Total:
    found = tree.sums.get(wanted, _UNKNOWN)
    if found is not _UNKNOWN:
        return cast("Total", found)
    if isinstance(tree, _Leaf):
        found = wanted.of(zip(tree.entries, map(_VALUE, tree.entries.values()), strict=True))
    else:
        # Mostly all children but one remember theirs.
        found = wanted.join(
            [
                _total(child, wanted) if (known := child.sums.get(wanted, _UNKNOWN)) is _UNKNOWN else known
                for child in tree.children
            ]
        )
    # Two threads may do the same; then one of two equal sums is forgotten.
    tree.sums = {**tree.sums, wanted: found}
    return found


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
