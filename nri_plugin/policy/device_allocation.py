"""The preferred allocation of devices: the best NUMA placement first, then the best pairing.

Devices with a strong link (a GPU and its partner) belong in one container, and a pair that is not needed stays
whole for the next container.

Source: KEP-693, the preferred allocation that the kubelet asks a device plugin for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from itertools import combinations

from nri_plugin.model import bits
from nri_plugin.model.sets import NodeMask

EXACT_DEVICES = 16
"""Up to this many devices the search is exact. No machine of today has more GPUs of one kind."""

STEP_BUDGET = 20_000
"""Steps of a search among more devices; then the best set found so far is the answer."""

DEEPEST = 256
"""With more devices the greedy set is the answer, because a depth-first search must fit on the stack."""

Links = Mapping[tuple[str, str], int]
"""Weight by pair of device ids, in either order, never negative; other pairs have weight 0."""


def preferred_devices(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    nodes_by_device: Mapping[str, NodeMask],
    links: Links,
    *,
    affinity: NodeMask | None = None,
) -> tuple[str, ...]:
    """The set of `size` devices to allocate, in the order of `available`.

    Sets are compared by, in this order: the most devices on `affinity`; the fewest NUMA nodes that
    touch every device; the highest sum of links inside the set; the lowest sum of links cut, that is,
    to devices left available; the position in `available`, lexicographically. Equal input gives equal output.
    Exact for up to `EXACT_DEVICES` available devices; beyond, the set is within the affinity as far as
    possible and on the fewest nodes found, and the rest is as good as a bounded search gets.

    Args:
        available: ids that may be allocated, without repetition, with those of `must_include`.
        must_include: ids that are allocated in any case; they count in `size`.
        size: how many devices.
        nodes_by_device: the NUMA nodes a device is attached to; each of them is near. A device without nodes
            is near everywhere.
        links: the link graph.
        affinity: the merged hint; None for anywhere.

    Raises:
        ValueError: `size` is below the number of `must_include` or above the number of `available`.
    """
    ids = tuple(dict.fromkeys((*available, *must_include)))
    forced = frozenset(ids.index(name) for name in must_include)
    if not len(forced) <= size <= len(ids):
        raise ValueError(
            f"{size} devices wanted, but {len(forced)} must be included and {len(ids)} are available"
        )
    nodes = tuple(nodes_by_device.get(name, NodeMask()).mask for name in ids)
    forced, optional = _within_affinity(nodes, forced, size, affinity)
    weights = _Weights.of(ids, links)
    # placement comes before pairing: links decide among the devices of the fewest nodes only
    search = _DeviceSearch(weights, size, STEP_BUDGET if len(ids) > EXACT_DEVICES else None)
    for candidates in _narrowest(nodes, forced, optional, size, search):
        search.try_all(sorted(forced), [number for number in candidates if number not in forced])
        if search.spent:
            break
    return tuple(ids[number] for number in search.best)


def _within_affinity(
    nodes: Sequence[int], forced: frozenset[int], size: int, affinity: NodeMask | None
) -> tuple[frozenset[int], tuple[int, ...]]:
    """(devices in every best set, devices to choose from): first those near the affinity."""
    optional = [number for number in range(len(nodes)) if number not in forced]
    if affinity is None:
        return forced, tuple(optional)
    near = frozenset(n for n in optional if not nodes[n] or nodes[n] & affinity.mask)
    # enough near devices: choose among them; otherwise take them all, and the rest from elsewhere
    if len(forced) + len(near) >= size:
        return forced, tuple(sorted(near))
    return forced | near, tuple(number for number in optional if number not in near)


def _narrowest(
    nodes: Sequence[int], forced: frozenset[int], optional: Sequence[int], size: int, search: "_DeviceSearch"
) -> Iterable[tuple[int, ...]]:
    """The sets of devices to choose from, one for each choice of the fewest NUMA nodes."""
    everyone = (*forced, *optional)
    count_by_node = _counts(nodes, everyone)
    anywhere = sum(not nodes[number] for number in everyone)
    order = sorted(count_by_node, key=lambda node: (-count_by_node[node], node))
    for width in range(len(order)):
        # No set of so many nodes has more devices than the nodes with the most devices.
        if anywhere + sum(count_by_node[node] for node in order[:width]) < size:
            continue
        found = [
            chosen
            for chosen in _of_width(nodes, forced, everyone, order, width, search)
            if len(chosen) >= size
        ]
        if found:
            return dict.fromkeys(found)
    return (everyone,)


def _of_width(
    nodes: Sequence[int],
    forced: frozenset[int],
    everyone: Sequence[int],
    order: Sequence[int],
    width: int,
    search: "_DeviceSearch",
) -> Iterable[tuple[int, ...]]:
    """The devices near each set of `width` nodes that is near all forced ones."""
    for members in combinations(order, width):
        search.step()
        if search.spent:
            return
        mask = bits.from_ids(members)
        if all(not nodes[number] or nodes[number] & mask for number in forced):
            yield tuple(n for n in everyone if not nodes[n] or nodes[n] & mask)


def _counts(nodes: Sequence[int], numbers: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for number in numbers:
        for node in bits.iterate(nodes[number]):
            counts[node] = counts.get(node, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class _Weights:
    """The link graph by position.

    Attributes:
        rows: weight to each other device, both directions added up.
        totals: sum of a device's links to all available ones.
    """

    rows: tuple[tuple[int, ...], ...]
    totals: tuple[int, ...]

    @classmethod
    def of(cls, ids: Sequence[str], links: Links) -> "_Weights":
        number_by_id = {name: number for number, name in enumerate(ids)}
        rows = [[0] * len(ids) for _ in ids]
        for (one, other), weight in links.items():
            a, b = number_by_id.get(one), number_by_id.get(other)
            if a is not None and b is not None and a != b:
                rows[a][b] = rows[b][a] = weight
        return cls(tuple(map(tuple, rows)), tuple(map(sum, rows)))


@dataclass(slots=True)
class _DeviceSearch:
    """Branch and bound over devices in order, each first with the device and then without it.

    Attributes:
        weights: the link graph.
        size: of a set.
        left: steps left; None without a limit.
        best: the best set so far.
    """

    weights: _Weights
    size: int
    left: int | None
    best: tuple[int, ...] = ()
    rank: tuple[int, int, tuple[int, ...]] | None = None
    most: tuple[int, ...] = field(default=())
    spent: bool = False

    def step(self) -> None:
        """Count one step."""
        if self.left is not None:
            self.left -= 1
            self.spent = self.left < 0

    def try_all(self, forced: Sequence[int], optional: Sequence[int]) -> None:
        """Try every set that contains `forced` and some of `optional`; without links only the best one."""
        missing = self.size - len(forced)
        numbers = [*forced, *optional]
        self.most = _most(self.weights, numbers, self.size)
        inside = sum(self.weights.rows[a][b] for a, b in combinations(forced, 2))
        if not any(self.most):
            # no link inside any set: those devices are best whose links to others are weakest
            free = sorted(optional, key=lambda number: (self.weights.totals[number], number))
            self._keep([*forced, *free[:missing]], 0)
            return
        ordered = self._greedy(forced, optional) if self.left is not None else list(optional)
        if len(ordered) > DEEPEST:
            ordered = ordered[:missing]
        self._extend(list(forced), ordered, 0, inside)

    def _greedy(self, forced: Sequence[int], optional: Sequence[int]) -> list[int]:
        """The devices in the order in which the strongest link to those before adds them."""
        rows, ordered, left = self.weights.rows, list(forced), list(optional)
        gain = {number: sum(rows[number][other] for other in forced) for number in left}
        while left:
            number = max(left, key=lambda n: (gain[n], -n)) if ordered else self._seed(left)
            left.remove(number)
            ordered.append(number)
            for other in left:
                gain[other] += rows[number][other]
        return ordered[len(forced) :]

    def _seed(self, numbers: Sequence[int]) -> int:
        return max(numbers, key=lambda n: (self.most[n], -n))

    def _extend(self, chosen: list[int], optional: Sequence[int], at: int, inside: int) -> None:
        self.step()
        if len(chosen) == self.size:
            self._keep(chosen, inside)
            return
        missing = self.size - len(chosen)
        left = optional[at:]
        if (self.spent and self.rank) or len(left) < missing or self._is_hopeless(chosen, left, missing):
            return
        # with the next device before without it: the first set found has the lowest positions
        number = left[0]
        row = self.weights.rows[number]
        chosen.append(number)
        self._extend(chosen, optional, at + 1, inside + sum(row[other] for other in chosen))
        chosen.pop()
        self._extend(chosen, optional, at + 1, inside)

    def _is_hopeless(self, chosen: Sequence[int], optional: Sequence[int], missing: int) -> bool:
        """Whether no completion ranks before the best set.

        Every link counts at both of its ends, so half of the most that the members can have bounds the
        links inside; and the next devices in order make the lexicographically first completion.
        """
        if self.rank is None:
            return False
        most = nlargest(missing, (self.most[number] for number in optional))
        inside = (sum(self.most[number] for number in chosen) + sum(most)) // 2
        totals = nsmallest(missing, (self.weights.totals[number] for number in optional))
        every = sum(self.weights.totals[number] for number in chosen) + sum(totals)
        first = tuple(sorted((*chosen, *nsmallest(missing, optional))))
        return (-inside, every, first) >= self.rank

    def _keep(self, chosen: Sequence[int], inside: int) -> None:
        # Of sets with equal links inside, those that cut the least have the lowest sum of all links.
        every = sum(self.weights.totals[number] for number in chosen)
        numbers = tuple(sorted(chosen))
        rank = (-inside, every, numbers)
        if self.rank is None or rank < self.rank:
            self.rank, self.best = rank, numbers


def _most(weights: _Weights, numbers: Sequence[int], size: int) -> tuple[int, ...]:
    """By device: the most its links within a set of `size` of `numbers` can weigh."""
    most = [0] * len(weights.rows)
    for number in numbers:
        others = sorted((weights.rows[number][other] for other in numbers if other != number), reverse=True)
        most[number] = sum(others[: size - 1])
    return tuple(most)
