"""Command-line flags as values that stand in for keys of the configuration.

They pass the same readers and checks as the file, and replace a key as a whole; an error names the flag.
Source: kubelet, for the flags of its managers and for a flag that wins over KubeletConfiguration.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from nri_plugin.config import values
from nri_plugin.config import values as kubelet
from nri_plugin.config import yaml_tree as source
from nri_plugin.config.yaml_tree import Place, Scalar, Section, Value, parse
from nri_plugin.model.options import (
    CPUManagerPolicy,
    FullPCPUsRule,
    IsolatedCPUs,
    Isolation,
    MemoryManagerPolicy,
    ReservedMemory,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyTieBreak,
    UncoreCacheFit,
    UncoreCacheRule,
)
from nri_plugin.model.sets import CPUSet

# ----------------------------------------------------------------------------------------------------
# Every key of the configuration: its default, and how the value below it is read.
#
# Names and values are those of `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1) wherever it has the setting;
# keys it does not have are ours.


DEFAULT_EVICTION_BYTES = 100 << 20
"""Source: kubelet, the default of evictionHard is memory.available 100Mi."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration as written, each value right by itself.

    Attributes:
        cpu_manager_policy_options: texts by name.
        topology_manager_policy_options: texts by name.
        eviction_hard: bytes, or a percentage as written; None where a list of signals leaves it out.
        merge_default_eviction_settings: whether what such a list leaves out has its default and not none.
        sysfs_root: None to look for a host mount.
        cgroup_root: None to look for a host mount.
        exporter_socket: None for the one in the state directory.
        metrics_bind_address: (host, port), None for no metrics; named as in KubeProxyConfiguration.
        health_probe_bind_address: the same for the kubelet's probes; named as the flag of controllers, for `healthzBindAddress` is the kubelet's own.
        history_bytes: what the recording of the latest events may take; 0 for none.
        on_checkpoint_failure: `refuse` what would be allocated and cannot be saved, or `serve` it from memory.
        observe: decide and carry out nothing.

    Differs: the kubelet's default for cpuManagerPolicy is none.
    """

    cpu_manager_policy: CPUManagerPolicy = CPUManagerPolicy.STATIC
    cpu_manager_policy_options: Mapping[str, str] = field(default_factory=dict)
    topology_manager_policy: TopologyManagerPolicy = TopologyManagerPolicy.NONE
    topology_manager_scope: TopologyManagerScope = TopologyManagerScope.CONTAINER
    topology_manager_policy_options: Mapping[str, str] = field(default_factory=dict)
    memory_manager_policy: MemoryManagerPolicy = MemoryManagerPolicy.NONE
    reserved_memory: tuple[ReservedMemory, ...] = ()
    reserved_system_cpus: CPUSet = field(default=CPUSet())
    kube_reserved: Mapping[str, Fraction] = field(default_factory=dict)
    system_reserved: Mapping[str, Fraction] = field(default_factory=dict)
    eviction_hard: str | int | None = DEFAULT_EVICTION_BYTES
    merge_default_eviction_settings: bool = False
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    state_dir: str = "/run/nri-pin"
    nri_socket: str = "/var/run/nri/nri.sock"
    plugin_name: str = "nri-pin"
    plugin_index: str = "90"
    sysfs_root: str | None = None
    cgroup_root: str | None = None
    pool_floor: bool = True
    never_refuse: frozenset[str] = frozenset()
    repair_mems: bool = False
    uncore_cache_rule: UncoreCacheRule = UncoreCacheRule.KUBELET
    uncore_cache_fit: UncoreCacheFit = UncoreCacheFit.FIRST
    strict_uncore_cache: bool = False
    smt_odd_counts: SMTOddCounts = SMTOddCounts.KUBELET
    full_pcpus_rule: FullPCPUsRule = FullPCPUsRule.KUBELET
    annotation_namespaces: frozenset[str] = frozenset()
    topology_tie_break: TopologyTieBreak = TopologyTieBreak.PACKED
    isolation: Isolation = Isolation.NONE
    isolated_cpus: IsolatedCPUs = IsolatedCPUs.EXCLUSIVE
    device_hints: bool = True
    device_proportional_cpus: bool = False
    nic_locality: str = "sysfs"
    exporter_socket: str | None = None
    metrics_bind_address: tuple[str, int] | None = None
    health_probe_bind_address: tuple[str, int] | None = None
    history_bytes: int = 4 << 20
    on_checkpoint_failure: str = "refuse"
    observe: bool = False
    log_format: str = "text"
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class Key:
    """One key: the attribute of `Settings` it fills and the reader of its value."""

    attribute: str
    read: Callable[[source.Value], Any]


KEYS: Mapping[str, Key] = {
    "cpuManagerPolicy": Key("cpu_manager_policy", values.choice(CPUManagerPolicy)),
    "cpuManagerPolicyOptions": Key("cpu_manager_policy_options", kubelet.cpu_options),
    "topologyManagerPolicy": Key("topology_manager_policy", values.choice(TopologyManagerPolicy)),
    "topologyManagerScope": Key("topology_manager_scope", values.choice(TopologyManagerScope)),
    "topologyManagerPolicyOptions": Key("topology_manager_policy_options", kubelet.topology_options),
    "memoryManagerPolicy": Key("memory_manager_policy", values.choice(MemoryManagerPolicy)),
    "reservedMemory": Key("reserved_memory", kubelet.reserved_memory),
    "reservedSystemCPUs": Key("reserved_system_cpus", values.cpu_list),
    "kubeReserved": Key("kube_reserved", kubelet.reserved),
    "systemReserved": Key("system_reserved", kubelet.reserved),
    "evictionHard": Key("eviction_hard", kubelet.eviction),
    "mergeDefaultEvictionSettings": Key("merge_default_eviction_settings", source.flag),
    "featureGates": Key("feature_gates", kubelet.feature_gates),
    "stateDir": Key("state_dir", values.absolute_path),
    "nriSocket": Key("nri_socket", values.absolute_path),
    "pluginName": Key("plugin_name", values.plugin_name),
    "pluginIndex": Key("plugin_index", values.plugin_index),
    "sysfsRoot": Key("sysfs_root", values.absolute_path),
    "cgroupRoot": Key("cgroup_root", values.absolute_path),
    "poolFloor": Key("pool_floor", source.flag),
    "neverRefuse": Key("never_refuse", values.namespaces),
    "repairMems": Key("repair_mems", values.not_yet),
    "uncoreCacheRule": Key("uncore_cache_rule", values.choice(UncoreCacheRule)),
    "uncoreCacheFit": Key("uncore_cache_fit", values.choice(UncoreCacheFit)),
    "strictUncoreCache": Key("strict_uncore_cache", source.flag),
    "smtOddCounts": Key("smt_odd_counts", values.choice(SMTOddCounts)),
    "fullPCPUsRule": Key("full_pcpus_rule", values.choice(FullPCPUsRule)),
    "annotationNamespaces": Key("annotation_namespaces", values.namespaces),
    "topologyTieBreak": Key("topology_tie_break", values.choice(TopologyTieBreak)),
    "isolation": Key("isolation", values.choice(Isolation)),
    "isolatedCPUs": Key("isolated_cpus", values.choice(IsolatedCPUs)),
    "deviceHints": Key("device_hints", source.flag),
    "deviceProportionalCPUs": Key("device_proportional_cpus", source.flag),
    "nicLocality": Key("nic_locality", values.one_of("sysfs", "netlink")),
    "exporterSocket": Key("exporter_socket", values.absolute_path),
    "metricsBindAddress": Key("metrics_bind_address", values.bind_address),
    "healthProbeBindAddress": Key("health_probe_bind_address", values.bind_address),
    "historyBytes": Key("history_bytes", values.history_bytes),
    "onCheckpointFailure": Key("on_checkpoint_failure", values.one_of("refuse", "serve")),
    "observe": Key("observe", source.flag),
    "logFormat": Key("log_format", values.one_of("text", "json")),
    "logLevel": Key("log_level", values.one_of("debug", "info", "warning", "error")),
}


# ----------------------------------------------------------------------------------------------------


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
KUBELET_FLAGS: Mapping[str, str] = {
    "--cpu-manager-policy": "cpuManagerPolicy",
    "--cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "--topology-manager-policy": "topologyManagerPolicy",
    "--topology-manager-policy-options": "topologyManagerPolicyOptions",
    "--topology-manager-scope": "topologyManagerScope",
}
FLAGS: Mapping[str, str] = {**OWN_FLAGS, **KUBELET_FLAGS}
"""By flag: the key it replaces."""

PATHS = ("--nri-socket", "--state-dir", "--sysfs-root", "--cgroup-root")
"""Their values may be relative: a shell completes them so."""


SET = "--set "
"""Begins a flag that replaces the key named behind it, by a value written as in the file."""


def values_of(flags: Mapping[str, str]) -> dict[str, Value]:
    """By key: what the flags say instead.

    Raises:
        ConfigError: a list of options that is not NAME=VALUE,NAME=VALUE; a value that is no YAML.
    """
    return {FLAGS.get(flag, flag.removeprefix(SET)): _value(flag, text) for flag, text in flags.items()}


def _value(flag: str, text: str) -> Value:
    if flag.startswith(SET):
        return _written(flag, text)
    if flag.endswith("-options"):
        return _options(flag, text)
    if flag in PATHS:
        text = os.path.abspath(text)
    return Scalar(Place(flag), text, "bool" if flag == OBSERVE else "str")


def _written(flag: str, text: str) -> Value:
    value = parse(f"value: {text}", flag).entries["value"]
    return Scalar(Place(flag), value.text, value.kind) if isinstance(value, Scalar) else value


def _options(flag: str, text: str) -> Section:
    """The last of two with one name counts."""
    entries: dict[str, Value] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise Place(flag).error(f"expected name=value,name=value; found {pair}")
        entries[name] = Scalar(Place(flag, path=name), value, "str")
    return Section(Place(flag), entries, {name: Place(flag, path=name) for name in entries})
