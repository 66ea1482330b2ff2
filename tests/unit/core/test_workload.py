"""What the kubelet must have meant by what the runtime says."""

import pytest

from nri_plugin.core.requests import (
    ContainerRequest,
    container_request,
    cpu_milli,
    milli_from_shares,
    pod_record,
    qos_of,
    qos_slices,
    slice_pattern,
    stored_cpus,
    stored_mems,
)
from nri_plugin.model.options import Options
from nri_plugin.model.records import CgroupRef, QOSClass
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.builders import cpus, nodes

UID = "0f6c1c1e-1111-2222-3333-444455556666"
DASHED = UID.replace("-", "_")


def test_every_request_survives_the_kubelets_rounding() -> None:
    assert [milli for milli in range(3, 256001) if milli_from_shares(milli * 1024 // 1000) != milli] == []


@pytest.mark.parametrize("shares", [None, 0, 2])
def test_two_shares_or_less_are_no_request(shares: int | None) -> None:
    assert milli_from_shares(shares) == 0


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (Resources(cpu_shares=262144, cpu_quota_us=30_000_000, cpu_period_us=100_000), 300_000),
        (Resources(cpu_shares=262144, cpu_quota_us=-1, cpu_period_us=100_000), None),
        (Resources(cpu_shares=262144), None),
        (Resources(cpu_shares=1024, cpu_quota_us=400_000, cpu_period_us=100_000), 1000),
    ],
)
def test_from_256_cpus_on_the_limit_tells_a_guaranteed_request(
    resources: Resources, expected: int | None
) -> None:
    assert cpu_milli(resources, QOSClass.GUARANTEED) == expected


@pytest.mark.parametrize(
    ("parent", "qos"),
    [
        (f"/kubepods/pod{UID}", QOSClass.GUARANTEED),
        (f"/kubepods/burstable/pod{UID}", QOSClass.BURSTABLE),
        (f"/kubepods/besteffort/pod{UID}", QOSClass.BEST_EFFORT),
        (f"kubepods-pod{DASHED}.slice", QOSClass.GUARANTEED),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{DASHED}.slice",
            QOSClass.BURSTABLE,
        ),
        (f"kubelet-kubepods-besteffort-pod{DASHED}.slice", QOSClass.BEST_EFFORT),
        ("/system.slice/foo", QOSClass.BEST_EFFORT),
        ("", QOSClass.BEST_EFFORT),
    ],
)
def test_qos_is_read_off_the_cgroup_parent(parent: str, qos: QOSClass) -> None:
    assert qos_of(parent) is qos


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (f"/kubepods/burstable/pod{UID}", "/kubepods/{}"),
        (f"/kubepods/besteffort/pod{UID}", "/kubepods/{}"),
        (f"/kubepods/pod{UID}", "/kubepods/{}"),
        (f"/outer/kubepods/pod{UID}", "/outer/kubepods/{}"),
        (f"kubepods-burstable-pod{DASHED}.slice", "kubepods-{}.slice"),
        (f"kubepods-pod{DASHED}.slice", "kubepods-{}.slice"),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{DASHED}.slice",
            "kubepods-{}.slice",
        ),
        (f"kubelet-kubepods-pod{DASHED}.slice", "kubelet-kubepods-{}.slice"),
    ],
)
def test_the_slices_of_the_qos_classes_are_found_from_any_pod(parent: str, expected: str) -> None:
    refs = qos_slices(slice_pattern(parent))
    assert refs == tuple(CgroupRef(expected.format(word)) for word in ("burstable", "besteffort"))


@pytest.mark.parametrize("parent", ["", "/system.slice/foo", "/", "machine.slice", "/kubepods"])
def test_outside_the_kubelets_tree_there_are_no_slices(parent: str) -> None:
    assert qos_slices(slice_pattern(parent)) == ()


@pytest.mark.parametrize(
    ("qos", "milli", "count"),
    [
        (QOSClass.GUARANTEED, 2000, 2),
        (QOSClass.GUARANTEED, 2500, 0),
        (QOSClass.GUARANTEED, 0, 0),
        (QOSClass.GUARANTEED, None, 0),
        (QOSClass.BURSTABLE, 2000, 0),
    ],
)
def test_only_whole_cpus_of_guaranteed_pods_are_exclusive(
    qos: QOSClass, milli: int | None, count: int
) -> None:
    assert ContainerRequest("u", "c", qos, milli).exclusive_cpus == count


def test_memory_and_huge_pages_are_requests_only_of_guaranteed_pods() -> None:
    resources = Resources(
        cpu_shares=1024, memory_limit_bytes=1 << 30, hugepage_limits=(("2MB", 4 << 20), ("1GB", 0))
    )
    wanted = {}
    for parent in ("/kubepods/podu", "/kubepods/burstable/podu"):
        record = pod_record(Pod("sb", uid="u", cgroup_parent=parent), Options(), run_seen=True)
        wanted[record.qos] = container_request(
            Options(), record, Container("id", resources=resources)
        ).memory_by_resource
    assert wanted == {
        QOSClass.GUARANTEED: {"memory": 1 << 30, "hugepages-2Mi": 4 << 20},
        QOSClass.BURSTABLE: {},
    }


def test_a_pod_without_uid_is_known_by_its_sandbox() -> None:
    assert pod_record(Pod("sb"), Options(), run_seen=False).uid == "sb"


def test_an_unreadable_cpuset_counts_as_none() -> None:
    assert stored_cpus(Resources(cpus="0-3,8")) == cpus("0-3,8")
    assert not stored_cpus(Resources(cpus="3-0"))


def test_an_unreadable_list_of_memory_nodes_counts_as_none() -> None:
    assert stored_mems(Resources(mems="0,2")) == nodes(0, 2)
    assert not stored_mems(Resources(mems="first"))


def test_where_resources_are_not_told_nothing_is_requested() -> None:
    assert cpu_milli(None, QOSClass.GUARANTEED) == 0
