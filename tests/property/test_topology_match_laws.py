"""Filter and scores are what the rules of the scheduler plugin, written down a second time, come to."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.extender.cluster_scores import Scoring, Strategy
from nri_plugin.kube.noderesourcetopology import fingerprint, from_object, parse_amount
from nri_plugin.kube.pod_demand import pod_demand
from tests.oracles import topology_match as oracle
from tests.oracles.one_node import refusal, score
from tests.oracles.over_reserve import OverReserve
from tests.property.kube_clusters import NAMES, nrt_objects, pod_objects

ANY_ID = 1 << 20
WEIGHTS = st.dictionaries(st.sampled_from(NAMES), st.integers(-1, 5), max_size=3)


def milli(amounts):
    return {name: oracle.whole(amount * 1000) for name, amount in amounts.items()}


@given(pod_objects())
def test_class_and_demand_of_a_pod(pod):
    ours = pod_demand(pod)
    assert ours.qos == oracle.qos(pod)
    assert ours.effective == milli(oracle.effective(pod))
    assert ours.holds_exclusively(NAMES[:3]) == oracle.exclusive(pod, NAMES[:3])


@given(nrt_objects(), pod_objects(), st.sets(st.sampled_from(NAMES)))
@settings(max_examples=200)
def test_the_filter_refuses_what_the_rules_refuse(nrt, pod, names):
    allocatable = dict.fromkeys(names, 1)
    ours = refusal(pod_demand(pod), from_object(nrt), allocatable)
    assert (ours.what if ours else "pass") == oracle.filtered(pod, nrt, allocatable, ANY_ID)


@given(nrt_objects(), pod_objects(), st.sampled_from(Strategy), WEIGHTS)
@settings(max_examples=300)
def test_every_strategy_scores_by_the_rules(nrt, pod, strategy, weights):
    ours = score(pod_demand(pod), from_object(nrt), Scoring(strategy, weights))
    assert ours == oracle.score(pod, nrt, strategy.value, weights, ANY_ID)


@given(nrt_objects(), st.lists(pod_objects(), max_size=3))
def test_reserved_pods_are_charged_to_every_zone(nrt, pods):
    cache = OverReserve(from_object(nrt))
    for number, pod in enumerate(pods):
        pod["metadata"]["name"] = f"p{number % 2}"
        cache = cache.reserved(pod_demand(pod))
    ours = {f"node-{zone.id}": dict(zone.available) for zone in cache.zones()}
    assert ours == {name: milli(left) for name, left in oracle.over_reserved(nrt, pods, ANY_ID).items()}


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=80)), max_size=8))
def test_fingerprints_are_those_of_the_hash_spelt_out(pods):
    assert fingerprint(pods) == oracle.fingerprint(pods)


@given(st.decimals(0, 10**6, places=2), st.sampled_from([*oracle.SUFFIXES, "e1", "E+2", "e-1"]))
def test_quantities_are_read_alike(number, suffix):
    text = f"{number}{suffix}"
    assert parse_amount(text) == oracle.whole(oracle.quantity(text) * 1000)
