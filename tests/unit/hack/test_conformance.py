"""hack/conformance: what it recognises, what it counts, and that it can fail."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.vectors.judges.registry import OURS, SCHEMAS, load, recordings, stem
from tests.vectors.judges.running import main

KUBELET = OURS / "kubelet"


def cases_of(name: str, number: int = 12) -> dict:
    """A small document of one schema."""
    document = load(next(OURS.rglob(f"{name}.json*")))
    document.pop("folder")
    return {**document, "cases": document["cases"][:number]}


def judged(capsys: pytest.CaptureFixture[str], *places: Path) -> tuple[int, list[str]]:
    """Exit code and lines."""
    return main([str(place) for place in places]), capsys.readouterr().out.splitlines()


def write(path: Path, document: object) -> Path:
    text = json.dumps(document)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["other.json", "more-cases.json.gz", "deep.name.with.points.json"])
def test_file_of_any_name_is_recognised_by_what_its_cases_hold(name, tmp_path, capsys):
    write(tmp_path / name, cases_of("merge"))
    code, lines = judged(capsys, tmp_path)
    assert (code, lines[-1]) == (0, "12 passed, 0 failed")
    assert "like merge" in lines[0]


def test_every_recording_is_recognised_without_its_name(tmp_path):
    for _, path, document in recordings(OURS):
        del document["folder"]
        cases = {**document, "cases": document["cases"]}
        write(tmp_path / f"renamed-{stem(path)}.json", cases)
    found = {stem(path).removeprefix("renamed-"): schema for schema, path, _ in recordings(tmp_path)}
    assert found == {name: "score" if name == "seed_examples" else name for name in SCHEMAS}


@pytest.mark.parametrize(
    "content",
    ['{"cases": []}', '{"cases": [{"id": "x", "what": 1}]}', "[1, 2]", "{", "", '{"cases": 3}', '"text"'],
)
def test_file_of_unknown_schema_is_a_failure(content, tmp_path, capsys):
    (tmp_path / "mystery.json").write_text(content)
    write(tmp_path / "merge.json", cases_of("merge"))
    code, lines = judged(capsys, tmp_path)
    assert (code, lines[-1]) == (1, "12 passed, 1 failed")
    assert any(line.startswith("mystery.json: FAILED, unknown schema") for line in lines)


def test_file_that_is_no_recording_at_all_is_a_failure(tmp_path, capsys):
    (tmp_path / "notes.bin").write_bytes(b"\x1f\x8b\x08broken")
    assert judged(capsys, tmp_path)[0] == 1


def test_one_changed_answer_is_one_failure(tmp_path, capsys):
    document = cases_of("cpu_packed")
    document["cases"][5]["result"] = "1-3"
    write(tmp_path / "cpu_packed.json", document)
    code, lines = judged(capsys, tmp_path)
    assert (code, lines[-1]) == (1, "11 passed, 1 failed")
    assert any(document["cases"][5]["id"] in line for line in lines)


def test_case_that_cannot_be_judged_fails_alone(tmp_path, capsys):
    document = cases_of("cpu_static_sequences")
    del document["cases"][3]["steps"][0]["pod"]
    document["cases"][4]["topology"] = "a machine that nobody described"
    write(tmp_path / "cpu_static_sequences.json", document)
    assert judged(capsys, tmp_path)[1][-1] == "10 passed, 2 failed"


def test_texts_figures_and_samples_are_listed_as_not_cases(tmp_path, capsys):
    shutil.copytree(KUBELET / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "README.md").write_text("words")
    write(tmp_path / "bench_go.json", {"results": []})
    code, lines = judged(capsys, tmp_path)
    assert (code, lines[-1]) == (0, "46 passed, 0 failed")
    listed = [line.partition(":")[0] for line in lines if "not cases" in line]
    assert {"README.md", "bench_go.json", "checkpoints/cpu_manager_state.v1-0.json"} <= set(listed)


def test_sample_that_no_index_names_is_unknown(tmp_path, capsys):
    write(tmp_path / "cpu_manager_state.new.json", {"policyName": "static"})
    assert judged(capsys, tmp_path)[0] == 1


def test_single_files_and_several_folders_can_be_named(tmp_path, capsys):
    single = write(tmp_path / "a.json", cases_of("merge", 3))
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "b.json.gz", cases_of("cpu_packed", 4))
    assert judged(capsys, single, folder)[1][-1] == "7 passed, 0 failed"


def test_nothing_to_judge_is_told_apart_from_failing(tmp_path, capsys):
    assert judged(capsys, tmp_path)[0] == 2
    assert judged(capsys, tmp_path / "missing")[0] == 2
    (tmp_path / "README.md").write_text("words")
    assert judged(capsys, tmp_path)[0] == 2


CHANGES = {
    "admission": ("initial_default", "reserved"),
    "cpu_static_sequences": ("initial_default", "reserved", "restart_error"),
    "memory_hints": ("restart_error",),
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in CHANGES.items() for key in keys])
def test_what_a_sequence_starts_and_ends_with_is_compared(name, key, tmp_path, capsys):
    document = cases_of(name, 40)
    case = next(
        c for c in document["cases"] if "steps" in c["expect"] and not c["expect"].get("restart_error")
    )
    case["expect"][key] = "0,2,4"
    write(tmp_path / f"{name}.json", {**document, "cases": [case]})
    assert judged(capsys, tmp_path)[1][-1] == "0 passed, 1 failed"


def test_recorded_cpus_that_were_not_on_offer_count_as_repaired_only_where_averages_mislead(tmp_path, capsys):
    """An even machine leads the reference to no such answer, so there it is a difference."""
    document = cases_of("cpu_static_sequences", 200)
    entries = (
        (case, entry)
        for case in document["cases"]
        if "inconsistent" not in document["topologies"][case["topology"]] and "smt" in case["topology"]
        for step in case["expect"].get("steps", ())
        for entry in step.get("containers", ())
        if entry.get("cpuset")
    )
    case, entry = next(entries)
    entry["cpuset"] += ",999"
    write(tmp_path / "cpu_static_sequences.json", {**document, "cases": [case]})
    assert judged(capsys, tmp_path)[1][-1] == "0 passed, 1 failed"
