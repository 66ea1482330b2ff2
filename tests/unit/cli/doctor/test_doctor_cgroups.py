from dataclasses import replace

import pytest

from nri_plugin.agent.status_client import AgentStatus
from nri_plugin.cli.doctor.evidence import CgroupDir, Tree
from nri_plugin.cli.doctor.findings import Finding, Verdict
from nri_plugin.cli.doctor.settings import KubeletSettings, NRISettings, Setting
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.doctor_evidence import TREE, config, findings, group, status

ALL = CPUSet.parse("0-7")
FLOOR = config("poolFloor: true\n")
NO_FLOOR = config("poolFloor: false\n")


def tree(*groups: CgroupDir, version: int = 2) -> Tree:
    return Tree(version, TREE, "kubepods.slice", (group(""), group("kubepods.slice"), *groups))


def ours(cpus: str) -> AgentStatus:
    """The status of an agent that has given these CPUs to a container."""
    return status(state=State({}, {}, {"u1/app": Allocation(CPUSet.parse(cpus))}))


def found(seen: Tree | Hidden | str, **more: object) -> dict[str, Finding]:
    return findings("cgroups", **{"tree": seen, "config": NO_FLOOR, **more})


def test_a_sound_tree_has_nothing_to_do() -> None:
    answers = found(tree(group("kubepods.slice/kubepods-burstable.slice"), group("kubepods.slice/a/b", "3")))
    assert {answer.verdict for answer in answers.values()} == {Verdict.OK}


def test_a_tree_out_of_sight_is_one_answer() -> None:
    answers = found(Hidden("/sys/fs/cgroup", "/host/sys/fs/cgroup"))
    assert [answer.verdict for answer in answers.values()] == [Verdict.NOT_VISIBLE]


def test_version_1_is_good_enough() -> None:
    assert found(tree(version=1))["cgroups"].verdict is Verdict.ADVICE
    assert found("no cpuset hierarchy")["cgroups"].verdict is Verdict.TO_DO


@pytest.mark.parametrize(
    ("kubelet", "systemd", "verdict"),
    [
        ("systemd", True, Verdict.OK),
        ("", None, Verdict.OK),
        ("cgroupfs", True, Verdict.TO_DO),
        ("systemd", False, Verdict.TO_DO),
        ("cgroupfs", None, Verdict.TO_DO),  # the tree is of systemd
    ],
)
def test_one_driver_for_kubelet_runtime_and_tree(
    kubelet: str, systemd: bool | None, verdict: Verdict
) -> None:
    answer = findings(
        "cgroups",
        tree=tree(),
        kubelet=KubeletSettings((), {"cgroupDriver": Setting(kubelet)} if kubelet else {}),
        nri=NRISettings("containerd", systemd_cgroup=systemd),
    )["cgroup-driver"]
    assert answer.verdict is verdict


def test_the_level_that_passes_no_cpusets_on_is_named() -> None:
    empty = group("kubepods.slice/kubepods-besteffort.slice", passes_on=False)
    answer = found(tree(empty, group("kubepods.slice/kubepods-besteffort.slice/pod")))["cpuset-delegation"]
    assert answer.verdict is Verdict.TO_DO
    assert found(tree(empty))["cpuset-delegation"].verdict is Verdict.OK  # systemd takes it with the last pod
    assert answer.command == (
        "echo +cpuset > /sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/cgroup.subtree_control"
    )
    pod = group("kubepods.slice/kubepods-besteffort.slice/pod", passes_on=False)
    assert (
        found(tree(pod))["cpuset-delegation"].verdict is Verdict.OK
    )  # a pod passes on when it has containers


def test_a_slice_narrower_than_the_machine_is_widened_by_its_owner() -> None:
    answer = found(tree(group("kubepods.slice/kubepods-burstable.slice", "0-3")))["cpuset-width"]
    assert answer.verdict is Verdict.TO_DO
    assert answer.command == "systemctl set-property --runtime kubepods-burstable.slice AllowedCPUs=0-7"
    by_hand = found(Tree(2, "/sys/fs/cgroup", "kubepods", (group("kubepods", "0-3"),)))["cpuset-width"]
    assert by_hand.command == "echo 0-7 > /sys/fs/cgroup/kubepods/cpuset.cpus"


