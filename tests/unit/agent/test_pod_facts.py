"""What is found out of a container before it is placed, and what that costs at most."""

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.agent.observing.metrics import Metrics
from nri_plugin.agent.serving import pod_facts
from nri_plugin.agent.serving.pod_facts import EXPORTER_LIMIT_S, LATE_PAUSE_S, NoAnswerError, PodFactsLookup
from nri_plugin.agent.start import build_handler, build_lookup
from nri_plugin.config.loading import load_text
from nri_plugin.core.decision import ExporterAnswer, InformedCreate
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.bounds import Cut
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.records import ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, DeviceNode
from tests.agent_fakes import Bench, Clock, recording_log
from tests.agent_process import config_text, machine_root
from tests.builders import container, node, pod
from tests.exporter import PATIENCE_S, Exporter

STRICT = node(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)
GPU = DeviceResource("x/gpu", (Device("g1", NodeMask.of(1)),))
NIC = DeviceResource("PCIDEVICE_X", (Device("0000:84:00.0", NodeMask.of(0)),))
FACTS = PodFacts("p1", QOSClass.GUARANTEED, (ContainerFacts("c", Kind.INIT),))
EVENT = nri.CreateContainer(pod(), container(pod(), cpu=2))


class FakeLocator(DeviceLocator):
    """Always finds a NIC."""

    def __init__(self) -> None:
        super().__init__(KernelFiles("/nowhere"))
        self.asked = 0

    def resources(self, container: Container) -> tuple[DeviceResource, ...]:
        self.asked += 1
        return (NIC,)


@dataclass
class FakeClient:
    """Knows a GPU, or what it is told to, or fails; keeps how long it was given."""

    path: str = "/exporter.sock"
    known: ExporterAnswer = field(default_factory=lambda: ExporterAnswer((GPU,)))
    failure: NoAnswerError | None = None
    limits: list[float] = field(default_factory=list)
    about_devices: list[bool] = field(default_factory=list)

    def ask(self, event: nri.CreateContainer, limit_s: float, *, devices: bool = True) -> ExporterAnswer:
        self.limits.append(limit_s)
        self.about_devices.append(devices)
        if self.failure is not None:
            raise self.failure
        return self.known


class Desk:
    """An informant on fakes."""

    def __init__(self, **client: object) -> None:
        self.clock = Clock()
        self.client = FakeClient(**client)  # type: ignore[arg-type]
        self.locator = FakeLocator()
        self.log, self.lines = recording_log()
        self.outcomes: Counter[str] = Counter()
        self.informant = PodFactsLookup(
            self.locator,  # type: ignore[arg-type]
            self.client,  # type: ignore[arg-type]
            self.log,
            self.clock,
            lambda result: self.outcomes.update([result]),
        )

    def told(self, event: nri.NRIEvent = EVENT, *, left: float | None = 2.0, on=STRICT):
        deadline = None if left is None else self.clock.now + left
        return self.informant(on, nri.Request(1, deadline, event))


def test_what_the_exporter_knows_is_all_that_counts() -> None:
    desk = Desk()
    assert desk.told() == InformedCreate(EVENT, (GPU,))
    assert (desk.client.about_devices, desk.locator.asked) == ([True], 0)
    assert desk.outcomes == {"answered": 1}


@pytest.mark.parametrize(
    ("client", "outcome"),
    [
        ({"known": ExporterAnswer()}, "unknown"),
        ({"failure": NoAnswerError("/exporter.sock", "no such file or directory")}, "failed"),
    ],
)
def test_without_an_answer_the_runtimes_message_counts(client: dict[str, object], outcome: str) -> None:
    desk = Desk(**client)
    assert desk.told() == InformedCreate(EVENT, (NIC,))
    assert desk.outcomes == {outcome: 1}


def test_a_missing_answer_is_said_at_debug_level_only() -> None:
    desk = Desk(failure=NoAnswerError("/exporter.sock", "connection refused"))
    desk.told()
    assert [(level, fields["err"]) for level, _, fields in desk.lines.lines] == [
        ("DEBUG", desk.client.failure)
    ]


