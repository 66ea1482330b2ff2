"""The texts that list options, made from their rows: the schema of the chart's `config` and the tables of the guide.

`hack/gen-options` writes them; `tests/unit/config/test_registry.py` compares what is checked in.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from nri_plugin.config import values
from nri_plugin.config.keys import KEYS, PLACE_KEYS, SECTION_KEYS, SETTING_KEYS, Key, Settings, words_of
from nri_plugin.model.option_rows import MANAGERS, Level, Option
from nri_plugin.model.options import OPTION_BY_NAME, Options, options_of

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "deploy/chart/values.schema.json"
BEGIN, END = "<!-- options table: begin -->", "<!-- options table: end -->"

Schema = Mapping[str, Any]
OBJECT: Schema = {"type": "object"}
BOOLEAN: Schema = {"type": "boolean"}

BY_READER: Mapping[Any, Schema] = {
    values.cpu_list: {"type": "string", "pattern": r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"},
    values.reserved: OBJECT,
    values.eviction: OBJECT,
    values.feature_gates: {"type": "object", "additionalProperties": BOOLEAN},
    values.reserved_memory: {"type": "array"},
    values.namespaces: {"type": "array", "items": {"type": "string"}},
    values.patterns: {"type": "array", "items": {"type": "string"}},
    values.plugin_name: {"type": "string", "minLength": 1},
    values.plugin_index: {"type": ["string", "integer"], "pattern": "^[0-9]{2}$"},
    values.noise_period: {"type": "integer", "minimum": 0},
    values.history_bytes: {"type": ["integer", "string"]},
}


def sentences(rows: type) -> dict[str, str]:
    """The text below each field of a class, by field."""
    (found,) = ast.parse(inspect.getsource(rows)).body
    assert isinstance(found, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(found.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def config_schema() -> Schema:
    """The schema of the chart's `config`: every key whose value the chart does not choose itself."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _schema_of(name, key) for name, key in KEYS.items() if name not in PLACE_KEYS},
    }


def _schema_of(name: str, key: Key) -> Schema:
    if name in SECTION_KEYS:
        (manager,) = (one for one in MANAGERS if one.key == name)
        options = {option: _option_schema(row) for option, row in options_of(manager).items()}
        return {"type": "object", "additionalProperties": False, "properties": options}
    if words_of(key.kind):
        return {"enum": list(words_of(key.kind))}
    return BOOLEAN if key.kind is bool else BY_READER[key.read]


def _option_schema(row: Option) -> Schema:
    """The kubelet has policy options as texts; booleans and numbers may also be written as such."""
    if words_of(row.kind):
        return {"enum": list(words_of(row.kind))}
    return {"type": ["boolean", "string", "integer"] if row.kind is bool else ["integer", "string"]}


def schema_text() -> str:
    """The chart's values.schema.json with the schema of `config`."""
    schema = json.loads(SCHEMA.read_text())
    schema["definitions"]["config"] = config_schema()
    return json.dumps(schema, indent=2) + "\n"


def guide_tables() -> str:
    """The tables of the guide: the options of the managers, then the keys that no row of an option has."""
    says = sentences(Options)
    options = [
        _option_cells(row, says[row.attribute]) for row in OPTION_BY_NAME.values() if not row.is_derived
    ]
    says = sentences(Settings)
    settings = [(f"`{name}`", _default_of(key), says[key.attribute]) for name, key in SETTING_KEYS.items()]
    return "\n\n".join(
        (
            "\n".join(
                _table(("Option", "Default", "Level", "Affects", "NodeResourceTopology", "Meaning"), options)
            ),
            "\n".join(_table(("Key", "Default", "Meaning"), settings)),
        )
    )


def _option_cells(row: Option, says: str) -> tuple[str, ...]:
    name = f"`{row.manager.key}:` `{row.name}`" if row.manager else f"`{row.name}`"
    hidden = row.manager is not None and row.level is not Level.GA
    level = f"{row.level}, `{row.gate}`" if hidden else str(row.level)
    return name, _shown(row.default), level, str(row.affects), _code(row.published), says


def _default_of(key: Key) -> str:
    return key.shown or _shown(key.default)


def _shown(value: object) -> str:
    return _code((str(value).lower() if isinstance(value, bool) else str(value)) if _has_text(value) else "")


def _has_text(value: object) -> bool:
    return isinstance(value, bool | str) and value != ""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def guide() -> Path:
    """The one file that holds the markers."""
    pages = [ROOT / "README.md", *sorted((ROOT / "deploy/guide").glob("**/*.md"))]
    (found,) = (page for page in pages if page.is_file() and BEGIN in page.read_text())
    return found


def guide_text() -> str:
    """That file with the tables between the markers."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{guide_tables()}\n\n{END}", guide().read_text())


def main(words: Sequence[str]) -> None:
    """Write the texts, or compare them with --check."""
    stale = [
        path for path, text in ((SCHEMA, schema_text()), (guide(), guide_text())) if path.read_text() != text
    ]
    if words == ["--check"]:
        sys.exit(f"run hack/gen-options and commit {' '.join(map(str, stale))}" if stale else 0)
    if words:
        sys.exit("usage: hack/gen-options [--check]")
    SCHEMA.write_text(schema_text())
    guide().write_text(guide_text())
