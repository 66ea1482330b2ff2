"""checkpoints/index: state files of the kubelet, their hashes, and what it says of them at start."""

import re
from collections.abc import Iterator
from pathlib import Path

from nri_plugin.checkpoint.kubelet_files import (
    checksum,
    cpu_v1,
    cpu_v2,
    cpu_v3,
    load_refusal,
    memory_v1,
    memory_v2,
    parse,
)
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

RENDER = {
    ("cpu", "v1"): cpu_v1,
    ("cpu", "v2"): cpu_v2,
    ("cpu", "v3"): cpu_v3,
    ("memory", "v1"): memory_v1,
    ("memory", "v2"): memory_v2,
}


def judge(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        yield _judge_case(case, (Path(document["folder"]) / case["file"]).read_bytes())


def _judge_case(case: Case, data: bytes) -> Judged:
    if case.get("hash_input"):
        text = RENDER[case["manager"], case["format"]](parse(data))
        if (text, checksum(text)) != (case["hash_input"], case["checksum"]):
            return Judged(case["name"], Verdict.FAILED, f"ours {text} recorded {case['hash_input']}")
    ours = [
        load_refusal(data, case["manager"], case["policy"], pod_level=pod_level)
        for pod_level in (False, True)
    ]
    recorded = [_reason(case[f"load_error_pod_level_gate_{gate}"]) for gate in ("off", "on")]
    return compare(case["name"], ours, recorded)


def _reason(recorded: str) -> str:
    return re.sub(
        r"^could not restore state from checkpoint: (.*), please drain this node.*$", r"\1", recorded
    )
