"""How the node's kubelet and container runtime are configured, read as each of them reads its own files.

Source: kubelet cmd/kubelet/app (flags win over files, drop-ins `*.conf` of --config-dir in the order of their names);
containerd cmd/containerd/server/config (`imports`, a queue in the order named; since 2.0 tables are merged key by key,
before that a plugin's table as a whole), internal/nri config; CRI-O crio.conf(5) (drop-ins by name, last wins).
"""

import glob
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.checkpoint.kubelet_files import UnreadableError, parse
from nri_plugin.cli.doctor.node_evidence import Hidden, NodeView, Process

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
    """Settings of the kubelet.

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


CONTAINERD, CRIO = "containerd", "CRI-O"
PROCESS_NAMES = {"containerd": CONTAINERD, "crio": CRIO}
CONTAINERD_FILES = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
)
CRIO_FILE, CRIO_FOLDER = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
SOCKET = "/var/run/nri/nri.sock"
NRI_TABLE = "io.containerd.nri.v1.nri"
CRI_TABLES = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
VERSION_S = 5.0
MOST_FILES = 200

_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+\S*)")
_PART_OF_DURATION = re.compile(r"([0-9.]+)(h|ms|m|us|µs|ns|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class NRISettings:
    """How the runtime's NRI is set; what is not written has the runtime's default.

    Attributes:
        runtime: `containerd` or `CRI-O`.
        files: those that were read, the main one first; where there is none the runtime has its defaults.
        is_on: None where nothing is written, so that the version decides.
        where: the file (and line) that says so.
        table: the file and line of containerd's NRI table; empty where it has none.
        takes_connections: whether plugins that the runtime did not start may come.
        closed_by: the file and line that says they may not; empty where they may.
        validator_is_on: None where nothing is written.
        systemd_cgroup: the driver of pods' cgroups; None where nothing is written.
        format_version: of containerd's file; 0 where there is none.
        is_disabled_as_plugin: containerd's `disabled_plugins` names NRI.
    """

    runtime: str
    files: tuple[str, ...] = ()
    is_on: bool | None = None
    where: str = ""
    table: str = ""
    socket: str = SOCKET
    plugin_dir: str = "/opt/nri/plugins"
    config_dir: str = "/etc/nri/conf.d"
    request_timeout_s: float = 2.0
    registration_timeout_s: float = 5.0
    takes_connections: bool = True
    validator_is_on: bool | None = None
    required_plugins: tuple[str, ...] = ()
    tolerate_annotation: str = ""
    systemd_cgroup: bool | None = None
    format_version: int = 0
    is_disabled_as_plugin: bool = False
    closed_by: str = ""


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file that the runtime itself could not read."""

    path: str
    detail: str


@dataclass(slots=True)
class _Merged:
    files: list[str] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)
    version: int = 0


def find_runtime(processes: Sequence[Process]) -> Process | None:
    """The runtime among the processes; the one with a CRI socket where two run (docker starts a containerd, too)."""
    found = [process for process in processes if process.name in PROCESS_NAMES]
    found.sort(key=lambda process: (process.name != "crio", "docker" in " ".join(process.args)))
    return found[0] if found else None


def find_name(view: NodeView, process: Process | None, main: str = "") -> str | Hidden:
    """`containerd` or `CRI-O`, by its process, else by the files that are there; empty when there is neither."""
    if process is not None:
        return PROCESS_NAMES[process.name]
    if main:
        return CRIO if "crio" in main else CONTAINERD
    found = {path: view.text(path) for path in (*CONTAINERD_FILES, CRIO_FILE)}
    there = [path for path, text in found.items() if isinstance(text, str)]
    if there:
        return CRIO if there[0] == CRIO_FILE else CONTAINERD
    return next((text for text in found.values() if isinstance(text, Hidden)), "")


def read_version(view: NodeView, process: Process | None, runtime: str) -> str | Hidden:
    """What the runtime's program says of its version; empty when nothing. Only asked where it can be run."""
    name = "crio" if runtime == CRIO else "containerd"
    if not view.is_whole or view.is_copy:
        return view.hidden(f"/usr/bin/{name}")
    programs = [name]
    if process is not None:
        # The running program may not be the file of that name: an older one, whose file is gone, or another
        # installation. Its file is asked where it can be; some programs may not be run through that link.
        started_as = [process.args[0]] if process.args and os.path.isabs(process.args[0]) else []
        programs = [f"/proc/{process.pid}/exe", *started_as, name]
    return next(filter(None, (_said_version(view, program) for program in programs)), "")


