from typing import get_args

import pytest
from msgspec.structs import replace

from nri_plugin.agent.agent import SUBSCRIPTION
from nri_plugin.agent.observing.metrics import EVENTS, Metrics, exposition
from nri_plugin.agent.serving.pod_facts import RESULTS as ANSWERS
from nri_plugin.core.decision import Decision
from nri_plugin.model.options import MemoryManagerPolicy, Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import EventMask
from tests.agent_fakes import Bench
from tests.builders import GIB, container, machine, node, pod
from tests.drift_reports import drift

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE
SPLIT = machine(caches=2)  # two NUMA nodes of 8 CPUs, two uncore caches of 4 in each
ALIGNED = "kubelet_container_aligned_compute_resources_count"
FAILED = "kubelet_container_aligned_compute_resources_failure_count"


class Counted:
    """A handler whose outcomes are counted."""

    def __init__(self, of: Node) -> None:
        self.metrics = Metrics()
        self.bench = Bench(of, observe=self.metrics)
        self.pods = 0

    def create(
        self, cpu: float, *, name: str = "c", memory: int = 0, number: int = 0, namespace: str = "default"
    ) -> bool:
        """Create a container of a new Guaranteed pod, or with a `number` of the last one; whether it may run."""
        self.pods += number == 0
        of = pod(f"p{self.pods}", cpu=cpu, namespace=namespace)
        if number == 0:
            self.bench.ask(nri.RunPodSandbox(of))
        made = container(of, name, cpu=cpu, memory=memory, number=number)
        return not self.bench.ask(nri.CreateContainer(of, made)).refusal

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def aligned(self, boundary: str, scope: str = "container") -> tuple[float | None, float | None]:
        labels = {"boundary": boundary, "scope": scope}
        return self.value(ALIGNED, **labels), self.value(FAILED, **labels)


@pytest.mark.parametrize(
    ("cpus", "rises"),
    [
        pytest.param(2, 1, id="less than one cache is aligned"),
        pytest.param(4, 1, id="exactly one cache is aligned"),
        pytest.param(6, 0, id="more than one cache is not"),
    ],
)
def test_a_container_within_one_uncore_cache_is_counted_as_aligned(cpus: int, rises: int):
    counted = Counted(node(SPLIT, reserved="8-9", prefer_align_cpus_by_uncore_cache=True))
    assert counted.create(cpus)
    assert counted.aligned("uncore_cache") == (rises, None)


def test_the_uncore_cache_counter_rises_also_where_no_option_asks_for_it():
    counted = Counted(node(SPLIT, reserved="8-9"))
    counted.create(2)
    assert counted.aligned("uncore_cache") == (1, None)


def test_only_single_numa_node_counts_numa_alignment():
    for policy, rises in ((SINGLE, 1), (TopologyManagerPolicy.RESTRICTED, 0)):
        counted = Counted(node(topology_manager_policy=policy))
        assert counted.create(2)
        assert counted.create(12) is (policy is not SINGLE)  # a NUMA node has 8
        assert counted.aligned("numa_node") == (rises, rises)


def test_under_pod_scope_a_pod_counts_once():
    counted = Counted(node(topology_manager_policy=SINGLE, topology_manager_scope=TopologyManagerScope.POD))
    of = pod("p", cpu=4)
    counted.bench.ask(nri.RunPodSandbox(of))
    for name in ("a", "b"):
        assert not counted.bench.ask(nri.CreateContainer(of, container(of, name, cpu=2))).refusal
    assert counted.aligned("numa_node", "pod") == (1, 0)
    assert counted.aligned("numa_node") == (0, 0)
    assert counted.value("kubelet_topology_manager_admission_requests_total") == 2


def test_full_pcpus_only_counts_whole_cores_given_and_refused():
    counted = Counted(node(full_pcpus_only=True))
    assert counted.create(2)
    assert not counted.create(3)
    assert not counted.create(16)
    assert counted.aligned("physical_cpu") == (1, 2)
    without = Counted(node())
    assert without.create(3)
    assert without.aligned("physical_cpu") == (0, 0)


