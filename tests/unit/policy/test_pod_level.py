"""Pods with resources of their own: claims, the empty pool, slices and parts of memory."""

from collections.abc import Callable

import pytest

from nri_plugin.model.errors import AdmissionError, EmptyPodSharedPoolError, InsufficientCPUsError
from nri_plugin.model.options import Options, PodSharedPoolRule
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, MemoryBlock, PodFacts, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.pod_level import (
    cpu_claim,
    has_own_resources,
    is_eligible,
    memory_claim,
    memory_of,
    pod_cpus,
    pod_memory,
    refuse_empty_cpu_pool,
    refuse_empty_memory_pool,
    sets_of,
    take_block,
)
from tests.builders import cpus, machine, nodes

APP, INIT, SIDECAR = Kind.APP, Kind.INIT, Kind.SIDECAR
TABLES = cpu_tables(machine(nodes=1, cores=8))
PAGES = "hugepages-2Mi"


def amounts(milli: int, memory: int, limit: int | None = None, pages: int = 0) -> Amounts:
    hugepages = ((PAGES, pages),) if pages else ()
    return Amounts(milli, milli if limit is None else limit, memory, memory, hugepages)


def facts(*rows: tuple[Kind, Amounts], whole: Amounts | None = None, qos: str = "Guaranteed") -> PodFacts:
    """Containers `c0`, `c1`, ... in their order."""
    named = tuple(ContainerFacts(f"c{number}", kind, asked) for number, (kind, asked) in enumerate(rows))
    return PodFacts("p", QOSClass(qos), named, amounts(8000, 64) if whole is None else whole)


@pytest.mark.parametrize(
    ("asked", "eligible", "cpu", "memory"),
    [
        (amounts(2000, 5), True, 2, {"memory": 5}),
        (amounts(1500, 5), True, 0, {"memory": 5}),
        (amounts(2000, 5, pages=4), True, 2, {"memory": 5, PAGES: 4}),
        (amounts(2000, 5, limit=3000), False, 0, {}),
        (amounts(2000, 0), False, 0, {}),
        (amounts(0, 5), False, 0, {}),
        (Amounts(2000, 2000, 5, 6, ((PAGES, 4),)), False, 0, {}),
        (Amounts(), False, 0, {}),
    ],
)
def test_a_claim_needs_cpu_and_memory_with_equal_limits(
    asked: Amounts, eligible: bool, cpu: int, memory: dict[str, int]
) -> None:
    of = facts((APP, asked))
    (one,) = of.containers
    assert (is_eligible(of, one), cpu_claim(of, one), memory_claim(of, one)) == (eligible, cpu, memory)
    burstable = facts((APP, asked), qos="Burstable")
    assert not is_eligible(burstable, one)


@pytest.mark.parametrize(
    ("whole", "qos", "count", "memory"),
    [
        (amounts(8000, 64, pages=2), "Guaranteed", 8, {"memory": 64, PAGES: 2}),
        (amounts(4500, 64), "Guaranteed", 0, {"memory": 64}),
        (amounts(8000, 64), "Burstable", 0, {}),
    ],
)
def test_only_a_guaranteed_pod_owns_something(
    whole: Amounts, qos: str, count: int, memory: dict[str, int]
) -> None:
    of = facts(whole=whole, qos=qos)
    assert (pod_cpus(of), pod_memory(of)) == (count, memory)


def test_a_pod_without_amounts_has_no_resources_of_its_own() -> None:
    without = PodFacts("p", QOSClass.GUARANTEED)
    assert [has_own_resources(one) for one in (None, without, facts(whole=Amounts()), facts())] == [
        False,
        False,
        False,
        True,
    ]
    assert (pod_cpus(without), pod_memory(without)) == (0, {})


FULL, HALF, SHARED = amounts(8000, 64), amounts(4000, 32), Amounts()


@pytest.mark.parametrize("refuse", [refuse_empty_cpu_pool, refuse_empty_memory_pool])
@pytest.mark.parametrize(
    ("rows", "name", "words"),
    [
        ([(APP, HALF), (APP, HALF)], "", ""),
        ([(APP, HALF), (APP, SHARED)], "", ""),
        ([(INIT, FULL), (APP, HALF), (APP, SHARED)], "", ""),
        ([(INIT, SHARED), (APP, FULL)], "", ""),
        ([(APP, HALF), (APP, HALF), (APP, SHARED)], "c2", "equals pod budget, leaving no "),
        ([(SIDECAR, SHARED), (APP, FULL)], "c0", "equals pod budget, leaving no "),
        ([(SIDECAR, FULL), (INIT, SHARED)], "c1", "pod has shared init containers but no "),
    ],
)
def test_containers_that_share_need_something_to_share(
    refuse: Callable[[PodFacts], None], rows: list[tuple[Kind, Amounts]], name: str, words: str
) -> None:
    if not name:
        refuse(facts(*rows))
        return
    with pytest.raises(EmptyPodSharedPoolError, match=words) as caught:
        refuse(facts(*rows))
    assert caught.value.reason == "EmptyPodSharedPoolError"
    assert f"container {name} shares what the exclusive containers leave" in str(caught.value)


