"""The guide on describing machines: its commands print what it shows, and every field is in it."""

import re
from pathlib import Path

import pytest

from nri_plugin.__main__ import main
from nri_plugin.config import yaml_tree
from nri_plugin.simulator.machine.description import FIELDS
from nri_plugin.simulator.machine.machine import described_in, parse

GUIDE = (Path(__file__).parents[4] / "deploy/guide/machines.md").read_text("utf-8")
FILES = dict(re.findall(r"`([\w.-]+)`:\n\n```(?:yaml|text)\n(.*?)```", GUIDE, re.DOTALL))
COMMANDS = re.findall(r"```console\n\$ nri-pin (.*?)\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
def test_a_command_prints_what_the_guide_shows(
    command: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    main(command.split())
    captured = capsys.readouterr()
    assert (captured.out + captured.err).startswith(printed)


def test_the_strings_of_the_text_are_machines() -> None:
    strings = re.findall(r"`((?:pack|numa):\d[^`]* pu:\d)`", GUIDE)
    assert len(strings) >= 4
    for string in strings:
        assert parse(string).cores


def test_a_scenario_has_the_fields_below_machine() -> None:
    (text,) = re.findall(r"```yaml\n(machine:\n.*?)```", GUIDE, re.DOTALL)
    assert len(parse(described_in(yaml_tree.parse(text, "x"), text)).nodes) == 2


def test_every_field_is_in_the_guide() -> None:
    assert [field for field in FIELDS if f"`{field}`" not in GUIDE] == []
