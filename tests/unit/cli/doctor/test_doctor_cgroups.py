"""The checks on the cgroup tree."""

from dataclasses import replace

import pytest

from nri_plugin.agent.observing.status_client import AgentStatus
from nri_plugin.cli.doctor.evidence import CgroupDir, Tree
from nri_plugin.cli.doctor.findings import Finding, Verdict
from nri_plugin.cli.doctor.settings import KubeletSettings, NRISettings, Setting
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.doctor_evidence import TREE, config, findings, group, status

ALL = CPUSet.parse("0-7")
TOP = "kubepods.slice"
BURSTABLE, BEST_EFFORT = (f"{TOP}/kubepods-{word}.slice" for word in ("burstable", "besteffort"))
EMPTY = group(BEST_EFFORT, passes_on=False)
OK, ADVICE, TO_DO = Verdict.OK, Verdict.ADVICE, Verdict.TO_DO
NO_FLOOR = config("poolFloor: false\n")


def of(top: str, *groups: CgroupDir, version: int = 2) -> Tree:
    return Tree(version, TREE, top, groups)


def tree(*groups: CgroupDir, version: int = 2) -> Tree:
    return of(TOP, group(""), group(TOP), *groups, version=version)


def ours(cpus: str) -> AgentStatus:
    """The status of an agent that has given these CPUs to a container."""
    return status(state=State({}, {}, {"u1/app": Allocation(CPUSet.parse(cpus))}))


def found(seen: Tree | Hidden | str, **more: object) -> dict[str, Finding]:
    return findings("cgroups", **{"tree": seen, "config": NO_FLOOR, **more})


def drivers(kubelet: str, *, systemd: bool | None) -> dict[str, object]:
    settings = KubeletSettings((), {"cgroupDriver": Setting(kubelet)} if kubelet else {})
    return {"kubelet": settings, "nri": NRISettings("containerd", systemd_cgroup=systemd)}


def asked(*, nests: bool | None = None, version: int = 2) -> Tree:
    return replace(tree(version=version), nests_partitions=nests)


def partition(path: str, cpus: str, kind: str = "isolated") -> CgroupDir:
    return group(f"{TOP}/{path}", cpus, partition=kind)


def given(path: str, cpus: str, effective: str = "0-7") -> CgroupDir:
    return CgroupDir(path, CPUSet.parse(cpus), CPUSet.parse(effective), passes_on=path == TOP)


WIDTH, SPLIT = "cpuset-width", f"{BEST_EFFORT}/pod"
PINNED, FREE, WIDE = given(f"{TOP}/pod/c1", "2-3"), given(f"{TOP}/pod/c2", ""), given(f"{TOP}/pod/c3", "0-7")
STATIC = KubeletSettings((), {"cpuManagerPolicy": Setting("static", "x", 2)})
FLOOR = {"answer": ours("6-7"), "config": config("poolFloor: true\n")}
SPOILT = replace(tree(), is_spoilt=True)
WANTED = {"wants_partitions": True}
INCAPABLE = {**WANTED, "may_partition": False}


