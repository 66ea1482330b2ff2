"""A container that nobody created: the event that a runtime would send for it, and the options it is tried under."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from nri_plugin.config import option_checks
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.requests import MAX_SHARES, MIN_SHARES
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import (
    CPUManagerPolicy,
    FullPCPUsRule,
    IsolatedCPUs,
    MemoryManagerPolicy,
    Node,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyTieBreak,
    UncoreCacheFit,
    UncoreCacheRule,
)
from nri_plugin.model.quantity import format_bytes, parse_bytes, parse_cpu_milli
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.device_allocation import preferred_devices
from nri_plugin.policy.device_hints import Device, DeviceResource, device_totals
from nri_plugin.simulator.machine.description import Description
from nri_plugin.wire.nri.events import CreateContainer
from nri_plugin.wire.nri.messages import Container, Pod, Resources

UID = "what-if"
PERIOD_US = 100_000
MOST_CPUS = 1_000_000
MOST_BYTES = 1 << 60
"""Beyond any machine: more is a slip of the hand, not a question."""
_PARENTS = {
    "Guaranteed": "/kubepods/podwhat-if",
    "Burstable": "/kubepods/burstable/podwhat-if",
    "BestEffort": "/kubepods/besteffort/podwhat-if",
}
_SIZE = re.compile(r"([0-9]+[KMG])i\Z")

_FLAGS = {
    option_checks.FULL_PCPUS: "full_pcpus_only",
    option_checks.ACROSS_NUMA: "distribute_cpus_across_numa",
    option_checks.ACROSS_CORES: "distribute_cpus_across_cores",
    option_checks.BY_SOCKET: "align_by_socket",
    option_checks.STRICT: "strict_cpu_reservation",
    option_checks.BY_CACHE: "prefer_align_cpus_by_uncore_cache",
    option_checks.CLOSEST: "prefer_closest_numa_nodes",
    "strictUncoreCache": "strict_uncore_cache",
    "deviceProportionalCPUs": "device_proportional_cpus",
}
"""By name in the configuration: switches."""

_WORDS: Mapping[str, tuple[str, type[StrEnum]]] = {
    "cpuManagerPolicy": ("cpu_manager_policy", CPUManagerPolicy),
    "topologyManagerPolicy": ("topology_manager_policy", TopologyManagerPolicy),
    "topologyManagerScope": ("topology_manager_scope", TopologyManagerScope),
    "memoryManagerPolicy": ("memory_manager_policy", MemoryManagerPolicy),
    "uncoreCacheFit": ("uncore_cache_fit", UncoreCacheFit),
    "uncoreCacheRule": ("uncore_cache_rule", UncoreCacheRule),
    "fullPCPUsRule": ("full_pcpus_rule", FullPCPUsRule),
    "smtOddCounts": ("smt_odd_counts", SMTOddCounts),
    "topologyTieBreak": ("topology_tie_break", TopologyTieBreak),
    "isolatedCPUs": ("isolated_cpus", IsolatedCPUs),
}
"""By name in the configuration: choices between words."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is asked for, in the words of a command line; empty texts for nothing.

    Attributes:
        cpu: a quantity of CPUs.
        memory: a quantity of bytes.
        hugepages: (size such as `2Mi`, a quantity of bytes).
        devices: `RESOURCE=COUNT`, or `RESOURCE=COUNT@NODE,NODE` where they are.
        qos: the pod's class.
        namespace: of the pod.
    """

    cpu: str = ""
    memory: str = ""
    hugepages: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    qos: str = "Guaranteed"
    namespace: str = "default"


def changed(node: Node, given: Iterable[str]) -> Node:
    """The node with options `NAME=VALUE` over its own, by their names in the configuration.

    Raises:
        ConfigError: an unknown name, a value it does not take, or options that exclude each other.
    """
    options, reserved = node.options, node.reserved
    for one in given:
        name, equals, value = (part.strip() for part in one.partition("="))
        if not equals:
            raise ConfigError("--option", f"expected NAME=VALUE such as full-pcpus-only=true; found {one}")
        if name == "reservedSystemCPUs":
            reserved = _cpus(value, node)
        else:
            options = replace(options, **_option(name, value))
    found = replace(node, options=options, reserved=reserved)
    for key, detail in _refusals(found):
        raise ConfigError("--option", f"{key}: {detail}")
    return found


def event_of(wish: WhatIf, node: Node, description: Description | None = None) -> InformedCreate:
    """What a runtime would send, and what would be known beside it.

    Args:
        wish: what is asked for.
        node: the machine.
        description: with its devices, where the machine is described; they are all there to be given.

    Raises:
        ConfigError: an amount that is none, or a device that is not there or nowhere.
    """
    resources = _resources(wish)
    pod = Pod(
        id=UID,
        name="what-if",
        uid=UID,
        namespace=wish.namespace,
        cgroup_parent=_PARENTS[wish.qos],
        resources=resources,
    )
    container = Container(id=UID, name="container", pod_id=UID, resources=resources)
    return InformedCreate(CreateContainer(pod, container), devices=_devices(wish, node, description))


def _option(name: str, value: str) -> dict[str, Any]:
    if name in _FLAGS:
        return {_FLAGS[name]: _flag(name, value)}
    if name not in _WORDS:
        known = ", ".join(sorted((*_FLAGS, *_WORDS, "reservedSystemCPUs"), key=str.lower))
        raise ConfigError("--option", f"{name} is no option of placement; known are {known}")
    attribute, words = _WORDS[name]
    try:
        return {attribute: words(value)}
    except ValueError:
        expected = ", ".join(str(word) for word in words)
        raise ConfigError("--option", f"{name}: expected {expected}; found {value}") from None


def _flag(name: str, value: str) -> bool:
    try:
        return option_checks.option_flag(name, value)
    except ConfigError:
        raise ConfigError("--option", f"{name}: expected true or false, found {value}") from None


def _cpus(value: str, node: Node) -> CPUSet:
    try:
        cpus = CPUSet.parse(value)
    except ValueError as error:
        raise ConfigError("--option", f"reservedSystemCPUs: {error}") from None
    missing = cpus - node.topology.online
    if missing:
        detail = f"CPUs {missing} are not online, online are {node.topology.online}; reserve some of these"
        raise ConfigError("--option", f"reservedSystemCPUs: {detail}")
    return cpus


def _refusals(node: Node) -> Iterator[tuple[str, str]]:
    """Why no configuration may say so, by the rules of the configuration; gates are as open as they can be."""
    options = node.options
    given = {name: "true" for name in option_checks.CPU_OPTIONS if getattr(options, _FLAGS[name])}
    if options.cpu_manager_policy is CPUManagerPolicy.NONE and given:
        yield "cpuManagerPolicyOptions", option_checks.none_refusal(given)
    try:
        on = option_checks.cpu_options_on(given, dict.fromkeys(option_checks.GATES, True))
    except ConfigError as error:
        yield "cpuManagerPolicyOptions", error.detail
        return
    yield from option_checks.together_refusals(
        on,
        options.topology_manager_policy,
        options.uncore_cache_fit,
        is_strict=options.strict_uncore_cache,
    )
    refusal = option_checks.machine_refusal(options, node.topology)
    if refusal is not None:
        yield refusal


def _resources(wish: WhatIf) -> Resources:
    milli = _amount("--cpu", wish.cpu, parse_cpu_milli, MOST_CPUS * 1000, f"{MOST_CPUS} CPUs")
    return Resources(
        cpu_shares=min(MAX_SHARES, max(MIN_SHARES, milli * 1024 // 1000)),
        cpu_quota_us=milli * PERIOD_US // 1000 or None,
        cpu_period_us=PERIOD_US,
        memory_limit_bytes=_bytes("--memory", wish.memory) or None,
        hugepage_limits=tuple((_runtime_size(size), _pages(size, text)) for size, text in wish.hugepages),
    )


def _pages(size: str, text: str) -> int:
    """Bytes in whole pages, as the API server has it."""
    option, page = f"--hugepages-{size}", parse_bytes(size)
    amount = _bytes(option, text)
    if amount % page:
        below, above = (format_bytes(amount // page * page + more) for more in (0, page))
        raise ConfigError(option, f"{text} is no whole number of pages of {size}; ask for {below} or {above}")
    return amount


def _bytes(option: str, text: str) -> int:
    return _amount(option, text, parse_bytes, MOST_BYTES, format_bytes(MOST_BYTES))


def _runtime_size(size: str) -> str:
    """The runtime's word for a size of huge pages: `2MB` for `2Mi`."""
    match = _SIZE.match(size)
    if match is None:
        raise ConfigError("--hugepages", f"{size} is no size of huge pages such as 2Mi or 1Gi")
    return f"{match[1]}B"


