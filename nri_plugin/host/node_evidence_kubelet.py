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
    "--reserved-cpus": "reservedSystemCPUs",
    "--cgroup-driver": "cgroupDriver",
}
KEYS = (*FLAGS.values(), "cgroupRoot")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it stands."""

    value: str
    where: str


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """What the kubelet is told.

    Attributes:
        files: those that were read.
        by_key: only what is written; the kubelet has its defaults for the rest.
        broken: a file that is no YAML, and why; empty when all are.
    """

    files: tuple[str, ...] = ()
    by_key: Mapping[str, Setting] = field(default_factory=dict)
    broken: str = ""


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
    broken = ""
    for path, text in texts.items():
        try:
            table = _yaml(text)
        except ValueError as error:
            broken = f"{path}: {error}"
            continue
        found |= {
            key: Setting(str(table[key]), _place(path, text, key))
            for key in KEYS
            if table.get(key) is not None
        }
    for flag, key in FLAGS.items():
        value = process.option(flag) if process else None
        if value is not None:
            found[key] = Setting(value, f"{flag} on its command line")
    return KubeletSettings(tuple(texts), found, broken)


def _place(path: str, text: str, key: str) -> str:
    lines = enumerate(text.splitlines(), 1)
    number = next((number for number, line in lines if line.strip("\"' ").startswith(key)), 0)
    return f"{path}:{number}" if number else path


def _yaml(text: str) -> Mapping[str, Any]:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError("not YAML: " + " ".join(str(error).split())) from None
    if not isinstance(table, dict):
        raise ValueError("no table of keys and values")  # noqa: TRY004 - a wrong file, not a wrong call
    return table
