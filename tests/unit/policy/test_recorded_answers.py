"""Our answers equal what the kubelet and the NodeResourceTopology scheduler plugin were recorded to answer."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.vectors.judges.registry import JUDGES, load, vector_files
from tests.vectors.judges.verdict import Verdict

OURS = Path(__file__).resolve().parents[2] / "vectors"
ALL = os.environ.get("NRI_PIN_VECTORS")

AT_LEAST = {
    "admission": 95,
    "checkpoints/index": 29,
    "cpu_distributed": 550,
    "cpu_packed": 900,
    "cpu_start_validation": 150,
    "cpu_static_sequences": 100,
    "memory_hints": 70,
    "merge": 500,
    "topology_manager_misc": 70,
    "unit_cpu": 100,
    "unit_memory": 40,
    "nrt/apiserver_exchanges": 40,
    "nrt/effective_request": 40,
    "nrt/exclusive_resources": 7,
    "nrt/filter": 130,
    "nrt/foreign_pod": 5,
    "nrt/min_avg_distance": 2,
    "nrt/normalize_score": 80,
    "nrt/numa_nodes_required": 45,
    "nrt/numaplacement": 28,
    "nrt/only_non_numa": 3,
    "nrt/overreserve_arith": 25,
    "nrt/overreserve_trace": 30,
    "nrt/podfingerprint": 26,
    "nrt/score": 180,
    "nrt/seed_examples": 2,
    "nrt/subtract_many_numas": 1,
    "nrt/subtract_one_numa": 5,
    "nrt/topology_manager_config": 30,
}


@pytest.mark.parametrize(
    ("schema", "path"), list(vector_files(OURS)), ids=lambda value: getattr(value, "name", value)
)
def test_recorded_part_is_answered_alike(schema, path):
    judged = list(JUDGES[schema](load(path)))
    assert [f"{one.id}: {one.detail}" for one in judged if one.verdict is Verdict.FAILED] == []
    count = Counter(one.verdict for one in judged)
    assert count[Verdict.PASSED] + count[Verdict.REPAIRED] >= AT_LEAST[schema]


@pytest.mark.skipif(not ALL, reason="needs the whole recording: set NRI_PIN_VECTORS=DIR")
def test_whole_recording_is_answered_alike():
    files = list(vector_files(Path(ALL)))
    assert files
    assert [schema for schema, _ in files if schema not in JUDGES] == []
    judged = [(schema, one) for schema, path in files for one in JUDGES[schema](load(path))]
    assert [
        f"{schema} {one.id}: {one.detail}" for schema, one in judged if one.verdict is Verdict.FAILED
    ] == []


def test_the_judges_can_fail(tmp_path):
    document = load(next(path for schema, path in vector_files(OURS) if schema == "merge"))
    for case in document["cases"]:
        case["preferred"] = not case["preferred"]
    assert {one.verdict for one in JUDGES["merge"](document)} == {Verdict.FAILED}
