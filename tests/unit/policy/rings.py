"""Machines whose sockets stand in a ring: clusters that are not equally far from each other."""

from nri_plugin.policy.distances import Distances


def ring(sockets=5, each=2):
    """Distances 10, 12 inside a socket, 20 to a neighbour and 10 more for each further hop."""
    nodes = range(sockets * each)

    def far(one, other):
        if one == other:
            return 10
        hops = abs(one // each - other // each)
        return 12 if hops == 0 else 10 + 10 * min(hops, sockets - hops)

    return Distances({one: {other: far(one, other) for other in nodes} for one in nodes})
