"""Every script is executable and has its line in hack/README.md."""

import re
from pathlib import Path

HACK = Path(__file__).parents[3] / "hack"
SCRIPTS = {path.name for path in HACK.iterdir() if path.is_file() and not path.suffix}


def test_every_script_has_its_line_and_every_line_its_script() -> None:
    rows = re.findall(r"^\| `hack/([a-z0-9-]+)`", (HACK / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(SCRIPTS)


def test_every_script_can_be_run() -> None:
    assert [name for name in SCRIPTS if not (HACK / name).stat().st_mode & 0o111] == []
