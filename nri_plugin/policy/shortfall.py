"""How a refusal says what NUMA nodes have to offer, short on machines with many."""

from collections.abc import Mapping

MOST_LISTED = 8


def by_numa_node(words_by_node: Mapping[int, str], free: Mapping[int, int], total: Mapping[int, int]) -> str:
    """The nodes with their words; those that could never offer anything are left out.

    Args:
        words_by_node: what to say of each node.
        free: what each offers now; where the list has to be cut, nodes that offer something go first.
        total: what each could offer at best.
    """
    nodes = [node for node in words_by_node if total[node]]
    if not nodes:
        return "by NUMA node: none has any"
    rest = ""
    if len(nodes) > MOST_LISTED:
        rest = f", and {len(nodes) - MOST_LISTED} more"
        nodes = sorted(nodes, key=lambda node: (not free[node], node))[:MOST_LISTED]
    return "by NUMA node " + ", ".join([f"{node}: {words_by_node[node]}" for node in nodes]) + rest
