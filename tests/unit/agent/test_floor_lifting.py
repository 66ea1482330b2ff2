import pytest
from msgspec.structs import replace

from nri_plugin.agent.cpusets import lift_floor, open_slices
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import CPUManagerPolicy
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.agent_fakes import recording_log
from tests.builders import node

BURSTABLE, BEST_EFFORT = "/kubepods/burstable", "/kubepods/besteffort"
STATE = State(
    pods={"u": PodRecord("u", "s", "web", "default", cgroup_parent="/kubepods/podu")},
    allocations={"u/app": Allocation(CPUSet.parse("2-3"))},
)


class Tree:
    version = 2

    def __init__(self, **cpus):
        self.cpus = {f"/kubepods/{name}": CPUSet.parse(text) for name, text in cpus.items()}

    def read_cpus(self, ref):
        return self.cpus.get(ref.path or ref.parent)

    def write_cpus(self, ref, cpus):
        self.cpus[ref.path or ref.parent] = cpus


def lifted(tree, of, state=STATE):
    log, lines = recording_log()
    if not of.options.pool_floor:
        open_slices(tree, of, state, log)
    return {name: str(cpus) for name, cpus in tree.cpus.items()}, lines


@pytest.mark.parametrize("was", ["0-1,4-15", "1,4-15"])
@pytest.mark.parametrize("policy", CPUManagerPolicy)
def test_slices_that_an_agent_narrowed_are_opened_when_the_floor_is_off(was, policy):
    of = node(pool_floor=False, cpu_manager_policy=policy)
    cpus, _ = lifted(Tree(burstable=was, besteffort=was), of)
    assert cpus == {BURSTABLE: "0-15", BEST_EFFORT: "0-15"}


def test_without_a_promise_what_was_left_by_strict_reservation_is_opened():
    assert lifted(Tree(burstable="1-15"), node(pool_floor=False), replace(STATE, allocations={}))[0] == {
        BURSTABLE: "0-15"
    }


@pytest.mark.parametrize("own", ["4-7", "0-3", "", "0-15"])
def test_what_an_administrator_wrote_stays(own):
    cpus, lines = lifted(Tree(burstable=own), node(pool_floor=False))
    assert cpus == {BURSTABLE: own}
    assert not lines.texts("INFO")


def test_while_the_floor_is_on_and_on_version_1_nothing_is_lifted():
    old = Tree(burstable="0-1,4-15")
    old.version = 1
    for tree, of in ((Tree(burstable="0-1,4-15"), node()), (old, node(pool_floor=False))):
        assert lifted(tree, of)[0] == {BURSTABLE: "0-1,4-15"}
    lift_floor(None, node(pool_floor=False), STATE, recording_log()[0])


def test_a_slice_that_cannot_be_written_is_said():
    class Broken(Tree):
        def write_cpus(self, ref, cpus):
            raise HostError(ref.parent, "read-only")

    _, lines = lifted(Broken(burstable="0-1,4-15"), node(pool_floor=False))
    assert any("pool floor not lifted" in text for text in lines.texts("WARNING"))


BELOW = f"{BURSTABLE}/podw/id"
WAITING = replace(
    STATE,
    containers={
        "id": ContainerRecord("id", "w", "c", Phase.RUNNING, CgroupRef(f"{BURSTABLE}/podw", BELOW)),
    },
)


def test_files_that_only_the_slice_bounds_are_written_before_it_is_opened():
    """An agent was killed while they waited."""
    tree = Tree(burstable="0-1,4-15", besteffort="0-1,4-15")
    tree.cpus[BELOW] = CPUSet.parse("0-15")
    cpus, _ = lifted(tree, node(pool_floor=False), WAITING)
    assert cpus == {BURSTABLE: "0-15", BEST_EFFORT: "0-15", BELOW: "0-1,4-15"}


def test_a_slice_above_a_file_that_cannot_be_written_stays_closed():
    class Broken(Tree):
        def write_cpus(self, ref, cpus):
            if ref.path:
                raise HostError(ref.path, "read-only")
            super().write_cpus(ref, cpus)

    cpus, lines = lifted(Broken(burstable="0-1,4-15", besteffort="0-1,4-15"), node(pool_floor=False), WAITING)
    assert cpus == {BURSTABLE: "0-1,4-15", BEST_EFFORT: "0-15"}
    assert lines.texts("WARNING") == ["pool floor not lifted"]


def test_where_nothing_is_exclusive_no_container_is_written():
    state = replace(WAITING, allocations={})
    cpus, _ = lifted(Tree(burstable="1-15"), node(pool_floor=False), state)
    assert cpus == {BURSTABLE: "0-15"}
