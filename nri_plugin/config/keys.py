"""Every key of the configuration, and the command-line flags that replace keys.

Names and values are those of `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1) wherever it has the setting; keys
it does not have are ours. Three groups make `KEYS`:

1. options at the top of the file: rows of `model/options.py` that belong to no section;
2. the sections of policy options, one for each manager;
3. the fields of `Settings`: what is reserved for the system, and how the agent runs. The text below each field is its
   sentence in the guide.

A flag replaces its key as a whole and passes the same reader and checks; an error names the flag.
Source: kubelet, for the flags of its managers and for a flag that wins over KubeletConfiguration.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args, get_origin

from nri_plugin.config import values
from nri_plugin.config import yaml_tree as source
from nri_plugin.config.yaml_tree import Place, Scalar, Section, Value, parse
from nri_plugin.model.option_rows import MANAGERS
from nri_plugin.model.options import Options, ReservedMemory, options_of
from nri_plugin.model.sets import CPUSet

DEFAULT_EVICTION_BYTES = 100 << 20
"""Source: kubelet, the default of evictionHard is memory.available 100Mi."""

Reader = Callable[[Value], Any]


class Key(NamedTuple):
    """One key of the configuration.

    Attributes:
        attribute: the field that it fills: of `Options`, or of `Settings`.
        read: the reader of its value.
        kind: the type of its value.
        default: its default.
        shown: its default as the guide shows it, where that is not the value.
    """

    attribute: str
    read: Reader
    kind: Any
    default: Any = None
    shown: str = ""


def key(default: Any, name: str, read: Reader | None = None, shown: str = "") -> Any:
    """A field of `Settings` that one key fills; without `read`, its type says how the value is read."""
    metadata = {"name": name, "read": read, "shown": shown}
    return (
        field(default_factory=dict, metadata=metadata)
        if default == {}
        else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration as written, each value right by itself. An empty path is found when it is needed.

    Attributes:
        options: the options at the top of the file; those of `sections` are not applied yet.
        sections: policy options as texts by name, by the key of their section.
        eviction_hard: bytes, or a percentage as written; None where a list of signals leaves it out.
        metrics_bind_address: (host, port), None for no metrics; named as in KubeProxyConfiguration.
        health_probe_bind_address: the same for the kubelet's probes; named as the flag of controllers, because
            healthzBindAddress is the kubelet's own.
    """

    options: Options = field(default=Options())

    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    reserved_system_cpus: CPUSet = key(CPUSet(), "reservedSystemCPUs", values.cpu_list)
    """CPUs kept for the system, by number. The static policy needs these or a cpu amount in `kubeReserved` or
    `systemReserved`.
    """

    kube_reserved: Mapping[str, Fraction] = key({}, "kubeReserved", values.reserved)
    """Amounts kept for the system. A number of CPUs is rounded up and picked by the policy."""

    system_reserved: Mapping[str, Fraction] = key({}, "systemReserved", values.reserved)
    """Added to `kubeReserved`."""

    eviction_hard: str | int | None = key(
        DEFAULT_EVICTION_BYTES, "evictionHard", values.eviction, "`memory.available: 100Mi`"
    )
    """Its memory counts in the sum that `reservedMemory` must equal."""

    merge_default_eviction_settings: bool = key(False, "mergeDefaultEvictionSettings")
    """Signals that `evictionHard` leaves out have their defaults, not none."""

    feature_gates: Mapping[str, bool] = key({}, "featureGates", values.feature_gates, "as Kubernetes 1.36")
    """A gate that is off refuses the options that it hides, it does not turn them off: remove an option to turn it off. No
    gate hides stable options.
    """

    device_hints: bool = key(True, "deviceHints")
    """Devices give hints."""

    nic_locality: Literal["sysfs", "netlink"] = key("sysfs", "nicLocality")
    """Where the NUMA nodes of network interfaces are looked up."""

    exporter_socket: str = key(
        "", "exporterSocket", values.absolute_path, "`exporter/exporter.sock` in `stateDir`"
    )
    """Where the agent asks for devices and for facts of pods."""

    state_dir: str = key("/run/nri-pin", "stateDir", values.absolute_path)
    """The folder of the checkpoint. A state directory on a disk is written with fsync."""

    nri_socket: str = key("/var/run/nri/nri.sock", "nriSocket", values.absolute_path)
    """The runtime's socket, where the runtime did not start the agent itself."""

    sysfs_root: str = key("", "sysfsRoot", values.absolute_path, "`/host` where mounted, else `/`")
    """The folder that holds the machine's `sys` and `proc`."""

    cgroup_root: str = key(
        "", "cgroupRoot", values.absolute_path, "`sys/fs/cgroup` below `/host` where mounted, else below `/`"
    )
    """The mount point of the cgroup tree."""

    plugin_name: str = key("nri-pin", "pluginName", values.plugin_name)
    """The name that the runtime logs."""

    plugin_index: str = key("90", "pluginIndex", values.plugin_index)
    """Two digits; the runtime calls plugins in this order."""

    metrics_bind_address: tuple[str, int] | None = key(None, "metricsBindAddress", values.bind_address, "off")
    """`HOST:PORT` or `:PORT` of `/metrics`."""

    health_probe_bind_address: tuple[str, int] | None = key(
        None, "healthProbeBindAddress", values.bind_address, "off"
    )
    """`HOST:PORT` or `:PORT` of `/healthz` and `/readyz`, for the kubelet's probes; another port than that of the metrics.
    """

    cpu_noise_period_seconds: int = key(0, "cpuNoisePeriodSeconds", values.noise_period, "`0`: off")
    """[Metrics of what disturbs exclusive CPUs](metrics.md#noise-on-exclusive-cpus): the least number of seconds between two
    readings of the kernel's counters, 5 or more. Needs `metricsBindAddress`.
    """

    history_bytes: int = key(4 << 20, "historyBytes", values.history_bytes, "`4Mi`")
    """The size of the [history](operate.md#history) in `stateDir/history`. A very full node takes what it needs; `0`:
    none.
    """

    on_checkpoint_failure: Literal["refuse", "serve"] = key("refuse", "onCheckpointFailure")
    """While the [checkpoint cannot be saved](operate.md#when-the-state-directory-fails): `refuse` containers that would be allocated CPUs or memory, or `serve` them
    from memory.
    """

    observe: bool = key(False, "observe")
    """Decide, log and count, and [change nothing](install.md#try-it-beside-what-pins-today)."""

    repair_mems: bool = key(False, "repairMems", values.not_yet)
    """For a later version; `true` is refused."""

    log_format: Literal["text", "json"] = key("text", "logFormat")
    """The form of log lines."""

    log_level: Literal["debug", "info", "warning", "error"] = key("info", "logLevel")
    """The lowest level that is logged."""


