"""checkpoints/index: state files of the kubelet, their hashes, and what it says of them at start."""

import re
from collections.abc import Iterator
from pathlib import Path

from nri_plugin.checkpoint.kubelet_export import sealed
from nri_plugin.checkpoint.kubelet_files import (
    Record,
    UnreadableError,
    checksum,
    cpu_v1,
    cpu_v2,
    cpu_v3,
    data_checksum,
    data_of,
    load_refusal,
    memory_v1,
    memory_v2,
    parse,
    verified,
)
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

OF_1_37 = "-of-1.37"
RENDER = {
    ("cpu", "v1"): cpu_v1,
    ("cpu", "v2"): cpu_v2,
    ("cpu", "v3"): cpu_v3,
    ("cpu", "v4"): cpu_v2,
    ("memory", "v1"): memory_v1,
    ("memory", "v2"): memory_v2,
    ("memory", "v3"): memory_v1,
}
REWRITTEN = {
    ("cpu", "off"): cpu_v2,
    ("cpu", "on"): cpu_v3,
    ("memory", "off"): memory_v1,
    ("memory", "on"): memory_v2,
}
GATES = {"off": False, "on": True}


def judge(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        yield _judge_case(case, (Path(document["folder"]) / case["file"]).read_bytes())


def _judge_case(case: Case, data: bytes) -> Judged:
    wrong = _other_hash(case, data)
    if wrong:
        return Judged(case["name"], Verdict.FAILED, wrong)
    ours = [
        _reason(load_refusal(data, case["manager"], case["policy"], pod_level=level))
        for level in GATES.values()
    ]
    recorded = [_reason(case[f"load_error_pod_level_gate_{gate}"]) for gate in GATES]
    if ours != recorded:
        return compare(case["name"], ours, recorded)
    return next(filter(None, (_other_text(case, data, gate) for gate in GATES)), compare(case["name"], 0, 0))


def _other_hash(case: Case, data: bytes) -> str:
    """The hash of ours that differs, or nothing."""
    if case.get("hash_input"):
        text = RENDER[case["manager"], case["format"].removesuffix(OF_1_37)](parse(data))
        # A file that was made by hand may have another checksum; the text is what would be hashed.
        hashes = {checksum(text)} | ({parse(data).get("checksum", 0)} if "made" in case["writer"] else set())
        if text != case["hash_input"] or case["checksum"] not in hashes:
            return f"ours {text} recorded {case['hash_input']}"
    if case.get("data_hash_input"):
        text = parse(data)["data"]
        if (f"(string){text}", data_checksum(text)) != (case["data_hash_input"], case["data_checksum"]):
            return f"data: ours {text} recorded {case['data_hash_input']}"
        if data_of(parse(data)) is None:
            return "data: not read"
    return ""


def _other_text(case: Case, data: bytes, gate: str) -> Judged | None:
    """The verdict where a kubelet that loads the file writes another one; None where it writes ours."""
    told = case.get(f"rewritten_gate_{gate}")
    if told is None:
        return None
    try:
        ours = rewritten(data, case["manager"], gate)
    except UnreadableError as error:
        return Judged(case["name"], Verdict.FAILED, f"rewritten, gate {gate}: ours {error}")
    if ours == told:
        return None
    mine, theirs = parse(ours.encode()), parse(told.encode())
    if "podEntries" not in mine and _without_pods(mine) == _without_pods(theirs):
        return Judged(
            case["name"], Verdict.REPAIRED, "the reference believes podEntries that it did not verify"
        )
    return Judged(case["name"], Verdict.FAILED, f"rewritten, gate {gate}: ours {ours} recorded {told}")


def _without_pods(record: Record) -> Record:
    return {key: value for key, value in record.items() if key not in ("podEntries", "checksum")}


def rewritten(data: bytes, manager: str, gate: str) -> str:
    """The file as a kubelet writes it right after it has loaded it.

    Raises:
        UnreadableError: it does not load it.
    """
    record = verified(parse(data), manager, pod_level=GATES[gate])
    kept: Record = {
        key: record[key]
        for key in ("policyName", "defaultCpuSet", "machineState", "entries", "podEntries")
        if key in record and (record[key] or key not in ("entries", "podEntries"))
    }
    return sealed(kept, REWRITTEN[manager, gate]).decode()


def _reason(told: str) -> str:
    """The part of the kubelet's sentence that is about the file.

    Some releases of Go name the key of the map that a value is in, others do not.
    """
    reason = re.sub(r"^could not restore state from checkpoint: (.*), please drain this node.*$", r"\1", told)
    return re.sub(r"(\.entries)\.\S+ of type", r"\1 of type", reason)
