"""What sets of CPUs and sets of NUMA nodes have in common: all but the operations on two sets.

Those are written out in each type, with that type in their signatures: a type checker then refuses a mixture, and
no call finds out at run time which set to make.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from nri_plugin import bits


@dataclass(frozen=True, slots=True, order=False, repr=False)
class IDSet:
    """An immutable set of ids, a thin skin over an integer; equal only to a set of its own type.

    Attributes:
        mask: bit i is set when id i is a member. Hot code works on this.
    """

    mask: int = 0

    def __post_init__(self) -> None:
        if self.mask < 0:
            raise ValueError(f"a {type(self).__name__} mask cannot be negative: {self.mask}")

    @classmethod
    def of(cls, *ids: int) -> Self:
        """The set of the given ids."""
        return cls(bits.from_ids(ids))

    @classmethod
    def from_ids(cls, ids: Iterable[int]) -> Self:
        """The set of the given ids."""
        return cls(bits.from_ids(ids))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The set a kernel list such as `0-3,8` stands for.

        Raises:
            ValueError: `text` is not a kernel list.
        """
        return cls(bits.parse_list(text))

    def __str__(self) -> str:
        return bits.format_list(self.mask)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bits.format_list(self.mask)!r})"

    def __bool__(self) -> bool:
        return self.mask != 0

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __contains__(self, item: object) -> bool:
        return isinstance(item, int) and item >= 0 and bool(self.mask >> item & 1)