_READERS: Mapping[Any, Reader] = {
    bool: source.flag,
    frozenset[str]: values.namespaces,
    tuple[str, ...]: values.patterns,
    tuple[ReservedMemory, ...]: values.reserved_memory,
}


def words_of(kind: Any) -> tuple[str, ...]:
    """The words that a type allows; none for a type that is no choice between words."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def reader_of(kind: Any) -> Reader:
    """How values of a type are read."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return values.choice(kind)
    words = words_of(kind)
    return values.one_of(*words) if words else _READERS[kind]


OPTION_KEYS: Mapping[str, Key] = {
    name: Key(attribute=one.attribute, read=reader_of(one.kind), kind=one.kind, default=one.default)
    for name, one in options_of(None).items()
}
SECTION_KEYS: Mapping[str, Key] = {
    manager.key: Key(attribute=manager.key, read=values.section_reader(manager), kind=dict)
    for manager in MANAGERS
}
SETTING_KEYS: Mapping[str, Key] = {
    one.metadata["name"]: Key(
        attribute=one.name,
        read=one.metadata["read"] or reader_of(one.type),
        kind=one.type,
        default=one.default,
        shown=one.metadata["shown"],
    )
    for one in fields(Settings)
    if one.metadata
}
KEYS: Mapping[str, Key] = {**OPTION_KEYS, **SECTION_KEYS, **SETTING_KEYS}

PLACE_KEYS = frozenset(
    name for name, one in SETTING_KEYS.items() if one.read in (values.absolute_path, values.bind_address)
)
"""Keys that say where something is: the chart chooses them, and no placement depends on them."""


def settings_of(found: Mapping[str, Any]) -> Settings:
    """The settings from the values that were read, by key."""
    options = {KEYS[name].attribute: value for name, value in found.items() if name in OPTION_KEYS}
    sections = {name: value for name, value in found.items() if name in SECTION_KEYS}
    rest = {KEYS[name].attribute: value for name, value in found.items() if name in SETTING_KEYS}
    return Settings(options=Options(**options), sections=sections, **rest)


# ---- flags

OBSERVE = "--observe"
"""The one flag that needs no value."""

OWN_FLAGS: Mapping[str, str] = {
    "--nri-socket": "nriSocket",
    "--state-dir": "stateDir",
    "--sysfs-root": "sysfsRoot",
    "--cgroup-root": "cgroupRoot",
    "--plugin-name": "pluginName",
    "--plugin-index": "pluginIndex",
    "--log-level": "logLevel",
    "--log-format": "logFormat",
    OBSERVE: "observe",
}


def flag_of(name: str) -> str:
    """The flag that the kubelet has for a key: `--cpu-manager-policy` for `cpuManagerPolicy`."""
    return "--" + re.sub(r"([A-Z]+)", r"-\1", name).lower()


KUBELET_FLAGS: Mapping[str, str] = {
    flag_of(name): name
    for name in (*(name for name, one in options_of(None).items() if one.has_flag), *SECTION_KEYS)
}
FLAGS: Mapping[str, str] = {**OWN_FLAGS, **KUBELET_FLAGS}
"""By flag: the key it replaces."""

PATHS = ("--nri-socket", "--state-dir", "--sysfs-root", "--cgroup-root")
"""Their values may be relative: a shell completes them so."""

SET = "--set "
"""Begins a flag that replaces the key named behind it, by a value written as in the file."""


def values_of(flags: Mapping[str, str]) -> dict[str, Value]:
    """By key: the values that flags give it instead.

    Raises:
        ConfigError: a list of options that is not NAME=VALUE,NAME=VALUE; a value that is no YAML.
    """
    return {FLAGS.get(flag, flag.removeprefix(SET)): _value(flag, text) for flag, text in flags.items()}


def _value(flag: str, text: str) -> Value:
    if flag.startswith(SET):
        return written_value(Place(flag), text)
    if FLAGS[flag] in SECTION_KEYS:
        return _options(flag, text)
    if flag in PATHS:
        text = os.path.abspath(text)
    return Scalar(Place(flag), text, "bool" if flag == OBSERVE else "str")


def written_value(place: Place, text: str) -> Value:
    """A value on a command line that is written as in the file."""
    value = parse(f"value: {text}", place.file).entries["value"]
    return Scalar(place, value.text, value.kind) if isinstance(value, Scalar) else value


def _options(flag: str, text: str) -> Section:
    """The last of two with one name counts."""
    entries: dict[str, Value] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise Place(flag).error(f"expected name=value,name=value; found {pair}")
        entries[name] = Scalar(Place(flag, path=name), value, "str")
    return Section(Place(flag), entries, {name: Place(flag, path=name) for name in entries})
