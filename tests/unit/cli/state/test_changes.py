"""The changes between two states, each in one line."""

import pytest
from msgspec.structs import replace

from nri_plugin.cli.output import plain
from nri_plugin.cli.state.changes import change_facts, change_line, changes
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State

POD = PodRecord("u1", "sb", "db-0", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")
RECORD = ContainerRecord(
    "id-db", "u1", "db", Phase.RUNNING, CgroupRef("/kubepods/podu1", "/kubepods/podu1/db")
)
HELD = Allocation(CPUSet.of(2, 3), NodeMask.of(0), cpu_milli=2000)
STATE = State({"u1": POD}, {"id-db": RECORD}, {"u1/db": HELD})


def held(cpus: str, **more: object) -> State:
    return STATE.with_allocation("u1/db", replace(HELD, cpus=CPUSet.parse(cpus), **more))  # type: ignore[arg-type]


CASES: dict[str, tuple[State, State, str]] = {
    "a pod with CPUs of its own": (
        STATE,
        STATE.with_allocation("u1/", Allocation(CPUSet.parse("2-7"))),
        "gained   shop/db-0: CPUs 2-7",
    ),
    "CPUs that its pod shares": (
        STATE.without_allocation("u1/db"),
        held("2-3", is_pod_shared=True),
        "gained   shop/db-0/db: CPUs 2-3; mems - -> 0; is_pod_shared no -> yes",
    ),
    "facts of its pod": (
        STATE,
        STATE.with_pod(replace(POD, facts=PodFacts("u1", QOSClass.GUARANTEED))),
        "changed  shop/db-0: facts - -> of 0 containers",
    ),
    "more CPUs": (STATE, held("2-5"), "grew     shop/db-0/db: CPUs 2-3 -> 2-5 (+4-5)"),
    "fewer CPUs": (STATE, held("3"), "shrank   shop/db-0/db: CPUs 2-3 -> 3 (-2)"),
    "other CPUs": (STATE, held("3-4"), "moved    shop/db-0/db: CPUs 2-3 -> 3-4 (+4, -2)"),
    "its first CPUs": (
        STATE.without_allocation("u1/db"),
        STATE,
        "gained   shop/db-0/db: CPUs 2-3; mems - -> 0",
    ),
    "its last CPUs": (STATE, STATE.without_allocation("u1/db"), "lost     shop/db-0/db: CPUs 2-3"),
    "a pod that came": (
        State(),
        STATE,
        "gained   shop/db-0/db: CPUs 2-3; mems - -> 0",
    ),
    "a pod that ended": (STATE, State(), "lost     shop/db-0/db: CPUs 2-3; its container is gone"),
    "a container in the shared pool that ended": (
        STATE.without_allocation("u1/db"),
        State({"u1": POD}),
        "gone     shop/db-0/db",
    ),
    "a pod without containers": (State(), State({"u1": POD}), "new      shop/db-0"),
    "a phase": (
        STATE,
        STATE.with_container(replace(RECORD, phase=Phase.STOPPED)),
        "changed  shop/db-0/db: phase running -> stopped",
    ),
    "memory": (STATE, held("2-3", mems=NodeMask.of(1)), "changed  shop/db-0/db: mems 0 -> 1"),
    "a pod's field": (
        STATE,
        replace(STATE, pods={"u1": replace(POD, run_seen=True)}),
        "changed  shop/db-0: run_seen no -> yes",
    ),
    "a restarted container": (
        STATE,
        STATE.without_container("id-db").with_container(replace(RECORD, id="id-new")),
        "changed  shop/db-0/db: id id-db -> id-new",
    ),
}


@pytest.mark.parametrize(("before", "after", "line"), CASES.values(), ids=CASES)
def test_one_line_tells_what_happened(before: State, after: State, line: str) -> None:
    assert [change_line(one) for one in changes(before, after)] == [line]


def test_facts_name_cpus_before_and_after() -> None:
    (change,) = changes(STATE, held("3-4"))
    facts = plain(change_facts(change))
    assert facts["what"] == "moved"
    assert facts["cpus"] == {"before": "2-3", "after": "3-4", "gained": "4", "lost": "2"}
