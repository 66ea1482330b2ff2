"""A tree of YAML text that keeps the file, line, column and key path of every value, and readers of its values.

Values are read from the text as written, never from YAML's interpretation: in YAML 1.1 `no` is False, `1:30` is
90 and `1_0` is 10, and of two equal keys the last one silently wins. Here each of these is an error with a place.

Flow: walk the events and refuse what could exhaust memory or the stack; compose; build the tree. The readers below
take one value each and raise `ConfigError` with its place.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from nri_plugin.model.errors import ConfigError

MAX_TEXT_CHARS = 1 << 20
"""Longest text that is read; a configuration is a page."""

MAX_DEPTH = 32
"""Deepest nesting that is read; a configuration needs four levels."""

_PLAIN_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,18})\Z")
_TAG_PREFIX = "tag:yaml.org,2002:"
_KINDS = {
    "bool": "a boolean",
    "int": "a number",
    "float": "a number",
    "null": "nothing",
    "timestamp": "a date",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a configuration: the file as named by the caller, line and column from 1, the key path."""

    file: str
    line: int = 0
    column: int = 0
    path: str = ""

    def __str__(self) -> str:
        position = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{position}: {self.path}" if self.path else position

    def error(self, detail: str, more: tuple[str, ...] = ()) -> ConfigError:
        """The error that says `detail` about this place, and further lines."""
        return ConfigError(str(self), detail, more)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written; `kind` is the type that YAML reads (`str`, `int`, `bool`, ...)."""

    place: Place
    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of values."""

    place: Place
    items: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Keys and values; no key twice. `keys` has the place of each key."""

    place: Place
    entries: Mapping[str, "Value"]
    keys: Mapping[str, Place]


Value = Scalar | Sequence | Section


def parse(text: str, file: str) -> Section:
    """The top level of a configuration; an empty text is a section without entries.

    Raises:
        ConfigError: not YAML, no mapping at the top, a key twice, or too big to be a configuration.
    """
    value = parse_any(text, file)
    if isinstance(value, Sequence) or (isinstance(value, Scalar) and value.kind != "null"):
        raise value.place.error(
            "the configuration must be keys and values, such as reservedSystemCPUs: '0,32'"
        )
    return section(value)


def parse_any(text: str, file: str) -> Value:
    """As `parse`, with any kind of value at the top.

    Raises:
        ConfigError: not YAML, a key twice, or too big.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise ConfigError(
            file, f"{len(text)} characters, more than the {MAX_TEXT_CHARS} a configuration may have"
        )
    node = _compose(text, file)
    return Section(Place(file, 1, 1), {}, {}) if node is None else _value(node, file, "")


