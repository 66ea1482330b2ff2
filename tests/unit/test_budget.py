"""The counter of code lines, on files whose lines are counted by hand."""

from pathlib import Path

from tests.budget import Module, modules

FILE = '''"""A text."""

import os  # counts
# does not

LIMIT = (
    1,

    2,
)
"""Why two."""


def name() -> str:
    """A docstring
    of two lines."""
    return """counts
    twice"""
'''


def test_docstrings_comments_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(FILE)
    assert Module(path, "nri_plugin.model.one").code_lines == 8
    assert Module(path, "nri_plugin.model.one").comment_lines == 2


def test_a_module_that_only_a_type_checker_imports_is_not_loaded(tmp_path: Path) -> None:
    package = tmp_path / "nri_plugin"
    package.mkdir()
    (package / "a.py").write_text(
        "if TYPE_CHECKING:\n    from nri_plugin import b\n\n\ndef f():\n    from nri_plugin import c\n"
    )
    for name in "bc":
        (package / f"{name}.py").write_text("")
    found = {one.name: one for one in modules(tmp_path)}
    assert found["nri_plugin.a"].imports(set(found)) == {"nri_plugin.c"}
