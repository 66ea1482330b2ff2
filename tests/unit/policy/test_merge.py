"""Merging: a sentence a case. The law of all cases is in tests/property."""

from dataclasses import replace
from typing import ClassVar

import pytest

from nri_plugin.model.options import TopologyManagerPolicy, TopologyTieBreak
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy import merge as merging
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.hints import Hint, HintRule, HintSet, Need
from nri_plugin.policy.merge import MergedHint, admits, candidates, merge
from nri_plugin.policy.search import StepBudget
from nri_plugin.policy.search.mask_order import Distances, tie_break
from tests.topology_rows import topology_of_rows

NONE, BEST, RESTRICTED, SINGLE = (
    TopologyManagerPolicy.NONE,
    TopologyManagerPolicy.BEST_EFFORT,
    TopologyManagerPolicy.RESTRICTED,
    TopologyManagerPolicy.SINGLE_NUMA_NODE,
)
TWO = NodeMask(0b11)
FOUR = NodeMask(0b1111)


def hint_set(*hints):
    return (HintSet("r", tuple(Hint(*hint) for hint in hints)),)


def merged(policy, nodes, *providers, **options):
    result = merge(policy, nodes, list(providers), **options)
    return None if result.affinity is None else result.affinity.mask, result.preferred


@pytest.mark.parametrize(
    ("policy", "nodes", "providers", "expected", "rule"),
    [
        (NONE, TWO, [hint_set((1, True))], (None, False), "policy none looks at nothing"),
        (BEST, TWO, [], (0b11, True), "no provider: all nodes, preferred"),
        (BEST, TWO, [None, ()], (0b11, True), "nobody cares: all nodes, preferred"),
        (SINGLE, TWO, [None], (None, True), "nobody cares: anywhere"),
        (BEST, TWO, [(HintSet("r", ()),)], (0b11, False), "nothing fits: all nodes, not preferred"),
        (BEST, TWO, [hint_set((1, True), (2, True))], (1, True), "the lower mask among equals"),
        (
            BEST,
            TWO,
            [hint_set((1, True)), hint_set((2, True))],
            (0b11, False),
            "disjoint hint sets: all nodes",
        ),
        (
            BEST,
            TWO,
            [hint_set((1, True)), hint_set((3, True))],
            (1, False),
            "different masks are never preferred",
        ),
        (
            RESTRICTED,
            TWO,
            [hint_set((1, True), (3, False)), hint_set((2, True), (3, False))],
            (1, False),
            "best of bad",
        ),
        (BEST, FOUR, [hint_set((3, True), (1, False))], (3, True), "preferred before narrow"),
        (BEST, FOUR, [hint_set((6, False), (9, False))], (6, False), "a tie goes to the smaller number"),
        (
            BEST,
            FOUR,
            [hint_set((7, False)), hint_set((14, False))],
            (6, False),
            "below the target width if not at it",
        ),
        (SINGLE, TWO, [hint_set((1, False), (2, True))], (2, True), "only preferred hints of one node count"),
        (SINGLE, TWO, [hint_set((3, True))], (None, False), "two nodes are none"),
        (SINGLE, NodeMask(0b1), [hint_set((1, True))], (None, True), "the only node is anywhere"),
        (SINGLE, TWO, [hint_set((None, True), (2, True))], (2, True), "a node before anywhere"),
        (SINGLE, TWO, [hint_set((None, False))], (None, False), "anywhere must be preferred"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_merge(policy, nodes, providers, expected, rule):
    assert merged(policy, nodes, *providers) == expected, rule


def test_among_masks_of_one_size_the_closer_wins():
    hints = hint_set((0b0011, True), (0b0110, True), (0b1111, True))
    assert merged(BEST, FOUR, hints, distances=ring(4, {(0, 1): 30})) == (0b0110, True)
    assert merged(BEST, FOUR, hints) == (0b0011, True)


@pytest.mark.parametrize(
    ("policy", "preferred", "admitted"),
    [(NONE, False, True), (BEST, False, True), (RESTRICTED, False, False), (SINGLE, False, False)]
    + [(policy, True, True) for policy in TopologyManagerPolicy],
)
def test_strict_policies_admit_only_preferred_hints(policy, preferred, admitted):
    assert admits(policy, MergedHint(None, preferred)) is admitted


def rule(amount, nodes=16, free=10, size=2, required=0):
    by_node = dict.fromkeys(range(nodes), free)
    return HintSet("r", (), HintRule((1 << nodes) - 1, required, (Need(amount, by_node),), size))


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
    hint_sets = [(rule(20),)]
    assert merge(BEST, NodeMask(0xFFFF), hint_sets) == MergedHint(NodeMask(0b11), True)
    monkeypatch.setattr(merging, "STEP_BUDGET", 0)
    assert merge(BEST, NodeMask(0xFFFF), hint_sets) == MergedHint(NodeMask(0b11), False, exact=False)


def test_among_sets_of_nodes_of_a_large_machine_the_closest_wins():
    hint_sets = [(rule(20),)]
    far = ring(16, {(0, 1): 12})
    assert merge(BEST, NodeMask(0xFFFF), hint_sets, distances=far) == MergedHint(NodeMask(0b110), True)
    listed = [*hint_sets, hint_set((0b1001, False), (0b1100, False))]
    assert merge(BEST, NodeMask(0xFFFF), listed, distances=far) == MergedHint(NodeMask(0b1100), False)


def test_single_nodes_of_a_large_machine_are_told_apart_by_their_own_distance():
    distances = ring(16, {(4, 4): 9})
    assert merge(BEST, NodeMask(0xFFFF), [(rule(10, size=1),)], distances=distances).affinity == NodeMask(
        1 << 4
    )


def test_what_fits_one_node_of_a_large_machine_but_nowhere_together_agrees_on_nothing():
    here, there = ({node: 10 if (node < 8) is low else 0 for node in range(16)} for low in (True, False))
    hint_sets = [
        (HintSet(name, (), HintRule(0xFFFF, 0, (Need(5, free),), 1)),)
        for name, free in (("a", here), ("b", there))
    ]
    hint = merge(RESTRICTED, NodeMask(0xFFFF), hint_sets)
    assert not hint.preferred
    assert hint.exact


ALL16 = NodeMask(0xFFFF)
ANYWHERE = replace(rule(20), hints=(Hint(None, True),))


@pytest.mark.parametrize(
    ("nodes", "providers", "expected", "rule"),
    [
        (TWO, [hint_set((0b100, True))], (0b11, False), "nodes that the machine has not are no agreement"),
        (
            TWO,
            [hint_set((None, True), (1, True))],
            (1, True),
            "a place before anywhere, where all are content with both",
        ),
        (TWO, [hint_set((None, True), (0b100, True))], (0b11, True), "but none that the machine has not"),
        (
            ALL16,
            [(rule(20),), hint_set((0b110, True), (0b11, False))],
            (0b110, True),
            "what is listed must be preferred",
        ),
        (
            ALL16,
            [(rule(20),), (HintSet("r", None),)],
            (0b11, True),
            "who does not care agrees with a rule",
        ),
        (ALL16, [(ANYWHERE,), hint_set((1 << 20, True))], (1, False), "nor where one is content anywhere"),
        (
            ALL16,
            [(rule(20),), hint_set((1 << 20, True))],
            (0b11, False),
            "nor do nodes it has not agree with a rule",
        ),
    ],
)
def test_what_all_prefer(nodes, providers, expected, rule):
    assert merged(BEST, nodes, *providers)[1] == expected[1], rule
    if expected[1]:
        assert merged(BEST, nodes, *providers)[0] == expected[0], rule


def test_a_hint_set_for_anywhere_is_not_held_to_its_rule():
    low, high = ({node: 10 if (node < 8) is here else 0 for node in range(16)} for here in (True, False))
    anywhere = HintSet("a", (Hint(None, True),), HintRule(0xFFFF, 0, (Need(20, low),), 2))
    there = HintSet("b", (), HintRule(0xFFFF, 0, (Need(20, high),), 2))
    assert merged(BEST, ALL16, (anywhere, there)) == (0x300, True)


def test_a_listed_mask_counts_beside_the_members_of_its_rule():
    both = HintSet("a", (Hint(0b100, True),), rule(20).rule)
    assert merged(BEST, ALL16, (both,)) == (0b100, True)


def test_single_nodes_need_no_search(monkeypatch):
    monkeypatch.setattr(merging, "STEP_BUDGET", 0)
    assert merge(BEST, ALL16, [(rule(10, size=1),)]) == MergedHint(NodeMask(1), True)
    pairs = tuple(0b11 << node for node in range(0, 16, 2))
    on_sockets = HintRule(0xFFFF, 0, (Need(5, dict.fromkeys(range(16), 10)),), 2, 1, pairs, 1)
    assert merge(BEST, ALL16, [(HintSet("r", (), on_sockets),)]) == MergedHint(NodeMask(1), True)


def test_a_doubtful_hint_set_makes_the_hint_doubtful():
    doubtful = replace(rule(20), exact=False)
    assert merge(BEST, ALL16, [(rule(20),)]).exact
    assert not merge(BEST, ALL16, [(rule(20), doubtful)]).exact


def test_a_tie_break_that_does_not_add_up_leaves_only_single_nodes_without_doubt():
    """An uncore cache with CPUs of several nodes."""
    tables = cpu_tables(topology_of_rows([(cpu, cpu, 0, cpu // 2, cpu // 4) for cpu in range(32)]))
    best_fit = tie_break(TopologyTieBreak.BEST_FIT, tables, CPUSet(tables.online), 2)
    assert not best_fit.is_additive
    hints = [merge(BEST, ALL16, [(rule(10 * size, size=size),)], tie_break=best_fit) for size in (1, 2, 3)]
    assert [hint.exact for hint in hints] == [True, False, False]


class Recorded(StepBudget):
    """A budget that tells how it was made and what was left."""

    made: ClassVar[list["Recorded"]] = []

    def __init__(self, steps):
        super().__init__(steps)
        self.steps = steps
        self.made.append(self)


@pytest.mark.parametrize(("steps", "exact"), [(1_000, True), (10, False), (1, False)])
def test_three_quarters_of_the_steps_may_go_into_what_all_prefer(monkeypatch, steps, exact):
    monkeypatch.setattr(merging, "StepBudget", Recorded)
    monkeypatch.setattr(merging, "STEP_BUDGET", steps)
    Recorded.made.clear()
    apart = [(rule(20, required=1),), (rule(20, required=2),), hint_set((0b100, True), (0b11, False))]
    found = merge(BEST, ALL16, apart)
    first, rest = Recorded.made
    assert first.steps == steps * 3 // 4
    assert rest.steps == steps // 4 + max(0, first.left)
    assert found.exact is exact


def test_a_hint_is_doubtful_when_what_all_prefer_was_not_looked_at_to_the_end(monkeypatch):
    """Two sockets out of eight, for two rules that have room on different ones."""
    pairs = tuple(0b11 << node for node in range(0, 16, 2))

    def on_two_sockets(have, free):
        needs = (Need(15, {node: 10 if node in have else free for node in range(16)}),)
        return HintSet("r", (), HintRule(0xFFFF, 0, needs, 2, 1, pairs, 2))

    hint_sets = (on_two_sockets(range(8), 1), on_two_sockets(range(8, 16), 1))
    monkeypatch.setattr(merging, "StepBudget", Recorded)
    found = []
    for steps in (100_000, 400):
        monkeypatch.setattr(merging, "STEP_BUDGET", steps)
        Recorded.made.clear()
        found.append(merge(BEST, ALL16, (hint_sets,)))
    first, rest = Recorded.made
    assert (first.is_spent, rest.is_spent) == (True, False)
    assert rest.steps == first.reserve
    assert found == [MergedHint(NodeMask(0x303), True), MergedHint(NodeMask(0b11), False, exact=False)]


def test_where_nothing_is_preferred_the_widest_of_the_narrowest_hint_sets_sets_the_size():
    narrow, wide = (
        hint_set((0b0011, False), (0b1100, False), (1, False)),
        hint_set((0b0111, False), (0b1110, False)),
    )
    assert merged(BEST, FOUR, hint_set((0b0111, False), (0b1011, False)), hint_set((0b1111, False))) == (
        0b0111,
        False,
    )
    assert merged(BEST, FOUR, narrow, wide) == (0b0011, False)
    assert merged(BEST, FOUR, narrow, wide, distances=ring(4, {(0, 1): 30})) == (0b1100, False)


def test_where_rules_agree_on_nothing_the_widest_need_sets_the_size():
    apart = (rule(5, required=0b01), rule(35, required=0b10, size=4))
    assert merge(BEST, ALL16, (apart,)) == MergedHint(NodeMask(0b1111), False)


def test_of_single_nodes_the_first_in_order_is_taken():
    hints = hint_set((0b001, True), (0b010, True), (0b100, True))
    assert merged(SINGLE, NodeMask(0b111), hints) == (0b001, True)


def test_narrower_goes_before_wider_where_nothing_is_of_the_size():
    few, many = hint_set((0b0111, False), (0b1000, False)), hint_set((0b1001, False), (0b1111, False))
    assert merged(BEST, FOUR, few, many) == (0b0001, False)


def test_rules_that_have_no_node_in_common_go_anywhere():
    low, high = (HintSet("r", (), HintRule(mask, 0, (), 1)) for mask in (0xFF, 0xFF00))
    assert merge(BEST, ALL16, ((low, high),)) == MergedHint(ALL16, False)


@pytest.mark.parametrize("policy", [BEST, RESTRICTED, SINGLE])
def test_the_first_contender_is_what_the_merge_chooses(policy) -> None:
    hint_sets = ((HintSet("cpu", (Hint(0b01, True), Hint(0b10, True), Hint(0b11, False))),),)
    found = candidates(policy, NodeMask(0b11), hint_sets)
    merged = merge(policy, NodeMask(0b11), hint_sets)
    assert merged.affinity is not None
    assert (found[0].nodes, found[0].preferred) == (merged.affinity.mask, merged.preferred)
    assert found[1].nodes == 0b10


def test_policy_none_has_no_contenders() -> None:
    assert candidates(NONE, NodeMask(0b11), ()) == []
