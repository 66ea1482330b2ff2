import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.agent.status_client import AgentStatus, RuntimeRow
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


def found(version: str | Hidden = "2.1.9", **seen: object) -> dict[str, Finding]:
    return findings(
        "container runtime",
        **{
            "runtime_version": version,
            "nri": settings(),
            "kernel": OUT_OF_SIGHT,
            "shared_pool": None,
            **seen,
        },
    )


@pytest.mark.parametrize(
    ("version", "verdict", "words"),
    [
        ("1.6.33", Verdict.TO_DO, "has no NRI"),
        ("1.7.3", Verdict.ADVICE, "older than any"),
        ("1.7.24~ds1", Verdict.OK, "never synchronizes a plugin that it started itself"),
        ("v2.1.9", Verdict.OK, "containerd 2.1.9; it cannot refuse containers"),
        ("2.2.1", Verdict.OK, "no pod totals"),
        ("2.3.0", Verdict.OK, "containerd 2.3.0"),
        ("", Verdict.NOT_VISIBLE, "its version cannot be seen"),
        (Hidden("/usr/bin/containerd", "/host/usr/bin/containerd"), Verdict.NOT_VISIBLE, "version"),
    ],
)
def test_a_release_is_named_with_what_it_lacks(version: str | Hidden, verdict: Verdict, words: str) -> None:
    answer = found(version)["runtime"]
    assert (answer.verdict, words in answer.says) == (verdict, True)


@pytest.mark.parametrize(
    ("version", "verdict"), [("1.25.1", Verdict.TO_DO), ("1.31.0", Verdict.OK), ("1.34.1", Verdict.OK)]
)
def test_releases_of_crio_count_on_their_own(version: str, verdict: Verdict) -> None:
    assert found(version, runtime_name="CRI-O", nri=settings(runtime="CRI-O"))["runtime"].verdict is verdict


def test_a_runtime_without_nri_is_to_be_replaced_and_not_to_be_switched_on() -> None:
    answers = found("1.6.33", nri=settings(is_on=False))
    assert "1.7.26 or later" in answers["runtime"].do
    assert answers.keys() & {"nri", "nri-socket"} == set()


def test_a_machine_without_a_runtime_is_told_so_and_nothing_else() -> None:
    (answer,) = found(runtime_name="", nri=None).values()
    assert answer.verdict is Verdict.TO_DO
    assert answer.command == "nri-pin simulate --list"


@pytest.mark.parametrize(
    ("version", "said", "verdict", "command"),
    [
        ("1.7.24", {}, Verdict.TO_DO, f"disable = false\\n' >> {MAIN} && systemctl restart containerd"),
        ("1.7.24", {"files": ()}, Verdict.TO_DO, "printf 'version = 2\\n[plugins"),
        ("1.7.24", {"is_on": True}, Verdict.OK, ""),
        ("2.1.9", {}, Verdict.OK, ""),
        (
            "2.1.9",
            {"is_on": False, "where": FileLine(MAIN, 3)},
            Verdict.TO_DO,
            f"sed -i '3s/true/false/' {MAIN}",
        ),
        ("2.1.9", {"is_disabled_as_plugin": True}, Verdict.TO_DO, ""),
        (
            "2.1.9",
            {"takes_connections": False, "closed_by": FileLine(MAIN, 7)},
            Verdict.TO_DO,
            f"sed -i '7s/true/false/' {MAIN} && systemctl restart containerd",
        ),
        ("1.29.0", {"runtime": "CRI-O"}, Verdict.TO_DO, "[crio.nri]\\nenable_nri = true"),
        ("1.30.0", {"runtime": "CRI-O"}, Verdict.OK, ""),
    ],
)
def test_nri_is_on_by_what_is_written_else_by_the_release(
    version: str, said: dict[str, object], verdict: Verdict, command: str
) -> None:
    name = said.get("runtime", "containerd")
    answer = found(version, runtime_name=name, nri=settings(**said))["nri"]
    assert answer.verdict is verdict
    assert command in answer.command


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ({"nri": OUT_OF_SIGHT}, Verdict.NOT_VISIBLE),
        ({"nri": BrokenFile(MAIN, "expected '=' (at line 3)")}, Verdict.TO_DO),
        ({"runtime_version": "", "nri_answer": "there is no such socket"}, Verdict.NOT_VISIBLE),
        ({"runtime_version": "", "nri_answer": ""}, Verdict.OK),
        ({"runtime_version": "", "nri": settings(format_version=3), "nri_answer": "nobody"}, Verdict.OK),
        ({"nri": OUT_OF_SIGHT, "answer": connected("containerd", "v2.1.9")}, Verdict.OK),
    ],
)
def test_nri_is_never_on_by_a_guess(seen: dict[str, object], verdict: Verdict) -> None:
    assert found(**seen)["nri"].verdict is verdict  # type: ignore[arg-type]


def test_what_is_out_of_sight_names_the_mount() -> None:
    for check, answer in found(
        OUT_OF_SIGHT, nri=OUT_OF_SIGHT, plugins=OUT_OF_SIGHT, nri_answer=OUT_OF_SIGHT
    ).items():
        assert answer.verdict is Verdict.NOT_VISIBLE, check
        assert answer.do == "mount /etc/containerd of the node at /host/etc/containerd"


