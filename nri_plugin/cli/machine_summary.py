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
        count_of(len(topology.caches), "uncore cache") if topology.caches_known else "no L3 cache",
        count_of(len(topology.cores), "core"),
        f"{count_of(len(topology.online), 'CPU')} (SMT {'/'.join(map(str, widths))})",
        "memory unknown" if None in sizes else memory_text(sum(size or 0 for size in sizes)) + " memory",
    ]
    return ", ".join(parts)


def count_of(number: int, what: str) -> str:
    """As in `1 core`, `2 cores`."""
    return f"{number} {what}" + "s" * (number != 1)
