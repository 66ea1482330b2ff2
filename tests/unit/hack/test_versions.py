"""The version is in one place, nri_plugin/__init__.py; what has to repeat it says the same."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nri_plugin import __version__

TOP = Path(__file__).parents[3]
IMAGE = re.compile(r"nri-pin(?:-cluster)?:(\d+\.\d+\.\d+)")
NAMING_IMAGES = [
    *(TOP / "deploy").glob("*.yaml"),
    *(TOP / "deploy").glob("guide/*.md"),
    TOP / "deploy/Containerfile",
    *(TOP / "deploy/kustomize").rglob("*.yaml"),
]


def test_the_package_takes_its_version_from_the_code() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "nri_plugin/__init__.py"


def test_the_build_tool_reads_it_there() -> None:
    words = [sys.executable, "-P", "-m", "hatchling", "version"]
    done = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


def test_the_changelog_has_a_section_for_it() -> None:
    lines = (TOP / "deploy/guide/CHANGELOG.md").read_text().splitlines()
    assert f"## {__version__}" in lines


@pytest.mark.parametrize("path", NAMING_IMAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_every_image_that_is_named_has_it(path: Path) -> None:
    assert set(IMAGE.findall(path.read_text())) <= {__version__}
