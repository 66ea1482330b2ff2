"""The kubelet's settings, read from its flags and files as the kubelet itself reads them.

The main file comes first. Drop-ins `*.conf` below --config-dir, folders included, follow in the order of a walk, each a
JSON merge patch: maps are merged, null removes, anything else replaces. Flags win over files as a whole.

Source: kubelet v1.37 cmd/kubelet/app/server.go, mergeKubeletConfigurations (filepath.WalkDir, jsonpatch.MergePatch) and
    kubeletConfigFlagPrecedence.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from nri_plugin.checkpoint.kubelet_files import UnreadableError, parse
from nri_plugin.cli.doctor.view import Hidden, NodeView, Process, Stranger
from nri_plugin.config.keys import flag_of
from nri_plugin.model.option_rows import CPU_MANAGER
from nri_plugin.model.options import REGISTRY

FOLDER = "/var/lib/kubelet"
CONFIG_FILE = f"{FOLDER}/config.yaml"
POD_RESOURCES = f"{FOLDER}/pod-resources/kubelet.sock"
STATE_FILES = (f"{FOLDER}/cpu_manager_state", f"{FOLDER}/memory_manager_state")

CPU_POLICY = REGISTRY["cpu_manager_policy"].name
MEMORY_POLICY = REGISTRY["memory_manager_policy"].name
TOPOLOGY_POLICY = REGISTRY["topology_manager_policy"].name
CPU_OPTIONS = CPU_MANAGER.key
RESERVED_CPUS = "reservedSystemCPUs"
RESERVED_AMOUNTS = ("kubeReserved", "systemReserved")
RESERVING_CGROUPS = ("kubeReservedCgroup", "systemReservedCgroup")
"""The kubelet refuses reservedSystemCPUs beside one of these.

Source: kubelet v1.36 and v1.37 pkg/kubelet/apis/config/validation/validation.go.
"""

CGROUP_DRIVER = "cgroupDriver"

FLAGS = {
    flag_of(key): key
    for key in (
        CPU_POLICY,
        MEMORY_POLICY,
        TOPOLOGY_POLICY,
        CPU_OPTIONS,
        *RESERVED_AMOUNTS,
        *RESERVING_CGROUPS,
        CGROUP_DRIVER,
    )
} | {"--reserved-cpus": RESERVED_CPUS}
"""The key that each flag of the kubelet replaces."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it is set.

    Attributes:
        value: as text; `NAME=VALUE,NAME=VALUE` for a map, as on the command line.
        path: the file; empty for the command line.
        line: where the key is in the file; 0 where that is not known.
        flag: the option of the command line; empty for a file.
    """

    value: str
    path: str = ""
    line: int = 0
    flag: str = ""

    @property
    def where(self) -> str:
        """`file:line`, or the option of the command line."""
        if self.flag:
            return f"{self.flag} on its command line"
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Settings of the kubelet.

    Attributes:
        files: the files that were read.
        by_key: the settings that are written; the kubelet has its defaults for the rest.
        broken: a file that is not valid, and why; empty when all are valid.
        cpu_options: every place with options of the CPU Manager; those of several files count together.
        line_files: files with a key on a line to itself, which can be edited line by line.
    """

    files: tuple[str, ...] = ()
    by_key: Mapping[str, Setting] = field(default_factory=dict)
    broken: str = ""
    cpu_options: tuple[Setting, ...] = ()
    line_files: tuple[str, ...] = ()


def kubelets(
    view: NodeView, processes: Sequence[Process], pids: Sequence[int] = ()
) -> tuple[list[Process], list[Stranger]]:
    """The kubelet of this host, and strangers of its name; a kubelet inside another program (k3s) is not found.

    Args:
        view: the node.
        processes: of the node.
        pids: the main process of its unit.
    """
    names = ("kubelet", "hyperkube")
    return view.services(processes, lambda process: process.name in names, [POD_RESOURCES], pids)


