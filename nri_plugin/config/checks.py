"""Checks that involve more than one key, and the amounts kept for the system, by the kubelet's rules."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from struct import pack, unpack
from typing import Any, NamedTuple, Self

from nri_plugin.config import option_checks
from nri_plugin.config.keys import DEFAULT_EVICTION_BYTES, Settings
from nri_plugin.config.values import POD_LEVEL_GATE
from nri_plugin.config.yaml_tree import Place
from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import CPU_MANAGER, MANAGERS, Manager
from nri_plugin.model.options import REGISTRY, CPUManagerPolicy, MemoryManagerPolicy, options_of
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.topology import Topology

HOST_MOUNT = "/host"
"""The mount of the host's /sys in a container of ours; see deploy/daemonset.yaml."""

NODE_DIR = "/sys/devices/system/node"
FIRST_CORE = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"
"""Source: Linux, Documentation/ABI/stable/sysfs-devices-system-cpu; core_cpus_list since 4.18 is the same."""

NONE_RESERVED = "static needs CPUs kept for the system, none are reserved"

PlaceOf = Callable[[str], Place]


class Capacity(NamedTuple):
    """The machine that a configuration is for, as far as the checks need it. It need not be this computer.

    Attributes:
        memory_bytes: of the machine; 0 where that is unknown.
        first_core: all threads of the first core, as the kernel lists them.
        first_memory_node: the lowest NUMA node with memory.
    """

    memory_bytes: int
    first_core: str
    first_memory_node: int

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """Of a described or recorded machine."""
        sizes = [node.memory_bytes for node in topology.nodes]
        total_bytes = 0 if None in sizes else sum(size or 0 for size in sizes)
        node = next((node.id for node in topology.nodes if node.has_memory), 0)
        return cls(total_bytes, str(topology.first_core), node)

    @classmethod
    def below(cls, root: str) -> Self:
        """Of the machine whose `sys` and `proc` are below a root."""
        return cls(memory_capacity(root), first_core(root), first_memory_node(root))


def violations(settings: Settings, place_of: PlaceOf, machine: Capacity) -> Iterator[ConfigError]:
    """Errors of values that are each right by themselves."""
    yield from _cpu_rules(settings, place_of, machine)
    yield from _option_rules(settings, place_of)
    yield from _memory_rules(settings, place_of, machine)
    yield from _port_rules(settings, place_of)


def reserved_cpu_count(settings: Settings) -> int:
    """The number of CPUs kept for the system.

    Source: kubelet; reservedSystemCPUs replaces the cpu amounts of kubeReserved and systemReserved, whose
        sum counts up to the next whole CPU.
    """
    if settings.reserved_system_cpus:
        return len(settings.reserved_system_cpus)
    return ceil(_total(settings, "cpu"))


def _total(settings: Settings, resource: str) -> Fraction:
    nothing = Fraction(0)
    return settings.kube_reserved.get(resource, nothing) + settings.system_reserved.get(resource, nothing)


def _cpu_rules(settings: Settings, place_of: PlaceOf, machine: Capacity) -> Iterator[ConfigError]:
    is_static = settings.options.cpu_manager_policy is CPUManagerPolicy.STATIC
    given = settings.sections.get(CPU_MANAGER.key, {})
    if is_static and reserved_cpu_count(settings) == 0:
        yield place_of("cpuManagerPolicy").error(
            f"{NONE_RESERVED}; add reservedSystemCPUs: '{machine.first_core}', "
            "or a cpu amount to kubeReserved or systemReserved"
        )
    if not is_static and given:
        yield place_of(CPU_MANAGER.key).error(option_checks.none_refusal(given))


def _option_rules(settings: Settings, place_of: PlaceOf) -> Iterator[ConfigError]:
    yield from _gate_rules(settings.feature_gates, place_of)
    for name, one in options_of(None).items():
        if one.gate and one.is_changed(settings.options) and not settings.feature_gates.get(one.gate, True):
            yield place_of(name).error(
                f"{name} {one.text(settings.options)} requires feature gate {one.gate}; set it to true, or "
                f"{name} to {one.default}"
            )
    options = settings.options
    for manager in MANAGERS:
        try:
            options = replace(options, **section_values(settings, manager))
        except ConfigError as error:
            yield place_of(manager.key).error(error.detail)
    for key, detail in option_checks.refusals(options):
        yield place_of(key).error(detail)


def _gate_rules(gates: Mapping[str, bool], place_of: PlaceOf) -> Iterator[ConfigError]:
    """Source: kubelet, the dependencies of its feature gates; the first words are its own."""
    needed, gate = POD_LEVEL_GATE, REGISTRY["pod_level_managers"].gate
    if gates.get(gate, False) and not gates.get(needed, True):
        yield place_of("featureGates").error(
            f"{gate} is enabled, but depends on features that are disabled: [{needed}]; set {needed} to true, or {gate} to "
            "false"
        )


def section_values(settings: Settings, manager: Manager) -> dict[str, Any]:
    """The policy options of a manager by field of `Options`; under its policy none they have no effect.

    Raises:
        ConfigError: a hidden option, or a value that it does not take.
    """
    if getattr(settings.options, manager.policy) == "none":
        return {}
    given = settings.sections.get(manager.key, {})
    return option_checks.option_values(manager, given, settings.feature_gates)


