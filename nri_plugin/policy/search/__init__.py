"""Hints on machines with more than eight NUMA nodes.

With n NUMA nodes there are 2**n sets of nodes. The kubelet lists them, and stops at eight nodes. Here a hint
set carries its hints as a rule instead (`policy.hints.HintRule`): which nodes may be used, which must
be, and how much the nodes of a set must have together. This page says how the best set is found without
listing the sets. The words are those of integer programming: constraint, capacity, lower bound, relaxation.

**Two questions.** The merge first asks for a preferred hint: the smallest, then best set that every hint set
prefers (`intersections.best_agreed`). Where there is none, it asks for the best intersection of one hint of
each hint set (`intersections.best_intersection`). Both try sizes in the order in which the merge prefers them,
so the rest of this page is about the best set of exactly k nodes.

**What is possible.** Hints are closed upwards: adding a usable node to a hint gives a hint. So a set of nodes is
an intersection if each other node can be *excluded* by one of the hint sets. Each hint set can exclude
only as much of a resource as it has beyond its amount. That is a *constraint*: excluding a node uses some of
its *capacity*. For one hint set alone this says that its nodes have enough; for several, each node may be
excluded by any of them, and the search chooses by which.

**What is best.** Sets of one size compare by distance, then by the rank of the tie break, then by mask
(`mask_order`). Distance is a sum over pairs of nodes, rank and mask are sums over nodes. All three go into one
integer, the *cost*: distance in the highest bits, the mask in the lowest. The search minimizes one number.

**A first set.** A depth-first search over nodes finds the set with the lowest mask, or that none of this size is
possible (`intersections.lowest_member`). Without distances and tie break it is the answer. Otherwise its cost is
the first upper bound of the cost.

**Machines built in levels** (`levels`). On real machines nodes are in sockets, sockets in boards, and the distance
of two nodes depends only on the smallest group that holds both. Then the distances are a tree. The cost of k nodes
of a group depends only on how many are taken of each part: k = i + j nodes of two parts put i * j pairs at
the distance between the parts. From the leaves to the root this gives the cheapest cost for each number of
nodes. As 2ij = (i+j)^2 - i^2 - j^2, joining two parts needs additions only.

*Constraints* make this hard. They are relaxed: a set may exceed a capacity, but each unit of use has a charge (a
Lagrange multiplier), and the charge for the whole capacity is refunded. The cheapest set of the relaxed problem costs no more than
the cheapest possible set, so its cost is a lower bound. Each multiplier is raised until sets that use too much are as
dear as sets that do not. With a lower bound of the cost of all nodes outside of a group, a search from the leaves
to the root keeps few partial sets (*labels*): those that can still lead to a set as cheap as the best known one, and
that no other label matches in cost and in all uses. The label that remains at the root is the answer.

**All other machines** (`closest.BranchAndBound`). Nodes are decided one after the other: selected or excluded. A
branch ends when even its lower bound is no cheaper than the best set known. The bound is the cost of the selected
nodes, plus for the cheapest undecided nodes their distance to the selected ones and half of their distance to their
nearest others.

**Bounded time.** A search counts steps against a budget, never time, so the same question has the same answer on
each machine. When the budget is spent, the best set found so far is the answer, and the merged hint says `exact=False`.
The budget has been enough for every hint on machines built in levels up to 64 nodes. On 16 nodes with any distances it
has been enough for every hint without best-fit, and for all but few with it. On two planes (levels, and a longer way
between the halves of the machine) it has been enough for most hints on 32 nodes, and for less than half on 64.
"""

STEP_BUDGET = 6_000
"""Steps of the searches of one merge; about 10 ms on the machine of the first bench."""


class BudgetSpentError(Exception):
    """The step budget of a search ran out. The searches catch it, and no caller of them sees it."""


class StepBudget:
    """Counts the steps of one search.

    Attributes:
        left: steps that remain; below 0 once a search wanted more than there were.
        reserve: further steps, kept for the next search in case that this one finds nothing.
    """

    __slots__ = ("left", "reserve")

    def __init__(self, steps: int | None = None) -> None:
        self.left = STEP_BUDGET if steps is None else steps
        self.reserve = 0

    @property
    def is_spent(self) -> bool:
        """Whether a search had to stop."""
        return self.left < 0

    def release(self) -> None:
        """Use the reserve too: a set was found, so no other search follows."""
        self.left += self.reserve
        self.reserve = 0

    def step(self, count: int = 1) -> None:
        """Count steps.

        Raises:
            BudgetSpentError: fewer are left.
        """
        self.left -= count
        if self.left < 0:
            raise BudgetSpentError
