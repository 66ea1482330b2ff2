"""Sets of logical CPUs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.ids import CPUID


@dataclass(frozen=True, slots=True, order=False)
class CPUSet:
    """An immutable set of logical CPUs, a thin skin over an integer.

    Attributes:
        mask: bit i is set when CPU i is a member. Hot code works on this.
    """

    mask: int = 0

    def __post_init__(self) -> None:
        if self.mask < 0:
            raise ValueError(f"a CPUSet mask cannot be negative: {self.mask}")

    @classmethod
    def of(cls, *ids: int) -> "CPUSet":
        """The set of the given ids."""
        return cls(bits.from_ids(ids))

    @classmethod
    def from_ids(cls, ids: Iterable[int]) -> "CPUSet":
        """The set of the given ids."""
        return cls(bits.from_ids(ids))

    @classmethod
    def parse(cls, text: str) -> "CPUSet":
        """The set a kernel list such as `0-3,8` stands for.

        Raises:
            ValueError: `text` is not a kernel list.
        """
        return cls(bits.parse_list(text))

    def __str__(self) -> str:
        return bits.format_list(self.mask)

    def __repr__(self) -> str:
        return f"CPUSet({bits.format_list(self.mask)!r})"

    def __bool__(self) -> bool:
        return self.mask != 0

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __iter__(self) -> Iterator[CPUID]:
        return map(CPUID, bits.iterate(self.mask))

    def __contains__(self, item: object) -> bool:
        return isinstance(item, int) and item >= 0 and bool(self.mask >> item & 1)

    def __and__(self, other: "CPUSet") -> "CPUSet":
        return CPUSet(self.mask & other.mask)

    def __or__(self, other: "CPUSet") -> "CPUSet":
        return CPUSet(self.mask | other.mask)

    def __sub__(self, other: "CPUSet") -> "CPUSet":
        return CPUSet(self.mask & ~other.mask)

    def __xor__(self, other: "CPUSet") -> "CPUSet":
        return CPUSet(self.mask ^ other.mask)

    def __le__(self, other: "CPUSet") -> bool:
        return self.mask & ~other.mask == 0

    def isdisjoint(self, other: "CPUSet") -> bool:
        """Whether the two sets share no member."""
        return self.mask & other.mask == 0


NO_CPUS = CPUSet()
"""The empty set."""
