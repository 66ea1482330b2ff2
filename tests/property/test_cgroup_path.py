import contextlib

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.host.cgroup import cgroup_path
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef, QOSClass
from nri_plugin.simulator.simulate.pods import Driver, container_names, pod_names

text = st.text(st.sampled_from("ab-./:\0_") | st.characters(codec="utf-8"), max_size=12)


@given(
    st.sampled_from(Driver),
    st.sampled_from(QOSClass),
    st.uuids(),
    st.sampled_from(["cri-containerd", "crio"]),
    st.text("0123456789abcdef", min_size=1, max_size=8),
)
def test_agent_and_simulated_runtime_spell_out_names_alike(
    driver: Driver, qos: QOSClass, uid: object, prefix: str, container_id: str
) -> None:
    pod = pod_names(driver, qos, str(uid))
    container = container_names(driver, pod, prefix, container_id)
    assert cgroup_path(CgroupRef(pod.wire)) == pod.path
    assert cgroup_path(CgroupRef(pod.wire, container.wire)) == container.path
    assert cgroup_path(CgroupRef("/" + pod.path)) == pod.path


@given(text, text)
def test_path_never_leaves_the_tree_whatever_the_name(parent: str, path: str) -> None:
    with contextlib.suppress(HostError):
        parts = cgroup_path(CgroupRef(parent, path)).split("/")
        assert all(parts)
        assert not {".", ".."} & set(parts)
        assert not any("\0" in part for part in parts)
