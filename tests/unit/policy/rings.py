"""Machines that are not built in levels: sockets in a ring, nodes on two planes."""

from nri_plugin.policy.search.mask_order import Distances


def ring(sockets=5, each=2):
    """Distances 10, 12 inside a socket, 20 to a neighbour and 10 more for each further hop."""
    nodes = range(sockets * each)

    def far(one, other):
        if one == other:
            return 10
        hops = abs(one // each - other // each)
        return 12 if hops == 0 else 10 + 10 * min(hops, sockets - hops)

    return Distances({one: {other: far(one, other) for other in nodes} for one in nodes})


def planes(nodes=10, board=4, crossing=5):
    """Boards of nodes, the odd ones on another plane everywhere."""

    def far(one, other):
        if one == other:
            return 10
        return (12 if one // board == other // board else 20) + crossing * ((one ^ other) & 1)

    return Distances({one: {other: far(one, other) for other in range(nodes)} for one in range(nodes)})
