"""The configuration of a kubelet as a whole: what counts of its files and flags, and the edits that change it.

A key is changed where its value comes from. A key that is nowhere goes into the main file, or beside another flag where
the kubelet has no file. What is not changed stays as it is, comments included.

A YAML file in block style is changed line by line, one in flow style (JSON) is written anew. The result is parsed again:
a change that has another effect than the one asked for is refused. Flags are found as words in systemd units, in their
drop-ins and in the environment files that units read.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from nri_plugin.cli.doctor.settings import (
    CPU_OPTIONS,
    CPU_POLICY,
    FOLDER,
    MEMORY_POLICY,
    RESERVED_CPUS,
    RESERVING_CGROUPS,
    TOPOLOGY_POLICY,
    merged,
    read_texts,
)
from nri_plugin.cli.doctor.view import Hidden, NodeView, Process
from nri_plugin.cli.migrate.host import FileEdit, Systemd
from nri_plugin.config.keys import flag_of
from nri_plugin.config.values import FEATURE_GATES
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.option_rows import TOPOLOGY_MANAGER
from nri_plugin.model.options import REGISTRY
from nri_plugin.model.sets import CPUSet

TOPOLOGY_SCOPE = REGISTRY["topology_manager_scope"].name
TOPOLOGY_OPTIONS = TOPOLOGY_MANAGER.key
RESERVED_MEMORY = REGISTRY["reserved_memory"].name
GATES = "featureGates"
EVICTION = "evictionHard"
MERGE_EVICTION = "mergeDefaultEvictionSettings"
AMOUNTS = ("kubeReserved", "systemReserved")

FLAG_BY_KEY: Mapping[str, str] = {
    key: flag_of(key)
    for key in (
        CPU_POLICY,
        CPU_OPTIONS,
        MEMORY_POLICY,
        TOPOLOGY_POLICY,
        TOPOLOGY_SCOPE,
        TOPOLOGY_OPTIONS,
        RESERVED_MEMORY,
        GATES,
        EVICTION,
        *AMOUNTS,
        *RESERVING_CGROUPS,
    )
} | {RESERVED_CPUS: "--reserved-cpus"}
"""The kubelet's flag for each key that concerns the agent."""

PARTIAL = (GATES, *AMOUNTS)
"""Maps of which only some entries concern the agent: a change leaves the others."""

OFF: Mapping[str, Any] = {
    CPU_POLICY: "none",
    MEMORY_POLICY: "None",
    TOPOLOGY_POLICY: "none",
    CPU_OPTIONS: None,
}
"""The kubelet without its managers. The policies none read neither the options of the Topology Manager nor reservedMemory,
so these stay; a kubelet with the CPU Manager's policy none does not start with `cpuManagerPolicyOptions`.

Source: kubelet v1.36 cm/cpumanager/policy_none.go, topologymanager/topology_manager.go, memorymanager/memory_manager.go.
"""

VENDOR = ("/usr/lib/systemd/system/", "/lib/systemd/system/")
OVERRIDES = "/etc/systemd/system/"
"""A unit file or drop-in here replaces that of a package with the same name."""


@dataclass(frozen=True, slots=True)
class KubeletFiles:
    """A kubelet's configuration, as it is written.

    Attributes:
        process: None where none runs.
        texts: by path: its configuration files, the main one first.
        unit_texts: by path: unit files, drop-ins and environment files that may hold flags.
        tables: the same as `texts`, parsed.
    """

    process: Process | None
    texts: Mapping[str, str]
    unit_texts: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Its root directory."""
        return (self.process.option("--root-dir") if self.process else None) or FOLDER

    def flag(self, key: str) -> str | None:
        """The value on its command line; None for none."""
        return self.process.option(FLAG_BY_KEY[key]) if self.process else None

    def unread_flag(self) -> str:
        """A flag that its unit's files have while no command line tells whether it counts; empty for none."""
        if self.process is not None:
            return ""
        texts = self.unit_texts.values()
        return next(
            (flag for flag in FLAG_BY_KEY.values() if any(flag_values(text, flag) for text in texts)), ""
        )

    def effective(self) -> dict[str, Any]:
        """The values that count, by key."""
        found: dict[str, Any] = {}
        for table in self.tables.values():
            found = merged(found, table)
        texts = {key: text for key in FLAG_BY_KEY if (text := self.flag(key)) is not None}
        given = {key: from_flag(key, text) for key, text in texts.items()}
        # Gates alone are merged with those of the files.
        return found | given | ({GATES: found.get(GATES, {}) | given[GATES]} if GATES in given else {})


def read_kubelet_files(view: NodeView, process: Process | None, services: Systemd, unit: str) -> KubeletFiles:
    """Read them all.

    Raises:
        HostError: one cannot be seen from here.
        ConfigError: one is no YAML.
    """
    texts = _seen(read_texts(view, process), "the kubelet's configuration")
    units = [services.show(unit, "FragmentPath"), *services.show(unit, "DropInPaths").split()]
    unit_texts = _texts(view, [path for path in units if path])
    environment = [path for text in unit_texts.values() for path in environment_files(text)]
    unit_texts |= _texts(view, list(dict.fromkeys(environment)))
    tables = {path: table_of(text, path) for path, text in texts.items()}
    return KubeletFiles(process, texts, unit_texts, tables)


