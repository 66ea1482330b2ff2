"""The invariants that a decision breaks, looked for among what changed, are those that a look at everything finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, allocation_key
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import Violation, ViolationKind, new_violations, violations
from tests.builders import machine, node

ON = node(machine(nodes=1, cores=3), reserved="0")

allocations = st.builds(
    Allocation,
    cpus=st.sets(st.integers(0, 5), max_size=4).map(lambda ids: CPUSet.of(*ids)),
    mems=st.sampled_from((NodeMask(), NodeMask.of(0), NodeMask.of(3))),
    is_init=st.booleans(),
    is_pod_shared=st.booleans(),
)
keys = st.builds(allocation_key, st.sampled_from(("p", "q", "r")), st.sampled_from(("", "a", "b")))
records = st.builds(
    ContainerRecord,
    id=st.sampled_from(("1", "2", "3", "4")),
    pod_uid=st.sampled_from(("p", "q", "r")),
    name=st.sampled_from(("a", "b", "c")),
    phase=st.sampled_from((Phase.CREATED, Phase.RUNNING, Phase.STOPPED)),
    cgroup=st.just(CgroupRef("/kubepods")),
)
steps = st.lists(
    st.one_of(
        st.tuples(keys, allocations).map(lambda pair: lambda state: state.with_allocation(*pair)),
        records.map(lambda one: lambda state: state.with_container(one)),
        keys.map(lambda key: lambda state: state.without_allocation(key)),
        st.sampled_from(("1", "2")).map(lambda one: lambda state: state.without_container(one)),
        st.sampled_from(("p", "q")).map(lambda uid: lambda state: state.without_pod(uid)),
    ),
    max_size=8,
)


def looked_at_everything(before: State, after: State) -> list[Violation]:
    known = by_cpu(violations(ON, before))
    took = not after.exclusive <= before.exclusive
    return [
        one
        for one in violations(ON, after)
        if by_cpu([one]).isdisjoint(known) and (took or one.kind is not ViolationKind.EMPTY_POOL)
    ]


def by_cpu(some: list[Violation]) -> set[tuple[object, ...]]:
    return {(one.kind, one.ids, frozenset((one.key, one.other))) for one in some}


@given(steps, steps)
@settings(max_examples=400)
def test_what_changed_tells_all_new_violations(first: list, second: list) -> None:  # type: ignore[type-arg]
    before = State()
    for step in first:
        before = step(before)
    after = before
    for step in second:
        after = step(after)
    assert by_cpu(new_violations(ON, before, after)) == by_cpu(looked_at_everything(before, after))