@pytest.mark.parametrize(
    ("seen", "more", "check", "verdict", "words"),
    [
        (Hidden(TREE, f"/host{TREE}"), {}, "cgroups", Verdict.NOT_VISIBLE, ""),
        (tree(version=1), {}, "cgroups", ADVICE, ""),
        ("no cpuset hierarchy", {}, "cgroups", TO_DO, ""),
        (tree(), drivers("systemd", systemd=True), "cgroup-driver", OK, ""),
        (tree(), drivers("", systemd=None), "cgroup-driver", OK, ""),
        (tree(), drivers("cgroupfs", systemd=True), "cgroup-driver", TO_DO, ""),
        (tree(), drivers("systemd", systemd=False), "cgroup-driver", TO_DO, ""),
        (tree(), drivers("cgroupfs", systemd=None), "cgroup-driver", TO_DO, f"{TREE}/{TOP} is of systemd"),
        (of("", group("")), {}, "cgroup-driver", OK, "no pod has run yet"),
        (tree(EMPTY, group(SPLIT)), {}, "cpuset-delegation", TO_DO, f"echo +cpuset > {TREE}/{BEST_EFFORT}/cgroup.subtree_control"),
        # systemd takes the controller with the last pod; a pod passes it on when it has containers.
        (tree(EMPTY), {}, "cpuset-delegation", OK, ""),
        (tree(group(SPLIT, passes_on=False)), {}, "cpuset-delegation", OK, ""),
        (of("", group("")), {}, WIDTH, OK, ""),
        (tree(), {"topology": "unknown"}, WIDTH, Verdict.NOT_VISIBLE, ""),
        (tree(group(BURSTABLE, "0-3")), {}, WIDTH, TO_DO, "systemctl set-property --runtime kubepods-burstable.slice AllowedCPUs=0-7"),
        (of("kubepods", group("kubepods", "0-3")), {}, WIDTH, TO_DO, f"echo 0-7 > {TREE}/kubepods/cpuset.cpus"),
        (of(TOP, group("", "0-3")), {}, WIDTH, ADVICE, "the root reaches only CPUs 0-3"),
        (of(TOP, group("", "0-3"), group(TOP, "0-3")), {}, WIDTH, ADVICE, "the root reaches only"),
        (of(TOP, group(""), group(TOP, "2-7")), {}, WIDTH, TO_DO, f"{TOP} reaches only CPUs 2-7: 0-1 cannot"),
        (of(TOP, group(""), group(TOP, "2-7")), {}, WIDTH, TO_DO, f"systemctl set-property --runtime {TOP} AllowedCPUs=0-7"),
        (of(TOP, group(""), given(TOP, "0-7", "0-5")), {}, WIDTH, ADVICE, "a partition of another program below it has them"),
        # A partition of a container takes its CPUs from all cgroups above it, a floor from slices.
        (of(TOP, group("", "0-5"), group(TOP, "0-5"), partition("pod/c", "6-7")), {"answer": ours("6-7")}, WIDTH, OK, f"{TOP} and its QoS groups"),
        (tree(group(BURSTABLE, "0-5")), {"answer": ours("6-7")}, WIDTH, OK, ""),
        (tree(group(BURSTABLE, "0-7"), group(BEST_EFFORT, "0-5")), FLOOR, "pool-floor", ADVICE, "no floor on kubepods-burstable.slice on 0-7: a container"),
        (tree(group(BURSTABLE, "0-5"), group(f"{BURSTABLE}/x", "0-5"), group(BEST_EFFORT, "0-5")), FLOOR, "pool-floor", OK, "systemd clears it for kubepods-besteffort.slice with the first pod there"),
        (of("kubepods", group("kubepods/burstable", "0-5")), FLOOR, "pool-floor", OK, "on all QoS slices"),
        (tree(group(BURSTABLE)), FLOOR | {"config": NO_FLOOR}, "pool-floor", None, ""),
        (tree(group(BURSTABLE)), FLOOR | {"answer": status()}, "pool-floor", None, ""),
        (tree(group(BURSTABLE)), FLOOR | {"answer": "no such socket"}, "pool-floor", None, ""),
        (tree(group(BURSTABLE), version=1), FLOOR, "pool-floor", None, ""),
        (tree(partition("pod", "0-7", "member")), {}, "partitions", OK, ""),
        (tree(partition("pod", "0-7")), {}, "partitions", ADVICE, ""),
        (tree(partition("pod", "0-7", "root invalid (Cpu list in cpuset.cpus not exclusive)")), {}, "partitions", TO_DO, ""),
        (tree(partition("p/a", "4-5"), partition("p/b", "7", "root")), {"answer": ours("4-7")}, "partitions", OK, "only of our containers, on their allocated CPUs: 4-5,7"),
        (tree(partition("p/a", "4-5"), partition("p/vm", "3-4", "root")), {"answer": ours("4-5")}, "partitions", ADVICE, f"{TOP}/p/vm (root, CPUs 3-4) keep CPUs to themselves"),
        (tree(partition("p/a", "4-5"), partition("p/vm", "", "root")), {"answer": ours("4-5")}, "partitions", ADVICE, f"{TOP}/p/vm (root, CPUs ) keep CPUs to themselves"),
        (tree(version=1), {"may_partition": False}, "isolation", None, ""),
        (asked(version=1), WANTED, "isolation", TO_DO, "cgroup v1 has no partitions"),
        (asked(version=1), WANTED, "isolation", TO_DO, "boot with cgroup v2"),
        (asked(nests=False), WANTED, "isolation", TO_DO, "this kernel has no partitions below the root"),
        (asked(nests=False), WANTED, "isolation", TO_DO, "use Linux 6.7 or later"),
        (asked(nests=True), INCAPABLE, "isolation", TO_DO, "the agent lacks the capability SYS_ADMIN"),
        (asked(), INCAPABLE, "isolation", TO_DO, "chart: agent.partitions: true"),
        (asked(nests=True), {**WANTED, "may_partition": True}, "isolation", OK, ""),
        (asked(nests=True), WANTED, "isolation", OK, ""),
        (asked(), WANTED, "isolation", OK, ""),
        (SPOILT, WANTED, "isolation", TO_DO, f"{TREE}/nri-pin-mended: "),
        (SPOILT, {}, "isolation", ADVICE, "boot the node anew"),
        (tree(PINNED, FREE, WIDE), {}, "foreign-cpusets", TO_DO, "1 pods or containers are pinned, and not by an agent of ours: c1 on 2-3"),
        (tree(PINNED, FREE, WIDE), {}, "foreign-cpusets", TO_DO, "find the writer"),
        (tree(PINNED), {"kubelet": STATIC, "rivals": ["koordlet"]}, "foreign-cpusets", TO_DO, "what does it: cpuManagerPolicy static, x:2 and koordlet"),
        (tree(PINNED), {"answer": ours("2-3")}, "foreign-cpusets", None, ""),
        (tree(FREE, WIDE), {}, "foreign-cpusets", None, ""),
    ],
)  # fmt: skip
def test_the_tree_is_judged(
    seen: Tree | Hidden | str, more: dict[str, object], check: str, verdict: Verdict | None, words: str
) -> None:
    answer = found(seen, **more).get(check)
    assert (answer and answer.verdict) is verdict
    assert answer is None or words in f"{answer.says}\n{answer.do}\n{answer.command}"


def test_a_tree_that_cannot_be_seen_has_one_finding() -> None:
    assert len(found(Hidden(TREE, f"/host{TREE}"))) == 1


def test_a_sound_tree_has_nothing_to_do() -> None:
    answers = found(tree(group(BURSTABLE), group(f"{TOP}/a/b", "3")))
    assert {answer.verdict for answer in answers.values()} == {OK}


def test_a_remedy_for_a_root_that_is_too_narrow_is_no_command() -> None:
    assert found(of(TOP, group("", "0-3")))[WIDTH].command == ""