@pytest.mark.parametrize(
    ("groups", "verdict", "says", "command"),
    [
        ((group("", "0-3"),), Verdict.ADVICE, "the root reaches only CPUs 0-3", ""),
        ((group("", "0-3"), group("kubepods.slice", "0-3")), Verdict.ADVICE, "the root reaches only", ""),
        (
            (group(""), group("kubepods.slice", "2-7")),
            Verdict.TO_DO,
            "kubepods.slice reaches only CPUs 2-7: 0-1 cannot",
            "systemctl set-property --runtime kubepods.slice AllowedCPUs=0-7",
        ),
        (
            (group(""), CgroupDir("kubepods.slice", ALL, CPUSet.parse("0-5"), passes_on=True)),
            Verdict.ADVICE,
            "a partition of another program below it has them",
            "",
        ),
        # A partition of a container takes its CPUs from all cgroups above it.
        (
            (
                group("", "0-5"),
                group("kubepods.slice", "0-5"),
                group("kubepods.slice/pod/c", "6-7", partition="isolated"),
            ),
            Verdict.OK,
            "kubepods.slice and its QoS groups",
            "",
        ),
    ],
)
def test_a_narrow_cgroup_above_the_pods_has_a_remedy_or_none(
    groups: tuple[CgroupDir, ...], verdict: Verdict, says: str, command: str
) -> None:
    answer = found(Tree(2, "/sys/fs/cgroup", "kubepods.slice", groups), answer=ours("6-7"))
    width = answer["cpuset-width"]
    assert (width.verdict, width.command) == (verdict, command)
    assert says in width.says


def test_the_floor_that_keeps_exclusive_cpus_free_is_no_narrowing() -> None:
    narrow = tree(group("kubepods.slice/kubepods-burstable.slice", "0-5"))
    assert found(narrow, answer=ours("6-7"))["cpuset-width"].verdict is Verdict.OK


def test_without_the_machines_cpus_nobody_knows_how_wide_is_wide() -> None:
    answers = found(tree(), topology="unknown")
    assert answers["cpuset-width"].verdict is Verdict.NOT_VISIBLE


@pytest.mark.parametrize(
    ("partition", "verdict"),
    [
        ("member", Verdict.OK),
        ("isolated", Verdict.ADVICE),
        ("root invalid (Cpu list in cpuset.cpus not exclusive)", Verdict.TO_DO),
    ],
)
def test_partitions_are_told(partition: str, verdict: Verdict) -> None:
    assert found(tree(group("kubepods.slice/pod", partition=partition)))["partitions"].verdict is verdict


def test_a_node_without_pods_has_no_slices_to_judge() -> None:
    answers = found(Tree(2, "/sys/fs/cgroup", "", (group(""),)))
    assert answers["cpuset-width"].verdict is Verdict.OK
    assert answers["cgroup-driver"].verdict is Verdict.OK


def test_containers_that_somebody_else_has_pinned_are_named() -> None:
    pinned = CgroupDir("kubepods.slice/pod/c1", CPUSet.parse("2-3"), CPUSet.parse("2-3"), passes_on=False)
    free = CgroupDir("kubepods.slice/pod/c2", CPUSet(), ALL, passes_on=False)
    wide = CgroupDir("kubepods.slice/pod/c3", ALL, ALL, passes_on=False)
    answer = found(tree(pinned, free, wide))["foreign-cpusets"]
    assert (answer.verdict, "c1 on 2-3" in answer.says, "1 pods" in answer.says) == (
        Verdict.TO_DO,
        True,
        True,
    )
    assert "find the writer" in answer.do
    static = KubeletSettings((), {"cpuManagerPolicy": Setting("static", "x", 2)})
    named = found(tree(pinned), kubelet=static, rivals=["koordlet"])["foreign-cpusets"]
    assert named.says.endswith("what does it: cpuManagerPolicy static, x:2 and koordlet")
    assert "foreign-cpusets" not in found(tree(pinned), answer=ours("2-3"))
    assert "foreign-cpusets" not in found(tree(free, wide))


def test_partitions_of_our_own_containers_are_as_they_should_be() -> None:
    own = (
        group("kubepods.slice/p/a", "4-5", partition="isolated"),
        group("kubepods.slice/p/b", "7", partition="root"),
    )
    answer = found(tree(*own), answer=ours("4-7"))["partitions"]
    assert answer.verdict is Verdict.OK
    assert answer.says == "only of our containers, on their allocated CPUs: 4-5,7"