@pytest.mark.parametrize(("pages", "words"), [(8, ""), (4, "podSharedPoolRule: cpu-and-memory")])
def test_the_rule_of_cpu_and_memory_does_not_look_at_huge_pages(pages: int, words: str) -> None:
    of = facts((APP, amounts(2000, 5, pages=4)), (APP, SHARED), whole=amounts(8000, 64, pages=pages))
    refuse_empty_memory_pool(of, PodSharedPoolRule.CPU_AND_MEMORY)
    if words:
        with pytest.raises(EmptyPodSharedPoolError, match=words):
            refuse_empty_memory_pool(of)
    else:
        refuse_empty_memory_pool(of)


def test_the_rule_of_cpu_and_memory_looks_at_memory() -> None:
    with pytest.raises(EmptyPodSharedPoolError, match=r"set more memory for the pod itself$"):
        refuse_empty_memory_pool(
            facts((APP, amounts(2000, 64)), (APP, SHARED)), PodSharedPoolRule.CPU_AND_MEMORY
        )


def test_the_block_is_checked_as_a_container_of_its_size_is() -> None:
    odd = facts((APP, amounts(1000, 1)), whole=amounts(3000, 64))
    with pytest.raises(AdmissionError, match="requested 3 cpus is not a multiple"):
        take_block(
            TABLES, odd, cpus("2-15"), None, reserved=cpus("0-1"), options=Options(full_pcpus_only=True)
        )
    even = facts((APP, amounts(1000, 1)), whole=amounts(4000, 64))
    block = take_block(
        TABLES, even, cpus("2-15"), None, reserved=cpus("0-1"), options=Options(full_pcpus_only=True)
    )
    assert str(block) == "2-5"
    nothing = facts(whole=amounts(1500, 64))
    assert not take_block(TABLES, nothing, cpus("2-15"), None, reserved=CPUSet(), options=Options())


def parts(*rows: tuple[Kind, Amounts], block: str = "0-7") -> dict[str, tuple[str, bool]]:
    found = sets_of(TABLES, facts(*rows), cpus(block), Options())
    return {name: (str(part.cpus), part.is_shared) for name, part in found.items()}


TWO = amounts(2000, 2)


def test_slices_leave_the_pool_and_init_containers_give_theirs_back() -> None:
    assert parts((INIT, TWO), (SIDECAR, TWO), (INIT, TWO), (APP, TWO), (APP, SHARED)) == {
        "c0": ("0-1", False),
        "c1": ("0-1", False),
        "c2": ("2-3", False),
        "c3": ("2-3", False),
        "c4": ("4-7", True),
    }


def test_a_shared_sidecar_starts_with_the_final_pool_and_a_shared_init_container_with_more() -> None:
    assert parts((SIDECAR, SHARED), (SIDECAR, TWO), (INIT, SHARED), (APP, TWO)) == {
        "c0": ("4-7", True),
        "c1": ("0-1", False),
        "c2": ("2-7", True),
        "c3": ("2-3", False),
    }


def test_without_a_block_there_are_no_parts_and_claims_above_it_are_refused() -> None:
    assert parts((APP, TWO), block="") == {}
    with pytest.raises(InsufficientCPUsError):
        parts((APP, HALF), (APP, HALF), (APP, TWO))


def test_each_container_has_its_claim_of_the_memory_or_what_the_claims_leave() -> None:
    of = facts(
        (INIT, SHARED), (SIDECAR, amounts(2000, 10)), (INIT, SHARED), (APP, amounts(500, 20)), (APP, SHARED)
    )
    found = memory_of(of, (MemoryBlock(nodes(0), "memory", 64), MemoryBlock(nodes(0), PAGES, 4)))
    assert {
        name: {block.resource: block.size_bytes for block in blocks} for name, blocks in found.items()
    } == {
        "c0": {"memory": 64, PAGES: 4},
        "c1": {"memory": 10},
        "c2": {"memory": 54, PAGES: 4},
        "c3": {"memory": 20},
        "c4": {"memory": 34, PAGES: 4},
    }
