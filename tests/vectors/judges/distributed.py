"""cpu_distributed: choosing CPUs in equal shares over NUMA nodes."""

import time
from collections.abc import Iterator

from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import CPUTables, take_distributed
from tests.vectors.judges.packed import Answer, answer_of, tables_of, unsound
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

SECONDS = 1
"""How long an answer may take where the reference gives none."""


def judge(document: Document) -> Iterator[Judged]:
    topologies = document["topologies"]
    tables = {name: tables_of(recorded) for name, recorded in topologies.items()}
    for case in document["cases"]:
        name = case["topology"]
        yield judge_case(case, tables[name], malformed="inconsistent" in topologies[name])


def judge_case(case: Case, tables: CPUTables, *, malformed: bool) -> Judged:
    available = CPUSet.parse(case["available"])
    began = time.monotonic()
    answer, is_sound = answer_of(
        case,
        available,
        lambda: take_distributed(
            tables,
            available,
            case["n"],
            group=case["cpu_group_size"],
            spread=case["cpu_sorting"] == "spread",
        ),
    )
    if not is_sound:
        return unsound(case, answer)
    took = time.monotonic() - began
    if case.get("never_returns") and took > SECONDS:
        return Judged(case["id"], Verdict.FAILED, f"took {took:.1f} s where the reference never returns")
    if case.get("never_returns"):
        return Judged(case["id"], Verdict.REPAIRED, "the reference never returns")
    if case.get("result_outside_available") or case.get("result_size"):
        return Judged(case["id"], Verdict.REPAIRED, f"ours {answer[0]} recorded {case['result']}")
    return _compare(case, answer, malformed=malformed)


def _compare(case: Case, answer: Answer, *, malformed: bool) -> Judged:
    suffix = "_without_slice_aliasing" if case.get("alias_sensitive") else ""
    error = case["error" + suffix]
    recorded = (None if error else case["result" + suffix], error or None)
    if malformed and answer != recorded:
        return Judged(case["id"], Verdict.REPAIRED, "the recorded machine contradicts itself")
    judged = compare(case["id"], answer, recorded)
    if suffix and judged.verdict is Verdict.PASSED:
        return Judged(case["id"], Verdict.REPAIRED, "the reference uses a combination it has not scored")
    return judged
