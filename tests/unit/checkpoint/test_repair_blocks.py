"""The CPUs of a pod as a whole are repaired as a whole: its block and the parts of its containers stay or go together."""

from dataclasses import replace

import pytest

from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.checkpoint.repair import RepairEvidence, RepairPlan, Salvage, plan
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State


def cpus(text: str, *, is_init: bool = False, is_pod_shared: bool = False) -> Allocation:
    return Allocation(CPUSet.parse(text), is_init=is_init, is_pod_shared=is_pod_shared)


def record(name: str, uid: str = "u", stored: str = "") -> ContainerRecord:
    return ContainerRecord(f"id-{name}", uid, name, Phase.RUNNING, CgroupRef(""), CPUSet.parse(stored))


POD = PodRecord("u", "sb", "db", "shop")
BLOCK = {
    "u/": cpus("2-7"),
    "u/setup": cpus("2-5", is_init=True),
    "u/db": cpus("2-5"),
    "u/log": cpus("6-7", is_pod_shared=True),
}
OTHER = {"v/web": cpus("8-9")}


def checkpoint(held: dict[str, Allocation], *records: ContainerRecord) -> Checkpoint:
    return Checkpoint(State({"u": POD}, {one.id: one for one in records}, held), 3, None, "0.1.0")


def salvaged(held: dict[str, Allocation], *records: ContainerRecord) -> Salvage:
    return Salvage({"u": POD}, {one.id: one for one in records}, held)


def repaired(**evidence: object) -> RepairPlan:
    return plan(RepairEvidence(**evidence))  # type: ignore[arg-type]


def test_parts_that_share_cpus_of_their_pod_do_not_contradict_each_other() -> None:
    made = repaired(whole=checkpoint(BLOCK))
    assert (made.state.allocations, made.undecided, made.left_out) == (BLOCK, [], [])
    assert "shop/db: CPUs 2-7" in made.kept


def test_a_block_that_both_files_have_stays() -> None:
    made = repaired(damaged=salvaged({**BLOCK, **OTHER}), former=checkpoint(BLOCK))
    assert made.state.allocations == BLOCK
    assert [text.split(":")[0] for text in made.left_out] == ["v/web"]


CHANGED = {**BLOCK, "u/": cpus("2-9"), "u/log": cpus("6-9", is_pod_shared=True)}


@pytest.mark.parametrize(
    ("records", "held"),
    [
        pytest.param((record("db", stored="2-5"), record("log", stored="6-9")), CHANGED, id="all confirmed"),
        pytest.param((record("db", stored="2-5"), record("log", stored="6-7")), BLOCK, id="a part is not"),
        pytest.param((), BLOCK, id="nothing runs"),
    ],
)
def test_a_newer_block_is_taken_when_its_containers_confirm_their_parts(
    records: tuple[ContainerRecord, ...], held: dict[str, Allocation]
) -> None:
    made = repaired(damaged=salvaged(CHANGED, *records), former=checkpoint(BLOCK))
    assert made.state.allocations == held
    assert bool(made.left_out) == (held is BLOCK)


def test_parts_of_one_file_are_never_mixed_with_the_block_of_the_other() -> None:
    torn = {key: one for key, one in CHANGED.items() if key != "u/"}
    made = repaired(damaged=salvaged(torn), former=checkpoint(BLOCK))
    assert made.state.allocations == BLOCK
    assert "no CPUs for the pod as a whole" in made.left_out[0]


def test_a_block_that_only_the_damaged_file_has_is_left_out_with_its_parts() -> None:
    made = repaired(damaged=salvaged(BLOCK))
    assert (dict(made.state.allocations), len(made.left_out)) == ({}, 1)
    outside = {**BLOCK, "u/db": cpus("2-5,10")}
    made = repaired(damaged=salvaged(outside, record("db", stored="2-5,10")))
    assert dict(made.state.allocations) == {}


def test_a_block_that_is_missing_in_the_damaged_file_stays() -> None:
    made = repaired(damaged=salvaged({}), former=checkpoint(BLOCK))
    assert (made.state.allocations, made.left_out) == (BLOCK, [])


@pytest.mark.parametrize("name", ["shop/db", "shop/db/log", "u/", "u/db"])
def test_who_gives_up_a_part_gives_up_the_block(name: str) -> None:
    made = repaired(whole=checkpoint({**BLOCK, **OTHER}), given_up=frozenset({name}))
    assert made.state.allocations == OTHER
    assert name in made.given_up


def test_a_block_goes_as_a_whole_where_another_container_runs_on_its_cpus() -> None:
    other = {"v/web": cpus("7-8")}
    made = repaired(
        whole=replace(checkpoint({**BLOCK, **other}, record("web", "v"))),
        live={"id-web": CPUSet.parse("7-8")},
    )
    assert made.state.allocations == other
