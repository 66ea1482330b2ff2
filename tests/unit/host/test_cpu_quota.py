from pathlib import Path

import pytest

from nri_plugin.core.kernel_settings import NO_QUOTA
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.mounts import CpusetTree
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef

POD = CgroupRef("/kubepods/podp")


def on_v2(root: Path, text: str) -> tuple[CPUQuotas, Path]:
    file = root / "kubepods/podp/cpu.max"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = CPUQuotas.beside(CpusetTree(2, str(root), is_kernel=False))
    assert found is not None
    return found, file


def on_v1(root: Path, quota: int, period: int) -> tuple[CPUQuotas, Path]:
    directory = root / "cpu,cpuacct/kubepods/podp"
    directory.mkdir(parents=True)
    (directory / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (directory / "cpu.cfs_period_us").write_text(f"{period}\n")
    found = CPUQuotas.beside(CpusetTree(1, str(root / "cpuset"), is_kernel=False))
    assert found is not None
    return found, directory / "cpu.cfs_quota_us"


def test_a_quota_is_lifted_and_put_back(tmp_path: Path) -> None:
    quotas, file = on_v2(tmp_path, "200000 100000\n")
    assert quotas.set(POD, NO_QUOTA)
    assert file.read_text() == "max 100000"
    file.write_text("max 10000\n")
    assert quotas.set(POD, 150_000)
    assert file.read_text() == "15000 10000"


def test_a_quota_below_the_scope_is_lifted_too(tmp_path: Path) -> None:
    quotas, _ = on_v2(tmp_path, "max 100000")
    scope = tmp_path / "kubepods.slice/kubepods-podp.slice/cri-one.scope"
    (scope / "container").mkdir(parents=True)
    (scope / "cpu.max").write_text("max 100000")
    (scope / "container/cpu.max").write_text("200000 100000")
    ref = CgroupRef("kubepods-podp.slice", "kubepods-podp.slice:cri:one")
    assert quotas.set(ref, NO_QUOTA)
    assert (scope / "container/cpu.max").read_text() == "max 100000"
    assert quotas.set(ref, 200_000)
    assert (scope / "container/cpu.max").read_text() == "max 100000"


@pytest.mark.parametrize(
    ("held", "wanted"),
    [("max 100000", NO_QUOTA), ("20000 10000", 200_000), ("400000 100000", 200_000)],
)
def test_what_is_so_already_or_somebodys_own_is_not_written(tmp_path: Path, held: str, wanted: int) -> None:
    quotas, file = on_v2(tmp_path, held)
    assert not quotas.set(POD, wanted)
    assert file.read_text() == held


def test_the_period_of_v1_stays(tmp_path: Path) -> None:
    quotas, file = on_v1(tmp_path, 20_000, 10_000)
    assert not quotas.set(POD, 200_000)
    assert quotas.set(POD, NO_QUOTA)
    assert file.read_text() == "-1"
    assert quotas.set(POD, 300_000)
    assert file.read_text() == "30000"


def test_a_cgroup_that_is_gone_has_no_quota(tmp_path: Path) -> None:
    quotas, _ = on_v2(tmp_path, "max 100000")
    assert not quotas.set(CgroupRef("/kubepods/other"), NO_QUOTA)


def test_what_is_no_quota_is_named(tmp_path: Path) -> None:
    quotas, file = on_v2(tmp_path, "plenty")
    with pytest.raises(HostError, match="holds no CPU quota") as caught:
        quotas.set(POD, NO_QUOTA)
    assert caught.value.path == str(file)


def test_a_quota_that_the_kernel_refuses_is_named(tmp_path: Path) -> None:
    quotas, file = on_v2(tmp_path, "100000 100000")
    file.unlink()
    file.mkdir()
    with pytest.raises(HostError, match="a CPU quota of 150000 us each 100000 us was refused"):
        quotas.set(POD, 150_000)


def test_without_a_cpu_hierarchy_there_are_none(tmp_path: Path) -> None:
    assert CPUQuotas.beside(CpusetTree(1, str(tmp_path / "cpuset"), is_kernel=False)) is None
