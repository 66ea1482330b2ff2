"""A pod is admitted as a whole."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.kernel_settings import quotas
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.core.reuse import init_memory_released
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    Kind,
    Phase,
    PodFacts,
    QOSClass,
    allocation_key,
)
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.builders import GIB, container, cpu_resources, cpus, machine, node, nodes, pod

APP, INIT, SIDECAR = Kind.APP, Kind.INIT, Kind.SIDECAR
WHOLE = Amounts(6000, 6000, 6 * GIB, 6 * GIB)


def one(name: str, cpu: float = 0, kind: Kind = APP, memory: int = GIB) -> ContainerFacts:
    milli = round(cpu * 1000)
    return ContainerFacts(name, kind, Amounts(milli, milli, memory, memory))


class Life:
    """One pod on a node; events come as a runtime sends them, with or without facts."""

    def __init__(
        self, on: Node, *rows: ContainerFacts, of: Pod | None = None, resources: Amounts | None = None
    ) -> None:
        self.on, self.of, self.state = on, of or pod(), State()
        self.facts: PodFacts | None = PodFacts(self.of.uid, QOSClass.GUARANTEED, rows, resources)
        self.rows = {row.name: row for row in rows}

    def tell(self, event: nri.NRIEvent | InformedCreate) -> Decision:
        decision = decide(self.on, self.state, event)
        assert violations(self.on, decision.state) == []
        self.state = decision.state
        return decision

    def message(self, name: str) -> Container:
        amounts = self.rows[name].amounts if name in self.rows else Amounts()
        asked = cpu_resources(amounts.cpu_request_milli / 1000, amounts.memory_limit_bytes)
        return replace(container(self.of, name), resources=asked)

    def create(self, name: str, **known: object) -> Decision:
        event = InformedCreate(nri.CreateContainer(self.of, self.message(name)), facts=self.facts)
        return self.tell(replace(event, **known))  # type: ignore[arg-type]

    def run(self, name: str) -> None:
        assert self.create(name).refusal is None
        for kind in (nri.PostCreateContainer, nri.StartContainer, nri.PostStartContainer):
            self.tell(kind(self.of, self.message(name)))

    @property
    def held(self) -> dict[str, str]:
        """CPUs by container; the pod as a whole under an empty name."""
        return {key.partition("/")[2]: str(value.cpus) for key, value in self.state.allocations.items()}


FIVE = one("a", 10), one("b", 12), one("c", 12), one("d", 12), one("e", 12)


def test_a_pod_of_which_one_container_fits_nowhere_is_refused_and_holds_nothing() -> None:
    on = node(
        machine(nodes=4, cores=8),
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        reserved="0",
    )
    life = Life(on, *FIVE)
    refusal = life.create("a").refusal
    assert refusal is not None
    assert (refusal.kind, refusal.container, life.held) == (RefusalKind.TOPOLOGY_AFFINITY, "e", {})
    assert str(refusal).startswith("TopologyAffinityError: container e of the pod: ")
    assert "no other pod holds anything" in str(refusal)


def test_all_containers_of_an_admitted_pod_have_their_cpus_before_they_are_created() -> None:
    life = Life(node(), one("a", 2), one("b", 2), one("log"))
    life.run("a")
    assert life.held == {"a": "2-3", "b": "4-5"}
    assert life.state.pods["p1"].is_admitted
    other = Life(node(), one("large", 11), of=pod("p2"))
    other.state = life.state
    assert other.create("large").refusal is not None, "10 CPUs are left, not 12"
    life.run("b")
    assert life.create("log").steps == ("shared",)
    assert life.held == {"a": "2-3", "b": "4-5"}


def test_allocations_of_containers_that_are_never_created_end_with_the_pod() -> None:
    life = Life(node(), one("a", 2), one("b", 2))
    life.run("a")
    life.tell(nri.StopPodSandbox(life.of))
    assert (life.held, life.state.pods["p1"].is_admitted) == ({}, False)


def test_facts_that_come_after_the_first_container_place_the_rest_around_it() -> None:
    life = Life(node(), one("setup", 6, INIT), one("a", 2), one("b", 2), one("c", 2))
    facts, life.facts = life.facts, None
    life.run("a")
    assert life.held == {"a": "2-3"}
    life.facts = facts
    assert life.create("c").refusal is None
    # The init container before them has ended, so nothing is placed for it.
    assert life.held == {"a": "2-3", "b": "4-5", "c": "6-7"}


def test_a_pod_that_restarts_finds_its_allocations_in_the_state() -> None:
    life = Life(node(), one("a", 2), one("b", 2))
    life.run("a")
    running = replace(life.message("a"), resources=replace(life.message("a").resources, cpus="2-3"))
    life.tell(nri.Synchronize((life.of,), (running,)))
    assert life.held == {"a": "2-3", "b": "4-5"}
    assert life.create("b").steps == ("kept",)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([one(f"c{number}", 1 if number < 2 else 20) for number in range(MOST_CONTAINERS + 1)], {}),
        ([one("c0", 1), one("c1", 1), one("c2", 20)], {"never_refuse": frozenset({"default"})}),
    ],
    ids=["too many containers", "a namespace that is never refused"],
)
def test_some_pods_are_admitted_container_by_container(
    rows: list[ContainerFacts], options: dict[str, object]
) -> None:
    life = Life(node(**options), *rows)
    life.run("c0")
    assert (life.held, life.state.pods["p1"].is_admitted) == ({"c0": "2"}, False)
    life.run("c1")
    assert life.held == {"c0": "2", "c1": "3"}


def test_the_devices_of_containers_that_are_not_created_count() -> None:
    on = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
    near = {number: (DeviceResource("a.b/gpu", (Device("x", nodes(number)),)),) for number in (0, 1)}
    both = (DeviceResource("a.b/gpu", (Device("x", nodes(0)), Device("y", nodes(1)))),)
    life = Life(on, one("a", 2), one("b", 2))
    life.create("a", devices=near[0], devices_by_container=(("b", near[1]),))
    assert life.held == {"a": "2-3", "b": "8-9"}
    refused = Life(on, one("a", 2), one("b", 2)).create("a", devices_by_container=(("b", both),)).refusal
    assert refused is not None
    assert refused.container == "b"


def test_an_annotation_that_makes_no_sense_names_the_container_that_it_is_for() -> None:
    on = node(annotation_namespaces=frozenset({"default"}))
    of = replace(pod(), annotations={"nri-pin/smt-odd-counts.container.b": "perhaps"})
    refusal = Life(on, one("a", 2), one("b", 2), of=of).create("a").refusal
    assert refusal is not None
    assert (refusal.kind, refusal.container) == (RefusalKind.ANNOTATION, "b")


@pytest.mark.parametrize(
    ("cpu", "memory", "words"),
    [(20, 1, "requested=20, available=14"), (4, 33, "33Gi of memory in all"), (14, 30, "")],
)
def test_without_the_pods_object_its_total_is_checked_at_the_first_exclusive_container(
    cpu: float, memory: int, words: str
) -> None:
    on = node(memory_manager_policy=MemoryManagerPolicy.STATIC)
    of = pod(cpu=cpu)
    assert of.resources is not None
    of = replace(of, resources=replace(of.resources, memory_limit_bytes=memory * GIB))
    life = Life(on, one("a", 2), one("b", 2), of=of)
    life.facts = None
    refusal = life.create("a").refusal
    assert words in str(refusal) if words else refusal is None
    if not words:
        life.state = replace(life.state, pods={"p1": replace(life.state.pods["p1"], cpu_milli=20_000)})
        assert life.create("b").refusal is None, "it is asked about once"


# ----------------------------------------------------------------------------------------------------
# Pods with resources of their own.


def on_pod_scope(**options: object) -> Node:
    given: dict[str, object] = {
        "topology_manager_policy": TopologyManagerPolicy.BEST_EFFORT,
        "topology_manager_scope": TopologyManagerScope.POD,
        "memory_manager_policy": MemoryManagerPolicy.STATIC,
        "pod_level_managers": True,
    }
    return node(**(given | options))


SHARING = one("mesh", 0.5, SIDECAR), one("app", 4), one("log", 0.5)


def test_containers_share_what_the_exclusive_ones_leave_of_the_pod() -> None:
    life = Life(on_pod_scope(), *SHARING, resources=WHOLE)
    created = life.create("mesh").response
    assert isinstance(created, nri.CreateContainerResponse)
    assert created.resources == Resources(cpus="6-7", mems="0")
    assert life.held == {"": "2-7", "mesh": "6-7", "app": "2-5", "log": "6-7"}
    assert str(life.state.shared_pool(life.on)) == "0-1,8-15"
    for name in ("mesh", "app", "log"):
        life.run(name)
    assert life.held == {"": "2-7", "mesh": "6-7", "app": "2-5", "log": "6-7"}


def test_a_pod_that_was_imported_keeps_what_it_has_when_the_agent_starts() -> None:
    life = Life(on_pod_scope(), *SHARING, resources=WHOLE)
    for name in ("mesh", "app", "log"):
        life.run(name)
    before, has = life.held, {"mesh": "6-7", "app": "2-5", "log": "6-7"}
    # An import knows allocations alone: neither pods nor containers.
    life.state, life.facts = State(allocations=life.state.allocations), None
    running = [
        replace(life.message(name), resources=replace(life.message(name).resources, cpus=cpus_of, mems="0"))
        for name, cpus_of in has.items()
    ]
    life.tell(nri.Synchronize((life.of,), tuple(running)))
    assert life.held == before
    life.tell(nri.StopContainer(life.of, running[0]))
    assert life.create("mesh").steps == ("kept",)
    assert life.held == before


@pytest.mark.parametrize(
    "changed",
    [
        {"pod_level_managers": False},
        {"topology_manager_policy": TopologyManagerPolicy.NONE},
        {"topology_manager_scope": TopologyManagerScope.CONTAINER},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_elsewhere_such_a_pod_owns_nothing_as_a_whole(changed: dict[str, object]) -> None:
    life = Life(on_pod_scope(**changed), *SHARING, resources=WHOLE)
    life.create("mesh")
    is_on = changed.get("pod_level_managers", True)
    assert {name: held for name, held in life.held.items() if held} == ({"app": "2-5"} if is_on else {})


@pytest.mark.parametrize("manager", ["cpu_manager_policy", "memory_manager_policy"])
def test_one_manager_alone_allocates_its_part(manager: str) -> None:
    off: dict[str, object] = {
        "cpu_manager_policy": CPUManagerPolicy.NONE,
        "memory_manager_policy": MemoryManagerPolicy.NONE,
    }
    life = Life(on_pod_scope(**{manager: off[manager]}), *SHARING, resources=WHOLE)
    life.create("mesh")
    block = life.state.allocations[allocation_key("p1", "")]
    assert (bool(block.cpus), bool(block.memory)) == (manager[0] == "m", manager[0] == "c")


def test_a_pod_that_gets_nothing_as_a_whole_shares_the_pool() -> None:
    burstable = replace(WHOLE, cpu_limit_milli=7000)
    life = Life(on_pod_scope(), *SHARING, resources=burstable)
    assert life.facts is not None
    life.facts = replace(life.facts, qos=QOSClass.BURSTABLE)
    assert life.create("mesh").steps == ("pod-resources", "shared")
    assert (life.held, life.state.pods["p1"].is_admitted) == ({}, True)


def test_a_container_with_whole_cpus_shares_the_pool_where_its_pod_asks_for_a_fraction() -> None:
    on = on_pod_scope(memory_manager_policy=MemoryManagerPolicy.NONE)
    life = Life(on, *SHARING, resources=replace(WHOLE, cpu_request_milli=5500, cpu_limit_milli=5500))
    for name in ("mesh", "app", "log"):
        assert life.create(name).steps[-1] == "shared"
    assert life.held == {}


@pytest.mark.parametrize(
    ("rows", "policy", "kind"),
    [
        ((one("app", 6), one("log")), TopologyManagerPolicy.BEST_EFFORT, RefusalKind.EMPTY_POD_SHARED_POOL),
        ((one("app", 6), one("log")), TopologyManagerPolicy.RESTRICTED, RefusalKind.TOPOLOGY_AFFINITY),
        ((one("app", 5), one("db", 2)), TopologyManagerPolicy.BEST_EFFORT, RefusalKind.CPUS),
    ],
)
def test_a_pod_whose_containers_do_not_fit_into_it_is_refused(
    rows: tuple[ContainerFacts, ...], policy: TopologyManagerPolicy, kind: RefusalKind
) -> None:
    life = Life(on_pod_scope(topology_manager_policy=policy), *rows, resources=WHOLE)
    refusal = life.create("app").refusal
    assert refusal is not None
    assert (refusal.kind, life.held) == (kind, {})


def test_what_a_container_holds_already_stays_and_the_pod_goes_container_by_container() -> None:
    life = Life(on_pod_scope(), *SHARING, resources=WHOLE)
    facts, life.facts = life.facts, None
    life.run("app")
    life.facts = facts
    life.create("log")
    assert {name: held for name, held in life.held.items() if held} == {"app": "2-5"}


def quota_targets(life: Life) -> Iterator[tuple[str, bool]]:
    for write in quotas(life.on, life.state):
        yield write.target.path.rpartition("-")[0] or "pod", write.quota_us < 0


def test_the_quota_of_a_pod_stays_while_containers_share_it() -> None:
    def played(*rows: ContainerFacts) -> dict[str, bool]:
        of = pod(cpu=6)
        assert of.resources is not None
        of = replace(of, resources=replace(of.resources, cpu_quota_us=600_000, cpu_period_us=100_000))
        life = Life(on_pod_scope(), *rows, of=of, resources=WHOLE)
        for row in rows:
            assert life.create(row.name).refusal is None
            known = next(one for one in life.state.containers.values() if one.name == row.name)
            life.state = life.state.with_container(
                replace(known, limit_milli=1000, cgroup=CgroupRef(known.cgroup.parent, f"{row.name}-0"))
            )
            for kind in (nri.PostCreateContainer, nri.StartContainer):
                life.tell(kind(of, replace(life.message(row.name), cgroups_path=f"{row.name}-0")))
        return dict(quota_targets(life))

    assert played(*SHARING) == {"app": True, "pod": False}
    assert played(one("app", 4), one("db", 2)) == {"app": True, "db": True, "pod": True}


def test_the_slice_of_an_init_container_may_hold_cpus_that_a_sidecar_shares() -> None:
    rows = one("mesh", 0.5, SIDECAR), one("setup", 6, INIT), one("app", 4), one("log", 0.5)
    life = Life(on_pod_scope(), *rows, resources=WHOLE)
    life.run("mesh")
    life.run("setup")
    assert life.held == {"": "2-7", "mesh": "6-7", "setup": "2-7", "app": "2-5", "log": "6-7"}


def test_under_container_scope_a_larger_total_needs_no_exclusive_cpus() -> None:
    on = on_pod_scope(topology_manager_scope=TopologyManagerScope.CONTAINER)
    of = pod(cpu=6)
    life = Life(on, *SHARING, of=of, resources=WHOLE)
    for name in ("mesh", "app", "log"):
        life.run(name)
    other = Life(on, one("large", 9), of=pod("p2"))
    other.state = life.state
    assert other.create("large").refusal is None
    life.state = other.state
    grown = nri.UpdatePodSandbox(of, resources=cpu_resources(9))
    assert life.tell(grown).refusal is None
    assert life.state.pods["p1"].cpu_milli == 9000


# ----------------------------------------------------------------------------------------------------
# Init containers keep their CPUs.


def test_an_init_container_that_is_created_beside_a_live_container_gets_other_cpus() -> None:
    life = Life(node(), one("setup", 4, INIT), one("web", 2))
    life.run("setup")
    life.run("web")
    assert life.held == {"setup": "2-5", "web": "2-3"}
    assert life.create("setup").refusal is None
    assert life.held["web"] == "2-3"
    assert cpus(life.held["setup"]).isdisjoint(cpus("2-3"))


def test_two_app_containers_of_a_pod_never_hold_the_same_cpu() -> None:
    held = Allocation(cpus("2"))
    state = State(allocations={allocation_key("p1", name): held for name in ("a", "b")})
    assert [str(found) for found in violations(node(), state)] == ["CPU 2 is exclusive to both p1/a and p1/b"]


def test_a_container_of_an_unknown_pod_gives_nothing_back() -> None:
    record = ContainerRecord("id", "gone", "a", Phase.RUNNING, CgroupRef(""))
    state = State(containers={"id": record})
    assert init_memory_released(state, record) is state


def test_a_pod_with_resources_of_its_own_is_told_a_size_that_fits() -> None:
    on = node(
        machine(nodes=2, cores=8),
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        topology_manager_scope=TopologyManagerScope.POD,
        pod_level_managers=True,
    )
    life = Life(on, one("db", 4), one("log"), resources=Amounts(20000, 20000, 6 * GIB, 6 * GIB))
    refusal = life.create("db").refusal
    assert refusal is not None
    assert refusal.is_of_pod
    assert refusal.advice is not None
    assert refusal.advice.cpu_counts == (16,)


@pytest.mark.parametrize(
    ("scope", "resources", "words"),
    [
        (
            TopologyManagerScope.POD,
            WHOLE,
            "pod scope pod with pod-level resources failed admission under pod-scope topology manager: policy ",
        ),
        (
            TopologyManagerScope.CONTAINER,
            WHOLE,
            "pod scope pod with pod-level resources failed admission with a container-level topology manager: policy ",
        ),
        (TopologyManagerScope.POD, None, "resources cannot be allocated with topology locality: policy "),
    ],
)
def test_a_refused_hint_is_worded_as_the_kubelet_words_it_for_such_pods(
    scope: TopologyManagerScope, resources: Amounts | None, words: str
) -> None:
    on = node(
        machine(nodes=4, cores=1),
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        topology_manager_scope=scope,
        pod_level_managers=True,
    )
    refusal = Life(on, one("db", 4), one("log"), resources=resources).create("db").refusal
    assert refusal is not None
    assert refusal.reason == "TopologyAffinityError"
    assert str(refusal.detail).startswith(words)


def test_the_other_containers_of_the_pod_are_named_where_no_other_pod_holds_anything() -> None:
    on = node(
        machine(nodes=4, cores=8),
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        reserved="0",
    )
    life = Life(on, *FIVE)
    life.facts = None
    for name in "abcd":
        assert life.create(name).refusal is None
    text = str(life.create("e").refusal)
    assert (
        "no other pod holds anything; with this configuration it never fits beside the other containers"
        in text
    )
    assert "b (12 CPUs 16-27), c (12 CPUs 32-43), d (12 CPUs 48-59) and 1 more" in text


def test_under_pod_scope_the_refusal_says_that_its_amounts_are_those_of_the_pod() -> None:
    """Advice tells all NUMA nodes that a laxer policy would use."""
    scope = TopologyManagerScope.POD
    on = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE, topology_manager_scope=scope)
    life = Life(on, one("a", 2), one("b", 6), one("c", 4))
    refusal = life.create("a").refusal
    assert refusal is not None
    assert refusal.container == "a"
    assert "cpu: 12 wanted, 14 available" in str(refusal)
    assert "these are the amounts of the pod" in str(refusal)
    assert "policy best-effort on NUMA nodes 0-1" in str(refusal)
