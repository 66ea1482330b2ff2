import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.agent.status_client import QuietRow, ReachRow
from nri_plugin.cli.doctor.agent import CHECKS, AgentEvidence
from nri_plugin.cli.doctor.findings import Finding, Verdict, judged
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.config.loading import first_lines, load

NOTHING_CONFIGURED = {
    "config_error": "/etc/c.yaml: no configuration",
    "first_lines": ("reservedSystemCPUs: 0",),
}
OUT_OF_SIGHT = Hidden("/run/nri-pin", "/host/run/nri-pin")
SOUND = {
    "path": "/etc/nri-pin/config.yaml",
    "config_error": "",
    "state_dir": "/run/nri-pin",
    "trouble": "",
    "version": "1.0",
    "own_version": "1.0",
    "runtime": "containerd 2.1.9",
    "checkpoint": (),
    "containers": 3,
    "in_memory": True,
    "free_bytes": 1 << 30,
}


def found(**seen: object) -> dict[str, Finding]:
    return {f.check: f for f in judged(CHECKS, AgentEvidence(**{**SOUND, **seen}))}  # type: ignore[arg-type]


def test_an_agent_at_work_has_nothing_to_do() -> None:
    assert {answer.verdict for answer in found().values()} == {Verdict.OK}
    assert found()["checkpoint"].says == "sound, 3 containers"


def test_keys_of_a_later_kubelet_are_listed_and_nothing_to_do() -> None:
    answer = found(unknown_keys=("quux", "evictionHard.swapfs.available"))["configuration"]
    assert answer.verdict is Verdict.OK
    assert answer.says.endswith("unknown here, so ignored: quux, evictionHard.swapfs.available")


def test_creations_that_fail_one_after_the_other_name_who_may_be_it() -> None:
    assert "failed-creations" not in found(failed_creations=1)
    answer = found(failed_creations=3, suspects=("10-topology-aware", "koordlet"))["failed-creations"]
    assert answer.verdict is Verdict.TO_DO
    assert "the last 3 creations failed" in answer.says
    assert "10-topology-aware, koordlet may be it" in answer.says
    assert "not visible from here" in found(failed_creations=2)["failed-creations"].says


def test_containers_that_the_runtime_did_not_report_are_named() -> None:
    assert "untold-containers" not in found()
    answer = found(untold=("kubepods/podu/a", "kubepods/podu/b"))["untold-containers"]
    assert answer.verdict is Verdict.TO_DO
    assert "kubepods/podu/a, kubepods/podu/b" in answer.says


def test_while_the_kubelet_has_to_hand_over_the_agent_is_not_started_first() -> None:
    answers = found(must_hand_over=True, trouble="nobody listens", **NOTHING_CONFIGURED)
    for check in ("configuration", "agent"):
        assert (answers[check].verdict, answers[check].command) == (Verdict.TO_DO, "")
        assert "the steps for the kubelet above" in answers[check].do


def test_an_agent_of_systemd_is_started_by_its_unit() -> None:
    answer = found(has_unit=True, trouble="nobody listens")["agent"]
    assert (answer.verdict, answer.command) == (Verdict.TO_DO, "systemctl start nri-pin")
    assert found(trouble="nobody listens")["agent"].command == "nri-pin run --config /etc/nri-pin/config.yaml"


def test_an_agent_that_only_observes_is_said_to_and_leaves_others_alone() -> None:
    answers = found(observing=True, rivals=("koordlet",))
    assert answers["observing"].verdict is Verdict.ADVICE
    assert "pins, refuses and writes nothing" in answers["observing"].says
    assert answers["rivals"].verdict is Verdict.OK
    assert found(rivals=("koordlet",))["rivals"].verdict is Verdict.TO_DO


