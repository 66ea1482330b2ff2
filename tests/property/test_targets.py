"""The cgroups to watch, followed by what changed, are those that a look at everything finds."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.core.drift import new_targets, targets
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import KUBEPODS, machine, node

NODES = (
    node(machine(nodes=1, cores=3), reserved="0"),
    node(machine(nodes=1, cores=3), reserved="0", pool_floor=False),
    node(machine(nodes=1, cores=3), reserved="0", cpu_manager_policy=CPUManagerPolicy.NONE),
)

records = st.builds(
    ContainerRecord,
    id=st.sampled_from("1234"),
    pod_uid=st.sampled_from("pq"),
    name=st.just("c"),
    phase=st.sampled_from(Phase),
    cgroup=st.builds(
        CgroupRef, st.just("/kubepods/podp"), st.sampled_from(("", "/kubepods/podp/1", "/kubepods/x"))
    ),
)
pods = st.builds(
    PodRecord,
    uid=st.sampled_from("pq"),
    sandbox_id=st.just("sb"),
    cgroup_parent=st.sampled_from((f"{KUBEPODS['Burstable']}/podp", "kubepods-podp.slice", "/other")),
)
steps = st.lists(
    st.one_of(
        records.map(lambda one: lambda state: state.with_container(one)),
        pods.map(lambda one: lambda state: state.with_pod(one)),
        st.sampled_from("pq").map(lambda uid: lambda state: state.without_pod(uid)),
        st.sampled_from("pq").map(lambda uid: lambda state: state.released(uid)),
        st.sampled_from("pq").map(
            lambda uid: lambda state: state.with_allocation(f"{uid}/c", Allocation(CPUSet.of(3)))
        ),
    ),
    max_size=6,
)


@given(st.sampled_from(NODES), steps, steps)
def test_what_changed_tells_which_cgroups_to_watch(on: Node, first: list, second: list) -> None:  # type: ignore[type-arg]
    before = State()
    for step in first:
        before = step(before)
    after = before
    for step in second:
        after = step(after)
    gone, come = new_targets(on, before, after)
    assert set(gone) <= set(targets(on, before))
    assert (set(targets(on, before)) - set(gone)) | set(come) == set(targets(on, after))
    assert set(gone).isdisjoint(come)