def test_shared_containers_are_admitted_but_ask_for_no_pinning():
    counted = Counted(node())
    assert counted.create(0.5)
    assert counted.value("kubelet_topology_manager_admission_requests_total") == 1
    assert counted.value("kubelet_topology_manager_admission_errors_total") == 0
    assert counted.value("kubelet_cpu_manager_pinning_requests_total") == 0
    assert counted.value("kubelet_memory_manager_pinning_requests_total") == 0
    assert counted.value("kubelet_topology_manager_admission_duration_ms_count") == 1


def test_exclusive_cpus_given_and_not_given_are_pinning_requests():
    counted = Counted(node())
    assert counted.create(2)
    assert not counted.create(64)
    assert counted.value("kubelet_cpu_manager_pinning_requests_total") == 2
    assert counted.value("kubelet_cpu_manager_pinning_errors_total") == 1
    assert counted.value("kubelet_topology_manager_admission_errors_total") == 1
    assert counted.value("nri_pin_refusals_total", reason="UnexpectedAdmissionError") == 1


def test_a_refusal_by_hints_never_reached_the_cpu_manager():
    counted = Counted(node(topology_manager_policy=SINGLE))
    assert not counted.create(12)
    assert counted.value("kubelet_cpu_manager_pinning_requests_total") == 0
    assert counted.value("nri_pin_refusals_total", reason="TopologyAffinityError") == 1


def test_memory_given_and_not_given_are_pinning_requests():
    counted = Counted(node(memory_manager_policy=MemoryManagerPolicy.STATIC))
    assert counted.create(1, memory=GIB)
    assert not counted.create(1, memory=1000 * GIB)
    assert counted.value("kubelet_memory_manager_pinning_requests_total") == 2
    assert counted.value("kubelet_memory_manager_pinning_errors_total") == 1


def test_a_container_that_is_only_started_again_is_not_admitted_again():
    counted = Counted(node())
    counted.create(2)
    counted.create(2, number=1)
    assert counted.value("kubelet_topology_manager_admission_requests_total") == 1
    assert counted.value("kubelet_cpu_manager_pinning_requests_total") == 1


def test_a_refused_container_that_comes_again_is_admitted_again():
    counted = Counted(node())
    counted.create(64)
    counted.create(64, number=1)
    assert counted.value("kubelet_topology_manager_admission_requests_total") == 2


def test_a_refusal_that_never_refuse_overrules_is_counted_as_one():
    counted = Counted(node(topology_manager_policy=SINGLE, never_refuse=frozenset({"kube-system"})))
    assert counted.create(12, namespace="kube-system")
    assert counted.value("kubelet_topology_manager_admission_errors_total") == 1
    assert counted.value("nri_pin_refusals_total", reason="TopologyAffinityError") == 1
    assert counted.aligned("numa_node") == (0, 1)
    assert counted.value("nri_pin_events_total", event="CreateContainer", result="answered") == 1


def test_a_container_refused_by_a_full_disk_is_failed_and_no_policy_error():
    counted = Counted(node(topology_manager_policy=SINGLE))
    counted.create(0.5)
    counted.bench.checkpoint.failures = 1
    assert not counted.create(2, number=1, name="other")
    assert counted.value("nri_pin_events_total", event="CreateContainer", result="failed") == 1
    assert counted.value("nri_pin_refusals_total", reason="UnexpectedAdmissionError") == 1
    assert counted.value("kubelet_topology_manager_admission_errors_total") == 1
    assert counted.value("kubelet_cpu_manager_pinning_requests_total") == 0
    assert counted.aligned("numa_node") == (1, 0)


def test_a_placement_that_may_not_be_the_best_is_counted():
    def decide(of: Node, state: object, event: object) -> Decision:
        return Decision(state, steps=("inexact-hint", "exclusive"))  # type: ignore[arg-type]

    metrics = Metrics()
    bench = Bench(node(), decide=decide, observe=metrics)
    bench.ask(nri.CreateContainer(pod(), container(pod(), cpu=2)))
    assert metrics.registry.get_sample_value("nri_pin_inexact_decisions_total") == 1


