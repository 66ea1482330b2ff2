"""No pod that an API server accepts costs much, whatever its author makes large; and the judge would notice."""

from itertools import repeat
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import ExporterAnswer
from nri_plugin.model import bounds
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events
from tests.bounds_judge import CONTAINER_KEPT, POD_KEPT, JudgedAgent, judged
from tests.builders import container, pod
from tests.largest_pods import SHAPES, TRUSTED, largest

NO_BOUND = 1 << 40
NODES = (NodeMask.of(0), NodeMask.of(1))


def given(resources: int, each: int, chars: int) -> ExporterAnswer:
    """What an exporter says of a container with so many devices."""
    return ExporterAnswer(
        tuple(
            DeviceResource(f"x/{r}", tuple(Device(f"{r}-{d:0{chars}}", NODES[d % 2]) for d in range(each)))
            for r in range(resources)
        )
    )


FACTS = {
    "devices": lambda: given(1, 1800, 1),
    "device resources": lambda: given(256, 1, 1),
    "long names of devices": lambda: given(1, 200, 250),
    "devices of the pod": lambda: replace(given(1, 256, 40), pod_devices=given(1, 256, 40).devices or ()),
    "as many devices as count of the pod too": lambda: replace(
        given(8, 32, 10), pod_devices=given(8, 32, 10).devices or ()
    ),
    "as many devices as count": lambda: given(8, 32, 10),
    "as many resources as count": lambda: given(bounds.DEVICE_RESOURCES, 16, 10),
}


def judged_facts(folder: Path, known: ExporterAnswer) -> list[str]:
    agent = JudgedAgent(folder)
    try:
        of = pod("p1", "BestEffort")
        kept, disk = agent.kept(), agent.on_disk()
        agent.judge_facts(events.CreateContainer(of, container(of)), known)
        agent.judge_kept(kept, disk, 1)
        return agent.faults
    finally:
        agent.close()


@pytest.mark.parametrize("namespace", [TRUSTED, "elsewhere"])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_largest_pods_cost_little_on_every_path(tmp_path: Path, kind: str, namespace: str) -> None:
    assert judged(tmp_path, *largest(kind, namespace=namespace)) == []


@pytest.mark.parametrize("kind", FACTS)
def test_the_longest_answers_of_an_exporter_cost_little(tmp_path: Path, kind: str) -> None:
    assert judged_facts(tmp_path, FACTS[kind]()) == []


@pytest.mark.parametrize(
    ("bound", "kind"),
    [
        ("NAME_CHARS", "names that no API server takes"),
        ("ANNOTATIONS_SEEN", "small annotations of ours"),
        ("ANNOTATIONS", "annotations of ours"),
        ("ANNOTATION_KEY_CHARS", "annotations of long names"),
        ("ANNOTATION_VALUE_CHARS", "one annotation"),
        ("VARIABLES_SEEN", "small variables that list devices"),
        ("VARIABLES", "short variables that list devices"),
        ("ENVIRONMENT_CHARS", "a device variable of many devices"),
        ("ENVIRONMENT_REQUEST_BYTES", "an environment of 4 MiB"),
        ("DEVICES", "device nodes"),
        ("DEVICES", "CDI names"),
        ("DEVICES", "interfaces"),
        ("PATH_CHARS", "device nodes of long paths"),
        ("CDI_NAME_CHARS", "long CDI names"),
        ("DEVICE_LOOKUPS", "CDI names of many nodes"),
        ("PAGE_SIZES", "page sizes"),
        ("PAGE_SIZE_CHARS", "long page sizes"),
    ],
)
def test_the_judge_notices_a_bound_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, kind: str
) -> None:
    monkeypatch.setattr(bounds, bound, NO_BOUND)
    assert judged(tmp_path, *largest(kind)) != []


@pytest.mark.parametrize(
    ("bound", "kind"),
    [
        ("DEVICES", "devices"),
        ("DEVICE_RESOURCES", "device resources"),
        ("DEVICE_CHARS", "long names of devices"),
    ],
)
def test_the_judge_notices_a_bound_on_facts_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, kind: str
) -> None:
    monkeypatch.setattr(bounds, bound, NO_BOUND)
    assert judged_facts(tmp_path, FACTS[kind]()) != []


@pytest.mark.parametrize("namespace", [TRUSTED, "elsewhere"])
def test_fifty_pods_with_the_largest_annotations_are_kept_in_little(tmp_path: Path, namespace: str) -> None:
    agent = JudgedAgent(tmp_path)
    before = agent.kept()
    for number in range(50):
        of, _ = largest("one annotation", number, namespace)
        agent.decide(agent.read(events.RunPodSandbox(of))[0], 0)
    assert len(agent.handler.state.pods) == 50
    assert agent.kept() - before <= 50 * (2 << 10)
    agent.close()


def test_ninety_pods_of_the_largest_environment_are_listed_in_little(tmp_path: Path) -> None:
    agent = JudgedAgent(tmp_path)
    pods, containers = zip(*(largest("one variable", number) for number in range(90)), strict=True)
    event = events.Synchronize(tuple(pods), tuple(one for (one,) in containers))
    decoded, reading, size = agent.read(event)
    assert size > 90 * 1_500_000
    assert reading.peak <= 90 * POD_KEPT
    agent.decide(decoded, size)
    assert agent.kept() <= 90 * (POD_KEPT + CONTAINER_KEPT)
    agent.close()


def test_the_facts_of_a_pod_with_many_containers_are_kept_in_their_bounds(tmp_path: Path) -> None:
    count = bounds.FACTS_CONTAINERS
    of = pod("8a1b5f5e-7c5b-4a53-9a59-4f8f0d6f7a11", "Guaranteed")
    names = [bounds.name(f"{number:04}{'c' * 59}") for number in range(count)]  # as the reader of facts does
    amounts = [
        Amounts(number + 1, number + 1, number + 1000, number + 1000, (("hugepages-2Mi", number + 1000),))
        for number in range(count)
    ]
    facts = PodFacts(
        of.uid, QOSClass.GUARANTEED, tuple(map(ContainerFacts, names, repeat(Kind.APP), amounts))
    )
    agent = JudgedAgent(tmp_path)
    before = agent.kept()
    agent.client.known = ExporterAnswer(facts=facts)
    listed = tuple(
        replace(
            container(of, name, cpu=0.5), id=f"{number:064}", cgroups_path=f"{of.cgroup_parent}/{number:064}"
        )
        for number, name in enumerate(names)
    )
    agent.decide(agent.read(events.CreateContainer(of, listed[0]))[0], 0)
    agent.decide(agent.read(events.Synchronize((of,), listed))[0], 0)
    assert agent.handler.state.pods[of.uid].facts is not None
    assert agent.kept() - before <= POD_KEPT + CONTAINER_KEPT * count
    agent.close()