@pytest.mark.parametrize(("left", "limit"), [(None, EXPORTER_LIMIT_S), (2.0, EXPORTER_LIMIT_S), (0.2, 0.05)])
def test_the_exporter_has_a_tenth_of_a_second_or_a_quarter_of_what_is_left(left, limit) -> None:
    desk = Desk()
    desk.told(left=left)
    assert desk.client.limits == [pytest.approx(limit)]


def test_past_the_deadline_nobody_is_asked() -> None:
    desk = Desk()
    assert desk.told(left=-1.0) == InformedCreate(EVENT, (NIC,))
    assert desk.client.limits == []


LATE = NoAnswerError("/exporter.sock", "no answer within 100 ms", late=True)


def test_one_late_answer_silences_no_other_container() -> None:
    desk = Desk(failure=LATE)
    for failure in (LATE, None, LATE, NoAnswerError("/exporter.sock", "connection refused"), LATE, None):
        desk.client.failure = failure
        desk.told()
    assert desk.outcomes == {"failed": 4, "answered": 2}


def test_an_exporter_that_was_late_twice_is_left_alone_for_a_while() -> None:
    desk = Desk(failure=LATE)
    desk.told()
    desk.told()
    desk.client.failure = None
    assert desk.told() == InformedCreate(EVENT, (NIC,))
    desk.clock.now += LATE_PAUSE_S
    assert desk.told() == InformedCreate(EVENT, (GPU,))
    assert desk.outcomes == {"failed": 2, "paused": 1, "answered": 1}


def test_an_exporter_that_is_still_late_after_the_pause_is_left_alone_at_once() -> None:
    desk = Desk(failure=LATE)
    desk.told()
    desk.told()
    desk.clock.now += LATE_PAUSE_S
    desk.told()
    desk.told()
    assert desk.outcomes == {"failed": 3, "paused": 1}


def test_one_that_is_not_there_is_asked_again_at_once() -> None:
    desk = Desk(failure=NoAnswerError("/exporter.sock", "no such file or directory"))
    desk.told()
    desk.told()
    assert len(desk.client.limits) == 2


def test_other_events_are_left_as_they_are() -> None:
    desk = Desk()
    event = nri.RunPodSandbox(pod())
    assert desk.told(event) is event
    assert desk.outcomes == {}


def create(qos: str, parent: str | None = None, **annotations: str) -> nri.CreateContainer:
    of = pod("p1", qos)
    of = replace(of, cgroup_parent=parent or of.cgroup_parent, annotations=annotations)
    return nri.CreateContainer(of, container(of, cpu=2))


@pytest.mark.parametrize(
    ("on", "event", "is_asked"),
    [
        (node(), create("Guaranteed"), True),
        (node(), create("Burstable"), False),
        (node(), create("BestEffort"), False),
        (node(), create("Burstable", "/somewhere/else"), True),
        (node(annotation_namespaces=frozenset({"default"})), create("Burstable", **{"nri-pin/x": ""}), True),
        (node(annotation_namespaces=frozenset({"default"})), create("Burstable", **{"other/x": ""}), False),
        (node(annotation_namespaces=frozenset({"other"})), create("Burstable", **{"nri-pin/x": ""}), False),
        (node(cpu_manager_policy=CPUManagerPolicy.NONE), create("Guaranteed"), False),
        (
            node(cpu_manager_policy=CPUManagerPolicy.NONE, memory_manager_policy=MemoryManagerPolicy.STATIC),
            create("Guaranteed"),
            True,
        ),
    ],
)
def test_without_a_topology_policy_the_exporter_is_asked_where_facts_may_change_something(
    on: Node, event: nri.CreateContainer, is_asked: bool
) -> None:
    desk = Desk(known=ExporterAnswer((GPU,), (GPU,), FACTS))
    assert desk.told(event, on=on) == (InformedCreate(event, facts=FACTS) if is_asked else event)
    assert (desk.client.about_devices, desk.locator.asked) == ([False] * is_asked, 0)


def test_without_a_topology_policy_and_without_facts_the_event_stays_as_it_is() -> None:
    desk = Desk()
    assert desk.told(on=node()) is EVENT