def read_kubelet(view: NodeView, process: Process | None) -> KubeletSettings | Hidden | None:
    """Its settings; None when there is no kubelet on this node."""
    texts = read_texts(view, process)
    if isinstance(texts, Hidden):
        return texts
    return _settings(texts, process) if texts or process else None


def read_texts(view: NodeView, process: Process | None) -> dict[str, str] | Hidden:
    """Its configuration files that are there, by path, in the order in which they count."""
    folder = process.option("--config-dir") if process else None
    texts = {}
    for path in ((process.option("--config") if process else None) or CONFIG_FILE, *_drop_ins(view, folder)):
        text = path if isinstance(path, Hidden) else view.text(path)
        if isinstance(text, Hidden):
            return text
        if text is not None:
            texts[str(path)] = text
    return texts


def _drop_ins(view: NodeView, folder: str | None) -> Iterator[str | Hidden]:
    """The drop-ins below a folder; links to folders are not followed, as in the kubelet's walk."""
    if not folder or os.path.islink(_unfollowed(view, folder)):
        return
    names = view.names(folder)
    if isinstance(names, Hidden):
        yield names
        return
    for name in names or ():
        path = os.path.join(folder, name)
        place = _unfollowed(view, path)
        if os.path.isdir(place) and not os.path.islink(place):
            yield from _drop_ins(view, path)
        elif name.endswith(".conf"):
            yield path


def _unfollowed(view: NodeView, path: str) -> str:
    """Where a path is from here, without following its last part."""
    above, name = os.path.split(path)
    return os.path.join(str(view.find(above)), name)


def merged(table: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch: maps are merged, null removes, anything else replaces. Source: RFC 7396."""
    found = dict(table)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            before = found.get(key)
            found[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            found[key] = value
    return found


def read_state_policy(view: NodeView, path: str) -> str | Hidden | None:
    """The policy a manager last ran under; empty where its file says none, None when there is no file."""
    text = view.text(path)
    if not isinstance(text, str):
        return text
    try:
        return str(parse(text.encode()).get("policyName", ""))
    except UnreadableError:
        return ""


def _settings(texts: Mapping[str, str], process: Process | None) -> KubeletSettings:
    found: dict[str, Setting] = {}
    options: list[Setting] = []
    whole: dict[str, Any] = {}
    line_files = []
    broken = ""
    for path, text in texts.items():
        try:
            table = _yaml(text)
        except ValueError as error:
            broken = f"{path}: {error}"
            continue
        lines, has_lines = _lines(text)
        line_files += [path] if has_lines else []
        whole = merged(whole, table)
        for key in FLAGS.values():
            if key not in table:
                continue
            before = found.pop(key, None)
            here = Setting(_text(whole.get(key, "")), path, lines.get(key, 0))
            if key in RESERVED_AMOUNTS and before is not None and "cpu" not in (table[key] or {}):
                here = replace(before, value=here.value)  # its CPUs come from the former file
            if key == CPU_OPTIONS:
                own = Setting(_text(table[key] or {}), path, lines.get(key, 0))
                options = [*options, own] if key in whole else []
            if key in whole:
                found[key] = here
    for flag, key in FLAGS.items():
        value = process.option(flag) if process else None
        if value is not None:
            found[key] = Setting(value, flag=flag)
            options = [found[key]] if key == CPU_OPTIONS else options
    kept = tuple(one for one in options if one.value)
    return KubeletSettings(tuple(texts), found, broken, kept, tuple(line_files))


def _text(value: Any) -> str:
    """A value as on the command line."""
    return ",".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else str(value)


def _lines(text: str) -> tuple[Mapping[str, int], bool]:
    """The line of each key, and whether the file can be edited line by line, which JSON cannot."""
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    found = {key.value: key.start_mark.line + 1 for key, _ in root.value}
    return found, not root.flow_style


def _yaml(text: str) -> Mapping[str, Any]:
    try:
        table = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("not YAML: " + " ".join(str(error).split())) from None
    if not isinstance(table, dict):
        raise ValueError("no table of keys and values")  # noqa: TRY004 - a wrong file, not a wrong call
    return table
