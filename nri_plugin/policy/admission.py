"""One decision of the Topology Manager: merge all wishes, then admit or refuse with the numbers."""

from collections.abc import Sequence

from nri_plugin.errors import TopologyAffinityError
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy.distances import Distances
from nri_plugin.policy.hints import Provider
from nri_plugin.policy.merge import MergedHint, admits, merge
from nri_plugin.policy.tie_break import TieBreak


def admit(
    policy: TopologyManagerPolicy,
    nodes: NodeMask,
    providers: Sequence[Provider],
    *,
    distances: Distances | None = None,
    tie_break: TieBreak | None = None,
) -> MergedHint:
    """The hint under which a container (or, in pod scope, every container of a pod) is allocated.

    Args:
        policy: the topology policy; `none` asks nobody and admits "anywhere".
        nodes: all NUMA nodes of the machine.
        providers: wishes for the container's request, or for the pod's totals in pod scope; the
            kubelet's order is devices, CPU, memory.
        distances: see `merge`.
        tie_break: see `merge`.

    Raises:
        TopologyAffinityError: the policy does not admit the merged hint.
    """
    merged = merge(policy, nodes, providers, distances=distances, tie_break=tie_break)
    if not admits(policy, merged):
        raise TopologyAffinityError(_refusal(policy, merged, providers), exact=merged.exact)
    return merged


def _refusal(policy: TopologyManagerPolicy, merged: MergedHint, providers: Sequence[Provider]) -> str:
    wishes = [wish for provider in providers for wish in provider or ()]
    numbers = "; ".join(dict.fromkeys(wish.why for wish in wishes if wish.why))
    return (
        f"resources cannot be allocated with topology locality: policy {policy} needs {_needed(policy)}, "
        f"{_found(merged)}" + (f"; {numbers}" if numbers else "") + _doubt(merged)
    )


def _doubt(merged: MergedHint) -> str:
    return (
        ""
        if merged.exact
        else "; the search ran out of steps, so there may be a better one: ask again or ask for less"
    )


def _needed(policy: TopologyManagerPolicy) -> str:
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        return "one NUMA node that holds everything"
    return "the fewest NUMA nodes that could hold everything, the same for all resources"


def _found(merged: MergedHint) -> str:
    if merged.affinity is None:
        return "and there is none"
    return f"and the best there is now is NUMA nodes {merged.affinity}"
