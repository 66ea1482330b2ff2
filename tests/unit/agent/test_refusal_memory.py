"""A container that is created again and again is refused from memory while nothing has changed."""

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing.metrics import Metrics
from nri_plugin.agent.serving.handler import MOST_REFUSALS
from nri_plugin.agent.serving.outcome import RequestReply
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import Node, TopologyManagerPolicy
from nri_plugin.model.records import ContainerFacts, PodFacts, QOSClass
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from tests.agent_fakes import Bench
from tests.builders import container, cpus, machine, node, nodes, pod

OTHER, WAITING = pod("other"), pod("waiting")
SINGLE = {"topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE}


class Kept:
    """A history that keeps what was recorded."""

    def __init__(self) -> None:
        self.refusals: list[str] = []

    def decided(self, *_: object, refusal: str = "", **__: object) -> None:
        self.refusals.append(refusal)

    def changed(self, *_: object) -> None:
        pass


class Waiting:
    """A node with an exclusive container of 8 CPUs, and a pod that waits for 8 on one NUMA node."""

    def __init__(self, on: Node | None = None) -> None:
        self.creations = 0
        self.known = InformedCreate(nri.CreateContainer(WAITING, container(WAITING, cpu=8)))
        self.metrics, self.history = Metrics(), Kept()
        self.bench = Bench(on or node(**SINGLE), decide=self.decide, observe=self.metrics)
        self.bench.handler._inform = lambda _node, request: (
            replace(self.known, event=request.event)
            if isinstance(request.event, nri.CreateContainer)
            else request.event
        )
        self.bench.handler._history = self.history  # type: ignore[assignment]
        for of, count in ((OTHER, 8), (pod("third"), 2)):
            self.bench.ask(nri.RunPodSandbox(of))
            self.bench.ask(nri.CreateContainer(of, container(of, cpu=count)))
        self.bench.ask(nri.RunPodSandbox(WAITING))
        self.creations, self.number = 0, 0

    def decide(self, on: Node, state: State, event: object) -> Decision:
        self.creations += isinstance(event, InformedCreate | nri.CreateContainer)
        return decide(on, state, event)  # type: ignore[arg-type]

    def again(self) -> RequestReply:
        """The kubelet tries once more: the container has another id."""
        self.number += 1
        made = container(WAITING, cpu=8, number=self.number)
        return self.bench.ask(nri.CreateContainer(WAITING, made))


def test_the_second_identical_creation_costs_no_placement_and_is_recorded_and_counted() -> None:
    waiting = Waiting()
    first, second = waiting.again(), waiting.again()
    assert first.refusal
    assert second == first
    assert waiting.creations == 1
    assert waiting.history.refusals[-2:] == [first.refusal, first.refusal]
    counted = waiting.metrics.registry.get_sample_value
    assert counted("nri_pin_refusals_from_memory_total") == 1
    assert counted("nri_pin_refusals_total", {"reason": "TopologyAffinityError"}) == 2


def another_pod_ends(waiting: Waiting) -> None:
    waiting.bench.ask(nri.StopPodSandbox(OTHER))


def its_end_is_not_reported(waiting: Waiting) -> None:
    waiting.bench.cgroups.missing.add(OTHER.cgroup_parent)


def another_container_starts(waiting: Waiting) -> None:
    waiting.bench.ask(nri.StartContainer(OTHER, container(OTHER, cpu=8)))


def facts_come(waiting: Waiting) -> None:
    facts = PodFacts("waiting", QOSClass.GUARANTEED, (ContainerFacts("c"),))
    waiting.known = replace(waiting.known, facts=facts)


def devices_come(waiting: Waiting) -> None:
    devices = (DeviceResource("a.b/gpu", (Device("x", nodes(1)),)),)
    waiting.known = replace(waiting.known, devices=devices)


def devices_of_the_pod_come(waiting: Waiting) -> None:
    devices = (DeviceResource("a.b/gpu", (Device("x", nodes(1)),)),)
    waiting.known = replace(waiting.known, pod_devices=devices)


def the_configuration_is_loaded_anew(waiting: Waiting) -> None:
    waiting.bench.handler.change_node(node(**SINGLE))


def a_cpu_goes_offline(waiting: Waiting) -> None:
    on = waiting.bench.handler.node
    online = on.topology.online - cpus("15")
    waiting.bench.handler.change_node(dataclasses.replace(on, topology=replace(on.topology, online=online)))


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        (another_pod_ends, True),
        (its_end_is_not_reported, True),
        (another_container_starts, False),
        (facts_come, False),
        (devices_come, False),
        (devices_of_the_pod_come, False),
        (the_configuration_is_loaded_anew, False),
        (a_cpu_goes_offline, False),
    ],
)
def test_each_kind_of_change_asks_again(change: Callable[[Waiting], None], fits: bool) -> None:
    waiting = Waiting()
    waiting.again()
    change(waiting)
    before = waiting.creations
    assert (waiting.again().refusal == "") is fits
    assert waiting.creations == before + 1


def test_another_request_of_the_same_container_is_decided() -> None:
    waiting = Waiting()
    waiting.again()
    smaller = nri.CreateContainer(WAITING, container(WAITING, cpu=4, number=9))
    assert waiting.bench.ask(smaller).refusal == ""


def test_a_provider_of_another_package_is_asked_each_time() -> None:
    asked: list[object] = []
    on = node(machine(), **SINGLE)
    waiting = Waiting(dataclasses.replace(on, hint_providers=(asked.append,)))
    waiting.again()
    before = len(asked)
    waiting.again()
    assert (waiting.creations, len(asked) > before) == (2, True)


def test_only_the_last_refusals_are_remembered() -> None:
    waiting = Waiting()
    for number in range(MOST_REFUSALS + 1):
        of = pod(f"w{number}")
        waiting.bench.ask(nri.CreateContainer(of, container(of, cpu=8)))
    made = waiting.creations
    for number, decided in ((MOST_REFUSALS, 0), (1, 0), (0, 1)):
        of = pod(f"w{number}")
        assert waiting.bench.ask(nri.CreateContainer(of, container(of, cpu=8, number=1))).refusal
        made += decided
        assert waiting.creations == made
