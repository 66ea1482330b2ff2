"""The best set of one size: nodes that can be excluded, branch and bound, and the choice of the search.

The page of theory is in the docstring of the package. The first part says which nodes may be excluded from a set, as
constraints. The second part is the search for machines with any distances. The third part turns the search for a set into
a `levels.Selection`, and gives it to `levels.LevelSearch` or to `BranchAndBound`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import prod
from operator import add, sub

from nri_plugin.model import bits
from nri_plugin.policy.hints import HintRule, Need
from nri_plugin.policy.search import BudgetSpentError, StepBudget
from nri_plugin.policy.search.levels import DistanceRows, LevelSearch, NodeChoices, Selection, Uses
from nri_plugin.policy.search.mask_order import MaskOrder, Share, TieBreak

# ----------------------------------------------------------------------------------------------------
# Which nodes can be excluded.
#
# A set of nodes is an intersection of hints when each hint set has a hint that contains it, and each other node is missing
# from at least one of these hints. That hint set excludes the node, and the node's resources are lost for its needs.


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on the nodes that are excluded together.

    Attributes:
        capacity: how much of a resource a hint set has beyond its need.
        uses: by hint set, by node: how much of the capacity it takes to exclude the node from that hint set.
    """

    capacity: int
    uses: tuple[dict[int, int], ...]


