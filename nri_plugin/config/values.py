"""Readers of the values of the configuration: each says what it expected, and where.

First single values, then the sections that the kubelet defines, by the kubelet's rules for each. Values of a later
version are known by name and refused, never ignored.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

from nri_plugin.config import yaml_tree as source
from nri_plugin.config.option_checks import GATES, known_names, option_value
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import CPU_MANAGER, Manager
from nri_plugin.model.options import REGISTRY, ReservedMemory, options_of
from nri_plugin.model.quantity import format_bytes, parse_quantity
from nri_plugin.model.sets import CPUSet, NUMANodeID

Word = TypeVar("Word", bound=StrEnum)

# Source: RFC 1123 label, as Kubernetes has it.
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
LARGEST_PORT = 65535
LEAST_HISTORY_BYTES = 256 << 10
"""Two segments, each of which begins with the machine and all allocations."""
LEAST_NOISE_PERIOD_S, MOST_NOISE_PERIOD_S = 5, 3600
"""A reading costs milliseconds. In an hour a counter of 32 bits goes around once at a million a second."""
_PLUGIN_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}\Z")


def either(*words: str) -> str:
    """The words as a sentence lists them: a, b or c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


LIKE, MISSPELT = 0.65, 0.87
"""How like two names are, of 1: a name may be meant, or is one with a letter or two wrong. Between two keys of the
kubelet that end differently, such as `memoryManagerPolicy` and a later `memoryManagerPolicyOptions`, it is 0.84.
"""

_RESOURCES = ("cpu", "gpu", "memor", "topolog", "device")
_ALIASES = dict.fromkeys(("reservedcpus", "systemreservedcpus"), "reservedsystemcpus")
"""The first is the kubelet's flag."""
_OTHER_WORDS = re.compile(r"[-_.]|(cpuset|cores)")


def closest(name: str, known: Iterable[str], cutoff: float = LIKE) -> str:
    """The known name that a misspelt one probably means; empty where none is close.

    Names of another resource are not close. Case and dashes decide only between equals, and cores are CPUs.
    """
    from difflib import SequenceMatcher  # only a mistake needs it

    def likeness(one: str) -> tuple[float, float]:
        return SequenceMatcher(None, words, _plain(one)).ratio(), SequenceMatcher(None, name, one).ratio()

    words, named = _plain(name), _resources(name)
    alike = [one for one in known if not (named and _resources(one)) or named & _resources(one)]
    best = max(alike, key=likeness, default="")
    return best if best and likeness(best)[0] >= cutoff else ""


def _plain(name: str) -> str:
    words = _OTHER_WORDS.sub(lambda found: "cpus" if found[1] else "", name.lower())
    return _ALIASES.get(words, words)


def _resources(name: str) -> set[str]:
    return {one for one in _RESOURCES if one in _plain(name)}


def unknown(place: source.Place, name: str, known: tuple[str, ...], what: str = "unknown key") -> ConfigError:
    """The error for a name that is not in `known`, with the closest one that is."""
    close = closest(name, known)
    return place.error(f"{what}; did you mean {close}?" if close else f"{what}; known are {either(*known)}")


def choice(words: type[Word]) -> Callable[[source.Value], Word]:
    """A reader of one of the words of an enumeration."""
    read = one_of(*words)
    return lambda value: words(read(value))


def one_of(*words: str) -> Callable[[source.Value], str]:
    """A reader of one of some words."""

    def read(value: source.Value) -> str:
        found = source.scalar(value)
        if found.kind == "str" and found.text in words:
            return found.text
        raise value.place.error(f"expected {either(*words)}, found {source.as_read(found)}")

    return read


def not_yet(value: source.Value) -> bool:
    """A flag of a later version: `true` is refused."""
    if source.flag(value):
        raise value.place.error("true is not yet supported by this version; set it to false or remove it")
    return False


def cpu_list(value: source.Value) -> CPUSet:
    """A kernel list such as `0-3,8`; the empty text is the empty set."""
    found = source.text_or_number(value)
    try:
        return CPUSet.parse(found)
    except ValueError as error:
        raise value.place.error(f"expected a CPU list such as 0-3,8: {error}") from None


