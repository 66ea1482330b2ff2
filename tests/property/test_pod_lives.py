"""Recorded lives of a node under other options and in other orders: nobody knows the right answers, but some are wrong.

Whatever is decided, no two containers share a CPU, promised memory fits on its NUMA nodes, a container that was admitted
once is not refused when it starts again, a restart moves nobody, and an empty node holds nothing.
"""

import random
from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.core.hint_providers import memory_state_of
from nri_plugin.model.options import Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.state import State
from tests.oracles.recorded_pods import node_of
from tests.vectors.judges.lives import Life
from tests.vectors.judges.registry import OURS, load
from tests.vectors.judges.verdict import Case, Document

POLICIES = st.sampled_from(list(TopologyManagerPolicy))
SCOPES = st.sampled_from(list(TopologyManagerScope))

MOST_PODS = 15
TOGETHER = 3


@cache
def recorded() -> Document:
    return load(OURS / "kubelet" / "pod_lives.json.gz")


@settings(max_examples=40)
@given(st.data(), POLICIES, SCOPES, st.randoms(use_true_random=False))
def test_lives_are_sound_under_other_options_and_with_pods_in_another_order(
    data: st.DataObject, policy: TopologyManagerPolicy, scope: TopologyManagerScope, rng: random.Random
) -> None:
    case = data.draw(st.sampled_from(recorded()["cases"]))
    on = node_of(case, recorded()["topologies"][case["topology"]])
    options = replace(on.options, topology_manager_policy=policy, topology_manager_scope=scope)
    life = Life(replace(on, options=options), case["devices"])
    for step in shuffled(case["steps"], rng):
        assert play(life, step) == "", step
        assert life.unsound == ""
        assert overcommitted(life.node, life.state) == []
    for uid in list(life.pods):
        life.remove_pod(uid)
    assert life.state == State()


@settings(max_examples=40)
@given(st.data(), POLICIES, SCOPES, st.randoms(use_true_random=False))
def test_pods_that_start_at_the_same_time_get_nothing_twice(
    data: st.DataObject, policy: TopologyManagerPolicy, scope: TopologyManagerScope, rng: random.Random
) -> None:
    """Containers of several pods come in turns, so that others take what an init container has given back."""
    case = data.draw(st.sampled_from([one for one in recorded()["cases"] if "memory_reserved" in one]))
    on = node_of(case, recorded()["topologies"][case["topology"]])
    options = replace(on.options, topology_manager_policy=policy, topology_manager_scope=scope)
    life = Life(replace(on, options=options), case["devices"])
    waiting = [step for step in case["steps"] if step["op"] == "add"][:MOST_PODS]
    coming = {step["pod"]: life.containers_of(step) for step in waiting[:TOGETHER]}
    del waiting[:TOGETHER]
    while coming:
        uid = rng.choice(list(coming))
        if next(coming[uid], None) is None:
            del coming[uid]
            coming |= {step["pod"]: life.containers_of(step) for step in waiting[:1]}
            del waiting[:1]
            there = [uid for uid in life.pods if uid not in coming]
            if len(there) > TOGETHER:
                life.remove_pod(there[0])
        assert life.unsound == ""
        assert overcommitted(life.node, life.state) == []
    assert life.restart() == ""
    for uid in list(life.pods):
        life.remove_pod(uid)
    assert life.state == State()


def shuffled(steps: list[Case], rng: random.Random) -> list[Case]:
    """The steps with the pods' names exchanged, so that other pods come, go and start again at each moment."""
    pods = [step for step in steps if step["op"] == "add"]
    others = rng.sample(pods, len(pods))
    names = dict(zip((step["pod"] for step in pods), others, strict=True))
    return [
        names[step["pod"]] if step["op"] == "add" else {**step, "pod": names[step["pod"]]["pod"]}
        for step in steps
        if "pod" in step
    ]


def play(life: Life, step: Case) -> str:
    """What is wrong after a step that makes sense in this life; one about a container that is not there is passed over."""
    if step["op"] == "add":
        life.add(step)
        return life.restart()
    uid = step["pod"]
    if uid not in life.pods:
        return ""
    if step["op"] == "remove_pod":
        life.remove_pod(uid)
        return ""
    return again(life, uid)


def again(life: Life, uid: str) -> str:
    """A container of the pod that is no ended init container dies, loses its record, and starts again."""
    step = life.pods[uid]
    ended = {one["name"] for one in step.get("init_containers", ()) if not one.get("restartable")}
    key = next(key for key in life.instances if key[0] == uid and key[1] not in ended)
    life.exit(*key)
    life.remove_container(*key)
    return life.restart() or life.start_again(uid, key[1], key[2] + 1)


def overcommitted(node: Node, state: State) -> list[str]:
    """Resources of which more is promised than the NUMA nodes of some promise have in all."""
    memory = memory_state_of(node, state)
    wrong = []
    for name in memory.machine.total:
        blocks = [
            block for one in state.allocations.values() for block in one.memory if block.resource == name
        ]
        if sum(block.size_bytes for block in blocks) > sum(memory.machine.allocatable_of(name).values()):
            wrong.append(name)
        for mask in {block.nodes for block in blocks}:
            inside = sum(block.size_bytes for block in blocks if block.nodes <= mask)
            if inside > sum(memory.machine.allocatable_of(name)[int(number)] for number in mask):
                wrong.append(f"{name} on {mask}")
    return wrong
