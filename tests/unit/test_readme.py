"""What README.md shows an operator is what the agent takes."""

import re
from pathlib import Path

import pytest
import yaml

from nri_plugin.cli import extender
from nri_plugin.cli.main import COMMANDS
from nri_plugin.config.loading import load_text

TEXT = (Path(__file__).parents[2] / "README.md").read_text()
DEFAULT_ON = {"--accounting", "--sidecars"}
"""Shown by the word that turns them off."""

SHOWN = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
SCHEDULER = "kind: KubeSchedulerConfiguration"
CERTIFICATE = "kind: Certificate"
CONFIGURATIONS = [text for text in SHOWN if SCHEDULER not in text and CERTIFICATE not in text]


def test_there_is_a_configuration_to_copy() -> None:
    assert CONFIGURATIONS


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_every_configuration_in_it_is_taken(text: str) -> None:
    load_text(text, "README.md")


def test_the_scheduler_is_shown_verbs_that_the_extender_answers() -> None:
    text = next(text for text in SHOWN if SCHEDULER in text)
    shown = yaml.safe_load(text.replace("# bindVerb", "bindVerb"))["extenders"][0]
    assert {shown[verb] for verb in ("filterVerb", "prioritizeVerb", "bindVerb")} == {
        "filter",
        "prioritize",
        "bind",
    }
    assert shown["nodeCacheCapable"] is True


def test_every_option_of_the_extender_is_in_its_table() -> None:
    table = TEXT.split("## Scheduler extender", 1)[1].split("\n## ", 1)[0]
    named = set(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    options = {
        option for one in extender.command.params for option in one.opts if option not in DEFAULT_ON
    } | {option for one in extender.command.params for option in one.secondary_opts}
    assert {option for option in options if not any(f"`{option}" in cell for cell in named)} == set()


def test_every_command_in_it_is_there() -> None:
    assert set(re.findall(r"[$#] nri-pin ([a-z]+)", TEXT)) <= set(COMMANDS)


def test_every_script_in_it_is_there() -> None:
    top = Path(__file__).parents[2]
    missing = {name for name in re.findall(r"`(hack/[a-z0-9-]+)", TEXT) if not (top / name).exists()}
    assert missing == set()
