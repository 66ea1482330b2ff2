"""Which values of options go together, and on which machine: the kubelet's checks at start, and ours.

The rows of the options are in `model/options.py`; here are the rules that involve several of them or the machine.
The configuration and the what-ifs of `explain` go through the same functions. A value that the kubelet refuses is
refused with the kubelet's words, so that operators recognize them.

Source: kubelet v1.36 pkg/kubelet/cm/cpumanager/policy_options.go, policy_static.go,
    topologymanager/policy_options.go, topology_manager.go, scope.go.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import CPU_MANAGER, MANAGERS, TOPOLOGY_MANAGER, Level, Manager, Option
from nri_plugin.model.options import (
    CPUManagerPolicy,
    Options,
    ReservedMemory,
    TopologyManagerPolicy,
    UncoreCacheFit,
    options_of,
)
from nri_plugin.model.sets import NodeMask, NUMANodeID
from nri_plugin.model.topology import Topology
from nri_plugin.policy.search.mask_order import distances_of

GATES: Mapping[str, bool] = {
    "TopologyManager": True,
    **{
        gate: is_on
        for manager in MANAGERS
        for gate, is_on in (
            (manager.options_gate, True),
            (f"{manager.gate}PolicyAlphaOptions", False),
            (f"{manager.gate}PolicyBetaOptions", True),
        )
    },
}
"""Feature gates that hide options, and their defaults in v1.36."""

NEVER_TOGETHER = tuple(
    (name, other) for name, option in options_of(CPU_MANAGER).items() for other in option.excludes
)
"""Pairs of options of the CPU Manager; of two pairs the kubelet names the first."""

SMALLEST_LIMIT = 8
"""Source: kubelet, defaultMaxAllowableNUMANodes."""

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))  # Source: Go, strconv.ParseBool
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_LEVELS = tuple(Level)


def known_names(manager: Manager) -> tuple[str, ...]:
    """The names of a manager's options, the stable ones first."""
    rows = options_of(manager)
    return tuple(sorted(rows, key=lambda name: _LEVELS.index(rows[name].level)))


def option_values(
    manager: Manager, given: Mapping[str, str], gates: Mapping[str, bool] = GATES
) -> dict[str, Any]:
    """The values of a manager's options by field of `Options`.

    The Topology Manager's policy none never looks at its options, so this is not called for it.

    Raises:
        ConfigError: an unknown or hidden option, or a value that it does not take.
    """
    rows = options_of(manager)
    for name in given:
        if name not in rows:
            known = ", ".join(known_names(manager))
            raise ConfigError("", f'unknown {manager.name} Policy option: "{name}"; known are {known}')
        _check_visible(rows[name], manager, given, gates)
    return {rows[name].attribute: option_value(rows[name], text) for name, text in given.items()}


def _check_visible(
    option: Option, manager: Manager, given: Mapping[str, str], gates: Mapping[str, bool]
) -> None:
    gate = manager.options_gate
    if not gates.get(gate, GATES[gate]):
        raise ConfigError(
            "", f'{manager.name} policy options {_go_map(given)} require feature gates "{gate}" enabled'
        )
    gate = option.gate
    if not gates.get(gate, GATES[gate]):
        raise ConfigError(
            "",
            f'{manager.name} Policy {option.level}-level Options not enabled, but option "{option.name}" provided; '
            f"set featureGates {gate}: true or remove the option",
        )


def _go_map(given: Mapping[str, str]) -> str:
    return f"map[{' '.join(f'{name}:{text}' for name, text in sorted(given.items()))}]"


def option_value(option: Option, text: str) -> Any:
    """The value of a manager's option, by its type.

    Raises:
        ConfigError: it takes other values.
    """
    if option.kind is bool:
        return option_flag(option.name, text)
    if isinstance(option.kind, type) and issubclass(option.kind, StrEnum):
        return _option_word(option.name, option.kind, text)
    return _node_limit(option.name, text)


def option_flag(name: str, text: str) -> bool:
    """The value of an option, as Go reads a boolean.

    Raises:
        ConfigError: it is none.
    """
    if text not in _TRUE | _FALSE:
        raise ConfigError(
            "",
            f'bad value for option "{name}": strconv.ParseBool: parsing "{text}": invalid syntax; '
            "expected true or false",
        )
    return text in _TRUE


def _option_word(name: str, words: type[StrEnum], text: str) -> StrEnum:
    if text not in set(words):
        raise ConfigError("", f'bad value for option "{name}": expected {", ".join(words)}, found {text}')
    return words(text)