def constraints_of(common: int, size: int, rules: Sequence[HintRule]) -> list[Constraint]:
    """One constraint for each need of each hint set; needs that any `size` nodes of `common` meet are left out.

    With several hint sets one more constraint follows from the others: their sum, each weighted alike. It is the last
    one, and bounds from below how much it takes to exclude a node, whichever hint set excludes it.
    """
    asked = [
        (number, need)
        for number, rule in enumerate(rules)
        for need in (*rule.needs, Need(rule.at_least, dict.fromkeys(bits.iterate(rule.nodes), 1)))
        if _can_be_missed(need, rule.nodes, common, size)
    ]
    nodes = list(bits.iterate(common))
    constraints = []
    for number, need in asked:
        # Excluding a node from one hint set takes nothing from the others. More than the need does not count: a node
        # with plenty of a resource must not look as if its loss cost more than the whole need.
        uses = [dict.fromkeys(nodes, 0)] * len(rules)
        uses[number] = {node: need.capped(node) for node in nodes}
        constraints.append(Constraint(_total(need, rules[number].nodes) - need.amount, tuple(uses)))
    if len(constraints) < 2 or len(rules) < 2:
        return constraints
    # Amounts of different resources are added in proportion to their needs. Multiplying by the product of all needs keeps
    # the weights integers.
    product = prod(need.amount for _, need in asked)
    return [*constraints, _weighted_sum(constraints, [product // need.amount for _, need in asked])]


def _can_be_missed(need: Need, nodes: int, common: int, size: int) -> bool:
    """Whether the need could be missed when all but `size` nodes of `common` are excluded."""
    largest = sorted((need.capped(node) for node in bits.iterate(common)), reverse=True)
    excluded = sum(largest[: common.bit_count() - size])
    return _total(need, nodes) - excluded < need.amount


def _total(need: Need, nodes: int) -> int:
    return sum(need.capped(node) for node in bits.iterate(nodes))


def _weighted_sum(constraints: Sequence[Constraint], weights: Sequence[int]) -> Constraint:
    weighted = list(zip(constraints, weights, strict=True))
    uses = [
        {node: sum(weight * one.uses[number][node] for one, weight in weighted) for node in by_node}
        for number, by_node in enumerate(constraints[0].uses)
    ]
    return Constraint(sum(weight * one.capacity for one, weight in weighted), tuple(uses))


def uses_of_excluding(node: int, rules: Sequence[HintRule], constraints: Sequence[Constraint]) -> set[Uses]:
    """The uses of each way to exclude the node, one for each hint set that can; empty when none can."""
    return {
        tuple(constraint.uses[number][node] for constraint in constraints)
        for number, rule in enumerate(rules)
        if not rule.required >> node & 1
    }


def can_exclude(
    nodes: Iterable[int], rules: Sequence[HintRule], constraints: Sequence[Constraint], budget: StepBudget
) -> bool:
    """Whether all of `nodes` can be excluded together, each by one of the hint sets.

    Raises:
        BudgetSpentError: the budget ran out.
    """
    choices = [uses_of_excluding(node, rules, constraints) for node in nodes]
    if not all(choices):
        return False
    # A node that some hint set excludes for nothing is excluded there. Of the others the heaviest go first, so that a
    # dead end shows early.
    heavy = [sorted(of_node) for of_node in choices if all(map(any, of_node))]
    heavy.sort(key=lambda of_node: -min(uses[-1] for uses in of_node))
    return _fit_together(heavy, tuple(constraint.capacity for constraint in constraints), budget)


def _fit_together(choices: Sequence[Sequence[Uses]], capacities: Uses, budget: StepBudget) -> bool:
    """Whether one choice for each node keeps within the capacities: depth first, no state twice."""
    least = [min(uses[-1] for uses in of_node) for of_node in choices]
    rest = list(accumulate(reversed(least)))[::-1]
    seen: set[tuple[int, Uses]] = set()
    stack = [(0, capacities)]
    while stack:
        place, left = stack.pop()
        if place == len(choices):
            return True
        budget.step()
        # The last constraint bounds the uses of all nodes from here on, whichever hint set excludes them.
        if rest[place] <= left[-1] and (place, left) not in seen:
            seen.add((place, left))
            further = [tuple(map(sub, left, uses)) for uses in reversed(choices[place])]
            stack += [(place + 1, after) for after in further if min(after) >= 0]
    return False


# ----------------------------------------------------------------------------------------------------
# The cheapest selection with any distances: branch and bound.


class BranchAndBound:
    """Finds the cheapest selection whatever the distances.

    Attributes:
        best: cost of the cheapest selection found so far; None while there is none below the bound given.
    """

    def __init__(self, problem: Selection, rows: DistanceRows, below: int) -> None:
        """Prepare a search for a selection that costs less than `below`."""
        self.best: int | None = None
        self._below = below
        self._problem = problem
        # With 64 nodes the table of distances takes longer than many decisions, so it counts as steps too.
        problem.budget.step(len(problem.choices) ** 2 // 4)
        far = {
            one: {
                other: (rows[one][other] + rows[other][one]) * problem.unit
                for other in problem.choices
                if other != one
            }
            for one in problem.choices
        }
        # Central nodes first: cheap sets are found early, and a low best cost ends more branches.
        nodes = sorted(far, key=lambda one: sum(sorted(far[one].values())[: problem.count]))
        self._choices = [problem.choices[node] for node in nodes]
        self._far = [[far[one].get(other, 0) for other in nodes] for one in nodes]
        self._own = [min(cost for cost, _ in choices.selected) for choices in self._choices]
        self._nearest = cache(self._half_to_nearest)
        self._least_uses = cache(self._least_uses_from)

    def search(self) -> None:
        """Find `best`. If the search is interrupted, `best` is the best set so far.

        Raises:
            BudgetSpentError: the budget ran out.
        """
        self._decide(0, self._problem.count, 0, (0,) * len(self._problem.capacities), self._own)

    def _decide(self, place: int, count: int, cost: int, uses: Uses, costs: Sequence[int]) -> None:
        """Decide on the nodes from `place` on.

        Args:
            place: of the first undecided node.
            count: how many of the undecided nodes are selected.
            cost: of the decided nodes.
            uses: of the same.
            costs: of selecting each undecided node, with its distance to the selected ones.
        """
        undecided = len(self._choices) - place
        # A step handles lists as long as the rest of the nodes. The budget bounds time, so it is charged by that length.
        self._problem.budget.step(1 + undecided // 3)
        if undecided < count or not self._can_fit(place, count, uses):
            return
        # Lower bound: each undecided node costs its distances to the selected nodes, and to `count - 1` others. At best
        # these are its nearest. A pair is counted at both ends, so each end counts half of it.
        near = self._nearest(place, max(0, count - 1))
        if cost + sum(sorted(map(add, costs, near))[:count]) >= self._below:
            return
        if not undecided:
            self.best = self._below = cost
            return
        # Select the node before excluding it: a whole set is found sooner.
        choices = self._choices[place]
        if count:
            # from now on each other node also costs its distance to this one
            further = list(map(add, costs[1:], self._far[place][place + 1 :]))
            to_selected = costs[0] - self._own[place]
            for own, used in choices.selected:
                with_it = tuple(map(add, uses, used))
                self._decide(place + 1, count - 1, cost + to_selected + own, with_it, further)
        for used in choices.excluded:
            self._decide(place + 1, count, cost, tuple(map(add, uses, used)), costs[1:])

    def _can_fit(self, place: int, count: int, uses: Uses) -> bool:
        """Whether the undecided nodes could keep within the capacities, each constraint on its own."""
        least = self._least_uses(place)
        return all(
            used + of_rest[count] <= capacity
            for used, of_rest, capacity in zip(uses, least, self._problem.capacities, strict=True)
        )

    def _least_uses_from(self, place: int) -> list[list[int]]:
        """By constraint, by number of selected nodes: the least that the nodes from `place` on use."""
        # Exclude all nodes, then select those for which that saves most: the running sums are exact for one constraint.
        found = []
        for number in range(len(self._problem.capacities)):
            total, differences = 0, []
            for choices in self._choices[place:]:
                selected = min(uses[number] for _, uses in choices.selected)
                # A node that cannot be excluded counts as selected either way: the sum stays a lower bound.
                excluded = min((uses[number] for uses in choices.excluded), default=selected)
                total += excluded
                differences.append(selected - excluded)
            found.append(list(accumulate(sorted(differences), initial=total)))
        return found

    def _half_to_nearest(self, place: int, others: int) -> list[int]:
        """For each node from `place` on: half of the distance to the nearest `others` of the same nodes."""
        self._problem.budget.step((len(self._choices) - place) ** 2 // 16)
        return [
            sum(sorted(row[place:one] + row[one + 1 :])[:others]) // 2
            for one, row in enumerate(self._far[place:], place)
        ]


# ----------------------------------------------------------------------------------------------------
# The best set.


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Sets of `size` nodes out of `common`.

    Attributes:
        common: mask of the nodes to choose from.
        size: how many.
        rules: the hint sets that must exclude the other nodes.
        is_possible: whether a set of that size is an intersection.
    """

    common: int
    size: int
    rules: tuple[HintRule, ...]
    is_possible: Callable[[int], bool]


def closest(space: SearchSpace, order: MaskOrder, known: int, budget: StepBudget) -> int:
    """The best possible set; past the budget the best one found, which is `known` or better."""
    if space.common.bit_count() == space.size:
        return known
    search = _BestSet(space, order, known, budget)
    try:
        # On a machine with room the best set of all nodes is possible. It is found faster without constraints.
        if not search.is_settled([]):
            search.is_settled(constraints_of(space.common, space.size, space.rules))
    except BudgetSpentError:
        pass
    return search.best


class _BestSet:
    """Looks for the best set.

    Attributes:
        best: the best possible set found so far.
    """

    def __init__(self, space: SearchSpace, order: MaskOrder, known: int, budget: StepBudget) -> None:
        self.best = known
        self._space = space
        self._order = order
        self._budget = budget
        self._tree = order.distance_tree(space.common)
        # A cost is distance, rank and mask in one integer, from high bits to low: comparing costs compares all three in
        # this order. No difference of ranks reaches one unit of distance, and no mask one unit of rank.
        self._width = space.common.bit_length()
        self._unit = order.span << self._width

    def is_settled(self, constraints: Sequence[Constraint]) -> bool:
        """Improve `best`, and tell whether it is the best set. The constraints may be fewer than all there are.

        Raises:
            BudgetSpentError: the budget ran out.
        """
        tie_break = self._order.tie_break
        if not tie_break or not tie_break.goal:
            return self._is_best_by_shares(constraints, 0, 0)
        # The rank of a set has two cases, with and without enough CPUs. The first has the goal as a constraint. The second
        # ranks behind all others; it has no goal, and a constant in place of the number of caches.
        is_short = self._may_be_short(tie_break)
        found = [self._is_best_by_shares(constraints, 0, tie_break.short)] if is_short else []
        return all([*found, self._is_best_by_shares(constraints, tie_break.goal, 0)])

    def _may_be_short(self, tie_break: TieBreak) -> bool:
        """Whether a possible set may have fewer CPUs than the tie break counts."""
        (rule, *others) = self._space.rules
        return bool(others) or not any(
            need.amount >= tie_break.goal
            and all(
                need.by_node.get(node, 0) <= tie_break.shares(node)[-1].gain
                for node in bits.iterate(self._space.common)
            )
            for need in rule.needs
        )

    def _is_best_by_shares(self, constraints: Sequence[Constraint], goal: int, further: int) -> bool:
        """Improve `best`; whether no set whose shares reach `goal` is better.

        Args:
            constraints: on the excluded nodes.
            goal: the least sum of the gains of the shares; a constraint too, with signs reversed.
            further: added to each rank.
        """
        problem = Selection(
            {node: self._choices(node, constraints, goal) for node in bits.iterate(self._space.common)},
            self._space.size,
            (*(constraint.capacity for constraint in constraints), *([-goal] if goal else [])),
            self._unit,
            self._width,
            self._budget,
        )
        further <<= self._width
        if self._tree:
            return self._settles(self._cheapest_in_levels(LevelSearch(problem, self._tree), further), further)
        assert self._order.distances is not None, "without distances all nodes are equally far"
        search = BranchAndBound(problem, self._order.distances.rows, self._cost(self.best) - further)
        try:
            search.search()
        finally:
            # A set that was found before the budget ran out counts too.
            is_best = self._settles(search.best, further)
        return is_best

    def _cheapest_in_levels(self, search: LevelSearch, further: int) -> int | None:
        if not search.multipliers:
            return search.lower_bound << self._width | search.relaxed.nodes
        search.improve(self._known(further), self._is_improved_by)
        # `improve` may have found better sets on the way: compare with the best one again.
        known = self._known(further)
        return None if search.lower_bound > known else search.cheapest(known)

    def _known(self, further: int) -> int:
        """The cost of the best set so far, its mask left aside."""
        return self._cost(self.best) - further >> self._width

    def _settles(self, cost: int | None, further: int) -> bool:
        """Whether the cheapest selection settles the search: it is no better than `best`, or it is possible."""
        return cost is None or cost + further >= self._cost(self.best) or self._is_improved_by(cost)

    def _is_improved_by(self, cost: int) -> bool:
        """Whether the set with that cost is possible; if so, it becomes the best unless there was a better one."""
        mask = cost & (1 << self._width) - 1
        if self._space.is_possible(mask):
            self.best = min(self.best, mask, key=self._order.of)
            return True
        return False

    def _cost(self, mask: int) -> int:
        far, rank, _ = self._order.of(mask)
        return far * self._unit + (rank << self._width) + mask

    def _choices(self, node: int, constraints: Sequence[Constraint], goal: int) -> NodeChoices:
        rows, tie_break = self._order.distances, self._order.tie_break
        own = (rows.rows[node][node] if rows else 0) * self._unit + (1 << node)
        shares = tie_break.shares(node) if tie_break else [Share(0, 0)]
        nothing = (0,) * len(constraints)
        excluded = uses_of_excluding(node, self._space.rules, constraints)
        # The goal is "at least", capacities are "at most": a gain counts as a negative use.
        if not goal:
            return NodeChoices(((own + (shares[0].rank << self._width), nothing),), tuple(excluded))
        return NodeChoices(
            tuple((own + (rank << self._width), (*nothing, -gain)) for rank, gain in shares),
            tuple((*uses, 0) for uses in excluded),
        )
