"""What a pod's facts change in a decision: each case with them and without."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, Phase, PodFacts, QOSClass
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import ContainerState, Pod, Resources
from tests.builders import GIB, container, cpu_resources, cpus, machine, node, nodes, pod

INIT, SIDECAR, APP = Kind.INIT, Kind.SIDECAR, Kind.APP
WITH_AND_WITHOUT = pytest.mark.parametrize("informed", [True, False], ids=["with facts", "without"])


def one(name: str, cpu: float = 0, kind: Kind = APP, memory: int = 0) -> ContainerFacts:
    milli = round(cpu * 1000)
    return ContainerFacts(name, kind, Amounts(milli, milli, memory, memory))


class Play:
    """A pod whose containers come in the order of its facts; the agent hears these or not."""

    def __init__(
        self, on: Node, *containers: ContainerFacts, informed: bool = True, of: Pod | None = None
    ) -> None:
        self.on, self.of, self.state = on, of or pod(), State()
        self.facts = PodFacts(self.of.uid, QOSClass.GUARANTEED, containers)
        self.heard: PodFacts | None = self.facts if informed else None
        self.told(nri.RunPodSandbox(self.of))

    def told(self, event: nri.NRIEvent) -> Decision:
        decision = decide(self.on, self.state, event)
        self.state = decision.state
        return decision

    def create(self, name: str, number: int = 0, resources: Resources | None = None) -> Decision:
        known = self.facts.container(name)
        assert known is not None
        what = container(self.of, name, number=number)
        asked = cpu_resources(known.amounts.cpu_request_milli / 1000, known.amounts.memory_limit_bytes)
        event = nri.CreateContainer(self.of, replace(what, resources=resources or asked))
        decision = decide(self.on, self.state, InformedCreate(event, facts=self.heard))
        assert violations(self.on, decision.state) == []
        self.state = decision.state
        return decision

    def runs(self, name: str, number: int = 0) -> None:
        self.create(name, number)
        self.goes_on(name, number)

    def goes_on(self, name: str, number: int = 0) -> None:
        for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
            self.told(kind(self.of, container(self.of, name, number=number)))

    def ends(self, name: str, number: int = 0) -> None:
        self.told(nri.StopContainer(self.of, container(self.of, name, number=number)))

    def has(self, name: str) -> str:
        return str(self.state.allocations[f"{self.of.uid}/{name}"].cpus)


@WITH_AND_WITHOUT
def test_an_ended_init_container_leaves_its_cpus_to_those_after_it(informed: bool) -> None:
    play = Play(node(), one("setup", 4, INIT), one("web", 2), one("log", 2), informed=informed)
    play.runs("setup")
    assert play.has("setup") == "2-5"
    play.ends("setup")
    play.runs("web")
    play.runs("log")
    # With facts the init container keeps its CPUs for the case that the pod starts over.
    kept = "2-5" if informed else ""
    assert [play.has(name) for name in ("setup", "web", "log")] == [kept, "2-3", "4-5"]


@pytest.mark.parametrize(("informed", "web"), [(True, "2-3"), (False, "6-7")])
def test_the_end_of_an_init_container_need_not_be_told_with_facts(informed: bool, web: str) -> None:
    play = Play(node(), one("setup", 4, INIT), one("web", 2), informed=informed)
    play.runs("setup")
    play.runs("web")
    assert play.has("web") == web


@pytest.mark.parametrize(("informed", "web", "kept"), [(True, "4-5", "2-3"), (False, "2-3", "")])
def test_a_sidecar_that_is_just_starting_again_keeps_its_cpus_where_it_is_known_to_be_one(
    informed: bool, web: str, kept: str
) -> None:
    play = Play(node(), one("mesh", 2, SIDECAR), one("web", 2), informed=informed)
    play.runs("mesh")
    play.ends("mesh")
    play.runs("web")
    assert (play.has("web"), play.has("mesh")) == (web, kept)


@pytest.mark.parametrize(("informed", "two"), [(True, "4-5"), (False, "2-3")])
def test_an_app_container_that_crashed_before_the_next_is_created_keeps_its_cpus(
    informed: bool, two: str
) -> None:
    play = Play(node(), one("one", 2), one("two", 2), informed=informed)
    play.runs("one")
    play.ends("one")
    play.runs("two")
    assert play.has("two") == two


def test_what_a_sidecar_took_from_an_init_container_is_passed_on_no_further() -> None:
    play = Play(node(), one("setup", 4, INIT), one("mesh", 2, SIDECAR), one("web", 4))
    for name in ("setup", "mesh", "web"):
        play.runs(name)
        play.ends(name)
    assert [play.has(name) for name in ("setup", "mesh", "web")] == ["2-5", "2-3", "4-7"]


def test_facts_heard_once_are_remembered_when_the_exporter_is_late_for_the_next_container() -> None:
    play = Play(node(), one("mesh", 2, SIDECAR), one("web", 2))
    play.runs("mesh")
    play.ends("mesh")
    play.heard = None
    play.runs("web")
    assert play.has("web") == "4-5"


def test_facts_are_remembered_over_a_restart_and_a_new_sandbox() -> None:
    play = Play(node(), one("mesh", 2, SIDECAR), one("web", 2))
    play.runs("mesh")
    again = replace(play.of, id="sb-2")
    listed = container(again, "mesh", cpu=2, cpus="2-3")
    play.told(nri.Synchronize((again,), (listed,)))
    assert play.state.pods["p1"].facts == play.facts
    play.told(nri.RunPodSandbox(replace(again, id="sb-3")))
    assert play.state.pods["p1"].facts == play.facts


@pytest.mark.parametrize(
    ("qos", "parent", "annotations", "is_kept"),
    [
        ("Guaranteed", None, {}, True),
        ("Burstable", None, {}, False),
        ("Burstable", None, {"nri-pin/exclusive-cpus.pod": "1"}, True),
        ("Burstable", "/elsewhere", {}, True),
    ],
)
def test_facts_are_kept_only_of_pods_that_may_hold_something(
    qos: str, parent: str | None, annotations: dict[str, str], is_kept: bool
) -> None:
    of = pod("p1", qos)
    of = replace(of, annotations=annotations, cgroup_parent=parent or of.cgroup_parent)
    facts = PodFacts("p1", QOSClass(qos), (one("c", 1),))
    event = nri.CreateContainer(of, container(of, cpu=1))
    hearing = node(annotation_namespaces=frozenset({of.namespace}))
    state = decide(hearing, State(), InformedCreate(event, facts=facts)).state
    assert state.pods["p1"].facts == (facts if is_kept else None)


def test_the_class_by_facts_wins_where_the_cgroup_does_not_tell_it() -> None:
    of = replace(pod(), cgroup_parent="/machine/p1")
    assert Play(node(), one("web", 2), of=of, informed=False).create("web").state.exclusive == cpus("")
    play = Play(node(), one("web", 2), of=of)
    play.runs("web")
    assert play.has("web") == "2-3"
    play.heard = None
    play.told(nri.Synchronize((of,), (container(of, "web", cpu=2, cpus="2-3"),)))
    assert play.state.pods["p1"].qos is QOSClass.GUARANTEED


BIG = node(machine(nodes=2, cores=160, threads=1), "0")
SATURATED = Resources(cpu_shares=262144)


def test_more_cpus_than_shares_can_tell_are_given_by_facts() -> None:
    play = Play(BIG, one("web", 300))
    assert play.create("web", resources=SATURATED).refusal is None
    assert len(play.state.exclusive) == 300
    play.goes_on("web")
    play.ends("web")
    play.heard = None
    assert play.create("web", 1, SATURATED).steps[0] == "kept"


def test_more_cpus_than_shares_can_tell_are_refused_without_facts_and_the_reason_is_said() -> None:
    play = Play(BIG, one("web", 300), informed=False)
    refusal = str(play.create("web", resources=SATURATED).refusal)
    assert "256 CPUs or more without a CPU limit" in refusal
    assert "set a CPU limit, or run the exporter" in refusal


@pytest.mark.parametrize(("shares", "count"), [(2 * 1024, 2), (None, 4), (2, 4)])
def test_a_request_that_the_runtime_tells_exactly_goes_before_facts_of_another_moment(
    shares: int | None, count: int
) -> None:
    play = Play(node(), one("web", 4))
    play.create("web", resources=Resources(cpu_shares=shares))
    assert len(play.state.exclusive) == count


@WITH_AND_WITHOUT
def test_containers_of_a_pod_with_resources_of_its_own_are_promised_nothing_by_facts(informed: bool) -> None:
    on = node(memory_manager_policy=MemoryManagerPolicy.STATIC)
    play = Play(on, one("web", 2, memory=GIB), informed=informed)
    play.heard = replace(play.facts, pod_resources=Amounts(4000, 4000, GIB, GIB)) if informed else None
    decision = play.create("web")
    assert decision.steps[-1] == ("shared" if informed else "exclusive")
    assert bool(decision.state.allocations) != informed


@pytest.mark.parametrize("scope", list(TopologyManagerScope))
def test_devices_of_a_pod_with_resources_of_its_own_still_refuse(scope: TopologyManagerScope) -> None:
    strict = TopologyManagerPolicy.SINGLE_NUMA_NODE
    on = node(topology_manager_policy=strict, topology_manager_scope=scope)
    apart = DeviceResource("x/gpu", (Device("a", nodes(0)), Device("b", nodes(1))))
    facts = PodFacts("p1", QOSClass.GUARANTEED, (one("c", 40),), Amounts(40000, 40000))
    event = nri.CreateContainer(pod(), container(pod(), cpu=40))
    assert decide(on, State(), InformedCreate(event, facts=facts)).refusal is None
    refusal = decide(on, State(), InformedCreate(event, (apart,), (apart,), facts)).refusal
    assert refusal
    assert refusal.kind is RefusalKind.TOPOLOGY_AFFINITY
    assert "cpu:" not in str(refusal)


def in_pod_scope(**options: object) -> Node:
    return node(
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        topology_manager_scope=TopologyManagerScope.POD,
        **options,
    )


def test_the_whole_pod_is_placed_by_facts_where_the_runtime_tells_no_total() -> None:
    def first(informed: bool) -> Play:
        play = Play(in_pod_scope(), one("one", 4), one("two", 4), informed=informed)
        play.create("one")
        play.create("two")
        return play

    assert [first(True).has(name) for name in ("one", "two")] == ["8-11", "12-15"]
    apart = first(False)
    assert [apart.has(name) for name in ("one", "two")] == ["2-5", "8-11"]


def test_the_total_counts_init_containers_sidecars_and_whole_cpus_as_the_kubelet_does() -> None:
    told = pod(cpu=9.5)
    rows = one("mesh", 2, SIDECAR), one("setup", 4, INIT), one("one", 2), one("two", 5.5)
    assert Play(in_pod_scope(), *rows, of=told, informed=False).create("mesh").refusal is not None
    play = Play(in_pod_scope(), *rows, of=told)
    for row in rows:
        assert play.create(row.name).refusal is None
    assert [play.has(row.name) for row in rows[:3]] == ["2-3", "4-7", "4-5"]
    assert play.state.exclusive == cpus("2-7")


def test_the_total_fills_up_the_last_core_of_each_container() -> None:
    rows = one("one", 3), one("two", 3)
    on = in_pod_scope(smt_odd_counts=SMTOddCounts.ROUND_UP)
    # The total of the runtime does not tell how many containers there are, so node 0 seemed to have room for all.
    alone = Play(on, *rows, of=pod(cpu=6), informed=False)
    alone.create("one")
    refusal = alone.create("two").refusal
    assert refusal
    assert refusal.kind is RefusalKind.TOPOLOGY_AFFINITY
    play = Play(on, *rows, of=pod(cpu=6))
    play.create("one")
    play.create("two")
    assert [play.has(row.name) for row in rows] == ["8-11", "12-15"]


def test_without_cpu_manager_the_cpus_of_the_whole_pod_are_no_wish() -> None:
    on = in_pod_scope(cpu_manager_policy=CPUManagerPolicy.NONE)
    event = nri.CreateContainer(pod(cpu=40), container(pod(cpu=40), cpu=40))
    near = DeviceResource("x/gpu", (Device("a", nodes(0)),))
    assert decide(on, State(), InformedCreate(event, (near,))).refusal is None


def test_an_annotation_of_another_container_is_heard_where_the_total_counts_it() -> None:
    of = replace(pod("p1", "Burstable"), annotations={"nri-pin/exclusive-cpus.container.two": "many"})
    on = in_pod_scope(annotation_namespaces=frozenset({"default"}))
    facts = PodFacts("p1", QOSClass.BURSTABLE, (one("one", 2), one("two", 2)))
    near = DeviceResource("x/gpu", (Device("a", nodes(0)),))
    event = nri.CreateContainer(of, container(of, "one", cpu=2))
    decision = decide(on, State(), InformedCreate(event, (near,), (near,), facts))
    assert decision.refusal
    assert decision.refusal.kind is RefusalKind.ANNOTATION


MEMORY = node(memory_manager_policy=MemoryManagerPolicy.STATIC)


def memory_of(play: Play, name: str) -> list[tuple[str, int]]:
    blocks = play.state.allocations[f"{play.of.uid}/{name}"].memory
    return [(str(block.nodes), block.size_bytes // GIB) for block in blocks]


@WITH_AND_WITHOUT
def test_an_ended_init_container_leaves_its_memory_to_those_after_it(informed: bool) -> None:
    rows = one("setup", 1, INIT, 12 * GIB), one("web", 1, memory=8 * GIB), one("log", 1, memory=8 * GIB)
    play = Play(MEMORY, *rows, informed=informed)
    for name in ("setup", "web", "log"):
        play.runs(name)
        if name == "setup":
            play.ends(name)
    left = (
        [] if informed else [("0", 0)]
    )  # known to be an init container, it holds nothing after the next start
    assert [memory_of(play, row.name) for row in rows] == [left, [("0", 8)], [("0", 8)]]


def test_memory_of_a_sidecar_is_not_passed_on() -> None:
    play = Play(MEMORY, one("mesh", 1, SIDECAR, 12 * GIB), one("web", 1, memory=8 * GIB))
    for name in ("mesh", "web"):
        play.runs(name)
        play.ends(name)
    assert [memory_of(play, name) for name in ("mesh", "web")] == [[("0", 12)], [("1", 8)]]


def crashed(on: Node, *rows: ContainerFacts) -> Play:
    """The first ended before the second came, and nobody knows that it is no init container."""
    play = Play(on, *rows, informed=False)
    play.runs(rows[0].name)
    play.ends(rows[0].name)
    play.runs(rows[1].name)
    return play


def test_memory_that_was_taken_over_by_mistake_is_taken_anew_when_its_container_comes_back() -> None:
    on = dataclasses.replace(
        MEMORY, options=dataclasses.replace(MEMORY.options, cpu_manager_policy=CPUManagerPolicy.NONE)
    )
    play = crashed(on, one("one", 1, memory=6 * GIB), one("two", 1, memory=5 * GIB))
    assert [memory_of(play, name) for name in ("one", "two")] == [[("0", 1)], [("0", 5)]]
    assert play.create("one", 1).steps == ("kept", "memory-taken-anew")
    assert [memory_of(play, name) for name in ("one", "two")] == [[("0", 6)], [("0", 5)]]


def test_memory_that_nobody_has_any_more_refuses_the_container_that_lost_it() -> None:
    on = node(
        machine(nodes=1, cores=8),
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        cpu_manager_policy=CPUManagerPolicy.NONE,
    )
    play = crashed(on, one("one", 1, memory=10 * GIB), one("two", 1, memory=10 * GIB))
    refusal = play.create("one", 1).refusal
    assert refusal
    assert refusal.kind is RefusalKind.MEMORY


def test_an_init_container_that_runs_once_more_is_created_without_taking_memory_again() -> None:
    play = Play(MEMORY, one("setup", 0.5, INIT, 12 * GIB), one("web", 0.5, memory=5 * GIB))
    for name in ("setup", "web"):
        play.runs(name)
        play.ends(name)
    other = Play(MEMORY, one("big", 1, memory=11 * GIB), of=pod("p2"))
    other.state = play.state
    assert other.create("big").refusal is None
    play.state = other.state
    again = play.create("setup", 1)
    assert (again.refusal, again.steps) == (None, ("kept",))
    assert memory_of(play, "setup") == []
    assert play.state.allocations["p1/setup"].mems == nodes()


def test_an_init_container_that_lost_its_cpus_takes_no_memory_when_it_runs_once_more() -> None:
    play = Play(MEMORY, one("setup", 2, INIT, 12 * GIB), one("web", 2, memory=5 * GIB))
    for name in ("setup", "web"):
        play.runs(name)
        play.ends(name)
    assert play.create("setup", 1).refusal is None
    assert (play.has("setup"), memory_of(play, "setup")) == ("2-3", [])
    assert memory_of(play, "web") == [("0", 5)]


@pytest.mark.parametrize("start", [nri.StartContainer, nri.PostStartContainer])
def test_memory_of_an_ended_init_container_is_anybodys_once_the_next_container_has_started(
    start: type[nri.StartContainer],
) -> None:
    setup, web = one("setup", 1, INIT, 12 * GIB), one("web", 1, memory=1 * GIB)
    play = Play(MEMORY, setup, web, one("log", 1, memory=1 * GIB))
    play.runs("setup")
    play.ends("setup")
    play.create("web")
    assert memory_of(play, "setup") == [("0", 10)]  # the log's byte is admitted already
    play.told(start(play.of, container(play.of, "web")))
    assert memory_of(play, "setup") == []


def test_so_it_is_where_the_start_was_only_listed_when_the_agent_came_back() -> None:
    play = Play(MEMORY, one("setup", 1, INIT, 12 * GIB), one("web", 1, memory=1 * GIB))
    play.runs("setup")
    play.ends("setup")
    play.create("web")
    web = container(play.of, "web", cpu=1, memory=GIB, cpus=play.has("web"), mems="0")
    for state, left in ((ContainerState.CREATED, [("0", 11)]), (ContainerState.RUNNING, [])):
        play.told(nri.Synchronize((play.of,), (replace(web, state=state),)))
        assert memory_of(play, "setup") == left
    assert memory_of(play, "web") == [("0", 1)]


def test_a_later_container_is_placed_as_if_its_pod_still_had_the_memory_that_was_given_back() -> None:
    """The kubelet has placed it by then: on what the init container leaves, so that nothing new is taken."""
    rows = one("load", 1, INIT, 12 * GIB), one("setup", 1, INIT, 1 * GIB), one("web", 1, memory=10 * GIB)
    play = Play(MEMORY, *rows)
    for name in ("load", "setup"):
        play.runs(name)
        play.ends(name)
    assert memory_of(play, "load") == []
    play.runs("web")
    assert [memory_of(play, name) for name in ("load", "setup", "web")] == [[], [], [("0", 10)]]


def test_ephemeral_containers_are_in_no_specification_and_share_the_pool() -> None:
    play = Play(node(), one("web", 2))
    play.runs("web")
    event = nri.CreateContainer(play.of, container(play.of, "debugger"))
    decision = decide(node(), play.state, InformedCreate(event, facts=play.facts))
    assert decision.steps == ("shared",)
    assert decision.state.containers["p1-debugger-0"].phase is Phase.CREATING


def gpus(*nodes_by_id: int, there: tuple[int, ...] = (0, 1)) -> tuple[DeviceResource, ...]:
    """Devices by the node each is on; the machine has two on each node `there`."""
    given = tuple(Device(f"gpu{number}", nodes(on)) for number, on in enumerate(nodes_by_id))
    return (DeviceResource("a.b/gpu", given, tuple((nodes(on), 2) for on in there)),)


RING = node(
    topology_manager_policy=TopologyManagerPolicy.RESTRICTED, topology_manager_scope=TopologyManagerScope.POD
)


def ring(counted: bool, restarted: bool = False) -> tuple[State, list[Decision]]:
    """Two containers whose devices are on different nodes; the pod's are known at the first, or never."""
    cpu = 5 if counted else 2  # so many in all that one node, or both, is preferred for the pod
    facts = PodFacts("p1", QOSClass.GUARANTEED, (one("left", cpu), one("right", cpu)))
    state, told = decide(RING, State(), nri.RunPodSandbox(pod())).state, []
    for name, on in (("left", 0), ("right", 1)):
        what = container(pod(), name, cpu=cpu)
        whole = gpus(0, 0, 1, 1) if counted else ()
        event = InformedCreate(nri.CreateContainer(pod(), what), gpus(on, on), whole, facts)
        told.append(decide(RING, state, event))
        state = told[-1].state
        if restarted:
            placed = replace(what, resources=replace(what.resources, cpus=str(state.exclusive)))
            state = decide(RING, state, nri.Synchronize((pod(),), (placed,))).state
    return state, told


@pytest.mark.parametrize("restarted", [False, True])
def test_devices_that_the_pods_hint_was_made_with_are_not_asked_about_again(restarted: bool) -> None:
    state, told = ring(counted=True, restarted=restarted)
    assert [decision.refusal for decision in told] == [None, None]
    assert state.pods["p1"].affinity == nodes(0, 1)
    assert state.pods["p1"].devices_counted


def test_a_pod_that_stopped_is_asked_about_its_devices_anew() -> None:
    state, _ = ring(counted=True)
    assert not decide(RING, state, nri.StopPodSandbox(pod())).state.pods["p1"].devices_counted
