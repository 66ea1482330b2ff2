"""What decides between NUMA node masks of one size: distance, then the tie break, then the lower mask."""

from dataclasses import dataclass
from functools import lru_cache

from nri_plugin import bits
from nri_plugin.policy.clusters import Layout, layout
from nri_plugin.policy.distances import Distances
from nri_plugin.policy.tie_break import TieBreak


@dataclass(frozen=True)
class Order:
    """The order of masks of one size.

    Attributes:
        distances: the closer wins first (prefer-closest-numa-nodes); None where that does not count.
        tie_break: the smaller rank wins next; None where the lowest mask does.
    """

    distances: Distances | None = None
    tie_break: TieBreak | None = None

    @property
    def is_by_mask(self) -> bool:
        """Whether the lowest mask always wins."""
        return self.distances is None and self.tie_break is None

    def of(self, mask: int) -> tuple[int, int, int]:
        """The smaller the better; of masks of one size only."""
        far = self.distances.total(mask) if self.distances else 0
        return far, self.tie_break.rank(mask) if self.tie_break else 0, mask

    def layout_of(self, nodes: int) -> Layout:
        """Clusters that hold `nodes`, all equally far apart where distances do not count."""
        return self.distances.layout if self.distances else _one_cluster(nodes)

    @property
    def span(self) -> int:
        """More than any two ranks of the tie break differ by."""
        return self.tie_break.span + 1 if self.tie_break else 1


def band(size: int, target: int) -> tuple[bool, int]:
    """How sizes compare where no mask is preferred: the target, the narrower from the widest, the wider."""
    return size > target, abs(size - target)


@lru_cache(maxsize=16)
def _one_cluster(nodes: int) -> Layout:
    ids = list(bits.iterate(nodes))
    return layout({one: dict.fromkeys(ids, 0) for one in ids})
