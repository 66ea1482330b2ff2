"""Judges recorded files and prints what came of it: behind hack/conformance."""

import os
import sys
from collections import Counter
from pathlib import Path

from tests.vectors.judges.registry import OURS, SCHEMAS, files_in, no_case, recordings, topology_of_case
from tests.vectors.judges.verdict import Document, Judged, Verdict

SHOWN_FAILURES = 5
SUMMED = (Verdict.PASSED, Verdict.REPAIRED, Verdict.FAILED)

USAGE = """Judge our answers by recorded ones: hack/conformance [DIR or FILE...]

Each DIR holds recorded files (see tests/vectors/README.md), each FILE is one; default: $NRI_PIN_VECTORS, else
those of this checkout, and $NRI_PIN_POD_VECTORS where that is set. What a file holds is told by its name, else by
the keys of its cases. Prints what each file came to; the last line is "N passed, M failed". Exit code 1 when anything
failed, 2 when there is nothing to judge."""


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main(arguments: list[str]) -> int:
    """Judge every file; print one line each and the total."""
    if set(arguments) & {"-h", "--help"}:
        _say(USAGE)
        return 0
    places = [Path(one) for one in arguments or _default_places()]
    wrong = [place for place in places if not files_in(place)]
    if wrong:
        _say(f"{wrong[0]}: no file and no folder with files; name one with recorded answers")
        return 2
    total: Counter[Verdict] = Counter()
    for place in places:
        total += judge_place(place)
    if not total:
        _say(f"{' '.join(map(str, places))}: no file with cases")
        return 2
    for verdict, words in _APART.items():
        if total[verdict]:
            _say(f"{words}: {total[verdict]}")
    _say(f"{total[Verdict.PASSED] + total[Verdict.REPAIRED]} passed, {total[Verdict.FAILED]} failed")
    return 1 if total[Verdict.FAILED] else 0


def _default_places() -> list[str]:
    vectors, pods = os.environ.get("NRI_PIN_VECTORS") or str(OURS), os.environ.get("NRI_PIN_POD_VECTORS")
    return [vectors, pods] if pods else [vectors]


_APART = {
    Verdict.NOT_YET: "not yet supported, not judged",
    Verdict.REPAIRED: "repaired, counted as passed (the recorded answer is a fault, ours is sound)",
}


def judge_place(place: Path) -> "Counter[Verdict]":
    """Print a line for every file below `place` and count the verdicts."""
    total: Counter[Verdict] = Counter()
    for path in files_in(place):
        reason = no_case(path)
        if reason:
            _say(f"{_shown(place, path)}: not cases, {reason}")
    for schema, path, document in recordings(place):
        total += _judge_file(_shown(place, path), schema, document)
    return total


def _shown(place: Path, path: Path) -> str:
    return path.name if place == path else str(path.relative_to(place))


def _judge_file(name: str, schema: str, document: Document) -> "Counter[Verdict]":
    """Print the file's line, its first failures, and what it asks for that is not built yet."""
    if not schema:
        why = document.get("unreadable") or f"its cases are of none of: {', '.join(SCHEMAS)}"
        _say(f"{name}: FAILED, unknown schema: {why}")
        return Counter({Verdict.FAILED: 1})
    judged = judge_all(schema, document)
    count = Counter(one.verdict for one in judged)
    known = "" if Path(name).name.partition(".")[0] == schema else f" (like {schema})"
    _say(
        f"{name}{known}: {', '.join(f'{count[v]} {v}' for v in SUMMED)}"
        + (f", not yet supported: {count[Verdict.NOT_YET]} cases" * bool(count[Verdict.NOT_YET]))
    )
    later = Counter(one.detail for one in judged if one.verdict is Verdict.NOT_YET)
    for feature, cases in sorted(later.items()):
        _say(f"    later: {feature} ({cases})")
    for one in [one for one in judged if one.verdict is Verdict.FAILED][:SHOWN_FAILURES]:
        _say(f"    {one.id}: {one.detail}")
    return count


def judge_all(schema: str, document: Document) -> list[Judged]:
    """Every case judged; one on which a judge fails is a failed case and takes no other along."""
    judge = SCHEMAS[schema].judge
    try:
        return list(judge(document))
    except Exception:  # noqa: BLE001 - told below, for the case it is about
        return [_judge_alone(schema, document, number, case) for number, case in enumerate(document["cases"])]


def _judge_alone(schema: str, document: Document, number: int, case: object) -> Judged:
    label = str(case.get("id", number)) if isinstance(case, dict) else str(number)
    try:
        (judged,) = SCHEMAS[schema].judge(topology_of_case(document, case))  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - whatever it is, the case is not answered
        return Judged(label, Verdict.FAILED, f"{type(error).__name__}: {error}")
    return judged
