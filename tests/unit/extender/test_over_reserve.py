"""The scheduler plugin's cache, beside its recorded traces."""

from nri_plugin.extender.over_reserve import OverReserve, ResyncMethod, ResyncScope, agrees, is_foreign
from nri_plugin.kube.noderesourcetopology import fingerprint
from tests.kube_builders import container, pod, topology

ZONES = {0: {"cpu": "8"}, 1: {"cpu": "4"}}
POD = pod(container(cpu="3", memory="1Gi"), node="n")
AGREED = topology("n", ZONES, nodeTopologyPodsFingerprint=fingerprint([("ns", "p")]))


def available(cache):
    return [zone.available["cpu"] for zone in cache.zones()]


def test_a_reserved_pod_is_charged_to_every_zone_until_it_is_unreserved():
    cache = OverReserve(topology("n", ZONES)).reserved(POD)
    assert available(cache) == [5000, 1000]
    assert available(cache.unreserved(("ns", "p"))) == [8000, 4000]


def test_a_foreign_pod_makes_the_node_stale_until_both_sides_agree():
    cache = OverReserve(topology("n", ZONES)).reserved(POD).met_foreign_pod()
    assert not cache.is_fresh
    assert cache.resynced(AGREED, [], ResyncMethod.ALL) is cache
    after = cache.resynced(AGREED, [POD], ResyncMethod.ALL)
    assert after.is_fresh
    assert available(after) == [8000, 4000]


def test_a_node_that_nobody_refused_is_not_looked_at_again():
    cache = OverReserve(topology("n", ZONES)).reserved(POD)
    assert cache.resynced(AGREED, [POD], ResyncMethod.ALL) is cache
    assert cache.refused().resynced(AGREED, [POD], ResyncMethod.ALL) == OverReserve(AGREED)


def test_a_changed_policy_is_taken_over_without_agreement_unless_only_resources_are():
    cache, other = OverReserve(topology("n", ZONES)), topology("n", ZONES, policy="restricted")
    assert cache.observed(other, ResyncScope.ALL).resynced(other, [], ResyncMethod.ALL).cached == other
    assert not cache.observed(other, ResyncScope.ONLY_RESOURCES).is_changed


def test_which_pods_the_fingerprint_means_is_told_by_the_object_or_chosen():
    shared = pod(container(cpu="1", limits=False), name="q")
    both = [POD, shared]
    told = topology(
        "n",
        ZONES,
        nodeTopologyPodsFingerprint=fingerprint([("ns", "p")]),
        nodeTopologyPodsFingerprintMethod="with-exclusive-resources",
    )
    assert agrees(told, both, ResyncMethod.AUTODETECT)
    assert not agrees(AGREED, both, ResyncMethod.AUTODETECT)
    assert agrees(AGREED, both, ResyncMethod.ONLY_EXCLUSIVE)


def test_a_pod_is_foreign_when_another_scheduler_put_it_there():
    assert is_foreign(POD, ["mine"], ["cpu"], only_exclusive=True)
    assert not is_foreign(pod(container(cpu="1"), node="n"), ["mine"], [], only_exclusive=True)
    assert not is_foreign(
        pod(container(), node="n", schedulerName="mine"), ["mine"], [], only_exclusive=False
    )
    assert not is_foreign(pod(container()), ["mine"], [], only_exclusive=False)


def test_an_empty_node_agrees_with_nobody():
    assert not agrees(topology("n", ZONES, nodeTopologyPodsFingerprint=fingerprint([])), [], ResyncMethod.ALL)
