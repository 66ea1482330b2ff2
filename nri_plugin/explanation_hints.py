"""What each provider answered and what the merge made of it, as values for people.

Nothing is decided here: the wishes are those of the providers, the contenders those of the merge.
"""

from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.placement import MergeTerms
from nri_plugin.policy.budget import Budget, BudgetSpentError
from nri_plugin.policy.family_search import lowest_member, roomiest
from nri_plugin.policy.hints import Family, Wish
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.merge import Contender, MergedHint, admits, contenders
from nri_plugin.policy.order import Order

CPU = "cpu"
HUGE_PAGES = "hugepages-"
FEW = 4
"""So many sets of NUMA nodes are shown of those that a rule describes."""


@dataclass(frozen=True, slots=True)
class Hinted:
    """A set of NUMA nodes as a kernel list; `nodes` empty for anywhere."""

    nodes: str
    preferred: bool


@dataclass(frozen=True, slots=True)
class ResourceHints:
    """What a provider answered about one resource.

    Attributes:
        resource: `cpu`, `memory`, `hugepages-SIZE`, a device's resource, or what a provider from outside calls it.
        numbers: what is wanted and what there is, in a sentence.
        answer: `hints`; `anywhere` where it does not care; `nowhere` where nothing fits.
        hints: the sets where it fits, by size then number; of a rule a few.
        rule: for machines of more than eight NUMA nodes, which further sets are hints; empty otherwise.
        exact: False where the search for the fewest nodes was cut short.
    """

    resource: str
    numbers: str
    answer: str
    hints: tuple[Hinted, ...]
    rule: str = ""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of all hints.

    Attributes:
        policy: the topology policy.
        scope: `container` or `pod`, or why neither is exact; see `placement.in_scope`.
        nodes: the merged hint, empty for anywhere.
        preferred: whether all prefer it.
        admitted: whether the policy lets a container start with it.
        exact: False where a better one may exist.
        runner_up: the next best, None where there is none or it is not known.
        because: why the first beats it; empty without a runner-up.
        contenders: how many there were, where that is known.
    """

    policy: str
    scope: str
    nodes: str
    preferred: bool
    admitted: bool
    exact: bool = True
    runner_up: Hinted | None = None
    because: str = ""
    contenders: int | None = None


def hints_of(wish: Wish) -> ResourceHints:
    """The wish in words and values."""
    listed = [Hinted(_list(hint.nodes or 0), hint.preferred) for hint in wish.hints or ()]
    rule = rule_of(wish.resource, wish.family) if wish.family else ""
    if wish.family:
        listed += [_hinted(wish.family, mask) for mask in _some(wish.family)]
    answer = "anywhere" if wish.hints is None else "hints" if listed else "nowhere"
    return ResourceHints(wish.resource, wish.why, answer, tuple(listed), rule, wish.exact)


def rule_of(resource: str, family: Family) -> str:
    """Which sets of NUMA nodes are in the family, in words."""
    if resource == CPU:
        need = f"with {family.needs[0].amount} CPUs available together"
    elif is_memory(resource):
        need = "with all the memory and huge pages asked for free together, and no other use of them"
    else:
        need = "where all of it fits"
    least = f" of {family.at_least} or more" if family.at_least > 1 else ""
    required = f" that include {_list(family.required)}" if family.required else ""
    sockets = f", or on {_number(family.fewest_sockets, 'socket')}" if family.fewest_sockets else ""
    return (
        f"any set{least} of NUMA nodes {_list(family.nodes)}{required} {need}; "
        f"preferred: of {_number(family.preferred_size, 'node')}{sockets}"
    )


def is_memory(resource: str) -> bool:
    """Whether amounts of it are bytes."""
    return resource == MEMORY or resource.startswith(HUGE_PAGES)


def merged_of(terms: MergeTerms, merged: MergedHint, scope: str) -> Merged:
    """The merge, and why its outcome beats the next best."""
    known = contenders(*terms[:3], distances=terms.distances, tie_break=terms.tie_break)
    winner = Contender(merged.affinity.mask, merged.preferred) if merged.affinity else None
    next_best = next((one for one in known if one != winner), None) if winner in known else None
    return Merged(
        policy=terms.policy,
        scope=scope,
        nodes=str(merged.affinity or ""),
        preferred=merged.preferred,
        admitted=admits(terms.policy, merged),
        exact=merged.exact,
        runner_up=Hinted(_list(next_best.nodes), next_best.preferred) if next_best else None,
        because=_because(terms, winner, next_best) if winner and next_best else "",
        contenders=len(known) if known else None,
    )


def _because(terms: MergeTerms, winner: Contender, other: Contender) -> str:
    """In the order in which a merge compares: preferred, width, distance, tie break, number."""
    if winner.preferred != other.preferred:
        return "all prefer it, not so the other"
    sizes = winner.nodes.bit_count(), other.nodes.bit_count()
    if sizes[0] != sizes[1]:
        word = "narrower" if sizes[0] < sizes[1] else "nearer to what the widest request takes"
        return f"{word}: {_number(sizes[0], 'NUMA node')}, not {sizes[1]}"
    return _between_equals(_order(terms), winner.nodes, other.nodes)


def _order(terms: MergeTerms) -> Order:
    is_single = terms.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
    return Order(None if is_single else terms.distances, terms.tie_break)


def _between_equals(order: Order, winner: int, other: int) -> str:
    (far, rank, _), (other_far, other_rank, _) = order.of(winner), order.of(other)
    if far != other_far:
        return f"closer together: distances add up to {far}, not {other_far}"
    if rank != other_rank and order.tie_break:
        if (order.tie_break.wished & winner) != (order.tie_break.wished & other):
            return "the pod's annotation wishes for it"
        return f"topologyTieBreak {order.tie_break.rule}"
    return "as good, and lower in number"


def _some(family: Family) -> list[int]:
    """A few members: the preferred single nodes, else one of each size from the preferred one on.

    The lowest of its size, or the roomiest where a search would take too long.
    """
    if family.preferred_size == 1:
        single = [1 << node for node in bits.iterate(family.nodes) if family.prefers(1 << node)]
        if single:
            return single
    first = max(1, family.at_least, family.preferred_size)
    found = [_lowest(family, size) for size in range(first, family.nodes.bit_count() + 1)[:FEW]]
    return [mask for mask in found if mask is not None and mask in family]


def _lowest(family: Family, size: int) -> int | None:
    try:
        return lowest_member(family, size, Budget())
    except BudgetSpentError:
        return roomiest(family, size)


def _hinted(family: Family, mask: int) -> Hinted:
    return Hinted(_list(mask), family.prefers(mask))


def _list(mask: int) -> str:
    return bits.format_list(mask)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)