def _compose(text: str, file: str) -> yaml.Node | None:
    try:
        refuse_traps(text, file)
        return yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _place(error.problem_mark, file).error(f"not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(file, f"not YAML: {' '.join(str(error).split())}") from None


def refuse_traps(text: str, file: str, most_depth: int = MAX_DEPTH, *, takes_aliases: bool = False) -> None:
    """Refuse deep nesting, on which composing would recurse, and aliases, which can multiply without end.

    Raises:
        ConfigError: it has one of these.
        YAMLError: it is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > most_depth:
            raise _place(event.start_mark, file).error(f"nested deeper than {most_depth} levels")
        if isinstance(event, yaml.AliasEvent) and not takes_aliases:
            raise _place(event.start_mark, file).error(
                f"*{event.anchor} is an alias; write the value out instead"
            )


def _place(mark: Any, file: str, path: str = "") -> Place:
    """The place of a mark. The parser's marks have one type in C and another in Python."""
    return Place(file, mark.line + 1, mark.column + 1, path) if mark else Place(file, path=path)


def _value(node: yaml.Node, file: str, path: str) -> Value:
    place = _place(node.start_mark, file, path)
    if isinstance(node, yaml.MappingNode):
        return _section(node, place)
    if isinstance(node, yaml.SequenceNode):
        items = (_value(item, file, f"{path}[{index}]") for index, item in enumerate(node.value))
        return Sequence(place, tuple(items))
    return Scalar(place, node.value, node.tag.removeprefix(_TAG_PREFIX))


def _section(node: yaml.MappingNode, place: Place) -> Section:
    entries: dict[str, Value] = {}
    keys: dict[str, Place] = {}
    for key, value in node.value:
        mark = key.start_mark
        if not isinstance(key, yaml.ScalarNode):
            raise Place(place.file, mark.line + 1, mark.column + 1, place.path).error(
                "a key must be a plain word"
            )
        path = f"{place.path}.{key.value}" if place.path else key.value
        here = Place(place.file, mark.line + 1, mark.column + 1, path)
        if key.value in keys:
            raise here.error(f"given twice, first on line {keys[key.value].line}; keep one of them")
        keys[key.value] = here
        entries[key.value] = _value(value, place.file, path)
    return Section(place, entries, keys)


def scalar(value: Value) -> Scalar:
    """The value, which must be a single one.

    Raises:
        ConfigError: the value is a list or a section.
    """
    if isinstance(value, Scalar):
        return value
    what = "a list" if isinstance(value, Sequence) else "keys and values"
    raise value.place.error(f"expected one value, found {what}")


def text(value: Value) -> str:
    """A word as written; a word that YAML would read as something else needs quotes.

    Raises:
        ConfigError: the value is a list or a section, or YAML reads it as a boolean, a number, a date or nothing.
    """
    found = scalar(value)
    if found.kind == "str":
        return found.text
    if found.kind == "null" and not found.text:
        raise found.place.error("there is nothing behind the key; write a value, or remove the key")
    raise found.place.error(f"expected a word, found {as_read(found)}; put it in quotes")


def as_read(found: Scalar) -> str:
    """A value as an error names it: with the type that YAML reads, where that may surprise."""
    if found.kind == "str":
        return found.text or "an empty text"
    if found.kind == "null":
        return "nothing"
    return f"{found.text}, which YAML reads as {_KINDS.get(found.kind, found.kind)}"


def text_or_number(value: Value) -> str:
    """A word, or a plain decimal number or fraction as written.

    Raises:
        ConfigError: as `text`, and for numbers in a form that YAML reads differently, such as 010 or 1_0 or 1:30.
    """
    found = scalar(value)
    if found.kind in ("int", "float") and re.fullmatch(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?", found.text):
        return found.text
    return text(value)


def number(value: Value) -> int:
    """A plain decimal number.

    Raises:
        ConfigError: anything else, also forms that YAML reads as a number, such as 0x10, 1_0 and 1:30.
    """
    found = scalar(value)
    if found.kind == "int" and _PLAIN_NUMBER.match(found.text):
        return int(found.text)
    raise found.place.error(f"expected a plain number such as 0 or 12, found {found.text or 'nothing'}")


def flag(value: Value) -> bool:
    """`true` or `false`.

    Raises:
        ConfigError: anything else, also the words YAML 1.1 reads as booleans: yes, no, on, off.
    """
    found = scalar(value)
    if found.kind == "bool" and found.text.lower() in ("true", "false"):
        return found.text.lower() == "true"
    raise found.place.error(f"expected true or false, found {found.text or 'nothing'}")


def section(value: Value) -> Section:
    """Keys and values; an empty value counts as none.

    Raises:
        ConfigError: a single value or a list.
    """
    if isinstance(value, Section):
        return value
    if isinstance(value, Scalar) and value.kind == "null":
        return Section(value.place, {}, {})
    raise value.place.error("expected keys and values below it")


def items(value: Value) -> Iterator[Value]:
    """The members of a list; an empty value counts as none.

    Raises:
        ConfigError: a single value or keys.
    """
    if isinstance(value, Sequence):
        return iter(value.items)
    if isinstance(value, Scalar) and value.kind == "null":
        return iter(())
    raise value.place.error("expected a list: lines that begin with a dash, or [a, b]")
