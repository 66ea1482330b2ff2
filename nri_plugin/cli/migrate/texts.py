"""Changes of keys and flags in the kubelet's files; pure. What is not changed stays as it is, comments included.

A YAML file in block style is changed line by line, one in flow style (JSON) is written anew. The result is parsed again:
a change that has another effect than the one asked for is refused. Flags are found as words in systemd units, in their
drop-ins and in the environment files that units read.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from nri_plugin.model.errors import ConfigError

_NO_STRING = re.compile(r"[yYnN]|[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|0o[0-7_]+")
"""Words that the kubelet's reader of YAML takes for a number or a boolean, and PyYAML writes without quotes."""

Changes = Mapping[str, Any]
"""By key: its value; None to remove the key."""


def with_keys(text: str, changes: Changes, where: str) -> str:
    """The text of a YAML or JSON file with these keys changed.

    Raises:
        ConfigError: the file has a form in which the keys cannot be changed safely.
    """
    table = table_of(text, where)
    wanted = applied(table, changes)
    if wanted == table:
        return text
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode) and not root.flow_style:
        found = _edited(text, root, changes)
    else:
        found = json.dumps(wanted, indent=2) + "\n"
    if (_loaded(found) or {}) != wanted:
        raise ConfigError(
            where, f"{', '.join(changes)} cannot be changed in a file of this form; change it by hand"
        )
    return found


def table_of(text: str, where: str) -> dict[str, Any]:
    """The keys and values of a file.

    Raises:
        ConfigError: it is no YAML, or no table.
    """
    try:
        table = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(where, "not YAML: " + " ".join(str(error).split())) from None
    if not isinstance(table, dict):
        raise ConfigError(where, "no table of keys and values")
    return table


def applied(table: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """The table with the changes."""
    return {
        key: value for key, value in {**table, **changes}.items() if key not in changes or value is not None
    }


def _loaded(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _edited(text: str, root: yaml.MappingNode, changes: Changes) -> str:
    """Edit from the last key to the first, so that the places of the others stay right."""
    present = {key.value: (key, value) for key, value in root.value}
    for name in reversed([name for name in present if name in changes]):
        key, value = present[name]
        new = changes[name]
        if isinstance(value, yaml.ScalarNode) and new is not None and not isinstance(new, (dict, list)):
            start, end = value.start_mark.index, value.end_mark.index
            blank = " " if start == key.end_mark.index + 1 else ""
            text = f"{text[:start]}{blank}{_scalar(new)}{text[end:]}"
        else:
            start, end = _lines_of(text, key, value)
            text = text[:start] + _block(name, new) + text[end:]
    added = "".join(_block(name, value) for name, value in changes.items() if name not in present)
    return text + ("" if text.endswith("\n") or not added else "\n") + added


def _lines_of(text: str, key: Any, value: Any) -> tuple[int, int]:
    """From the first line of a key to the end of the last line with anything of its value."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    end = text.find("\n", max(_end(value), key.end_mark.index) - 1)
    return start, len(text) if end < 0 else end + 1


def _end(node: Any) -> int:
    """The place behind a node; the parser ends a block only where the next one begins, comments in between."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        children = [part for one in node.value for part in (one if isinstance(one, tuple) else (one,))]
        return max(map(_end, children), default=node.start_mark.index)
    end: int = node.end_mark.index
    return end


class _Dumper(yaml.SafeDumper):
    """Quotes each string that is none for the kubelet otherwise."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if _NO_STRING.fullmatch(text) else None)


_Dumper.add_representer(str, _quoted)


def _block(name: str, value: Any) -> str:
    return "" if value is None else yaml.dump({name: value}, Dumper=_Dumper, sort_keys=False)


def _scalar(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper).removesuffix("\n").removesuffix("\n...")


# ---- flags

_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'\\]+)"


def _pattern(flag: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?P<before>(?:(?<=[\s\"'=])|^))(?P<name>{re.escape(flag)})(?P<joint>=|[ \t]+)(?P<value>{_VALUE})"
    )


def flag_values(text: str, flag: str) -> list[str]:
    """The values that a file gives a flag, comments left out."""
    return [
        _bare(found["value"])
        for line in text.splitlines()
        if not _is_comment(line)
        for found in _pattern(flag).finditer(line)
    ]


def with_flags(text: str, changes: Mapping[str, str | None], added: Mapping[str, str], anchor: str) -> str:
    """The text of a unit or an environment file with these flags changed.

    Args:
        text: of the file.
        changes: by flag: its value; None to remove it.
        added: flags that follow the first `anchor`, by name.
        anchor: a flag of the file.
    """
    lines = []
    waiting = dict(added)
    for line in text.splitlines(keepends=True):
        if _is_comment(line):
            lines.append(line)
            continue
        new = line
        if waiting and (found := _pattern(anchor).search(new)):
            words = "".join(f" {flag}={value}" for flag, value in waiting.items())
            new, waiting = new[: found.end()] + words + new[found.end() :], {}
        for flag, value in changes.items():
            new = _changed(new, flag, value)
        lines.append(new)
    return "".join(lines)


def _changed(line: str, flag: str, value: str | None) -> str:
    if value is not None:
        return _pattern(flag).sub(_replacing(value), line)
    while found := _pattern(flag).search(line):
        before, after = line[: found.start()], line[found.end() :]
        # One of the blanks around the word goes with it.
        line = before.rstrip(" \t") + after if before[-1:] in (" ", "\t") else before + after.lstrip(" \t")
    return line


def _replacing(value: str) -> Callable[[re.Match[str]], str]:
    def new(found: re.Match[str]) -> str:
        quote = found["value"][0] if found["value"][0] in "\"'" else ""
        return f"{found['name']}{found['joint']}{quote}{value}{quote}"

    return new


def _bare(value: str) -> str:
    return value[1:-1] if value[0] in "\"'" else value


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith(("#", ";"))


def environment_files(text: str) -> Iterator[str]:
    """The files that a unit reads its environment from."""
    for line in text.splitlines():
        name, _, path = line.strip().partition("=")
        if name.strip() == "EnvironmentFile" and path.strip():
            yield path.strip().removeprefix("-")
