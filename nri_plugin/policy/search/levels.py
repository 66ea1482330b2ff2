"""Machines built in levels: the tree of their distances, and the cheapest set of nodes under constraints.

The page of theory is in the package's docstring. This module has three parts. The first makes a tree of the
distances, and tells when there is none. The second finds, for each part of the tree and each number of nodes, the
cheapest cost inside and outside of the part. The third is the search: it relaxes the constraints, takes lower
bounds from the second part, and keeps the labels that can lead to the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from operator import add, le, mul
from typing import NamedTuple

from nri_plugin.model import bits
from nri_plugin.policy.search import StepBudget

DistanceRows = Mapping[int, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class DistanceGroup:
    """NUMA nodes that are equally far from each node outside.

    Attributes:
        nodes: their mask.
        parts: groups that it consists of; none for a single node.
        distance: between nodes of different parts, there and back.
    """

    nodes: int
    parts: tuple["DistanceGroup", ...] = ()
    distance: int = 0


def distance_tree(rows: DistanceRows) -> DistanceGroup | None:
    """The group of all nodes; None on a machine that is not built in levels.

    Nodes that are equally far from each third node act as one towards all others. So they become a group, groups are
    compared the same way, and so on, until one group is left or no two are alike.
    """
    nodes = sorted(rows)
    groups = [DistanceGroup(1 << node) for node in nodes]
    # there and back may differ, and only their sum counts
    far = [[rows[one][other] + rows[other][one] for other in nodes] for one in nodes]
    while len(groups) > 1:
        alike = _alike(far)
        if len(alike) == len(groups):
            return None
        groups = [
            groups[same[0]]
            if len(same) == 1
            else DistanceGroup(
                sum(groups[n].nodes for n in same), tuple(groups[n] for n in same), far[same[0]][same[-1]]
            )
            for same in alike
        ]
        far = [[far[one[0]][other[0]] for other in alike] for one in alike]
    return groups[0]


def _alike(far: Sequence[Sequence[int]]) -> list[list[int]]:
    """Positions, together where their rows agree everywhere else; ordered by the first position.

    All pairs of such a set are equally far from each other. So with that distance in place of the one to itself,
    rows that agree everywhere else are the same, and a dictionary finds them.
    """
    same_as: dict[int, list[int]] = {}
    by_row: dict[tuple[int, ...], list[int]] = {}
    for position, row in enumerate(far):
        for distance in sorted({other for number, other in enumerate(row) if number != position}):
            same = by_row.setdefault((distance, *row[:position], distance, *row[position + 1 :]), [position])
            if same[0] != position:
                same.append(position)
                same_as[position] = same_as[same[0]] = same
    sets = [same_as.get(position, [position]) for position in range(len(far))]
    return [same for position, same in enumerate(sets) if same[0] == position]


class Branch(NamedTuple):
    """A leaf of nodes that are equally far from each other, or two branches joined.

    Attributes:
        nodes: their mask.
        one: position of a joined branch in the list of branches; -1 for a leaf.
        other: position of the other one.
        distance: there and back, between nodes of the joined branches or between any two of a leaf.
    """

    nodes: int
    one: int = -1
    other: int = -1
    distance: int = 0


def branches_of(group: DistanceGroup, nodes: int) -> list[Branch]:
    """The branches of those nodes of a group that are in `nodes`, parts before their wholes."""
    branches: list[Branch] = []
    _add_branches(group, nodes, branches)
    return branches


def _add_branches(group: DistanceGroup, nodes: int, branches: list[Branch]) -> int:
    """Add the branches of a group that has some of `nodes`; returns the position of the last one."""
    parts = [part for part in group.parts if part.nodes & nodes]
    places = [_add_branches(part, nodes, branches) for part in parts if (part.nodes & nodes).bit_count() > 1]
    # parts of one node are equally far from each other and from all else here: one leaf holds them
    single = group.nodes & nodes
    for place in places:
        single &= ~branches[place].nodes
    if single:
        branches.append(Branch(single, distance=group.distance))
        places.append(len(branches) - 1)
    # join in pairs, so that the tree is shallow and both sides are about as large
    while len(places) > 1:
        joined = places[len(places) & ~1 :]
        for one, other in zip(places[::2], places[1::2], strict=False):
            nodes_of_both = branches[one].nodes | branches[other].nodes
            branches.append(Branch(nodes_of_both, one, other, group.distance))
            joined.append(len(branches) - 1)
        places = joined
    return places[0]


# ----------------------------------------------------------------------------------------------------
# The cheapest cost without constraints, by branch and by number of selected nodes.

UNREACHABLE = 1 << 4096
"""More than anything costs."""

Row = list[int]
"""By number of selected nodes: twice the cheapest cost, so that the squares below need no halves."""

Costs = Mapping[int, tuple[int, int]]
"""By node: what it costs to exclude it, and to select it."""


def cheapest_inside(branches: Sequence[Branch], costs: Costs, unit: int, count: int) -> list[Row]:
    """The row of each branch, up to `count` nodes. Of the last branch only the entry for `count` is made.

    Args:
        branches: parts before their wholes.
        costs: of the nodes.
        unit: cost of one unit of distance.
        count: how many nodes are selected in all.
    """
    rows: list[Row] = []
    for place, branch in enumerate(branches, 1):
        far = branch.distance * unit
        if branch.one < 0:
            rows.append(_row_of_leaf([costs[node] for node in bits.iterate(branch.nodes)], far, count))
        else:
            # i * j pairs lie between the parts: take i^2 and j^2 off here, and add (i+j)^2 to the sum
            one, other = _less_squares(rows[branch.one], far), _less_squares(rows[branch.other], far)
            least = count if place == len(branches) else 0
            rows.append(_less_squares(_cheapest_sums(one, other, least, count), -far, least))
    return rows


def cheapest_outside(
    branches: Sequence[Branch], rows: Sequence[Row], costs: Costs, unit: int, count: int
) -> list[list[Row]]:
    """By number of nodes selected in a branch: twice the cheapest cost of all others, up to `count` in all.

    The cost of the branch itself is not in it, but the distances between it and the others are. A joined branch
    has one row. A leaf has one row for its first node, one for its first two, and so on.
    """
    found: list[list[Row]] = [[] for _ in branches]
    found[-1] = [[UNREACHABLE] * count + [0]]  # nothing is outside of the whole, and it has all `count`
    for place in range(len(branches) - 1, -1, -1):
        branch, (row,) = branches[place], found[place]
        far = branch.distance * unit
        if branch.one < 0:
            found[place] = _rows_in_leaf(row, [costs[node] for node in bits.iterate(branch.nodes)], far)
            continue
        # outside of a part lie the outside of the whole and the sibling, of which any number may be selected
        rest = _less_squares(row, -far)
        for part, sibling in ((branch.one, branch.other), (branch.other, branch.one)):
            there = _less_squares(rows[sibling], far)
            least = [min(map(add, there, rest[taken:])) for taken in range(len(rows[part]))]
            found[part] = [_less_squares(least, far)]
    return found


def _row_of_leaf(costs: Sequence[tuple[int, int]], far: int, count: int) -> Row:
    """All pairs are equally far, so the nodes with the smallest difference of costs are selected first."""
    more = sorted([selected - excluded for excluded, selected in costs])[:count]
    return [
        2 * cost + far * taken * (taken - 1)
        for taken, cost in enumerate(accumulate(more, initial=sum([excluded for excluded, _ in costs])))
    ]


def _rows_in_leaf(row: Row, costs: Sequence[tuple[int, int]], far: int) -> list[Row]:
    """From the row outside of a whole leaf, those outside of its first node, of its first two, and so on."""
    rows = [row]
    for place in range(len(costs) - 1, 0, -1):
        excluded, selected = costs[place]
        # the last node moves outside: it is excluded, or it is one more and as far from `number` others
        further = zip_longest(row, row[1:], fillvalue=UNREACHABLE)
        row = [
            min(without + 2 * excluded, more + 2 * (selected + far * number))
            for number, (without, more) in enumerate(further)
        ][: place + 1]
        rows.append(row)
    return rows[::-1]


def _less_squares(row: Row, far: int, first: int = 0) -> Row:
    return [cost - far * taken * taken for taken, cost in enumerate(row, first)] if far else row


def _cheapest_sums(one: Row, other: Row, least: int, most: int) -> Row:
    """The smallest sum of an entry of each row, by the sum of their positions, from `least` to `most`."""
    # with one row reversed, the entries whose positions add up to a number lie side by side
    back = other[::-1]
    last = len(other) - 1
    top = min(most, len(one) - 1 + last)
    few = range(least, min(last, top) + 1)
    many = range(max(least, last + 1), top + 1)
    return [
        *[min(map(add, one, back[last - taken :])) for taken in few],
        *[min(map(add, one[taken - last :], back)) for taken in many],
    ]


# ----------------------------------------------------------------------------------------------------
# The cheapest selection under constraints.

Uses = tuple[int, ...]
"""By constraint: how much of its capacity something uses."""


class NodeChoices(NamedTuple):
    """What can be done with a node.

    Attributes:
        selected: (cost, uses) of each way to select it; never empty.
        excluded: uses of each way to exclude it, which costs nothing; empty where it must be selected.
    """

    selected: tuple[tuple[int, Uses], ...]
    excluded: tuple[Uses, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """A problem: select `count` nodes, one choice for each node, at the smallest cost.

    Attributes:
        choices: by node.
        count: how many nodes are selected.
        capacities: by constraint, the most that all choices may use together.
        unit: cost of one unit of distance between two selected nodes.
        width: how many of the lowest bits of a cost are the mask of the selected nodes.
        budget: counts the steps.
    """

    choices: Mapping[int, NodeChoices]
    count: int
    capacities: Uses
    unit: int
    width: int
    budget: StepBudget

    @property
    def nodes(self) -> int:
        """Mask of all nodes that may be selected."""
        return bits.from_ids(self.choices)


class Label(NamedTuple):
    """One choice for each node of a part.

    Attributes:
        cost: with the distances inside of the part.
        uses: of the capacities.
        relaxed: the cost when uses are charged for.
    """

    cost: int
    uses: Uses
    relaxed: int


Labels = dict[int, list[Label]]
"""By number of selected nodes: the labels of a part that may be in the answer."""


class Relaxed(NamedTuple):
    """The cheapest selection when uses are charged for instead of limited.

    Attributes:
        nodes: mask of the selected nodes.
        cost: uses charged, capacities not yet paid back, without the mask; in fractions.
        uses: of the capacities; more than there is where the multipliers are too low.
    """

    nodes: int
    cost: int
    uses: Uses


class _Line(NamedTuple):
    """The relaxed cost of one selection by one multiplier: `cost` at 0, and `use` more for each unit."""

    cost: int
    use: int


MULTIPLIERS_TRIED = 12
"""For each constraint. More of them hardly raise the lower bound."""


class LevelSearch:
    """Finds the cheapest selection on a machine built in levels.

    A selection within the capacities must be known, so that every relaxation has an answer.

    Attributes:
        multipliers: by constraint, the charge for one unit of use; in fractions.
        relaxed: the answer to the relaxation with these multipliers.
    """

    def __init__(self, problem: Selection, tree: DistanceGroup) -> None:
        self._problem = problem
        self._branches = branches_of(tree, problem.nodes)
        # multipliers are integers: so costs count in fractions that are fine enough for any use
        self._fine = 16 + max((capacity.bit_length() for capacity in problem.capacities), default=0)
        self._unit = problem.unit << self._fine
        self._choices = [
            (
                node,
                [(0, uses) for uses in choices.excluded],
                [(cost >> problem.width << self._fine, uses) for cost, uses in choices.selected],
            )
            for node, choices in problem.choices.items()
        ]
        self.multipliers = [0] * len(problem.capacities)
        self.relaxed = self._relax()

    @property
    def lower_bound(self) -> int:
        """What selections within the capacities cost at least, without their masks."""
        return -((self._paid_back() - self.relaxed.cost) >> self._fine)

    def improve(self, known: int, found: Callable[[int], object]) -> None:
        """Raise the lower bound, constraint by constraint.

        Args:
            known: cost of a selection within the capacities, without its mask.
            found: is called with the mask of each other such selection that turns up.
        """
        # the last constraint follows from all others together, and often it alone ends the search
        for number in reversed(range(len(self.multipliers))):
            if self.lower_bound > known:
                return
            self._improve_one(number, known, found)

    def _improve_one(self, number: int, known: int, found: Callable[[int], object]) -> None:
        """Find the multiplier of one constraint with the highest lower bound.

        By the multiplier, the relaxed cost of each selection is a straight line: rising for those that use more
        than the capacity. The lower bound is the lowest of these lines, so its highest point is where a line that
        rises and one that falls cross and none is below. Cross two, look for a line below, and replace one by it.
        """
        capacity = self._problem.capacities[number]
        within = _Line((known << self._fine) + self._paid_back(), capacity)
        beyond = self._line(number, found)
        for _ in range(MULTIPLIERS_TRIED):
            if beyond.use <= capacity:
                return
            multiplier = (within.cost - beyond.cost) // (beyond.use - within.use)
            self.multipliers[number] = multiplier
            self.relaxed = self._relax()
            line = self._line(number, found)
            if line.cost + multiplier * line.use >= beyond.cost + multiplier * beyond.use:
                return
            if line.use >= capacity:
                beyond = line
            else:
                within = line

    def _line(self, number: int, found: Callable[[int], object]) -> _Line:
        relaxed = self.relaxed
        if all(map(le, relaxed.uses, self._problem.capacities)):
            found(relaxed.nodes)
        return _Line(relaxed.cost - self.multipliers[number] * relaxed.uses[number], relaxed.uses[number])

    def _relax(self) -> Relaxed:
        """Choose the cheapest for each node, uses charged, then the cheapest nodes."""
        problem = self._problem
        problem.budget.step(sum(len(excluded) + len(selected) for _, excluded, selected in self._choices))
        best = {
            node: (self._cheapest(excluded), self._cheapest(selected))
            for node, excluded, selected in self._choices
        }
        problem.budget.step(2 * len(best))
        # the mask is in the lowest bits of costs here too: it breaks ties, and tells which nodes it was
        self._costs = {
            node: (excluded << problem.width, (selected << problem.width) + (1 << node))
            for node, ((excluded, _), (selected, _)) in best.items()
        }
        self._rows = cheapest_inside(self._branches, self._costs, self._unit, problem.count)
        cheapest = self._rows[-1][-1] // 2
        nodes = cheapest & (1 << problem.width) - 1
        uses = [choice[nodes >> node & 1][1] for node, choice in best.items()]
        return Relaxed(nodes, cheapest >> problem.width, tuple(map(sum, zip(*uses, strict=True))))

    def _cheapest(self, choices: Sequence[tuple[int, Uses]]) -> tuple[int, Uses]:
        """The choice with the smallest relaxed cost; one out of reach where there is none."""
        return min([(self._charged(*choice), choice[1]) for choice in choices], default=(UNREACHABLE, ()))

    def _charged(self, cost: int, uses: Uses) -> int:
        charge: int = sum(map(mul, self.multipliers, uses))
        return cost + charge

    def _paid_back(self) -> int:
        return sum(map(mul, self.multipliers, self._problem.capacities))

    def cheapest(self, known: int) -> int | None:
        """The cost of the cheapest selection; None when all cost more than `known`, masks left aside.

        Raises:
            BudgetSpentError: the budget ran out.
        """
        problem = self._problem
        outside = cheapest_outside(self._branches, self._rows, self._costs, self._unit, problem.count)
        limit = (known << self._fine) + self._paid_back()
        found: list[Labels] = []
        for branch, rows in zip(self._branches, outside, strict=True):
            # what labels of this part may cost: the limit, less what all others cost at least
            most = [[limit - (twice >> problem.width + 1) for twice in row] for row in rows]
            if branch.one < 0:
                found.append(self._labels_of_leaf(branch, most))
            else:
                parts = found[branch.one], found[branch.other]
                found.append(self._joined(branch.nodes, branch.distance, *parts, most[0]))
        return min([label.cost for label in found[-1].get(problem.count, ())], default=None)

    def _labels_of_leaf(self, leaf: Branch, most: Sequence[Sequence[int]]) -> Labels:
        """The nodes of a leaf are joined one by one."""
        nothing = (0,) * len(self.multipliers)
        labels: Labels = {0: [Label(0, nothing, 0)]}
        before = 0
        for node, row in zip(bits.iterate(leaf.nodes), most, strict=True):
            before |= 1 << node
            choices = self._problem.choices[node]
            of_node = {
                0: [Label(0, uses, self._charged(0, uses)) for uses in choices.excluded],
                1: [
                    Label(cost, uses, self._charged(cost >> self._problem.width << self._fine, uses))
                    for cost, uses in choices.selected
                ],
            }
            labels = self._joined(before, leaf.distance, labels, of_node, row)
        return labels

    def _joined(self, nodes: int, distance: int, one: Labels, other: Labels, most: Sequence[int]) -> Labels:
        """The labels of two parts together that may be in the answer.

        Args:
            nodes: mask of both parts.
            distance: between a node of the one and a node of the other.
            one: labels of one part.
            other: labels of the other.
            most: by number of selected nodes, the highest relaxed cost of a label.
        """
        problem = self._problem
        elsewhere = len(problem.choices) - nodes.bit_count()
        joined: Labels = {}
        for few, these in one.items():
            for more, those in other.items():
                # the nodes outside must be able to make up the count
                if not problem.count - elsewhere <= few + more <= problem.count:
                    continue
                problem.budget.step(len(these) * len(those))
                far = few * more * distance * problem.unit
                # distances in relaxed costs have no mask below them
                relaxed_far = far >> problem.width << self._fine
                left = most[few + more] - relaxed_far
                joined.setdefault(few + more, []).extend(
                    [
                        Label(
                            cost + further + far, tuple(map(add, uses, used)), relaxed + charged + relaxed_far
                        )
                        for cost, uses, relaxed in these
                        for further, used, charged in those
                        if relaxed + charged <= left
                    ]
                )
        if not elsewhere:
            within = [label for label in joined.get(problem.count, ()) if self._is_within(label.uses)]
            return {problem.count: within}
        return {count: _undominated(labels) for count, labels in joined.items() if labels}

    def _is_within(self, uses: Uses) -> bool:
        return all(map(le, uses, self._problem.capacities))


def _undominated(labels: list[Label]) -> list[Label]:
    """Those that no cheaper one matches in every use."""
    if len(labels) < 2:
        return labels
    kept: list[Label] = []
    for label in sorted(labels):
        if not any(all(map(le, other.uses, label.uses)) for other in kept):
            kept.append(label)
    return kept
