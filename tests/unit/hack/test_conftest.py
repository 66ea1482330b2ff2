"""--strict-skips: what counts as a failure is tried on real test files in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
CASES = """
import pytest

def test_passes(): pass

def test_skips_for_a_reason(): pytest.skip("no such machine: run it there")

def test_waits_for_data(): pytest.skip("NRI_PIN_VECTORS names no folder")

@pytest.mark.xfail(reason="known")
def test_known_failure(): assert False

@pytest.mark.root
def test_needs_root(): pass
"""


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "conftest.py").write_text((TOP / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = root: needs root\n")

    def pytest_run(text: str, *args: str, **environment: str) -> str:
        (tmp_path / "test_cases.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", *args]
        clean = {
            key: value for key, value in os.environ.items() if not key.startswith(("NRI_PIN_", "PYTEST"))
        }
        done = subprocess.run(
            command, cwd=tmp_path, env=clean | environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    return pytest_run


def test_without_the_option_a_skip_is_a_skip(run) -> None:
    out = run(CASES, "-k", "not root")
    assert "1 passed, 2 skipped, 1 deselected, 1 xfailed" in out


def test_with_the_option_a_skip_fails_unless_it_waits_for_recorded_data(run) -> None:
    out = run(CASES, "-k", "not root", "--strict-skips")
    assert "1 failed, 1 passed, 1 skipped, 1 deselected, 1 xfailed" in out
    assert "skipped under --strict-skips" in out
    assert "no such machine: run it there" in out
    assert "1 skipped for want of recorded data: set NRI_PIN_MACHINES and NRI_PIN_VECTORS" in out


def test_data_that_is_there_is_no_excuse(run) -> None:
    out = run(CASES, "-k", "waits", "--strict-skips", NRI_PIN_VECTORS="/somewhere")
    assert "1 failed" in out


def test_a_whole_file_that_skips_fails_too(run) -> None:
    text = "import pytest\npytest.skip('not here', allow_module_level=True)\n"
    assert "1 skipped" in run(text)
    assert "1 error" in run(text, "--strict-skips")


def test_a_root_test_runs_as_root_and_says_how_otherwise(run) -> None:
    out = run(CASES, "-k", "root")
    if os.geteuid() == 0:
        assert "1 passed" in out
    else:
        assert "needs root: sudo hack/test" in out
