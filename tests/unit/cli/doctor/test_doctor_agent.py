import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_plugin import __version__
from nri_plugin.agent.observing.status_client import DriftRow, QuietRow, ReachRow
from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.cli.doctor.evidence import FoundConfig
from nri_plugin.cli.doctor.findings import Finding, Verdict
from nri_plugin.cli.doctor.settings import KubeletSettings, NRISettings, Setting
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.config.loading import first_lines, load
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.doctor_evidence import CONFIG, config, findings, status

SILENT = {"answer": "no such socket"}
OUT_OF_SIGHT = Hidden("/run/nri-pin", "/host/run/nri-pin")
STATIC = KubeletSettings((), {"cpuManagerPolicy": Setting("static", "/etc/kubelet.yaml", 4)})


def sound(count: int = 3, *overlapping: str) -> Checkpoint:
    cgroup = CgroupRef("/kubepods/podu1", "/kubepods/podu1/c")
    names = [f"c{number}" for number in range(count)]
    containers = {name: ContainerRecord(name, "u1", name, Phase.RUNNING, cgroup) for name in names}
    owned = {f"u1/{name}": Allocation(CPUSet.of(2)) for name in overlapping}
    pods = {"u1": PodRecord("u1", "s1", "web", "shop", QOSClass.BURSTABLE, "/kubepods/podu1")}
    return Checkpoint(State(pods, containers, owned), 1, "1.0", NodeFacts.of(status().node))


def found(**seen: object) -> dict[str, Finding]:
    known = {"checkpoint": sound(), "is_in_memory": True, "free_bytes": 1 << 30, "answer": status()}
    return findings("agent", **{**known, **seen})


def nothing_configured(
    path: str = "/etc/c.yaml", lines: tuple[str, ...] = ("reservedSystemCPUs: 0",)
) -> FoundConfig:
    return FoundConfig(path, None, f"{path}: no configuration", lines)


POD_LEVEL = config("featureGates: {PodLevelResourceManagers: true}")
FIGHT = DriftRow(1, "c1", "c1", "shop/web/app", "0-7", "0-7", "2", "other-value", "sweep", 3, is_fight=True)


def unusable(error: str | Hidden) -> FoundConfig:
    return FoundConfig(CONFIG, None, error)


def test_an_agent_at_work_has_nothing_to_do() -> None:
    assert {answer.verdict for answer in found().values()} == {Verdict.OK}
    assert found()["checkpoint"].says == "sound, 3 containers"


def test_keys_of_a_later_kubelet_are_listed_and_nothing_to_do() -> None:
    usable = config()
    assert usable.config
    unknown = replace(usable.config, unknown_keys=("quux", "evictionHard.swapfs.available"))
    answer = found(config=usable._replace(config=unknown))["configuration"]
    assert answer.verdict is Verdict.OK
    assert answer.says.endswith("unknown here, so ignored: quux, evictionHard.swapfs.available")


def test_creations_that_fail_one_after_the_other_name_who_may_be_it() -> None:
    assert "failed-creations" not in found(answer=status(failed_creations=1))
    suspects = {"plugins": ("10-topology-aware", "90-nri-pin"), "rivals": ["koordlet"]}
    answer = found(answer=status(failed_creations=3), **suspects)["failed-creations"]
    assert answer.verdict is Verdict.TO_DO
    assert "the last 3 creations failed" in answer.says
    assert "10-topology-aware, koordlet may be it" in answer.says
    assert "not visible from here" in found(answer=status(failed_creations=2))["failed-creations"].says


def test_containers_that_the_runtime_did_not_report_are_named() -> None:
    assert "unreported-containers" not in found()
    answer = found(answer=status(unreported=("kubepods/podu/a", "kubepods/podu/b")))["unreported-containers"]
    assert answer.verdict is Verdict.TO_DO
    assert "kubepods/podu/a, kubepods/podu/b" in answer.says


def test_while_the_kubelet_has_to_hand_over_the_agent_is_not_started_first() -> None:
    answers = found(kubelet=STATIC, config=nothing_configured(), **SILENT)
    for check in ("configuration", "agent"):
        assert (answers[check].verdict, answers[check].command) == (Verdict.TO_DO, "")
        assert "the steps for the kubelet above" in answers[check].do


def test_an_agent_of_systemd_is_started_by_its_unit() -> None:
    answer = found(has_unit=True, **SILENT)["agent"]
    assert (answer.verdict, answer.command) == (Verdict.TO_DO, "systemctl start nri-pin")
    assert found(**SILENT)["agent"].command == "nri-pin run --config /etc/nri-pin/config.yaml"


def test_an_agent_that_only_observes_is_said_to_and_leaves_others_alone() -> None:
    answers = found(answer=status(observing=True), rivals=["koordlet"])
    assert answers["observing"].verdict is Verdict.ADVICE
    assert "pins, refuses and writes nothing" in answers["observing"].says
    assert answers["rivals"].verdict is Verdict.OK
    assert found(rivals=["koordlet"])["rivals"].verdict is Verdict.TO_DO


