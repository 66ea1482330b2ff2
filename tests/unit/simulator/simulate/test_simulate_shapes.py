"""Shapes of pods: what is the same shape, and how it is said."""

from dataclasses import replace

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import Options
from nri_plugin.model.records import Amounts, QOSClass
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec
from nri_plugin.simulator.simulate.rows import Shapes, asks_for_something, read_shape, shape_text

GIB = 1 << 30
ONE = ContainerSpec("c", 2000, 2000, GIB, GIB)


def pod(*containers: ContainerSpec, **more: object) -> PodSpec:
    return replace(PodSpec("p", containers=containers), **more)  # type: ignore[arg-type]


def test_names_labels_and_variables_make_no_other_shape() -> None:
    shapes = Shapes(Options())
    other = replace(pod(replace(ONE, name="d", env=("A=1",))), name="q", namespace="n", labels={"a": "b"})
    assert shapes.key(pod(ONE), "x") == shapes.key(other, "y") == "s1"
    assert (shapes.counts, shapes.examples) == ({"s1": 2}, {"s1": "x"})


@pytest.mark.parametrize(
    "other",
    [
        pod(replace(ONE, cpu_limit_milli=3000)),
        pod(ONE, ContainerSpec("e")),
        pod(ONE, init_containers=(ContainerSpec("i"),)),
        pod(replace(ONE, devices_asked=(("a.b/c", 1),))),
        pod(ONE, forced_qos=QOSClass.BURSTABLE),
        pod(ONE, whole=Amounts(1000)),
    ],
    ids=range(6),
)
def test_what_is_asked_for_makes_another_shape(other: PodSpec) -> None:
    shapes = Shapes(Options())
    assert shapes.key(pod(ONE)) != shapes.key(other)


def test_annotations_count_only_where_they_are_heard() -> None:
    wish = pod(ONE, annotations={"nri-pin/numa-node": "1"})
    deaf, hearing = Shapes(Options()), Shapes(Options(annotation_namespaces=frozenset({"default"})))
    assert deaf.key(pod(ONE)) == deaf.key(wish)
    assert hearing.key(pod(ONE)) != hearing.key(wish)
    assert hearing.key(pod(ONE)) == hearing.key(pod(ONE, annotations={"other/x": "1"}))


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (pod(ONE), "Guaranteed: cpu 2, memory 1Gi"),
        (pod(ContainerSpec("c")), "BestEffort: nothing"),
        (pod(ContainerSpec("c", 250, 0, 64 << 20, GIB)), "Burstable: cpu 250m to any, memory 64Mi to 1Gi"),
        (pod(ONE, replace(ONE, name="d")), "Guaranteed: 2 x (cpu 2, memory 1Gi)"),
        (
            pod(ONE, init_containers=(ContainerSpec("i", 1, 1), replace(ONE, name="s", is_sidecar=True))),
            "Burstable: cpu 2, memory 1Gi + init cpu 1m + sidecar cpu 2, memory 1Gi",
        ),
        (
            pod(ContainerSpec("c", hugepages=(("hugepages-1Gi", GIB),), devices_asked=(("a.b/gpu", 2),))),
            "BestEffort: hugepages-1Gi 1Gi, a.b/gpu 2",
        ),
        (
            pod(ContainerSpec("c"), whole=Amounts(2000, 4000), forced_qos=QOSClass.BURSTABLE),
            "Burstable: as a whole cpu 2 to 4 + nothing",
        ),
    ],
    ids=range(7),
)
def test_a_shape_in_words(shape: PodSpec, text: str) -> None:
    assert shape_text(shape) == text


def test_only_who_asks_for_something_can_be_counted() -> None:
    assert asks_for_something(pod(ONE))
    assert asks_for_something(pod(ContainerSpec("c"), whole=Amounts(1)))
    assert not asks_for_something(pod(ContainerSpec("c")))


def test_a_shape_of_the_command_line_is_request_and_limit_at_once() -> None:
    found = read_shape("cpu=1500m, memory=8Gi,hugepages-2Mi=4Mi,nvidia.com/gpu=1,")
    assert shape_text(found) == "Guaranteed: cpu 1500m, memory 8Gi, hugepages-2Mi 4Mi, nvidia.com/gpu 1"


@pytest.mark.parametrize(
    "text", ["", ",", "cpu", "cpu=", "=1", "gpu=1", "cpu=-1", "memory=1.5", "nvidia.com/gpu=x"]
)
def test_a_shape_that_is_none_is_refused_by_the_name_of_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--shape"):
        read_shape(text)
