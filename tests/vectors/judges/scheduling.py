"""nrt/: filter, scores and their helpers, one node at a time and, where they stand in a cluster, all at once."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace

from nri_plugin.extender import nodes
from nri_plugin.extender.cluster import PASS, ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring, Strategy
from nri_plugin.extender.nodes import NUMAZone, Zones, node_policy
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, fingerprint, from_object, parse_amount
from nri_plugin.kube.pod_demand import PodDemand, pod_demand
from tests.oracles import one_node
from tests.oracles.numa_placement import Placed, placement
from tests.oracles.one_node import refusal, score
from tests.oracles.over_reserve import is_foreign
from tests.vectors.judges.verdict import Case, Document, Judge, Judged, Verdict, compare


def amounts(recorded: Case | None) -> dict[str, int]:
    return {name: parse_amount(value) for name, value in (recorded or {}).items()}


def zones_of(recorded: list[Case]) -> Zones:
    return tuple(
        NUMAZone(
            one["id"],
            amounts(one["resources"]),
            {int(other): cost for other, cost in (one["costs"] or {}).items()},
        )
        for one in recorded
    )


def topology_of(case: Case) -> NodeResourceTopology | None:
    return from_object(case["nrt"]) if case["nrt"] else None


def each(judge_one: Callable[[Case], Judged]) -> Judge:
    """A judge of a file from one of a case; what crashes on a case fails that case only."""

    def judge(document: Document) -> Iterator[Judged]:
        for case in document["cases"]:
            try:
                yield judge_one(case)
            except Exception as error:  # noqa: BLE001 - whatever it is, the case is not answered
                yield Judged(case["id"], Verdict.FAILED, f"{type(error).__name__}: {error}")

    return judge


def pod_of(case: Case) -> PodDemand:
    pod = pod_demand(case["pod"])
    if "qos" in case and pod.qos.value != case["qos"]:
        raise AssertionError(f"{case['id']}: the pod is {pod.qos.value}, recorded {case['qos']}")
    return pod


REFERENCE_HIGHEST_ID = 63
"""The reference leaves NUMA nodes above this out of account."""


def with_any_id(
    case: Case, recorded: object, ours: Callable[[NodeResourceTopology | None], object]
) -> Judged:
    """Equal; or repaired, when it is equal as soon as we leave out the NUMA nodes that the reference cannot see."""
    topology = topology_of(case)
    judged = compare(case["id"], ours(topology), recorded)
    if judged.verdict is Verdict.PASSED or topology is None:
        return judged
    seen = tuple(zone for zone in topology.zones if (zone.numa_id or 0) <= REFERENCE_HIGHEST_ID)
    if seen != topology.zones and ours(replace(topology, zones=seen)) == recorded:
        return Judged(case["id"], Verdict.REPAIRED, "the reference leaves out NUMA nodes above 63")
    return judged


def cluster_of(topology: NodeResourceTopology | None, scoring: Scoring) -> ClusterAnswers:
    """A cluster of one node, as the extender asks it."""
    cluster = ClusterAnswers(scoring, sidecars_stay=False)
    if topology is not None:
        cluster.put("n", node_policy(topology), nodes.numa_zones(topology))
    return cluster


def column_code(pod: PodDemand, topology: NodeResourceTopology | None) -> int:
    return int(cluster_of(topology, Scoring()).codes(["n"], pod)[0])


@each
def judge_filter(case: Case) -> Judged:
    pod, allocatable = pod_of(case), amounts(case["nodeAllocatable"])

    def ours(topology: NodeResourceTopology | None) -> Case:
        in_columns = column_code(pod, topology)
        if (refusal(pod, topology) is None) != (in_columns == PASS):
            return {"verdict": f"the columns say {in_columns}"}
        found = refusal(pod, topology, allocatable)
        return {"verdict": "reject", "what": found.what} if found else {"verdict": "pass"}

    return with_any_id(case, case["expect"], ours)


@each
def judge_score(case: Case) -> Judged:
    strategy = case["strategy"]
    scoring = Scoring(Strategy(strategy["type"]), strategy["weights"] or {})
    pod = pod_of(case)

    def ours(topology: NodeResourceTopology | None) -> object:
        alone = score(pod, topology, scoring)
        in_columns = int(cluster_of(topology, scoring).scores(["n"], pod)[0])
        return alone if alone == in_columns else f"{alone}, but {in_columns} in columns"

    return with_any_id(case, case["expect"]["score"], ours)


@each
def judge_nodes_needed(case: Case) -> Judged:
    zones = zones_of(case["numaNodes"])
    found = one_node.nodes_needed(zones, amounts(case["request"]), is_guaranteed=case["qos"] == "Guaranteed")
    ids = sorted(zones[at].id for at in found.positions) if found else None
    expect = case["expect"]
    told = [expect["numaNodes"], expect["minAvgDistance"] if ids else None]
    return compare(case["id"], [ids, found.is_closest if found else None], told)


@each
def judge_normalised(case: Case) -> Judged:
    ours = one_node.normalised(
        case["numaNodesCount"], case["maxNUMANodes"], is_closest=case["minAvgDistance"]
    )
    return compare(case["id"], ours, case["expect"]["score"])


@each
def judge_average(case: Case) -> Judged:
    zones = zones_of(case["numaNodes"])
    averages = [one_node.average_distance(zones, tuple(one)) for one in case["combinations"]]
    ours = min([float(nodes.UNKNOWN_COST), *averages])
    return compare(case["id"], _single(ours), _single(case["expect"]["minAvgDistance"]))


def _single(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


@each
def judge_lists_none(case: Case) -> Judged:
    ours = one_node.lists_none(zones_of(case["numaNodes"]), case["request"] or {})
    return compare(case["id"], ours, case["expect"]["onlyNonNUMA"])


@each
def judge_take(case: Case) -> Judged:
    zones, short = one_node.take_from_one(
        zones_of(case["numaNodes"]),
        case["numaID"],
        amounts(case["request"]),
        is_guaranteed=case["qos"] == "Guaranteed",
    )
    expect = case["expect"]
    if bool(short) != expect["error"]:
        return Judged(case["id"], Verdict.FAILED, f"ours short of {short}, recorded error {expect['error']}")
    if expect["error"]:
        return Judged(case["id"], Verdict.PASSED)
    return compare(case["id"], zones, zones_of(expect["numaNodes"]))


@each
def judge_drain(case: Case) -> Judged:
    zones = one_node.drain(zones_of(case["numaNodes"]), case["order"], amounts(case["request"]))
    return compare(case["id"], zones, zones_of(case["expect"]["numaNodes"]))


@each
def judge_policy(case: Case) -> Judged:
    parts = ("topologyPolicies", "attributes")
    found = node_policy(from_object({"metadata": {"name": "n"}, **{part: case[part] for part in parts}}))
    ours = {
        "policy": found.policy.value,
        "scope": found.scope.value,
        "maxNUMANodes": found.max_numa_nodes,
    }
    return compare(case["id"], ours, case["expect"])


@each
def judge_effective(case: Case) -> Judged:
    pod = pod_of(case)
    expect = case["expect"]
    return compare(case["id"], [pod.qos.value, pod.effective], [expect["qos"], amounts(expect["request"])])


@each
def judge_exclusive(case: Case) -> Judged:
    pod = pod_of(case)
    ours = {
        "exclusive": pod.holds_exclusively(case["nrtResourceNames"] or ()),
        "includesNonNative": pod.asks_for_devices,
    }
    return compare(case["id"], ours, case["expect"])


@each
def judge_foreign(case: Case) -> Judged:
    ours = is_foreign(
        pod_of(case),
        case["schedulerProfiles"] or (),
        case["nrtResourceNames"] or (),
        only_exclusive=case["onlyExclusiveResources"],
    )
    return compare(case["id"], ours, case["expect"]["foreign"])


@each
def judge_fingerprint(case: Case) -> Judged:
    ours = fingerprint((one["namespace"], one["name"]) for one in case["pods"] or ())
    return compare(case["id"], ours, case["expect"]["fingerprint"])


@each
def judge_placement(case: Case) -> Judged:
    placed = [
        Placed(one["namespace"], one["pod"], one["container"], one["numa"])
        for one in case["containers"] or ()
    ]
    metadata, vectors = placement(placed, case["numaNodes"])
    expect = case["expect"]
    recorded = {int(numa_id): text for numa_id, text in (expect["vectors"] or {}).items()}
    return compare(case["id"], [metadata, dict(vectors)], [expect["metadata"], recorded])
