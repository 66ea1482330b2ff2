import pytest

from nri_plugin.agent.cpusets import CheckedWrites, CpusetWriter, WriteError
from nri_plugin.core.decision import CpusetWrite
from nri_plugin.model.errors import HostError
from nri_plugin.model.state import Allocation, CgroupRef, ContainerRecord, Phase, State
from tests.agent_fakes import FakeCgroups
from tests.builders import cpus, node

A, B, C = (CgroupRef("/kubepods", f"/{name}") for name in "abc")
WRITES = tuple(CpusetWrite(ref, cpus("4-7")) for ref in (A, B, C))
NODE = node()


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
