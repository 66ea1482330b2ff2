"""Two threads create 200 pods container by container: no pod whose facts are known is ever half admitted.

Facts come late, between two creations too, get lost and are repeated. The agent is killed and comes back with its checkpoint and Synchronize; the
exporter is killed, and no facts come for a while. A third law is for agents that come back without their checkpoint. The seeds are fixed; `tests/interleaved_pods.py` plays.
"""

from random import Random

import pytest

from nri_plugin.model.options import MemoryManagerPolicy
from nri_plugin.model.records import Regime
from tests.interleaved_pods import Fate, ForgetfulKubelet, Kubelet, drawn_node, drawn_pods, in_turn

PODS = 200
FORGOTTEN_PODS = 80
NAMESPACE = "default"
"""Of every pod."""


@pytest.mark.parametrize("seed", range(5))
def test_no_pod_whose_facts_were_known_is_ever_half_admitted(seed: int) -> None:
    rng = Random(seed)
    on, pods = drawn_node(rng), drawn_pods(rng, PODS)
    fates = {one.uid: rng.choice(list(Fate)) for one in pods}
    kubelet = Kubelet(rng, on, pods, fates)
    tale = kubelet.live()
    assert tale.wrong == []
    assert len(tale.refused) >= PODS // 3
    assert tale.restarts
    assert tale.away
    assert len(tale.admitted & tale.informed) >= PODS // 20
    assert tale.admitted - tale.informed
    assert tale.completed
    assert len(tale.informed - tale.admitted) >= PODS // 20
    for uid in list(kubelet.sandboxes):
        kubelet.end(uid)
    assert kubelet.state.allocations == {}


@pytest.mark.parametrize("seed", range(3))
def test_where_all_facts_are_known_in_time_the_end_is_that_of_whole_pods_in_turn(seed: int) -> None:
    rng = Random(seed)
    on = drawn_node(rng)
    # An init container keeps its memory until the next one starts. Pods in turn start at once, so none has any here.
    inits = on.options.memory_manager_policy is MemoryManagerPolicy.NONE
    pods = drawn_pods(rng, PODS, inits=inits)
    fates = {one.uid: rng.choice([Fate.IN_TIME, Fate.REPEATED]) for one in pods}
    kubelet = Kubelet(rng, on, pods, fates)
    kubelet.exporter_dies = False
    tale = kubelet.live()
    assert tale.wrong == []
    assert len(tale.refused) >= PODS // 3
    assert tale.informed == {one.uid for one in pods}
    assert in_turn(on, pods, tale.order).allocations == kubelet.state.allocations


@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_is_refused_the_runtime_knows_every_memory_node_that_is_allocated(seed: int) -> None:
    """A pod that does not fit runs in the shared pool; room may appear before its later containers are created."""
    rng = Random(seed)
    on = drawn_node(
        rng, memory_manager_policy=MemoryManagerPolicy.STATIC, never_refuse=frozenset({NAMESPACE})
    )
    pods = drawn_pods(rng, PODS)
    fates = {one.uid: rng.choice(list(Fate)) for one in pods}
    kubelet = Kubelet(rng, on, pods, fates)
    tale = kubelet.live()
    assert tale.wrong == []
    assert not tale.refused
    assert {one.regime for one in kubelet.state.pods.values()} >= {Regime.CLAIMS, Regime.EACH}
    for uid in list(kubelet.sandboxes):
        kubelet.end(uid)
    assert kubelet.state.allocations == {}


@pytest.mark.parametrize(("seed", "tells_totals"), [(4, False), (7, True), (8, True)])
def test_without_a_checkpoint_a_pod_has_all_that_it_is_owed_or_is_shown_as_incomplete(
    seed: int, tells_totals: bool
) -> None:
    """Each new agent knows what the runtime lists and what the exporter tells: nobody who runs is moved meanwhile."""
    rng = Random(seed)
    on, pods = drawn_node(rng), drawn_pods(rng, FORGOTTEN_PODS)
    kubelet = ForgetfulKubelet(rng, on, pods, {one.uid: rng.choice(list(Fate)) for one in pods})
    kubelet.tells_totals = tells_totals
    tale = kubelet.live()
    kubelet.judge_whole_or_shown()
    assert tale.wrong == []
    assert kubelet.losses
    assert tale.completed
    assert len(tale.refused) >= FORGOTTEN_PODS // 3
    for uid in list(kubelet.sandboxes):
        kubelet.end(uid)
    assert kubelet.state.allocations == {}