def amount(value: source.Value) -> Fraction:
    """A Kubernetes quantity that is not negative, exact."""
    read = source.scalar(value)
    if read.kind not in ("str", "int", "float") and read.text:
        raise value.place.error(f"expected a quantity such as 500m or 2, found {source.as_read(read)}")
    found = source.text_or_number(value)
    try:
        size = parse_quantity(found)
    except ValueError as error:
        raise value.place.error(str(error)) from None
    if size < 0:
        raise value.place.error(f"{found} is negative; expected an amount such as 500m or 1Gi")
    return size


def whole_bytes(value: source.Value) -> int:
    """A Kubernetes quantity that is a whole number."""
    size = amount(value)
    if size.denominator != 1:
        raise value.place.error(f"{source.scalar(value).text} is no whole number of bytes")
    return int(size)


def history_bytes(value: source.Value) -> int:
    """0, or at least the size that a small node needs."""
    size = whole_bytes(value)
    if 0 < size < LEAST_HISTORY_BYTES:
        raise value.place.error(
            f"expected 0 for no history or at least {format_bytes(LEAST_HISTORY_BYTES)}, found {format_bytes(size)}"
        )
    return size


def noise_period(value: source.Value) -> int:
    """0, or seconds that make the cost of a reading small."""
    seconds = source.number(value)
    if seconds and not LEAST_NOISE_PERIOD_S <= seconds <= MOST_NOISE_PERIOD_S:
        raise value.place.error(
            f"expected 0 for no readings or {LEAST_NOISE_PERIOD_S} to {MOST_NOISE_PERIOD_S} seconds, found {seconds}"
        )
    return seconds


def absolute_path(value: source.Value) -> str:
    """A path from the root."""
    found = source.text(value)
    if not found.startswith("/") or "\0" in found:
        raise value.place.error(f"expected an absolute path, found {found or 'nothing'}")
    return found


def bind_address(value: source.Value) -> tuple[str, int] | None:
    """`HOST:PORT`, `:PORT` for every address, `[::1]:PORT`; the empty text is none. Names are not resolved here."""
    found = source.text(value)
    if not found:
        return None
    try:
        return host_and_port(found)
    except ValueError as error:
        raise value.place.error(str(error)) from None


def host_and_port(found: str) -> tuple[str, int]:
    """The host without brackets, and the port.

    Raises:
        ValueError: it is no such address.
    """
    host, colon, port = found.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isdecimal() or int(port) > LARGEST_PORT or (":" in bare) != (bare != host):
        raise ValueError(f"expected an address such as 127.0.0.1:9465 or :9465, found {found}")
    return bare, int(port)


def plugin_name(value: source.Value) -> str:
    """The name that the runtime logs; it is part of a file name."""
    found = source.text(value)
    if not _PLUGIN_NAME.match(found):
        raise value.place.error(
            f"expected up to 63 letters, digits, dashes, dots, underscores, found {found}"
        )
    return found


def plugin_index(value: source.Value) -> str:
    """Two digits that order plugins. Source: NRI, api.CheckPluginIndex."""
    found = source.scalar(value).text
    if not re.fullmatch(r"[0-9][0-9]", found):
        raise value.place.error(f'expected two digits such as "90", found {found or "nothing"}')
    return found


def namespaces(value: source.Value) -> frozenset[str]:
    """Names of Kubernetes namespaces."""
    names = set()
    for item in source.items(value):
        name = source.text(item)
        if not _NAMESPACE.match(name):
            raise item.place.error(f"{name or 'nothing'} is no name of a namespace")
        names.add(name)
    return frozenset(names)


LONGEST_PATTERN = 64
MOST_PATTERNS = 64


def patterns(value: source.Value) -> tuple[str, ...]:
    """Patterns of names of interrupts, with the wildcards of a shell."""
    found = []
    for item in source.items(value):
        text = source.text(item)
        if not 0 < len(text) <= LONGEST_PATTERN or not text.isprintable():
            raise item.place.error(
                f"expected a pattern of 1 to {LONGEST_PATTERN} characters such as nvme0q0 or eth*, found {text[:80] or 'nothing'}"
            )
        found.append(text)
    if len(found) > MOST_PATTERNS:
        raise value.place.error(f"expected at most {MOST_PATTERNS} patterns, found {len(found)}")
    return tuple(found)


# ---- sections of KubeletConfiguration

POD_LEVEL_GATE = "PodLevelResources"

FEATURE_GATES = frozenset(
    (
        *GATES,
        *(one.own_gate for one in REGISTRY.values() if one.own_gate),
        "CPUManager",
        "MemoryManager",
        POD_LEVEL_GATE,
    )
)
"""Source: the gates of kubelet 1.36 that concern these managers; CPUManager is one of older ones, stable since 1.26."""

RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
"""Resources that kubeReserved and systemReserved may hold. Source: kubelet, parseResourceList."""

EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
)

_PERCENTAGE = re.compile(r"[0-9]{1,3}(?:\.[0-9]+)?%\Z")


def reserved(value: source.Value) -> Mapping[str, Fraction]:
    """Amounts by resource. Source: kubelet, parseResourceList."""
    found = source.section(value)
    for name, place in found.keys.items():
        if name not in RESERVABLE:
            raise place.error(f"cannot be reserved here; expected {either(*RESERVABLE)}")
    return {name: amount(entry) for name, entry in found.entries.items()}


def eviction(value: source.Value) -> str | int | None:
    """The hard threshold of available memory: bytes, or the percentage as written; None where the list leaves it out.

    Source: kubelet; a list of thresholds replaces the default ones altogether.
    """
    found = source.section(value)
    for name, place in found.keys.items():
        if name not in EVICTION_SIGNALS:
            raise unknown(place, name, EVICTION_SIGNALS)
    memory = found.entries.get("memory.available")
    if memory is None:
        return None
    written = source.text_or_number(memory)
    return written if _PERCENTAGE.match(written) else whole_bytes(memory)


def section_reader(manager: Manager) -> Callable[[source.Value], Mapping[str, str]]:
    """A reader of a manager's options as written.

    Values of the CPU Manager's options are checked here, where their places are known. The Topology Manager's policy
    none never looks at its options, so their values are checked once the policy is known.
    """

    def read(value: source.Value) -> Mapping[str, str]:
        found = source.section(value)
        for name, place in found.keys.items():
            if name not in options_of(manager):
                raise unknown(
                    place, name, known_names(manager), f'unknown {manager.name} Policy option: "{name}"'
                )
            if manager is CPU_MANAGER:
                _check_option(manager, name, found.entries[name])
        return {name: source.scalar(entry).text for name, entry in found.entries.items()}

    return read


def _check_option(manager: Manager, name: str, value: source.Value) -> None:
    try:
        option_value(options_of(manager)[name], source.scalar(value).text)
    except ConfigError as error:
        raise value.place.error(error.detail) from None


def feature_gates(value: source.Value) -> Mapping[str, bool]:
    """The gates by name; only those that touch CPUs, memory and topology are known."""
    found = source.section(value)
    gates = {}
    for name, entry in found.entries.items():
        if name not in FEATURE_GATES:
            raise unknown(found.keys[name], name, tuple(sorted(FEATURE_GATES)))
        gates[name] = source.flag(entry)
    return gates


def reserved_memory(value: source.Value) -> tuple[ReservedMemory, ...]:
    """Memory kept for the system by NUMA node; no node and type twice, no amount of zero."""
    rows: list[ReservedMemory] = []
    for item in source.items(value):
        for row, place in _memory_rows(source.section(item)):
            if any((old.node, old.resource) == (row.node, row.resource) for old in rows):
                raise place.error(
                    f"numaNode {row.node} has {row.resource} twice; add the amounts up in one place"
                )
            rows.append(row)
    return tuple(rows)


def _memory_rows(item: source.Section) -> Iterator[tuple[ReservedMemory, source.Place]]:
    for name, place in item.keys.items():
        if name not in ("numaNode", "limits"):
            raise unknown(place, name, ("numaNode", "limits"))
    if not {"numaNode", "limits"} <= set(item.entries):
        raise item.place.error("needs both numaNode and limits")
    node = NUMANodeID(source.number(item.entries["numaNode"]))
    limits = source.section(item.entries["limits"])
    for resource, entry in limits.entries.items():
        place = limits.keys[resource]
        if resource != "memory" and not resource.startswith("hugepages-"):
            raise place.error("expected memory or hugepages-SIZE")
        size_bytes = whole_bytes(entry)
        if size_bytes == 0:
            raise entry.place.error("zero is nothing to reserve; remove the line")
        yield ReservedMemory(node, resource, size_bytes), place


def memory_node_place(tree: source.Section, node: NUMANodeID) -> source.Place | None:
    """The place where reservedMemory of a checked configuration names the node."""
    rows = (source.section(item) for item in source.items(tree.entries["reservedMemory"]))
    numbers = (row.entries["numaNode"] for row in rows)
    return next((value.place for value in numbers if source.number(value) == node), None)
