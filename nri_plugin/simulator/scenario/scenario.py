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

Containers have `cpu` and `memory` (both request and limit), or `requests` and `limits` as in a pod manifest. A step may
name only pods and containers of earlier steps. `resources` of a pod are those of the pod as a whole (`spec.resources`), and
`facts` tells when the exporter knows the pod's object. Every error names file, line and key.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import resources
from math import ceil
from pathlib import Path
from typing import Any, TextIO

import yaml

from nri_plugin.config import yaml_tree as source
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import load_text
from nri_plugin.config.values import amount, choice, cpu_list, either, one_of, unknown, whole_bytes
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.records import QOSClass
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.simulator.machine.machine import described_in, is_description
from nri_plugin.simulator.machine.source import described_machine
from nri_plugin.simulator.runtime.cgroup_tree import Driver
from nri_plugin.simulator.runtime.pods import (
    PERIOD_US,
    ContainerSpec,
    PodSpec,
    quota_from_milli,
    shares_from_milli,
)
from nri_plugin.simulator.runtime.profile import BEHAVIOURS
from nri_plugin.simulator.runtime.told_facts import Telling
from nri_plugin.simulator.scenario.steps import (
    DriftStep,
    Expect,
    Foreign,
    Kubepods,
    Logged,
    Measure,
    Online,
    Part,
    PartitionKind,
    Release,
    Remove,
    Restart,
    Run,
    Say,
    Second,
    Spin,
    Start,
    Step,
    Stop,
    Update,
    Writer,
    plain,
    read_container,
    read_pod_resources,
    texts,
)
from nri_plugin.wire.nri.messages import Resources

# Steps


POD_KEYS = ("containers", "initContainers", "resources", "annotations", "labels", "qos", "copies")
RUN_KEYS = (*POD_KEYS, "facts")
UPDATE_KEYS = ("cpu", "memory", "cpus", "mems")
EXPECT_KEYS = ("cpus", "mems", "exclusive", "numaNodes", "caches", "devices", "refused", "kernel")
MOVES: Mapping[str, type[Start | Stop | Remove]] = {"start": Start, "stop": Stop, "remove": Remove}
KERNEL_KEYS = ("quota", "podQuota", "partition", "sandbox", "root")


