"""merge and topology_manager_misc: the Topology Manager alone."""

from collections.abc import Iterator, Mapping, Sequence

from nri_plugin.config.option_checks import option_values
from nri_plugin.model.option_rows import TOPOLOGY_MANAGER
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.hints import Hint, HintSet, Provider
from nri_plugin.policy.merge import MergedHint, admit, admits, merge
from nri_plugin.policy.search.mask_order import Distances, MaskOrder
from tests.oracles.kubelet_start import topology_manager_refusals
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

KUBELET_LIMIT = 8
"""Where a case leaves the limit of NUMA nodes out."""


def hints_of(recorded: Sequence[Sequence] | None) -> tuple[Hint, ...] | None:
    return None if recorded is None else tuple(Hint(mask, preferred) for mask, preferred in recorded)


def provider_of(recorded: Mapping[str, Sequence[Sequence] | None] | None) -> Provider:
    return tuple(HintSet(name, hints_of(hints)) for name, hints in (recorded or {}).items())


def distances_of(case: Case) -> Distances:
    """The recorded distances; columns are node ids, or nodes in ascending order where ids have gaps."""
    told = case.get("distances") or {}
    rows = {int(node): row for node, row in sorted(told.items(), key=lambda item: int(item[0]))}
    return Distances(
        {
            node: dict(enumerate(row) if len(row) > max(rows) else zip(rows, row, strict=True))
            for node, row in rows.items()
        }
    )


def preferring(case: Case) -> Distances | None:
    """The distances, where the case prefers the closest nodes and says how far all of them are apart."""
    rows = case.get("distances") or {}
    is_known = bool(rows) and all(rows.values())
    options = option_values(TOPOLOGY_MANAGER, case.get("tm_options") or {})
    if not options.get("prefer_closest_numa_nodes") or not is_known:
        return None
    return distances_of(case)


def as_pair(merged: MergedHint) -> list:
    return [None if merged.affinity is None else merged.affinity.mask, merged.preferred]


def judge(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        policy = TopologyManagerPolicy(case["tm_policy"])
        nodes = NodeMask.from_ids(case["numa_nodes"])
        providers = [provider_of(recorded) for recorded in case["providers"] or ()]
        merged = merge(policy, nodes, providers, distances=preferring(case))
        if case.get("panic"):
            yield Judged(case["id"], Verdict.REPAIRED, "the reference crashes")
            continue
        recorded = [case["affinity"], case["preferred"], case["admit"]]
        yield compare(case["id"], [*as_pair(merged), admits(policy, merged)], recorded)


def judge_misc(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        yield MISC[case["fn"]](case)


def _average(case: Case) -> Judged:
    nodes = NodeMask(case["mask"])
    ours = distances_of(case).total(nodes.mask) / len(nodes) ** 2 if nodes else 0.0
    return compare(case["id"], round(ours, 9), round(case["result"], 9))


def _closest(case: Case) -> Judged:
    """The narrower mask, else the closer one; without distances all are equally far."""
    is_known = any((case.get("distances") or {}).values())
    is_one_size = case["m1"].bit_count() == case["m2"].bit_count()
    order = MaskOrder(distances_of(case) if is_known and is_one_size else None)
    ours = min(case["m1"], case["m2"], key=lambda mask: (mask.bit_count(), order.of(mask)))
    return compare(case["id"], ours, case["result"])


def _new_manager(case: Case) -> Judged:
    refusals = topology_manager_refusals(
        case["tm_policy"],
        case["tm_scope"],
        case.get("tm_options") or {},
        len(case["numa_nodes"]),
        distances_known=case["distances_known"],
        limit=KUBELET_LIMIT,
    )
    ours, recorded = next(refusals, ""), case["error"] or ""
    if bool(ours) == bool(recorded) and ours.startswith(recorded):
        return Judged(case["id"], Verdict.PASSED)
    return Judged(case["id"], Verdict.FAILED, f"ours {ours!r} recorded {recorded!r}")


MISC = {"average_distance": _average, "closest": _closest, "new_manager": _new_manager}


def replayed_merge(
    case: Case, step: Case, expect: Case, nodes: NodeMask, hint_sets: Provider
) -> tuple[MergedHint, str]:
    """The affinity that a recorded step gives, or the one that we merge, and where ours differs.

    Raises:
        AdmissionError: the policy does not admit what we merged.
    """
    if step["affinity"] != "merge":
        mask = step["affinity"]
        return MergedHint(None if mask is None else NodeMask(mask), bool(step.get("preferred"))), ""
    policy = TopologyManagerPolicy(case["tm_policy"])
    merged = merge(policy, nodes, [hint_sets])
    ours = [*as_pair(merged), admits(policy, merged)]
    if ours != [*expect["merged"], expect["admit"]]:
        return merged, f"merged ours {ours} recorded {expect['merged']} {expect['admit']}"
    admit(policy, nodes, [hint_sets])
    return merged, ""
