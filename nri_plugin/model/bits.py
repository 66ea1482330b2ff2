"""Sets of small numbers as integers: bit i is set when i is a member.

Everything that is fast in this project is fast because of this: union,
intersection and count are one machine-level operation each. Hot code combines
precomputed masks and never walks bit by bit.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import compress, count

MAX_ID = 65535
"""Largest id accepted from text; the kernel's limits are 8192 CPUs and 1024 NUMA nodes."""

_ITEM = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


def from_ids(ids: Iterable[int]) -> int:
    """The mask whose members are `ids`.

    Raises:
        ValueError: an id is negative.
    """
    mask = 0
    for number in ids:
        mask |= 1 << number
    return mask


def iterate(mask: int) -> Iterator[int]:
    """The members of `mask`, ascending."""
    return compress(count(), map(int, bin(mask)[:1:-1]))


def lowest(mask: int) -> int:
    """The smallest member of a mask that is not empty (-1 for the empty mask)."""
    return (mask & -mask).bit_length() - 1


def parse_list(text: str) -> int:
    """The mask a kernel list such as `0-3,8,10-11` stands for; blank text is empty.

    Raises:
        ValueError: not a kernel list, a range that runs backwards, or an id above `MAX_ID`.

    Source: kernel Documentation/admin-guide/cputopology.rst, "list format"; white space
        around the whole text is ignored.
    """
    text = text.strip(" \t\r\n\0")
    if not text:
        return 0
    mask = 0
    for item in text.split(","):
        match = _ITEM.match(item)
        if match is None:
            raise ValueError(f"'{item}' in '{text[:80]}' is neither a number nor a range such as 0-3")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"range '{item}' in '{text[:80]}' runs backwards")
        if last > MAX_ID:
            raise ValueError(f"id {last} in '{text[:80]}' is above {MAX_ID}")
        mask |= ((1 << (last - first + 1)) - 1) << first
    return mask


def format_list(mask: int) -> str:
    """The kernel list of `mask`: ascending, runs joined; empty text for the empty mask."""
    parts = []
    while mask:
        first = lowest(mask)
        run = (~(mask >> first) & ((mask >> first) + 1)).bit_length() - 1
        last = first + run - 1
        parts.append(f"{first}" if run == 1 else f"{first}-{last}")
        mask &= ~(((1 << run) - 1) << first)
    return ",".join(parts)
