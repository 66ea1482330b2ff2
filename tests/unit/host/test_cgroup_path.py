import pytest

from nri_plugin.host.cgroup import cgroup_path, expand_slice
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef

POD = "kubepods-burstable-pod0a_1b.slice"
POD_DIR = f"kubepods.slice/kubepods-burstable.slice/{POD}"

FORMS = {
    "a cgroupfs container lies where its path says": (
        CgroupRef("/kubepods/burstable/pod1", "/kubepods/burstable/pod1/abc"),
        "kubepods/burstable/pod1/abc",
    ),
    "a cgroupfs path without a leading slash is below the root too": (
        CgroupRef("", "kubepods/pod1/abc"),
        "kubepods/pod1/abc",
    ),
    "CRI-O with cgroupfs puts its prefix into the last part": (
        CgroupRef("/kubepods/pod1", "/kubepods/pod1/crio-abc"),
        "kubepods/pod1/crio-abc",
    ),
    "a containerd scope lies in the expanded slice": (
        CgroupRef(POD, f"{POD}:cri-containerd:abc"),
        f"{POD_DIR}/cri-containerd-abc.scope",
    ),
    "a CRI-O scope lies in the expanded slice": (
        CgroupRef(POD, f"{POD}:crio:abc"),
        f"{POD_DIR}/crio-abc.scope",
    ),
    "a slice given as a full path is expanded once": (
        CgroupRef("", f"/{POD_DIR}:crio:abc"),
        f"{POD_DIR}/crio-abc.scope",
    ),
    "a scope without prefix is named by its id alone": (
        CgroupRef("", "kubepods.slice::abc"),
        "kubepods.slice/abc.scope",
    ),
    "a unit that is a slice itself gets no scope": (
        CgroupRef("", "kubepods.slice:crio:kubepods-x.slice"),
        "kubepods.slice/kubepods-x.slice",
    ),
    "a scope without slice is in the system slice": (
        CgroupRef("", ":cri-containerd:abc"),
        "system.slice/cri-containerd-abc.scope",
    ),
    "no path means the parent": (CgroupRef("/kubepods/burstable"), "kubepods/burstable"),
    "a parent may be the last slice alone": (CgroupRef(POD), POD_DIR),
    "a parent may be the full path of the slice": (CgroupRef(f"/{POD_DIR}"), POD_DIR),
    "what holds a node that is itself a container is kept": (
        CgroupRef("/docker/node1/kubepods-podx.slice"),
        "docker/node1/kubepods.slice/kubepods-podx.slice",
    ),
    "a slice with a prefix of its own nests from that": (
        CgroupRef("kubelet-kubepods-podx.slice"),
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podx.slice",
    ),
    "double slashes count as one": (CgroupRef("//kubepods///pod1/"), "kubepods/pod1"),
    "a path with a single colon is a plain path": (CgroupRef("", "/kubepods/a:b"), "kubepods/a:b"),
    "colons in a plain path do not make it a scope": (CgroupRef("", "/a:b/c:d"), "a:b/c:d"),
}


@pytest.mark.parametrize(("ref", "expected"), FORMS.values(), ids=FORMS)
def test_cgroup_lies_where_the_runtime_put_it(ref: CgroupRef, expected: str) -> None:
    assert cgroup_path(ref) == expected


REFUSED = {
    "a way up in a plain path": (CgroupRef("", "/kubepods/../../etc"), "may not hold the part '..'"),
    "a way up in a parent": (CgroupRef("/kubepods/.."), "may not hold the part '..'"),
    "a way up in the slice of a scope": (
        CgroupRef("", "../../x.slice:crio:abc"),
        "may not hold the part '..'",
    ),
    "a slash in the id of a scope": (
        CgroupRef("", "a.slice:crio:../../../etc"),
        "may not hold the part '..'",
    ),
    "a dot": (CgroupRef("/kubepods/./x"), "may not hold the part '.'"),
    "a NUL": (CgroupRef("/kubepods/a\0b"), "may not hold"),
    "nothing at all": (CgroupRef(""), "root of the cgroup tree"),
    "the root": (CgroupRef("/"), "root of the cgroup tree"),
    "the root slice": (CgroupRef("-.slice"), "root of the cgroup tree"),
    "a scope without id": (CgroupRef("", "a.slice:crio:"), "without a name"),
    "a slice with two dashes in a row": (CgroupRef("a--b.slice"), "no systemd slice name"),
    "a slice that begins with a dash": (CgroupRef("-a.slice"), "no systemd slice name"),
    "a slice that ends in a dash": (CgroupRef("a-.slice"), "no systemd slice name"),
    "a slice without a name": (CgroupRef(".slice"), "no systemd slice name"),
}


@pytest.mark.parametrize(("ref", "reason"), REFUSED.values(), ids=REFUSED)
def test_name_that_leaves_the_tree_or_is_no_unit_is_refused(ref: CgroupRef, reason: str) -> None:
    with pytest.raises(HostError, match=reason):
        cgroup_path(ref)


def test_expanding_a_slice_lists_its_ancestors_outermost_first() -> None:
    assert expand_slice("a-b-c.slice") == ["a.slice", "a-b.slice", "a-b-c.slice"]
