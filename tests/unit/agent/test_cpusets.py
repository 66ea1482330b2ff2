import pytest

from nri_plugin.agent.cpusets import CheckedWrites, CpusetWriter, WaitingWrites, WriteError
from nri_plugin.core.decision import CpusetWrite
from nri_plugin.model.errors import HostError, InvariantError
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import CreateContainer, RemoveContainer, RunPodSandbox, StartContainer
from tests.agent_fakes import Bench, FakeCgroups
from tests.builders import container, cpus, node, pod

A, B, C = (CgroupRef("/kubepods", f"/{name}") for name in "abc")
WRITES = tuple(CpusetWrite(ref, cpus("4-7")) for ref in (A, B, C))
NODE = node()
B_POD = pod("b")


@pytest.fixture
def cgroups() -> FakeCgroups:
    return FakeCgroups([])


def test_writes_are_carried_out_in_their_order(cgroups: FakeCgroups):
    CpusetWriter(cgroups).apply(CheckedWrites(WRITES))
    assert cgroups.journal == ["write /a=4-7", "write /b=4-7", "write /c=4-7"]


def test_the_first_failure_ends_it_and_names_what_was_done(cgroups: FakeCgroups):
    cgroups.failing = {"/b"}
    with pytest.raises(WriteError, match="/b: 4-7 was not taken") as caught:
        CpusetWriter(cgroups).apply(CheckedWrites(WRITES))
    assert caught.value.done == WRITES[:2]  # it may have been half done
    assert cgroups.journal == ["write /a=4-7", "write /b failed"]


def test_attempt_goes_on_after_a_failure(cgroups: FakeCgroups):
    cgroups.failing = {"/b"}
    assert [error.path for error in CpusetWriter(cgroups).attempt(CheckedWrites(WRITES))] == ["/b"]
    assert cgroups.values.keys() == {"/a", "/c"}


def test_undo_puts_back_what_was_promised_last_write_first(cgroups: FakeCgroups):
    record = ContainerRecord("id", "p", "c", Phase.RUNNING, A)
    before = State().with_container(record).with_allocation("p/c", Allocation(cpus=cpus("2-3")))
    done = (CpusetWrite(A, cpus("8-9"), "id"), CpusetWrite(B, cpus("4-7")))
    assert list(CpusetWriter(cgroups).undo(NODE, before, done)) == []
    assert cgroups.journal == ["write /b=0-1,4-15", "write /a=2-3"]


def test_undo_goes_on_after_a_failure_and_names_it(cgroups: FakeCgroups):
    cgroups.failing = {"/b"}
    assert [error.path for error in CpusetWriter(cgroups).undo(NODE, State(), WRITES)] == ["/b"]
    assert cgroups.journal == ["write /c=0-15", "write /b failed", "write /a=0-15"]


def test_a_missing_cgroup_is_an_error_only_where_it_must_exist(cgroups: FakeCgroups):
    cgroups.missing = {"/a"}
    CpusetWriter(cgroups).apply(CheckedWrites((CpusetWrite(A, cpus("1")),)))
    with pytest.raises(WriteError, match="no such cgroup"):
        CpusetWriter(cgroups).apply(CheckedWrites((CpusetWrite(A, cpus("1"), must_exist=True),)))


def test_without_a_tree_nothing_can_be_written_and_nothing_is_read():
    with pytest.raises(HostError, match="no cgroup tree to write 4-7 to; set cgroupRoot"):
        CpusetWriter(None).apply(CheckedWrites(WRITES))
    assert CpusetWriter(None).read_effective(A) is None


def test_a_write_that_failed_half_way_is_put_back_too(cgroups: FakeCgroups):
    record = ContainerRecord("id", "p", "c", Phase.RUNNING, A)
    before = State().with_container(record)
    cgroups.values, cgroups.failing, cgroups.torn = {"/a": cpus("0-15")}, {"/a"}, {"/a"}
    write = CpusetWrite(A, cpus("4-7"), "id", compare=False)
    with pytest.raises(WriteError) as caught:
        CpusetWriter(cgroups).apply(CheckedWrites((write,)))
    cgroups.failing = set()
    assert list(CpusetWriter(cgroups).undo(NODE, before, caught.value.done)) == []
    assert cgroups.values == {"/a": cpus("0-15")}


