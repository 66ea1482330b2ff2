"""All nodes at once are answered as each alone, and the search as trying all sets."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from nri_plugin.extender.answers import ranks
from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import DistanceBonus, Scoring, Strategy
from nri_plugin.extender.nodes import closest_set, least_total
from tests.kube_builders import node_row
from tests.oracles import least_numa
from tests.oracles.one_node import refusal, score
from tests.property.kube_clusters import pods, topologies

SCORINGS = st.builds(
    Scoring,
    st.sampled_from(Strategy),
    st.dictionaries(st.sampled_from(("cpu", "memory")), st.integers(0, 5), max_size=2),
    st.sampled_from(DistanceBonus),
)


def named(code, asked):
    if code == 0:
        return None
    return "pod" if code < 0 else asked.containers[code - 1].kind.value


def cluster_of(nodes, scoring, *, sidecars_stay):
    cluster = ClusterAnswers(scoring, sidecars_stay=sidecars_stay)
    for number, one in enumerate(nodes):
        if one is not None:
            cluster.put(str(number), *node_row(one))
    return cluster, [str(number) for number in range(len(nodes))]


@given(st.lists(st.none() | topologies(), max_size=6), pods(), st.booleans())
@settings(max_examples=120)
def test_the_filter_of_a_cluster_is_the_filter_of_each_node(nodes, asked, sidecars_stay):
    cluster, names = cluster_of(nodes, Scoring(), sidecars_stay=sidecars_stay)
    found = [refusal(asked, one, sidecars_stay=sidecars_stay) for one in nodes]
    codes = cluster.codes(names, asked).tolist()
    assert [named(code, asked) for code in codes] == [one and one.what for one in found]


@given(st.lists(st.none() | topologies(), max_size=6), pods(), SCORINGS)
@settings(max_examples=150)
def test_the_scores_of_a_cluster_are_the_scores_of_each_node(nodes, asked, scoring):
    cluster, names = cluster_of(nodes, scoring, sidecars_stay=True)
    assert cluster.scores(names, asked).tolist() == [score(asked, one, scoring) for one in nodes]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.none() | topologies()), max_size=12),
    st.lists(pods(), min_size=1, max_size=2),
    SCORINGS,
)
def test_answers_that_are_kept_are_those_of_asking_again(changes, asked, scoring):
    names = [str(number) for number in range(5)]
    kept = ClusterAnswers(scoring)
    now = {}
    for number, one in changes:
        now[str(number)] = one
        if one is None:
            kept.forget(str(number))
        else:
            kept.put(str(number), *node_row(one))
        for pod in asked:
            found = [refusal(pod, now.get(name), sidecars_stay=True) for name in names]
            assert [code == 0 for code in kept.codes(names, pod)] == [one is None for one in found]
            assert kept.scores(names, pod).tolist() == [score(pod, now.get(name), scoring) for name in names]


@st.composite
def searches(draw):
    size = draw(st.integers(1, 8))
    costs = tuple(tuple(draw(st.integers(10, 16)) for _ in range(size)) for _ in range(size))
    eligible = sorted(draw(st.sets(st.integers(0, size - 1))))
    needs = [
        (draw(st.integers(1, 20)), [draw(st.integers(0, 6)) for _ in range(size)])
        for _ in range(draw(st.integers(0, 2)))
    ]
    return eligible, needs, costs


@given(searches())
@settings(max_examples=120)
def test_the_search_finds_what_trying_all_sets_finds(asked):
    found, wanted = closest_set(*asked), least_numa.closest_set(*asked)
    assert (found and (found.positions, found.total)) == wanted
    for size in range(1, len(asked[2]) + 1):
        assert least_total(asked[2], size) == least_numa.least_total(asked[2], size)


@given(st.lists(st.integers(0, 100)))
@example(list(range(30)))
def test_ranks_keep_the_order_and_stay_in_the_range(scores):
    found = ranks(scores)
    assert all(0 <= rank <= 10 for rank in found)
    for (one, a), (other, b) in zip(
        zip(scores, found, strict=True), zip(scores, found, strict=True), strict=True
    ):
        assert one != other or a == b
    ordered = sorted(zip(scores, found, strict=True))
    assert [rank for _, rank in ordered] == sorted(found)
    assert not scores or max(found) == 10
