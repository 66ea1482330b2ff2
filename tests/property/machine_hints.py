"""Machines for merging: their distances, and what providers hint set on them, as rules and as lists."""

from hypothesis import strategies as st

from nri_plugin.policy.hints import Hint, HintRule, HintSet, Need
from tests.oracles.merge import members_of

NODES = (0, 1, 2, 4, 5, 7)
ALL_NODES = sum(1 << node for node in NODES)
SOCKETS = (0b00000111, 0b10110000)


def subsets(mask):
    """Every non-empty part of a mask."""
    part = mask
    while part:
        yield part
        part = (part - 1) & mask


@st.composite
def random_distances(draw, nodes=NODES):
    """Anything, there and back not always alike."""
    return {
        one: {other: 10 if one == other else draw(st.integers(11, 14)) for other in nodes} for one in nodes
    }


@st.composite
def hierarchical_distances(draw, nodes=NODES):
    """By how many of three levels two nodes share; the levels are cut anywhere."""
    far = [draw(st.integers(11, 60)) for _ in range(3)]
    place = {node: [draw(st.integers(0, 1)) for _ in range(2)] for node in nodes}
    rows = {one: {} for one in nodes}
    for one in nodes:
        for other in nodes:
            level = 0 if place[one] == place[other] else 1 if place[one][0] == place[other][0] else 2
            rows[one][other] = 10 if one == other else far[level]
    return rows


@st.composite
def clustered_distances(draw, nodes=NODES):
    """Few places with nodes each; how far two places are from each other follows no order."""
    place = {node: draw(st.integers(0, 3)) for node in nodes}
    far = {frozenset((one, other)): draw(st.integers(12, 30)) for one in range(4) for other in range(one + 1)}
    return {
        one: {other: 10 if one == other else far[frozenset((place[one], place[other]))] for other in nodes}
        for one in nodes
    }


@st.composite
def plane_distances(draw, nodes=NODES):
    """Levels on two planes; nodes on different ones are farther from each other by always the same."""
    rows, crossing = draw(hierarchical_distances(nodes)), draw(st.integers(1, 20))
    plane = {node: draw(st.booleans()) for node in nodes}
    return {
        one: {other: rows[one][other] + crossing * (plane[one] != plane[other]) for other in nodes}
        for one in nodes
    }


DISTANCES = (
    st.none() | plane_distances() | hierarchical_distances() | clustered_distances() | random_distances()
)


@st.composite
def rules(draw):
    """A rule on a machine small enough to list; None where it holds nothing."""
    usable = draw(st.sets(st.sampled_from(NODES), min_size=1) | st.just(set(NODES)))
    required = draw(st.just(set()) | st.sets(st.sampled_from(sorted(usable)), max_size=2))
    needs = tuple(
        Need(draw(st.integers(0, 14)), {node: draw(st.integers(0, 5)) for node in usable})
        for _ in range(draw(st.integers(1, 2)))
    )
    sockets = {"sockets": SOCKETS, "fewest_sockets": draw(st.integers(1, 2))} if draw(st.booleans()) else {}
    rule = HintRule(
        sum(1 << node for node in usable),
        sum(1 << node for node in required),
        needs,
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        **sockets,
    )
    return rule if rule.nodes in rule else None


HINTS = st.tuples(st.sampled_from(sorted(subsets(ALL_NODES))), st.booleans())


@st.composite
def hint_sets_in_both_forms(draw):
    """A hint set with a rule, perhaps beside listed hints, and the same hint set with everything listed."""
    rule = draw(rules())
    listed = draw(st.just([]) | st.lists(HINTS, max_size=2))
    members = [mask for mask in subsets(ALL_NODES) if rule is not None and is_member(rule, mask)]
    return HintSet("r", tuple(Hint(*hint) for hint in listed), rule), [
        *listed,
        *((mask, is_preferred(rule, mask)) for mask in members),
    ]


def is_member(rule, mask):
    """Straight from what a rule says it is."""
    nodes = set(members_of(mask))
    return (
        set(members_of(rule.required)) <= nodes <= set(members_of(rule.nodes))
        and len(nodes) >= rule.at_least
        and all(sum(need.by_node.get(node, 0) for node in nodes) >= need.amount for need in rule.needs)
    )


def is_preferred(rule, mask):
    touched = sum(1 for socket in rule.sockets if socket & mask)
    return mask.bit_count() == rule.preferred_size or (
        bool(rule.fewest_sockets) and touched == rule.fewest_sockets
    )
