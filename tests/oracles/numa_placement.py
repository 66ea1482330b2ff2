"""On which one NUMA node each exclusive container sits, in few characters: for preemption by the scheduler plugin.

Containers are ordered by hash; the fullest NUMA node is left out, every other lists its containers' places in
that order as differences.

Source: k8stopologyawareschedwg/numaplacement, version 1, encoding LEB89.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import xxhash

PREFIX = "npv0v001"
_TERMINALS = 64
_BASE = 25
_DIGITS = [chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"&<>\\']


@dataclass(frozen=True, slots=True)
class Placed:
    """A container and its NUMA node."""

    namespace: str
    pod: str
    container: str
    numa_id: int


def placement(placed: Sequence[Placed], numa_nodes: int) -> tuple[str, Mapping[int, str]]:
    """The node's attribute, and the zone attribute of each NUMA node that has one."""
    ordered = sorted(placed, key=_hash)
    places: dict[int, list[int]] = {}
    for place, one in enumerate(ordered):
        places.setdefault(one.numa_id, []).append(place)
    busiest = min(places, key=lambda numa_id: (-len(places[numa_id]), numa_id), default=0)
    metadata = f"{PREFIX}::ve=leb89::cc={len(ordered)}::nn={numa_nodes}::bn={busiest}"
    return metadata, {one: encoded(_steps(at)) for one, at in sorted(places.items()) if one != busiest}


def encoded(numbers: Iterable[int]) -> str:
    """Each number as continuation characters, most significant first, and one terminal."""
    return "".join(map(_leb89, numbers))


def _leb89(number: int) -> str:
    if number < _TERMINALS:
        return _DIGITS[number]
    number -= _TERMINALS
    text, rest = _DIGITS[number % _TERMINALS], number // _TERMINALS
    while True:
        text = _DIGITS[_TERMINALS + rest % _BASE] + text
        rest //= _BASE
        if not rest:
            return text


def _steps(places: Sequence[int]) -> Iterator[int]:
    yield places[0]
    for before, after in itertools.pairwise(places):
        yield after - before


def _hash(one: Placed) -> int:
    return xxhash.xxh64_intdigest(f"{one.namespace}\0{one.pod}\0{one.container}".encode(), 0)
