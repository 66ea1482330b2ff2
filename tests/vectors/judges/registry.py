"""Which judge knows which file, by the stem of the file's name."""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.vectors.judges import (
    admission,
    distributed,
    exchanges,
    memory,
    merging,
    packed,
    reserving,
    scheduling,
    starting,
    state_files,
    static,
    unit_calls,
)
from tests.vectors.judges.verdict import Document, Judge

JUDGES: Mapping[str, Judge] = {
    "cpu_packed": packed.judge,
    "merge": merging.judge,
    "memory_hints": memory.judge,
    "topology_manager_misc": merging.judge_misc,
    "cpu_static_sequences": static.judge,
    "admission": admission.judge,
    "cpu_distributed": distributed.judge,
    "cpu_start_validation": starting.judge_cpu,
    "unit_cpu": unit_calls.judge_cpu,
    "unit_memory": unit_calls.judge_memory,
    "checkpoints/index": state_files.judge,
    "nrt/apiserver_exchanges": exchanges.judge,
    "nrt/effective_request": scheduling.judge_effective,
    "nrt/exclusive_resources": scheduling.judge_exclusive,
    "nrt/filter": scheduling.judge_filter,
    "nrt/foreign_pod": scheduling.judge_foreign,
    "nrt/min_avg_distance": scheduling.judge_average,
    "nrt/normalize_score": scheduling.judge_normalised,
    "nrt/numa_nodes_required": scheduling.judge_nodes_needed,
    "nrt/numaplacement": scheduling.judge_placement,
    "nrt/only_non_numa": scheduling.judge_lists_none,
    "nrt/overreserve_arith": reserving.judge_arithmetic,
    "nrt/overreserve_trace": reserving.judge_traces,
    "nrt/podfingerprint": scheduling.judge_fingerprint,
    "nrt/score": scheduling.judge_score,
    "nrt/seed_examples": scheduling.judge_score,
    "nrt/subtract_many_numas": scheduling.judge_drain,
    "nrt/subtract_one_numa": scheduling.judge_take,
    "nrt/topology_manager_config": scheduling.judge_policy,
}

FIGURES = {"bench_go", "bench_inputs"}
"""Inputs and times of speed runs: no cases to judge."""

CASE_LISTS = ("cases", "samples", "exchanges")
"""What the files call their list of cases."""


def vector_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(schema, file) of every recorded file below `folder`; sample state files belong to their index."""
    for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.json.gz")]):
        stem = path.name.split(".")[0]
        if stem in {"cpu_manager_state", "memory_manager_state"} or stem in FIGURES:
            continue
        parent = path.parent.name
        yield (f"{parent}/{stem}" if parent in {"nrt", "checkpoints"} else stem), path


def load(path: Path) -> Document:
    """The document, its cases under `cases` whatever the file calls them, and the folder it is in."""
    data = path.read_bytes()
    document: Document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    cases = next((document[name] for name in CASE_LISTS if name in document), [])
    return {**document, "cases": cases, "folder": path.parent}
