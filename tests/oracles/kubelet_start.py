"""What the kubelet's managers look at when they are made, in its order: for recorded starts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nri_plugin.config.option_checks import node_refusals, option_values
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.option_rows import TOPOLOGY_MANAGER
from nri_plugin.model.options import Options, TopologyManagerPolicy, TopologyManagerScope


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
        options = replace(Options(), **option_values(TOPOLOGY_MANAGER, given))
        options = replace(options, max_allowable_numa_nodes=options.max_allowable_numa_nodes or limit)
        yield from node_refusals(options, nodes, distances_known=distances_known)
    except ConfigError as error:
        yield error.detail
    if policy not in set(TopologyManagerPolicy):
        yield f'unknown policy: "{policy}"; known are {", ".join(TopologyManagerPolicy)}'
    if scope not in set(TopologyManagerScope):
        yield f'unknown scope: "{scope}"; known are {", ".join(TopologyManagerScope)}'
