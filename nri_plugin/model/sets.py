"""Ids of the parts of a machine, and immutable sets of CPUs and of NUMA nodes.

A `CPUSet` and a `NodeMask` are both one integer, and never exchanged: each operation on two sets takes two of the same
type, and the type checker refuses a mixture.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NewType, NoReturn, Self, TypeVar

from nri_plugin.model import bits

# Ids are the kernel's numbers, except those of cores and caches, which repeat across sockets: a core has the id of its
# lowest online CPU, a cache that of its position in the order of lowest online CPUs.

CPUID = NewType("CPUID", int)
CoreID = NewType("CoreID", int)
SocketID = NewType("SocketID", int)
UncoreCacheID = NewType("UncoreCacheID", int)
NUMANodeID = NewType("NUMANodeID", int)


_Kind = TypeVar("_Kind", bound="IDSet")


class IDSet:
    """An immutable set of ids, a thin skin over an integer; equal only to a set of its own type.

    Attributes:
        mask: bit i is set when id i is a member. Hot code works on this.
    """

    __slots__ = ("mask",)
    mask: int

    def __init__(self, mask: int = 0) -> None:
        if mask < 0:
            raise ValueError(f"a {type(self).__name__} mask cannot be negative: {mask}")
        _set_mask(self, mask)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.mask,)

    # A type checker refuses to compare sets of two types as long as it sees no method for it.
    if not TYPE_CHECKING:

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self) and self.mask == other.mask

        def __hash__(self) -> int:
            return hash(self.mask)

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

    def __and__(self, other: Self) -> Self:
        return _made(type(self), self.mask & other.mask)

    def __or__(self, other: Self) -> Self:
        return _made(type(self), self.mask | other.mask)

    def __sub__(self, other: Self) -> Self:
        return _made(type(self), self.mask & ~other.mask)

    def __xor__(self, other: Self) -> Self:
        return _made(type(self), self.mask ^ other.mask)

    def __le__(self, other: Self) -> bool:
        return self.mask & ~other.mask == 0

    def isdisjoint(self, other: Self) -> bool:
        """Whether the two sets share no member."""
        return self.mask & other.mask == 0


_set_mask: Callable[[IDSet, int], None] = vars(IDSet)["mask"].__set__


def _made(kind: type[_Kind], mask: int) -> _Kind:
    """A set of a mask that is known not to be negative, in a third of the time: a decision makes dozens."""
    made = object.__new__(kind)
    _set_mask(made, mask)
    return made


class CPUSet(IDSet):
    """An immutable set of logical CPUs."""

    __slots__ = ()

    def __iter__(self) -> Iterator[CPUID]:
        return map(CPUID, bits.iterate(self.mask))


NO_CPUS = CPUSet()
"""The empty set."""


class NodeMask(IDSet):
    """An immutable set of NUMA nodes."""

    __slots__ = ()

    def __iter__(self) -> Iterator[NUMANodeID]:
        return map(NUMANodeID, bits.iterate(self.mask))


NO_NODES = NodeMask()
"""The empty set."""
