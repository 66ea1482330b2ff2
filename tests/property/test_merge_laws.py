"""Laws of merging hints, and agreement with trying every combination."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy import merge as merging
from nri_plugin.policy.hints import Hint, HintSet
from nri_plugin.policy.merge import admits, merge, possible_intersections
from nri_plugin.policy.search.mask_order import Distances
from tests.oracles.merge import by_folding, by_product, merged
from tests.property.machine_hints import ALL_NODES, DISTANCES, hint_sets_in_both_forms
from tests.property.tie_breaks import rank_of, tie_breaks

POLICIES = st.sampled_from(list(TopologyManagerPolicy))


def hint_lists(all_nodes):
    masks = st.integers(1, all_nodes).map(lambda mask: mask & all_nodes).filter(bool)
    hint = st.tuples(st.one_of(masks, masks, masks, st.none()), st.booleans())
    return st.one_of(st.none(), st.just([]), st.lists(hint, max_size=6))


@st.composite
def machines_and_lists(draw):
    """(all nodes, up to three hint sets): node ids may have holes."""
    all_nodes = draw(st.sampled_from([0b1, 0b11, 0b1111, 0b110011, 0b10101]))
    return all_nodes, draw(st.lists(hint_lists(all_nodes), max_size=3))


def hint_sets_of(lists):
    return [
        (HintSet("r", None if hints is None else tuple(Hint(*hint) for hint in hints)),) for hints in lists
    ]


def as_pair(result):
    return None if result.affinity is None else result.affinity.mask, result.preferred


@given(POLICIES, machines_and_lists())
def test_the_merge_is_the_best_of_all_combinations(policy, drawn):
    all_nodes, lists = drawn
    assert as_pair(merge(policy, NodeMask(all_nodes), hint_sets_of(lists))) == merged(
        policy.value, all_nodes, lists
    )


@given(machines_and_lists())
def test_the_oracle_may_drop_what_came_out_alike(drawn):
    all_nodes, lists = drawn
    filled = [[(None, True)] if hints is None else hints for hints in lists]
    assert by_folding(all_nodes, filled) == by_product(all_nodes, filled)


@given(POLICIES, machines_and_lists(), st.randoms(use_true_random=False))
def test_the_order_of_providers_does_not_matter(policy, drawn, random):
    all_nodes, lists = drawn
    before = merge(policy, NodeMask(all_nodes), hint_sets_of(lists))
    random.shuffle(lists)
    assert merge(policy, NodeMask(all_nodes), hint_sets_of(lists)) == before


@given(POLICIES, machines_and_lists())
def test_a_provider_that_does_not_care_changes_nothing(policy, drawn):
    all_nodes, lists = drawn
    nodes = NodeMask(all_nodes)
    assert merge(policy, nodes, [*hint_sets_of(lists), None, ()]) == merge(policy, nodes, hint_sets_of(lists))


@given(POLICIES, machines_and_lists())
def test_the_affinity_lies_inside_the_machine_and_only_preferred_hints_pass_strict_policies(policy, drawn):
    all_nodes, lists = drawn
    result = merge(policy, NodeMask(all_nodes), hint_sets_of(lists))
    assert result.affinity is None or (result.affinity and result.affinity <= NodeMask(all_nodes))
    strict = policy in {TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE}
    assert admits(policy, result) == (result.preferred or not strict)


@given(machines_and_lists())
def test_counting_supersets_finds_the_same_intersections_as_folding(drawn):
    from nri_plugin.policy import merge as intersections

    all_nodes, lists = drawn
    hint_sets = [hint_set for provider in hint_sets_of(lists) for hint_set in provider]
    folded = possible_intersections(all_nodes, hint_sets)
    choices = [intersections._choices(all_nodes, hint_set) for hint_set in hint_sets]
    assert intersections._by_counting(all_nodes, choices) == folded


@given(
    POLICIES,
    st.lists(hint_sets_in_both_forms(), min_size=1, max_size=4),
    DISTANCES,
    tie_breaks().filter(bool),
)
def test_a_wished_node_changes_neither_admission_nor_width_nor_distance(policy, drawn, rows, tie_break):
    """Wished for or not, whoever is admitted is admitted, on as many nodes, as near to each other."""
    distances = Distances(rows) if rows else None
    nodes, lists = NodeMask(ALL_NODES), [(short,) for short, _ in drawn]
    wished, plain = (
        merge(policy, nodes, lists, distances=distances, tie_break=rule)
        for rule in (tie_break, replace(tie_break, wished=0))
    )
    assert (wished.preferred, wished.affinity is None) == (plain.preferred, plain.affinity is None)
    if wished.affinity is not None and plain.affinity is not None:
        assert len(wished.affinity) == len(plain.affinity)
        if distances and policy is not TopologyManagerPolicy.SINGLE_NUMA_NODE:
            assert distances.total(wished.affinity.mask) == distances.total(plain.affinity.mask)


@given(
    POLICIES, st.lists(hint_sets_in_both_forms(), min_size=1, max_size=4), DISTANCES, st.none() | tie_breaks()
)
def test_a_rule_merges_like_the_list_of_its_members(policy, drawn, rows, tie_break):
    result = merge(
        policy,
        NodeMask(ALL_NODES),
        [(hint_set,) for hint_set, _ in drawn],
        distances=rows and Distances(rows),
        tie_break=tie_break,
    )
    best = merged(policy.value, ALL_NODES, [long for _, long in drawn], rows, rank_of(tie_break))
    assert result.exact
    assert as_pair(result) == best


@given(
    POLICIES, st.lists(hint_sets_in_both_forms(), min_size=1, max_size=4), DISTANCES, st.none() | tie_breaks()
)
def test_lists_merge_by_distance_and_tie_break_like_the_best_of_all_combinations(
    policy, drawn, rows, tie_break
):
    lists = [long for _, long in drawn]
    result = merge(
        policy,
        NodeMask(ALL_NODES),
        hint_sets_of(lists),
        distances=rows and Distances(rows),
        tie_break=tie_break,
    )
    assert as_pair(result) == merged(policy.value, ALL_NODES, lists, rows, rank_of(tie_break))


@given(
    st.lists(hint_sets_in_both_forms(), min_size=1, max_size=3),
    DISTANCES,
    st.none() | tie_breaks(),
    st.integers(0, 60),
)
def test_past_the_budget_a_hint_is_possible_and_says_that_it_is_not_exact(drawn, rows, tie_break, steps):
    lists = [long for _, long in drawn]
    arguments = TopologyManagerPolicy.BEST_EFFORT, NodeMask(ALL_NODES), [(hint_set,) for hint_set, _ in drawn]
    options = {"distances": rows and Distances(rows), "tie_break": tie_break}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "STEP_BUDGET", steps)
        result = merge(*arguments, **options)
    if result.exact:
        assert result == merge(*arguments, **options)
    elif not result.preferred:
        hint_sets = [HintSet("r", tuple(Hint(*hint) for hint in hints)) for hints in lists]
        possible = possible_intersections(ALL_NODES, hint_sets)
        assert result.affinity.mask in (possible or {ALL_NODES})
    else:
        assert all(not hints or (result.affinity.mask, True) in hints for hints in lists)
