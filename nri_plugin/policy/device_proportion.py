"""How many of a container's CPUs go to each NUMA node when its devices are on several.

Differs: the kubelet packs CPUs into the nodes of the hint without looking at devices again; this is an option.
"""

from collections.abc import Iterable, Mapping

from nri_plugin.policy.device_hints import DeviceResource


def devices_by_node(resources: Iterable[DeviceResource]) -> dict[int, int]:
    """How many devices are on each NUMA node; one between several, or nowhere in particular, does not count."""
    counts: dict[int, int] = {}
    for resource in resources:
        for device in resource.devices:
            if len(device.nodes) == 1:
                (node,) = device.nodes
                counts[node] = counts.get(node, 0) + 1
    return counts


def proportional_shares(
    count: int, weight_by_node: Mapping[int, int], room_by_node: Mapping[int, int], *, unit: int = 1
) -> dict[int, int]:
    """How many of `count` CPUs each node gets, as many for one device as for another.

    The shares add up to `count`, or to all the room when that is less; none is above its room. They grow
    by whole units while there is room for one, then by single CPUs, each time at the node that is
    furthest behind; on a tie at the lower node.

    Args:
        count: CPUs wanted.
        weight_by_node: number of devices, above zero; only these nodes get a share.
        room_by_node: CPUs on offer; a node not named has none.
        unit: CPUs of a core, so that shares are whole cores.

    Source: the rounding is that of Webster: the next unit goes where the part, rounded, is largest.
    """
    shares = dict.fromkeys(sorted(weight_by_node), 0)
    left = count
    for step in (unit, 1):
        while left >= step:
            roomy = [node for node in shares if room_by_node.get(node, 0) - shares[node] >= step]
            if not roomy:
                break
            node = _furthest_behind(roomy, shares, weight_by_node, step)
            shares[node] += step
            left -= step
    return shares


def _furthest_behind(
    nodes: Iterable[int], shares: Mapping[int, int], weight_by_node: Mapping[int, int], step: int
) -> int:
    """The node for which half a step more is the least for each of its devices."""
    best, *others = nodes
    for node in others:
        mine, its = 2 * shares[node] + step, 2 * shares[best] + step
        if mine * weight_by_node[best] < its * weight_by_node[node]:
            best = node
    return best
