"""The state's own judgement of itself, and what is derived from it."""

import gc
from weakref import ref

import pytest

from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    Phase,
    PodRecord,
    QOSClass,
    Resize,
    Size,
    allocation_key,
    named,
    owner_of,
    pod_of,
    slice_above,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State, _forget_changes
from nri_plugin.model.violations import violations
from tests.builders import cpus, machine, node, nodes

ON = node()


def record(name: str = "c", phase: Phase = Phase.RUNNING) -> ContainerRecord:
    return ContainerRecord(f"id-{name}", "p", name, phase, CgroupRef("/kubepods/podp"))


@pytest.mark.parametrize(
    ("allocations", "said"),
    [
        (
            {"a/c": Allocation(cpus("2-3")), "b/c": Allocation(cpus("3-4"))},
            "CPU 3 is exclusive to both a/c and b/c",
        ),
        ({"a/c": Allocation(cpus("1-2"))}, "reserved CPU 1 is exclusive to a/c"),
        ({"a/c": Allocation(mems=nodes(5))}, "a/c is bound to NUMA nodes without memory: 5"),
    ],
)
def test_a_broken_promise_is_named(allocations: dict[str, Allocation], said: str) -> None:
    assert [str(one) for one in violations(ON, State(allocations=allocations))] == [said]


def test_an_empty_shared_pool_is_wrong_only_while_somebody_needs_it() -> None:
    on = node(machine(nodes=1, cores=2), reserved="")
    full = State(allocations={"p/a": Allocation(cpus("0-3"))}, containers={"id-a": record("a")})
    assert violations(on, full) == []
    assert violations(on, full.with_container(record("b", Phase.STOPPED))) == []
    assert [str(one) for one in violations(on, full.with_container(record("b")))] == [
        "the shared pool is empty while shared containers exist"
    ]


def test_a_sound_state_has_no_violations() -> None:
    state = State(allocations={"a/c": Allocation(cpus("2-3"), nodes(0)), "b/c": Allocation(cpus("4"))})
    assert violations(ON, state) == []
    assert state.shared_pool(ON) == cpus("0-1,5-15")
    assert state.available(ON) == cpus("5-15")


def test_releasing_a_pod_leaves_pods_with_longer_names_alone() -> None:
    state = State(allocations={"p/c": Allocation(cpus("2")), "p1/c": Allocation(cpus("3"))})
    assert set(state.released("p").allocations) == {"p1/c"}


def test_changes_return_new_states() -> None:
    empty = State()
    changed = empty.with_container(record()).with_allocation("p/c", Allocation(cpus("2")))
    assert empty == State()
    assert changed.without_container("id-c").without_allocation("p/c") == empty


def test_changes_are_worked_out_once_and_do_not_outlive_the_former_state() -> None:
    before = State().with_container(record())
    after = before.with_allocation("p/c", Allocation(cpus("2")))
    changes = after.changes_from(before)
    assert after.changes_from(before) is changes
    assert [one.key for one in changes.allocations] == ["p/c"]
    del before
    gc.collect()
    assert "_changes" not in after.__dict__
    assert [one.key for one in after.changes_from(State()).allocations] == ["p/c"]


def test_a_state_may_end_before_the_one_that_it_was_made_from() -> None:
    before = State()
    after = before.with_container(record())
    assert after.changes_from(before).containers
    _forget_changes(ref(after), ref(before))
    assert "_changes" not in after.__dict__
    gone = ref(after)
    del after
    gc.collect()
    assert gone() is None
    _forget_changes(gone, ref(before))


def test_strictly_reserved_cpus_are_no_part_of_the_shared_pool() -> None:
    strict = node(strict_cpu_reservation=True)
    state = State(allocations={"a/c": Allocation(cpus("2-3"))})
    assert state.shared_pool(strict) == cpus("4-15")
    assert state.available(strict) == cpus("4-15")
    assert violations(strict, state) == []


def test_strictly_reserved_cpus_are_the_shared_pool_when_nothing_else_is_left() -> None:
    strict = node(strict_cpu_reservation=True)
    full = State(allocations={"a/c": Allocation(cpus("2-15"))}, containers={"id-b": record("b")})
    assert full.shared_pool(strict) == cpus("0-1")
    assert violations(strict, full) == []


@pytest.mark.parametrize(
    ("uid", "name"),
    [("u", "c"), ("team/db-0", "c"), ("team", "db-0/c"), ("", "c"), ("a/b/c", "%2F"), ("u", "%/")],
)
def test_an_allocation_key_tells_whose_it_is(uid: str, name: str) -> None:
    assert owner_of(allocation_key(uid, name)) == (uid, name)
    assert pod_of(allocation_key(uid, name)) == uid


def test_allocation_keys_of_two_pods_are_never_one() -> None:
    assert allocation_key("team/db-0", "c") != allocation_key("team", "db-0/c")
    assert allocation_key("u", "a/b") != allocation_key("u", "a%2Fb")


def test_only_the_pod_itself_loses_its_allocations() -> None:
    keys = [allocation_key(uid, "c") for uid in ("team", "team/db-0", "team/db-0/c")]
    state = State(allocations={key: Allocation() for key in keys})
    assert list(state.released("team").allocations) == keys[1:]
    assert list(state.released("team/db-0").allocations) == [keys[0], keys[2]]


def test_an_allocation_is_named_by_its_pod_where_that_is_known() -> None:
    pods = {"a/0": PodRecord("a/0", "sandbox", "db-0", "shop")}
    assert [named(pods, key) for key in ("a/0/c", "a/c")] == ["shop/db-0/c", "a/c"]


