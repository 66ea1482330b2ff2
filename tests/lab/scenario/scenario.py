"""Scenario files: a machine, a configuration and steps, in YAML.

    machine: epyc7742-2p-64c-smt-nps4
    runtime: containerd-2.1
    config:
      reservedSystemCPUs: "0,128"
    steps:
      - say: A database requests two exclusive CPUs.
      - run: prod/db
        containers:
          db: {cpu: 2, memory: 4Gi}
      - expect: prod/db/db
        exclusive: 2

`nri_plugin.simulator.simulate.steps` reads pods, and the steps that a simulation knows, too. Every error names file, line and
key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nri_plugin.config import yaml_tree as source
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import load_text
from nri_plugin.config.values import choice, cpu_list, one_of
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.machine.machine import described_in, is_description
from nri_plugin.simulator.machine.source import described_machine
from nri_plugin.simulator.simulate.pods import DEFAULT_RUNTIME, Driver
from nri_plugin.simulator.simulate.steps import (
    StepReader,
    cut_out,
    kernel_values,
    line_of,
    number_of,
    read_text,
    refuse_unknown,
    required,
    stem,
)
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.scenario.steps import (
    DriftStep,
    Foreign,
    Kubepods,
    Logged,
    Measure,
    Online,
    Part,
    PartitionKind,
    Release,
    Restart,
    Second,
    Spin,
    Step,
    Writer,
)

# Steps


class LabStepReader(StepReader):
    """Reads also the steps that need an agent process, a runtime, cgroups or a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds |= {
            "restart": (self._restart, ("writes", "config")),
            "kill": (self._kill, ()),
            "drift": (self._drift, ("cpus", "by", "meanwhile")),
            "second": (self._of_agent, ()),
            "release": (self._of_agent, ()),
            "online": (self._online, ()),
            "partition": (self._foreign, ("cpus",)),
            "kubepods": (self._kubepods, ()),
            "logged": (self._logged, ("only",)),
            "spin": (self._spin, ("on",)),
            "measure": (self._measure, ("load",)),
        }

    def _of_agent(self, section: source.Section, kind: str) -> Step:
        one_of(Part.AGENT.value)(section.entries[kind])
        return Second(line_of(section)) if kind == "second" else Release(line_of(section))

    def _restart(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        part = choice(Part)(given[kind])
        if "config" in given and part is not Part.AGENT:
            raise section.keys["config"].error(
                "only the agent has a configuration here; write restart: agent"
            )
        config = _configured(given["config"]) if "config" in given else {}
        return Restart(line_of(section), part, writes=number_of(given, "writes"), config=config)

    def _kill(self, section: source.Section, kind: str) -> Step:
        return Restart(line_of(section), choice(Part)(section.entries[kind]), is_down=True)

    def _drift(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        target = self.container(given[kind])
        if "cpus" not in given:
            raise section.place.error("cpus is missing: where the container is put")
        by = choice(Writer)(given["by"]) if "by" in given else Writer.PERSON
        meanwhile = self._meanwhile(given["meanwhile"]) if "meanwhile" in given else {}
        return DriftStep(line_of(section), target, cpu_list(given["cpus"]), by, meanwhile)

    def _meanwhile(self, value: source.Value) -> dict[str, Mapping[str, str]]:
        """Expected kernel values by container."""
        section = source.section(value)
        for key, place in section.keys.items():
            self.known_container(key, place)
        return {key: kernel_values(each) for key, each in section.entries.items()}

    def _online(self, section: source.Section, kind: str) -> Step:
        return Online(line_of(section), cpu_list(section.entries[kind]))

    def _foreign(self, section: source.Section, kind: str) -> Step:
        partition = choice(PartitionKind)(section.entries[kind])
        cpus = cpu_list(section.entries["cpus"]) if "cpus" in section.entries else CPUSet()
        if cpus and partition is PartitionKind.MEMBER:
            raise section.place.error("a member has none of its own; leave cpus out")
        if not cpus and partition is not PartitionKind.MEMBER:
            raise section.place.error("cpus is missing: whose it becomes")
        return Foreign(line_of(section), partition, cpus)

    def _kubepods(self, section: source.Section, kind: str) -> Step:
        return Kubepods(line_of(section), cpu_list(section.entries[kind]))

    def _logged(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        only = one_of("kernel")(given["only"]) if "only" in given else ""
        return Logged(line_of(section), source.text(given[kind]), only)

    def _spin(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        on = one_of("all", "one")(given["on"]) if "on" in given else "all"
        return Spin(line=line_of(section), target=self.container(given[kind]), on=on)

    def _measure(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        load = one_of("disk", "hotplug", "none")(given["load"]) if "load" in given else "none"
        return Measure(line=line_of(section), target=self.container(given[kind]), load=load)


def _configured(value: source.Value) -> dict[str, Any]:
    """Keys of the agent's configuration; `_configurable` checks them together with the keys that stay."""
    section = source.section(value)
    if not section.entries:
        raise section.place.error("nothing is changed; name a key of the agent's configuration")
    return {key: plain(each) for key, each in section.entries.items()}


# The file


KEYS = ("name", "machine", "runtime", "driver", "cgroup", "config", "steps")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario, read and checked.

    Attributes:
        file: for errors.
        name: a few words.
        machine: the name of a shipped description, or a description.
        runtime: the runtime to simulate.
        driver: the cgroup driver.
        cgroup_version: 1 or 2.
        config: the agent's configuration, by key.
        steps: in their order.
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
    return parse(read_text(str(path)), str(path))


def parse(text: str, file: str) -> Scenario:
    """The scenario that `text` describes.

    Raises:
        ConfigError: it is wrong; names `file`, line, column and key.
    """
    top = source.parse(text, file)
    refuse_unknown(top, KEYS)
    given = top.entries
    required(top, "machine")
    machine = described_in(top, text)
    capacity = _capacity(machine, file)
    config = _config(required(top, "config"), text, file, capacity)
    return Scenario(
        file=file,
        name=source.text(given["name"]) if "name" in given else stem(file),
        machine=machine,
        runtime=one_of(*BEHAVIOURS)(given["runtime"]) if "runtime" in given else DEFAULT_RUNTIME,
        driver=choice(Driver)(given["driver"]) if "driver" in given else Driver.SYSTEMD,
        cgroup_version=_cgroup_version(given["cgroup"]) if "cgroup" in given else 2,
        config=config,
        steps=_configurable(_steps(required(top, "steps")), config, file, capacity),
    )


def _capacity(machine: str, file: str) -> Capacity:
    """The machine for the checks of the configuration; unknown where only the player of the scenario knows its name."""
    try:
        return Capacity.of(described_machine(machine, file).topology)
    except ConfigError:
        if is_description(machine):
            raise
        return Capacity(0, "0", 0)


def _cgroup_version(value: source.Value) -> int:
    found = source.number(value)
    if found not in (1, 2):
        raise value.place.error(f"expected 1 or 2, found {found}")
    return found


def _steps(value: source.Value) -> tuple[Step, ...]:
    reader = LabStepReader()
    steps = tuple(reader.read(item) for item in source.items(value))
    if not steps:
        raise value.place.error("expected at least one step")
    return steps


def _configurable(
    steps: tuple[Step, ...], config: Mapping[str, Any], file: str, capacity: Capacity
) -> tuple[Step, ...]:
    """The steps, after the agent's reader has accepted every configuration that they make."""
    now = dict(config)
    for step in steps:
        if isinstance(step, Restart) and step.config:
            now |= step.config
            load_text("\n" * (step.line - 1) + json.dumps(now), file, machine=capacity)
    return steps


def _config(value: source.Value, text: str, file: str, capacity: Capacity) -> Mapping[str, Any]:
    """The configuration as plain values, after the agent's reader has accepted it."""
    source.section(value)
    load_text(cut_out(text, "config"), file, machine=capacity)
    values = plain(value)
    return values if isinstance(values, dict) else {}


def plain(value: source.Value) -> Any:
    """A YAML value as plain values, with numbers and booleans."""
    if isinstance(value, source.Section):
        return {key: plain(entry) for key, entry in value.entries.items()}
    if isinstance(value, source.Sequence):
        return [plain(item) for item in value.items]
    return value.text if value.kind == "str" else yaml.safe_load(value.text)
