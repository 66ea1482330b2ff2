"""Scenario files: readers of containers, amounts and steps, and the steps as values.

Containers have `cpu` and `memory` (both request and limit), or `requests` and `limits` as in a pod manifest. A step may
name only pods and containers of earlier steps. `resources` of a pod are those of the pod as a whole (`spec.resources`), and
`facts` tells when the exporter knows the pod's object. Every error names file, line and key.

A target is `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import yaml

from nri_plugin.config import yaml_tree as source
from nri_plugin.config.values import amount, choice, cpu_list, either, one_of, unknown, whole_bytes
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.records import Amounts, QOSClass
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.simulator.simulate.pods import (
    PERIOD_US,
    ContainerSpec,
    PodSpec,
    Telling,
    quota_from_milli,
    shares_from_milli,
)
from nri_plugin.wire.nri.messages import Resources

# Containers: requests and limits as in a pod manifest, or amounts that are both at once


CONTAINER_KEYS = ("cpu", "memory", "requests", "limits", "env")
SIDECAR_KEY, SIDECAR = "restartPolicy", "Always"
AMOUNT_KEYS = ("cpu", "memory")
POD_RESOURCES = (*AMOUNT_KEYS, "requests", "limits")
HUGEPAGES = "hugepages-"

_DEVICE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9_.-]+\Z")


def read_container(name: str, value: source.Value, *, is_init: bool = False) -> ContainerSpec:
    """Read a container. A request that is not given equals the limit, which is the default of the Kubernetes API.

    Raises:
        ConfigError: something in it is wrong.
    """
    section = source.section(value)
    known = (*CONTAINER_KEYS, SIDECAR_KEY) if is_init else CONTAINER_KEYS
    for key, place in section.keys.items():
        if key not in known and not is_amount(key):
            raise unknown(place, key, known)
    limits = _amounts(section, "limits")
    requests = limits | _amounts(section, "requests")
    return ContainerSpec(
        name=name,
        cpu_request_milli=ceil(requests.get("cpu", 0) * 1000),
        cpu_limit_milli=ceil(limits.get("cpu", 0) * 1000),
        memory_request_bytes=int(requests.get("memory", 0)),
        memory_limit_bytes=int(limits.get("memory", 0)),
        hugepages=tuple((key, int(size)) for key, size in limits.items() if key.startswith(HUGEPAGES)),
        devices_asked=_devices(section, limits),
        env=tuple(f"{key}={text}" for key, text in texts(section.entries, "env").items()),
        is_sidecar=is_init
        and SIDECAR_KEY in section.entries
        and one_of(SIDECAR)(section.entries[SIDECAR_KEY]) == SIDECAR,
    )


def read_pod_resources(value: source.Value) -> Amounts:
    """Read the resources of a pod as a whole: CPUs, memory and huge pages, as those of a container.

    Raises:
        ConfigError: something in it is wrong.
    """
    section = source.section(value)
    for key, place in section.keys.items():
        if key not in POD_RESOURCES and not key.startswith(HUGEPAGES):
            raise unknown(place, key, POD_RESOURCES)
    return read_container("", value).amounts


def is_amount(key: str) -> bool:
    """Whether the key is a resource: CPUs, memory, huge pages or a device."""
    return key in AMOUNT_KEYS or key.startswith(HUGEPAGES) or _is_device(key)


def _amounts(section: source.Section, key: str) -> dict[str, Fraction]:
    """The amounts of `limits` or `requests`, with those that stand beside them and count for both."""
    given: dict[str, source.Value] = {
        name: value for name, value in section.entries.items() if is_amount(name)
    }
    if key in section.entries:
        inner = source.section(section.entries[key])
        for name, place in inner.keys.items():
            if name in given:
                raise place.error(f"{name} is also given for requests and limits at once; keep one of them")
            if not is_amount(name):
                raise unknown(place, name, AMOUNT_KEYS)
        given |= inner.entries
    return {
        name: amount(value) if name == "cpu" else Fraction(whole_bytes(value))
        for name, value in given.items()
    }


def _devices(section: source.Section, limits: Mapping[str, Fraction]) -> tuple[tuple[str, int], ...]:
    """Counts by resource. As in a pod manifest, a request must equal its limit."""
    if "requests" in section.entries:
        inner = source.section(section.entries["requests"])
        for name, value in inner.entries.items():
            if _is_device(name) and whole_bytes(value) != limits.get(name):
                raise value.place.error(
                    f"{name} must be the same in limits, where it is {limits.get(name, 0)}"
                )
    return tuple((name, int(count)) for name, count in limits.items() if _is_device(name) and count)


def _is_device(name: str) -> bool:
    """Whether the resource is an extended resource of Kubernetes."""
    return bool(_DEVICE.match(name))


def texts(given: Mapping[str, source.Value], key: str) -> dict[str, str]:
    """Text by key; empty if the section is left out.

    Raises:
        ConfigError: a value is not text.
    """
    if key not in given:
        return {}
    return {name: source.text(value) for name, value in source.section(given[key]).entries.items()}


# Steps


@dataclass(frozen=True, slots=True)
class Say:
    """A sentence for the reader."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """A pod with its containers is created and, unless `start` is off, started.

    Attributes:
        facts: when the exporter tells the agent what the pod's object says.
    """

    line: int
    pod: PodSpec
    start: bool = True
    facts: Telling = Telling.LOST


@dataclass(frozen=True, slots=True)
class Start:
    """Created containers are started."""

    line: int
    target: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Containers exit; with a pod as target the sandbox stops too."""

    line: int
    target: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Containers, or a whole pod, are stopped and removed."""

    line: int
    target: str


@dataclass(frozen=True, slots=True)
class Update:
    """The kubelet changes a container's resources."""

    line: int
    target: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class Expect:
    """Expected properties of a container; None = not checked.

    Attributes:
        cpus: its effective CPUs.
        mems: its effective memory nodes.
        exclusive: how many exclusive CPUs it has, 0 = it runs in the shared pool.
        numa_nodes: over how many NUMA nodes its CPUs are spread.
        caches: over how many uncore caches.
        devices: ids by resource, all of them.
        refused: a part of the error for which it was refused.
        kernel: values that only a real kernel has: `quota`, `podQuota`, `partition`, the CPUs of its `sandbox`, and
            the effective CPUs of the cgroup `root`.
    """

    line: int
    target: str
    cpus: CPUSet | None = None
    mems: NodeMask | None = None
    exclusive: int | None = None
    numa_nodes: int | None = None
    caches: int | None = None
    devices: Mapping[str, tuple[str, ...]] | None = None
    refused: str | None = None
    kernel: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The CPUs and memory nodes of a running container, to compare with an `Expect`.

    Attributes:
        cpus, mems: effective, kernel lists.
        exclusive: how many exclusive CPUs it has.
        numa_nodes: over how many NUMA nodes its CPUs are spread.
        caches: over how many uncore caches.
        devices: ids by resource.
    """

    cpus: str
    mems: str
    exclusive: int
    numa_nodes: int
    caches: int
    devices: Mapping[str, tuple[str, ...]]


def unmet(step: Expect, refusal: str | None, held: Held | None) -> Iterator[str]:
    """Yield a sentence for each part of an expectation that is not true.

    Args:
        step: the expectation.
        refusal: the error of a refused container as the CRI client gets it; None for a container that was not refused.
        held: what the container has; None if it does not run.
    """
    target = step.target
    if step.refused is not None:
        if refusal is None:
            yield f"{target} should have been refused with {step.refused}, it was not"
        elif step.refused not in refusal:
            yield f"{target} should have been refused with {step.refused}, it was with: {refusal}"
        return
    if held is None:
        yield f"{target} should run" + (f", but was refused: {refusal}" if refusal else "")
        return
    compared: tuple[tuple[str, object, object], ...] = (
        ("cpus", step.cpus, held.cpus),
        ("memory nodes", step.mems, held.mems),
        ("exclusive cpus:", step.exclusive, held.exclusive),
        ("NUMA nodes:", step.numa_nodes, held.numa_nodes),
        ("uncore caches:", step.caches, held.caches),
        ("devices", None if step.devices is None else _listed(step.devices), _listed(held.devices)),
    )
    for what, expected, found in compared:
        if expected is not None and str(expected) != str(found):
            yield f"{target} should have {what} {expected}, it has {found}"


def _listed(given: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{name} {','.join(sorted(ids))}" for name, ids in sorted(given.items())) or "none"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A step that needs an agent process, a runtime, cgroups or a kernel; `hack/demo` plays it."""

    line: int
    kind: str