def test_an_update_that_would_have_put_back_an_old_cpuset_is_a_repair():
    counted = Counted(node())
    counted.create(2)
    of = pod("p1", cpu=2)
    stale = container(of, cpu=2, cpus="0-15")
    counted.bench.ask(nri.UpdateContainer(of, stale, stale.resources))
    assert counted.value("nri_pin_drift_repairs_total", noticed_by="update") == 1
    agreeing = container(of, cpu=2, cpus="2-3")
    counted.bench.ask(nri.UpdateContainer(of, agreeing, replace(agreeing.resources, cpus="2-3")))
    assert counted.value("nri_pin_drift_repairs_total", noticed_by="update") == 1


def test_questions_to_the_exporter_are_counted_by_what_became_of_them():
    metrics = Metrics()
    metrics.asked("paused")
    read = metrics.registry.get_sample_value
    told = {one: read("nri_pin_exporter_answers_total", {"result": one}) for one in ANSWERS}
    assert told == {"answered": 0, "unknown": 0, "failed": 0, "paused": 1}


def test_drifts_are_counted_by_cause_and_by_what_became_of_them():
    metrics = Metrics()
    read = metrics.registry.get_sample_value
    metrics.drifted(drift())
    metrics.drifted(drift(2, "sweep", "refused"))
    assert read("nri_pin_drifts_total", {"cause": "all-cpus"}) == 2
    assert read("nri_pin_drift_repairs_total", {"noticed_by": "watch"}) == 1
    assert read("nri_pin_drift_repairs_total", {"noticed_by": "sweep"}) == 0
    assert read("nri_pin_drift_failures_total", {"noticed_by": "sweep"}) == 1


def test_every_event_is_timed_under_one_of_a_closed_set_of_names():
    counted = Counted(node())
    counted.create(2)
    counted.bench.ask(nri.Configure("", "containerd", "2.1"))
    assert counted.value("nri_pin_hook_duration_seconds_count", event="CreateContainer") == 1
    assert counted.value("nri_pin_decision_duration_seconds_count", event="RunPodSandbox") == 1
    assert counted.value("nri_pin_hook_duration_seconds_count", event="other") == 1
    assert len(EVENTS) == len(set(EVENTS))


def series(text: str, name: str) -> set[str]:
    """Label texts of the lines of exactly that name."""
    return {line[len(name) :].rsplit(" ", 1)[0] for line in text.splitlines() if line.startswith(f"{name}{{")}


def test_every_event_the_agent_asks_for_has_a_label_of_its_own():
    asked = {mask.name.replace("_", "").lower() for mask in EventMask if mask & SUBSCRIPTION}  # type: ignore[union-attr]
    assert asked <= {event.lower() for event in EVENTS}
    assert set(EVENTS) - {"other"} <= {kind.__name__ for kind in get_args(nri.NRIEvent)}


def test_the_text_has_the_kubelets_names_types_and_labels():
    text = exposition(Metrics().registry).decode()
    cpu, cache = (f'{{boundary="{word}",scope="container"}}' for word in ("physical_cpu", "uncore_cache"))
    numa = {f'{{boundary="numa_node",scope="{scope}"}}' for scope in ("container", "pod")}
    assert series(text, ALIGNED) == {*numa, cpu, cache}
    assert series(text, FAILED) == {*numa, cpu}
    assert f"# TYPE {ALIGNED} counter\n" in text
    assert f"# TYPE {FAILED} counter\n" in text
    for name in (
        "kubelet_topology_manager_admission_requests_total",
        "kubelet_topology_manager_admission_errors_total",
        "kubelet_cpu_manager_pinning_requests_total",
        "kubelet_cpu_manager_pinning_errors_total",
        "kubelet_memory_manager_pinning_requests_total",
        "kubelet_memory_manager_pinning_errors_total",
    ):
        assert f"# TYPE {name} counter\n{name} 0.0\n" in text
    assert 'kubelet_topology_manager_admission_duration_ms_bucket{le="819.2"} 0.0' in text
    assert "_created" not in text
