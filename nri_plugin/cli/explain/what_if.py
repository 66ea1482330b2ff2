"""The question "what if": the event that a runtime would send for such a container, and options to try it under.

Options have the names, values and checks of the configuration; see `model/options.py` and `config/option_checks.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nri_plugin.config import option_checks
from nri_plugin.config.checks import NONE_RESERVED
from nri_plugin.config.keys import DEFAULT_EVICTION_BYTES, OPTION_KEYS, written_value
from nri_plugin.config.values import closest
from nri_plugin.config.yaml_tree import Place, flag
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.requests import MAX_SHARES, MIN_SHARES
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import Affects, Option
from nri_plugin.model.options import (
    OPTION_BY_NAME,
    REGISTRY,
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    Options,
    ReservedMemory,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.quantity import format_bytes, parse_bytes, parse_cpu_milli
from nri_plugin.model.records import Amounts, ContainerFacts, PodFacts, QOSClass
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
"""More than any machine has: more is a typing error."""
_PARENTS = {
    "Guaranteed": "/kubepods/podwhat-if",
    "Burstable": "/kubepods/burstable/podwhat-if",
    "BestEffort": "/kubepods/besteffort/podwhat-if",
}

HUGE_PAGES = "hugepages-"
OPTION = "--option"
WITH = "--with"
RESERVED_CPUS = "reservedSystemCPUs"
ASKED: Mapping[str, Option] = {
    name: one
    for name, one in OPTION_BY_NAME.items()
    if one.affects is not Affects.KERNEL and (not one.is_derived or one.own_gate)
}
"""Options that may change an answer, by name in the configuration; one that is a feature gate by `featureGates.NAME`."""

NOTHING, CPU, MEMORY = "nothing", "cpu", "memory"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A container to ask about, in the words of a command line; empty texts for nothing.

    Attributes:
        cpu: a quantity of CPUs.
        memory: a quantity of bytes.
        hugepages: (`2Mi` or `1Gi`, a quantity of bytes).
        devices: `RESOURCE=COUNT`, or `RESOURCE=COUNT@NODE,NODE` where they are.
        qos: the pod's class.
        namespace: of the pod.
        pod_cpu: CPUs of the pod as a whole (`spec.resources`).
        pod_memory: bytes of the pod as a whole.
        pod_hugepages: pages of the pod as a whole.
        others: other containers of the pod: `NAME=QUANTITY,...` or `nothing`.
    """

    cpu: str = ""
    memory: str = ""
    hugepages: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    qos: str = "Guaranteed"
    namespace: str = "default"
    pod_cpu: str = ""
    pod_memory: str = ""
    pod_hugepages: tuple[tuple[str, str], ...] = ()
    others: tuple[str, ...] = ()

    @property
    def has_pod_resources(self) -> bool:
        """Whether the pod asks for anything as a whole."""
        return bool(self.pod_cpu or self.pod_memory or self.pod_hugepages)


def changed(node: Node, given: Iterable[str]) -> Node:
    """The node with options `NAME=VALUE` over its own, by their names in the configuration.

    Values are read and checked as those of the configuration, with feature gates on. A Memory Manager without
    reserved memory gets the smallest reservation, as in a simulation.

    Raises:
        ConfigError: an unknown name, a value it does not take, or options that exclude each other.
    """
    options, reserved = node.options, node.reserved
    for one in given:
        name, equals, value = (part.strip() for part in one.partition("="))
        if not equals:
            raise ConfigError(OPTION, f"expected NAME=VALUE such as full-pcpus-only=true; found {one}")
        if name == RESERVED_CPUS:
            reserved = _cpus(value, node)
        else:
            options = replace(options, **_option(name, value))
    found = replace(node, options=_with_reserved_memory(options, node), reserved=reserved)
    for key, detail in _refusals(found):
        raise ConfigError(OPTION, f"{key}: {detail}")
    return found


