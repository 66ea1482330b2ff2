"""merge and topology_manager_misc: the Topology Manager alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from nri_plugin import bits
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy.hints import Hint, Provider, Wish
from nri_plugin.policy.merge import MergedHint, admits, merge
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare


def hints_of(recorded: Sequence[Sequence] | None) -> tuple[Hint, ...] | None:
    return None if recorded is None else tuple(Hint(mask, preferred) for mask, preferred in recorded)


def provider_of(recorded: Mapping[str, Sequence[Sequence] | None] | None) -> Provider:
    return tuple(Wish(name, hints_of(hints)) for name, hints in (recorded or {}).items())


def distance_of(case: Case) -> Callable[[int], int] | None:
    """The sum over all ordered pairs of a mask's nodes, where the case prefers the closest nodes."""
    if case.get("tm_options", {}).get("prefer-closest-numa-nodes") != "true" or not case.get("distances"):
        return None
    rows = {int(node): row for node, row in case["distances"].items()}
    return lambda mask: sum(rows[one][other] for one in bits.iterate(mask) for other in bits.iterate(mask))


def as_pair(merged: MergedHint) -> list:
    return [None if merged.affinity is None else merged.affinity.mask, merged.preferred]


def judge(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        policy = TopologyManagerPolicy(case["tm_policy"])
        nodes = NodeMask.from_ids(case["numa_nodes"])
        providers = [provider_of(recorded) for recorded in case["providers"] or ()]
        merged = merge(policy, nodes, providers, distance=distance_of(case))
        recorded = [case["affinity"], case["preferred"], case["admit"]]
        yield compare(case["id"], [*as_pair(merged), admits(policy, merged)], recorded)


def judge_misc(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        if case["fn"] == "closest":
            yield _closest(case)
        else:
            feature = {"new_manager": "checks of topologyManagerPolicyOptions"}.get(
                case["fn"], "prefer-closest-numa-nodes"
            )
            yield Judged(case["id"], Verdict.NOT_YET, feature)


def _closest(case: Case) -> Judged:
    return Judged(case["id"], Verdict.NOT_YET, "prefer-closest-numa-nodes")
