"""Our answers equal what the kubelet and the NodeResourceTopology scheduler plugin were recorded to answer."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.vectors.judges.registry import SCHEMAS, recordings, stem
from tests.vectors.judges.running import judge_all
from tests.vectors.judges.verdict import Verdict

OURS = Path(__file__).resolve().parents[2] / "vectors"
ALL = os.environ.get("NRI_PIN_VECTORS")

AT_LEAST = {
    "admission": 95,
    "index": 44,
    "cpu_distributed": 550,
    "cpu_packed": 900,
    "cpu_start_validation": 150,
    "cpu_static_sequences": 100,
    "memory_hints": 70,
    "merge": 500,
    "topology_manager_misc": 70,
    "pod_lives": 22,
    "pod_level_admission": 100,
    "pod_level_sequences": 40,
    "pod_level_memory": 35,
    "unit_cpu": 100,
    "unit_memory": 40,
    "apiserver_exchanges": 40,
    "effective_request": 40,
    "exclusive_resources": 7,
    "filter": 130,
    "foreign_pod": 5,
    "min_avg_distance": 2,
    "normalize_score": 80,
    "numa_nodes_required": 45,
    "numaplacement": 28,
    "only_non_numa": 3,
    "overreserve_arith": 25,
    "overreserve_trace": 30,
    "podfingerprint": 26,
    "score": 180,
    "seed_examples": 2,
    "subtract_many_numas": 1,
    "subtract_one_numa": 5,
    "topology_manager_config": 30,
}


@pytest.mark.parametrize(
    ("schema", "document"), [pytest.param(s, d, id=stem(path)) for s, path, d in recordings(OURS)]
)
def test_recorded_part_is_answered_alike(schema, document):
    judged = judge_all(schema, document)
    assert [f"{one.id}: {one.detail}" for one in judged if one.verdict is Verdict.FAILED] == []
    count = Counter(one.verdict for one in judged)
    assert count[Verdict.PASSED] + count[Verdict.REPAIRED] >= AT_LEAST[schema]


@pytest.mark.skipif(not ALL, reason="needs the whole recording: set NRI_PIN_VECTORS=DIR")
def test_whole_recording_is_answered_alike():
    found = list(recordings(Path(ALL)))
    assert found
    assert [path for schema, path, _ in found if not schema] == []
    judged = [(schema, one) for schema, _, document in found for one in judge_all(schema, document)]
    assert [
        f"{schema} {one.id}: {one.detail}" for schema, one in judged if one.verdict is Verdict.FAILED
    ] == []


def test_the_judges_can_fail():
    document = next(document for schema, _, document in recordings(OURS) if schema == "merge")
    for case in document["cases"]:
        case["preferred"] = not case["preferred"]
    assert {one.verdict for one in SCHEMAS["merge"].judge(document)} == {Verdict.FAILED}