@pytest.mark.parametrize("effective", ["3-4", ""])
def test_partitions_of_others_are_told_beside_our_own(effective: str) -> None:
    own = group("kubepods.slice/p/a", "4-5", partition="isolated")
    other = group("kubepods.slice/p/vm", effective, partition="root")
    answer = found(tree(own, other), answer=ours("4-5"))["partitions"]
    assert answer.verdict is Verdict.ADVICE
    assert answer.says == f"kubepods.slice/p/vm (root, CPUs {effective}) keep CPUs to themselves"


def test_without_isolation_nothing_is_said_of_it() -> None:
    assert "isolation" not in found(tree(version=1), may_partition=False)


@pytest.mark.parametrize(
    ("version", "nests", "may", "says", "do"),
    [
        (1, None, None, "cgroup v1 has no partitions", "boot with cgroup v2"),
        (2, False, None, "this kernel has no partitions below the root", "use Linux 6.7 or later"),
        (2, True, False, "the agent lacks the capability SYS_ADMIN", "chart: agent.partitions: true"),
        (2, None, False, "the agent lacks the capability SYS_ADMIN", "chart: agent.partitions: true"),
    ],
)
def test_isolation_that_cannot_be_has_its_reason_and_a_next_step(
    version: int, nests: bool | None, may: bool | None, says: str, do: str
) -> None:
    seen = replace(tree(version=version), nests_partitions=nests)
    answer = found(seen, wants_partitions=True, may_partition=may)["isolation"]
    assert (answer.verdict, says in answer.says, do in answer.do) == (Verdict.TO_DO, True, True)


@pytest.mark.parametrize(("nests", "may"), [(True, True), (True, None), (None, None)])
def test_isolation_that_nothing_is_known_against_is_fine(nests: bool | None, may: bool | None) -> None:
    seen = replace(tree(), nests_partitions=nests)
    assert found(seen, wants_partitions=True, may_partition=may)["isolation"].verdict is Verdict.OK


@pytest.mark.parametrize(("asks", "verdict"), [(True, Verdict.TO_DO), (False, Verdict.ADVICE)])
def test_the_mark_of_mended_cpus_asks_for_a_boot(asks: bool, verdict: Verdict) -> None:
    answer = found(replace(tree(), is_spoilt=True), wants_partitions=asks)["isolation"]
    assert answer.verdict is verdict
    assert answer.says.startswith("/sys/fs/cgroup/nri-pin-mended: ")
    assert answer.do.startswith("boot the node anew")


BURSTABLE, BEST_EFFORT = (f"kubepods.slice/kubepods-{word}.slice" for word in ("burstable", "besteffort"))
OURS = {"answer": ours("6-7"), "config": FLOOR}


def test_a_slice_without_its_floor_is_named() -> None:
    answer = found(tree(group(BURSTABLE, "0-7"), group(BEST_EFFORT, "0-5")), **OURS)["pool-floor"]
    assert answer.verdict is Verdict.ADVICE
    assert answer.says.startswith("no floor on kubepods-burstable.slice on 0-7: a container")
    assert answer.says.endswith("exclusive CPUs 6-7")


def test_the_gap_that_systemd_leaves_in_a_floor_is_named() -> None:
    pod = group(f"{BURSTABLE}/kubepods-burstable-podx.slice", "0-5")
    answer = found(tree(group(BURSTABLE, "0-5"), pod, group(BEST_EFFORT, "0-5")), **OURS)["pool-floor"]
    assert answer.verdict is Verdict.OK
    assert "systemd clears it for kubepods-besteffort.slice with the first pod there" in answer.says
    other = Tree(2, "/sys/fs/cgroup", "kubepods", (group("kubepods/burstable", "0-5"),))
    assert found(other, **OURS)["pool-floor"].says == "on all QoS slices"


@pytest.mark.parametrize("less", [{"config": NO_FLOOR}, {"answer": status()}, {"answer": "no such socket"}])
def test_without_a_floor_or_exclusive_cpus_nothing_is_said_of_it(less: dict[str, object]) -> None:
    assert "pool-floor" not in found(tree(group(BURSTABLE)), **OURS | less)
    assert "pool-floor" not in found(tree(group(BURSTABLE), version=1), **OURS)
