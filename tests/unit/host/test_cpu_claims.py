"""What containers say of their claims counts as far as the host's CDI specifications say it, too."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.host.cpu_claims import CPUClaims
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.bounds import VARIABLES
from nri_plugin.wire.nri.messages import Container

UID = "0a1b2c3d-0000-1111-2222-333344445555"
VARIABLE = f"DRA_CPUSET_{UID}=2-3"
BARE = Container("c")


def write(root: Path, uid: str = UID, env: str = VARIABLE, **changes: object) -> None:
    """The specification as the driver writes it: CDI 0.8.0, one device for a claim."""
    folder = root / "var/run/cdi"
    folder.mkdir(parents=True, exist_ok=True)
    device = {"name": f"claim-{uid}", "containerEdits": {"env": [env]}}
    spec = {"cdiVersion": "0.8.0", "kind": "dra.k8s.io/cpu", "devices": [device], **changes}
    (folder / f"dra.k8s.io-cpu_claim-{uid}.json").write_text(json.dumps(spec))


@pytest.fixture
def claims(tmp_path: Path) -> CPUClaims:
    return CPUClaims(KernelFiles(str(tmp_path)))


def test_a_variable_that_the_specification_sets_counts(claims: CPUClaims, tmp_path: Path) -> None:
    write(tmp_path)
    told = replace(BARE, env=("PCIDEVICE_A=0000:00:01.0", VARIABLE))
    assert claims.checked(told) == told


def test_a_cdi_name_alone_is_enough(claims: CPUClaims, tmp_path: Path) -> None:
    write(tmp_path)
    named = replace(BARE, cdi_devices=(f"dra.k8s.io/cpu=claim-{UID}", "nvidia.com/gpu=0"))
    assert claims.checked(named).env == (VARIABLE,)


def test_the_host_s_cpus_count_and_not_those_of_the_pod_s_author(claims: CPUClaims, tmp_path: Path) -> None:
    write(tmp_path)
    forged = replace(BARE, env=(f"DRA_CPUSET_{UID}=0-63", "DRA_CPUSET_other=4"))
    assert claims.checked(forged).env == (VARIABLE,)


def test_made_up_variables_do_not_hide_the_claim_that_the_runtime_reports(
    claims: CPUClaims, tmp_path: Path
) -> None:
    write(tmp_path)
    made_up = tuple(f"DRA_CPUSET_0{number:02}=4" for number in range(VARIABLES))
    told = replace(BARE, env=made_up, cdi_devices=(f"dra.k8s.io/cpu=claim-{UID}",))
    assert claims.checked(told).env == (VARIABLE,)


@pytest.mark.parametrize("uid", ["../../../etc/passwd", "", "a" * 64, "a/b", "a\n"])
def test_a_name_that_is_no_uid_is_looked_up_nowhere(claims: CPUClaims, tmp_path: Path, uid: str) -> None:
    write(tmp_path)
    forged = replace(BARE, env=(f"DRA_CPUSET_{uid}=4",), cdi_devices=(f"dra.k8s.io/cpu=claim-{uid}",))
    assert claims.checked(forged).env == ()


@pytest.mark.parametrize(
    "changes",
    [{"kind": "vendor.com/cpu"}, {"devices": []}, {"devices": 7}, {"devices": [{"name": f"claim-{UID}"}]}],
)
def test_a_specification_that_says_something_else_makes_no_claim(
    claims: CPUClaims, tmp_path: Path, changes: dict[str, object]
) -> None:
    write(tmp_path, **changes)
    assert claims.checked(replace(BARE, env=(VARIABLE,))).env == ()


def test_a_container_without_claims_stays_as_it_is(claims: CPUClaims) -> None:
    for one in (BARE, replace(BARE, env=("PCIDEVICE_A=x",)), replace(BARE, cdi_devices=("a.b/c=d",))):
        assert claims.checked(one) is one
