"""Odd numbers of CPUs: smtOddCounts holds for a pod with resources of its own and for each slice; what runs is kept."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_plugin.core.pod_news import PodFactsTold
from nri_plugin.core.pods import in_whole_cores
from nri_plugin.core.requests import peak
from nri_plugin.model.errors import EmptyPodSharedPoolError
from nri_plugin.model.options import SMTOddCounts
from nri_plugin.model.records import ContainerFacts, Kind, PodFacts, PodRecord
from nri_plugin.policy.pod_level import cpu_claim, pod_cpus, refuse_empty_cpu_pool
from nri_plugin.wire.nri import events as nri
from tests.builders import cpus
from tests.whole_pods import PodLife, part, pod_scope, whole

MESH = ContainerFacts("mesh", Kind.SIDECAR)


def life(
    rule: str, *parts: ContainerFacts, cpu: float, said: str = "", level: bool = True, **options: object
) -> PodLife:
    """A pod, with resources of its own or without, on a node with this rule; `said` is an annotation, `NAME=RULE`."""
    on = pod_scope(smt_odd_counts=SMTOddCounts(rule), annotation_namespaces=frozenset({"default"}), **options)
    made = PodLife(on, *parts, resources=whole(cpu) if level else None)
    name, _, word = said.partition("=")
    key = "pod" if name == "pod" else f"container.{name}"
    annotations = {f"nri-pin/smt-odd-counts.{key}": word} if said else {}
    made.of = replace(made.of, annotations=annotations)
    return made


@pytest.mark.parametrize(
    ("rule", "said", "held"),
    [
        ("kubelet", "", {"": "2-6", "mesh": "4-5", "a": "6", "b": "2-3"}),
        ("allow", "", {"": "2-6", "mesh": "4-5", "a": "6", "b": "2-3"}),
        # One CPU more for the slice and one for the pod: the pool keeps its two.
        ("round-up", "", {"": "2-7", "mesh": "6-7", "a": "2-3", "b": "4-5"}),
        ("kubelet", "a=round-up", {"": "2-7", "mesh": "6-7", "a": "2-3", "b": "4-5"}),
        ("kubelet", "pod=round-up", {"": "2-7", "mesh": "6-7", "a": "2-3", "b": "4-5"}),
    ],
)
def test_a_slice_gets_the_rest_of_its_last_core_and_the_pool_does_not_shrink(
    rule: str, said: str, held: dict[str, str]
) -> None:
    pod = life(rule, MESH, part("a", 1), part("b", 2), cpu=5, said=said)
    pod.run("mesh", "a", "b")
    assert pod.held == held


@pytest.mark.parametrize(
    ("parts", "cpu", "words"),
    [
        (
            (part("a", 1), part("b", 2), MESH),
            6,
            "requested 1 cpus for container a is less than the 2 cpus of a core",
        ),
        (
            (part("a", 2), part("b", 3), MESH),
            6,
            "requested 3 cpus for container b is not a multiple of the 2 cpus",
        ),
        (
            (part("a", 2), MESH),
            5,
            "requested 5 cpus is not a multiple of the 2 cpus per core and smtOddCounts is reject",
        ),
    ],
)
def test_reject_names_the_container_or_the_number_of_the_pod(
    parts: tuple[ContainerFacts, ...], cpu: int, words: str
) -> None:
    refusal = life("reject", *parts, cpu=cpu).create(parts[0].name).refusal
    assert refusal is not None
    assert refusal.reason == "SMTAlignmentError"
    assert words in str(refusal)


def test_reject_admits_whole_cores_and_fractions_that_share() -> None:
    pod = life("reject", part("a", 2), part("b", 0.5), cpu=6)
    pod.run("a", "b")
    assert pod.held == {"": "2-7", "a": "2-3", "b": "4-7"}


def test_full_pcpus_only_lets_the_pod_of_an_annotation_have_an_odd_number() -> None:
    refused = life("kubelet", part("a", 2), cpu=5, full_pcpus_only=True).create("a").refusal
    assert refused is not None
    pod = life("kubelet", part("a", 2), cpu=5, said="pod=allow", full_pcpus_only=True)
    pod.run("a")
    assert len(cpus(pod.held[""])) == 5


def test_the_rule_does_not_refuse_pods_that_get_no_cpus() -> None:
    pod = life("reject", part("a", 1), cpu=4.5)
    pod.run("a")
    assert pod.held == {"": "", "a": ""}


RULES = pytest.mark.parametrize("now", SMTOddCounts)


@pytest.mark.parametrize("then", ["kubelet", "round-up"])
@RULES
def test_a_running_pod_keeps_its_size_after_the_loss_of_the_checkpoint(then: str, now: str) -> None:
    before = life(then, part("a", 1), MESH, cpu=3)
    before.run("a", "mesh")
    assert before.held == found(before, life(now, part("a", 1), MESH, cpu=3)).held


@pytest.mark.parametrize("then", ["kubelet", "round-up"])
@RULES
def test_a_running_container_keeps_its_size_after_the_loss_of_the_checkpoint(then: str, now: str) -> None:
    before = life(then, part("a", 3), cpu=3, level=False)
    before.run("a")
    assert before.held == found(before, life(now, part("a", 3), cpu=3, level=False)).held


@pytest.mark.parametrize("then", ["kubelet", "round-up"])
@RULES
def test_a_container_that_is_created_again_keeps_its_size(then: str, now: SMTOddCounts) -> None:
    alone = life(then, part("a", 3), cpu=3, level=False)
    alone.run("a")
    before = alone.held
    alone.on = dataclasses.replace(
        alone.on, options=dataclasses.replace(alone.on.options, smt_odd_counts=now)
    )
    alone.restart("a")
    assert alone.held == before


def found(before: PodLife, after: PodLife) -> PodLife:
    """An agent without a checkpoint finds the pod, and hears of its object."""
    listed = [
        replace(one, resources=replace(one.resources, cpus=before.held[one.name], mems="0"))
        for one in map(after.message, before.amounts)
    ]
    after.tell(nri.Synchronize((after.of,), tuple(listed)))
    after.tell(PodFactsTold(after.of, after.facts))  # type: ignore[arg-type]
    return after


ROWS = st.lists(
    st.tuples(st.sampled_from(Kind), st.integers(0, 4)).map(
        lambda row: part("c", row[1], row[0]) if row[1] else ContainerFacts("c", row[0])
    ),
    min_size=1,
    max_size=6,
)


@given(ROWS, st.integers(1, 12))
def test_rounding_up_fills_cores_and_takes_from_no_pool(rows: list[ContainerFacts], total: int) -> None:
    rows.sort(key=lambda one: one.kind is Kind.APP)
    parts = [replace(one, name=f"c{number}") for number, one in enumerate(rows)]
    pod = life("round-up", *parts, cpu=total)
    assume(peak(pod.facts, [cpu_claim(pod.facts, one) for one in parts]) <= total)
    filled = in_whole_cores(pod.on, PodRecord("p1", "s"), pod.facts)
    (pool, refused), (larger_pool, refused_then) = pool_of(pod.facts), pool_of(filled)
    assert larger_pool >= pool
    assert refused == refused_then
    before = [pod_cpus(pod.facts), *(cpu_claim(pod.facts, one) for one in pod.facts.containers)]
    after = [pod_cpus(filled), *(cpu_claim(filled, one) for one in filled.containers)]
    assert all(count % 2 == 0 for count in after)
    assert all(0 <= more - less <= 1 for less, more in zip(before[1:], after[1:], strict=True))


def pool_of(facts: PodFacts) -> tuple[int, bool]:
    """The CPUs that no running container owns, and whether the pod is refused because none are left."""
    owned = sum(cpu_claim(facts, one) for one in facts.containers if one.kind is not Kind.INIT)
    try:
        refuse_empty_cpu_pool(facts)
    except EmptyPodSharedPoolError:
        return pod_cpus(facts) - owned, True
    return pod_cpus(facts) - owned, False