def _port_rules(settings: Settings, place_of: PlaceOf) -> Iterator[ConfigError]:
    """Probes have a port of their own, so that no client of the other can make one fail."""
    metrics, healthz = settings.metrics_bind_address, settings.health_probe_bind_address
    if settings.cpu_noise_period_seconds and not metrics:
        yield place_of("cpuNoisePeriodSeconds").error(
            "readings are only for metrics, which are off; add metricsBindAddress, or use nri-pin noise"
        )
    if metrics and healthz and metrics[1] == healthz[1] != 0:
        yield place_of("healthProbeBindAddress").error(
            f"port {healthz[1]} is that of metricsBindAddress; choose another port for probes"
        )


def _memory_rules(settings: Settings, place_of: PlaceOf, machine: Capacity) -> Iterator[ConfigError]:
    reserved = settings.options.reserved_memory
    if settings.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return
    place = place_of("reservedMemory" if reserved else "memoryManagerPolicy")
    if isinstance(settings.eviction_hard, str) and not machine.memory_bytes:
        yield place_of("evictionHard").error(
            f"memory.available {settings.eviction_hard}: how much memory this machine has cannot be read; "
            "write the amount, such as 100Mi"
        )
    elif not reserved and kept_bytes(settings, machine):
        yield place.error(
            "Static needs reservedMemory, as much as kubeReserved + systemReserved + evictionHard keep; add these "
            "lines:",
            _memory_lines(settings, machine),
        )
    else:
        refused = list(option_checks.no_reserved_memory(reserved))
        yield from map(place.error, refused)
        if not refused:
            yield from _memory_sums(settings, eviction_bytes(settings, machine), place)


def _memory_lines(settings: Settings, machine: Capacity) -> tuple[str, ...]:
    """The smallest reservedMemory that goes with the rest, on the first NUMA node with memory."""
    kept = format_bytes(kept_bytes(settings, machine))
    return "reservedMemory:", f"- numaNode: {machine.first_memory_node}", f"  limits: {{memory: {kept}}}"


def kept_bytes(settings: Settings, machine: Capacity) -> int:
    """Memory that kubeReserved, systemReserved and evictionHard keep of the node as a whole."""
    return ceil(_total(settings, "memory")) + eviction_bytes(settings, machine)


def machine_root() -> str:
    """The folder that holds this machine's sys: `/host` in a container of ours, else `/`."""
    return next(present(HOST_MOUNT, NODE_DIR), "/")


def first_core(root: str) -> str:
    """All threads of the core of CPU 0 below a root, as the kernel lists them; `0` where it does not say."""
    try:
        with open(f"{root}{FIRST_CORE}", encoding="ascii") as file:
            text = file.read().strip()
            return text if bits.parse_list(text) else "0"
    except (OSError, ValueError):
        return "0"


def memory_capacity(root: str) -> int:
    """Bytes of memory of the machine below a root; 0 where the kernel does not say.

    A container of ours has no mount of the host's proc, but its own meminfo shows the host's memory.
    """
    for proc in (root, "/") if root == HOST_MOUNT else (root,):
        try:
            with open(os.path.join(proc, "proc/meminfo"), encoding="ascii") as file:
                return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemTotal:"))
        except (OSError, ValueError, LookupError, StopIteration):
            continue
    return 0


def first_memory_node(root: str) -> int:
    """The lowest NUMA node with memory below a root; 0 where the kernel does not say."""
    try:
        with open(f"{root}{NODE_DIR}/has_memory", encoding="ascii") as file:
            return max(0, bits.lowest(bits.parse_list(file.read())))
    except (OSError, ValueError):
        return 0


def present(mount: str, below: str) -> Iterator[str]:
    """The mount, if it has that folder."""
    if os.path.isdir(mount + below):
        yield mount


def eviction_bytes(settings: Settings, machine: Capacity) -> int:
    """Memory that eviction keeps free; 0 where its list of signals leaves memory out."""
    if settings.eviction_hard is None:
        return DEFAULT_EVICTION_BYTES if settings.merge_default_eviction_settings else 0
    if isinstance(settings.eviction_hard, int):
        return settings.eviction_hard
    return share_bytes(settings.eviction_hard, machine.memory_bytes)


def share_bytes(percentage: str, capacity_bytes: int) -> int:
    """A percentage such as `5%` of a node's memory.

    Source: kubelet v1.36 eviction/helpers.go: a percentage is a 32-bit float of the capacity, cut to whole bytes.
    """
    (share,) = unpack("f", pack("f", float(percentage.removesuffix("%")) / 100))
    return int(capacity_bytes * share)


def _memory_sums(settings: Settings, evicted_bytes: int, place: Place) -> Iterator[ConfigError]:
    """Errors of reservedMemory that does not add up to the memory kept of the node as a whole, by resource.

    The scheduler sees the total and the placement sees the NUMA nodes: with other sums they would disagree about how
    much memory containers may have.
    """
    rows = settings.options.reserved_memory
    for resource in sorted({row.resource for row in rows}):
        by_node = sum(row.size_bytes for row in rows if row.resource == resource)
        as_a_whole = _total(settings, resource) + (evicted_bytes if resource == "memory" else 0)
        if by_node != as_a_whole:
            yield place.error(
                f"{resource} adds up to {format_bytes(by_node)} over the NUMA nodes, but kubeReserved + systemReserved + "
                f"evictionHard keep {format_bytes(ceil(as_a_whole))}; "
                + (
                    "make the two equal"
                    if resource == "memory"
                    else "huge pages cannot be kept back, remove them"
                )
            )