Step: TypeAlias = Say | Run | Start | Stop | Remove | Update | Expect | Elsewhere


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


def stem(file: str) -> str:
    """The default name of a scenario."""
    return Path(file).stem


def cut_out(text: str, key: str) -> str:
    """The value of a top-level key, at its line and column, so that errors name the right place."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    marks = next((value.start_mark, value.end_mark) for name, value in root.value if name.value == key)
    start, end = marks
    return "\n" * int(start.line) + " " * int(start.column) + text[start.index : end.index]


# The reader


POD_KEYS = ("containers", "initContainers", "resources", "annotations", "labels", "qos", "copies")
RUN_KEYS = (*POD_KEYS, "facts")
UPDATE_KEYS = ("cpu", "memory", "cpus", "mems")
EXPECT_KEYS = ("cpus", "mems", "exclusive", "numaNodes", "caches", "devices", "refused", "kernel")
MOVES: Mapping[str, type[Start | Stop | Remove]] = {"start": Start, "stop": Stop, "remove": Remove}
PLAYED_ELSEWHERE = (
    "restart",
    "kill",
    "drift",
    "second",
    "release",
    "online",
    "partition",
    "kubepods",
    "logged",
    "spin",
    "measure",
)
KERNEL_KEYS = ("quota", "podQuota", "partition", "sandbox", "root")


class StepReader:
    """Reads steps in order and remembers which pods and containers they made."""

    def __init__(self) -> None:
        self._containers: dict[str, tuple[str, ...]] = {}
        self.kinds: dict[str, tuple[Callable[[source.Section, str], Any], tuple[str, ...] | None]] = {
            "say": (self._say, ()),
            "run": (self._run, RUN_KEYS),
            "create": (self._run, RUN_KEYS),
            "start": (self._move, ()),
            "stop": (self._move, ()),
            "remove": (self._move, ()),
            "update": (self._update, UPDATE_KEYS),
            "expect": (self._expect, EXPECT_KEYS),
            **dict.fromkeys(PLAYED_ELSEWHERE, (self._elsewhere, None)),
        }

    def read(self, value: source.Value) -> Any:
        """Read a step. Its first key is its kind; the reader of the kind gets the section and the kind.

        Raises:
            ConfigError: the kind is unknown, or something in the step is wrong.
        """
        section = source.section(value)
        if not section.entries:
            raise value.place.error(f"a step begins with {either(*self.kinds)}")
        kind = next(iter(section.entries))
        if kind not in self.kinds:
            raise unknown(section.keys[kind], kind, tuple(self.kinds))
        read, keys = self.kinds[kind]
        if keys is not None:
            refuse_unknown(section, (kind, *keys))
        return read(section, kind)

    def _elsewhere(self, section: source.Section, kind: str) -> Step:
        return Elsewhere(line_of(section), kind)

    def _say(self, section: source.Section, kind: str) -> Step:
        return Say(line_of(section), source.text(section.entries[kind]).strip())

    def _run(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        facts = choice(Telling)(given["facts"]) if "facts" in given else Telling.LOST
        return Run(line_of(section), self._pod(section, kind), start=kind == "run", facts=facts)

    def _move(self, section: source.Section, kind: str) -> Step:
        value = section.entries[kind]
        return MOVES[kind](line_of(section), self._known(source.text(value), value.place))

    def _update(self, section: source.Section, kind: str) -> Step:
        return Update(line_of(section), self.container(section.entries[kind]), _update_resources(section))

    def _expect(self, section: source.Section, kind: str) -> Step:
        given = section.entries
        if len(given) == 1:
            raise section.place.error(f"nothing is expected; add {either(*EXPECT_KEYS)}")
        return Expect(
            line=line_of(section),
            target=self.container(given[kind]),
            cpus=cpu_list(given["cpus"]) if "cpus" in given else None,
            mems=NodeMask(cpu_list(given["mems"]).mask) if "mems" in given else None,
            exclusive=number_of(given, "exclusive"),
            numa_nodes=number_of(given, "numaNodes"),
            caches=number_of(given, "caches"),
            devices=_device_ids(given),
            refused=source.text(given["refused"]) if "refused" in given else None,
            kernel=kernel_values(given["kernel"]) if "kernel" in given else None,
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

    def container(self, value: source.Value) -> str:
        """The container that a value names; an earlier step made it."""
        return self.known_container(source.text(value), value.place)

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

    def known_container(self, found: str, place: source.Place) -> str:
        """The same by its key and its place in the file."""
        self._known(found, place)
        if found.count("/") != 2:
            raise place.error(f"expected NAMESPACE/POD/CONTAINER, found {found}")
        return found


def kernel_values(value: source.Value) -> dict[str, str]:
    """Expected kernel values by key."""
    section = source.section(value)
    refuse_unknown(section, KERNEL_KEYS)
    return {key: source.scalar(each).text for key, each in section.entries.items()}


def _copied(containers: source.Section, given: Mapping[str, source.Value]) -> Iterator[ContainerSpec]:
    """The containers. With `copies`, each of them that many times, numbered from 1."""
    copies = number_of(given, "copies")
    for name, value in containers.entries.items():
        names = [name] if copies is None else [f"{name}-{number}" for number in range(1, copies + 1)]
        yield from (read_container(each, value) for each in names)


def line_of(section: source.Section) -> int:
    """The line where a section begins."""
    return section.place.line


def number_of(given: Mapping[str, source.Value], key: str) -> int | None:
    """A whole number; None where the key is left out."""
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
