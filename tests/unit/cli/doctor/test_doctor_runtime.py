import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.agent.observing.status_client import AgentStatus, RuntimeRow
from nri_plugin.cli.doctor.evidence import FoundConfig
from nri_plugin.cli.doctor.findings import Finding, Verdict
from nri_plugin.cli.doctor.runtime import TOLERATE
from nri_plugin.cli.doctor.settings import (
    CONTAINERD,
    BrokenFile,
    FileLine,
    NRISettings,
    read_settings,
    version_of,
)
from nri_plugin.cli.doctor.view import Hidden, NodeView
from tests.doctor_evidence import config, findings, status

MAIN = "/etc/containerd/config.toml"
OUT_OF_SIGHT = Hidden("/etc/containerd", "/host/etc/containerd")


def settings(**said: object) -> NRISettings:
    return NRISettings(**{"runtime": "containerd", "files": (MAIN,), "where": FileLine(MAIN), **said})  # type: ignore[arg-type]


def connected(*row: Any) -> AgentStatus:
    return status(runtime=RuntimeRow(*row or ("containerd", "v2.1.9")))


def agent_socket(path: str) -> FoundConfig:
    return config(f"nriSocket: {path}\n")


def found(**seen: object) -> dict[str, Finding]:
    return findings(
        "container runtime",
        **{
            "nri": settings(),
            "kernel": OUT_OF_SIGHT,
            "shared_pool": None,
            **seen,
        },
    )


def of(version: str | Hidden, **said: object) -> dict[str, object]:
    """A runtime of this version, with these settings."""
    name = said.get("runtime", "containerd")
    return {"runtime_version": version, "runtime_name": name, "nri": settings(**said)}


CLOSED = settings(
    validator_is_on=True, required_plugins=("nri-pin",), tolerate_annotation=TOLERATE, is_on=True
)
OTHER_SOCKET = {"config": agent_socket("/run/other.sock")}
STARTED = {"plugins": ("90-nri-pin",)}
SHUT = {"takes_connections": False, "closed_by": FileLine(MAIN, 7)}
CRIO_FILE = FileLine("/etc/crio/crio.conf.d/9.conf", 2)
OK, ADVICE, TO_DO, NOT_VISIBLE = Verdict.OK, Verdict.ADVICE, Verdict.TO_DO, Verdict.NOT_VISIBLE