def test_each_cpu_is_owned_once() -> None:
    held = {
        "level/": Allocation(CPUSet.parse("2-7")),
        "level/db": Allocation(CPUSet.parse("2-5")),
        "level/log": Allocation(CPUSet.parse("6-7"), is_pod_shared=True),
        "plain/first": Allocation(CPUSet.parse("8-11"), is_init=True),
        "plain/second": Allocation(CPUSet.parse("8-12"), is_init=True),
        "plain/app": Allocation(CPUSet.parse("8-9")),
        "plain/over": Allocation(CPUSet.parse("8-9"), is_init=True),
        "plain/bound": Allocation(mems=NodeMask.of(0)),
    }
    owned = {key: str(cpus) for key, cpus in State(allocations=held).owned.items()}
    assert owned == {
        "level/": "2-7",
        "plain/first": "10-11",
        "plain/second": "12",
        "plain/app": "8-9",
        "plain/bound": "",
    }


BURSTABLE, BEST_EFFORT = "kubepods-burstable", "kubepods-besteffort"


@pytest.mark.parametrize(
    ("name", "above"),
    [
        ("/kubepods/burstable/podu/id", "/kubepods/burstable"),
        ("/kubepods/besteffort/podu", "/kubepods/besteffort"),
        ("/outer/kubepods/burstable/podu/id", "/outer/kubepods/burstable"),
        ("/kubepods/burstable/podu/a:b:c", "/kubepods/burstable"),
        (f"{BURSTABLE}-podu.slice:cri-containerd:id", f"{BURSTABLE}.slice"),
        (f"{BEST_EFFORT}-podu.slice", f"{BEST_EFFORT}.slice"),
        (f"/kubepods.slice/{BURSTABLE}.slice/{BURSTABLE}-podu.slice:crio:id", f"{BURSTABLE}.slice"),
        (f"kubelet-{BURSTABLE}-podu.slice:crio:id", f"kubelet-{BURSTABLE}.slice"),
    ],
)
def test_the_slice_above_a_cgroup_follows_from_its_name(name: str, above: str) -> None:
    assert slice_above(name) == CgroupRef(above)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/kubepods/podu/id",
        "/kubepods/burstable",
        "/kubepods/burstable/../podu/id",
        "/kubepods/burstable/./id",
        "kubepods-podu.slice:cri-containerd:id",
        "kubepods-burstable.slice",
        "system.slice:cri-containerd:id",
        f"/docker/x/kubepods.slice/{BURSTABLE}-podu.slice:cri-containerd:id",
        ":cri-containerd:id",
    ],
)
def test_no_slice_bounds_a_cgroup_whose_name_does_not_prove_it(name: str) -> None:
    assert slice_above(name) is None


def test_containers_with_a_cgroup_are_found_by_the_slice_above_them() -> None:
    paths = {"a": "/kubepods/burstable/podu/a", "b": "/kubepods/podu/b", "c": "", "d": "/kubepods/podu/d"}
    records = {
        key: ContainerRecord(key, "u", key, Phase.RUNNING, CgroupRef("/kubepods/podu", path))
        for key, path in paths.items()
    }
    state, slices = State(containers=records), [CgroupRef("/kubepods/burstable")]
    assert state.slices_above == set(slices)
    assert list(state.ids_below(slices)) == ["a"]
    assert [one.id for one in state.outside(slices)] == ["b", "d"]
    assert [one.id for one in state.outside([])] == ["a", "b", "d"]
    for number in range(30):
        state = state.with_allocation(f"p{number}/c", Allocation(CPUSet.of(number)))
    state = state.with_allocation("u/d", Allocation(CPUSet.of(40)))
    assert set(state.owners) == {"u", *(f"p{number}" for number in range(30))}
    assert [one.id for one in state.unpinned_outside(slices, ())] == ["b"]
    assert [one.id for one in state.unpinned_outside(slices, {"u"})] == ["b", "d"]
    assert [one.id for one in state.unpinned_outside([], ())] == ["a", "b"]
    growing = Resize(Size(CPUSet()), Size(CPUSet.of(40)))
    state = state.with_allocation("u/d", Allocation(CPUSet.of(40), resize=growing))
    assert [one.id for one in state.unpinned_outside(slices, ())] == ["b", "d"], (
        "it runs in the pool until then"
    )


def test_the_holders_and_the_guaranteed_pods_come_in_their_order_however_many_there_are() -> None:
    names = [f"p{number}" for number in range(50)]
    pods = {name: PodRecord(name, f"s{name}", qos=QOSClass.GUARANTEED) for name in names}
    held = {f"{name}/c": Allocation(CPUSet.of(number)) for number, name in enumerate(names)}
    state = State(pods, allocations={**held, "p0/memory": Allocation(mems=NodeMask.of(0))})
    assert state.holders == list(held)
    assert [pod.uid for pod in state.guaranteed_pods] == names
    assert state.pod_of_sandbox("sp7") == pods["p7"]
    assert state.pod_of_sandbox("other") is None


@pytest.mark.parametrize(
    ("reserved", "exclusive", "available"),
    [
        ("0", "", "1-3"),
        ("0", "1", "2-3"),
        # No reserved CPU is online: one CPU stays for the shared pool, whichever are exclusive.
        ("7", "", "1-3"),
        ("7", "0-1", "3"),
        ("7", "0-2", ""),
        ("7", "0-3", ""),
        # Without a reservation, as under policy none, nothing is kept.
        ("", "", "0-3"),
    ],
)
def test_the_shared_pool_keeps_a_cpu_that_is_online(reserved: str, exclusive: str, available: str) -> None:
    node = Node(machine(1, 4, 1), Options(), CPUSet.parse(reserved))
    cpus = CPUSet.parse(exclusive)
    state = State(allocations={"u/c": Allocation(cpus)} if cpus else {})
    assert state.available(node) == CPUSet.parse(available)