def event_of(wanted: WhatIf, node: Node, description: Description | None = None) -> InformedCreate:
    """The event that a runtime would send, with its devices.

    Args:
        wanted: the container.
        node: the machine.
        description: where the machine is described; all its devices are available.

    Raises:
        ConfigError: an amount that is none, or a device that is not there or nowhere.
    """
    own = _amounts("", wanted.cpu, wanted.memory, wanted.hugepages)
    others = [_other(text) for text in wanted.others]
    whole = None
    if wanted.has_pod_resources:
        whole = _amounts("pod-", wanted.pod_cpu, wanted.pod_memory, wanted.pod_hugepages)
        _refuse_too_little(whole, (own, *others))
    pod = Pod(
        id=UID,
        name="what-if",
        uid=UID,
        namespace=wanted.namespace,
        cgroup_parent=_PARENTS[wanted.qos],
        resources=_said(whole or _sum((own, *others))),
    )
    container = Container(id=UID, name="container", pod_id=UID, resources=_said(own))
    devices = tuple(device(text, node, description) for text in wanted.devices)
    if whole is None and not others:
        return InformedCreate(CreateContainer(pod, container), devices=devices)
    names = (container.name, *(f"other-{number}" for number in range(1, len(others) + 1)))
    parts = zip(names, (own, *others), strict=True)
    facts = PodFacts(
        UID, QOSClass(wanted.qos), tuple(ContainerFacts(name, amounts=one) for name, one in parts), whole
    )
    return InformedCreate(CreateContainer(pod, container), devices=devices, pod_devices=devices, facts=facts)


def doubts(wanted: WhatIf, node: Node) -> Iterator[str]:
    """Notes on a pod that asks for something as a whole: why it may get less than the reader expects."""
    options = node.options
    if not wanted.has_pod_resources:
        return
    if not options.pod_level_managers:
        gate = f"featureGates.{REGISTRY['pod_level_managers'].gate}"
        yield f"{gate} is off: no pod has CPUs or memory as a whole; try {OPTION} {gate}=true"
    elif options.topology_manager_scope is not TopologyManagerScope.POD:
        yield "under topologyManagerScope container no pod has CPUs or memory as a whole; try --scope pod"
    elif options.topology_manager_policy is TopologyManagerPolicy.NONE:
        yield "under topologyManagerPolicy none no pod has CPUs or memory as a whole; try --policy best-effort"
    if wanted.qos == QOSClass.GUARANTEED and not (wanted.pod_cpu and wanted.pod_memory):
        yield "Kubernetes calls such a pod Guaranteed only with both CPUs and memory: --pod-cpu and --pod-memory"
    if wanted.cpu and not wanted.memory:
        yield "only a container that asks for memory, too, has CPUs of its pod to itself: add --memory"


def _option(name: str, text: str) -> dict[str, Any]:
    option = ASKED.get(name)
    place = Place(OPTION, path=name)
    if option is None:
        known = tuple(sorted((*ASKED, RESERVED_CPUS), key=str.lower))
        close = closest(name, known)
        hint = f"did you mean {close}?" if close else f"known are {', '.join(known)}"
        raise ConfigError(OPTION, f"{name} is no option of placement; {hint}")
    if option.is_derived:
        return {option.attribute: flag(written_value(place, text))}
    if option.manager is None:
        return {option.attribute: OPTION_KEYS[name].read(written_value(place, text))}
    try:
        return {option.attribute: option_checks.option_value(option, text)}
    except ConfigError as error:
        raise place.error(error.detail) from None


def _cpus(value: str, node: Node) -> CPUSet:
    try:
        cpus = CPUSet.parse(value)
    except ValueError as error:
        raise ConfigError(OPTION, f"{RESERVED_CPUS}: {error}") from None
    topology = node.topology
    absent = cpus - topology.online - topology.offline
    if absent or (cpus and cpus.isdisjoint(topology.kernel_online)):
        wrong = "do not exist" if absent else "are not online"
        detail = f"CPUs {absent or cpus} {wrong}, online are {topology.kernel_online}; reserve some of these"
        raise ConfigError(OPTION, f"{RESERVED_CPUS}: {detail}")
    return cpus


def _with_reserved_memory(options: Options, node: Node) -> Options:
    if options.memory_manager_policy is not MemoryManagerPolicy.STATIC or options.reserved_memory:
        return options
    kept_bytes = options.kept_memory_bytes or DEFAULT_EVICTION_BYTES
    numa = next((one for one in node.topology.nodes if one.has_memory), node.topology.nodes[0])
    return replace(options, reserved_memory=(ReservedMemory(numa.id, "memory", kept_bytes),))


def _refusals(node: Node) -> Iterator[tuple[str, str]]:
    """Why no configuration may say so, by the rules of the configuration."""
    if node.options.cpu_manager_policy is CPUManagerPolicy.STATIC and not node.reserved:
        yield "cpuManagerPolicy", f"{NONE_RESERVED}; add --option {RESERVED_CPUS}={node.topology.first_core}"
    yield from option_checks.refusals(node.options)
    if node.options.memory_manager_policy is MemoryManagerPolicy.STATIC:
        for detail in option_checks.no_reserved_memory(node.options.reserved_memory):
            yield "reservedMemory", detail
    for _, detail in option_checks.absent_memory_nodes(node.options, node.topology):
        yield "reservedMemory", detail
    yield from option_checks.machine_refusals(node.options, node.topology)