def _amount(option: str, text: str, parse: Callable[[str], int], most: int, most_said: str) -> int:
    if not text:
        return 0
    try:
        number = parse(text)
    except ValueError as error:
        raise ConfigError(option, str(error)) from None
    if number > most:
        raise ConfigError(option, f"{text} is more than any machine has; ask for {most_said} or less")
    return number


def _devices(wish: WhatIf, node: Node, description: Description | None) -> tuple[DeviceResource, ...]:
    return tuple(_device(text, node, description) for text in wish.devices)


def _device(text: str, node: Node, description: Description | None) -> DeviceResource:
    resource, equals, rest = text.partition("=")
    count, _, places = rest.partition("@")
    if not equals or not count.isdecimal() or not 0 < int(count) <= 256:
        raise ConfigError("--device", f"expected RESOURCE=COUNT such as nvidia.com/gpu=2; found {text}")
    if places:
        return _placed(resource, int(count), places, node)
    return _given(resource, int(count), description)


def _placed(resource: str, count: int, places: str, node: Node) -> DeviceResource:
    """Devices where the caller says: one node for all, or one for each."""
    try:
        nodes = [NodeMask.parse(place) for place in places.split(",")]
    except ValueError as error:
        raise ConfigError("--device", f"{resource}: {error}") from None
    missing = [mask for mask in nodes if not mask <= node.topology.node_mask or not mask]
    if missing:
        raise ConfigError(
            "--device",
            f"{resource}: NUMA node {missing[0] or places} does not exist on this machine, "
            f"it has NUMA nodes {node.topology.node_mask}",
        )
    if len(nodes) not in {1, count}:
        raise ConfigError(
            "--device",
            f"{resource}: {count} devices on {len(nodes)} places; give one place for all, or one for each",
        )
    nodes = nodes * count if len(nodes) == 1 else nodes
    return DeviceResource(resource, tuple(Device(str(i), mask) for i, mask in enumerate(nodes)))


def _given(resource: str, count: int, description: Description | None) -> DeviceResource:
    """Devices as the kubelet would choose them on a described machine, where all are there to be given.

    Raises:
        ConfigError: nobody describes where they are, or there are fewer.
    """
    there = [one for one in (description.devices if description else ()) if one.resource == resource]
    if not there:
        raise ConfigError(
            "--device",
            f"where {resource} is attached is not known; say on which NUMA nodes: --device {resource}={count}@0",
        )
    if len(there) < count:
        raise ConfigError(
            "--device", f"{resource}: {count} wanted, the machine has {len(there)}; ask for fewer"
        )
    links = description.links if description else ()
    weights = {
        (min(link.one, link.other), max(link.one, link.other)): link.weight
        for link in sorted(links, key=lambda link: link.weight)
        if link.resource == resource
    }
    nodes = {one.id: one.nodes for one in there}
    chosen = preferred_devices(tuple(nodes), (), count, nodes, weights)
    totals = device_totals((mask, 1) for mask in nodes.values())
    return DeviceResource(resource, tuple(Device(name, nodes[name]) for name in chosen), totals)