def test_outcomes_are_counted_as_they_were(cgroups: FakeCgroups):
    cgroups.values, cgroups.missing = {"/a": cpus("4-7")}, {"/c"}
    effects = CpusetWriter(cgroups)
    effects.apply(CheckedWrites(WRITES))
    assert effects.outcomes == {"unchanged": 1, "written": 1, "missing": 1}


SLICE = "/kubepods/burstable"
BELOW = [f"{SLICE}/podu/{number}" for number in range(5)]


def below_a_slice() -> State:
    """Five containers that run in the shared pool below the Burstable slice."""
    records = [
        ContainerRecord(path[-1], "u", path[-1], Phase.RUNNING, CgroupRef(f"{SLICE}/podu", path))
        for path in BELOW
    ]
    pods = {"u": PodRecord("u", "s", cgroup_parent=f"{SLICE}/podu")}
    return State(pods=pods, containers={one.id: one for one in records})


def with_exclusive(state: State, text: str) -> State:
    return state.with_allocation("x/c", Allocation(cpus=cpus(text)))


SQUEEZED = with_exclusive(below_a_slice(), "2-3")
BOUND = CpusetWrite(CgroupRef(SLICE), cpus("0-1,4-15"), compare=False, bounds=True)


def test_where_a_slice_bounds_them_no_file_below_is_written(cgroups: FakeCgroups):
    assert CpusetWriter(cgroups).apply(CheckedWrites((BOUND,), SQUEEZED)) == []
    assert list(cgroups.values) == [SLICE]


@pytest.mark.parametrize("trouble", ["failing", "missing"])
def test_in_place_of_a_slice_that_takes_no_value_the_files_below_are_written(
    cgroups: FakeCgroups, trouble: str
):
    setattr(cgroups, trouble, {SLICE})
    writer = CpusetWriter(cgroups)
    errors = writer.apply(CheckedWrites((BOUND,), SQUEEZED))
    assert cgroups.values == dict.fromkeys(BELOW, cpus("0-1,4-15"))
    is_failing = trouble == "failing"
    assert [error.path for error in errors] == [SLICE] * is_failing
    assert list(writer.unwritten) == [BOUND] * is_failing, "the sweep repairs it"
    found = CpusetWriter(cgroups).attempt(CheckedWrites((BOUND,), SQUEEZED))
    assert [error.path for error in found] == [SLICE] * is_failing


def test_if_one_of_these_files_fails_too_all_is_put_back(cgroups: FakeCgroups):
    cgroups.failing = {SLICE, BELOW[2]}
    with pytest.raises(WriteError, match=BELOW[2]) as caught:
        CpusetWriter(cgroups).apply(CheckedWrites((BOUND,), SQUEEZED))
    cgroups.failing = set()
    assert list(CpusetWriter(cgroups).undo(NODE, below_a_slice(), caught.value.done)) == []
    assert cgroups.values == dict.fromkeys([SLICE, *BELOW[:3]], cpus("0-15"))


@pytest.mark.parametrize(
    ("held", "then"),
    [("0-15", "0-7"), ("4-9", "4-7"), ("8-9", "0-7"), ("", "0-7"), ("2-3", "2-3")],
    ids=["wider", "overlapping", "disjoint", "never set", "narrower"],
)
def test_a_write_that_only_narrows_leaves_out_what_the_cgroup_does_not_hold(
    cgroups: FakeCgroups, held: str, then: str
):
    cgroups.values = {"/a": cpus(held)}
    CpusetWriter(cgroups).apply(CheckedWrites((CpusetWrite(A, cpus("0-7"), narrows=True),)))
    assert cgroups.values == {"/a": cpus(then)}


def taken(waiting: WaitingWrites, state: State, most: int = 2) -> list[list[str]]:
    """All portions, by the cgroups in them."""
    portions = []
    while waiting:
        writes = waiting.take(NODE, state, most).writes
        portions.append([f"{write.target.path or write.target.parent}={write.cpus}" for write in writes])
    return portions


