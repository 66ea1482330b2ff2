"""Merging: a sentence a case. The law of all cases is in tests/property."""

import pytest

from nri_plugin.nodemask import NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy import merge as merging
from nri_plugin.policy.distances import Distances
from nri_plugin.policy.hints import Family, Hint, Need, Wish
from nri_plugin.policy.merge import MergedHint, admits, merge

NONE, BEST, RESTRICTED, SINGLE = (
    TopologyManagerPolicy.NONE,
    TopologyManagerPolicy.BEST_EFFORT,
    TopologyManagerPolicy.RESTRICTED,
    TopologyManagerPolicy.SINGLE_NUMA_NODE,
)
TWO = NodeMask(0b11)
FOUR = NodeMask(0b1111)


def wish(*hints):
    return (Wish("r", tuple(Hint(*hint) for hint in hints)),)


def merged(policy, nodes, *providers, **options):
    result = merge(policy, nodes, list(providers), **options)
    return None if result.affinity is None else result.affinity.mask, result.preferred


@pytest.mark.parametrize(
    ("policy", "nodes", "providers", "expected", "rule"),
    [
        (NONE, TWO, [wish((1, True))], (None, False), "policy none looks at nothing"),
        (BEST, TWO, [], (0b11, True), "no provider: all nodes, preferred"),
        (BEST, TWO, [None, ()], (0b11, True), "nobody cares: all nodes, preferred"),
        (SINGLE, TWO, [None], (None, True), "nobody cares: anywhere"),
        (BEST, TWO, [(Wish("r", ()),)], (0b11, False), "nothing fits: all nodes, not preferred"),
        (BEST, TWO, [wish((1, True), (2, True))], (1, True), "the lower mask among equals"),
        (BEST, TWO, [wish((1, True)), wish((2, True))], (0b11, False), "disjoint wishes: all nodes"),
        (BEST, TWO, [wish((1, True)), wish((3, True))], (1, False), "different masks are never preferred"),
        (
            RESTRICTED,
            TWO,
            [wish((1, True), (3, False)), wish((2, True), (3, False))],
            (1, False),
            "best of bad",
        ),
        (BEST, FOUR, [wish((3, True), (1, False))], (3, True), "preferred before narrow"),
        (BEST, FOUR, [wish((6, False), (9, False))], (6, False), "a tie goes to the smaller number"),
        (
            BEST,
            FOUR,
            [wish((7, False)), wish((14, False))],
            (6, False),
            "below the target width if not at it",
        ),
        (SINGLE, TWO, [wish((1, False), (2, True))], (2, True), "only preferred hints of one node count"),
        (SINGLE, TWO, [wish((3, True))], (None, False), "two nodes are none"),
        (SINGLE, NodeMask(0b1), [wish((1, True))], (None, True), "the only node is anywhere"),
        (SINGLE, TWO, [wish((None, True), (2, True))], (2, True), "a node before anywhere"),
        (SINGLE, TWO, [wish((None, False))], (None, False), "anywhere must be preferred"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_merge(policy, nodes, providers, expected, rule):
    assert merged(policy, nodes, *providers) == expected, rule


def test_among_masks_of_one_size_the_closer_wins():
    hints = wish((0b0011, True), (0b0110, True), (0b1111, True))
    assert merged(BEST, FOUR, hints, distances=ring(4, {(0, 1): 30})) == (0b0110, True)
    assert merged(BEST, FOUR, hints) == (0b0011, True)


@pytest.mark.parametrize(
    ("policy", "preferred", "admitted"),
    [(NONE, False, True), (BEST, False, True), (RESTRICTED, False, False), (SINGLE, False, False)]
    + [(policy, True, True) for policy in TopologyManagerPolicy],
)
def test_strict_policies_admit_only_preferred_hints(policy, preferred, admitted):
    assert admits(policy, MergedHint(None, preferred)) is admitted


def family(amount, nodes=16, free=10, size=2):
    by_node = dict.fromkeys(range(nodes), free)
    return Wish("r", (), Family((1 << nodes) - 1, 0, (Need(amount, by_node),), size))


def ring(nodes, special=()):
    """Distance grows with the way round, beside some pairs."""
    rows = {
        one: {other: 10 + min(abs(one - other), nodes - abs(one - other)) for other in range(nodes)}
        for one in range(nodes)
    }
    for (one, other), far in dict(special).items():
        rows[one][other] = rows[other][one] = far
    return Distances(rows)


def test_a_hint_is_exact_until_a_search_runs_out_of_steps(monkeypatch):
    wishes = [(family(20),)]
    assert merge(BEST, NodeMask(0xFFFF), wishes) == MergedHint(NodeMask(0b11), True)
    monkeypatch.setattr(merging, "STEP_BUDGET", 0)
    assert merge(BEST, NodeMask(0xFFFF), wishes) == MergedHint(NodeMask(0b11), False, exact=False)


def test_among_sets_of_nodes_of_a_large_machine_the_closest_wins():
    wishes = [(family(20),)]
    far = ring(16, {(0, 1): 12})
    assert merge(BEST, NodeMask(0xFFFF), wishes, distances=far) == MergedHint(NodeMask(0b110), True)
    listed = [*wishes, wish((0b1001, False), (0b1100, False))]
    assert merge(BEST, NodeMask(0xFFFF), listed, distances=far) == MergedHint(NodeMask(0b1100), False)


def test_single_nodes_of_a_large_machine_are_told_apart_by_their_own_distance():
    distances = ring(16, {(4, 4): 9})
    assert merge(BEST, NodeMask(0xFFFF), [(family(10, size=1),)], distances=distances).affinity == NodeMask(
        1 << 4
    )


def test_what_fits_one_node_of_a_large_machine_but_nowhere_together_agrees_on_nothing():
    here, there = ({node: 10 if (node < 8) is low else 0 for node in range(16)} for low in (True, False))
    wishes = [
        (Wish(name, (), Family(0xFFFF, 0, (Need(5, free),), 1)),)
        for name, free in (("a", here), ("b", there))
    ]
    hint = merge(RESTRICTED, NodeMask(0xFFFF), wishes)
    assert not hint.preferred
    assert hint.exact
