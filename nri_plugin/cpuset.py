"""Sets of logical CPUs."""

from collections.abc import Iterator
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.ids import CPUID
from nri_plugin.idset import IDSet


@dataclass(frozen=True, slots=True, order=False, repr=False)
class CPUSet(IDSet):
    """An immutable set of logical CPUs."""

    def __iter__(self) -> Iterator[CPUID]:
        return map(CPUID, bits.iterate(self.mask))

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
