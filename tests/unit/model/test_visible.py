"""Text that may reach a terminal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.topology.picture import paint
from nri_plugin.model.bounds import visible, visible_line
from nri_plugin.wire.nri import events
from tests.agent_process import config_text
from tests.bounds_judge import JudgedAgent
from tests.builders import container, pod

EVIL = "\x1b]0;pwned\x07\x1b[31m\u202e\x9b2J\r"


@pytest.mark.parametrize(
    "number", [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x2028]
)
def test_a_control_character_becomes_its_escape(number: int) -> None:
    assert visible(f"a{chr(number)}b").isascii()
    assert visible(f"a{chr(number)}b").isprintable()


def test_text_stays_as_it_is_and_lines_stay_lines() -> None:
    assert visible("µ│é\tx\ny") == "µ│é\tx\ny"
    assert visible_line("x\ny") == "x\\ny"


def test_json_means_the_same() -> None:
    text = json.dumps({"name": EVIL}, ensure_ascii=False)
    assert json.loads(visible(text)) == {"name": EVIL}


@pytest.mark.parametrize("colour", [False, True])
def test_a_picture_has_no_escapes_but_its_own(colour: bool) -> None:
    line = paint(((EVIL, ""), (EVIL, "1")), colour=colour)
    assert line.replace("\x1b[1m", "").replace("\x1b[0m", "").isprintable()


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent's state and history, with names that only `crictl` can give."""
    folder = tmp_path_factory.mktemp("evil")
    agent = JudgedAgent(folder)
    of = pod("uid", "Guaranteed", namespace="n" + EVIL)
    of = of.__class__(
        **{**{key: getattr(of, key) for key in of.__slots__}, "name": "p" + EVIL, "uid": "u" + EVIL}
    )
    one = container(of, "c" + EVIL, cpu=2)
    for event in (events.RunPodSandbox(of), events.CreateContainer(of, one), events.StartContainer(of, one)):
        agent.handler.handle(events.Request(1, None, event))
        agent.timers.run()
    agent.close()
    assert CheckpointFile(str(folder / "state"), None).load().state is not None
    (folder / "config.yaml").write_text(config_text(folder))
    return folder / "state"


@pytest.mark.parametrize(
    "words",
    [
        ["state", "show", "--state", "{}/state.json"],
        ["state", "show", "--wide", "--state", "{}/state.json"],
        ["state", "show", "-o", "json", "--state", "{}/state.json"],
        ["state", "history", "--state-dir", "{}"],
        ["state", "history", "-o", "json", "--state-dir", "{}"],
        ["state", "verify", "--no-live", "--state", "{}/state.json"],
        ["top", "--once", "--state-dir", "{}"],
        ["topology", "pack:2 numa:1 l3:1 core:4 pu:2(indexes=core)", "--state", "{}"],
        ["explain", "--state-dir", "{}", "n" + EVIL + "/p" + EVIL],
        ["explain", "--state-dir", "{}", "n" + EVIL + "/p" + EVIL + "/c" + EVIL],
        ["explain", "--state-dir", "{}", "x" + EVIL],
        ["replay", "{}/history"],
    ],
    ids=" ".join,
)
def test_no_command_writes_a_control_character_of_a_name(state_dir: Path, words: list[str]) -> None:
    given = [word.replace("{}", str(state_dir)) for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "nri_plugin", *given], capture_output=True, text=True, check=False, timeout=120
    )
    text = done.stdout + done.stderr
    assert text
    assert "Traceback" not in text
    assert [line for line in text.splitlines() if not line.replace("\t", "").isprintable()] == []