@pytest.mark.parametrize(
    ("seen", "verdict", "words"),
    [
        ({"nri_answer": ""}, Verdict.OK, "takes connections"),
        (
            {"nri_answer": "no process listens on it"},
            Verdict.TO_DO,
            "/var/run/nri/nri.sock: no process listens",
        ),
        ({"config": agent_socket("/run/nri/nri.sock")}, Verdict.OK, "takes connections"),
        (
            {"config": agent_socket("/run/other.sock")},
            Verdict.TO_DO,
            "the agent is configured for /run/other.sock",
        ),
        ({"answer": connected("containerd", "2.1.9"), "nri_answer": "refused"}, Verdict.OK, "connected"),
    ],
)
def test_the_socket_is_where_the_agent_looks(seen: dict[str, object], verdict: Verdict, words: str) -> None:
    answer = found(**seen)["nri-socket"]  # type: ignore[arg-type]
    assert (answer.verdict, words in answer.says) == (verdict, True)


def test_no_word_is_lost_on_the_socket_of_an_nri_that_is_off() -> None:
    assert "nri-socket" not in found("1.7.24", nri_answer="there is no such socket")


@pytest.mark.parametrize(
    ("seen", "verdict", "says"),
    [
        ({}, Verdict.OK, "2 s for a request, 5 s to register"),
        ({"nri": settings(request_timeout_s=0.5)}, Verdict.TO_DO, "0.5 s for a request"),
        ({"nri": settings(registration_timeout_s=1.0)}, Verdict.TO_DO, "1 s to register"),
        ({"answer": connected("containerd", "2.1.9", "", 1000, 5000)}, Verdict.TO_DO, "1 s for a request"),
    ],
)
def test_times_below_the_default_are_too_short(seen: dict[str, object], verdict: Verdict, says: str) -> None:
    answer = found(**seen)["nri-timeouts"]  # type: ignore[arg-type]
    assert (answer.verdict, says in answer.says) == (verdict, True)


@pytest.mark.parametrize(
    ("plugins", "verdict"),
    [
        (None, Verdict.OK),
        (("README",), Verdict.OK),
        (("90-nri-pin",), Verdict.OK),
        (("10-other", "90-nri-pin"), Verdict.ADVICE),
        (("10-nri-pin", "90-nri-pin"), Verdict.TO_DO),
    ],
)
def test_plugins_that_the_runtime_starts_are_named(plugins: tuple[str, ...] | None, verdict: Verdict) -> None:
    assert found(plugins=plugins)["nri-plugins"].verdict is verdict


@pytest.mark.parametrize(
    ("drop_ins", "verdict"),
    [
        (("90-nri-pin.conf",), Verdict.OK),
        (("nri-pin.conf",), Verdict.OK),
        ((), Verdict.TO_DO),
        (None, Verdict.TO_DO),
    ],
)
def test_an_agent_that_the_runtime_starts_needs_a_drop_in(
    drop_ins: tuple[str, ...] | None, verdict: Verdict
) -> None:
    assert found(plugins=("90-nri-pin",), drop_ins=drop_ins)["nri-drop-in"].verdict is verdict
    assert "nri-drop-in" not in found(drop_ins=drop_ins)


CLOSED = settings(
    validator_is_on=True, required_plugins=("nri-pin",), tolerate_annotation=TOLERATE, is_on=True
)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (settings(), Verdict.OK),
        (CLOSED, Verdict.OK),
        (replace(CLOSED, validator_is_on=None), Verdict.TO_DO),
        (replace(CLOSED, required_plugins=("other",)), Verdict.TO_DO),
        (replace(CLOSED, tolerate_annotation=""), Verdict.TO_DO),
    ],
)
def test_a_node_that_requires_the_agent_must_come_up_without_it(said: NRISettings, verdict: Verdict) -> None:
    assert found("2.2.1", nri=said)["fail-closed"].verdict is verdict


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
    command = found("1.7.24", nri=off)["nri"].command.partition(" && systemctl")[0]
    subprocess.run(["sh", "-c", command.replace(MAIN, str(main))], check=True)
    on = read_settings(view, CONTAINERD)
    assert isinstance(on, NRISettings)
    assert (on.is_on, on.format_version) == (True, 2 if before is None else off.format_version)  # type: ignore[union-attr]
    assert found("1.7.24", nri=on)["nri"].verdict is Verdict.OK


def test_a_closed_socket_is_told_although_an_agent_that_the_runtime_started_is_connected() -> None:
    """It could not come back."""
    shut = settings(takes_connections=False, closed_by=FileLine(MAIN, 7))
    answer = found(nri=shut, answer=connected(), plugins=("90-nri-pin",))["nri"]
    assert answer.verdict is Verdict.TO_DO
    assert f"closed by {MAIN}:7: disable_connections is true" in answer.says
    assert "cannot come back" in answer.says


def test_a_closed_socket_of_crio_is_told_by_its_own_name() -> None:
    shut = settings(
        runtime="CRI-O", takes_connections=False, closed_by=FileLine("/etc/crio/crio.conf.d/9.conf", 2)
    )
    answer = found("1.34.0", runtime_name="CRI-O", nri=shut)["nri"]
    assert "nri_disable_connections is true" in answer.says
    assert answer.command == "sed -i '2s/true/false/' /etc/crio/crio.conf.d/9.conf && systemctl restart crio"


def test_another_socket_is_told_although_an_agent_that_the_runtime_started_is_connected() -> None:
    other = agent_socket("/run/other.sock")
    answer = found(answer=connected(), config=other, plugins=("90-nri-pin",))["nri-socket"]
    assert answer.verdict is Verdict.TO_DO
    assert answer.do.endswith("into the agent's configuration, and restart containerd")
    assert found(answer=connected(), config=other)["nri-socket"].verdict is Verdict.OK