def _said_version(view: NodeView, program: str) -> str:
    words = [program, "--version"] if view.is_here else ["chroot", view.root, program, "--version"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = _VERSION.search(done.stdout)
    return found[1] if found else ""


def read_settings(
    view: NodeView, runtime: str, process: Process | None = None, path: str = "", *, merges_keys: bool = True
) -> NRISettings | Hidden | BrokenFile:
    """How NRI is set.

    Args:
        view: the node.
        runtime: which.
        process: says by its command line where its files are.
        path: of the main file, instead of what is found.
        merges_keys: False for containerd before 2.0, where an imported table of a plugin replaces the former one.
    """
    try:
        if runtime == CRIO:
            return _crio(view, _read_crio(view, process, path))
        merged = _read_containerd(view, path or _containerd_file(view, process), merges_keys=merges_keys)
        return _containerd(view, merged)
    except _UnseenError as error:
        return error.hidden
    except _BrokenError as error:
        return BrokenFile(error.path, error.detail)


def is_other_socket(first: str, second: str) -> bool:
    """Whether two paths are not the same socket; /var/run is /run on every distribution with systemd."""
    return first.removeprefix("/var") != second.removeprefix("/var")


def duration_s(text: object, default: float) -> float:
    """A Go duration such as `2s` or `1m30s`; the default for anything else, as for nothing."""
    parts = _PART_OF_DURATION.findall(text) if isinstance(text, str) else []
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else default


class _UnseenError(Exception):
    def __init__(self, hidden: Hidden) -> None:
        super().__init__(hidden.path)
        self.hidden = hidden


class _BrokenError(Exception):
    def __init__(self, path: str, detail: str) -> None:
        super().__init__(path)
        self.path, self.detail = path, detail


def _containerd_file(view: NodeView, process: Process | None) -> str:
    named = process.option("-c", "--config") if process is not None else None
    if named:
        return named
    there = [path for path in CONTAINERD_FILES if isinstance(view.text(path), str)]
    return there[0] if there else CONTAINERD_FILES[0]


def _read_containerd(view: NodeView, main: str, *, merges_keys: bool) -> _Merged:
    merged, pending = _Merged(), [main]
    while pending and len(merged.files) < MOST_FILES:
        path = pending.pop(0)
        if path in merged.files:
            continue
        table = _toml(view, path)
        if table is None:
            continue
        merged.files.append(path)
        merged.version = merged.version or int(table.get("version", 1))
        plugins = merged.table.get("plugins", {})
        if merges_keys:
            merged.table = _deep(merged.table, table)
        else:
            merged.table = {**_deep(merged.table, table), "plugins": {**plugins, **table.get("plugins", {})}}
        pending += [found for name in table.get("imports", ()) for found in _imported(view, path, str(name))]
    return merged


def _imported(view: NodeView, importer: str, pattern: str) -> list[str]:
    """The files a line of `imports` names: absolute or beside the importing file, a pattern in the last part."""
    full = os.path.normpath(os.path.join(os.path.dirname(importer), pattern))
    if not glob.has_magic(full):
        return [full]
    folder = os.path.dirname(full)
    place = view.find(folder)
    if isinstance(place, Hidden):
        raise _UnseenError(place)
    names = sorted(
        os.path.basename(found) for found in glob.glob(os.path.join(place, os.path.basename(full)))
    )
    return [os.path.join(folder, name) for name in names]


def _containerd(view: NodeView, merged: _Merged) -> NRISettings:
    plugins = _table(merged.table, "plugins")
    nri, where = _table(plugins, NRI_TABLE), _line(view, merged.files, "disable")
    validator = _table(nri, "default_validator")
    options = [
        _table(_table(_table(_table(plugins, name), "containerd"), "runtimes"), "runc") for name in CRI_TABLES
    ]
    systemd = next((o["options"].get("SystemdCgroup") for o in options if _table(o, "options")), None)
    disabled = [str(name) for name in merged.table.get("disabled_plugins", ())]
    return NRISettings(
        runtime=CONTAINERD,
        files=tuple(merged.files),
        is_on=None if "disable" not in nri else not nri["disable"],
        where=where,
        table=_header(view, merged.files),
        socket=str(nri.get("socket_path", SOCKET)),
        plugin_dir=str(nri.get("plugin_path", "/opt/nri/plugins")),
        config_dir=str(nri.get("plugin_config_path", "/etc/nri/conf.d")),
        request_timeout_s=duration_s(nri.get("plugin_request_timeout"), 2.0),
        registration_timeout_s=duration_s(nri.get("plugin_registration_timeout"), 5.0),
        takes_connections=not nri.get("disable_connections", False),
        validator_is_on=validator.get("enable"),
        required_plugins=tuple(map(str, validator.get("required_plugins", ()))),
        tolerate_annotation=str(validator.get("tolerate_missing_plugins_annotation", "")),
        systemd_cgroup=systemd,
        format_version=merged.version,
        is_disabled_as_plugin=any(name in (NRI_TABLE, "nri") for name in disabled),
        closed_by=_line(view, merged.files, "disable_connections") if nri.get("disable_connections") else "",
    )


def _read_crio(view: NodeView, process: Process | None, path: str) -> _Merged:
    main = path or (process and process.option("-c", "--config")) or CRIO_FILE
    folder = (process and process.option("-d", "--config-dir")) or CRIO_FOLDER
    names = view.names(folder)
    if isinstance(names, Hidden):
        raise _UnseenError(names)
    merged = _Merged()
    for file in (main, *(os.path.join(folder, name) for name in names or ())):
        table = _toml(view, file)
        if table is not None:
            merged.files.append(file)
            merged.table = _deep(merged.table, table)
    if process is not None and process.option("--enable-nri") is not None:
        said = process.option("--enable-nri") != "false"
        merged.table = _deep(merged.table, {"crio": {"nri": {"enable_nri": said}}})
    return merged


def _crio(view: NodeView, merged: _Merged) -> NRISettings:
    crio = _table(merged.table, "crio")
    nri, validator = _table(crio, "nri"), _table(_table(crio, "nri"), "default_validator")
    manager = _table(crio, "runtime").get("cgroup_manager")
    return NRISettings(
        runtime=CRIO,
        files=tuple(merged.files),
        is_on=nri.get("enable_nri"),
        where=merged.files[-1] if merged.files else "",
        socket=str(nri.get("nri_listen", SOCKET)),
        plugin_dir=str(nri.get("nri_plugin_dir", "/opt/nri/plugins")),
        config_dir=str(nri.get("nri_plugin_config_dir", "/etc/nri/conf.d")),
        request_timeout_s=duration_s(nri.get("nri_plugin_request_timeout"), 2.0),
        registration_timeout_s=duration_s(nri.get("nri_plugin_registration_timeout"), 5.0),
        takes_connections=not nri.get("nri_disable_connections", False),
        validator_is_on=validator.get("nri_enable_default_validator"),
        required_plugins=tuple(map(str, validator.get("nri_validator_required_plugins", ()))),
        tolerate_annotation=str(validator.get("nri_validator_tolerate_missing_plugins_annotation", "")),
        systemd_cgroup=None if manager is None else manager == "systemd",
        closed_by=_line(view, merged.files, "nri_disable_connections", "[crio.nri]")
        if nri.get("nri_disable_connections")
        else "",
    )


def _toml(view: NodeView, path: str) -> Mapping[str, Any] | None:
    text = view.text(path)
    if isinstance(text, Hidden):
        raise _UnseenError(text)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _BrokenError(path, str(error).lower()) from None


def _line(view: NodeView, files: Sequence[str], key: str, table: str = NRI_TABLE) -> str:
    """`file:line` of a key of the NRI table, the last that says it; the main file where none does."""
    found = files[0] if files else ""
    for path in files:
        text, inside = view.text(path), False
        for number, line in enumerate(text.splitlines() if isinstance(text, str) else (), 1):
            if line.lstrip().startswith("["):
                inside = table in line and "validator" not in line
            elif inside and line.split("=")[0].strip() == key:
                found = f"{path}:{number}"
    return found


def _header(view: NodeView, files: Sequence[str]) -> str:
    """`file:line` where the NRI table begins; empty where it is in none of the files."""
    for path in files:
        text = view.text(path)
        for number, line in enumerate(text.splitlines() if isinstance(text, str) else (), 1):
            if line.lstrip().startswith("[") and NRI_TABLE in line and "validator" not in line:
                return f"{path}:{number}"
    return ""


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = table.get(key)
    return found if isinstance(found, dict) else {}


def _deep(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        merged[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
