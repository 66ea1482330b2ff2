"""What README.md shows an operator is what the agent takes."""

import re
from pathlib import Path

import pytest

from nri_plugin.app.config import load_text
from nri_plugin.app.config_keys import KEYS
from nri_plugin.cli.main import COMMANDS

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
CONFIGURATIONS = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_there_is_a_configuration_to_copy() -> None:
    assert CONFIGURATIONS


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_every_configuration_in_it_is_taken(text: str) -> None:
    load_text(text, "README.md")


def test_every_key_in_its_table_is_known() -> None:
    table = TEXT.split("## Configuration", 1)[1].split("\n\n", 2)[1]
    first_cells = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    named = re.findall(r"`([A-Za-z]+)`", first_cells)
    assert named
    assert set(named) <= set(KEYS)


def test_every_command_in_it_is_there() -> None:
    assert set(re.findall(r"[$#] nri-pin ([a-z]+)", TEXT)) <= set(COMMANDS)


def test_every_script_in_it_is_there() -> None:
    top = Path(__file__).parents[2]
    missing = {name for name in re.findall(r"`(hack/[a-z0-9-]+)", TEXT) if not (top / name).exists()}
    assert missing == set()
