"""Pods with resources of their own that the agent finds running without a record of them."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision
from nri_plugin.core.engine import decide
from nri_plugin.core.kernel_settings import NO_QUOTA, quotas
from nri_plugin.core.pod_news import PodFactsTold, could_be_completed
from nri_plugin.core.requests import lacks_its_resources
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Amounts, Kind, MemoryBlock, Regime
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod
from tests.builders import GIB, container, cpus, nodes, pod
from tests.whole_pods import PodLife, part, pod_scope, whole

SHARING = part("mesh", 0.5, Kind.SIDECAR), part("app", 4), part("log", 0.5)
HAS = {"mesh": "6-7", "app": "2-5", "log": "6-7"}
MEMORY_NONE = {"memory_manager_policy": MemoryManagerPolicy.NONE}


def listed(life: PodLife, has: dict[str, str], *stopped: str, mems: str = "0") -> list[Container]:
    """The pod's containers in the runtime's list, with the cpusets that it has stored."""
    return [
        replace(
            life.message(name),
            resources=replace(life.message(name).resources, cpus=text, mems=mems if text else ""),
            state=ContainerState.STOPPED if name in stopped else ContainerState.RUNNING,
        )
        for name, text in has.items()
    ]


def started(
    life: PodLife,
    has: dict[str, str],
    *stopped: str,
    mems: str = "0",
    beside: Sequence[tuple[Pod, Container]] = (),
) -> Decision:
    """The agent starts without a checkpoint."""
    life.state = State()
    pods = [life.of, *(of for of, _ in beside)]
    containers = [*listed(life, has, *stopped, mems=mems), *(one for _, one in beside)]
    return life.tell(nri.Synchronize(tuple(pods), tuple(containers)))


def facts_come(life: PodLife) -> Decision:
    return life.tell(PodFactsTold(life.of, life.facts))  # type: ignore[arg-type]


def is_incomplete(life: PodLife) -> bool:
    return lacks_its_resources(life.on.options, life.state.pods["p1"])


def admitted(*parts, cpu: float = 6, **options: object) -> PodLife:
    life = PodLife(pod_scope(**options), *(parts or SHARING), resources=whole(cpu))
    life.run(*(one.name for one in parts or SHARING))
    return life


# ----------------------------------------------------------------------------------------------------
# Without the facts.


def test_containers_that_share_cpus_of_their_pod_stay_there_until_the_facts_come() -> None:
    life = admitted()
    before = life.state
    decision = started(life, HAS)
    assert "pod-pool-kept" in decision.steps
    assert life.held == {"": "2-7", **HAS}
    assert [
        one
        for one in decision.writes
        if one.container_id and one.cpus != cpus(HAS[one.container_id.split("-")[1]])
    ] == []
    assert str(life.state.shared_pool(life.on)) == "0-1,8-15"
    other = pod("p2")
    assert (
        decide(life.on, life.state, nri.CreateContainer(other, container(other, cpu=9))).refusal is not None
    )
    told = facts_come(life)
    assert (told.steps, told.writes) == (("facts", "pod-rebuilt"), ())
    assert life.held == {"": "2-7", **HAS}
    key = "p1/"
    kept, had = life.state.allocations[key], before.allocations[key]
    assert (kept.memory, kept.mems, kept.cpu_milli) == (had.memory, had.mems, had.cpu_milli)
    assert all(not one.memory for name, one in life.state.allocations.items() if name != key)
    assert life.state.pods["p1"].regime is Regime.WHOLE
    assert facts_come(life).steps == ("facts-too-late",)
    life.restart("mesh", "log", "app")
    assert life.held == {"": "2-7", **HAS}


def test_a_container_that_comes_again_before_the_facts_keeps_its_cpus() -> None:
    life = admitted()
    started(life, HAS)
    life.is_informed = False
    life.restart("log", "app", "mesh")
    assert life.held == {"": "2-7", **HAS}
    life.is_informed = True
    life.restart("log")
    assert life.state.pods["p1"].regime is Regime.WHOLE, "the creation brought the facts"
    assert life.held == {"": "2-7", **HAS}


def test_a_container_that_did_not_exist_is_placed_by_itself_and_its_cpus_become_those_of_the_pod() -> None:
    life = admitted()
    started(life, {"mesh": "6-7", "log": "6-7"})
    assert life.held == {"": "6-7", "mesh": "6-7", "log": "6-7"}
    life.is_informed = False
    life.run("app")
    assert life.held == {"": "2-7", **HAS}
    facts_come(life)
    assert life.state.pods["p1"].regime is Regime.WHOLE


def test_an_ephemeral_container_stays_in_the_pool_of_the_node() -> None:
    life = admitted()
    debug = (
        life.of,
        replace(
            container(life.of, "debug"), resources=replace(container(life.of).resources, cpus="0-1,8-15")
        ),
    )
    started(life, HAS, beside=[debug])
    assert life.held == {"": "2-7", **HAS}
    facts_come(life)
    assert life.held == {"": "2-7", **HAS}
    assert life.runs_on("debug") == "0-1,8-15"


@pytest.mark.parametrize(
    ("has", "options", "total"),
    [
        ({"mesh": "0-1,6-15", "app": "2-5", "log": "0-1,6-15"}, {}, 6),
        ({"mesh": "6-8", "app": "2-5", "log": "6-8"}, {}, 6),
        ({"mesh": "6-7", "app": "2-5", "log": "6-7"}, {}, 5.5),
        ({"mesh": "6-7", "app": "2-5", "log": "8-9"}, {}, None),
        ({"mesh": "6-7", "app": "2-5", "log": "6-7"}, {"strict_cpu_reservation": True}, None),
        ({"mesh": "6-7", "app": "2-5", "log": "6-7"}, {"pod_level_managers": False}, 6),
        ({"mesh": "6-7", "app": "2-5", "log": "6-7"}, {"cpu_manager_policy": CPUManagerPolicy.NONE}, 6),
        ({"mesh": "5-6", "app": "2-5", "log": "5-6"}, {}, 6),
        ({"mesh": "", "app": "2-5", "log": ""}, {}, 6),
    ],
    ids=[
        "with reserved CPUs",
        "more than the pod asks for",
        "a fraction",
        "several sets, and nobody tells the total",
        "nothing tells it from a pool of the node",
        "the gate is off",
        "no manager",
        "CPUs of another container",
        "none",
    ],
)
def test_a_set_that_may_be_the_pool_of_the_node_is_none_of_a_pod(
    has: dict[str, str], options: dict[str, object], total: float | None
) -> None:
    life = PodLife(pod_scope(**MEMORY_NONE, **options), *SHARING, resources=whole(6))
    if total is None:
        life.of = replace(life.of, resources=None)
    else:
        life.of = replace(life.of, resources=pod(cpu=total).resources)
    decision = started(life, has)
    assert "pod-pool-kept" not in decision.steps
    assert "" not in life.held


def test_where_the_total_is_not_told_one_set_without_reserved_cpus_is_enough() -> None:
    life = PodLife(pod_scope(), *SHARING, resources=whole(6))
    life.of = replace(life.of, resources=None)
    started(life, HAS)
    assert life.held == {"": "2-7", **HAS}
    assert life.state.allocations["p1/"].cpu_milli == 6000


@pytest.mark.parametrize(
    ("other", "text"),
    [("p2", "6-7"), ("p2", "4-5"), ("p2", "8-15")],
    ids=["the pool", "a slice", "all that is left"],
)
def test_cpus_that_another_pod_runs_on_alone_are_not_kept(other: str, text: str) -> None:
    on = pod_scope(**MEMORY_NONE, reserved="0-1" if text != "8-15" else "")
    life = PodLife(on, *SHARING, resources=whole(6))
    count = len(cpus(text))
    if text == "8-15":
        life.of = replace(life.of, resources=pod(cpu=8).resources)
    has = HAS if text != "8-15" else {"mesh": "0-1,6-7", "app": "2-5", "log": "0-1,6-7"}
    started(life, has, beside=[(pod(other), container(pod(other), cpu=count, cpus=text))])
    assert "" not in life.held
    assert str(life.state.allocations[f"{other}/c"].cpus) == text or text == "4-5"


def test_two_instances_of_a_container_and_slices_that_overlap_are_no_pod() -> None:
    life = PodLife(pod_scope(**MEMORY_NONE), *SHARING, part("db", 2), resources=whole(9))
    again = replace(listed(life, {"log": "6-7"})[0], id="another")
    started(life, HAS, beside=[(life.of, again)])
    assert "" not in life.held
    started(life, {**HAS, "db": "5,8"})
    assert "" not in life.held


def test_two_whole_cpus_on_one_set_are_shared_and_an_unreadable_annotation_shares_too() -> None:
    on = pod_scope(annotation_namespaces=frozenset({"default"}), **MEMORY_NONE)
    no_claim = [replace(part(name, 2), amounts=Amounts(2000, 2000, GIB, 2 * GIB)) for name in ("a", "b")]
    life = PodLife(on, *no_claim, part("log", 0.5), resources=whole(5))
    life.of = replace(life.of, annotations={"nri-pin/exclusive-cpus.container.log": "many"})
    started(life, {"a": "2-4", "b": "2-4", "log": "2-4"})
    assert life.held == {"": "2-4", "a": "2-4", "b": "2-4", "log": "2-4"}
    life.of = replace(life.of, annotations={})
    started(life, {"a": "2-3", "b": "2-3", "log": "2-3"})
    assert life.held == {"": "2-3", "a": "2-3", "b": "2-3", "log": "2-3"}


def test_a_request_that_nobody_can_read_shares() -> None:
    life = PodLife(pod_scope(**MEMORY_NONE), part("big", 300), part("log", 0.5), resources=whole(6))
    big = replace(
        listed(life, {"big": "2-3"})[0].resources, cpu_shares=262144, cpu_quota_us=None, cpu_period_us=None
    )
    one = replace(life.message("big"), resources=big)
    life.tell(nri.Synchronize((life.of,), (one, *listed(life, {"log": "2-3"}))))
    assert life.held == {"": "2-3", "big": "2-3", "log": "2-3"}


# ----------------------------------------------------------------------------------------------------
# With the facts.


def test_a_pod_without_resources_of_its_own_returns_what_was_taken_for_its_pool() -> None:
    life = PodLife(pod_scope(), *SHARING, part("more", 1), resources=None)
    life.of = replace(life.of, resources=pod(cpu=6).resources)
    started(life, HAS)
    assert life.held == {"": "2-7", **HAS}
    decision = facts_come(life)
    assert life.held == {"mesh": "", "app": "2-5", "log": "", "more": "6"}, "memory stays bound"
    assert {one.container_id: str(one.cpus) for one in decision.writes if one.container_id} == {
        life.record("mesh").id: "0-1,7-15",
        life.record("log").id: "0-1,7-15",
    }
    assert life.state.pods["p1"].is_admitted


def test_it_is_returned_also_where_the_rest_of_the_pod_does_not_fit() -> None:
    life = PodLife(pod_scope(**MEMORY_NONE), *SHARING, part("more", 20), resources=None)
    life.of = replace(life.of, resources=pod(cpu=25).resources)
    started(life, HAS)
    decision = facts_come(life)
    assert (decision.steps[0], life.held) == ("rest-does-not-fit", {"app": "2-5"})
    assert decision.writes


def test_ordinary_pods_have_nothing_to_return() -> None:
    life = PodLife(pod_scope(), part("app", 4), part("db", 2), resources=None)
    started(life, {"app": "2-5"})
    facts_come(life)
    assert life.held == {"app": "2-5", "db": "6-7"}
    assert life.state.pods["p1"].regime is Regime.EACH


@pytest.mark.parametrize(
    "options", [{"pod_level_managers": False}, {"topology_manager_scope": TopologyManagerScope.CONTAINER}]
)
def test_a_pool_stays_where_pods_own_nothing_as_wholes_by_now(options: dict[str, object]) -> None:
    life = admitted()
    started(life, HAS)
    life.on = pod_scope(**options)
    facts_come(life)
    life.restart("log", "app")
    assert life.held == {"": "2-7", **HAS}
    assert not is_incomplete(life)


@pytest.mark.parametrize(
    ("has", "stopped", "expected"),
    [
        ({"app": "2-5"}, (), HAS),
        ({"mesh": "6-7"}, (), HAS),
        ({"mesh": "6-7", "app": "2-5", "log": "6-7"}, ("app",), HAS),
        ({"mesh": "6-7", "app": "2-5", "log": ""}, ("log",), HAS),
        ({"app": "8-11"}, (), {"mesh": "12-13", "app": "8-11", "log": "12-13"}),
    ],
    ids=[
        "only the exclusive one",
        "only one that shares",
        "an ended one tells",
        "an ended one does not",
        "elsewhere",
    ],
)
def test_what_no_container_tells_is_allocated_anew_beside_the_rest(
    has: dict[str, str], stopped: tuple[str, ...], expected: dict[str, str]
) -> None:
    life = admitted()
    started(life, has, *stopped)
    assert facts_come(life).steps == ("facts", "pod-rebuilt")
    block = cpus("2-7") if expected is HAS else cpus("8-13")
    assert life.held == {"": str(block), **expected}


def test_cpus_that_no_container_has_belong_to_the_pod_again() -> None:
    life = admitted(part("app", 4), part("db", 1))
    started(life, {"app": "2-5", "db": "6"})
    facts_come(life)
    assert life.held == {"": "2-7", "app": "2-5", "db": "6"}


def test_init_containers_tell_and_get_their_part() -> None:
    parts = (
        part("mesh", 0.5, Kind.SIDECAR),
        part("setup", 6, Kind.INIT),
        part("late", 0.5, Kind.INIT),
        part("app", 4),
    )
    life = PodLife(pod_scope(), *parts, resources=whole(6))
    life.run("mesh", "setup")
    before = life.held
    started(life, {"mesh": before["mesh"], "setup": "2-7"})
    facts_come(life)
    assert life.held == before
    life.tell(nri.StopContainer(life.of, life.message("setup")))
    life.run("late")
    started(life, {"mesh": before["mesh"], "setup": "2-7", "late": "2-7"}, "setup")
    facts_come(life)
    assert life.held == before
    assert life.state.allocations["p1/setup"].is_init


def test_a_pod_that_owns_only_memory_gets_it_back() -> None:
    life = admitted(part("app", 0.5), part("log", 0.5), cpu=4.5)
    before = life.state.allocations
    started(life, {"app": "0-15", "log": "0-15"}, mems="1")
    facts_come(life)
    assert life.state.allocations.keys() == before.keys()
    assert life.state.allocations["p1/"].memory == (MemoryBlock(nodes(1), "memory", 8 * GIB),)
    assert life.state.allocations["p1/log"].mems == nodes(1)


def test_a_pod_that_owns_nothing_is_complete() -> None:
    life = admitted(part("app", 0.5), part("log", 0.5), cpu=4.5, **MEMORY_NONE)
    started(life, {"app": "0-15", "log": "0-15"})
    assert facts_come(life).steps == ("facts", "pod-rebuilt")
    assert (life.held, is_incomplete(life)) == ({}, False)


def test_a_container_that_did_not_fit_by_itself_is_no_longer_unplaced() -> None:
    on = pod_scope(
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        strict_cpu_reservation=True,
        **MEMORY_NONE,
    )
    no_claim = replace(part("db", 9), amounts=Amounts(9000, 9000, GIB, 2 * GIB))
    life = PodLife(on, no_claim, part("app", 4), resources=whole(6))
    life.of = replace(life.of, resources=None)
    started(life, {"db": "6-7", "app": "2-5"})
    assert life.record("db").unplaced, "no NUMA node has 9 CPUs"
    facts_come(life)
    assert life.held == {"": "2-7", "app": "2-5", "db": "6-7"}
    assert not life.record("db").unplaced


UNSOUND: dict[str, tuple[dict[str, str], dict[str, object], str]] = {
    "the pool of the node": ({"mesh": "0-1,6-15", "app": "2-5", "log": "0-1,6-15"}, {}, "0"),
    "too many": ({"mesh": "6-8", "app": "2-5", "log": "6-8"}, {}, "0"),
    "two pools": ({"mesh": "6-7", "app": "2-5", "log": "6"}, {}, "0"),
    "a slice of another size": ({"mesh": "6-7", "app": "2-4", "log": "6-7"}, {}, "0"),
    "different nodes": ({"mesh": "6-7", "app": "2-5", "log": "6-7"}, {}, "0-1"),
    "nothing": ({"mesh": "", "app": "", "log": ""}, {}, "0"),
    "too few are left": ({"app": "2-5"}, {"taken": 8}, "0"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_what_cannot_be_rebuilt_is_left_as_it_is_and_the_pod_is_incomplete(case: str) -> None:
    has, given, mems = UNSOUND[case]
    life = admitted()
    beside = []
    if given:
        beside = [(pod("p2"), container(pod("p2"), cpu=9, memory=GIB, cpus="6-14", mems="0"))]
    started(life, has, mems=mems, beside=beside)
    if case == "different nodes":
        life.state = life.state.with_container(replace(life.record("log"), stored_mems=nodes(1)))
    before = life.held
    assert not is_incomplete(life), "nobody knows that it should own anything"
    decision = facts_come(life)
    assert decision.steps == ("facts", "pod-not-rebuilt")
    assert (life.held, decision.writes) == (before, ())
    assert is_incomplete(life)
    assert could_be_completed(life.on, life.state, life.state.pods["p1"]), "it is asked about again"
    running = {name: life.runs_on(name) for name in has}
    life.restart(*has)
    assert {name: life.runs_on(name) for name in has} == running


def test_a_container_that_the_specification_does_not_name_keeps_its_cpus() -> None:
    life = admitted()
    alien = (
        life.of,
        replace(
            container(life.of, "alien", cpu=2),
            resources=replace(container(life.of, cpu=2).resources, cpus="8-9", mems="0"),
        ),
    )
    started(life, {"app": "2-5"}, beside=[alien])
    assert life.held == {"app": "2-5", "alien": "8-9"}
    assert facts_come(life).steps == ("facts", "pod-not-rebuilt")


def test_a_pod_of_a_fraction_keeps_the_cpus_that_one_of_its_containers_was_given() -> None:
    life = PodLife(pod_scope(), *SHARING, resources=whole(5.5))
    started(life, {"app": "2-5", "mesh": "0-15"})
    assert facts_come(life).steps == ("facts", "pod-not-rebuilt")
    assert life.runs_on("app") == "2-5"


def test_slices_that_overlap_are_not_those_of_a_pod() -> None:
    life = admitted(part("app", 3), part("db", 3))
    started(life, {"app": "2-4", "db": "5-7"}, "db")
    record = life.record("db")
    life.state = life.state.with_container(replace(record, stored_cpus=cpus("4-6")))
    assert facts_come(life).steps == ("facts", "pod-not-rebuilt")


def test_the_last_cpus_of_the_shared_pool_are_not_taken_to_complete_a_pod() -> None:
    life = PodLife(pod_scope(reserved="", **MEMORY_NONE), part("app", 8), resources=whole(16))
    started(life, {"app": "0-7"})
    assert facts_come(life).steps == ("facts", "pod-not-rebuilt")


def test_a_pod_that_does_not_run_is_rebuilt_from_its_ended_containers_or_gets_resources_anew() -> None:
    life = admitted()
    beside = [(pod("p2"), container(pod("p2"), cpu=2, cpus="2-3"))]
    started(life, {"mesh": "12-13", "app": "8-11"}, "mesh", "app")
    life.run("app")
    assert life.held == {"": "8-13", "mesh": "12-13", "app": "8-11", "log": "12-13"}
    started(life, HAS, *HAS, beside=beside)
    life.run("app")
    assert life.held == {"": "8-13", "mesh": "12-13", "app": "8-11", "log": "12-13"}, "others have CPUs of it"
    assert life.state.pods["p1"].regime is Regime.WHOLE
    started(
        life, HAS, *HAS, beside=[(pod("p2"), container(pod("p2"), cpu=9, memory=GIB, cpus="6-14", mems="0"))]
    )
    life.run("app")
    assert life.held == {}, "it was admitted once"
    assert is_incomplete(life)
    assert life.runs_on("app") == "0-5,15"
    life.tell(nri.StopPodSandbox(life.of))
    assert life.create("app").refusal is not None, "a new sandbox is admitted anew"


def test_a_pod_of_which_only_an_ephemeral_container_runs_tells_nothing() -> None:
    life = admitted()
    debug = (life.of, container(life.of, "debug", cpus="0-1,8-15"))
    started(life, {}, beside=[debug])
    assert facts_come(life).steps == ("facts", "pod-not-rebuilt")


def test_offline_cpus_stay_with_their_pod() -> None:
    life = admitted()
    life.lose("7")
    started(life, HAS)
    facts_come(life)
    assert life.held == {"": "2-7", **HAS}


def test_the_state_before_the_pod_was_created_is_as_good_as_none() -> None:
    life = admitted()
    has = listed(life, HAS)
    life.state = decide(life.on, State(), nri.RunPodSandbox(life.of)).state
    life.tell(nri.Synchronize((life.of,), tuple(has)))
    facts_come(life)
    assert life.held == {"": "2-7", **HAS}


@pytest.mark.parametrize("is_informed", [True, False])
def test_the_state_before_a_new_sandbox_of_the_pod_moves_no_container(is_informed: bool) -> None:
    life = admitted()
    older, other = life.state, pod("p2")
    life.tell(nri.StopPodSandbox(life.of))
    life.tell(nri.RemovePodSandbox(life.of))
    beside = container(other, "c", cpu=2, memory=GIB)
    life.tell(nri.CreateContainer(other, beside))
    life.of, life.is_informed = replace(life.of, id="sb-new"), is_informed
    life.tell(nri.RunPodSandbox(life.of))
    life.number = 1
    life.run("app")
    has = life.runs_on("app")
    assert has == "8-11"
    life.state = older
    running = replace(life.message("app"), resources=replace(life.message("app").resources, cpus=has))
    held = replace(beside, resources=replace(beside.resources, cpus="2-3"))
    life.tell(nri.Synchronize((life.of, other), (running, held)))
    assert life.runs_on("app") == has
    assert life.state.allocations["p2/c"].cpus == cpus("2-3")


@pytest.mark.parametrize(
    "options",
    [{}, {"topology_manager_scope": TopologyManagerScope.CONTAINER}, {"pod_level_managers": False}],
)
def test_a_container_placed_without_the_facts_is_not_moved_by_the_state_that_has_them(
    options: dict[str, object],
) -> None:
    """The kubelet gives a container without limits those of its pod."""
    life = PodLife(pod_scope(**MEMORY_NONE, **options), part("app", 2), part("free", 0), resources=whole(6))
    life.run("app", "free")
    older = life.state
    life.tell(nri.StopPodSandbox(life.of))
    life.tell(nri.RemovePodSandbox(life.of))
    life.of, life.is_informed, life.number = replace(life.of, id="sb-new"), False, 1
    life.tell(nri.RunPodSandbox(life.of))
    life.run("free")
    has = life.held["free"]
    assert has == "2-7"
    life.state = older
    life.tell(nri.Synchronize((life.of,), tuple(listed(life, {"free": has}, mems=""))))
    assert life.held["free"] == life.runs_on("free") == has


def test_a_new_sandbox_whose_containers_were_given_no_cpus_has_those_of_its_pod() -> None:
    life = admitted()
    life.of = replace(life.of, id="sb-new")
    life.number = 1
    life.tell(nri.Synchronize((life.of,), tuple(listed(life, dict.fromkeys(HAS, "")))))
    assert life.held == {"": "2-7", **HAS}
    assert life.runs_on("app") == HAS["app"]


def test_a_second_start_before_the_facts_come_changes_nothing() -> None:
    life = admitted()
    started(life, HAS)
    before = life.state
    life.tell(nri.Synchronize((life.of,), tuple(listed(life, HAS))))
    assert life.state == before
    facts_come(life)
    assert life.state.pods["p1"].regime is Regime.WHOLE


def test_a_pod_that_was_placed_container_by_container_here_has_nothing_to_rebuild() -> None:
    life = PodLife(pod_scope(), *SHARING, resources=whole(6))
    life.is_informed = False
    life.run("mesh", "app", "log")
    facts_come(life)
    assert "" not in life.held
    assert not is_incomplete(life)


def test_containers_that_are_found_later_change_the_pool_of_nobody_and_their_cpus_are_those_of_the_pod() -> (
    None
):
    life = admitted(*SHARING, part("db", 1), part("web", 1), cpu=8, **MEMORY_NONE)
    has = {"app": "2-5", "log": "6"}
    started(life, has)
    assert life.held == {"": "2-6", **has}
    more = listed(life, {**has, "mesh": "7", "db": "8", "web": "0-15"})
    assert "pod-pool-kept" not in life.tell(nri.Synchronize((life.of,), tuple(more))).steps
    assert life.held == {"": "2-8", **has, "db": "8", "web": "7"}
    life.tell(nri.StopPodSandbox(life.of))
    started(life, has)
    life.tell(nri.StartContainer(life.of, listed(life, {"db": "8"})[0]))
    assert life.held == {"": "2-6,8", **has, "db": "8"}


def test_the_quota_of_a_pod_bounds_those_that_share_it_also_before_its_facts_come() -> None:
    life = admitted()
    before = set(quotas(life.on, life.state))
    started(life, HAS)
    assert set(quotas(life.on, life.state)) == before
    ordinary = PodLife(pod_scope(), part("app", 4), resources=None)
    ordinary.is_informed = False
    ordinary.run("app")
    assert {one.quota_us for one in quotas(ordinary.on, ordinary.state)} == {NO_QUOTA}
    ordinary.is_informed = True
    ordinary.restart("app")
    assert {one.quota_us for one in quotas(ordinary.on, ordinary.state)} == {NO_QUOTA}
    facts_come(life)
    assert set(quotas(life.on, life.state)) == before
    unknown = replace(life.state, pods={})
    assert len(list(quotas(life.on, unknown))) == 1


def test_the_facts_of_an_imported_pod_are_kept_and_change_nothing() -> None:
    life = admitted()
    before = life.held
    life.state = State(allocations=life.state.allocations)
    life.tell(nri.Synchronize((life.of,), tuple(listed(life, HAS))))
    assert could_be_completed(life.on, life.state, life.state.pods["p1"])
    life.on = pod_scope(topology_manager_scope=TopologyManagerScope.CONTAINER)
    assert facts_come(life).steps == ("facts",)
    assert (life.held, life.state.pods["p1"].facts) == (before, life.facts)
    assert facts_come(life).steps == ("facts-too-late",)


def test_a_pod_that_runs_keeps_cpus_of_no_container_beside_one_without_a_record() -> None:
    life = PodLife(pod_scope(), part("app", 2), resources=whole(6))
    life.run("app")
    assert life.held == {"": "2-7", "app": "2-3"}
    other = pod("p2")
    beside = container(other, "c", cpu=2, memory=GIB, cpus="4-5")
    life.tell(nri.Synchronize((life.of, other), (*listed(life, {"app": "2-3"}), beside)))
    assert life.held == {"": "2-7", "app": "2-3"}
    assert life.state.allocations["p2/c"].cpus.isdisjoint(cpus("2-7"))


def test_a_container_that_runs_keeps_its_cpus_against_a_pod_of_which_nothing_runs() -> None:
    life = PodLife(pod_scope(), part("app", 2), resources=whole(6))
    life.run("app")
    other = pod("p2")
    beside = container(other, "c", cpu=2, memory=GIB, cpus="4-5")
    decision = life.tell(nri.Synchronize((life.of, other), (*listed(life, {"app": "2-3"}, "app"), beside)))
    assert decision.state.allocations["p2/c"].cpus == cpus("4-5")
    assert life.held == {"app": "2-3"}
    assert life.state.pods["p1"].is_admitted, "app has what it had"


def test_the_refusal_of_a_later_container_leaves_the_rules_of_a_found_pod_open() -> None:
    life = PodLife(pod_scope(**MEMORY_NONE), *SHARING, part("more", 20), resources=None)
    life.of = replace(life.of, resources=pod(cpu=25).resources)
    started(life, HAS)
    assert life.create("more").refusal is not None
    assert (life.state.pods["p1"].regime, life.held["app"]) == (Regime.FOUND, "2-5")
