"""Machines built in levels: the cheapest set of `count` NUMA nodes under constraints.

On such a machine the distance of two nodes depends only on the smallest group that holds both: 12 in a socket, 32
between sockets. The theory is in the docstring of the package. The steps are:

    1 distance_tree     distances -> groups of groups of nodes; None where the machine is not built in levels
    2 branches_of       the same tree with two parts for each whole, for the nodes that the search may use
    3 cheapest_inside   by branch, by number of selected nodes: the lowest cost of the branch, without constraints
    4 cheapest_outside  the same for all nodes outside of the branch
    5 LevelSearch       constraints: lower bounds by Lagrange multipliers, then labels from the leaves to the root

A small example: nodes 0 and 1 in one socket, 2 and 3 in the other. The tree is {{0, 1}, {2, 3}}. Two nodes of it cost 24
(12 there and 12 back) if both are in one socket, and 64 otherwise. Row 2 of the whole is therefore the minimum of three
sums: two nodes on the left, two on the right, or one on each side.

A cost is one integer that holds distance, rank and mask (`closest`). So the lowest bits of a minimum tell which nodes
it selects, and the rows need no second table to reconstruct the set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from operator import add, le, mul
from typing import NamedTuple

from nri_plugin.model import bits
from nri_plugin.policy.search import StepBudget

# ----------------------------------------------------------------------------------------------------
# 1 The tree of distances.

DistanceRows = Mapping[int, Mapping[int, int]]
"""By node, by other node: the distance that the firmware reports (SLIT)."""


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
    # Firmware may report different distances there and back. A set of nodes counts both, so only their sum matters.
    far = [[rows[one][other] + rows[other][one] for other in nodes] for one in nodes]
    while len(groups) > 1:
        alike = _alike(far)
        if len(alike) == len(groups):
            return None
        groups = [_merged([groups[n] for n in same], far[same[0]][same[-1]]) for same in alike]
        # The members of a group have equal distances to each other group, so one member stands for all.
        far = [[far[one[0]][other[0]] for other in alike] for one in alike]
    return groups[0]


def _merged(parts: Sequence[DistanceGroup], distance: int) -> DistanceGroup:
    if len(parts) == 1:
        return parts[0]
    return DistanceGroup(sum(part.nodes for part in parts), tuple(parts), distance)


def _alike(far: Sequence[Sequence[int]]) -> list[list[int]]:
    """The positions of `far` in sets: those of a set are equally far from each other and from each position outside.

    The sets are ordered by their first position. A position that is like no other is a set of one.
    """
    # Two rows of such a set differ only in the two columns of the pair itself: there one row has the distance d between
    # them, the other its own diagonal. With d on both diagonals the rows are equal, and a dictionary finds equal rows.
    # The distance d is not known in advance, so each distance of a row is tried.
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


# ----------------------------------------------------------------------------------------------------
# 2 The same tree with two parts for each whole.


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
    # Parts of one node are equally far from each other and from all else here. One leaf holds them: a leaf needs
    # sorting only, while each join compares all pairs of counts.
    single = group.nodes & nodes
    for place in places:
        single &= ~branches[place].nodes
    if single:
        branches.append(Branch(single, distance=group.distance))
        places.append(len(branches) - 1)
    # Join in pairs, round by round, so that both sides are about as large and few pairs of counts are compared.
    while len(places) > 1:
        joined = places[len(places) & ~1 :]
        for one, other in zip(places[::2], places[1::2], strict=False):
            nodes_of_both = branches[one].nodes | branches[other].nodes
            branches.append(Branch(nodes_of_both, one, other, group.distance))
            joined.append(len(branches) - 1)
        places = joined
    return places[0]


# ----------------------------------------------------------------------------------------------------
# 3 and 4 The lowest cost without constraints, by branch and by number of selected nodes.
#
# With i nodes in one part and j in the other, i * j pairs lie between the parts, each at the distance `far`:
#
#     cost(i + j) = cost_of_one(i) + cost_of_other(j) + far * i * j
#
# Since 2ij = (i+j)^2 - i^2 - j^2, all costs are doubled, far * i^2 is taken off each part, and far * (i+j)^2 is added to
# the sum. In between, the cost of a sum is a sum of costs, and the minimum needs no multiplication for each pair.

UNREACHABLE = 1 << 4096
"""More than any cost."""

Row = list[int]
"""By number of selected nodes: twice the lowest cost, so that the squares above need no halves."""

Costs = Mapping[int, tuple[int, int]]
"""By node: the cost to exclude it, and to select it."""


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
            one, other = _less_squares(rows[branch.one], far), _less_squares(rows[branch.other], far)
            least = count if place == len(branches) else 0  # the root must have all selected nodes
            rows.append(_less_squares(_cheapest_sums(one, other, least, count), -far, least))
    return rows


def cheapest_outside(
    branches: Sequence[Branch], rows: Sequence[Row], costs: Costs, unit: int, count: int
) -> list[list[Row]]:
    """By number of nodes selected in a branch: twice the lowest cost of all others, up to `count` in all.

    The cost of the branch itself is not in it, but the distances between it and the others are. A joined branch
    has one row. A leaf has one row for its first node, one for its first two, and so on, because the search adds the
    nodes of a leaf one by one.
    """
    found: list[list[Row]] = [[] for _ in branches]
    # Nothing is outside of the root, and the root has all `count` nodes.
    found[-1] = [[UNREACHABLE] * count + [0]]
    for place in range(len(branches) - 1, -1, -1):
        branch, (row,) = branches[place], found[place]
        far = branch.distance * unit
        if branch.one < 0:
            found[place] = _rows_in_leaf(row, [costs[node] for node in bits.iterate(branch.nodes)], far)
            continue
        # Outside of a part lie all nodes outside of the whole, and the sibling. The sibling may have any number of
        # selected nodes: the whole then has `taken` and that number.
        rest = _less_squares(row, -far)
        for part, sibling in ((branch.one, branch.other), (branch.other, branch.one)):
            there = _less_squares(rows[sibling], far)
            least = [min(map(add, there, rest[taken:])) for taken in range(len(rows[part]))]
            found[part] = [_less_squares(least, far)]
    return found


def _row_of_leaf(costs: Sequence[tuple[int, int]], far: int, count: int) -> Row:
    # All pairs are equally far, so distance depends on the number of nodes only. The nodes with the smallest difference
    # between selecting and excluding go first.
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
        # The last node moves outside. It is excluded, or it is selected: then the leaf and this node have one node more
        # together, and it is at the distance `far` from each of the `number` others.
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
    # With one row reversed, the entries whose positions add up to a number lie side by side: `map` adds them all at
    # once, and stops where the shorter row ends.
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
# 5 The cheapest selection under constraints.

Uses = tuple[int, ...]
"""By constraint: how much of its capacity is used."""


class NodeChoices(NamedTuple):
    """The ways to decide on a node.

    Attributes:
        selected: (cost, uses) of each way to select it; never empty.
        excluded: uses of each way to exclude it, which costs nothing; empty where it must be selected.
    """

    selected: tuple[tuple[int, Uses], ...]
    excluded: tuple[Uses, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """A problem: select `count` nodes, one choice for each node, at the lowest cost.

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
    """One choice for each node of a branch.

    Attributes:
        cost: with the distances inside of the branch.
        uses: of the capacities.
        relaxed: the cost with a charge for the uses, in fractions, without the mask.
    """

    cost: int
    uses: Uses
    relaxed: int


