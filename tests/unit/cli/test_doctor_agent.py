import shlex
import subprocess
from pathlib import Path

import pytest

from nri_plugin.app.config import load
from nri_plugin.cli.doctor_agent import AgentEvidence, judge
from nri_plugin.cli.doctor_findings import Finding, Verdict
from nri_plugin.errors import ConfigError
from nri_plugin.host.node_evidence import Hidden

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
    return {f.check: f for f in judge(AgentEvidence(**{**SOUND, **seen}))}  # type: ignore[arg-type]


def test_an_agent_at_work_has_nothing_to_do() -> None:
    assert {answer.verdict for answer in found().values()} == {Verdict.OK}
    assert found()["checkpoint"].says == "sound, 3 containers"


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
        ({"exporter": "nobody listens on it"}, "exporter", Verdict.TO_DO, "the cluster is told nothing"),
        ({"exporter": OUT_OF_SIGHT}, "exporter", Verdict.NOT_VISIBLE, "cannot be seen"),
        ({"fights": ("shop/web/app",)}, "fights", Verdict.TO_DO, "puts back the CPUs of shop/web/app"),
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
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    answer = found(path=str(path), config_error=str(caught.value))["configuration"]
    assert answer.says == f"{path}: there is none"
    subprocess.run(["sh", "-c", answer.command], check=True)
    assert load(str(path)).reserved_system_cpus
    assert shlex.quote(str(path)) in answer.command
