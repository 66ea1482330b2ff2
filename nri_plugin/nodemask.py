"""Sets of NUMA nodes, never exchanged with sets of CPUs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.ids import NUMANodeID


@dataclass(frozen=True, slots=True, order=False)
class NodeMask:
    """An immutable set of NUMA nodes, a thin skin over an integer.

    Attributes:
        mask: bit i is set when NUMA node i is a member. Hot code works on this.
    """

    mask: int = 0

    def __post_init__(self) -> None:
        if self.mask < 0:
            raise ValueError(f"a NodeMask mask cannot be negative: {self.mask}")

    @classmethod
    def of(cls, *ids: int) -> "NodeMask":
        """The set of the given ids."""
        return cls(bits.from_ids(ids))

    @classmethod
    def from_ids(cls, ids: Iterable[int]) -> "NodeMask":
        """The set of the given ids."""
        return cls(bits.from_ids(ids))

    @classmethod
    def parse(cls, text: str) -> "NodeMask":
        """The set a kernel list such as `0-3,8` stands for.

        Raises:
            ValueError: `text` is not a kernel list.
        """
        return cls(bits.parse_list(text))

    def __str__(self) -> str:
        return bits.format_list(self.mask)

    def __repr__(self) -> str:
        return f"NodeMask({bits.format_list(self.mask)!r})"

    def __bool__(self) -> bool:
        return self.mask != 0

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __iter__(self) -> Iterator[NUMANodeID]:
        return map(NUMANodeID, bits.iterate(self.mask))

    def __contains__(self, item: object) -> bool:
        return isinstance(item, int) and item >= 0 and bool(self.mask >> item & 1)

    def __and__(self, other: "NodeMask") -> "NodeMask":
        return NodeMask(self.mask & other.mask)

    def __or__(self, other: "NodeMask") -> "NodeMask":
        return NodeMask(self.mask | other.mask)

    def __sub__(self, other: "NodeMask") -> "NodeMask":
        return NodeMask(self.mask & ~other.mask)

    def __xor__(self, other: "NodeMask") -> "NodeMask":
        return NodeMask(self.mask ^ other.mask)

    def __le__(self, other: "NodeMask") -> bool:
        return self.mask & ~other.mask == 0

    def isdisjoint(self, other: "NodeMask") -> bool:
        """Whether the two sets share no member."""
        return self.mask & other.mask == 0


NO_NODES = NodeMask()
"""The empty set."""
