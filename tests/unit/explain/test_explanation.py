"""A decision is told as it was made: the same outcome, the same words, every step of the way."""

import json

import pytest
from msgspec.structs import replace

from nri_plugin.cli.explain.text import as_dict, explanation_text, fit_text, lead_text, sentence, whys
from nri_plugin.cli.output import render
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.explain.explanation import POD_RESOURCES, ContainerOutcome, explain, settings
from nri_plugin.model.bounds import DEVICES
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Options,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import Amounts, ContainerFacts, PodFacts, QOSClass
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.builders import GIB, container, node, nodes, pod
from tests.explained import after, creation
from tests.level_pod import EXCLUSIVE_2, ROWS, level_node
from tests.whole_pods import PodLife, part, whole

SINGLE = TopologyManagerPolicy.SINGLE_NUMA_NODE


def test_an_exclusive_container_is_told_from_hint_to_cpus() -> None:
    on = node(topology_manager_policy=SINGLE)
    told = explain(on, State(), creation(cpu=4))
    assert (told.outcome, told.cpus, sentence(told)) == (ContainerOutcome.EXCLUSIVE, "2-5", "")
    assert [one.resource for one in told.hints] == ["cpu"]
    assert told.merged
    assert (told.merged.nodes, lead_text(told.merged.lead)) == ("0", "as good, and lower in number")
    assert [step.stage for step in told.taking] == ["whole-core"]
    assert whys(told)[0] == "exclusive: the pod is Guaranteed and 4 is a whole number of CPUs"
    assert told.shared_pool == "0-1,6-15"


def test_a_refusal_has_the_words_of_the_decision() -> None:
    on = node(topology_manager_policy=SINGLE)
    event = creation(cpu=10)
    told = explain(on, State(), event)
    refusal = decide(on, State(), event).refusal
    assert refusal is not None
    assert (told.outcome, told.refusal) == (ContainerOutcome.REFUSED, refusal)
    assert sentence(told).startswith("TopologyAffinityError: ")
    assert told.taking == ()
    assert told.why == ()
    assert [fit_text(fit) for fit in told.fits] == [
        "8 CPUs",
        "topologyManagerPolicy restricted",
        "topologyManagerPolicy best-effort",
    ]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (creation(cpu=2, qos="Burstable"), "the pod is Burstable; only whole CPUs"),
        (creation(qos="BestEffort"), "the pod is BestEffort; only whole CPUs"),
        (creation(cpu=1.5), "1500m is no whole number of CPUs"),
        (creation(), "it asks for no CPUs"),
    ],
)
def test_why_a_container_is_shared(event, why: str) -> None:
    told = explain(node(), State(), event)
    assert told.outcome is ContainerOutcome.SHARED
    assert whys(told)[0].startswith(f"shared: {why}")
    assert told.hints == ()


def test_under_policy_none_nobody_is_exclusive_and_that_is_why() -> None:
    told = explain(node(cpu_manager_policy=CPUManagerPolicy.NONE), State(), creation(cpu=2))
    assert whys(told)[0] == "shared: cpuManagerPolicy none gives no container exclusive CPUs"


def test_resources_of_the_whole_pod_are_why() -> None:
    event = creation(cpu=2)
    facts = PodFacts("new", QOSClass.GUARANTEED, (ContainerFacts("c", amounts=Amounts(2000)),), Amounts(4000))
    told = explain(node(), State(), replace(event, facts=facts))
    assert whys(told)[0] == "shared: its pod sets resources for the pod as a whole (spec.resources)"


def test_the_total_of_the_pod_is_why_where_its_object_is_not_known() -> None:
    rest = ContainerFacts("rest", amounts=Amounts())
    life = PodLife(node(), part("app", 2), rest, resources=whole(4))
    life.is_informed = False
    life.run("app")
    told = explain(life.on, life.state, nri.CreateContainer(life.of, life.message("rest")))
    assert told.outcome is ContainerOutcome.SHARED
    assert whys(told)[0].startswith(
        "shared: with it the containers of its pod would ask for more than the pod does"
    )


