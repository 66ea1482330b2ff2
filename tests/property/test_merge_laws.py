"""Laws of merging hints, and agreement with trying every combination."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.nodemask import NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy.hints import Family, Hint, Need, Wish
from nri_plugin.policy.intersections import possible_intersections
from nri_plugin.policy.merge import admits, merge
from tests.oracles.merge import merged

POLICIES = st.sampled_from(list(TopologyManagerPolicy))


def hint_lists(all_nodes):
    masks = st.integers(1, all_nodes).map(lambda mask: mask & all_nodes).filter(bool)
    hint = st.tuples(st.one_of(masks, masks, masks, st.none()), st.booleans())
    return st.one_of(st.none(), st.just([]), st.lists(hint, max_size=6))


@st.composite
def machines_and_lists(draw):
    """(all nodes, up to three wishes): node ids may have holes."""
    all_nodes = draw(st.sampled_from([0b1, 0b11, 0b1111, 0b110011, 0b10101]))
    return all_nodes, draw(st.lists(hint_lists(all_nodes), max_size=3))


def wishes_of(lists):
    return [(Wish("r", None if hints is None else tuple(Hint(*hint) for hint in hints)),) for hints in lists]


def as_pair(result):
    return None if result.affinity is None else result.affinity.mask, result.preferred


@given(POLICIES, machines_and_lists())
def test_the_merge_is_the_best_of_all_combinations(policy, drawn):
    all_nodes, lists = drawn
    assert as_pair(merge(policy, NodeMask(all_nodes), wishes_of(lists))) == merged(
        policy.value, all_nodes, lists
    )


@given(POLICIES, machines_and_lists(), st.randoms(use_true_random=False))
def test_the_order_of_providers_does_not_matter(policy, drawn, random):
    all_nodes, lists = drawn
    before = merge(policy, NodeMask(all_nodes), wishes_of(lists))
    random.shuffle(lists)
    assert merge(policy, NodeMask(all_nodes), wishes_of(lists)) == before


@given(POLICIES, machines_and_lists())
def test_a_provider_that_does_not_care_changes_nothing(policy, drawn):
    all_nodes, lists = drawn
    nodes = NodeMask(all_nodes)
    assert merge(policy, nodes, [*wishes_of(lists), None, ()]) == merge(policy, nodes, wishes_of(lists))


@given(POLICIES, machines_and_lists())
def test_the_affinity_lies_inside_the_machine_and_only_preferred_hints_pass_strict_policies(policy, drawn):
    all_nodes, lists = drawn
    result = merge(policy, NodeMask(all_nodes), wishes_of(lists))
    assert result.affinity is None or (result.affinity and result.affinity <= NodeMask(all_nodes))
    strict = policy in {TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE}
    assert admits(policy, result) == (result.preferred or not strict)


@given(machines_and_lists())
def test_counting_supersets_finds_the_same_intersections_as_folding(drawn):
    from nri_plugin.policy import intersections

    all_nodes, lists = drawn
    wishes = [wish for provider in wishes_of(lists) for wish in provider]
    folded = possible_intersections(all_nodes, wishes)
    choices = [intersections._choices(all_nodes, wish) for wish in wishes]
    assert intersections._by_counting(all_nodes, choices) == folded


@st.composite
def families(draw, nodes=(0, 1, 2, 4, 5)):
    """A family over a machine small enough to list, and that list."""
    usable = draw(st.sets(st.sampled_from(nodes), min_size=1))
    required = draw(st.one_of(st.just(set()), st.sets(st.sampled_from(sorted(usable)), max_size=2)))
    needs = tuple(
        Need(draw(st.integers(0, 12)), {node: draw(st.integers(0, 5)) for node in usable})
        for _ in range(draw(st.integers(1, 2)))
    )
    family = Family(
        sum(1 << node for node in usable),
        sum(1 << node for node in required),
        needs,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
    )
    return family if family.nodes in family else None


ALL_NODES = 0b110111


@st.composite
def wishes_in_both_forms(draw):
    """A wish with a family beside listed hints, and the same wish with everything listed."""
    family = draw(families())
    listed = draw(
        st.lists(
            st.tuples(st.integers(1, ALL_NODES).map(lambda m: m & ALL_NODES).filter(bool), st.booleans()),
            max_size=2,
        )
    )
    members = [mask for mask in range(1, 64) if family is not None and mask in family]
    long = listed + [(mask, mask.bit_count() == family.preferred_size) for mask in members]
    return Wish("r", tuple(Hint(*hint) for hint in listed), family), long


@given(st.sampled_from(list(TopologyManagerPolicy)), st.lists(wishes_in_both_forms(), min_size=1, max_size=3))
def test_a_family_merges_like_the_list_of_its_members(policy, drawn):
    wishes = [(wish,) for wish, _ in drawn]
    lists = [long for _, long in drawn]
    assert as_pair(merge(policy, NodeMask(ALL_NODES), wishes)) == merged(policy.value, ALL_NODES, lists)
