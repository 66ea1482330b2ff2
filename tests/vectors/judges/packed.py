"""cpu_packed: choosing CPUs, and taking them from the fullest place."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables, take_packed
from tests.topology_rows import topology_of_rows
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

Answer = tuple[str | None, str | None]
"""The CPUs as a list, or the text of the refusal."""


def tables_of(recorded: dict) -> CPUTables:
    """Tables with the counters as the reference was told them."""
    tables = cpu_tables(topology_of_rows(recorded["cpus"]))
    total = recorded["num_cpus"]

    def average(name: str) -> int:
        return total // recorded[name] if recorded[name] else 0

    return replace(
        tables,
        nodes_first=recorded["num_sockets"] >= recorded["num_numa_nodes"],
        cpus_per_core=average("num_cores"),
        cpus_per_socket=average("num_sockets"),
        cpus_per_cache=average("num_uncore_caches"),
        nodes_per_socket=recorded["num_numa_nodes"] // recorded["num_sockets"]
        if recorded["num_sockets"]
        else 0,
    )


def answer_of(case: Case, available: CPUSet, take: Callable[[], CPUSet]) -> tuple[Answer, bool]:
    """What we take or why we refuse, and whether that is as many CPUs as were asked for, all of them on offer."""
    try:
        ours = take()
    except InsufficientCPUsError as error:
        return (None, str(error.refusal.detail)), case["n"] > len(available)
    return (str(ours), None), ours <= available and len(ours) == max(0, case["n"])


def unsound(case: Case, answer: Answer) -> Judged:
    return Judged(case["id"], Verdict.FAILED, f"ours {answer} is not {case['n']} CPUs of {case['available']}")


def judge(document: Document) -> Iterator[Judged]:
    topologies = document["topologies"]
    tables = {name: tables_of(recorded) for name, recorded in topologies.items()}
    for case in document["cases"]:
        name = case["topology"]
        yield judge_case(case, tables[name], malformed="inconsistent" in topologies[name])


def judge_case(case: Case, tables: CPUTables, *, malformed: bool) -> Judged:
    available = CPUSet.parse(case["available"])
    answer, is_sound = answer_of(
        case,
        available,
        lambda: take_packed(
            tables,
            available,
            case["n"],
            prefer_uncore_cache=case["prefer_align_by_uncore_cache"],
            spread=case["cpu_sorting"] == "spread",
        ),
    )
    if not is_sound:
        return unsound(case, answer)
    if case.get("result_outside_available") or case.get("result_size"):
        return Judged(case["id"], Verdict.REPAIRED, f"ours {answer[0]} recorded {case['result']}")
    recorded = (case["result"] if not case["error"] else None, case["error"] or None)
    if malformed and answer != recorded:
        return Judged(case["id"], Verdict.REPAIRED, "the recorded machine contradicts itself")
    return compare(case["id"], answer, recorded)
