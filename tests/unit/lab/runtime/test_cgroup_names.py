import pytest

from nri_plugin.host.cgroup import cgroup_path
from nri_plugin.model.records import CgroupRef, QOSClass
from nri_plugin.simulator.simulate.pods import Driver, container_names, expand_slice, pod_names

UID = "12ab-34"


@pytest.mark.parametrize(
    ("qos", "wire"),
    [
        (QOSClass.GUARANTEED, "/kubepods/pod12ab-34"),
        (QOSClass.BURSTABLE, "/kubepods/burstable/pod12ab-34"),
        (QOSClass.BEST_EFFORT, "/kubepods/besteffort/pod12ab-34"),
    ],
)
def test_cgroupfs_names_are_paths(qos: QOSClass, wire: str) -> None:
    names = pod_names(Driver.CGROUPFS, qos, UID)
    assert (names.wire, names.path) == (wire, wire[1:])
    assert container_names(Driver.CGROUPFS, names, "cri-containerd", "abc").wire == f"{wire}/abc"
    assert container_names(Driver.CGROUPFS, names, "crio", "abc").path == f"{wire[1:]}/crio-abc"


def test_systemd_names_are_slices_and_scopes() -> None:
    pod = pod_names(Driver.SYSTEMD, QOSClass.BURSTABLE, UID)
    container = container_names(Driver.SYSTEMD, pod, "cri-containerd", "abc")
    assert pod.wire == "kubepods-burstable-pod12ab_34.slice"
    assert pod.path == "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12ab_34.slice"
    assert container.wire == "kubepods-burstable-pod12ab_34.slice:cri-containerd:abc"
    assert container.path == f"{pod.path}/cri-containerd-abc.scope"


def test_a_slice_lies_in_the_slices_its_name_begins_with() -> None:
    assert expand_slice("a-b-c.slice") == "a.slice/a-b.slice/a-b-c.slice"


@pytest.mark.parametrize("driver", list(Driver))
@pytest.mark.parametrize("qos", list(QOSClass))
@pytest.mark.parametrize("prefix", ["cri-containerd", "crio"])
def test_the_agent_finds_the_same_directory(driver: Driver, qos: QOSClass, prefix: str) -> None:
    pod = pod_names(driver, qos, UID)
    container = container_names(driver, pod, prefix, "abc")
    assert cgroup_path(CgroupRef(pod.wire, container.wire)) == container.path
    assert cgroup_path(CgroupRef(pod.wire)) == pod.path
