"""How the node's kubelet is set, as far as CPUs and memory go: command line over drop-ins over file; and its state files.

Source: kubelet cmd/kubelet/app (flags win over files, drop-ins `*.conf` of --config-dir in the order of their names).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.host.kubelet_checkpoint import UnreadableError, parse
from nri_plugin.host.node_evidence import Hidden, NodeView, Process

FOLDER = "/var/lib/kubelet"
CONFIG_FILE = f"{FOLDER}/config.yaml"
POD_RESOURCES = f"{FOLDER}/pod-resources/kubelet.sock"
STATE_FILES = (f"{FOLDER}/cpu_manager_state", f"{FOLDER}/memory_manager_state")
FLAGS = {
    "--cpu-manager-policy": "cpuManagerPolicy",
    "--memory-manager-policy": "memoryManagerPolicy",
    "--topology-manager-policy": "topologyManagerPolicy",
    "--cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "--reserved-cpus": "reservedSystemCPUs",
    "--kube-reserved": "kubeReserved",
    "--system-reserved": "systemReserved",
    "--cgroup-driver": "cgroupDriver",
}
OPTIONS = "cpuManagerPolicyOptions"
KEYS = (*FLAGS.values(), "cgroupRoot")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it stands.

    Attributes:
        value: as text; `NAME=VALUE,NAME=VALUE` for a map, as on the command line.
        where: `file:line`, or the option of the command line.
        path: of the file; empty for the command line.
        lines: the first and the last line of the file that hold key and value and nothing else; None where the file
            is JSON or the like, which cannot be edited line by line.
    """

    value: str
    where: str
    path: str = ""
    lines: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """What the kubelet is told.

    Attributes:
        files: those that were read.
        by_key: only what is written; the kubelet has its defaults for the rest.
        broken: a file that is no YAML, and why; empty when all are.
        cpu_options: every place with options of the CPU Manager; those of several files count together.
        line_files: those with a key to a line, which can be edited line by line.
    """

    files: tuple[str, ...] = ()
    by_key: Mapping[str, Setting] = field(default_factory=dict)
    broken: str = ""
    cpu_options: tuple[Setting, ...] = ()
    line_files: tuple[str, ...] = ()


def find_kubelet(processes: Sequence[Process]) -> Process | None:
    """The kubelet among the processes; distributions that have it inside their own program are not told apart."""
    return next((process for process in processes if process.name in ("kubelet", "hyperkube")), None)


def read_kubelet(view: NodeView, process: Process | None) -> KubeletSettings | Hidden | None:
    """Its settings; None when there is no kubelet on this node."""
    path = (process.option("--config") if process else None) or CONFIG_FILE
    folder = process.option("--config-dir") if process else None
    texts = {path: view.text(path)}
    names = view.names(folder) if folder else ()
    if isinstance(names, Hidden):
        return names
    texts |= {file: view.text(file) for file in _drop_ins(folder, names)}
    hidden = next((text for text in texts.values() if isinstance(text, Hidden)), None)
    if hidden is not None:
        return hidden
    there = {name: text for name, text in texts.items() if isinstance(text, str)}
    if not there and process is None:
        return None
    return _settings(there, process)


def read_state_policy(view: NodeView, path: str) -> str | Hidden | None:
    """The policy a manager last ran under; empty where its file says none, None when there is no file."""
    text = view.text(path)
    if not isinstance(text, str):
        return text
    try:
        return str(parse(text.encode()).get("policyName", ""))
    except UnreadableError:
        return ""


def _drop_ins(folder: str | None, names: Sequence[str] | None) -> list[str]:
    return [os.path.join(folder or "", name) for name in names or () if name.endswith(".conf")]


def _settings(texts: Mapping[str, str], process: Process | None) -> KubeletSettings:
    found: dict[str, Setting] = {}
    options: list[Setting] = []
    line_files = []
    broken = ""
    for path, text in texts.items():
        try:
            table = _yaml(text)
        except ValueError as error:
            broken = f"{path}: {error}"
            continue
        lines = _lines(text)
        line_files += [path] if any(stands_alone for _, _, stands_alone in lines.values()) else []
        here = {key: _setting(path, table[key], lines.get(key)) for key in KEYS if table.get(key) is not None}
        options += [here[OPTIONS]] if OPTIONS in here else []
        found |= here
    for flag, key in FLAGS.items():
        value = process.option(flag) if process else None
        if value is not None:
            found[key] = Setting(value, f"{flag} on its command line")
            options = [found[key]] if key == OPTIONS else options
    kept = tuple(one for one in options if one.value)
    return KubeletSettings(tuple(texts), found, broken, kept, tuple(line_files))


def _setting(path: str, value: Any, place: tuple[int, int, bool] | None) -> Setting:
    text = ",".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else str(value)
    if place is None:
        return Setting(text, path, path)
    first, last, stands_alone = place
    return Setting(text, f"{path}:{first}", path, (first, last) if stands_alone else None)


def _lines(text: str) -> Mapping[str, tuple[int, int, bool]]:
    """By key: its first line, the last line of its value, and whether nothing else stands on these."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return {}
    found = {}
    for key, value in root.value:
        first = key.start_mark.line + 1
        found[key.value] = first, max(first, _last_line(value)), not root.flow_style
    return found


def _last_line(node: Any) -> int:
    """The last line with anything of a node; the parser ends a block only where the next one begins."""
    import yaml

    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        children = [part for one in node.value for part in (one if isinstance(one, tuple) else (one,))]
        return max(map(_last_line, children), default=node.start_mark.line + 1)
    end: int = node.end_mark.line
    return end if node.end_mark.column == 0 else end + 1


def _yaml(text: str) -> Mapping[str, Any]:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError("not YAML: " + " ".join(str(error).split())) from None
    if not isinstance(table, dict):
        raise ValueError("no table of keys and values")  # noqa: TRY004 - a wrong file, not a wrong call
    return table