@pytest.mark.parametrize(
    "on",
    [
        STRICT,
        dataclasses.replace(
            STRICT,
            options=dataclasses.replace(STRICT.options, topology_manager_policy=TopologyManagerPolicy.NONE),
        ),
    ],
)
@pytest.mark.parametrize("devices", [None, ()])
def test_the_end_of_a_pod_is_handed_on_at_the_creation_of_its_container(on, devices) -> None:
    desk = Desk(known=ExporterAnswer(devices, has_ended=True))
    event = desk.told(create("Guaranteed"), on=on)
    assert isinstance(event, InformedCreate)
    assert event.has_ended


def test_facts_are_handed_on_with_the_devices_of_the_runtimes_message() -> None:
    desk = Desk(known=ExporterAnswer(facts=FACTS))
    assert desk.told() == InformedCreate(EVENT, (NIC,), facts=FACTS)
    assert desk.outcomes == {"answered": 1}


def test_facts_that_cannot_be_used_are_said_at_debug_level_only() -> None:
    desk = Desk(known=ExporterAnswer((GPU,), unusable="not facts: 7"))
    assert desk.told() == InformedCreate(EVENT, (GPU,))
    assert [(level, text, fields["err"]) for level, text, fields in desk.lines.lines] == [
        ("DEBUG", "facts of a pod ignored", "not facts: 7")
    ]


def test_with_device_hints_off_facts_are_still_asked_for() -> None:
    desk = Desk(known=ExporterAnswer((GPU,), facts=FACTS))
    desk.informant._locator = None
    assert desk.told() == InformedCreate(EVENT, facts=FACTS)
    assert desk.client.about_devices == [False]


def test_the_handler_decides_on_what_it_was_told() -> None:
    bench = Bench(STRICT)
    bench.handler._inform = Desk().informant
    assert bench.ask(EVENT).response.resources.cpus == "8-9"


def with_gpu_on_node_1(folder: Path) -> Path:
    host = machine_root(folder)
    device = host / "sys/devices/pci0000:80/0000:83:00.0"
    (device / "drm/card1").mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (host / "sys/dev/char").mkdir(parents=True)
    (host / "sys/dev/char/226:1").symlink_to(device / "drm/card1")
    return host


@pytest.mark.parametrize(("switch", "cpus"), [("true", "8-9"), ("false", "2-3")])
def test_device_hints_can_be_switched_off(tmp_path: Path, switch: str, cpus: str) -> None:
    with_gpu_on_node_1(tmp_path)
    text = config_text(tmp_path, topologyManagerPolicy="single-numa-node", deviceHints=switch)
    log, _ = recording_log()
    handler = build_handler(load_text(text, "test"), log, time.monotonic)
    what = replace(EVENT.container, devices=(DeviceNode("/dev/dri/card1", "c", 226, 1),))
    answer = handler.handle(nri.Request(1, None, nri.CreateContainer(EVENT.pod, what)))
    handler.close()
    assert answer.response.resources.cpus == cpus


def test_what_became_of_questions_is_counted_where_somebody_counts(tmp_path: Path) -> None:
    machine_root(tmp_path)
    log, _ = recording_log()
    monitoring = Metrics()
    text = config_text(tmp_path, topologyManagerPolicy="single-numa-node")
    handler = build_handler(load_text(text, "test"), log, time.monotonic, monitoring)
    handler.handle(nri.Request(1, None, EVENT))
    handler.close()
    read = monitoring.registry.get_sample_value
    assert read("nri_pin_exporter_answers_total", {"result": "failed"}) == 1


def test_an_exporter_in_the_state_directory_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_facts, "EXPORTER_LIMIT_S", PATIENCE_S)
    with_gpu_on_node_1(tmp_path)
    (tmp_path / "state" / "exporter").mkdir(parents=True)
    exporter = Exporter(tmp_path / "state" / "exporter")
    exporter.answers('{"devices": [{"resource": "x/gpu", "ids": ["g"], "nodes": [1]}]}\n')
    log, _ = recording_log()
    text = config_text(tmp_path, topologyManagerPolicy="single-numa-node")
    handler = build_handler(load_text(text, "test"), log, time.monotonic)
    answer = handler.handle(nri.Request(1, None, EVENT))
    handler.close()
    exporter.close()
    assert answer.response.resources.cpus == "8-9"


