"""The locks: every package once, by version and hash, from nowhere in particular."""

import re
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
LOCKS = {path.name: path.read_text() for path in sorted((TOP / "hack").glob("requirements*.lock"))}
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)( ;[^\\]*)? \\$", re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(lock: str) -> dict[str, str]:
    return {normal(name): version for name, version, _ in PINNED.findall(LOCKS[lock])}


def wanted(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[<>=!~ \[;]", text, maxsplit=1)[0]) for text in requirements}


def test_there_is_a_lock_for_running_testing_and_building() -> None:
    kinds = ("", "-cluster", "-dev", "-build", "-fuzz", "-release")
    assert set(LOCKS) == {f"requirements{kind}.lock" for kind in kinds}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address(lock: str) -> None:
    assert "://" not in LOCKS[lock]
    assert not re.search(r"^\s*-", LOCKS[lock].replace("    --hash=sha256:", ""), re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_with_hashes(lock: str) -> None:
    for block in re.split(r"\n(?=\S)", LOCKS[lock].strip()):
        assert PINNED.match(block.splitlines()[0]), block.splitlines()[0]
        assert re.search(r"^    --hash=sha256:[0-9a-f]{64}", block, re.MULTILINE)


def test_the_locks_hold_what_the_project_asks_for() -> None:
    assert wanted(PROJECT["dependencies"]) <= set(versions("requirements.lock"))
    assert wanted(PROJECT["optional-dependencies"]["cluster"]) <= set(versions("requirements-cluster.lock"))
    assert wanted(PROJECT["optional-dependencies"]["dev"]) <= set(versions("requirements-dev.lock"))


def test_tests_run_with_the_versions_that_are_shipped() -> None:
    shipped, tested = versions("requirements.lock"), versions("requirements-dev.lock")
    assert shipped.items() <= versions("requirements-cluster.lock").items() <= tested.items()


def test_what_has_no_wheel_finds_its_build_tool_pinned() -> None:
    assert "setuptools" in versions("requirements-build.lock")
    assert "hatchling" in versions("requirements-build.lock")