@pytest.mark.parametrize(
    ("seen", "check", "verdict", "words"),
    [
        ({"config": unusable(OUT_OF_SIGHT)}, "configuration", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"config": unusable("c.yaml:3:1: bad\nc:4:1: worse")}, "configuration", Verdict.TO_DO, "3:1: bad (and 1 more)"),
        (SILENT, "agent", Verdict.TO_DO, "no agent answers: no such socket"),
        ({"answer": OUT_OF_SIGHT}, "agent", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"answer": status(agent="0.9")}, "agent", Verdict.TO_DO, f"version 0.9, and this command is {__version__}"),
        ({"answer": status(runtime=None)}, "agent-runtime", Verdict.TO_DO, "no runtime asks it"),
        ({"is_in_memory": False}, "state-directory", Verdict.ADVICE, "on a disk"),
        ({"free_bytes": 1 << 20}, "free-space", Verdict.TO_DO, "1024 KiB are left"),
        ({"checkpoint": OUT_OF_SIGHT}, "checkpoint", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"checkpoint": None}, "checkpoint", Verdict.OK, "none yet"),
        ({"checkpoint": "damaged"}, "checkpoint", Verdict.TO_DO, "damaged"),
        ({"checkpoint": sound(0, "a", "b", "c", "d")}, "checkpoint", Verdict.TO_DO, "; 3 more"),
        ({"exporter": ""}, "exporter", Verdict.OK, "takes connections"),
        ({"exporter": "no process listens"}, "exporter", Verdict.TO_DO, "nothing is published to the cluster"),
        ({"config": POD_LEVEL}, "exporter", Verdict.TO_DO, "PodLevelResourceManagers is on and has no effect"),
        ({"config": POD_LEVEL, "exporter": ""}, "exporter", Verdict.OK, "takes connections"),
        ({"exporter": OUT_OF_SIGHT}, "exporter", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"answer": status(drifts=(FIGHT,))}, "fights", Verdict.TO_DO, "overwrites the cpusets of shop/web/app"),
        ({"rivals": ["koordlet"]}, "rivals", Verdict.TO_DO, "koordlet gives CPUs"),
        ({"processes": OUT_OF_SIGHT}, "rivals", Verdict.NOT_VISIBLE, "cannot be seen"),
    ],
)  # fmt: skip
def test_every_trouble_has_its_answer(
    seen: dict[str, object], check: str, verdict: Verdict, words: str
) -> None:
    answer = found(**seen)[check]
    assert (answer.verdict, words in answer.says) == (verdict, True)
    assert answer.do or verdict is Verdict.OK


def test_nothing_is_said_of_what_is_not_there() -> None:
    answers = found(is_in_memory=None, free_bytes=None)
    assert not {"state-directory", "free-space", "exporter"} & set(answers)


def test_the_line_that_writes_a_first_configuration_writes_one_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "below" / "config.yaml"
    lines = tuple(first_lines().splitlines())
    answer = found(config=nothing_configured(str(path), lines))["configuration"]
    assert answer.says == f"{path}: there is none"
    subprocess.run(["sh", "-c", answer.command], check=True)
    assert load(str(path)).reserved_system_cpus
    assert shlex.quote(str(path)) in answer.command


INSTALL_AGAIN = (
    "nri-pin install --plugin-dir /opt/nri/plugins --index 95 --config ./config.yaml && "
    "systemctl restart containerd"
)
STARTED = {"plugins": ("95-nri-pin",), "config": config()._replace(path="/etc/nri/conf.d/95-nri-pin.conf")}


@pytest.mark.parametrize(
    ("seen", "check", "command"),
    [
        (SILENT, "agent", "systemctl restart containerd"),
        ({"answer": status(agent="0.9")}, "agent", "systemctl restart containerd"),
        ({"config": unusable("c:3:1: bad")}, "configuration", "systemctl restart containerd"),
        ({"config": nothing_configured()}, "configuration", INSTALL_AGAIN),
        ({"answer": status(runtime=None)}, "agent-runtime", "journalctl -t nri-pin -n 20"),
        ({"nri": NRISettings("CRI-O"), **SILENT}, "agent", "systemctl restart crio"),
    ],
)
def test_an_agent_that_the_runtime_starts_is_started_by_a_restart_of_the_runtime(
    seen: dict[str, object], check: str, command: str
) -> None:
    answer = found(**{**STARTED, **seen})[check]
    assert (answer.verdict, answer.command) == (Verdict.TO_DO, command)


def test_nobody_is_told_to_start_a_second_agent_or_to_write_a_second_configuration() -> None:
    answers = found(plugins=("95-nri-pin",), config=nothing_configured(), **SILENT)
    told = " ".join(f"{answer.do} {answer.command}" for answer in answers.values())
    assert "nri-pin run" not in told
    assert "printf" not in told
    assert answers["agent"].says.endswith(
        "; the runtime starts it from /opt/nri/plugins/95-nri-pin, once, at its own start"
    )


def quiet(*reaches: ReachRow, **more: Any) -> Finding:
    row = QuietRow("2-5", reaching=len(reaches), reaches=reaches, **more)
    return found(answer=status(quiet=row))["quiet-cpus"]


def test_interrupts_on_quiet_cpus_are_named_with_their_reason() -> None:
    assert "quiet-cpus" not in found()
    missing = quiet(trouble="/host/proc/irq/default_smp_affinity is not there")
    assert (missing.verdict, "/host/proc/irq" in missing.says) == (Verdict.TO_DO, True)
    rival = quiet(rivals=("irq/24",))
    assert (rival.verdict, "irq/24" in rival.says) == (Verdict.TO_DO, True)
    full = quiet(ReachRow(24, "eth0-rx", "0-5", "2-5", "ENOSPC"))
    assert (full.verdict, "24 eth0-rx (CPUs 0-5, ENOSPC)" in full.says) == (Verdict.ADVICE, True)
    managed = quiet(
        ReachRow(30, "nvme0q1", "1-2", "2", "kernel-managed"), ReachRow(31, "x", "4", "4", "claimed")
    )
    assert managed.verdict is Verdict.OK
    assert managed.says == (
        "CPUs 2-5 are quiet; 2 interrupts can still reach them (1 claimed, 1 kernel-managed); "
        "shared with other CPUs: 30 nvme0q1 (CPUs 1-2, kernel-managed)"
    )
