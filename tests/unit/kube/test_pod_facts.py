"""The facts of pods' objects, and the agent's own reader of them."""

import json
from typing import Any

import pytest

from nri_plugin.agent.serving.pod_facts import read_facts
from nri_plugin.kube.pod_facts import ENDED_KEPT, PodsHere, facts_of
from nri_plugin.model.errors import KubeAPIError, KubeObjectError
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from tests.kube_builders import Object, container, pod_object


def read(obj: Object) -> PodFacts:
    """As the agent understands what the exporter makes of the object."""
    return read_facts(json.dumps(facts_of(obj)).encode())


def test_containers_come_in_the_order_in_which_they_start_with_their_kinds() -> None:
    obj = pod_object(
        container("web"), container("log"), init=[container("fetch"), container("mesh", always=True)]
    )
    assert [(one.name, one.kind) for one in read(obj).containers] == [
        ("fetch", Kind.INIT),
        ("mesh", Kind.SIDECAR),
        ("web", Kind.APP),
        ("log", Kind.APP),
    ]


def test_amounts_are_exact_in_thousandths_of_a_cpu_and_bytes() -> None:
    obj = pod_object(container(cpu="300", memory="1536Mi", hugepages_2Mi="0", vendor__gpu="1"))
    assert read(obj) == PodFacts(
        "uid-p",
        QOSClass.GUARANTEED,
        (
            ContainerFacts(
                "c", Kind.APP, Amounts(300_000, 300_000, 1536 << 20, 1536 << 20, (("hugepages-2Mi", 0),))
            ),
        ),
    )


def test_parts_of_a_thousandth_and_of_a_byte_are_rounded_up() -> None:
    obj = pod_object(container(cpu="1500u", memory="1500m", limits=False))
    assert read(obj).containers[0].amounts == Amounts(2, 0, 2, 0)


def resizing(**container: Any) -> Object:
    """A pod whose specification asks for 4 CPUs and 2 Gi, while its status has 2 CPUs and 1 Gi."""
    obj = pod_object(container)
    told = {"name": container["name"], "allocatedResources": {"cpu": "2", "memory": "1Gi"}}
    obj["status"] = {"containerStatuses": [told, {"name": "other"}]}
    return obj


def test_amounts_of_a_guaranteed_container_are_those_allocated_not_those_of_a_pending_resize() -> None:
    (web,) = read(resizing(**container("web", cpu="4", memory="2Gi"))).containers
    assert web.amounts == Amounts(2000, 2000, 1 << 30, 1 << 30)


def test_a_limit_beside_a_smaller_request_is_that_of_the_specification() -> None:
    asked = {"requests": {"cpu": "3", "memory": "2Gi"}, "limits": {"cpu": "4000m", "memory": "2048Mi"}}
    (web,) = read(resizing(name="web", resources=asked)).containers
    assert web.amounts == Amounts(2000, 4000, 1 << 30, 1 << 30)


def test_a_limit_without_a_request_is_its_request() -> None:
    (web,) = read(resizing(name="web", resources={"limits": {"cpu": "4"}})).containers
    assert web.amounts == Amounts(2000, 2000, 1 << 30)


def test_amounts_of_a_sidecar_are_those_allocated() -> None:
    obj = pod_object(container("web"), init=[container("mesh", always=True, cpu="2")])
    obj["status"] = {"initContainerStatuses": [{"name": "mesh", "allocatedResources": {"cpu": "1"}}]}
    mesh, _ = read(obj).containers
    assert (mesh.amounts.cpu_request_milli, mesh.amounts.cpu_limit_milli) == (1000, 1000)


def test_amounts_of_the_whole_pod_are_those_allocated_of_what_it_sets() -> None:
    obj = pod_object(container(), resources={"requests": {"cpu": "8"}, "limits": {"cpu": "8"}})
    obj["status"] = {"allocatedResources": {"cpu": "6", "memory": "3Gi"}}
    assert read(obj).pod_resources == Amounts(6000, 6000)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, None),
        ({}, None),
        ({"requests": {}}, None),
        ({"limits": {"vendor/gpu": "1"}}, None),
        ({"limits": {"cpu": "2"}}, Amounts(cpu_limit_milli=2000)),
        ({"requests": {"memory": "1Gi"}}, Amounts(memory_request_bytes=1 << 30)),
        ({"requests": {"hugepages-1Gi": "1Gi"}}, Amounts(hugepages=(("hugepages-1Gi", 1 << 30),))),
    ],
)
def test_resources_of_the_whole_pod_count_when_one_that_a_pod_can_have_is_set(
    resources: object, expected: Amounts | None
) -> None:
    assert read(pod_object(container(), resources=resources)).pod_resources == expected


def mirror(**annotations: str) -> Object:
    obj = pod_object(container(), uid="of-the-mirror")
    obj["metadata"]["annotations"] = {
        f"kubernetes.io/config.{key}": word for key, word in annotations.items()
    }
    return obj


def test_a_static_pod_is_known_by_the_uid_of_its_file() -> None:
    assert read(mirror(mirror="h", hash="of-the-file")).uid == "of-the-file"
    assert read(mirror(hash="of-another")).uid == "of-the-mirror"
    assert read(mirror(mirror="h")).uid == "of-the-mirror"