def resources_of(milli: int, memory_bytes: int, pages: Iterable[tuple[str, int]]) -> Resources:
    """A request in the form of a runtime, which calls pages of `hugepages-2Mi` `2MB`.

    Args:
        milli: thousandths of a CPU, of request and limit.
        memory_bytes: the limit; 0 for none.
        pages: (resource, bytes) of huge pages.
    """
    return Resources(
        cpu_shares=min(MAX_SHARES, max(MIN_SHARES, milli * 1024 // 1000)),
        cpu_quota_us=milli * PERIOD_US // 1000 or None,
        cpu_period_us=PERIOD_US,
        memory_limit_bytes=memory_bytes or None,
        hugepage_limits=tuple(
            (f"{name.removeprefix(HUGE_PAGES).removesuffix('i')}B", size) for name, size in pages
        ),
    )


def _said(amounts: Amounts) -> Resources:
    return resources_of(amounts.cpu_request_milli, amounts.memory_limit_bytes, amounts.hugepages)


def _amounts(prefix: str, cpu: str, memory: str, pages: Iterable[tuple[str, str]]) -> Amounts:
    """Requests that equal limits. The options are called as the amounts, with a prefix."""
    milli, size = _cpus_of(f"--{prefix}cpu", cpu), _bytes(f"--{prefix}memory", memory)
    found = ((f"{HUGE_PAGES}{one}", _pages(f"--{prefix}{HUGE_PAGES}{one}", one, text)) for one, text in pages)
    return Amounts(milli, milli, size, size, tuple(found))


def _other(text: str) -> Amounts:
    """Another container of the pod: `cpu=500m,memory=64Mi`, or `nothing`."""
    given: dict[str, str] = {}
    for pair in text.split(",") if text != NOTHING else ():
        name, equals, value = (part.strip() for part in pair.partition("="))
        if name not in {CPU, MEMORY} or not equals or not value:
            raise ConfigError(
                WITH, f"expected amounts such as cpu=500m,memory=64Mi, or {NOTHING}; found {text}"
            )
        given[name] = value
    milli, size = _cpus_of(WITH, given.get(CPU, "")), _bytes(WITH, given.get(MEMORY, ""))
    return Amounts(milli, milli, size, size)


def _sum(parts: Iterable[Amounts]) -> Amounts:
    milli = size = 0
    pages: dict[str, int] = {}
    for one in parts:
        milli += one.cpu_request_milli
        size += one.memory_limit_bytes
        for name, amount in one.hugepages:
            pages[name] = pages.get(name, 0) + amount
    return Amounts(milli, milli, size, size, tuple(pages.items()))


def _refuse_too_little(whole: Amounts, parts: Iterable[Amounts]) -> None:
    """Source: Kubernetes API validation, requests of containers add up to no more than those of their pod."""
    total, pages = _sum(parts), dict(whole.hugepages)
    for option, asked, needed, words in (
        ("cpu", whole.cpu_request_milli, total.cpu_request_milli, _in_cpus),
        ("memory", whole.memory_limit_bytes, total.memory_limit_bytes, format_bytes),
        *((name, pages.get(name, 0), size, format_bytes) for name, size in total.hugepages),
    ):
        if 0 < asked < needed:
            raise ConfigError(
                f"--pod-{option}",
                f"{words(asked)} is less than its containers ask for, so the API server accepts no such pod; "
                f"ask for {words(needed)} or more",
            )


def _in_cpus(milli: int) -> str:
    return f"{milli / 1000:.10g}"


def _cpus_of(option: str, text: str) -> int:
    return _amount(option, text, parse_cpu_milli, MOST_CPUS * 1000, f"{MOST_CPUS} CPUs")


def _pages(option: str, size: str, text: str) -> int:
    """Bytes in whole pages, as the API server has it."""
    page = parse_bytes(size)
    amount = _bytes(option, text)
    if amount % page:
        below, above = (format_bytes(amount // page * page + more) for more in (0, page))
        raise ConfigError(option, f"{text} is no whole number of pages of {size}; ask for {below} or {above}")
    return amount


def _bytes(option: str, text: str) -> int:
    return _amount(option, text, parse_bytes, MOST_BYTES, format_bytes(MOST_BYTES))


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


def device(text: str, node: Node, description: Description | None) -> DeviceResource:
    """Devices of `RESOURCE=COUNT`, which a described machine places, or of `RESOURCE=COUNT@NODES`.

    Raises:
        ConfigError: it has another form, or names a NUMA node or a resource that is not there.
    """
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
    """Devices as the kubelet would choose them on a described machine, where all are available.

    Raises:
        ConfigError: the description has none of them, or fewer.
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