@pytest.mark.parametrize(
    ("seen", "check", "verdict", "words"),
    [
        (of("1.6.33"), "runtime", TO_DO, "has no NRI"),
        (of("1.6.33"), "runtime", TO_DO, "1.7.26 or later"),
        # It is to be replaced, and not to be switched on.
        (of("1.6.33", is_on=False), "nri", None, ""),
        (of("1.6.33", is_on=False), "nri-socket", None, ""),
        (of("1.7.3"), "runtime", ADVICE, "older than any"),
        (of("1.7.24~ds1"), "runtime", OK, "never synchronizes a plugin that it started itself"),
        (of("v2.1.9"), "runtime", OK, "containerd 2.1.9; it cannot refuse containers"),
        (of("2.2.1"), "runtime", OK, "no pod totals"),
        (of("2.3.0"), "runtime", OK, "containerd 2.3.0"),
        (of(""), "runtime", NOT_VISIBLE, "its version cannot be seen"),
        (of(Hidden("/usr/bin/containerd", "/host/usr/bin/containerd")), "runtime", NOT_VISIBLE, "version"),
        (of("1.25.1", runtime="CRI-O"), "runtime", TO_DO, ""),
        (of("1.31.0", runtime="CRI-O"), "runtime", OK, ""),
        (of("1.34.1", runtime="CRI-O"), "runtime", OK, ""),
        (of("1.7.24"), "nri", TO_DO, f"disable = false\\n' >> {MAIN} && systemctl restart containerd"),
        (of("1.7.24", files=()), "nri", TO_DO, "printf 'version = 2\\n[plugins"),
        (of("1.7.24", is_on=True), "nri", OK, ""),
        (of("2.1.9"), "nri", OK, ""),
        (of("2.1.9", is_on=False, where=FileLine(MAIN, 3)), "nri", TO_DO, f"sed -i '3s/true/false/' {MAIN}"),
        (of("2.1.9", is_disabled_as_plugin=True), "nri", TO_DO, ""),
        (of("2.1.9", **SHUT), "nri", TO_DO, f"sed -i '7s/true/false/' {MAIN} && systemctl restart containerd"),
        (of("1.29.0", runtime="CRI-O"), "nri", TO_DO, "[crio.nri]\\nenable_nri = true"),
        (of("1.30.0", runtime="CRI-O"), "nri", OK, ""),
        (of("1.34.0", runtime="CRI-O", takes_connections=False, closed_by=CRIO_FILE), "nri", TO_DO, "nri_disable_connections is true"),
        (of("1.34.0", runtime="CRI-O", takes_connections=False, closed_by=CRIO_FILE), "nri", TO_DO, f"sed -i '2s/true/false/' {CRIO_FILE.path} && systemctl restart crio"),
        # An agent that the runtime started is connected, and could not come back.
        (of("2.1.9", **SHUT) | STARTED | {"answer": connected()}, "nri", TO_DO, f"closed by {MAIN}:7: disable_connections is true"),
        (of("2.1.9", **SHUT) | STARTED | {"answer": connected()}, "nri", TO_DO, "cannot come back"),
        ({"nri": OUT_OF_SIGHT}, "nri", NOT_VISIBLE, ""),
        ({"nri": BrokenFile(MAIN, "expected '=' (at line 3)")}, "nri", TO_DO, ""),
        (of("") | {"nri_answer": "there is no such socket"}, "nri", NOT_VISIBLE, ""),
        (of(""), "nri", OK, ""),
        (of("", format_version=3) | {"nri_answer": "nobody"}, "nri", OK, ""),
        ({"nri": OUT_OF_SIGHT, "answer": connected()}, "nri", OK, ""),
        ({}, "nri-socket", OK, "takes connections"),
        ({"nri_answer": "no process listens"}, "nri-socket", TO_DO, "/var/run/nri/nri.sock: no process listens"),
        ({"config": agent_socket("/run/nri/nri.sock")}, "nri-socket", OK, "takes connections"),
        (OTHER_SOCKET, "nri-socket", TO_DO, "the agent is configured for /run/other.sock"),
        (OTHER_SOCKET | {"answer": connected()}, "nri-socket", OK, ""),
        (OTHER_SOCKET | STARTED | {"answer": connected()}, "nri-socket", TO_DO, "into the agent's configuration, and restart containerd"),
        ({"answer": connected(), "nri_answer": "refused"}, "nri-socket", OK, "connected"),
        (of("1.7.24") | {"nri_answer": "there is no such socket"}, "nri-socket", None, ""),
        ({}, "nri-timeouts", OK, "2 s for a request, 5 s to register"),
        ({"nri": settings(request_timeout_s=0.5)}, "nri-timeouts", TO_DO, "0.5 s for a request"),
        ({"nri": settings(registration_timeout_s=1.0)}, "nri-timeouts", TO_DO, "1 s to register"),
        ({"answer": connected("containerd", "2.1.9", "", 1000, 5000)}, "nri-timeouts", TO_DO, "1 s for a request"),
        ({"plugins": None}, "nri-plugins", OK, ""),
        ({"plugins": ("README",)}, "nri-plugins", OK, ""),
        (STARTED, "nri-plugins", OK, ""),
        ({"plugins": ("10-other", "90-nri-pin")}, "nri-plugins", ADVICE, ""),
        ({"plugins": ("10-nri-pin", "90-nri-pin")}, "nri-plugins", TO_DO, ""),
        (STARTED | {"drop_ins": ("90-nri-pin.conf",)}, "nri-drop-in", OK, ""),
        (STARTED | {"drop_ins": ("nri-pin.conf",)}, "nri-drop-in", OK, ""),
        (STARTED, "nri-drop-in", TO_DO, ""),
        (STARTED | {"drop_ins": None}, "nri-drop-in", TO_DO, ""),
        ({"drop_ins": ("90-nri-pin.conf",)}, "nri-drop-in", None, ""),
        (of("2.2.1"), "fail-closed", OK, ""),
        (of("2.2.1") | {"nri": CLOSED}, "fail-closed", OK, ""),
        (of("2.2.1") | {"nri": replace(CLOSED, validator_is_on=None)}, "fail-closed", TO_DO, ""),
        (of("2.2.1") | {"nri": replace(CLOSED, required_plugins=("other",))}, "fail-closed", TO_DO, ""),
        (of("2.2.1") | {"nri": replace(CLOSED, tolerate_annotation="")}, "fail-closed", TO_DO, ""),
    ],
)  # fmt: skip
def test_the_runtime_and_its_nri_are_judged(
    seen: dict[str, object], check: str, verdict: Verdict | None, words: str
) -> None:
    answer = found(**seen).get(check)
    assert (answer and answer.verdict) is verdict
    assert answer is None or words in f"{answer.says}\n{answer.do}\n{answer.command}"


def test_a_machine_without_a_runtime_has_one_finding() -> None:
    (answer,) = found(runtime_name="", nri=None).values()
    assert answer.verdict is TO_DO
    assert answer.command == "nri-pin simulate --list"


def test_what_is_out_of_sight_names_the_mount() -> None:
    for check, answer in found(
        runtime_version=OUT_OF_SIGHT, nri=OUT_OF_SIGHT, plugins=OUT_OF_SIGHT, nri_answer=OUT_OF_SIGHT
    ).items():
        assert answer.verdict is Verdict.NOT_VISIBLE, check
        assert answer.do == "mount /etc/containerd of the node at /host/etc/containerd"


def test_versions_are_read_wherever_they_stand() -> None:
    assert version_of("v2.1.9") == (2, 1, 9)
    assert version_of("1.7.24~ds1") == (1, 7, 24)
    assert version_of("unknown") is None


@pytest.mark.parametrize(
    "before",
    [
        None,
        "version = 2\n",
        'version = 2\n  [plugins."io.containerd.nri.v1.nri"]\n  plugin_path = "/p"\n[debug]\n',
        'version = 2\n[plugins."io.containerd.nri.v1.nri"]\n  disable = true\n',
        "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true # not yet\nplugin_path = '/p'\n",
    ],
)
def test_the_line_that_switches_nri_on_does_so(before: str | None, tmp_path: Path) -> None:
    main = tmp_path / "etc/containerd/config.toml"
    main.parent.mkdir(parents=True)
    if before is not None:
        main.write_text(before)
    view = NodeView(str(tmp_path), [])
    off = read_settings(view, CONTAINERD)
    command = found(runtime_version="1.7.24", nri=off)["nri"].command.partition(" && systemctl")[0]
    subprocess.run(["sh", "-c", command.replace(MAIN, str(main))], check=True)
    on = read_settings(view, CONTAINERD)
    assert isinstance(on, NRISettings)
    assert (on.is_on, on.format_version) == (True, 2 if before is None else off.format_version)  # type: ignore[union-attr]
    assert found(runtime_version="1.7.24", nri=on)["nri"].verdict is Verdict.OK
