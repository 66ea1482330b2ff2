"""A machine in one line."""

from nri_plugin.cli.picture import memory_text
from nri_plugin.topology import Topology


def summary(topology: Topology) -> str:
    """How many of everything there are."""
    widths = sorted({len(cpus) for _, cpus in topology.cores})
    sizes = [node.memory_bytes for node in topology.nodes]
    parts = [
        count_of(len(topology.sockets), "socket"),
        count_of(len(topology.nodes), "NUMA node"),
        _caches(topology),
        count_of(len(topology.cores), "core"),
        f"{count_of(len(topology.online), 'CPU')} (SMT {'/'.join(map(str, widths))})",
        "memory unknown" if None in sizes else memory_text(sum(size or 0 for size in sizes)) + " memory",
    ]
    return ", ".join(parts)


def _caches(topology: Topology) -> str:
    if not topology.caches_known:
        return "no L3 cache"
    count = count_of(sum(1 for _, cpus in topology.caches if topology.is_l3(cpus)), "uncore cache")
    return f"{count} ({count_of(len(topology.without_l3), 'CPU')} without)" if topology.without_l3 else count


def count_of(number: int, what: str) -> str:
    """As in `1 core`, `2 cores`."""
    return f"{number} {what}" + "s" * (number != 1)