def _texts(view: NodeView, paths: Sequence[str]) -> dict[str, str]:
    found = {path: _seen(view.text(path), path) for path in paths}
    return {path: text for path, text in found.items() if text is not None}


def _seen(found: Any, path: str) -> Any:
    if isinstance(found, Hidden):
        raise HostError(path, f"cannot be seen from here ({found.why or f'mount {found.path}'})")
    return found


def from_flag(key: str, text: str) -> Any:
    """A flag's value as a file has it."""
    if key == RESERVED_MEMORY:
        return [
            {"numaNode": int(node), "limits": _pairs(limits, "=")}
            for node, _, limits in (part.partition(":") for part in text.split(";") if part)
        ]
    if key == EVICTION:
        return _pairs(text, "<")
    if key == GATES:
        return {name: value.lower() == "true" for name, value in _pairs(text, "=").items()}
    return _pairs(text, "=") if key in (CPU_OPTIONS, TOPOLOGY_OPTIONS, *AMOUNTS) else text


def _pairs(text: str, mark: str) -> dict[str, str]:
    return {
        name.strip(): value.strip()
        for name, _, value in (one.partition(mark) for one in text.split(",") if one.strip())
    }


def as_flag(key: str, value: Any) -> str:
    """A value as the flag has it."""
    if isinstance(value, list):
        return ";".join(f"{one['numaNode']}:{as_flag(key, one['limits'])}" for one in value)
    if isinstance(value, dict):
        mark = "<" if key == EVICTION else "="
        return ",".join(f"{name}{mark}{_word(one)}" for name, one in value.items())
    return _word(value)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- what is to change


def to_plugin_changes(now: Mapping[str, Any], reserved: CPUSet, reserved_count: int) -> dict[str, Any]:
    """The changes that switch the managers off, and let the kubelet reserve what the agent reserves.

    Args:
        now: what counts.
        reserved: the agent's CPUs for the system.
        reserved_count: how many CPUs the kubelet keeps by the amounts of kubeReserved and systemReserved.
    """
    theirs = str(now.get(RESERVED_CPUS) or "")
    same = CPUSet.parse(theirs) == reserved if theirs else reserved_count == len(reserved)
    more = {} if same or not reserved or reserving_cgroup(now) else {RESERVED_CPUS: str(reserved)}
    return differing(now, {**OFF, **more})


def reserving_cgroup(now: Mapping[str, Any]) -> str:
    """The key beside which the kubelet refuses reservedSystemCPUs; empty for none."""
    return next((key for key in RESERVING_CGROUPS if now.get(key)), "")


