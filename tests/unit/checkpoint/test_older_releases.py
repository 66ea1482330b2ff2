"""Files that earlier agents wrote: an upgrade takes them as they are, and an orderly end leaves what those agents read."""

import gzip
import json
from pathlib import Path

import pytest

from nri_plugin.checkpoint.file import CheckpointFile, Origin
from nri_plugin.checkpoint.forms import checkpoint_file, losses_to_version
from nri_plugin.config.loading import load
from nri_plugin.recording.reader import read

RELEASES = Path(__file__).parents[2] / "releases"
ALLOCATED = {
    1: {"u1/db": "2-5"},
    2: {
        "e4e76fa0-9aa0-5c77-a072-578e85c94483/filter": "4-7,36-39",
        "d8de1270-ce7b-520a-ac71-b15ad8720819/train": "8-13,40-45",
        "d6c01d16-9d02-5458-9fd3-42cf12fb8b9f/queue": "3,35",
    },
    3: {"u1/db": "2-5"},
}


def written(version: int, folder: Path) -> CheckpointFile:
    text = (RELEASES / f"checkpoint-v{version}.json").read_bytes()
    assert json.loads(text)["version"] == version
    (folder / "state.json").write_bytes(text)
    return CheckpointFile(str(folder), durable=False)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_upgrade_keeps_every_allocation(tmp_path: Path, version: int) -> None:
    found = written(version, tmp_path).load()
    assert found.origin is Origin.CURRENT
    assert found.state is not None
    cpus = {key: str(one.cpus) for key, one in found.state.allocations.items()}
    assert cpus == ALLOCATED[version]
    assert len(found.state.containers) >= 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_orderly_end_leaves_the_form_that_the_release_before_reads(tmp_path: Path, version: int) -> None:
    file = written(version, tmp_path)
    state = file.load().state
    assert state is not None
    file.append(state)
    assert b'"version":4' in (tmp_path / "state.json").read_bytes().splitlines()[0]
    file.finish()
    assert json.loads((tmp_path / "state.json").read_bytes())["version"] == 3


@pytest.mark.parametrize("version", [1, 2])
def test_a_conversion_for_an_older_release_loses_no_allocation(tmp_path: Path, version: int) -> None:
    state = written(2, tmp_path).load().state
    assert state is not None
    assert losses_to_version(state, version).allocations == ()
    (tmp_path / "state.json").write_bytes(checkpoint_file(state, None, version=version))
    again = CheckpointFile(str(tmp_path), durable=False).load().state
    assert again is not None
    assert again.allocations.keys() == state.allocations.keys()


def test_an_older_history_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_bytes(gzip.decompress((RELEASES / "history-v1.jsonl.gz").read_bytes()))
    lines = path.read_bytes().splitlines()
    assert json.loads(lines[0])["version"] == 1
    moments = list(read(str(path)).moments())
    assert len(moments) > 10


def test_an_older_configuration_is_taken() -> None:
    assert load(str(RELEASES / "config.yaml")).options.prefer_align_cpus_by_uncore_cache