Labels = dict[int, list[Label]]
"""By number of selected nodes: the labels of a branch that may be part of the answer."""


class Relaxed(NamedTuple):
    """The cheapest selection when uses are charged for instead of limited.

    Attributes:
        nodes: mask of the selected nodes.
        cost: with the charge for uses, without the refund for capacities and without the mask; in fractions.
        uses: of the capacities; more than the capacity where the multipliers are too low.
    """

    nodes: int
    cost: int
    uses: Uses


class _Line(NamedTuple):
    """The relaxed cost of one selection by one multiplier: `cost` at 0, and `use` more for each unit."""

    cost: int
    use: int

    def at(self, multiplier: int) -> int:
        return self.cost + multiplier * self.use


MULTIPLIERS_TRIED = 12
"""For each constraint. More of them hardly raise the lower bound."""


class LevelSearch:
    """Finds the cheapest selection on a machine built in levels.

    A selection within the capacities must be known, so that every relaxation has an answer.

    `improve` raises the lower bound, and often ends the search: no selection is cheaper than the known one. `cheapest`
    then makes labels, and the lower bounds decide which of them are kept.

    Attributes:
        multipliers: by constraint, the charge for one unit of use; in fractions.
        relaxed: the answer to the relaxation with these multipliers.
    """

    def __init__(self, problem: Selection, tree: DistanceGroup) -> None:
        self._problem = problem
        self._branches = branches_of(tree, problem.nodes)
        # The best multipliers are ratios of cost and use. Costs are shifted by this many bits, so that integer
        # multipliers are fine enough for any use, and no rounding of floats makes a bound too high.
        self._fine = 16 + max((capacity.bit_length() for capacity in problem.capacities), default=0)
        self._unit = problem.unit << self._fine
        self._choices = [
            (
                node,
                [(0, uses) for uses in choices.excluded],
                [(self._fraction(cost), uses) for cost, uses in choices.selected],
            )
            for node, choices in problem.choices.items()
        ]
        self.multipliers = [0] * len(problem.capacities)
        self.relaxed = self._relax()

    def _fraction(self, cost: int) -> int:
        """A cost without its mask, in fractions."""
        return cost >> self._problem.width << self._fine

    @property
    def lower_bound(self) -> int:
        """The least that a selection within the capacities costs, without its mask."""
        # Negate, shift, negate: the bound is rounded up, because costs are whole numbers.
        return -((self._refund - self.relaxed.cost) >> self._fine)

    @property
    def _refund(self) -> int:
        """The charge for using all capacities: the relaxation gives it back to each selection."""
        return sum(map(mul, self.multipliers, self._problem.capacities))

    def _charged(self, cost: int, uses: Uses) -> int:
        charge: int = sum(map(mul, self.multipliers, uses))
        return cost + charge

    # The lower bound: constraints are relaxed.

    def improve(self, known: int, found: Callable[[int], object]) -> None:
        """Raise the lower bound, constraint by constraint.

        Args:
            known: cost of a selection within the capacities, without its mask.
            found: is called with the mask of each other such selection that turns up.
        """
        # The last constraint follows from all others together, so it goes first: often it alone ends the search.
        for number in reversed(range(len(self.multipliers))):
            if self.lower_bound > known:
                return
            self._improve_one(number, known, found)

    def _improve_one(self, number: int, known: int, found: Callable[[int], object]) -> None:
        """Find the multiplier of one constraint with the highest lower bound.

        By the multiplier, the relaxed cost of each selection less the refund is a straight line. It rises for a
        selection that uses more than the capacity, and falls for one that uses less. The lower bound is the lowest of
        all lines, and is highest where a rising and a falling line cross and no line is below. So cross two lines, look
        for a line below that point, and replace the one of the same direction by it.
        """
        capacity = self._problem.capacities[number]
        # The known selection keeps within the capacities. Its exact use does not matter: the capacity is an upper
        # bound of it, and a flat line of the known cost is all that the first crossing needs.
        falling = _Line((known << self._fine) + self._refund, capacity)
        rising = self._line(number, found)
        for _ in range(MULTIPLIERS_TRIED):
            if rising.use <= capacity:
                return  # a higher charge cannot raise the bound
            crossing = (falling.cost - rising.cost) // (rising.use - falling.use)
            self.multipliers[number] = crossing
            self.relaxed = self._relax()
            line = self._line(number, found)
            if line.at(crossing) >= rising.at(crossing):
                return  # no line is below: this is the highest point
            if line.use >= capacity:
                rising = line
            else:
                falling = line

    def _line(self, number: int, found: Callable[[int], object]) -> _Line:
        """The line of the relaxed selection, by the multiplier of one constraint."""
        relaxed = self.relaxed
        if self._is_within(relaxed.uses):
            found(relaxed.nodes)
        return _Line(relaxed.cost - self.multipliers[number] * relaxed.uses[number], relaxed.uses[number])

    def _relax(self) -> Relaxed:
        """The cheapest selection with uses charged: the cheapest choices of each node, then the cheapest nodes."""
        problem = self._problem
        problem.budget.step(sum(len(excluded) + len(selected) for _, excluded, selected in self._choices))
        # Without limits the choices of different nodes do not depend on each other.
        best = {
            node: (self._cheapest(excluded), self._cheapest(selected))
            for node, excluded, selected in self._choices
        }
        problem.budget.step(2 * len(best))
        # The mask is in the lowest bits of costs here too: it breaks ties, and tells which nodes were selected.
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
        """The choice with the lowest relaxed cost; one out of reach where there is none."""
        return min([(self._charged(*choice), choice[1]) for choice in choices], default=(UNREACHABLE, ()))

    # The answer: labels from the leaves to the root.

    def cheapest(self, known: int) -> int | None:
        """The cost of the cheapest selection; None when all cost more than `known`, masks left aside.

        Raises:
            BudgetSpentError: the budget ran out.
        """
        problem = self._problem
        outside = cheapest_outside(self._branches, self._rows, self._costs, self._unit, problem.count)
        limit = (known << self._fine) + self._refund
        found: list[Labels] = []
        for branch, rows in zip(self._branches, outside, strict=True):
            # A label can lead to a selection as cheap as the known one only if its relaxed cost leaves enough for all
            # nodes outside. The rows hold twice their lowest cost, with a mask below.
            most = [[limit - (twice >> problem.width + 1) for twice in row] for row in rows]
            if branch.one < 0:
                found.append(self._labels_of_leaf(branch, most))
            else:
                parts = found[branch.one], found[branch.other]
                found.append(self._joined(branch.nodes, branch.distance, *parts, most[0]))
        return min([label.cost for label in found[-1].get(problem.count, ())], default=None)

    def _labels_of_leaf(self, leaf: Branch, most: Sequence[Sequence[int]]) -> Labels:
        """The labels of a leaf, whose nodes are joined one by one; `most` as for `_joined`, by number of nodes."""
        nothing = (0,) * len(self.multipliers)
        labels: Labels = {0: [Label(0, nothing, 0)]}
        before = 0
        for node, row in zip(bits.iterate(leaf.nodes), most, strict=True):
            before |= 1 << node
            labels = self._joined(before, leaf.distance, labels, self._labels_of_node(node), row)
        return labels

    def _labels_of_node(self, node: int) -> Labels:
        choices = self._problem.choices[node]
        return {
            0: [Label(0, uses, self._charged(0, uses)) for uses in choices.excluded],
            1: [
                Label(cost, uses, self._charged(self._fraction(cost), uses))
                for cost, uses in choices.selected
            ],
        }

    def _joined(self, nodes: int, distance: int, one: Labels, other: Labels, most: Sequence[int]) -> Labels:
        """The labels of two branches together that may be part of the answer.

        Args:
            nodes: mask of both branches.
            distance: between a node of the one and a node of the other.
            one: labels of one branch.
            other: labels of the other.
            most: by number of selected nodes, the highest relaxed cost of a label.
        """
        problem = self._problem
        elsewhere = len(problem.choices) - nodes.bit_count()
        joined: Labels = {}
        for few, these in one.items():
            for more, those in other.items():
                # The nodes outside must be able to make up the count.
                if not problem.count - elsewhere <= few + more <= problem.count:
                    continue
                problem.budget.step(len(these) * len(those))
                far = few * more * distance * problem.unit
                joined.setdefault(few + more, []).extend(
                    self._pairs(these, those, far, most[few + more] - self._fraction(far))
                )
        # Constraints count at the root only: before, the nodes that follow may use less than nothing (the goal of the tie
        # break is a constraint with its signs reversed).
        if not elsewhere:
            within = [label for label in joined.get(problem.count, ()) if self._is_within(label.uses)]
            return {problem.count: within}
        return {count: _undominated(labels) for count, labels in joined.items() if labels}

    def _pairs(self, these: Sequence[Label], those: Sequence[Label], far: int, most: int) -> list[Label]:
        """Each label of the one side with each of the other, up to the relaxed cost `most` without distances.

        Args:
            these: labels of one branch with the same number of selected nodes.
            those: labels of the other.
            far: cost of the distances between the branches.
            most: the highest relaxed cost of both labels together.
        """
        relaxed_far = self._fraction(far)
        return [
            Label(cost + further + far, tuple(map(add, uses, used)), relaxed + charged + relaxed_far)
            for cost, uses, relaxed in these
            for further, used, charged in those
            if relaxed + charged <= most
        ]

    def _is_within(self, uses: Uses) -> bool:
        return all(map(le, uses, self._problem.capacities))


def _undominated(labels: list[Label]) -> list[Label]:
    """The labels that no cheaper label matches in every use.

    Another label of the same branch and number of nodes can take the place of a dominated one in any selection: the
    distances to all other nodes are the same.
    """
    if len(labels) < 2:
        return labels
    kept: list[Label] = []
    for label in sorted(labels):  # by cost, so that only labels before it can dominate it
        if not any(all(map(le, other.uses, label.uses)) for other in kept):
            kept.append(label)
    return kept
