"""A pod that runs is never admitted anew: what was not in force at its admission refuses and moves nothing of it."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Allocation, Amounts, ContainerFacts, Kind, Regime
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, container, cpus, node, pod
from tests.whole_pods import PodLife, part, pod_scope, whole

NO_CLAIM = replace(part("db", 2), amounts=Amounts(2000, 2000, GIB, 2 * GIB))
"""Whole CPUs, and less memory requested than its limit: it owns nothing of its pod."""

SHARING = part("mesh", 0.5, Kind.SIDECAR), part("app", 4), part("log", 0.5)


def filled(on: Node) -> State:
    """A node on which another container holds all but 4 CPUs."""
    other = pod("other")
    return decide(on, State(), nri.CreateContainer(other, container(other, cpu=10))).state


def turned(life: PodLife, **options: object) -> None:
    """The agent starts with other options."""
    life.on = pod_scope(**options)
    running = [
        replace(one, resources=replace(one.resources, cpus=str(record.stored_cpus)))
        for record in life.state.containers.values()
        if record.pod_uid == life.of.uid
        for one in (life.message(record.name),)
    ]
    others = [one for one in life.state.containers.values() if one.pod_uid != life.of.uid]
    pods = [life.of, *(pod(one.pod_uid) for one in others)]
    beside = [container(pod(one.pod_uid), one.name, cpu=10, cpus=str(one.stored_cpus)) for one in others]
    life.tell(nri.Synchronize(tuple(pods), (*running, *beside)))


def test_containers_that_were_placed_before_the_facts_came_keep_what_they_have() -> None:
    life = PodLife(pod_scope(), *SHARING, NO_CLAIM, resources=whole(8))
    life.is_informed = False
    life.run("mesh", "app", "log", "db")
    before = {"app": "8-11", "db": "12-13"}
    assert {name: text for name, text in life.held.items() if text} == before
    life.is_informed = True
    life.restart("app", "db", "log", "mesh")
    assert {name: text for name, text in life.held.items() if text} == before
    assert life.state.pods["p1"].regime is Regime.EACH


OWN = {"app": "2-3"}


def sharing_pod(first: str = "app") -> PodLife:
    """A pod of 4 CPUs with a container of 2 and one without limits, which the runtime reports with those of the pod.

    The facts come after the first container.
    """
    rest = ContainerFacts("rest", Kind.APP, Amounts())
    life = PodLife(pod_scope(), part("app", 2), rest, resources=whole(4))
    life.is_informed = False
    life.run(first)
    life.is_informed = True
    return life


def test_a_container_without_limits_owns_nothing_where_the_facts_came_after_the_first_one() -> None:
    life = sharing_pod()
    life.run("rest", "debugger")
    assert {name: text for name, text in life.held.items() if text} == {"app": "2-3"}
    life.restart("rest", "app")
    assert {name: text for name, text in life.held.items() if text} == {"app": "2-3"}


@pytest.mark.parametrize("order", [("db", "app"), ("app", "db")])
def test_so_it_is_whichever_container_is_created_next(order: tuple[str, str]) -> None:
    on = pod_scope(topology_manager_scope=TopologyManagerScope.CONTAINER)
    life = PodLife(on, part("first", 2), NO_CLAIM, part("app", 2), resources=whole(8))
    life.is_informed = False
    life.run("first")
    life.is_informed = True
    life.run(*order)
    assert life.held == {"first": "2-3", "app": "4-5"}


def test_such_a_container_stays_shared_when_the_limits_of_its_pod_grow() -> None:
    life = sharing_pod()
    life.run("rest")
    assert life.resize("rest", 5, 8 * GIB).refusal is None
    assert {name: text for name, text in life.held.items() if text} == {"app": "2-3"}


def test_one_that_was_given_cpus_before_the_facts_came_keeps_them() -> None:
    life = sharing_pod(first="rest")
    life.run("app")
    before = life.held
    assert len(cpus(before["rest"])) == 4, "without facts it looks like a container that asks for them"
    life.restart("rest", "app")
    assert life.held == before


def test_without_facts_it_owns_nothing_either_beside_one_that_holds_a_part_of_the_total() -> None:
    life = sharing_pod()
    life.is_informed = False
    life.run("rest")
    assert life.held == OWN
    # Both have ended: what the other one holds is not for it.
    for name in ("app", "rest"):
        life.tell(nri.StopContainer(life.of, life.message(name)))
    life.run("rest", "app")
    assert life.held == OWN


def test_the_pod_holds_no_more_than_its_total_whichever_container_comes_first() -> None:
    life = sharing_pod(first="rest")
    life.is_informed = False
    before = life.held
    life.run("app")
    assert life.held == before
    life.restart("app", "rest")
    assert life.held == before


def test_memory_alone_tells_that_a_container_has_no_limits_of_its_own() -> None:
    """It asks for one CPU, which would fit, and has the memory limit of its pod, which would not."""
    amounts = Amounts(1000, 1000, 0, 0)
    life = PodLife(
        pod_scope(),
        part("app", 2, memory=4 * GIB),
        ContainerFacts("rest", Kind.APP, amounts),
        resources=whole(4),
    )
    life.is_informed = False
    life.run("app", "rest")
    assert life.held == OWN


def test_containers_that_have_ended_are_not_part_of_the_sum() -> None:
    life = PodLife(pod_scope(), part("setup", 4, Kind.INIT), part("app", 4), resources=whole(4, 2 * GIB))
    life.is_informed = False
    life.run("setup")
    life.tell(nri.StopContainer(life.of, life.message("setup")))
    life.run("app")
    assert len(cpus(life.held["app"])) == 4


def test_containers_within_the_total_get_what_they_ask_for() -> None:
    life = PodLife(pod_scope(), part("app", 2), part("log", 0.5), part("db", 2), resources=whole(4.5))
    life.is_informed = False
    life.run("app", "log", "db")
    assert {name: len(cpus(text)) for name, text in life.held.items() if text} == {"app": 2, "db": 2}


def test_such_a_container_is_found_running_and_owns_nothing() -> None:
    life = sharing_pod()
    life.is_informed = False
    life.run("rest")
    held, shared = life.held["app"], life.runs_on("rest")
    life.state = State()
    listed = [
        replace(life.message(name), resources=replace(life.message(name).resources, cpus=own))
        for name, own in (("rest", shared), ("app", held))
    ]
    life.tell(nri.Synchronize((life.of,), tuple(listed)))
    assert life.held == OWN
    assert life.runs_on("rest") == shared


def test_a_pod_that_shares_the_pool_of_its_node_is_not_refused_when_the_facts_come() -> None:
    on = pod_scope(
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        memory_manager_policy=MemoryManagerPolicy.NONE,
    )
    life = PodLife(on, part("mesh", 0.5), part("log", 0.5), resources=whole(6), state=filled(on))
    life.is_informed = False
    life.run("mesh", "log")
    life.is_informed = True
    life.restart("log", "mesh")
    assert "" not in life.held


def test_a_container_that_runs_is_not_refused_because_another_one_of_its_pod_does_not_fit() -> None:
    life = PodLife(node(), part("app", 2), part("log", 0.5), part("large", 20), resources=None)
    life.is_informed = False
    life.run("app", "log")
    life.is_informed = True
    life.restart("app", "log")
    assert {name: text for name, text in life.held.items() if text} == {"app": "2-3"}
    refusal = life.create("large").refusal
    assert refusal is not None
    assert refusal.container == "large"


def test_so_it_is_where_the_runtime_has_removed_the_ended_instance() -> None:
    life = PodLife(node(), part("app", 2), part("log", 0.5), part("large", 20), resources=None)
    life.is_informed = False
    life.run("app")
    life.is_informed = True
    life.tell(nri.StopContainer(life.of, life.message("app")))
    life.tell(nri.RemoveContainer(life.of, life.message("app")))
    life.run("app")
    assert life.held == {"app": "2-3"}


def test_an_ephemeral_container_is_not_refused_because_a_container_of_its_pod_does_not_fit() -> None:
    life = PodLife(node(), part("app", 2), part("large", 20), resources=None)
    life.is_informed = False
    life.run("app")
    life.is_informed = True
    assert life.create("large").refusal is not None
    life.run("debugger")
    assert life.held == {"app": "2-3"}
    assert life.runs_on("debugger") == "0-1,4-15"


@pytest.mark.parametrize("policy", [TopologyManagerPolicy.BEST_EFFORT, TopologyManagerPolicy.RESTRICTED])
def test_the_gate_takes_effect_for_new_pods_alone(policy: TopologyManagerPolicy) -> None:
    on = pod_scope(pod_level_managers=False, topology_manager_policy=policy)
    life = PodLife(on, part("app", 4), resources=whole(6), state=filled(on))
    life.run("app")
    assert life.held == {}
    turned(life, topology_manager_policy=policy)
    life.restart("app")
    assert (life.held, life.state.pods["p1"].regime) == ({}, Regime.OFF)
    life.tell(nri.StopPodSandbox(life.of))
    assert life.state.pods["p1"].regime is None
    assert life.create("app").refusal is not None, "it is a new pod by now, and asks for 6 of 4 CPUs"


def test_the_gate_is_switched_off_and_the_facts_come_late() -> None:
    life = PodLife(pod_scope(), part("app", 4), resources=whole(6))
    life.is_informed = False
    life.run("app")
    assert life.held == {"app": "2-5"}
    turned(life, pod_level_managers=False)
    life.is_informed = True
    life.restart("app")
    assert life.held == {"app": "2-5"}


@pytest.mark.parametrize(
    "options",
    [
        {"pod_level_managers": False},
        {"topology_manager_scope": TopologyManagerScope.CONTAINER},
        {"topology_manager_policy": TopologyManagerPolicy.NONE},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("cpu", [6, 5.5])
def test_a_pod_that_was_admitted_as_a_whole_stays_so(cpu: float, options: dict[str, object]) -> None:
    life = PodLife(pod_scope(memory_manager_policy=MemoryManagerPolicy.NONE), *SHARING, resources=whole(cpu))
    life.run("mesh", "app", "log")
    before = life.held
    turned(life, **options, memory_manager_policy=MemoryManagerPolicy.NONE)
    life.restart("mesh", "app", "log")
    assert life.held == before
    assert bool(before) == (cpu == 6), "a pod of a fraction of a CPU holds nothing"


def test_containers_of_an_admitted_pod_that_share_are_not_refused_under_a_new_policy() -> None:
    on = pod_scope(cpu_manager_policy=CPUManagerPolicy.NONE)
    life = PodLife(on, part("app", 2), part("db", 8), resources=None, state=filled(pod_scope()))
    life.run("app")
    assert {name: text for name, text in life.held.items() if text} == {}
    turned(life)
    life.run("db")
    life.restart("app")
    assert {name: text for name, text in life.held.items() if text} == {}


@pytest.mark.parametrize("rule", [SMTOddCounts.REJECT, SMTOddCounts.ROUND_UP])
def test_containers_of_an_admitted_pod_keep_an_odd_number_of_cpus_under_another_rule(
    rule: SMTOddCounts,
) -> None:
    life = PodLife(pod_scope(), part("app", 3), part("db", 1), resources=None)
    life.run("app")
    before = life.held
    turned(life, smt_odd_counts=rule)
    life.run("db")
    life.restart("app")
    assert life.held == before
    assert [len(cpus(text)) for text in before.values()] == [3, 1]


@pytest.mark.parametrize("gate", [True, False])
def test_the_containers_of_a_pod_with_empty_resources_decide_where_its_class_is_guaranteed(
    gate: bool,
) -> None:
    """Kubernetes 1.37 makes such a pod Guaranteed; up to 1.36 it is BestEffort."""
    life = PodLife(pod_scope(pod_level_managers=gate), part("app", 2), part("log", 0.5), resources=Amounts())
    life.run("app", "log")
    assert life.held["app"] == "2-3"


def test_a_pod_that_was_admitted_under_container_scope_is_not_given_cpus_as_a_whole() -> None:
    scope = {"topology_manager_scope": TopologyManagerScope.CONTAINER}
    life = PodLife(pod_scope(**scope), *SHARING, resources=whole(6))
    life.run("mesh", "app", "log")
    before = life.held
    turned(life)
    life.restart("mesh", "app", "log")
    assert life.held == before
    assert "" not in before


def test_a_pod_that_runs_although_it_was_refused_goes_container_by_container() -> None:
    on = pod_scope(never_refuse=frozenset({"default"}))
    life = PodLife(on, part("app", 4), part("log", 0.5), resources=whole(6), state=filled(on))
    overruled = life.create("log").overruled
    assert overruled is not None
    assert life.state.pods["p1"].regime is Regime.CLAIMS
    life.run("app")
    assert life.held == {"app": "4-7"}


def test_a_pod_whose_first_creation_was_not_seen_is_not_admitted_when_the_second_is() -> None:
    life = PodLife(pod_scope(), part("app", 4), part("log", 0.5), resources=whole(6))
    running = life.message("app")
    life.tell(
        nri.StartContainer(life.of, replace(running, resources=replace(running.resources, cpus="8-11")))
    )
    assert life.state.pods["p1"].regime is Regime.FOUND
    life.run("log")
    assert life.runs_on("app") == "8-11"


def forgetting(life: PodLife) -> None:
    """The checkpoint is that of a release that did not write down by which rules a pod was admitted."""
    of = life.state.pods["p1"]
    life.state = life.state.with_pod(replace(of, regime=None))


@pytest.mark.parametrize(
    ("first", "regime"),
    [
        ({}, Regime.WHOLE),
        ({"pod_level_managers": False}, Regime.WHOLE),
        ({"topology_manager_scope": TopologyManagerScope.CONTAINER}, Regime.WHOLE),
    ],
    ids=["pod scope", "gate off", "container scope"],
)
def test_a_pod_of_an_earlier_release_that_was_admitted_as_a_whole_is_left_as_it_is(
    first: dict[str, object], regime: Regime
) -> None:
    life = PodLife(pod_scope(**first), *SHARING, resources=whole(6))
    life.run("mesh", "app", "log")
    before = life.held
    forgetting(life)
    turned(life)
    assert (life.held, life.state.pods["p1"].regime) == (before, regime)
    life.restart("log", "mesh", "app")
    assert life.held == before


def test_a_pod_of_an_earlier_release_that_was_placed_container_by_container_stays_so() -> None:
    life = PodLife(pod_scope(), part("app", 4), resources=whole(6))
    life.is_informed = False
    life.run("app")
    life.state = life.state.with_pod(replace(life.state.pods["p1"], facts=life.facts, regime=None))
    turned(life)
    assert life.state.pods["p1"].regime is Regime.EACH
    life.is_informed = True
    life.restart("app")
    assert life.held == {"app": "2-5"}


def test_a_pod_that_has_no_container_yet_has_no_rules() -> None:
    on = node()
    state = decide(on, State(), nri.Synchronize((pod("new"), pod("held")), ())).state
    assert state.pods["new"].regime is None
    state = State(state.pods, {}, {"held/c": Allocation(cpus("2"))})
    state = decide(on, state, nri.Synchronize((pod("new"), pod("held")), ())).state
    assert (state.pods["new"].regime, state.pods["held"].regime) == (None, Regime.EACH)
