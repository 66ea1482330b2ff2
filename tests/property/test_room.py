"""The room of a node, counted from a checkpoint of it, equals what is placed on the node itself pod by pod."""

import random
from dataclasses import replace

import pytest

from nri_plugin.checkpoint.format import Encoder, decode
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.source import SourcedMachine, machine_from
from nri_plugin.simulator.simulate.config import Chosen, choose
from nri_plugin.simulator.simulate.node import PlayedNode
from nri_plugin.simulator.simulate.plan import PodPlan
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec
from nri_plugin.simulator.simulate.room import TrialBudget, freed_by, more_that_fit, standing_node
from nri_plugin.simulator.simulate.simulate import empty_node

MIB = 1 << 20
STATES = 1000
BLOCKS = 20
MACHINES = (
    "pack:1 numa:1(memory=4GiB) l3:2 core:3 pu:2(indexes=core)",
    "pack:2 numa:1(memory=2GiB) l3:2 core:2 pu:2(indexes=core)",
    "pack:2 numa:2(memory=2GiB) l3:1 core:4 pu:1",
    "pack:4 numa:1(memory=1GiB) l3:1 core:4 pu:2(indexes=core)",
)
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
OPTIONS = (
    "{}",
    "{full-pcpus-only: 'true'}",
    "{distribute-cpus-across-numa: 'true'}",
    "{prefer-align-cpus-by-uncorecache: 'true'}",
    "{strict-cpu-reservation: 'true'}",
)


def chosen(chance: random.Random, machine: SourcedMachine) -> Chosen:
    sets = {
        "topologyManagerPolicy": chance.choice(POLICIES),
        "topologyManagerScope": chance.choice(("container", "pod")),
        "memoryManagerPolicy": chance.choice(("None", "Static")),
        "cpuManagerPolicyOptions": chance.choice(OPTIONS),
    }
    return choose(machine.topology, sets=sets)


def container(chance: random.Random, name: str, *, guaranteed: bool) -> ContainerSpec:
    """A container; of a pod that is not Guaranteed, only the pod's object would tell a request of memory."""
    if not guaranteed:
        return ContainerSpec(name, cpu_request_milli=chance.randint(1, 20) * 100)
    milli = chance.choice((1000, 2000, 3000, 4000, 6000, 500, 1500))
    size = chance.randint(1, 700) * MIB
    return ContainerSpec(name, milli, milli, size, size)


def pod(chance: random.Random, name: str) -> PodSpec:
    guaranteed = chance.random() < 0.7
    inits = tuple(
        replace(container(chance, f"i{number}", guaranteed=guaranteed), is_sidecar=chance.random() < 0.5)
        for number in range(chance.choice((0, 0, 0, 1)))
    )
    apps = tuple(
        container(chance, f"c{number}", guaranteed=guaranteed) for number in range(chance.choice((1, 1, 2)))
    )
    return PodSpec(name, containers=apps, init_containers=inits)


def lived_in(chance: random.Random) -> tuple[PlayedNode, PodSpec, bool]:
    """A node after some pods came, some of which have ended; a shape; whether the exporter knows pods."""
    has_objects = chance.random() < 0.5
    machine = machine_from(chance.choice(MACHINES).encode(), "x", "x")
    node = empty_node(
        machine,
        PodPlan("x", "x", steps=(), has_objects=has_objects),
        chosen(chance, machine),
        counts=True,
    )
    for number in range(chance.randint(0, 9)):
        one = pod(chance, f"p{number}")
        refused = any(tried.error for tried in node.run(one))
        if refused or chance.random() < 0.3:
            node.remove(one.key)
    return node, pod(chance, "shape"), has_objects


def saved(state: State) -> State:
    return decode(b"".join(Encoder().encode(state, 1))).state


def one_by_one(node: PlayedNode, shape: PodSpec) -> int:
    for count in range(1000):
        if any(tried.error for tried in node.run(replace(shape, name=f"more-{count}"))):
            return count
    raise AssertionError("there is no end of it")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_room_by_a_checkpoint_is_what_is_placed_one_by_one(block: int) -> None:
    for seed in range(block, STATES, BLOCKS):
        chance = random.Random(seed)
        node, shape, knows = lived_in(chance)
        found, why = more_that_fit(standing_node(node.node, saved(node.state), knows_pods=knows), shape)
        assert (why is not None, found) == (True, one_by_one(node, shape)), seed


@pytest.mark.parametrize("seed", range(30))
def test_room_after_the_end_of_a_pod_is_what_is_placed_once_it_has_ended(seed: int) -> None:
    chance = random.Random(seed)
    node, shape, knows = lived_in(chance)
    keys = [spec.key for spec in node.specs()]
    standing = standing_node(node.node, node.state, knows_pods=knows)
    freed = {one.pod: one.fits for one in freed_by(standing, shape, TrialBudget(9999))}
    assert freed.keys() == set(keys)
    if keys:
        ended = chance.choice(keys)
        node.remove(ended)
        assert freed[ended] == one_by_one(node, shape), ended
