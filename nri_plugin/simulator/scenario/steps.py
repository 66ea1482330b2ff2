"""The steps of a scenario as values, and readers of containers and amounts in scenario files.

A target is `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any, TypeAlias

import yaml

from nri_plugin.config import yaml_tree as source
from nri_plugin.config.values import amount, one_of, unknown, whole_bytes
from nri_plugin.model.records import Amounts
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.simulator.runtime.pods import ContainerSpec, PodSpec
from nri_plugin.simulator.runtime.told_facts import Telling
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


def plain(value: source.Value) -> Any:
    """A YAML value as plain values, with numbers and booleans."""
    if isinstance(value, source.Section):
        return {key: plain(entry) for key, entry in value.entries.items()}
    if isinstance(value, source.Sequence):
        return [plain(item) for item in value.items]
    return value.text if value.kind == "str" else yaml.safe_load(value.text)


# Steps


class Part(StrEnum):
    """A process that can be restarted."""

    AGENT = "agent"
    RUNTIME = "runtime"


class PartitionKind(StrEnum):
    """The partition type of a cgroup that another program owns."""

    ISOLATED = "isolated"
    ROOT = "root"
    MEMBER = "member"
    """No partition."""


class Writer(StrEnum):
    """How another program writes a container's cpuset."""

    PERSON = "write"
    """A write to the cgroup file."""
    PROPERTY = "set-property"
    """`systemctl set-property`. Without systemd, the write that it makes is simulated."""
    RELOAD = "daemon-reload"
    """systemd restores the unit's cpuset of creation after a reload."""


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
class Restart:
    """Kill agent or runtime and start it again; `is_down` leaves it down.

    Attributes:
        writes: how many cpuset and quota files may be written because of the restart; None = not checked.
        config: keys of the agent's configuration that change.
    """

    line: int
    part: Part
    is_down: bool = False
    writes: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriftStep:
    """Another program changes the CPUs of a container; the agent repairs that unless it is down.

    Attributes:
        meanwhile: values on a real kernel before the repair, as in `Expect.kernel`.
    """

    line: int
    target: str
    cpus: CPUSet
    by: Writer = Writer.PERSON
    meanwhile: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Second:
    """A second agent is started beside the running one. It must wait for the first one and log that."""

    line: int


@dataclass(frozen=True, slots=True)
class Release:
    """The agent ends and `nri-pin release` undoes its settings; an agent that starts later keeps the allocations."""

    line: int


@dataclass(frozen=True, slots=True)
class Online:
    """From now on exactly these CPUs are online."""

    line: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Foreign:
    """A cgroup of another program becomes a partition with these CPUs, or stops being one."""

    line: int
    kind: PartitionKind
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Kubepods:
    """Another program gives the cgroup above all pods exactly these CPUs."""

    line: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Logged:
    """The agent has logged this since the last such step, or logs it soon.

    Attributes:
        text: part of a line.
        only: `kernel` if only a real kernel makes the agent log it.
    """

    line: int
    text: str
    only: str = ""


@dataclass(frozen=True, slots=True)
class Spin:
    """Twice as many processes spin in a container as it has CPUs; a real kernel shows whether it balances them.

    Attributes:
        on: `all` its CPUs, or `one`.
    """

    line: int
    target: str
    on: str


@dataclass(frozen=True, slots=True)
class Measure:
    """`nri-pin noise` measures a container with exclusive CPUs; on a real kernel its figures are those of another reader.

    Attributes:
        load: `disk` if its CPUs read from a disk and a stranger runs on them meanwhile, `hotplug` if its last CPU goes
            offline until the end, `none` for nothing.
    """

    line: int
    target: str
    load: str


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


Step: TypeAlias = (
    Say
    | Run
    | Start
    | Stop
    | Remove
    | Update
    | Restart
    | DriftStep
    | Second
    | Release
    | Online
    | Foreign
    | Kubepods
    | Logged
    | Spin
    | Measure
    | Expect
)
