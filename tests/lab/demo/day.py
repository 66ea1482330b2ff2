"""The scenario of `hack/demo`, in sizes that fit its machine.

The scenario is a template. Its sizes are whole cores and fractions of the largest NUMA node: the first containers fit,
one wants more than a node has and is refused, and a later one takes most of a node. A machine that is too small for that
is refused with the reason.
"""

from pathlib import Path
from string import Template

from nri_plugin.model.errors import ConfigError
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.simulate.config import RESERVED_MEMORY
from tests.lab.scenario.scenario import Scenario, parse

FILE = "day.yaml.in"
FITTING = "demo"
"""A shipped machine that has room for the scenario."""

NAME = "built-in day"
"""The name of the scenario in errors: its text is made for each machine and is in no file."""

MIB = 1 << 20
GIB = 1 << 30


def day(machine: str, topology: Topology, runtime: str) -> Scenario:
    """The scenario for that machine.

    Raises:
        ConfigError: the machine is too small for it.
    """
    template = Path(__file__).parent / FILE
    names = {"machine": "|\n  " + machine.strip().replace("\n", "\n  "), "runtime": runtime}
    text = Template(template.read_text("utf-8")).substitute(names | sizes(topology))
    return parse(text, NAME)


def sizes(topology: Topology) -> dict[str, str]:
    """Values of the template's variables for this machine.

    Raises:
        ConfigError: it has no room for the containers of the day.
    """
    # The first core is reserved. The first two containers get whole cores of one node at most, `filter` one whole uncore
    # cache where half of a node remains beside it. `train` wants more than any node has, so it is refused.
    reserved = topology.first_core
    threads = max(len(cpus) for _, cpus in topology.cores)
    largest = max(len(node.cpus - reserved) for node in topology.nodes)
    db = _whole(min(2 * threads, largest // 4), threads)
    packet = _whole(
        min(_cache(topology), largest // 4 if _cache(topology) > largest // 2 else largest), threads
    )
    numbers = {
        "db": db,
        "filter": packet,
        "filter_caches": 1,
        "train": max(len(node.cpus) for node in topology.nodes) + 2 * threads,
        "largest": max(len(node.cpus) for node in topology.nodes),
        "retry": _retry(topology, reserved, (db, packet), threads),
        "queue": threads,
    }
    return (
        {name: str(number) for name, number in numbers.items()}
        | _options(topology, reserved)
        | _memory(topology)
    )


def _whole(cpus: int, threads: int) -> int:
    """The number rounded down to whole cores, at least one core."""
    return max(cpus // threads, 1) * threads


def _cache(topology: Topology) -> int:
    """The most CPUs that an uncore cache has in one NUMA node."""
    return max(len(cpus & node.cpus) for _, cpus in topology.caches for node in topology.nodes)


def _retry(topology: Topology, reserved: CPUSet, before: tuple[int, ...], threads: int) -> int:
    """The size of the later container: most of a NUMA node, or half of the rest of the only one.

    Raises:
        ConfigError: nothing is left for it once those of `before` have their CPUs.
    """
    rooms = [len(node.cpus - reserved) for node in topology.nodes if node.cpus]
    largest = max(rooms)
    for count in before:
        # single-numa-node takes the lowest of equally good nodes
        place = next((index for index, room in enumerate(rooms) if room >= count), None)
        if place is None:
            raise _too_small(topology, reserved, threads)
        rooms[place] -= count
    room = max(rooms)
    if room < threads:
        raise _too_small(topology, reserved, threads)
    return _whole(min(largest * 3 // 4, room) if len(rooms) > 1 else room // 2, threads)


def _too_small(topology: Topology, reserved: CPUSet, threads: int) -> ConfigError:
    left = len(topology.online) - len(reserved)
    return ConfigError(
        NAME,
        f"needs {3 * threads} CPUs for three containers beside the {len(reserved)} reserved, and their NUMA nodes "
        f"must have room for them; this machine has {left} left online in "
        f"{sum(1 for node in topology.nodes if node.cpus)} NUMA nodes with CPUs; try --machine {FITTING}, "
        "or play a scenario of your own with --scenario FILE",
    )


def _options(topology: Topology, reserved: CPUSet) -> dict[str, str]:
    is_even = len({len(cpus) for _, cpus in topology.cores}) == 1
    return {
        "whole_cores": str(is_even).lower(),
        "by_cache": str(topology.caches_known and is_even).lower(),
        "reserved": str(reserved),
        "online": str(topology.online),
    }


def _memory(topology: Topology) -> dict[str, str]:
    """Values about memory; memory is bound where every node with CPUs has at least 1 GiB."""
    homes = [node for node in topology.nodes if node.cpus]
    least = min(GIB if node.memory_bytes is None else node.memory_bytes for node in homes)
    is_bound = least >= GIB
    return {
        "memory_policy": "Static" if is_bound else "None",
        "reserved_memory": RESERVED_MEMORY % homes[0].id if is_bound else "[]",
        "db_memory": _mebibytes(min(8 * GIB, least // 8)),
        "filter_memory": _mebibytes(min(4 * GIB, least // 16)),
        "train_memory": _mebibytes(min(32 * GIB, least // 4)),
    }


def _mebibytes(size_bytes: int) -> str:
    return f"{max(size_bytes // MIB, 1)}Mi"