def test_what_the_kubelet_fills_in_for_a_container_without_limits_is_not_what_it_asks_for() -> None:
    life = PodLife(level_node(), part("app", 2), ContainerFacts("rest"), resources=whole(4))
    event = InformedCreate(nri.CreateContainer(life.of, life.message("rest")), facts=life.facts)
    told = explain(life.on, life.state, event)
    assert (told.subject.cpu_milli, told.subject.memory) == (0, ())
    assert (told.subject.pod_cpu_milli, told.subject.pod_memory) == (4000, (("memory", 8 * GIB),))


def of_pod(name: str, rows: tuple[ContainerFacts, ...], resources: Amounts) -> InformedCreate:
    of = pod()
    facts = PodFacts(of.uid, QOSClass.GUARANTEED, rows, resources)
    return InformedCreate(nri.CreateContainer(of, container(of, name, cpu=2, memory=2 * GIB)), facts=facts)


def test_a_pod_of_a_fraction_of_a_cpu_takes_none_and_says_so() -> None:
    told = explain(level_node(), State(), of_pod("main", ROWS, Amounts(4500, 4500, 6 * GIB, 6 * GIB)))
    assert told.outcome is ContainerOutcome.SHARED
    assert {one.resource for one in told.hints} == {"memory"}
    assert told.merged
    assert told.merged.scope == POD_RESOURCES
    assert told.taking == ()


def test_a_reason_that_holds_for_several_resources_is_shown_once() -> None:
    pages = (("hugepages-2Mi", 4 << 20),)
    rows = ContainerFacts("main", amounts=replace(EXCLUSIVE_2, hugepages=pages)), ContainerFacts("log")
    told = explain(level_node(), State(), of_pod("main", rows, Amounts(4000, 4000, 4 * GIB, 4 * GIB, pages)))
    assert {one.resource for one in told.hints} == {"cpu", "memory", "hugepages-2Mi"}
    shown = explanation_text(told, 1000)
    assert (
        shown.count(
            "they take 4Mi of 4Mi; set more hugepages-2Mi for the pod itself, or `podSharedPoolRule: cpu-and-memory`: fits nowhere"
        )
        == 1
    )


def test_an_annotation_that_is_heard_is_why() -> None:
    on = node(annotation_namespaces=frozenset({"default"}))
    of = pod("new", "Burstable")
    of = Pod(
        **{name: getattr(of, name) for name in of.__slots__}
        | {"annotations": {"nri-pin/exclusive-cpus.pod": "2"}}
    )
    told = explain(on, State(), nri.CreateContainer(of, container(of, cpu=2)))
    assert told.outcome is ContainerOutcome.EXCLUSIVE
    assert whys(told)[0].startswith("exclusive: annotation nri-pin/exclusive-cpus asks for 2")


def test_a_number_that_grew_to_whole_cores_is_told() -> None:
    told = explain(node(smt_odd_counts=SMTOddCounts.ROUND_UP), State(), creation(cpu=3))
    assert "3 became 4 to fill the last core" in whys(told)[0]
    assert told.subject.exclusive_cpus == 4


def test_memory_that_is_bound_is_told() -> None:
    on = node(memory_manager_policy=MemoryManagerPolicy.STATIC, topology_manager_policy=SINGLE)
    told = explain(on, State(), creation(cpu=2, memory=GIB))
    assert told.mems == "0"
    assert whys(told)[1] == "memory: allocated on NUMA node 0, and bound to it"


def test_a_namespace_that_is_never_refused_is_unplaced_and_told_why() -> None:
    on = node(topology_manager_policy=SINGLE, never_refuse=frozenset({"default"}))
    told = explain(on, State(), creation(cpu=10))
    assert told.outcome is ContainerOutcome.UNPLACED
    assert sentence(told).startswith("TopologyAffinityError")
    assert told.cpus == "0-15"
    assert told.fits