def to_kubelet_changes(now: Mapping[str, Any], agent: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that give the kubelet the agent's policies, options and reservations.

    Args:
        now: what counts.
        agent: the agent's configuration.
    """
    wanted: dict[str, Any] = {
        CPU_POLICY: agent.get(CPU_POLICY, "static"),
        MEMORY_POLICY: agent.get(MEMORY_POLICY, "None"),
        TOPOLOGY_POLICY: agent.get(TOPOLOGY_POLICY, "none"),
        CPU_OPTIONS: agent.get(CPU_OPTIONS) or None,
        TOPOLOGY_OPTIONS: agent.get(TOPOLOGY_OPTIONS) or None,
        TOPOLOGY_SCOPE: agent.get(TOPOLOGY_SCOPE, "container"),
    }
    for key in (RESERVED_CPUS, RESERVED_MEMORY, EVICTION, GATES, *AMOUNTS):
        if agent.get(key) not in (None, "", {}, []):
            wanted[key] = agent[key]
    if reserving_cgroup(now):
        wanted.pop(RESERVED_CPUS, None)
    if GATES in wanted:
        wanted[GATES] = {name: on for name, on in wanted[GATES].items() if name not in LOCKED_GATES}
    return differing(now, {key: _as_decoded(key, value) for key, value in wanted.items()})


def _as_decoded(key: str, value: Any) -> Any:
    """A value with the types that the kubelet decodes: strings in every map but that of gates. The agent takes more."""
    if isinstance(value, dict):
        texts = {name: _word(one) for name, one in value.items() if one is not None}
        return {name: text == "true" for name, text in texts.items()} if key == GATES else texts
    if key == RESERVED_MEMORY:
        return [
            {"numaNode": int(one["numaNode"]), "limits": {k: _word(v) for k, v in one["limits"].items()}}
            for one in value
        ]
    return value if value is None else _word(value)


LOCKED_GATES = (
    "CPUManager",
    "MemoryManager",
    "TopologyManager",
    "CPUManagerPolicyOptions",
    "TopologyManagerPolicyOptions",
)
"""Gates of stable features, which newer kubelets do not know any more."""

DEFAULTS: Mapping[str, str] = {
    CPU_POLICY: "none",
    MEMORY_POLICY: "none",
    TOPOLOGY_POLICY: "none",
    TOPOLOGY_SCOPE: "container",
}


def differing(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that are not in effect yet."""
    return {key: value for key, value in wanted.items() if not _is_so(key, now.get(key), value)}


def _is_so(key: str, now: Any, value: Any) -> bool:
    if key in DEFAULTS:
        return str(now or DEFAULTS[key]).lower() == str(value).lower()
    if key in PARTIAL and isinstance(now, dict):
        return all(_word(now.get(name)) == _word(one) for name, one in value.items())
    return now == value or (not now and not value)


def agent_part(now: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent without a configuration of its own gets of the kubelet's."""
    keys = [key for key in (*FLAG_BY_KEY, MERGE_EVICTION) if key not in RESERVING_CGROUPS]
    found = {key: now[key] for key in keys if now.get(key) not in (None, {}, [])}
    gates = {name: on for name, on in found.pop(GATES, {}).items() if name in FEATURE_GATES}
    return found | ({GATES: gates} if gates else {})


# ---- the edits


def edits_of(files: KubeletFiles, changes: Mapping[str, Any]) -> tuple[FileEdit, ...]:
    """The files with the changes, each where the value comes from.

    Raises:
        ConfigError: a value comes from where it cannot be changed.
    """
    by_file, flags, added = _places(files, changes)
    found = [
        FileEdit(path, files.texts[path], with_keys(files.texts[path], one, path))
        for path, one in by_file.items()
    ]
    counting: dict[str, Any] = {}
    for path, table in files.tables.items():
        counting = merged(counting, applied(table, by_file.get(path, {})))
    wanted = next_settings(files, changes)
    for key in changes:
        if files.texts and files.flag(key) is None and counting.get(key) != wanted.get(key):
            places = [path for path, table in files.tables.items() if key in table]
            raise ConfigError(key, f"cannot be changed in {', '.join(places)}; change it by hand")
    return (*found, *_flag_edits(files, flags, added))


def _places(
    files: KubeletFiles, changes: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], dict[str, str | None], dict[str, str]]:
    """Changes by file, changes of flags, and flags that are not there yet."""
    by_file: dict[str, dict[str, Any]] = {}
    flags: dict[str, str | None] = {}
    added: dict[str, str] = {}
    now = files.effective()
    for key, value in changes.items():
        is_flag = files.flag(key) is not None
        holders = [path for path, table in files.tables.items() if key in table]
        whole = {**now.get(key, {}), **value} if key in PARTIAL and value else value
        if is_flag:
            flags[FLAG_BY_KEY[key]] = None if value is None else as_flag(key, whole)
        if value is None:
            stale = [path for path in holders if files.tables[path][key] is not None]
        elif is_flag or holders:
            # Maps of several files count together: one file holds what is wanted, and no other more of it.
            stale = [] if is_flag or not isinstance(value, dict) or key in PARTIAL else holders[:-1]
        elif files.texts:
            stale, holders = [], list(files.texts)[:1]
        else:
            stale = []
            added[FLAG_BY_KEY[key]] = as_flag(key, whole)
        for path in stale:
            by_file.setdefault(path, {})[key] = None
        if value is not None and not is_flag and holders:
            there = files.tables[holders[-1]].get(key) or {}
            by_file.setdefault(holders[-1], {})[key] = {**there, **value} if key in PARTIAL else value
    return by_file, flags, added


def _flag_edits(
    files: KubeletFiles, flags: Mapping[str, str | None], added: Mapping[str, str]
) -> Iterator[FileEdit]:
    if not flags and not added:
        return
    for flag in flags:
        _check_found(files, flag)
    anchors = {
        path: flag
        for path, text in files.unit_texts.items()
        for flag in FLAG_BY_KEY.values()
        if flag_values(text, flag)
    }
    anchor_path = next(iter(anchors), "")
    if added and not anchor_path:
        words = " ".join(f"{flag}={value}" for flag, value in added.items())
        raise ConfigError(
            "the kubelet", f"has no configuration file and no flag to put others beside; add by hand: {words}"
        )
    for path, text in files.unit_texts.items():
        more = added if path == anchor_path else {}
        after = with_flags(text, flags, more, anchors.get(path, ""))
        if after != text:
            yield _edit_of_unit(path, text, after)


def _check_found(files: KubeletFiles, flag: str) -> None:
    value = files.process.option(flag) if files.process else None
    if not any(value in flag_values(text, flag) for text in files.unit_texts.values()):
        raise ConfigError(
            f"{flag}={value}",
            f"is on the kubelet's command line and in none of {', '.join(files.unit_texts) or 'its unit files'}; "
            "move it into the kubelet's configuration file",
        )


def _edit_of_unit(path: str, before: str, after: str) -> FileEdit:
    for folder in VENDOR:
        if path.startswith(folder):
            return FileEdit(OVERRIDES + path.removeprefix(folder), None, after)
    return FileEdit(path, before, after)


def next_settings(files: KubeletFiles, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What counts after the changes."""
    now = files.effective()
    whole = {
        key: {**now.get(key, {}), **value} if key in PARTIAL and value else value
        for key, value in changes.items()
    }
    return applied(now, whole)


# ---- keys in the text of a file

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
