"""Which options of the CPU and Topology Managers go together, and on which machine: the kubelet's checks at start.

Values are texts as an operator writes them. What the kubelet refuses is refused with its words, so that
whoever knows them finds them again.

Source: kubelet v1.36 pkg/kubelet/cm/cpumanager/policy_options.go, policy_static.go,
    topologymanager/policy_options.go, topology_manager.go, scope.go.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import (
    Options,
    ReservedMemory,
    TopologyManagerPolicy,
    TopologyManagerScope,
    UncoreCacheFit,
)
from nri_plugin.model.topology import Topology
from nri_plugin.policy.search.mask_order import distances_of

FULL_PCPUS = "full-pcpus-only"
ACROSS_NUMA = "distribute-cpus-across-numa"
ACROSS_CORES = "distribute-cpus-across-cores"
BY_SOCKET = "align-by-socket"
STRICT = "strict-cpu-reservation"
BY_CACHE = "prefer-align-cpus-by-uncorecache"
CLOSEST = "prefer-closest-numa-nodes"
NODE_LIMIT = "max-allowable-numa-nodes"

CPU_OPTIONS: Mapping[str, str] = {
    FULL_PCPUS: "",
    STRICT: "",
    BY_CACHE: "",
    ACROSS_NUMA: "Beta",
    ACROSS_CORES: "Alpha",
    BY_SOCKET: "Alpha",
}
"""By name: the level whose feature gate must be on, none for stable options."""

TOPOLOGY_OPTIONS: Mapping[str, str] = {CLOSEST: "", NODE_LIMIT: ""}
"""The same for the Topology Manager."""

GATES: Mapping[str, bool] = {
    "CPUManagerPolicyOptions": True,
    "CPUManagerPolicyAlphaOptions": False,
    "CPUManagerPolicyBetaOptions": True,
    "TopologyManager": True,
    "TopologyManagerPolicyOptions": True,
    "TopologyManagerPolicyAlphaOptions": False,
    "TopologyManagerPolicyBetaOptions": True,
}
"""Feature gates that hide options, and their defaults in v1.36."""

NEVER_TOGETHER = (
    (FULL_PCPUS, ACROSS_CORES),
    (ACROSS_NUMA, ACROSS_CORES),
    (BY_CACHE, ACROSS_CORES),
    (BY_CACHE, ACROSS_NUMA),
)

SMALLEST_LIMIT = 8
"""Source: kubelet, defaultMaxAllowableNUMANodes."""

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))  # Source: Go, strconv.ParseBool
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


@dataclass(frozen=True, slots=True)
class TopologyChoice:
    """The Topology Manager's options, read.

    Attributes:
        prefer_closest: closer NUMA nodes win between equally many.
        node_limit: most NUMA nodes of a machine; None when not given.
    """

    prefer_closest: bool = False
    node_limit: int | None = None


def cpu_options_on(given: Mapping[str, str], gates: Mapping[str, bool] = GATES) -> frozenset[str]:
    """The names of the CPU Manager's options that are on.

    Raises:
        ConfigError: an unknown or hidden option, a value that is no boolean, two that exclude each other.
    """
    for name in given:
        _check_known("CPU Manager", name, CPU_OPTIONS)
        _check_visible("CPU Manager", "CPUManager", name, CPU_OPTIONS[name], given, gates)
    on = frozenset(name for name, text in given.items() if option_flag(name, text))
    for one, other in NEVER_TOGETHER:
        if {one, other} <= on:
            raise ConfigError(
                "", f"static policy options {one} and {other} can not be used at the same time; remove one"
            )
    return on


def topology_options_on(given: Mapping[str, str], gates: Mapping[str, bool] = GATES) -> TopologyChoice:
    """The Topology Manager's options; not asked for under its policy none, which has none.

    Raises:
        ConfigError: an unknown or hidden option, or a value that cannot be read.
    """
    for name in given:
        _check_known("Topology Manager", name, TOPOLOGY_OPTIONS)
        level = TOPOLOGY_OPTIONS[name]
        _check_visible("Topology Manager", "TopologyManager", name, level, given, gates)
    return TopologyChoice(
        CLOSEST in given and option_flag(CLOSEST, given[CLOSEST]),
        _node_limit(given[NODE_LIMIT]) if NODE_LIMIT in given else None,
    )


def _check_known(manager: str, name: str, known: Mapping[str, str]) -> None:
    if name not in known:
        raise ConfigError("", f'unknown {manager} Policy option: "{name}"; known are {", ".join(known)}')


def _check_visible(
    manager: str, prefix: str, name: str, level: str, given: Mapping[str, str], gates: Mapping[str, bool]
) -> None:
    gate = f"{prefix}PolicyOptions"
    if not gates.get(gate, GATES[gate]):
        options = " ".join(f"{key}:{text}" for key, text in sorted(given.items()))
        raise ConfigError(
            "", f'{manager} policy options map[{options}] require feature gates "{gate}" enabled'
        )
    gate = f"{prefix}Policy{level}Options"
    if not gates.get(gate, GATES[gate]):
        raise ConfigError(
            "",
            f'{manager} Policy {level}-level Options not enabled, but option "{name}" provided; '
            f"set featureGates {gate}: true or remove the option",
        )


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


def _node_limit(text: str) -> int:
    digits = text.removeprefix("-").removeprefix("+") if text[1:2].isdigit() else text
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(
            "",
            f'unable to convert policy option to integer "{NODE_LIMIT}": strconv.Atoi: parsing "{text}": '
            f"invalid syntax; expected a number of at least {SMALLEST_LIMIT}",
        )
    if int(text) < SMALLEST_LIMIT:
        raise ConfigError(
            "",
            f'the minimum value of "{NODE_LIMIT}" should not be less than {SMALLEST_LIMIT}, found {int(text)}; '
            "remove it for no limit at all",
        )
    return int(text)


def check_align_by_socket(policy: TopologyManagerPolicy) -> None:
    """Refuse align-by-socket beside a policy that knows only single NUMA nodes.

    Raises:
        ConfigError: it is.
    """
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        raise ConfigError(
            "",
            "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy "
            "option; remove it or choose another topologyManagerPolicy",
        )


def together_refusals(
    on: frozenset[str],
    topology: TopologyManagerPolicy,
    fit: UncoreCacheFit,
    *,
    is_strict: bool,
) -> Iterator[tuple[str, str]]:
    """Values that are each right and do not go together: the key to name, and why; after `cpu_options_on`.

    Args:
        on: the names of the CPU Manager's options that are on.
        topology: the Topology Manager's policy.
        fit: how uncore caches are chosen.
        is_strict: strictUncoreCache.
    """
    if BY_SOCKET in on:
        try:
            check_align_by_socket(topology)
        except ConfigError as error:
            yield "cpuManagerPolicyOptions", error.detail
    if is_strict and fit is not UncoreCacheFit.BEST:
        yield "strictUncoreCache", "goes only with uncoreCacheFit: best; set that too"
    spreading = on & {ACROSS_NUMA, ACROSS_CORES}
    if fit is UncoreCacheFit.BEST and spreading:
        yield "uncoreCacheFit", f"best packs CPUs and {min(spreading)} spreads them; turn one of them off"


def none_refusal(given: Mapping[str, str]) -> str:
    """Why the none policy does not start with these options."""
    options = " ".join(f"{name}:{text}" for name, text in sorted(given.items()))
    return f"None policy: received unsupported options=map[{options}]; set cpuManagerPolicy: static or remove them"


def machine_refusal(options: Options, topology: Topology) -> tuple[str, str] | None:
    """The first of the options that this machine cannot have: the key to name, and why; None where it can have all."""
    key = "cpuManagerPolicyOptions"
    try:
        if options.align_by_socket:
            check_sockets(len(topology.sockets), sum(1 for node in topology.nodes if node.cpus))
        key = "topologyManagerPolicyOptions"
        choice = TopologyChoice(options.prefer_closest_numa_nodes, options.max_allowable_numa_nodes)
        check_nodes(choice, len(topology.nodes), distances_known=distances_of(topology) is not None)
    except ConfigError as error:
        return key, error.detail
    return None


def check_sockets(sockets: int, nodes: int) -> None:
    """Refuse align-by-socket on a machine with more sockets than NUMA nodes.

    Raises:
        ConfigError: it has.
    """
    if sockets > nodes:
        raise ConfigError(
            "",
            "Align by socket is not compatible with hardware where number of sockets are more than number of "
            f"NUMA: {sockets} sockets, {nodes} NUMA nodes; remove align-by-socket",
        )


def check_nodes(choice: TopologyChoice, nodes: int, *, distances_known: bool) -> None:
    """Refuse a machine that the Topology Manager's options do not fit.

    Raises:
        ConfigError: it has more NUMA nodes than allowed, or its distances are needed and not known.
    """
    if choice.prefer_closest and not distances_known:
        raise ConfigError(
            "",
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor, which "
            f"{CLOSEST} needs: this machine tells none; remove the option",
        )
    if choice.node_limit is not None and nodes > choice.node_limit:
        raise ConfigError(
            "",
            f"unsupported on machines with more than {choice.node_limit} NUMA Nodes: this one has {nodes}; "
            f"raise {NODE_LIMIT} or remove it",
        )


def check_reserved_cpus(listed: frozenset[int], online: frozenset[int], count: int) -> None:
    """Refuse reserved CPUs that the machine does not have.

    Args:
        listed: CPUs by number; empty when the policy is to pick them.
        online: all CPUs of the machine.
        count: how many are to be reserved.

    Raises:
        ConfigError: a CPU that is not online, or not as many as wanted.
    """
    unknown = sorted(listed - online)
    if unknown:
        raise ConfigError(
            "",
            "unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: "
            f"{', '.join(map(str, unknown))}; reserve CPUs that are online",
        )
    have = len(listed or online)
    if have < count or (listed and have != count):
        raise ConfigError(
            "",
            f"unable to reserve the required amount of CPUs (size of {have} did not equal {count}); "
            "reserve fewer, or list as many as are wanted",
        )


def check_reserved_memory(reserved: Iterable[ReservedMemory]) -> None:
    """Refuse a static Memory Manager without any memory kept for the system.

    Raises:
        ConfigError: nothing of ordinary memory is reserved; huge pages do not count.
    """
    if not any(row.size_bytes for row in reserved if row.resource == "memory"):
        raise ConfigError(
            "",
            "you should specify the system reserved memory: Static needs memory kept for the system on at least "
            "one NUMA node; add reservedMemory",
        )


def topology_manager_refusals(
    policy: str, scope: str, given: Mapping[str, str], nodes: int, *, distances_known: bool, limit: int | None
) -> Iterator[str]:
    """Why a Topology Manager would not start with these words on a machine, in the kubelet's order.

    Args:
        policy: as written; none asks for nothing else.
        scope: as written.
        given: option texts by name.
        nodes: NUMA nodes of the machine.
        distances_known: whether the machine tells the distances between them.
        limit: most NUMA nodes where the options do not say; None for no limit.
    """
    if policy == TopologyManagerPolicy.NONE:
        return
    try:
        choice = topology_options_on(given)
        check_nodes(
            TopologyChoice(choice.prefer_closest, choice.node_limit or limit),
            nodes,
            distances_known=distances_known,
        )
    except ConfigError as error:
        yield error.detail
    if policy not in set(TopologyManagerPolicy):
        yield f'unknown policy: "{policy}"; known are {", ".join(TopologyManagerPolicy)}'
    if scope not in set(TopologyManagerScope):
        yield f'unknown scope: "{scope}"; known are {", ".join(TopologyManagerScope)}'
