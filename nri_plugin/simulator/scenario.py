"""Scenario files: a machine, a configuration, and what happens on the node, in a few lines of YAML.

    machine: epyc7742-2p-64c-smt-nps4
    runtime: containerd-2.1
    config:
      reservedSystemCPUs: "0,128"
    steps:
      - say: A database wants two CPUs of its own.
      - run: prod/db
        containers:
          db: {cpu: 2, memory: 4Gi}
      - expect: prod/db/db
        exclusive: 2

Containers take `cpu` and `memory` (request and limit at once), or `requests` and `limits` apart, as in
a pod manifest. Every complaint names file, line and key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nri_plugin.app import config_yaml as source
from nri_plugin.app.config import load_text
from nri_plugin.app.config_values import choice, one_of, unknown
from nri_plugin.errors import ConfigError
from nri_plugin.simulator.behaviour import BEHAVIOURS
from nri_plugin.simulator.cgroup_names import Driver
from nri_plugin.simulator.scenario_containers import plain
from nri_plugin.simulator.scenario_steps import StepReader
from nri_plugin.simulator.steps import Restart, Step

KEYS = ("name", "machine", "runtime", "driver", "cgroup", "config", "steps")
DEFAULT_RUNTIME = "containerd-2.1"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, read and checked.

    Attributes:
        file: where it came from, for complaints.
        name: what it shows, in a few words.
        machine: the name of a shipped description, or a description.
        runtime: whose behaviour is played.
        driver: the cgroup driver.
        cgroup_version: 1 or 2.
        config: the agent's configuration, by key.
        steps: what happens, in order.
    """

    file: str
    machine: str
    steps: tuple[Step, ...]
    name: str = ""
    runtime: str = DEFAULT_RUNTIME
    driver: Driver = Driver.SYSTEMD
    cgroup_version: int = 2
    config: Mapping[str, Any] = field(default_factory=dict)


def load(path: Path) -> Scenario:
    """The scenario in that file, or the shipped one of that name.

    Raises:
        ConfigError: it cannot be read or is wrong; names file, line, column and key.
    """
    shipped = resources.files("nri_plugin.simulator") / "scenarios" / f"{path}.yaml"
    if path.name == str(path) and not path.exists() and shipped.is_file():
        return parse(shipped.read_text("utf-8"), f"{path}.yaml")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {_why(error)}") from error
    return parse(text, str(path))


def _why(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unknown error").lower() if isinstance(error, OSError) else "it is not text"


def parse(text: str, file: str) -> Scenario:
    """The scenario that `text` describes.

    Raises:
        ConfigError: it is wrong; names `file`, line, column and key.
    """
    top = source.parse(text, file)
    refuse_unknown(top, KEYS)
    given = top.entries
    config = _config(required(top, "config"), text, file)
    return Scenario(
        file=file,
        name=source.text(given["name"]) if "name" in given else stem(file),
        machine=source.text(required(top, "machine")).strip(),
        runtime=one_of(*BEHAVIOURS)(given["runtime"]) if "runtime" in given else DEFAULT_RUNTIME,
        driver=choice(Driver)(given["driver"]) if "driver" in given else Driver.SYSTEMD,
        cgroup_version=_cgroup_version(given["cgroup"]) if "cgroup" in given else 2,
        config=config,
        steps=_configurable(_steps(required(top, "steps")), config, file),
    )


def required(section: source.Section, key: str) -> source.Value:
    """The value of a key that must be there.

    Raises:
        ConfigError: it is not.
    """
    if key not in section.entries:
        raise section.place.error(f"{key} is missing")
    return section.entries[key]


def refuse_unknown(section: source.Section, known: tuple[str, ...]) -> None:
    """Check the keys of a section.

    Raises:
        ConfigError: one is not in `known`.
    """
    for key, place in section.keys.items():
        if key not in known:
            raise unknown(place, key, known)


def _cgroup_version(value: source.Value) -> int:
    found = source.number(value)
    if found not in (1, 2):
        raise value.place.error(f"expected 1 or 2, found {found}")
    return found


def _steps(value: source.Value) -> tuple[Step, ...]:
    reader = StepReader()
    steps = tuple(reader.read(item) for item in source.items(value))
    if not steps:
        raise value.place.error("expected at least one step")
    return steps


def _configurable(steps: tuple[Step, ...], config: Mapping[str, Any], file: str) -> tuple[Step, ...]:
    """The same, once the agent's own reader has found nothing wrong with what they make of its configuration."""
    now = dict(config)
    for step in steps:
        if isinstance(step, Restart) and step.config:
            now |= step.config
            load_text("\n" * (step.line - 1) + json.dumps(now), file)
    return steps


def stem(file: str) -> str:
    """What a scenario is called that does not say it itself."""
    return Path(file).stem


def _config(value: source.Value, text: str, file: str) -> Mapping[str, Any]:
    """The configuration as plain values, after the agent's own reader has found nothing wrong with it."""
    source.section(value)
    load_text(cut_out(text, "config"), file)
    values = plain(value)
    return values if isinstance(values, dict) else {}


def cut_out(text: str, key: str) -> str:
    """The value of a top-level key, at the line and column where it stands, so that complaints fit."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    marks = next((value.start_mark, value.end_mark) for name, value in root.value if name.value == key)
    start, end = marks
    return "\n" * int(start.line) + " " * int(start.column) + text[start.index : end.index]
