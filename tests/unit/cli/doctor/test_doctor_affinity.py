"""The CPU affinity of the runtime, by its process, its shims, and the settings of systemd, on copies of a node's files."""

from pathlib import Path

import pytest

from nri_plugin.cli.doctor.evidence import Evidence
from nri_plugin.cli.doctor.findings import Finding, Verdict
from nri_plugin.cli.doctor.runtime import runtime_affinity
from nri_plugin.cli.doctor.view import NodeView, Process
from tests.builders import cpus

UNIT = "/etc/systemd/system/containerd.service"
DROP_IN = f"{UNIT}.d/cpus.conf"
RUNTIME, SHIM = "proc/20/status", "proc/30/status"
IN_UNIT = {"proc/20/cgroup": "0::/system.slice/containerd.service\n"}


def found(root: Path, files: dict[str, str], pool: str = "0-7") -> Finding | None:
    for name, text in {"proc/1/status": "Name:\tinit\n", **files}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    processes = [
        Process(20, "containerd", ("containerd",)),
        Process(30, "containerd-shim", ("containerd-shim-runc-v2",)),
    ]
    processes = [one for one in processes if (root / f"proc/{one.pid}").exists()]
    runtime = next((one for one in processes if one.name == "containerd"), None)
    seen = Evidence(NodeView(str(root), in_pod=False))
    shared = {"processes": tuple(processes), "runtime_process": runtime, "runtime_name": "containerd"}
    vars(seen).update(shared, shared_pool=cpus(pool))
    return runtime_affinity(seen)


def mask(cpus: str) -> str:
    return f"Name:\tx\nUid:\t0\t0\t0\t0\nCpus_allowed_list:\t{cpus}\n"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({RUNTIME: mask("0")}, "containerd has a CPU affinity of CPUs 0;"),
        ({RUNTIME: mask("0-7"), SHIM: mask("0-1")}, "containerd-shim has a CPU affinity of CPUs 0-1;"),
        ({RUNTIME: mask("0"), DROP_IN: "[Service]\nCPUAffinity=0\n"}, f"CPUs 0, by {DROP_IN}:2;"),
        ({DROP_IN: "[Service]\nCPUAffinity=0,2-3 5\n"}, f"containerd.service has a CPU affinity of CPUs 0,2-3,5, by {DROP_IN}:2;"),
        ({UNIT: "[Service]\nCPUAffinity=0\nCPUAffinity=1\n"}, f"CPUs 0-1, by {UNIT}:3;"),
        ({"/etc/systemd/system.conf": "[Manager]\nCPUAffinity=1\n"}, "CPUs 1, by /etc/systemd/system.conf:2;"),
        ({"/etc/systemd/system/service.d/all.conf": "[Service]\nCPUAffinity=1\n"}, "CPUs 1, by /etc/systemd/system/service.d/all.conf:2;"),
        ({"/etc/systemd/system/k3s.service": "[Service]\nCPUAffinity=0-1\n"}, "k3s.service has a CPU affinity of CPUs 0-1, by"),
    ],
)  # fmt: skip
def test_it_is_named_with_the_place_that_sets_it(tmp_path: Path, files: dict[str, str], says: str) -> None:
    finding = found(tmp_path, files)
    assert finding
    assert finding.verdict is Verdict.ADVICE
    assert says in finding.says


@pytest.mark.parametrize(
    "files",
    [
        {},
        {RUNTIME: mask("0-7")},
        # It has the cpuset of its slice, which its containers do not have from it.
        {RUNTIME: mask("0-1"), **IN_UNIT, "/sys/fs/cgroup/system.slice/cpuset.cpus.effective": "0-1\n"},
        # It was set and is set no longer, or the running process does not have it.
        {UNIT: "[Service]\nCPUAffinity=0\n", DROP_IN: "[Service]\nCPUAffinity=\n"},
        {RUNTIME: mask("0-7"), UNIT: "[Service]\nCPUAffinity=0\n"},
        # A kernel that drops the mask of a process that joins a cpuset.
        {RUNTIME: mask("0"), "proc/sys/kernel/osrelease": "5.15.0-91-generic\n"},
    ],
)  # fmt: skip
def test_a_runtime_without_an_affinity_of_its_own_is_not_named(tmp_path: Path, files: dict[str, str]) -> None:
    assert found(tmp_path, files) is None


def test_one_that_the_shared_pool_does_not_have_does_no_harm(tmp_path: Path) -> None:
    finding = found(tmp_path, {RUNTIME: mask("0-1")}, pool="2-7")
    assert finding
    assert finding.verdict is Verdict.OK
