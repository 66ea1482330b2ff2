"""Facts of a pod that come late, and the end of a pod that only the exporter knows."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.pod_news import PodFactsTold, PodHasEnded, PodNews, not_created
from nri_plugin.core.validator import new_violations
from nri_plugin.model.options import CPUManagerPolicy, Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod
from tests.builders import GIB, container, cpu_resources, node, nodes, pod

APP, INIT, SIDECAR = Kind.APP, Kind.INIT, Kind.SIDECAR
ONE_NODE = {
    "topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE,
    "topology_manager_scope": TopologyManagerScope.POD,
}


def one(name: str, cpu: float = 0, kind: Kind = APP) -> ContainerFacts:
    milli = round(cpu * 1000)
    return ContainerFacts(name, kind, Amounts(milli, milli, GIB, GIB))


class Life:
    """One pod whose containers the runtime creates before the facts are known."""

    def __init__(
        self, on: Node, *rows: ContainerFacts, of: Pod | None = None, resources: Amounts | None = None
    ) -> None:
        self.on, self.of, self.state = on, of or pod(), State()
        self.facts = PodFacts(self.of.uid, QOSClass.GUARANTEED, rows, resources)
        self.rows = {row.name: row for row in rows}

    def tell(self, event: nri.NRIEvent | InformedCreate | PodNews) -> Decision:
        before = self.state
        decision = decide(self.on, before, event)
        assert new_violations(self.on, before, event, decision) == []  # type: ignore[arg-type]
        self.state = decision.state
        return decision

    def message(self, name: str) -> Container:
        amounts = self.rows[name].amounts if name in self.rows else Amounts()
        asked = cpu_resources(amounts.cpu_request_milli / 1000, amounts.memory_limit_bytes)
        return replace(container(self.of, name), resources=asked)

    def create(self, name: str, facts: PodFacts | None = None) -> Decision:
        return self.tell(InformedCreate(nri.CreateContainer(self.of, self.message(name)), facts=facts))

    def run(self, *names: str, facts: PodFacts | None = None) -> None:
        for name in names:
            assert self.create(name, facts).refusal is None
            for kind in (nri.PostCreateContainer, nri.StartContainer):
                self.tell(kind(self.of, self.message(name)))

    def stop(self, *names: str, remove: bool = True) -> None:
        for name in names:
            self.tell(nri.StopContainer(self.of, self.message(name)))
            if remove:
                self.tell(nri.RemoveContainer(self.of, self.message(name)))

    def facts_come(self, devices: Sequence[tuple[str, tuple[DeviceResource, ...]]] = ()) -> Decision:
        return self.tell(PodFactsTold(self.of, self.facts, tuple(devices)))

    @property
    def held(self) -> dict[str, str]:
        return {key.partition("/")[2]: str(value.cpus) for key, value in self.state.allocations.items()}

    @property
    def is_admitted(self) -> bool:
        return self.state.pods[self.of.uid].is_admitted


def test_the_containers_that_are_not_created_are_placed_around_what_the_pod_holds() -> None:
    life = Life(node(), one("a", 2), one("b", 2), one("log"), one("c", 4))
    life.run("a")
    assert life.held == {"a": "2-3"}
    shared = pod("p2")
    life.tell(nri.CreateContainer(shared, container(shared)))
    decision = life.facts_come()
    assert life.held == {"a": "2-3", "b": "4-5", "c": "6-9"}
    assert life.is_admitted
    assert decision.refusal is None
    assert all(write.cpus.isdisjoint(life.state.exclusive) for write in decision.writes)
    assert decision.writes, "the slices of shared containers are narrowed"
    other = Life(life.on, one("large", 7), of=pod("p3"))
    other.state = life.state
    assert other.create("large").refusal is not None, "6 CPUs are left"
    life.run("b", "c", "log")
    assert life.held == {"a": "2-3", "b": "4-5", "c": "6-9"}


def test_where_the_rest_does_not_fit_the_pod_stays_as_it_is() -> None:
    life = Life(node(), one("a", 2), one("b", 2), one("c", 20))
    life.run("a")
    before = life.state
    decision = life.facts_come()
    assert decision.steps[0] == "rest-does-not-fit"
    assert decision.refusal is None
    assert decision.state is before
    life.run("b")
    assert life.held == {"a": "2-3", "b": "4-5"}, "container by container"
    assert life.create("c").refusal is not None


@pytest.mark.parametrize("do_facts_come", [False, True])
@pytest.mark.parametrize(
    ("policy", "is_refused"),
    [
        (TopologyManagerPolicy.SINGLE_NUMA_NODE, True),
        (TopologyManagerPolicy.RESTRICTED, True),
        (TopologyManagerPolicy.BEST_EFFORT, False),
    ],
)
def test_a_later_container_is_not_placed_off_the_nodes_of_its_pod_where_another_pod_came_between(
    policy: TopologyManagerPolicy, is_refused: bool, do_facts_come: bool
) -> None:
    on = node(topology_manager_policy=policy, topology_manager_scope=TopologyManagerScope.POD)
    life = Life(on, one("a", 2), one("b", 4), of=pod(cpu=6))
    life.run("a")
    other = pod("between", cpu=3)
    life.tell(nri.CreateContainer(other, container(other, cpu=3)))
    if do_facts_come:
        assert (life.facts_come().steps[0] == "rest-does-not-fit") is is_refused
    refusal = life.create("b").refusal
    assert (refusal is not None and refusal.reason == "TopologyAffinityError") is is_refused
    assert ("b" in life.held) is not is_refused


def test_an_init_container_before_one_that_exists_has_ended_and_a_sidecar_has_not() -> None:
    life = Life(
        node(), one("fetch", 6, INIT), one("mesh", 2, SIDECAR), one("last", 6, INIT), one("a", 2), one("b", 2)
    )
    life.run("a")
    life.facts_come()
    assert life.held == {"a": "2-3", "mesh": "4-5", "b": "6-7"}


def test_an_init_container_that_is_still_to_come_is_placed() -> None:
    life = Life(node(), one("fetch", 2, INIT), one("last", 4, INIT), one("a", 4))
    life.run("fetch")
    life.facts_come()
    assert life.held.keys() == {"fetch", "last", "a"}
    assert life.state.allocations["p1/last"].is_init


def test_an_init_container_that_runs_when_the_facts_come_keeps_its_cpus() -> None:
    life = Life(node(), one("fetch", 2, INIT), one("mesh", 0, SIDECAR), one("a", 4))
    life.run("fetch")
    life.facts_come()
    assert life.held == {"fetch": "2-3", "a": "2-5"}, "the app container starts only after its end"
    record = next(iter(life.state.containers_of("p1")))
    assert str(life.state.desired_cpus(life.on, record)) == "2-3"
    life.run("mesh")
    before = life.state
    life.facts_come()
    assert life.state is before


def test_devices_of_the_other_containers_decide_on_their_nodes() -> None:
    life = Life(
        node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE), one("a", 2), one("b", 2)
    )
    life.run("a")
    gpu = DeviceResource("x/gpu", (Device("g", nodes(1)),))
    life.facts_come([("b", (gpu,))])
    assert life.held == {"a": "2-3", "b": "8-9"}


def test_after_loss_of_the_checkpoint_the_rest_goes_to_the_nodes_of_what_the_pod_has() -> None:
    life = Life(node(**ONE_NODE), one("a", 2), one("b", 4))
    running = replace(
        life.message("a"), state=ContainerState.RUNNING, resources=cpu_resources(2, GIB, cpus="8-9")
    )
    life.tell(nri.Synchronize((life.of,), (running,)))
    assert life.held == {"a": "8-9"}
    life.facts_come()
    assert life.held == {"a": "8-9", "b": "10-13"}
    assert life.state.pods["p1"].affinity == nodes(1)


@pytest.mark.parametrize("is_informed", [True, False], ids=["with facts", "without"])
def test_after_loss_of_the_checkpoint_the_next_creation_does_not_ask_again_for_what_runs(
    is_informed: bool,
) -> None:
    of = replace(pod(), resources=cpu_resources(6, 2 * GIB))
    life = Life(node(**ONE_NODE), one("a", 4), one("b", 2), of=of)
    running = replace(
        life.message("a"), state=ContainerState.RUNNING, resources=cpu_resources(4, GIB, cpus="8-11")
    )
    other = pod("other")
    beside = replace(container(other, cpu=6, cpus="2-7"), state=ContainerState.RUNNING)
    life.tell(nri.Synchronize((life.of, other), (running, beside)))
    assert life.create("b", life.facts if is_informed else None).refusal is None
    assert life.held["b"] == "12-13"
    kept = life.state.pods["p1"]
    assert (kept.affinity, kept.affinity_preferred) == (nodes(1), True)


def test_a_pod_that_holds_nothing_gets_a_hint_of_its_own() -> None:
    life = Life(node(**ONE_NODE), one("log"), one("b", 4))
    life.state = decide(life.on, State(), nri.Synchronize((life.of,), (life.message("log"),))).state
    life.facts_come()
    assert life.held == {"b": "2-5"}


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([one("a", 2)], {}),
        ([one("a", 2), one("b", 2)], {"never_refuse": frozenset({"default"})}),
    ],
    ids=["a single container", "a namespace that is never refused"],
)
def test_facts_of_a_pod_that_is_not_placed_as_a_whole_are_kept(
    rows: list[ContainerFacts], options: dict[str, object]
) -> None:
    life = Life(node(**options), *rows)
    life.run("a")
    assert life.facts_come().steps == ("facts",)
    assert (life.held, life.is_admitted) == ({"a": "2-3"}, False)
    assert life.state.pods["p1"].facts == life.facts


def test_a_pod_with_resources_of_its_own_that_runs_is_completed_container_by_container() -> None:
    life = Life(
        node(pod_level_managers=True, **ONE_NODE),
        one("a", 2),
        one("b", 2),
        resources=Amounts(6000, 6000, 4 * GIB, 4 * GIB),
    )
    life.run("a")
    assert life.facts_come().steps == ("facts", "whole-pod")
    assert life.held == {"a": "2-3", "b": "4-5"}, "nothing for the pod as a whole"


def test_facts_that_no_decision_needs_are_not_kept() -> None:
    life = Life(node(), one("a"), of=pod(qos="Burstable"))
    life.facts = replace(life.facts, qos=QOSClass.BURSTABLE)
    life.run("a")
    before = life.state
    assert life.facts_come().state is before


def test_facts_that_are_late_or_of_another_life_change_nothing() -> None:
    life = Life(node(), one("a", 2), one("b", 2))
    assert life.facts_come().steps == ("facts-too-late",), "an unknown pod"
    life.tell(nri.RunPodSandbox(life.of))
    assert life.facts_come().steps == ("facts-too-late",), "its first container will bring them"
    life.run("a")
    other = replace(life.of, id="another-sandbox")
    assert life.tell(PodFactsTold(other, life.facts)).steps == ("facts-too-late",)
    life.facts_come()
    before = life.state
    assert life.facts_come().state is before, "told twice"


def test_a_container_between_two_instances_keeps_what_it_has() -> None:
    life = Life(node(), one("a", 2), one("b", 2), one("c", 2))
    life.run("a", "b")
    life.stop("b")
    life.facts_come()
    assert life.held == {"a": "2-3", "b": "4-5", "c": "6-7"}


def test_a_pod_that_is_being_stopped_gets_nothing_more() -> None:
    life = Life(node(), one("a", 2), one("b", 2))
    life.run("a")
    life.tell(nri.StopPodSandbox(life.of))
    assert life.facts_come().steps == ("facts-too-late",)
    assert life.held == {}


def test_a_pod_of_an_earlier_release_is_completed_although_its_facts_are_known() -> None:
    life = Life(node(), one("a", 2), one("b", 2))
    life.run("a")
    life.state = life.state.with_pod(replace(life.state.pods["p1"], facts=life.facts))
    life.facts_come()
    assert life.held == {"a": "2-3", "b": "4-5"}


def test_facts_outlive_a_synchronize_while_the_exporter_is_away() -> None:
    life = Life(node(), one("a", 2), one("b", 2))
    life.run("a", facts=life.facts)
    running = replace(life.message("a"), resources=cpu_resources(2, GIB, cpus="2-3"))
    life.tell(nri.Synchronize((life.of,), (running,)))
    assert life.state.pods["p1"].facts == life.facts
    life.run("b")
    assert life.state.pods["p1"].facts == life.facts
    assert life.held == {"a": "2-3", "b": "4-5"}


def test_the_end_of_a_pod_ends_what_containers_hold_that_are_not_created() -> None:
    life = Life(node(), one("a", 2), one("b", 2), one("c", 2))
    life.run("a", facts=life.facts)
    assert life.held == {"a": "2-3", "b": "4-5", "c": "6-7"}
    life.stop("a", remove=False)
    decision = life.tell(PodHasEnded(life.of))
    assert life.held == {"a": "2-3"}, "the runtime still has it"
    assert not life.is_admitted
    assert not decision.writes, "the shared pool is wider, which no answer waits for"
    life.stop("a")
    life.tell(PodHasEnded(life.of))
    assert life.held == {}


def test_a_container_that_runs_keeps_its_cpus_whatever_is_said_of_its_pod() -> None:
    life = Life(node(), one("a", 2))
    life.run("a")
    before = life.state
    assert life.tell(PodHasEnded(life.of)).state is before


def test_the_end_of_another_life_of_the_pod_ends_nothing() -> None:
    life = Life(node(), one("a", 2), one("b", 2))
    life.run("a", facts=life.facts)
    before = life.state
    assert life.tell(PodHasEnded(replace(life.of, id="another-sandbox"))).state is before
    assert life.tell(PodHasEnded(pod("unknown"))).state is before


def test_a_pod_that_is_created_after_all_is_admitted_anew() -> None:
    life = Life(node(**ONE_NODE), one("a", 2), one("b", 2))
    life.run("a", facts=life.facts)
    life.stop("a")
    life.tell(PodHasEnded(life.of))
    assert (life.held, life.state.pods["p1"].affinity) == ({}, None)
    life.run("b", facts=life.facts)
    assert life.held == {"a": "2-3", "b": "4-5"}


def test_what_a_pod_has_as_a_whole_stays_while_one_of_its_containers_exists() -> None:
    life = Life(
        node(pod_level_managers=True, **ONE_NODE),
        one("a", 2),
        one("b", 2),
        resources=Amounts(6000, 6000, 4 * GIB, 4 * GIB),
    )
    life.run("a", facts=life.facts)
    assert life.held.keys() == {"", "a", "b"}
    life.stop("a", remove=False)
    assert not_created(life.state, "p1") == []
    assert life.tell(PodHasEnded(life.of)).steps == ("nothing-left",)
    life.stop("a")
    life.tell(PodHasEnded(life.of))
    assert life.held == {}


def test_without_policies_that_allocate_facts_place_nothing() -> None:
    life = Life(node(cpu_manager_policy=CPUManagerPolicy.NONE), one("a", 2), one("b", 2))
    life.run("a")
    life.facts_come()
    assert life.held == {}


# ----------------------------------------------------------------------------------------------------
# The pod was resized before its containers were created, or while the agent was away.


@pytest.mark.parametrize("options", [{"full_pcpus_only": True}, ONE_NODE])
def test_a_pod_that_is_resized_before_its_birth_is_judged_by_what_the_kubelet_creates(
    options: dict[str, object],
) -> None:
    on = node(**options)
    life = Life(on, one("a", 2), one("b", 2), one("c", 2), of=pod(cpu=6))
    # The object has the new size, which this node refuses; the runtime's total is that of the containers.
    for asks in (12, 1):
        rows = (one("a", 2), one("b", 2), one("c", asks))
        life.run("a", "b", facts=replace(life.facts, containers=rows))
        assert not life.is_admitted
    life.run("c", facts=replace(life.facts, containers=rows))
    assert life.held == {"a": "2-3", "b": "4-5", "c": "6-7"}
    # The kubelet's own size is published late; then the pod counts as a whole.
    assert life.facts_come().steps[-1] == "whole-pod"


def test_a_size_that_the_kubelet_has_not_allocated_places_none_of_the_rest() -> None:
    life = Life(node(), one("a", 2), one("b", 2), of=pod(cpu=4))
    life.run("a")
    asked = life.facts
    life.facts = replace(asked, containers=(one("a", 2), one("b", 6)))
    assert life.facts_come().steps == ("facts",)
    assert life.held == {"a": "2-3"}
    life.facts = asked
    life.facts_come()
    assert life.held == {"a": "2-3", "b": "4-5"}


@pytest.mark.parametrize(
    ("b", "has", "mark"), [(2, {"a": "2-3", "b": "4-5"}, ""), (20, {"a": "2-3"}, "requested=20")]
)
def test_a_container_that_was_resized_while_no_agent_ran_owns_its_cpus_once_facts_come(
    b: int, has: dict[str, str], mark: str
) -> None:
    # The total of the sandbox is that of before the resize, so one container looks like one without limits.
    life = Life(node(), one("a", 2), one("b", b), of=pod(cpu=3))
    life.tell(nri.Synchronize((life.of,), (life.message("a"), life.message("b"))))
    assert life.held == {"a": "2-3"}
    life.facts_come()
    assert life.held == has
    assert mark in life.state.containers[life.message("b").id].unplaced
