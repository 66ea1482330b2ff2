"""Which judge knows which recording: by the stem of the file's name, else by what its cases hold."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vectors.judges import (
    admission,
    distributed,
    exchanges,
    lives,
    memory,
    merging,
    packed,
    pod_admission,
    pod_level,
    reserving,
    scheduling,
    starting,
    state_files,
    static,
    unit_calls,
)
from tests.vectors.judges.verdict import Case, Document, Judge


class UnreadableError(Exception):
    """A file is no recording."""


@dataclass(frozen=True)
class Schema:
    """A kind of recording.

    Attributes:
        judge: compares its cases with our answers.
        has: keys that every case has, in words.
        lacks: keys that tell its cases from those of another kind.
        step: a key that some step of its cases has; empty where none tells it from another kind.
    """

    judge: Judge
    has: str
    lacks: str = ""
    step: str = ""

    def fits(self, cases: list[Any]) -> bool:
        """Whether all `cases` look like its own; never for none."""
        has, lacks = set(self.has.split()), set(self.lacks.split())
        fits = bool(cases) and all(
            isinstance(case, dict) and has <= set(case) and lacks.isdisjoint(case) for case in cases
        )
        return fits and (not self.step or any(self.step in step for case in cases for step in case["steps"]))


SCHEMAS: Mapping[str, Schema] = {
    "cpu_packed": Schema(packed.judge, "topology available n prefer_align_by_uncore_cache", "fn"),
    "cpu_distributed": Schema(distributed.judge, "topology available n cpu_group_size", "fn"),
    "cpu_static_sequences": Schema(
        static.judge, "topology tm_policy steps expect", "tm_scope tm_options memory_nodes"
    ),
    "pod_level_admission": Schema(
        pod_admission.judge, "topology tm_policy tm_scope memory_nodes steps expect", "devices", "resources"
    ),
    "admission": Schema(admission.judge, "topology tm_policy tm_scope steps expect", "devices"),
    "pod_lives": Schema(lives.judge, "topology tm_policy tm_scope devices steps expect"),
    "memory_hints": Schema(memory.judge, "memory_nodes memory_reserved steps expect", "topology"),
    "pod_level_sequences": Schema(
        pod_level.judge_cpus, "topology tm_policy steps expect", "tm_scope memory_nodes"
    ),
    "pod_level_memory": Schema(
        pod_level.judge_memory, "topology memory_nodes memory_reserved tm_policy steps expect", "tm_scope"
    ),
    "cpu_start_validation": Schema(starting.judge_cpu, "topology options state", "fn steps"),
    "merge": Schema(merging.judge, "tm_policy numa_nodes providers"),
    "topology_manager_misc": Schema(merging.judge_misc, "fn", "topology state_before"),
    "unit_cpu": Schema(unit_calls.judge_cpu, "fn topology"),
    "unit_memory": Schema(unit_calls.judge_memory, "fn state_before", "topology"),
    "index": Schema(state_files.judge, "manager format file"),
    "apiserver_exchanges": Schema(exchanges.judge, "request response", "expect"),
    "effective_request": Schema(scheduling.judge_effective, "pod expect", "nrt nrtResourceNames"),
    "exclusive_resources": Schema(
        scheduling.judge_exclusive, "pod nrtResourceNames expect", "schedulerProfiles"
    ),
    "filter": Schema(scheduling.judge_filter, "pod nrt nodeAllocatable expect"),
    "foreign_pod": Schema(scheduling.judge_foreign, "pod nrtResourceNames schedulerProfiles expect"),
    "min_avg_distance": Schema(scheduling.judge_average, "numaNodes combinations expect"),
    "normalize_score": Schema(scheduling.judge_normalised, "numaNodesCount maxNUMANodes expect"),
    "numa_nodes_required": Schema(
        scheduling.judge_nodes_needed, "numaNodes request qos expect", "numaID order"
    ),
    "numaplacement": Schema(scheduling.judge_placement, "containers numaNodes expect"),
    "only_non_numa": Schema(scheduling.judge_lists_none, "numaNodes request expect", "qos numaID order"),
    "overreserve_arith": Schema(reserving.judge_arithmetic, "nrt assumedPods expect"),
    "overreserve_trace": Schema(reserving.judge_traces, "initialNRT config steps"),
    "podfingerprint": Schema(scheduling.judge_fingerprint, "pods expect"),
    "score": Schema(scheduling.judge_score, "pod nrt strategy expect"),
    "seed_examples": Schema(scheduling.judge_score, "pod nrt strategy expect"),
    "subtract_many_numas": Schema(scheduling.judge_drain, "numaNodes order request expect"),
    "subtract_one_numa": Schema(scheduling.judge_take, "numaNodes numaID request expect"),
    "topology_manager_config": Schema(scheduling.judge_policy, "topologyPolicies attributes expect"),
}
"""By the stem of the files that hold it."""

FIGURES = ("bench_go", "bench_inputs")
"""Inputs and times of speed runs."""

STATE_FILES = ("cpu_manager_state", "memory_manager_state")

OURS = Path(__file__).resolve().parent.parent
ELSEWHERE = ("judges", "nri", "kernel")
"""Folders beside this one whose files have tests of their own."""

CASE_LISTS = ("cases", "samples", "exchanges")
"""What the files call their list of cases."""

GZIP = b"\x1f\x8b"


def stem(path: Path) -> str:
    """`merge` of `merge.json.gz`."""
    return path.name.partition(".")[0]


def files_in(where: Path) -> list[Path]:
    """All files below a folder, or the one file; hidden ones and those of caches left out."""
    if where.is_file():
        return [where]
    found = (path for path in sorted(where.rglob("*")) if path.is_file())
    return [path for path in found if not _is_hidden(path.relative_to(where))]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def no_case(path: Path) -> str:
    """Why a file holds no cases by its name and place; empty when it should."""
    name = stem(path)
    if name == "README":
        return "a text"
    if name in FIGURES:
        return "figures of speed runs, for hack/bench decisions"
    if name in STATE_FILES and path.name in _listed_beside(path):
        return "a sample, judged with its index"
    if any(OURS / folder in path.resolve().parents for folder in ELSEWHERE):
        return "has tests of its own"
    return ""


def _listed_beside(path: Path) -> set[str]:
    """The sample files that an index in the same folder names: `index.json`, `index_pod_level.json.gz`."""
    named: set[str] = set()
    for index in sorted(path.parent.glob("index*.json*")):
        with contextlib.suppress(UnreadableError):
            named |= {case.get("file", "") for case in load(index)["cases"] if isinstance(case, dict)}
    return named


def schema_of(path: Path, document: Document) -> str:
    """The schema of a recording; empty when nobody knows it.

    The name decides where the cases agree or there are none, else what the cases hold.
    """
    name, cases = stem(path), document["cases"]
    if name in SCHEMAS and (SCHEMAS[name].fits(cases) or not cases):
        return name
    fitting = [other for other, schema in SCHEMAS.items() if schema.fits(cases)]
    return next(iter(fitting), name if name in SCHEMAS else "")


def load(path: Path) -> Document:
    """The document, its cases under `cases` whatever the file calls them, and the folder it is in.

    Raises:
        UnreadableError: the file holds no JSON object.
    """
    try:
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UnreadableError(f"{error}") from error
    if not isinstance(document, dict):
        raise UnreadableError(f"holds a {type(document).__name__}, not an object")
    cases = next((document[name] for name in CASE_LISTS if isinstance(document.get(name), list)), [])
    return {**document, "cases": cases, "folder": path.parent}


def recordings(where: Path) -> Iterator[tuple[str, Path, Document]]:
    """(schema, file, document) of every file below `where` that should hold cases; an unknown schema is empty.

    A file that cannot be read is one of unknown schema.
    """
    for path in files_in(where):
        if no_case(path):
            continue
        try:
            document = load(path)
        except UnreadableError as error:
            yield "", path, {"cases": [], "unreadable": f"{error}"}
            continue
        yield schema_of(path, document), path, document


def topology_of_case(document: Document, case: Case) -> Document:
    """`document` with one case only, and only the machine that it is about."""
    alone: Document = {**document, "cases": [case]}
    if isinstance(case, dict) and case.get("topology") in document.get("topologies", {}):
        alone["topologies"] = {case["topology"]: document["topologies"][case["topology"]]}
    return alone