def test_the_exporter_is_looked_for_in_the_state_directory_or_where_configured(tmp_path: Path) -> None:
    machine_root(tmp_path)
    log, _ = recording_log()
    for more, path in (
        ({}, tmp_path / "state/exporter/exporter.sock"),
        ({"exporterSocket": "/e.sock"}, Path("/e.sock")),
    ):
        informant = build_lookup(load_text(config_text(tmp_path, **more), "test"), log, Clock())
        assert informant is not None
        assert informant._client.path == str(path)


CUT = "a pod exceeds the bounds of its input, the rest is left out"


def said(desk: Desk) -> list[tuple[object, object, object]]:
    return [
        (fields["pod"], fields["container"], fields["what"])
        for level, text, fields in desk.lines.lines
        if (level, text) == ("WARNING", CUT)
    ]


def test_what_was_left_out_is_said_once_for_each_pod_and_kind() -> None:
    desk = Desk(known=ExporterAnswer())
    of = replace(pod("p1"), cut=(Cut.ANNOTATIONS,))
    one = replace(container(of, cpu=2), cut=(Cut.ENVIRONMENT,))
    for event in (nri.RunPodSandbox(of), nri.CreateContainer(of, one), nri.StartContainer(of, one)):
        desk.told(event)
    desk.told(nri.Synchronize((of, replace(pod("p2"), cut=(Cut.ANNOTATIONS,))), (one,)))
    assert said(desk) == [
        ("default/p1", "", "annotations"),
        ("default/p1", "c", "environment"),
        ("default/p2", "", "annotations"),
    ]


def test_what_was_said_is_remembered_of_so_many_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_facts, "MOST_PODS_SAID", 2)
    desk = Desk()
    for uid in ("a", "b", "c", "c", "a"):
        desk.told(nri.RunPodSandbox(replace(pod(uid), cut=(Cut.ANNOTATIONS,))))
    assert [name for name, _, _ in said(desk)] == [f"default/{uid}" for uid in "abca"]
    assert len(desk.informant._cuts._said) == 2


def many(count: int) -> DeviceResource:
    return DeviceResource("x/gpu", tuple(Device(f"g{number}", NodeMask.of(1)) for number in range(count)))


@pytest.mark.parametrize("known", [ExporterAnswer((many(257),)), ExporterAnswer((many(1),), (many(257),))])
def test_more_devices_than_hints_are_made_of_are_left_out_and_said(known: ExporterAnswer) -> None:
    desk = Desk(known=replace(known, facts=FACTS))
    told = desk.told()
    assert isinstance(told, InformedCreate)
    assert (told.devices, told.pod_devices, told.facts) == ((), (), FACTS)
    assert told.event.container.cut == (Cut.DEVICES,)
    assert said(desk) == [("default/p1", "c", "devices")]


def test_the_same_of_devices_that_the_host_was_asked_for() -> None:
    desk = Desk(known=ExporterAnswer())
    desk.locator.resources = lambda _container: None  # type: ignore[method-assign]
    told = desk.told()
    assert isinstance(told, InformedCreate)
    assert (told.devices, told.event.container.cut) == ((), (Cut.DEVICES,))
    assert said(desk) == [("default/p1", "c", "devices")]


def test_the_devices_of_the_other_containers_are_passed_on_within_the_bounds() -> None:
    few = (("side", (NIC,)),)
    many = (("side", (DeviceResource("x/gpu", tuple(Device(f"g{n}", NodeMask.of(0)) for n in range(300))),)),)
    told = [
        Desk(known=ExporterAnswer((GPU,), (GPU, NIC), devices_by_container=others)).told()
        for others in (few, many)
    ]
    assert told[0] == InformedCreate(EVENT, (GPU,), (GPU, NIC), devices_by_container=few)
    assert told[1] == InformedCreate(EVENT, (GPU,), (GPU, NIC))