class StepReader:
    """Reads steps in order and remembers which pods and containers they made."""

    def __init__(self) -> None:
        self._containers: dict[str, tuple[str, ...]] = {}
        self._kinds: Mapping[str, tuple[Callable[[source.Section, str], Step], tuple[str, ...]]] = {
            "say": (self._say, ()),
            "run": (self._run, RUN_KEYS),
            "create": (self._run, RUN_KEYS),
            "start": (self._move, ()),
            "stop": (self._move, ()),
            "remove": (self._move, ()),
            "update": (self._update, UPDATE_KEYS),
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
            "expect": (self._expect, EXPECT_KEYS),
        }

    def read(self, value: source.Value) -> Step:
        """Read a step. Its first key is its kind; the reader of the kind gets the section and the kind.

        Raises:
            ConfigError: the kind is unknown, or something in the step is wrong.
        """
        section = source.section(value)
        if not section.entries:
            raise value.place.error(f"a step begins with {either(*self._kinds)}")
        kind = next(iter(section.entries))
        if kind not in self._kinds:
            raise unknown(section.keys[kind], kind, tuple(self._kinds))
        read, keys = self._kinds[kind]
        refuse_unknown(section, (kind, *keys))
        return read(section, kind)

    def _say(self, section: source.Section, kind: str) -> Step:
        return Say(_line(section), source.text(section.entries[kind]).strip())

    def _run(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        facts = choice(Telling)(given["facts"]) if "facts" in given else Telling.LOST
        return Run(_line(section), self._pod(section, kind), start=kind == "run", facts=facts)

    def _move(self, section: source.Section, kind: str) -> Step:
        value = section.entries[kind]
        return MOVES[kind](_line(section), self._known(source.text(value), value.place))

    def _of_agent(self, section: source.Section, kind: str) -> Step:
        one_of(Part.AGENT.value)(section.entries[kind])
        return Second(_line(section)) if kind == "second" else Release(_line(section))

    def _restart(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        part = choice(Part)(given[kind])
        if "config" in given and part is not Part.AGENT:
            raise section.keys["config"].error(
                "only the agent has a configuration here; write restart: agent"
            )
        config = _configured(given["config"]) if "config" in given else {}
        return Restart(_line(section), part, writes=_number(given, "writes"), config=config)

    def _kill(self, section: source.Section, kind: str) -> Step:
        return Restart(_line(section), choice(Part)(section.entries[kind]), is_down=True)

    def _drift(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        target = self._container(given[kind])
        if "cpus" not in given:
            raise section.place.error("cpus is missing: where the container is put")
        by = choice(Writer)(given["by"]) if "by" in given else Writer.PERSON
        meanwhile = self._meanwhile(given["meanwhile"]) if "meanwhile" in given else {}
        return DriftStep(_line(section), target, cpu_list(given["cpus"]), by, meanwhile)

    def _meanwhile(self, value: source.Value) -> dict[str, Mapping[str, str]]:
        """Expected kernel values by container."""
        section = source.section(value)
        for key, place in section.keys.items():
            self._known_container(key, place)
        return {key: _kernel(each) for key, each in section.entries.items()}

    def _online(self, section: source.Section, kind: str) -> Step:
        return Online(_line(section), cpu_list(section.entries[kind]))

    def _foreign(self, section: source.Section, kind: str) -> Step:
        partition = choice(PartitionKind)(section.entries[kind])
        cpus = cpu_list(section.entries["cpus"]) if "cpus" in section.entries else CPUSet()
        if cpus and partition is PartitionKind.MEMBER:
            raise section.place.error("a member has none of its own; leave cpus out")
        if not cpus and partition is not PartitionKind.MEMBER:
            raise section.place.error("cpus is missing: whose it becomes")
        return Foreign(_line(section), partition, cpus)

    def _kubepods(self, section: source.Section, kind: str) -> Step:
        return Kubepods(_line(section), cpu_list(section.entries[kind]))

    def _logged(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        only = one_of("kernel")(given["only"]) if "only" in given else ""
        return Logged(_line(section), source.text(given[kind]), only)

    def _update(self, section: source.Section, kind: str) -> Step:
        return Update(_line(section), self._container(section.entries[kind]), _update_resources(section))

    def _spin(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        on = one_of("all", "one")(given["on"]) if "on" in given else "all"
        return Spin(line=_line(section), target=self._container(given[kind]), on=on)

    def _measure(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        load = one_of("disk", "hotplug", "none")(given["load"]) if "load" in given else "none"
        return Measure(line=_line(section), target=self._container(given[kind]), load=load)

    def _expect(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        if len(given) == 1:
            raise section.place.error(f"nothing is expected; add {either(*EXPECT_KEYS)}")
        return Expect(
            line=_line(section),
            target=self._container(given[kind]),
            cpus=cpu_list(given["cpus"]) if "cpus" in given else None,
            mems=NodeMask(cpu_list(given["mems"]).mask) if "mems" in given else None,
            exclusive=_number(given, "exclusive"),
            numa_nodes=_number(given, "numaNodes"),
            caches=_number(given, "caches"),
            devices=_device_ids(given),
            refused=source.text(given["refused"]) if "refused" in given else None,
            kernel=_kernel(given["kernel"]) if "kernel" in given else None,
        )

    def _pod(self, section: source.Section, kind: str) -> PodSpec:
        given = section.entries
        namespace, name = _pod_name(given[kind])
        if "containers" not in given:
            raise section.place.error("containers is missing")
        containers = source.section(given["containers"])
        pod = PodSpec(
            name=name,
            namespace=namespace,
            containers=tuple(_copied(containers, given)),
            labels=texts(given, "labels"),
            annotations=texts(given, "annotations"),
            forced_qos=choice(QOSClass)(given["qos"]) if "qos" in given else None,
            init_containers=_init_containers(given, kind),
            whole=read_pod_resources(given["resources"]) if "resources" in given else None,
        )
        if not pod.containers:
            raise containers.place.error("a pod has at least one container")
        names = tuple(each.name for each, _ in pod.members)
        if len(set(names)) < len(names):
            raise containers.place.error("a container has the name of an init container; rename one of them")
        self._containers[pod.key] = names
        return pod

    def _container(self, value: source.Value) -> str:
        return self._known_container(source.text(value), value.place)

    def _known(self, found: str, place: source.Place) -> str:
        """A pod or container that an earlier step made."""
        parts = found.split("/")
        pod, container = "/".join(parts[:2]), "/".join(parts[2:])
        if pod not in self._containers:
            raise place.error(
                f"no earlier step made a pod {pod}; made were {', '.join(self._containers) or 'none'}"
            )
        if container and container not in self._containers[pod]:
            known = either(*self._containers[pod])
            raise place.error(f"pod {pod} has no container {container}; it has {known}")
        return found

    def _known_container(self, found: str, place: source.Place) -> str:
        self._known(found, place)
        if found.count("/") != 2:
            raise place.error(f"expected NAMESPACE/POD/CONTAINER, found {found}")
        return found


def _configured(value: source.Value) -> dict[str, Any]:
    """Keys of the agent's configuration; `_configurable` checks them together with the keys that stay."""
    section = source.section(value)
    if not section.entries:
        raise section.place.error("nothing is changed; name a key of the agent's configuration")
    return {key: plain(each) for key, each in section.entries.items()}


def _kernel(value: source.Value) -> dict[str, str]:
    section = source.section(value)
    refuse_unknown(section, KERNEL_KEYS)
    return {key: source.scalar(each).text for key, each in section.entries.items()}


def _copied(containers: source.Section, given: Mapping[str, source.Value]) -> Iterator[ContainerSpec]:
    """The containers. With `copies`, each of them that many times, numbered from 1."""
    copies = _number(given, "copies")
    for name, value in containers.entries.items():
        names = [name] if copies is None else [f"{name}-{number}" for number in range(1, copies + 1)]
        yield from (read_container(each, value) for each in names)


def _line(section: source.Section) -> int:
    return section.place.line


def _number(given: Mapping[str, source.Value], key: str) -> int | None:
    return source.number(given[key]) if key in given else None


def _init_containers(given: Mapping[str, source.Value], kind: str) -> tuple[ContainerSpec, ...]:
    if "initContainers" not in given:
        return ()
    section = source.section(given["initContainers"])
    if kind == "create":
        raise section.place.error(
            "init containers have ended before the others are created; use 'run', or leave them out"
        )
    return tuple(read_container(key, value, is_init=True) for key, value in section.entries.items())


def _device_ids(given: Mapping[str, source.Value]) -> dict[str, tuple[str, ...]] | None:
    """Ids by resource, each as a list or as words separated by commas."""
    if "devices" not in given:
        return None
    return {name: _ids(value) for name, value in source.section(given["devices"]).entries.items()}


def _ids(value: source.Value) -> tuple[str, ...]:
    if isinstance(value, source.Sequence):
        return tuple(map(source.text_or_number, value.items))
    return tuple(source.text_or_number(value).replace(" ", "").split(","))


def _pod_name(value: source.Value) -> tuple[str, str]:
    namespace, slash, name = source.text(value).partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise value.place.error(f"expected NAMESPACE/POD, found {source.text(value)}")
    return namespace, name


def _update_resources(section: source.Section) -> Resources:
    """The kubelet's resources for a resize; absent parts are 0."""
    given = section.entries
    if len(given) == 1:
        raise section.place.error(f"nothing is changed; add {either(*UPDATE_KEYS)}")
    milli = ceil(amount(given["cpu"]) * 1000) if "cpu" in given else 0
    return Resources(
        cpu_shares=shares_from_milli(milli) if milli else 0,
        cpu_quota_us=quota_from_milli(milli),
        cpu_period_us=PERIOD_US if milli else 0,
        cpus=str(cpu_list(given["cpus"])) if "cpus" in given else "",
        mems=str(cpu_list(given["mems"])) if "mems" in given else "",
        memory_limit_bytes=whole_bytes(given["memory"]) if "memory" in given else 0,
    )


# The file


KEYS = ("name", "machine", "runtime", "driver", "cgroup", "config", "steps")
DEFAULT_RUNTIME = "containerd-2.1"


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


LARGEST = 64 << 20
"""Characters of a file; ten thousand pods as kubectl prints them are fewer."""


ABSENT = "cannot be read: no such file or directory"


def read_text(file: str, *, absent: str = ABSENT, stream: TextIO | None = None) -> str:
    """The text of a file.

    Args:
        file: its path, or its name for errors.
        absent: the error for a file that does not exist.
        stream: the open file; None to open it.

    Raises:
        ConfigError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with nullcontext(stream) if stream else open(file, encoding="utf-8-sig") as opened:
            text = opened.read(LARGEST + 1)
    except FileNotFoundError:
        raise ConfigError(file, absent) from None
    except OSError as error:
        raise ConfigError(file, f"cannot be read: {(error.strerror or 'unknown error').lower()}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(file, f"not UTF-8 text at byte {error.start}") from None
    if len(text) > LARGEST:
        raise ConfigError(file, f"is larger than {LARGEST >> 20} MiB; give fewer pods at once")
    return text


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


def stem(file: str) -> str:
    """The default name of a scenario."""
    return Path(file).stem


def _config(value: source.Value, text: str, file: str, capacity: Capacity) -> Mapping[str, Any]:
    """The configuration as plain values, after the agent's reader has accepted it."""
    source.section(value)
    load_text(cut_out(text, "config"), file, machine=capacity)
    values = plain(value)
    return values if isinstance(values, dict) else {}


def cut_out(text: str, key: str) -> str:
    """The value of a top-level key, at its line and column, so that errors name the right place."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    marks = next((value.start_mark, value.end_mark) for name, value in root.value if name.value == key)
    start, end = marks
    return "\n" * int(start.line) + " " * int(start.column) + text[start.index : end.index]