def test_files_come_in_portions_and_slices_when_no_file_waits_any_more():
    waiting = WaitingWrites()
    assert not waiting
    waiting.follow(NODE, below_a_slice(), SQUEEZED)
    *portions, last = taken(waiting, SQUEEZED)
    assert [len(one) for one in portions] == [2, 2, 1]
    assert {text for one in portions for text in one} == {f"{path}=0-1,4-15" for path in BELOW}
    assert last == [f"{SLICE}=0-1,4-15", "/kubepods/besteffort=0-1,4-15"]


def test_a_pool_that_changes_while_files_wait_is_written_to_all_of_them_before_the_slices():
    waiting, later = WaitingWrites(), with_exclusive(below_a_slice(), "2-5")
    waiting.follow(NODE, below_a_slice(), SQUEEZED)
    waiting.take(NODE, SQUEEZED, 3)
    waiting.follow(NODE, SQUEEZED, later)
    rest, again, last = taken(waiting, later, 9)
    assert len(rest) == 2
    assert set(rest) < set(again) == {f"{path}=0-1,6-15" for path in BELOW}
    assert last[0] == f"{SLICE}=0-1,6-15"


def test_a_state_with_the_same_pool_lets_nothing_wait():
    waiting = WaitingWrites()
    waiting.follow(NODE, SQUEEZED, SQUEEZED)
    waiting.follow(NODE, SQUEEZED, SQUEEZED.with_allocation("y/c", Allocation()))
    assert not waiting


def test_only_after_synchronize_is_a_file_compared_before_it_is_written():
    for is_unknown in (True, False):
        waiting = WaitingWrites()
        waiting.follow(NODE, below_a_slice(), SQUEEZED, is_unknown=is_unknown)
        assert {write.compare for write in waiting.take(NODE, SQUEEZED).writes} == {is_unknown}


def test_a_portion_that_the_validator_refuses_is_left_out_and_the_rest_follows(monkeypatch):
    waiting = WaitingWrites()
    waiting.follow(NODE, below_a_slice(), SQUEEZED)
    monkeypatch.setattr(State, "desired_cpus", lambda *_: cpus("2"))
    with pytest.raises(InvariantError, match="exclusive to others"):
        waiting.take(NODE, SQUEEZED, 8)
    monkeypatch.undo()
    assert taken(waiting, SQUEEZED) == [[f"{SLICE}=0-1,4-15", "/kubepods/besteffort=0-1,4-15"]]


def test_a_container_with_many_cgroups_inside_delays_and_refuses_no_other() -> None:
    bench = Bench(node(pool_floor=False))
    hoarder = container(B_POD)
    for event in (RunPodSandbox(B_POD), CreateContainer(B_POD, hoarder), StartContainer(B_POD, hoarder)):
        bench.ask(event)
    path = hoarder.cgroups_path
    bench.cgroups.nested[path] = 3
    for name, cpu in (("x", 4), ("y", 2)):
        asking = pod(name)
        assert bench.ask(CreateContainer(asking, container(asking, cpu=cpu))).refusal == ""
    assert bench.cgroups.nested[path] == 2, "once while the runtime waits, and not for each container"
    pool = bench.handler.state.shared_pool(bench.handler.node)
    assert bench.cgroups.values.get(path) != pool
    assert (
        bench.lines.texts("WARNING").count(
            "a container has many cgroups inside; they are written after the answers"
        )
        == 1
    )
    rounds = 0
    while bench.handler.write_waiting():
        rounds += 1
    assert rounds <= 4
    assert bench.cgroups.values[path] == pool, "that of the moment, not of the first event"
    assert not bench.handler.has_rest


@pytest.mark.parametrize("what", ["it ends", "the kernel refuses"])
def test_an_unfinished_write_ends_with_its_container_or_is_left_to_the_sweep(what: str) -> None:
    bench = Bench(node(pool_floor=False))
    hoarder, asking = container(B_POD), pod("x")
    for event in (RunPodSandbox(B_POD), CreateContainer(B_POD, hoarder), StartContainer(B_POD, hoarder)):
        bench.ask(event)
    bench.cgroups.nested[hoarder.cgroups_path] = 1
    bench.ask(CreateContainer(asking, container(asking, cpu=4)))
    if what == "it ends":
        bench.ask(RemoveContainer(B_POD, hoarder))
    else:
        bench.cgroups.failing.add(hoarder.cgroups_path)
    assert not bench.handler.write_waiting()
    assert len(bench.handler.cpusets.unwritten) == (what != "it ends")
