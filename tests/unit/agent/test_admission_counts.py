"""The counters of pods with resources of their own are the kubelet's, and other figures count each CPU once."""

from functools import partial

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from nri_plugin.agent.observing.metrics import OF_PLACED, Metrics, Placed, Shown, exposition
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.wire.nri import events as nri
from tests.agent_fakes import Bench
from tests.builders import GIB, container, cpu_resources, machine, node, pod

ON = node(
    machine(nodes=2, cores=8),
    topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT,
    topology_manager_scope=TopologyManagerScope.POD,
    memory_manager_policy=MemoryManagerPolicy.STATIC,
    pod_level_managers=True,
)
WHOLE = Amounts(6000, 6000, 6 * GIB, 6 * GIB)


def one(name: str, cpu: float, kind: Kind = Kind.APP, memory: int = GIB) -> ContainerFacts:
    milli = round(cpu * 1000)
    return ContainerFacts(name, kind, Amounts(milli, milli, memory, memory))


ROWS = one("setup", 0, Kind.INIT, 0), one("mesh", 0, Kind.SIDECAR, 0), one("db", 4), one("half", 1.5)


class Counted:
    """A handler whose outcomes are counted; the facts of pods are known."""

    def __init__(self, *, pod_level: bool = True) -> None:
        self.metrics = Metrics(pod_level=pod_level)
        self.facts: PodFacts | None = None
        self.bench = Bench(ON, decide=self.decide, observe=self.metrics)

    def decide(self, of: object, state: object, event: object) -> object:
        known = InformedCreate(event, facts=self.facts) if isinstance(event, nri.CreateContainer) else event
        return decide(of, state, known)  # type: ignore[arg-type]

    def create(self, uid: str, name: str, *rows: ContainerFacts, whole: Amounts | None = WHOLE) -> bool:
        of = pod(uid)
        self.facts = PodFacts(uid, QOSClass.GUARANTEED, rows, whole)
        asked = next(row.amounts for row in rows if row.name == name)
        size = cpu_resources(asked.cpu_request_milli / 1000, asked.memory_limit_bytes)
        made = replace(container(of, name), resources=size)
        return not self.bench.ask(nri.CreateContainer(of, made)).refusal

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_pod_counts_once_for_each_of_its_containers_at_the_first(counted: Counted) -> None:
    allocations = partial(counted.value, "resource_manager_allocations_total")
    assignments = partial(counted.value, "resource_manager_container_assignments")
    for row in ROWS:
        assert counted.create("p", row.name, *ROWS)
        assert allocations(resource_name="cpu", source="pod") == 4
        assert allocations(resource_name="memory", source="pod") == 4
    assert assignments(resource_name="cpu", assignment_type="pod_exclusive") == 1
    assert assignments(resource_name="cpu", assignment_type="pod_shared") == 3
    assert assignments(resource_name="memory", assignment_type="pod_exclusive") == 2
    assert assignments(resource_name="memory", assignment_type="pod_shared") == 2
    assert allocations(resource_name="cpu", source="node") == 0
    # Existing figures: one exclusive container; the pod, its init container and two that own memory.
    assert counted.value("kubelet_cpu_manager_pinning_requests_total") == 1
    assert counted.value("kubelet_memory_manager_pinning_requests_total") == 4


def test_ordinary_containers_count_for_the_node(counted: Counted) -> None:
    for uid in ("a", "b"):
        assert counted.create(uid, "c", one("c", 2), whole=None)
    read = partial(counted.value, "resource_manager_allocations_total")
    assert (read(resource_name="cpu", source="node"), read(resource_name="memory", source="node")) == (2, 2)
    kinds = partial(counted.value, "resource_manager_container_assignments")
    assert kinds(resource_name="cpu", assignment_type="node_exclusive") == 2
    assert kinds(resource_name="memory", assignment_type="node_exclusive") == 2


def test_failures_count_for_what_could_not_be_allocated(counted: Counted) -> None:
    errors = partial(counted.value, "resource_manager_allocation_errors_total")
    assert not counted.create("big", "db", one("db", 4), one("log", 0), whole=Amounts(40000, 40000, GIB, GIB))
    assert errors(resource_name="cpu", source="pod") == 1
    full = one("db", 6, memory=GIB), one("log", 0, memory=0)
    assert not counted.create("full", "db", *full)
    assert errors(resource_name="cpu", source="pod") == 2
    assert counted.value("nri_pin_refusals_total", reason="EmptyPodSharedPoolError") == 1
    assert not counted.create("plain", "c", one("c", 40), whole=None)
    assert errors(resource_name="cpu", source="node") == 1
    memory = one("db", 2, memory=6 * GIB), one("log", 0, memory=0)
    assert not counted.create("memory", "db", *memory)
    assert errors(resource_name="memory", source="pod") == 1


def test_they_are_registered_only_with_the_gate(counted: Counted) -> None:
    text = exposition(counted.metrics.registry).decode()
    for name in ("allocations_total", "allocation_errors_total", "container_assignments"):
        assert f"# TYPE resource_manager_{name} counter" in text
    assert "resource_manager" not in exposition(Counted(pod_level=False).metrics.registry).decode()


def test_gauges_count_the_cpus_of_a_block_once_and_its_containers_by_kind(counted: Counted) -> None:
    for row in ROWS:
        assert counted.create("p", row.name, *ROWS)
    assert counted.create("q", "c", one("c", 0), whole=None)
    registry = CollectorRegistry()
    registry.register(Shown(OF_PLACED, lambda: Placed(ON, counted.bench.handler.state)))
    read = registry.get_sample_value
    assert read("kubelet_cpu_manager_exclusive_cpu_allocation_count") == 6
    assert read("nri_pin_pods_with_own_cpus") == 1
    kinds = {
        kind: read("nri_pin_containers_by_cpus", {"cpus": kind})
        for kind in ("exclusive", "pod-shared", "shared")
    }
    assert kinds == {"exclusive": 1, "pod-shared": 2, "shared": 1}  # the init container has ended
    assert read("nri_pin_allocations") == 5