@pytest.mark.parametrize(
    "change",
    [
        {"spec": 7},
        {"spec": {"containers": [{}]}},
        {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]}},
        {"status": {"containerStatuses": 7}},
        {"metadata": {"annotations": 7}},
    ],
)
def test_an_object_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(KubeObjectError):
        facts_of({**pod_object(container()), **change})


@pytest.fixture
def lost() -> list[int]:
    return []


@pytest.fixture
def here(lost: list[int]) -> PodsHere:
    made = PodsHere(lambda error: lost.append(error.status))
    made.listed([pod_object(container(), name="a"), pod_object(container(), name="b"), {"spec": 7}])
    return made


def test_pods_are_known_by_name_from_the_list_on_until_they_are_deleted(here: PodsHere) -> None:
    assert here.facts("ns", "a", "uid-a") == facts_of(pod_object(container(), name="a"))
    here.changed(pod_object(container(), name="c"))
    here.deleted(pod_object(container(), name="a"))
    here.deleted({})
    assert here.facts("ns", "a", "uid-a") is None
    assert here.facts("ns", "c", "uid-c") is not None
    here.listed([])
    assert here.facts("ns", "b", "uid-b") is None


def test_what_a_pod_says_of_its_uid_is_told_of_no_other_pod(here: PodsHere) -> None:
    spoof = pod_object(container(cpu="64"), name="c")
    words = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash")
    spoof["metadata"]["annotations"] = dict.fromkeys(words, "uid-a")
    here.changed(spoof)
    assert here.facts("ns", "a", "uid-a") == facts_of(pod_object(container(), name="a"))
    assert here.facts("ns", "c", "uid-c") is None


def test_a_pod_that_becomes_unreadable_is_no_longer_known(here: PodsHere) -> None:
    here.changed({**pod_object(container(), name="a"), "status": 7})
    assert here.facts("ns", "a", "uid-a") is None


def test_while_the_cluster_is_away_what_was_told_stands_and_each_reason_is_said_once(
    here: PodsHere, lost: list[int]
) -> None:
    for status in (403, 403, 0, 403):
        here.failed(KubeAPIError("list of pods", f"answer {status}", status=status))
    assert here.facts("ns", "a", "uid-a") is not None
    here.listed([])
    here.failed(KubeAPIError("list of pods", "answer 403", status=403))
    assert lost == [403, 0, 403, 403]


def ended(name: str, phase: str) -> Object:
    return {**pod_object(container(), name=name), "status": {"phase": phase}}


def has_ended(here: PodsHere, name: str, uid: str = "") -> bool:
    return here.has_ended("ns", name, uid or f"uid-{name}")


@pytest.mark.parametrize(
    ("phase", "is_over"), [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)]
)
def test_a_pod_has_ended_with_a_final_phase(here: PodsHere, phase: str, is_over: bool) -> None:
    here.changed(ended("a", phase))
    assert has_ended(here, "a") == is_over
    assert not has_ended(here, "a", "uid-of-another")
    assert not has_ended(here, "b")


def test_a_deleted_pod_has_ended_and_one_of_the_same_name_has_not(here: PodsHere) -> None:
    here.deleted(pod_object(container(), name="a"))
    here.changed(pod_object(container(), name="a", uid="again"))
    assert has_ended(here, "a")
    assert not has_ended(here, "a", "again")


def test_a_pod_that_a_new_list_lacks_has_ended(here: PodsHere) -> None:
    here.listed([pod_object(container(), name="a", uid="again")])
    assert [has_ended(here, name) for name in ("a", "b")] == [True, True]
    assert not has_ended(here, "a", "again")


def test_nothing_is_said_of_pods_that_were_never_seen_or_cannot_be_read(here: PodsHere) -> None:
    assert not PodsHere(lambda _: None).has_ended("ns", "a", "uid-a"), "the watch has not begun"
    assert not has_ended(here, "never-seen")
    here.listed([{**pod_object(container(), name="a"), "status": 7}, pod_object(container(), name="b")])
    assert not has_ended(here, "a")
    assert not has_ended(here, "b")


def test_a_static_pod_goes_on_without_its_mirror() -> None:
    here = PodsHere(lambda _: None)
    here.listed([mirror(mirror="h", hash="of-the-file")])
    name = mirror()["metadata"]["name"]
    here.listed([])
    assert not has_ended(here, name, "of-the-file")
    here.changed({**mirror(mirror="h", hash="of-the-file"), "status": {"phase": "Failed"}})
    assert has_ended(here, name, "of-the-file")


def test_a_bounded_number_of_deleted_pods_is_remembered(here: PodsHere) -> None:
    for number in range(ENDED_KEPT + 1):
        here.changed(pod_object(container(), name=f"n{number}"))
        here.deleted(pod_object(container(), name=f"n{number}"))
    assert not has_ended(here, "n0")
    assert has_ended(here, "n1")
    assert has_ended(here, f"n{ENDED_KEPT}")


def test_a_pod_that_changes_is_known_while_its_object_is_read() -> None:
    here, answers = PodsHere(lambda _: None), []
    here.changed(pod_object(container(cpu="2")))

    class Asked(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            answers.append(here.facts("ns", "p", "uid-p") is not None)
            return super().get(key, default)

    here.changed(Asked(pod_object(container(cpu="4"))))
    assert answers
    assert all(answers)
