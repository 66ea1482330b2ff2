"""Every script is executable and has its line in hack/README.md."""

import re
from pathlib import Path

import yaml

HACK = Path(__file__).parents[3] / "hack"
SCRIPTS = {path.name for path in HACK.iterdir() if path.is_file() and not path.suffix}


def test_every_script_has_its_line_and_every_line_its_script() -> None:
    rows = re.findall(r"^\| `hack/([a-z0-9-]+)`", (HACK / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(SCRIPTS)


def test_the_workflow_for_a_hosted_ci_calls_scripts_that_are_there() -> None:
    workflow = yaml.safe_load((HACK.parent / ".ci/workflow.yaml").read_text())
    lines = "\n".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    named = set(re.findall(r"(?:hack|\.ci)/[a-z-]+", lines))
    assert named == {".ci/run", "hack/release"}
    assert all((HACK.parent / name).stat().st_mode & 0o111 for name in named)


def test_every_script_can_be_run() -> None:
    assert [name for name in SCRIPTS if not (HACK / name).stat().st_mode & 0o111] == []
