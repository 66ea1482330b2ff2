"""What fuzzing has found, and where it begins, fed again: only the listed exceptions come out."""

import contextlib
from pathlib import Path

import pytest

from tests.fuzz import seeds
from tests.fuzz.targets import CORPUS, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_raises_only_what_is_listed(name: str, tmp_path: Path) -> None:
    seeds.write(name, tmp_path)
    target = TARGETS[name]
    inputs = [*tmp_path.iterdir(), *(CORPUS / name).glob("*")]
    assert len(inputs) > 1
    for path in inputs:
        with contextlib.suppress(*target.allowed):
            target.run(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_is_sound(name: str, tmp_path: Path) -> None:
    """Else fuzzing would begin at the door: each target takes at least one of its seeds without an error."""
    seeds.write(name, tmp_path)
    for path in tmp_path.iterdir():
        with contextlib.suppress(*TARGETS[name].allowed):
            TARGETS[name].run(path.read_bytes())
            return
    raise AssertionError(f"no seed of {name} is taken")
