"""The configuration of a simulation: from a file, from the scenario, or the agent's defaults.

The agent requires reserved CPUs and has no default for them. If none are configured, a simulation reserves the first
core, and reports that.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nri_plugin.config import yaml_tree as source
from nri_plugin.config.checks import Capacity
from nri_plugin.config.keys import PLACE_KEYS, SET
from nri_plugin.config.loading import NO_FLAGS, Config, load_hint_providers, load_text
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import REGISTRY, Node
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.simulate.simulation import Configuration
from nri_plugin.simulator.simulate.steps import read_text

DEFAULTS = "defaults"
LEAST = "cpuManagerPolicy: static"
"""The default of the agent."""
RESERVED_MEMORY = "[{numaNode: %d, limits: {memory: 100Mi}}]"
"""The default of evictionHard, which the sum of reserved memory must equal."""

GATES = "featureGates"
RESERVING = frozenset({"reservedSystemCPUs", "kubeReserved", "systemReserved"})
HOW = "say others with --set reservedSystemCPUs="

_TALK = frozenset({"pluginName", "pluginIndex", "logFormat", "logLevel"})
IRRELEVANT = PLACE_KEYS | _TALK
"""Keys that no placement depends on."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A configuration for a machine.

    Attributes:
        config: as the agent reads it.
        node: machine and options.
        shown: for the report.
    """

    config: Config
    node: Node
    shown: Configuration


def choose(
    topology: Topology,
    file: str | None = None,
    said: str | None = None,
    sets: Mapping[str, str] = NO_FLAGS,
    said_in: str = "",
) -> Chosen:
    """The configuration of a file, else that of the scenario, else the defaults; `sets` wins over each.

    Args:
        topology: the machine.
        file: the agent's own configuration file.
        said: the configuration in the scenario, None for none; reserved CPUs may be missing.
        sets: values of `--set` by key.
        said_in: the scenario's file, for errors.

    Raises:
        ConfigError: anything in it is wrong, or it does not fit the machine.
    """
    text, where = LEAST, DEFAULTS
    if file is not None:
        text, where = read_text(file), file
    elif said is not None:
        text, where = said, said_in
    shown_sets, why = dict(sets), f"as {where} says"
    if file is None:
        sets, why = _completed(topology, text, where, sets)
    flags = {f"{SET}{key}": value for key, value in sets.items()}
    config = load_text(text, where, flags, Capacity.of(topology))
    node = config.node(topology)
    node = Node(node.topology, node.options, node.reserved, load_hint_providers())
    name = ", ".join([where, *(f"{key}={value}" for key, value in shown_sets.items())])
    shown = Configuration(name, _said(config), str(node.reserved or config.reserved_system_cpus), why)
    return Chosen(config, node, shown)


def parse_set(word: str, option: str = "--set") -> tuple[str, str]:
    """Split `KEY=VALUE`.

    Raises:
        ConfigError: there is no equals sign, or nothing before it.
    """
    key, equals, value = word.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            option, f"expected KEY=VALUE such as topologyManagerPolicy=restricted, found {word}"
        )
    return key.strip(), value.strip()


def parse_sets(words: Iterable[str], option: str = "--set") -> dict[str, str]:
    """The values by key; policy options may be named alone, `full-pcpus-only=true`, feature gates as `featureGates.NAME=true`.

    Raises:
        ConfigError: a word is not KEY=VALUE.
    """
    managers = {one.name: one.manager.key for one in REGISTRY.values() if one.manager is not None}
    found: dict[str, str] = {}
    options: dict[str, dict[str, str | bool]] = {}
    for word in words:
        key, value = parse_set(word, option)
        above, _, gate = key.partition(".")
        if key in managers:
            options.setdefault(managers[key], {})[key] = value
        elif above == GATES and gate:
            options.setdefault(GATES, {})[gate] = {"true": True, "false": False}.get(value, value)
        else:
            found[key] = value
    return found | {key: json.dumps(rows) for key, rows in options.items()}


def _completed(
    topology: Topology, text: str, where: str, sets: Mapping[str, str]
) -> tuple[Mapping[str, str], str]:
    """`sets` with values that are required, and a sentence that says where the reserved CPUs come from."""
    keys = {*source.parse(text, where).entries, *sets}
    added = _memory(topology, keys, sets)
    if not keys.isdisjoint(RESERVING):
        return {**added, **sets}, "as --set says" if "reservedSystemCPUs" in sets else f"as {where} says"
    core = str(topology.first_core)
    return {**added, "reservedSystemCPUs": core, **sets}, f"the first core, by default; {HOW}{core}"


def _memory(topology: Topology, keys: Collection[str], sets: Mapping[str, str]) -> dict[str, str]:
    """The smallest valid reservedMemory, if `--set` chooses the memory policy Static."""
    if sets.get("memoryManagerPolicy") != "Static" or "reservedMemory" in keys:
        return {}
    node = next((one.id for one in topology.nodes if one.has_memory and one.cpus), topology.nodes[0].id)
    return {"reservedMemory": RESERVED_MEMORY % node}


def _said(config: Config) -> dict[str, str]:
    """Configured values by key, on one line each."""
    return {key: _flat(value) for key, value in config.written.entries.items() if key not in IRRELEVANT}


def _flat(value: source.Value) -> str:
    if isinstance(value, source.Section):
        return "{" + ", ".join(f"{key}: {_flat(entry)}" for key, entry in value.entries.items()) + "}"
    if isinstance(value, source.Sequence):
        return "[" + ", ".join(map(_flat, value.items)) + "]"
    return value.text
