"""What should be and what was found: drift, causes, and a machine that changed."""

import pytest
from msgspec.structs import replace

from nri_plugin.core.drift import (
    Cause,
    CpusetsObserved,
    MachineChanged,
    Observed,
    Target,
    drifts,
    may_be_read,
    new_targets,
    targets,
)
from nri_plugin.core.engine import decide
from nri_plugin.core.resize import size_of
from nri_plugin.model.options import Effect, Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, Resize
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.topology_rows import topology_of_rows

POD = "/kubepods/burstable/podb"
ROWS = [(cpu, cpu // 2, 0, 0, 0) for cpu in range(8)]


def node_of(cpus: str = "0-7", **options: object) -> Node:
    online = CPUSet.parse(cpus)
    rows = [row for row in ROWS if row[0] in online]
    return Node(
        topology_of_rows(rows, memory_bytes={0: 1 << 30}),
        Options(**options),
        CPUSet.of(0),  # type: ignore[arg-type]
    )


def ref(name: str) -> CgroupRef:
    parent = "/kubepods/podg" if name == "own" else POD
    return CgroupRef(parent, f"{parent}/{name}")


def record(name: str, phase: Phase = Phase.RUNNING, stored: str = "") -> ContainerRecord:
    return ContainerRecord(name, "g" if name == "own" else "b", name, phase, ref(name), CPUSet.parse(stored))


STATE = State(
    pods={
        "g": PodRecord("g", "sg", cgroup_parent="/kubepods/podg"),
        "b": PodRecord("b", "sb", cgroup_parent=POD),
    },
    containers={
        "own": record("own"),
        "shared": record("shared", stored="1-7"),
        "created": record("created", Phase.CREATED),
    },
    allocations={"g/own": Allocation(CPUSet.parse("4-5"), cpu_milli=2000)},
)
NODE = node_of()


def seen(name: str, cpus: str | None, effective: str | None = None) -> Observed:
    own = None if cpus is None else CPUSet.parse(cpus)
    return Observed(Target(ref(name), name), own, own if effective is None else CPUSet.parse(effective))


def test_running_containers_and_qos_slices_are_looked_after() -> None:
    assert set(targets(NODE, STATE)) == {
        Target(ref("own"), "own"),
        Target(ref("shared"), "shared"),
        Target(CgroupRef("/kubepods/besteffort")),
        Target(CgroupRef("/kubepods/burstable")),
    }


def test_nothing_is_looked_after_where_the_runtime_writes() -> None:
    assert targets(node_of(effect=Effect.UPDATE), STATE) == {}


@pytest.mark.parametrize(
    ("cpus", "effective", "is_drift"),
    [("4-7", "4-7", False), ("4-7", "4-5", False), ("4-7", "4-6", True), ("0-7", "4-5", True)],
)
def test_a_resize_under_way_is_no_drift_nor_is_a_partition_that_goes_on_meanwhile(
    cpus: str, effective: str, is_drift: bool
) -> None:
    held = STATE.allocations["g/own"]
    grown = replace(size_of(held), cpus=CPUSet.parse("4-7"))
    both = replace(held, cpus=grown.cpus, resize=Resize(size_of(held), grown))
    state = STATE.with_allocation("g/own", both)
    assert bool(drifts(NODE, state, [seen("own", cpus, effective)])) is is_drift


def test_what_says_what_it_should_is_no_drift() -> None:
    assert drifts(NODE, STATE, [seen("own", "4-5"), seen("shared", "0-3,6-7")]) == ()


@pytest.mark.parametrize(
    ("observed", "cause"),
    [
        (seen("shared", "1-7"), Cause.STORED),
        (seen("own", "0-7"), Cause.ALL_CPUS),
        (seen("own", "", "0-7"), Cause.NEVER_SET),
        (seen("own", None), Cause.FILES_GONE),
        (seen("own", "4-5", "4"), Cause.NARROWED_ABOVE),
        (seen("own", "2"), Cause.OTHER_VALUE),
    ],
)
def test_drift_is_told_by_what_it_looks_like(observed: Observed, cause: Cause) -> None:
    (found,) = drifts(NODE, STATE, [observed])
    assert found.cause is cause
    decision = decide(NODE, STATE, CpusetsObserved((observed,)))
    (write,) = decision.writes
    assert (write.target, write.cpus, write.make_room) == (observed.target.cgroup, found.desired, True)
    assert decision.state is STATE


def test_slice_that_drifted_gets_the_pool_again() -> None:
    observed = Observed(Target(CgroupRef("/kubepods/burstable")), CPUSet.parse("0-7"), CPUSet.parse("0-7"))
    (write,) = decide(NODE, STATE, CpusetsObserved((observed,))).writes
    assert write.cpus == CPUSet.parse("0-3,6-7")


def test_containers_that_do_not_run_and_strangers_are_passed_over() -> None:
    stranger = Observed(Target(CgroupRef("/other")), CPUSet.of(1), CPUSet.of(1))
    assert drifts(NODE, STATE, [seen("created", "1"), stranger]) == ()
    gone = Observed(Target(CgroupRef("/x", "/x/y"), "nobody"), CPUSet.of(1), CPUSet.of(1))
    assert drifts(NODE, STATE, [gone]) == ()


def test_who_runs_on_too_much_is_put_right_before_who_runs_on_too_little() -> None:
    event = CpusetsObserved((seen("own", "4"), seen("shared", "0-7")))
    assert [write.container_id for write in decide(NODE, STATE, event).writes] == ["shared", "own"]


def test_pool_follows_cpus_that_went_offline() -> None:
    writes = decide(node_of("0-2,4-7"), STATE, MachineChanged()).writes
    by_id = {write.container_id or write.target.parent: str(write.cpus) for write in writes}
    assert by_id == {
        "own": "4-5",
        "shared": "0-2,6-7",
        "/kubepods/burstable": "0-2,6-7",
        "/kubepods/besteffort": "0-2,6-7",
    }


@pytest.mark.parametrize(
    ("online", "cpus", "lost"),
    [
        ("0-7", "4-5", ""),
        ("0-4,6-7", "4", "5"),
        ("0-3,6-7", "0-3,6-7", "4-5"),
    ],
)
def test_exclusive_container_keeps_what_is_online_and_else_shares(online: str, cpus: str, lost: str) -> None:
    node = node_of(online)
    decision = decide(node, STATE, MachineChanged())
    assert decision.state is STATE
    assert next(str(write.cpus) for write in decision.writes if write.container_id == "own") == cpus
    assert str(STATE.lost(node).get("g/own", CPUSet())) == lost


def test_lost_cpus_are_nobody_elses_when_they_return() -> None:
    assert not STATE.shared_pool(node_of("0-4,6-7")) & CPUSet.parse("4-5")
    assert not STATE.available(NODE) & CPUSet.parse("4-5")


def test_pool_without_a_cpu_is_written_nowhere() -> None:
    everything = replace(STATE, allocations={"g/own": Allocation(CPUSet.parse("1-7"), cpu_milli=7000)})
    writes = decide(node_of("1-7"), everything, MachineChanged()).writes
    assert [write.container_id for write in writes] == ["own"]


def test_a_container_that_its_pod_keeps_where_it_should_be_has_not_drifted() -> None:
    """Our own container: the root of our cgroup namespace is not ours to write, the pod above it is."""
    assert drifts(NODE, STATE, [seen("own", "", "4-5")]) == ()
    assert drifts(NODE, STATE, [seen("own", "", "4-6")])
    assert drifts(NODE, STATE, [seen("own", None, "4-5")])
    assert drifts(NODE, STATE, [seen("own", "4-6", "4-5")])
    floor = next(iter(target for target in targets(NODE, STATE) if not target.container_id))
    pool = STATE.shared_pool(NODE)
    assert drifts(NODE, STATE, [Observed(floor, CPUSet(), pool)])


def test_while_files_wait_a_slice_may_be_narrow_and_the_files_below_it_are_not_judged() -> None:
    slices = [target for target in targets(NODE, STATE) if not target.container_id]
    wide, narrow = CPUSet.parse("0-7"), CPUSet.parse("0-1")
    waiting = [seen("shared", "0-7", "0-3,6-7"), seen("shared", "0-1")]
    waiting += [Observed(one, narrow, narrow) for one in slices]
    assert drifts(NODE, STATE, waiting, is_settled=False) == ()
    assert len(drifts(NODE, STATE, waiting)) == 4
    foreign = [*(Observed(one, wide, wide) for one in slices), seen("own", "4")]
    assert len(drifts(NODE, STATE, foreign, is_settled=False)) == 3
    gone = [Observed(one, None, None) for one in slices]
    assert len(drifts(NODE, STATE, gone, is_settled=False)) == 2


def test_while_files_wait_only_cgroups_that_no_slice_bounds_are_read() -> None:
    assert {target.container_id for target in may_be_read(NODE, STATE, targets(NODE, STATE))} == {"own", ""}


# ----------------------------------------------------------------------------------------------------
# The cgroups that come and go between two states; tests/property/test_targets.py has the law.


def test_containers_that_come_and_go_are_told_without_the_others() -> None:
    running = replace(record("created"), phase=Phase.RUNNING)
    after = STATE.with_container(running).without_container("shared")
    assert new_targets(NODE, STATE, after) == (
        [Target(ref("shared"), "shared")],
        [Target(ref("created"), "created")],
    )
    assert new_targets(NODE, STATE, STATE) == ([], [])


def test_the_first_pod_brings_the_slices() -> None:
    gone, come = new_targets(NODE, State(), STATE.without_container("own").without_container("shared"))
    assert gone == []
    assert [one.cgroup.parent for one in come] == ["/kubepods/burstable", "/kubepods/besteffort"]


def test_where_cgroups_are_not_written_nothing_comes() -> None:
    elsewhere = node_of(effect=Effect.UPDATE)
    assert new_targets(elsewhere, State(), STATE) == ([], [])


@pytest.mark.parametrize(
    ("parent", "effective", "desired"),
    [
        ("podx", "0-7", "0-3,6-7"),
        ("podx", "4-7", "6-7"),
        ("podx", "4-5", "0-3,6-7"),  # it has no CPU of the pool
        ("podx", "0-3", ""),
        ("podg", "4-5", ""),  # the next instance of the container that holds them
        ("podg", "3-5", "3"),
    ],
)
def test_a_container_that_is_not_known_keeps_off_exclusive_cpus_of_others(
    parent: str, effective: str, desired: str
) -> None:
    target = Target(CgroupRef(f"/kubepods/{parent}", f"/kubepods/{parent}/new"), "new")
    found = drifts(NODE, STATE, [Observed(target, None, CPUSet.parse(effective))])
    assert [(str(one.desired), one.cause) for one in found] == (
        [(desired, Cause.NEVER_TOLD)] if desired else []
    )
