"""The sets that several families prefer alike.

A family prefers its members of one size; with align-by-socket also those that touch as few sockets as
can be, however many nodes they have. These are told apart by the sockets touched: each choice of
sockets gives one smaller family.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from nri_plugin import bits
from nri_plugin.policy.budget import Budget, BudgetSpentError
from nri_plugin.policy.closest import Region, closest
from nri_plugin.policy.family_search import lowest_member
from nri_plugin.policy.hints import Family, Need
from nri_plugin.policy.order import Order


def best_agreed(families: Sequence[Family], order: Order, budget: Budget) -> int | None:
    """The narrowest, then best, of the sets that every family prefers; None if there is none.

    Past the budget: the best found so far, or None although there may be one.
    """
    for size in _sizes(families):
        found: list[int] = []
        try:
            for parts in product(*(list(_preferred(family, size)) for family in families)):
                budget.step()
                found += _best_in(_conjunction(parts), size, order, budget)
        except BudgetSpentError:
            pass
        if found:
            return min(found, key=order.of)
    return None


def _sizes(families: Sequence[Family]) -> list[int]:
    """Those that each family may prefer a member of, ascending."""
    fixed = {family.preferred_size for family in families if not family.fewest_sockets}
    largest = min(family.nodes.bit_count() for family in families)
    return [size for size in range(1, largest + 1) if fixed <= {size}]


def _preferred(family: Family, size: int) -> Iterator[Family]:
    """Families whose members of `size` nodes are those that `family` prefers."""
    if size == family.preferred_size:
        yield family
        return
    for sockets in combinations(family.sockets, family.fewest_sockets):
        others = [nodes for nodes in family.sockets if nodes not in sockets]
        touched = tuple(Need(1, dict.fromkeys(bits.iterate(nodes), 1)) for nodes in sockets)
        nodes = family.nodes
        for other in others:
            nodes &= ~other
        yield replace(family, nodes=nodes, needs=family.needs + touched)


def _conjunction(families: Sequence[Family]) -> Family:
    """The masks that are in every family."""
    nodes, required = families[0].nodes, 0
    needs: list[Need] = []
    for family in families:
        nodes &= family.nodes
        required |= family.required
        needs += [need for need in family.needs if need not in needs]
    return Family(nodes, required, tuple(needs), 0, max(family.at_least for family in families))


def _best_in(family: Family, size: int, order: Order, budget: Budget) -> list[int]:
    """The best member of `size` nodes, if there is one."""
    lowest = lowest_member(family, size, budget) if size >= family.at_least else None
    if lowest is None or order.is_by_mask:
        return [] if lowest is None else [lowest]
    budget.release()
    return [closest(Region(family.nodes, size, (family,), family.__contains__), order, lowest, budget)]