def _node_limit(name: str, text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+") if text[1:2].isdigit() else text
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(
            "",
            f'unable to convert policy option to integer "{name}": strconv.Atoi: parsing "{text}": '
            f"invalid syntax; expected a number of at least {SMALLEST_LIMIT}",
        )
    if int(text) < SMALLEST_LIMIT:
        raise ConfigError(
            "",
            f'the minimum value of "{name}" should not be less than {SMALLEST_LIMIT}, found {int(text)}; '
            "remove it for no limit at all",
        )
    return int(text)


def refusals(options: Options) -> Iterator[tuple[str, str]]:
    """Values that are each right and do not go together: the key to name, and why."""
    on = {name for name, option in options_of(CPU_MANAGER).items() if option.value(options) is True}
    if options.cpu_manager_policy is CPUManagerPolicy.NONE and on:
        yield CPU_MANAGER.key, none_refusal(dict.fromkeys(on, "true"))
    clash = next((pair for pair in NEVER_TOGETHER if on.issuperset(pair)), None)
    if clash:
        yield (
            CPU_MANAGER.key,
            f"static policy options {clash[0]} and {clash[1]} can not be used at the same time; remove one",
        )
    if options.align_by_socket and options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield (
            CPU_MANAGER.key,
            (
                "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy "
                "option; remove it or choose another topologyManagerPolicy"
            ),
        )
    packs = options.uncore_cache_fit is UncoreCacheFit.BEST
    if options.strict_uncore_cache and not packs:
        yield "strictUncoreCache", "goes only with uncoreCacheFit: best; set that too"
    spreading = on & {"distribute-cpus-across-numa", "distribute-cpus-across-cores"}
    if packs and spreading:
        yield "uncoreCacheFit", f"best packs CPUs and {min(spreading)} spreads them; turn one of them off"


def none_refusal(given: Mapping[str, str]) -> str:
    """Why the none policy does not start with these options."""
    return (
        f"None policy: received unsupported options={_go_map(given)}; "
        "set cpuManagerPolicy: static or remove them"
    )


def machine_refusals(options: Options, topology: Topology) -> Iterator[tuple[str, str]]:
    """Options that this machine cannot have: the key to name, and why."""
    if options.align_by_socket:
        sockets, nodes = len(topology.sockets), sum(1 for node in topology.nodes if node.cpus)
        yield from ((CPU_MANAGER.key, detail) for detail in socket_refusals(sockets, nodes))
    if options.topology_manager_policy is not TopologyManagerPolicy.NONE:
        found = node_refusals(
            options, len(topology.nodes), distances_known=distances_of(topology) is not None
        )
        yield from ((TOPOLOGY_MANAGER.key, detail) for detail in found)


def socket_refusals(sockets: int, nodes: int) -> Iterator[str]:
    """Why align-by-socket does not go with a machine: it has more sockets than NUMA nodes with CPUs."""
    if sockets > nodes:
        yield (
            "Align by socket is not compatible with hardware where number of sockets are more than number of "
            f"NUMA: {sockets} sockets, {nodes} NUMA nodes; remove align-by-socket"
        )


def node_refusals(options: Options, nodes: int, *, distances_known: bool) -> Iterator[str]:
    """Why the Topology Manager's options do not go with a machine of so many NUMA nodes."""
    if options.prefer_closest_numa_nodes and not distances_known:
        yield (
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor, which "
            "prefer-closest-numa-nodes needs: this machine tells none; remove the option"
        )
    limit = options.max_allowable_numa_nodes
    if limit is not None and nodes > limit:
        yield (
            f"unsupported on machines with more than {limit} NUMA Nodes: this one has {nodes}; "
            "raise max-allowable-numa-nodes or remove it"
        )


def absent_memory_nodes(options: Options, topology: Topology) -> Iterator[tuple[NUMANodeID, str]]:
    """NUMA nodes of reservedMemory that the machine does not have, and why each is refused."""
    known = NodeMask.from_ids(topology.node_ids)
    for one in options.reserved_memory:
        if one.node not in known:
            yield (
                one.node,
                f"NUMA node {one.node} does not exist on this machine, it has NUMA nodes {known}",
            )


def no_reserved_memory(reserved: Iterable[ReservedMemory]) -> Iterator[str]:
    """Why a static Memory Manager does not start: no ordinary memory is reserved; huge pages do not count."""
    if not any(one.size_bytes for one in reserved if one.resource == "memory"):
        yield (
            "you should specify the system reserved memory: Static needs memory kept for the system on at least "
            "one NUMA node; add reservedMemory"
        )