@pytest.mark.parametrize(
    ("seen", "check", "verdict", "words"),
    [
        ({"config_error": OUT_OF_SIGHT}, "configuration", Verdict.NOT_VISIBLE, "cannot be seen"),
        (
            {"config_error": "c.yaml:3:1: bad\nc.yaml:4:1: worse"},
            "configuration",
            Verdict.TO_DO,
            "c.yaml:3:1: bad (and 1 more)",
        ),
        ({"trouble": "no such socket"}, "agent", Verdict.TO_DO, "no agent answers: no such socket"),
        ({"trouble": OUT_OF_SIGHT}, "agent", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"version": "0.9"}, "agent", Verdict.TO_DO, "runs as version 0.9, and this command is 1.0"),
        ({"runtime": ""}, "agent-runtime", Verdict.TO_DO, "no runtime asks it"),
        ({"in_memory": False}, "state-directory", Verdict.ADVICE, "on a disk"),
        ({"free_bytes": 1 << 20}, "free-space", Verdict.TO_DO, "1024 KiB are left"),
        ({"checkpoint": OUT_OF_SIGHT}, "checkpoint", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"checkpoint": None}, "checkpoint", Verdict.OK, "none yet"),
        ({"checkpoint": ["a", "b", "c", "d", "e"]}, "checkpoint", Verdict.TO_DO, "a; b; c; 2 more"),
        ({"exporter": ""}, "exporter", Verdict.OK, "takes connections"),
        (
            {"exporter": "no process listens on it"},
            "exporter",
            Verdict.TO_DO,
            "nothing is published to the cluster",
        ),
        ({"pod_level": True}, "exporter", Verdict.TO_DO, "PodLevelResourceManagers is on and has no effect"),
        ({"exporter": "", "pod_level": True}, "exporter", Verdict.OK, "takes connections"),
        ({"exporter": OUT_OF_SIGHT}, "exporter", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"fights": ("shop/web/app",)}, "fights", Verdict.TO_DO, "overwrites the cpusets of shop/web/app"),
        ({"rivals": ("koordlet",)}, "rivals", Verdict.TO_DO, "koordlet gives CPUs"),
        ({"rivals": OUT_OF_SIGHT}, "rivals", Verdict.NOT_VISIBLE, "cannot be seen"),
    ],
)
def test_every_trouble_has_its_answer(
    seen: dict[str, object], check: str, verdict: Verdict, words: str
) -> None:
    answer = found(**seen)[check]
    assert (answer.verdict, words in answer.says) == (verdict, True)
    assert answer.do or verdict is Verdict.OK


def test_nothing_is_said_of_what_is_not_there() -> None:
    answers = found(in_memory=None, free_bytes=None)
    assert not {"state-directory", "free-space", "exporter"} & set(answers)


def test_the_line_that_writes_a_first_configuration_writes_one_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "below" / "config.yaml"
    answer = found(path=str(path), config_error="nothing", first_lines=first_lines().splitlines())[
        "configuration"
    ]
    assert answer.says == f"{path}: there is none"
    subprocess.run(["sh", "-c", answer.command], check=True)
    assert load(str(path)).reserved_system_cpus
    assert shlex.quote(str(path)) in answer.command


INSTALL_AGAIN = (
    "nri-pin install --plugin-dir /opt/nri/plugins --index 95 --config ./config.yaml && "
    "systemctl restart containerd"
)
STARTED = {"plugin": "/opt/nri/plugins/95-nri-pin", "path": "/etc/nri/conf.d/95-nri-pin.conf"}


@pytest.mark.parametrize(
    ("seen", "check", "command"),
    [
        ({"trouble": "no such socket"}, "agent", "systemctl restart containerd"),
        ({"version": "0.9"}, "agent", "systemctl restart containerd"),
        ({"config_error": "c:3:1: bad"}, "configuration", "systemctl restart containerd"),
        (NOTHING_CONFIGURED, "configuration", INSTALL_AGAIN),
        ({"runtime": ""}, "agent-runtime", "journalctl -t nri-pin -n 20"),
        ({"unit": "crio", "trouble": "no such socket"}, "agent", "systemctl restart crio"),
    ],
)
def test_an_agent_that_the_runtime_starts_is_started_by_a_restart_of_the_runtime(
    seen: dict[str, object], check: str, command: str
) -> None:
    answer = found(**{**STARTED, **seen})[check]
    assert (answer.verdict, answer.command) == (Verdict.TO_DO, command)


def test_nobody_is_told_to_start_a_second_agent_or_to_write_a_second_configuration() -> None:
    answers = found(**STARTED, trouble="no such socket", **NOTHING_CONFIGURED)
    told = " ".join(f"{answer.do} {answer.command}" for answer in answers.values())
    assert "nri-pin run" not in told
    assert "printf" not in told
    assert answers["agent"].says.endswith(
        "; the runtime starts it from /opt/nri/plugins/95-nri-pin, once, at its own start"
    )


def quiet(*reaches: ReachRow, **more: Any) -> Finding:
    return found(quiet=QuietRow("2-5", reaching=len(reaches), reaches=reaches, **more))["quiet-cpus"]


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