def test_a_restarted_container_is_told_as_if_it_were_placed_now() -> None:
    on = node(topology_manager_policy=SINGLE)
    held = after(on, creation(cpu=4))
    told = explain(on, held, creation(cpu=4))
    assert (told.cpus, told.steps) == ("2-5", ("kept",))
    assert told.merged
    assert told.numa_nodes[0].holders == ()


def test_under_pod_scope_the_pods_total_is_asked_for_and_then_kept() -> None:
    on = node(topology_manager_policy=SINGLE, topology_manager_scope=TopologyManagerScope.POD)
    first = explain(on, State(), creation(cpu=2, total=4))
    assert first.merged
    assert first.merged.scope == "pod-scope"
    assert "cpu: 4 wanted" in first.hints[0].numbers
    state = after(on, creation(cpu=2, total=4))
    of = pod("new", cpu=4)
    second = explain(on, state, nri.CreateContainer(of, container(of, "d", cpu=2)))
    assert second.merged
    assert (second.merged.scope, second.merged.nodes, second.hints) == ("pod-scope-kept", "0", ())
    assert second.outcome is ContainerOutcome.EXCLUSIVE


def test_cpus_that_an_ended_container_of_the_pod_leaves_are_told() -> None:
    on = node()
    state = after(on, creation(cpu=4))
    of = pod("new")
    state = decide(on, state, nri.StopContainer(of, container(of, cpu=4))).state
    told = explain(on, state, nri.CreateContainer(of, container(of, "d", cpu=4)))
    assert whys(told)[-1] == "exclusive: CPUs 2-5 pass on to it from a container of its pod that has ended"


def test_who_shares_the_pool_is_counted() -> None:
    state = after(
        node(), creation("a", qos="Burstable"), creation("b", qos="Burstable"), creation("c", cpu=2)
    )
    told = explain(node(), state, creation(cpu=2))
    assert told.pool_containers == 2


def test_an_annotation_that_makes_no_sense_is_told_without_a_story() -> None:
    on = node(annotation_namespaces=frozenset({"default"}))
    of = pod("new", "Burstable")
    of = Pod(
        **{name: getattr(of, name) for name in of.__slots__}
        | {"annotations": {"nri-pin/exclusive-cpus.pod": "no"}}
    )
    told = explain(on, State(), nri.CreateContainer(of, container(of, cpu=2)))
    assert told.outcome is ContainerOutcome.REFUSED
    assert told.hints == ()
    assert "would fit" not in sentence(told)


def test_settings_name_what_is_not_usual() -> None:
    found = dict(settings(Options(full_pcpus_only=True, smt_odd_counts=SMTOddCounts.ALLOW)))
    assert found == {
        "cpuManagerPolicy": "static",
        "topologyManagerPolicy": "none",
        "topologyManagerScope": "container",
        "memoryManagerPolicy": "None",
        "full-pcpus-only": "true",
        "smtOddCounts": "allow",
    }


def test_everything_is_json() -> None:
    on = node(topology_manager_policy=SINGLE)
    told = explain(on, State(), creation(cpu=10, gpus=(0, 1)))
    back = json.loads(render(as_dict(told), "json"))
    assert back["outcome"] == "refused"
    assert back["subject"]["devices"] == [
        {"resource": "example.com/gpu", "devices": [["0", "0"], ["1", "1"]]}
    ]
    assert back["settings"]["topologyManagerPolicy"] == "single-numa-node"


def test_devices_beyond_the_bounds_are_told() -> None:
    many = DeviceResource("x/gpu", tuple(Device(f"g{number}", nodes(1)) for number in range(DEVICES + 1)))
    told = explain(node(), State(), replace(creation(cpu=4), devices=(many,)))
    assert whys(told)[-1] == "devices: not counted, it has more than 256, or more than 16 resources of them"
    assert told.subject.devices == ()
    assert [one.resource for one in told.hints] == ["cpu"]
    assert "devices-not-counted" in told.steps
