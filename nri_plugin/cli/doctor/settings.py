"""How the kubelet, the container runtime and its NRI are configured, read as these programs themselves read it.

Kubelet: the main file comes first. Drop-ins `*.conf` below --config-dir, folders included, follow in the order of a walk,
each a JSON merge patch: maps are merged, null removes, anything else replaces. Flags win over files as a whole.

Source: kubelet v1.37 cmd/kubelet/app/server.go, mergeKubeletConfigurations (filepath.WalkDir, jsonpatch.MergePatch) and
    kubeletConfigFlagPrecedence. containerd cmd/containerd/server/config (`imports`, a queue in the order named; since 2.0
    tables are merged key by key, before that a plugin's table as a whole), internal/nri config; CRI-O crio.conf(5)
    (drop-ins by name, last wins).
"""

import glob
import operator
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

from nri_plugin.checkpoint.kubelet_files import UnreadableError, parse
from nri_plugin.cli.doctor.support import Version
from nri_plugin.cli.doctor.view import Hidden, NodeView, Process, Stranger
from nri_plugin.config.keys import flag_of
from nri_plugin.host.cri import runtime_version
from nri_plugin.model.option_rows import CPU_MANAGER
from nri_plugin.model.options import REGISTRY

# ---- the kubelet

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
    return _kubelet_settings(texts, process) if texts or process else None


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


def _kubelet_settings(texts: Mapping[str, str], process: Process | None) -> KubeletSettings:
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
        lines, has_lines = _key_lines(text)
        line_files += [path] if has_lines else []
        whole = merged(whole, table)
        for key in FLAGS.values():
            if key not in table:
                continue
            before = found.pop(key, None)
            here = Setting(_flag_text(whole.get(key, "")), path, lines.get(key, 0))
            if key in RESERVED_AMOUNTS and before is not None and "cpu" not in (table[key] or {}):
                here = replace(before, value=here.value)  # its CPUs come from the former file
            if key == CPU_OPTIONS:
                own = Setting(_flag_text(table[key] or {}), path, lines.get(key, 0))
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


def _flag_text(value: Any) -> str:
    """A value as on the command line."""
    return ",".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, dict) else str(value)


def _key_lines(text: str) -> tuple[Mapping[str, int], bool]:
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


# ---- the container runtime

CONTAINERD, CRIO = "containerd", "CRI-O"
UNITS = {CONTAINERD: "containerd", CRIO: "crio"}
"""The name of the unit, the program and the process."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution that runs containerd and the kubelet itself, and writes their files at each start.

    Attributes:
        name: as people say.
        folder: holds everything of it.
        config: containerd's main file, which is written again at each start.
        templates: by format version: the file that people edit; version 0 is any.
        base: the first line of a new template; empty where there always is one.
        runtime_units: of systemd, one of which runs containerd.
        kubelet_units: the same of the kubelet.
        kubelet_file: has the options of the kubelet.
    """

    name: str
    folder: str
    config: str
    templates: Mapping[int, str]
    base: str
    runtime_units: tuple[str, ...]
    kubelet_units: tuple[str, ...]
    kubelet_file: str


def _of_rancher(name: str, *units: str) -> Distribution:
    folder = f"/var/lib/rancher/{name}"
    config = f"{folder}/agent/etc/containerd/config.toml"
    templates = {0: f"{config}.tmpl", 3: config.replace("config.toml", "config-v3.toml.tmpl")}
    file = f"kubelet-arg in /etc/rancher/{name}/config.yaml"
    return Distribution(name, folder, config, templates, '{{ template "base" . }}', units, units, file)


_SNAP = "/var/snap/microk8s"
_K0S_UNITS = ("k0sworker", "k0scontroller")
DISTRIBUTIONS = (
    _of_rancher("k3s", "k3s", "k3s-agent"),
    _of_rancher("rke2", "rke2-server", "rke2-agent"),
    Distribution(
        "MicroK8s",
        _SNAP,
        f"{_SNAP}/current/args/containerd.toml",
        {0: f"{_SNAP}/current/args/containerd-template.toml"},
        "",
        ("snap.microk8s.daemon-containerd",),
        ("snap.microk8s.daemon-kubelite",),
        f"{_SNAP}/current/args/kubelet",
    ),
    Distribution(
        "k0s",
        "/etc/k0s",
        "/etc/k0s/containerd.toml",
        {0: "/etc/k0s/containerd.d/nri.toml"},
        "",
        _K0S_UNITS,
        _K0S_UNITS,
        "--kubelet-extra-args of k0s, or a worker profile",
    ),
)
"""Source: docs of k3s and RKE2 (containerd, "base" templates), MicroK8s (args), k0s (containerd.d)."""

CONTAINERD_FILES = ("/etc/containerd/config.toml", *(one.config for one in DISTRIBUTIONS))
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/usr/local/lib/systemd/system")
CRIO_FILE, CRIO_FOLDER = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
CRI_SOCKETS = {
    CONTAINERD: (
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
        "/var/snap/microk8s/common/run/containerd.sock",
        "/run/k0s/containerd.sock",
    ),
    CRIO: ("/run/crio/crio.sock",),
}
MAIN_FILES = {CONTAINERD: CONTAINERD_FILES[0], CRIO: CRIO_FILE}
SOCKET = "/var/run/nri/nri.sock"
NRI_TABLE = "io.containerd.nri.v1.nri"
NRI_TABLES = {CONTAINERD: NRI_TABLE, CRIO: "[crio.nri]"}
"""The heads of the tables hold these texts."""

CRI_TABLES = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
CLOSING_KEYS = {CONTAINERD: "disable_connections", CRIO: "nri_disable_connections"}
"""The keys that close NRI to plugins that the runtime did not start."""

MOST_FILES = 200

_VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+\S*)")
_PART_OF_DURATION = re.compile(r"([0-9.]+)(h|ms|m|us|µs|ns|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class FileLine(NamedTuple):
    """A place in a file; `str()` is `file:line`. An empty path is no place, and a line of 0 is the whole file."""

    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


NOWHERE = FileLine()


@dataclass(frozen=True, slots=True)
class NRISettings:
    """How the runtime's NRI is set; settings that are not written have the runtime's default.

    Attributes:
        runtime: `containerd` or `CRI-O`.
        files: those that were read, the main one first; where there is none the runtime has its defaults.
        is_on: None where nothing is written, so that the version decides.
        where: the place that says so.
        table: the place of containerd's NRI table; `NOWHERE` where it has none.
        socket: the runtime listens on it.
        plugin_dir: the runtime starts the plugins in it.
        config_dir: holds the drop-ins of these plugins.
        request_timeout_s: for one request.
        registration_timeout_s: until a started plugin has registered.
        takes_connections: whether plugins that the runtime did not start may come.
        closed_by: the place that says they may not; `NOWHERE` where they may.
        validator_is_on: None where nothing is written.
        required_plugins: names of plugins without which containers are refused.
        tolerate_annotation: the annotation of pods that do without them.
        systemd_cgroup: the driver of pods' cgroups; None where nothing is written.
        format_version: of containerd's file; 0 where there is none.
        is_disabled_as_plugin: containerd's `disabled_plugins` names NRI.
        distribution: writes the main file again at each start; None where people write it.
        distribution_unit: the unit of the distribution that runs the runtime.
        template: the file to edit in its place; empty without a distribution.
        has_template: it is there, and places of settings are in it.
    """

    runtime: str
    files: tuple[str, ...] = ()
    is_on: bool | None = None
    where: FileLine = NOWHERE
    table: FileLine = NOWHERE
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
    closed_by: FileLine = NOWHERE
    distribution: Distribution | None = None
    distribution_unit: str = ""
    template: str = ""
    has_template: bool = False

    @property
    def main_file(self) -> str:
        """The runtime's main file, whether or not it exists."""
        return self.files[0] if self.files else MAIN_FILES[self.runtime]

    @property
    def unit(self) -> str:
        """The unit of the runtime."""
        return self.distribution_unit or UNITS[self.runtime]

    @property
    def edited(self) -> str:
        """The file that people edit, as the end of a sentence; empty where that is the main file itself."""
        name = self.distribution.name if self.distribution else ""
        return f" in {self.template}, of which {name} makes {self.main_file} at each start" if name else ""

    @property
    def closing_key(self) -> str:
        """The key that refuses NRI connections of plugins that the runtime did not start."""
        return CLOSING_KEYS[self.runtime]


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file that the runtime itself could not read."""

    path: str
    detail: str


class _UnreadError(Exception):
    """A file cannot be seen or parsed; holds the answer of `read_settings`."""

    def __init__(self, answer: Hidden | BrokenFile) -> None:
        super().__init__(answer.path)
        self.answer = answer


def distribution_of(view: NodeView, main: str = "") -> Distribution | None:
    """The distribution that runs this node's containerd and kubelet; None for none.

    Args:
        view: the node.
        main: containerd's main file, where it is known.
    """
    if main:
        return next((one for one in DISTRIBUTIONS if main.startswith(f"{one.folder}/")), None)
    return next((one for one in DISTRIBUTIONS if isinstance(view.names(one.folder), tuple)), None)


def unit_among(view: NodeView, name: str, units: Sequence[str]) -> str:
    """The unit that a distribution has on this node: by its file, else by its process (`k3s agent`)."""
    for unit in units:
        if any(isinstance(view.text(f"{folder}/{unit}.service"), str) for folder in UNIT_FOLDERS):
            return unit
    processes = view.processes()
    found, _ = view.services(
        () if isinstance(processes, Hidden) else processes,
        lambda process: os.path.basename(process.args[0]) == name and len(process.args) > 1,
    )
    roles = {process.args[1] for process in found}
    return next((unit for unit in units if unit.removeprefix(name).strip("-") in roles), units[0])


def find_runtime(view: NodeView, processes: Sequence[Process]) -> Process | None:
    """The runtime that this host runs; the one with a CRI socket where two run (docker starts a containerd, too)."""
    sockets = [path for paths in CRI_SOCKETS.values() for path in paths]
    found, _ = view.services(processes, lambda process: process.name in UNITS.values(), sockets)
    found.sort(key=lambda process: (process.name != "crio", "docker" in " ".join(process.args)))
    return found[0] if found else None


def find_name(view: NodeView, process: Process | None, main: str = "") -> str | Hidden:
    """`containerd` or `CRI-O`, by its process, else by the files that are there; empty when there is neither."""
    if process is not None:
        return CRIO if process.name == UNITS[CRIO] else CONTAINERD
    if main:
        return CRIO if "crio" in main else CONTAINERD
    found = {path: view.text(path) for path in (*CONTAINERD_FILES, CRIO_FILE)}
    there = [path for path, text in found.items() if isinstance(text, str)]
    if there:
        return CRIO if there[0] == CRIO_FILE else CONTAINERD
    return next((text for text in found.values() if isinstance(text, Hidden)), "")


def read_version(view: NodeView, process: Process | None, runtime: str) -> str | Hidden:
    """The version that the runtime gives on its CRI socket; empty where it does not answer.

    No program is asked: anybody may name one.
    """
    named = process.option("-a", "--address", "--listen") if process is not None else None
    places = [view.find(path) for path in (*filter(None, [named]), *CRI_SOCKETS[runtime])]
    seen = [place for place in places if isinstance(place, str)]
    if view.is_copy:
        return Hidden(CRI_SOCKETS[runtime][0], why="nothing runs in a copy")
    if not seen:
        return view.hidden(CRI_SOCKETS[runtime][0])
    found = filter(None, (_VERSION.search(runtime_version(place)) for place in seen))
    return next((one[1] for one in found), "")


def read_settings(
    view: NodeView, runtime: str, process: Process | None = None, path: str = "", *, merges_keys: bool = True
) -> NRISettings | Hidden | BrokenFile:
    """How NRI is set.

    Args:
        view: the node.
        runtime: which.
        process: says by its command line where its files are.
        path: of the main file; empty to look for it.
        merges_keys: False for containerd before 2.0, where an imported table of a plugin replaces the former one.
    """
    try:
        if runtime == CRIO:
            return _crio(view, process, path)
        return _containerd(view, process, path, merges_keys=merges_keys)
    except _UnreadError as error:
        return error.answer


def is_other_socket(first: str, second: str) -> bool:
    """Whether two paths are not the same socket; /var/run is /run on every distribution with systemd."""
    return first.removeprefix("/var") != second.removeprefix("/var")


def version_of(text: str) -> Version | None:
    """(major, minor, patch); None where there is none to read."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def duration_s(text: object) -> float | None:
    """The seconds of a Go duration such as `2s` or `1m30s`; None for anything else."""
    parts = _PART_OF_DURATION.findall(text) if isinstance(text, str) else []
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else None


Row = tuple[str, str, str, Callable[[Any], Any]]
"""A field of `NRISettings`, its key of containerd, its key of CRI-O, and how the value is read."""

NRI_ROWS: tuple[Row, ...] = (
    ("socket", "socket_path", "nri_listen", str),
    ("plugin_dir", "plugin_path", "nri_plugin_dir", str),
    ("config_dir", "plugin_config_path", "nri_plugin_config_dir", str),
    ("request_timeout_s", "plugin_request_timeout", "nri_plugin_request_timeout", duration_s),
    ("registration_timeout_s", "plugin_registration_timeout", "nri_plugin_registration_timeout", duration_s),
    ("takes_connections", CLOSING_KEYS[CONTAINERD], CLOSING_KEYS[CRIO], operator.not_),
)
VALIDATOR_ROWS: tuple[Row, ...] = (
    ("validator_is_on", "enable", "nri_enable_default_validator", bool),
    (
        "required_plugins",
        "required_plugins",
        "nri_validator_required_plugins",
        lambda names: tuple(map(str, names)),
    ),
    (
        "tolerate_annotation",
        "tolerate_missing_plugins_annotation",
        "nri_validator_tolerate_missing_plugins_annotation",
        str,
    ),
)


def _written(rows: Sequence[Row], runtime: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that are written, but for values that cannot be read: they have the default."""
    for name, of_containerd, of_crio, read in rows:
        key = of_crio if runtime == CRIO else of_containerd
        value = read(table[key]) if key in table else None
        if value is not None:
            yield name, value


def _settings(
    view: NodeView,
    runtime: str,
    files: Sequence[str],
    nri: Mapping[str, Any],
    edited: Sequence[str] = (),
    **own: Any,
) -> NRISettings:
    """The settings of the NRI table; `own` are those that stand elsewhere, or that only this runtime has."""
    said = dict(_written(NRI_ROWS, runtime, nri))
    said |= dict(_written(VALIDATOR_ROWS, runtime, _table(nri, "default_validator")))
    if not said.get("takes_connections", True):
        own["closed_by"] = _line(view, edited or files, CLOSING_KEYS[runtime], NRI_TABLES[runtime])
    return NRISettings(runtime, tuple(files), **said, **own)


def _containerd(view: NodeView, process: Process | None, path: str, *, merges_keys: bool) -> NRISettings:
    main = path or _containerd_file(view, process)
    files, table, version = _read_containerd(view, main, merges_keys=merges_keys)
    plugins = _table(table, "plugins")
    nri = _table(plugins, NRI_TABLE)
    options = [
        _table(_table(_table(_table(_table(plugins, name), "containerd"), "runtimes"), "runc"), "options")
        for name in CRI_TABLES
    ]
    found = distribution_of(view, main)
    template = found.templates.get(version, found.templates[0]) if found else ""
    has_template = bool(template) and isinstance(view.text(template), str)
    edited = [template] if has_template else files
    heads = (place for place, line in _lines(view, edited, NRI_TABLE) if line.startswith("["))
    return _settings(
        view,
        CONTAINERD,
        files,
        nri,
        edited,
        is_on=not nri["disable"] if "disable" in nri else None,
        where=_line(view, edited, "disable", NRI_TABLE),
        table=next(heads, NOWHERE),
        systemd_cgroup=next((one.get("SystemdCgroup") for one in options if one), None),
        format_version=version,
        is_disabled_as_plugin=any(name in (NRI_TABLE, "nri") for name in table.get("disabled_plugins", ())),
        distribution=found,
        distribution_unit=unit_among(view, found.name, found.runtime_units) if found else "",
        template=template,
        has_template=has_template,
    )


def _containerd_file(view: NodeView, process: Process | None) -> str:
    named = process.option("-c", "--config") if process is not None else None
    if named:
        return named
    there = (path for path in CONTAINERD_FILES if isinstance(view.text(path), str))
    return next(there, CONTAINERD_FILES[0])


def _read_containerd(
    view: NodeView, main: str, *, merges_keys: bool
) -> tuple[list[str], dict[str, Any], int]:
    """The files that are there, their merged tables, and the format version of the first."""
    files: list[str] = []
    merged: dict[str, Any] = {}
    version, pending = 0, [main]
    while pending and len(files) < MOST_FILES:
        path = pending.pop(0)
        table = None if path in files else _toml(view, path)
        if table is None:
            continue
        files.append(path)
        version = version or int(table.get("version", 1))
        plugins = merged.get("plugins", {})
        merged = _deep(merged, table)
        if not merges_keys:
            merged["plugins"] = {**plugins, **table.get("plugins", {})}
        pending += [found for name in table.get("imports", ()) for found in _imported(view, path, str(name))]
    return files, merged, version


def _imported(view: NodeView, importer: str, pattern: str) -> list[str]:
    """The files a line of `imports` names: absolute or beside the importing file, a pattern in the last part."""
    full = os.path.normpath(os.path.join(os.path.dirname(importer), pattern))
    if not glob.has_magic(full):
        return [full]
    folder, pattern = os.path.split(full)
    place = view.find(folder)
    if isinstance(place, Hidden):
        raise _UnreadError(place)
    return [os.path.join(folder, name) for name in sorted(glob.glob(pattern, root_dir=place))]


def _crio(view: NodeView, process: Process | None, path: str) -> NRISettings:
    main = path or (process and process.option("-c", "--config")) or CRIO_FILE
    folder = (process and process.option("-d", "--config-dir")) or CRIO_FOLDER
    names = view.names(folder)
    if isinstance(names, Hidden):
        raise _UnreadError(names)
    files: list[str] = []
    merged: dict[str, Any] = {}
    for file in (main, *(os.path.join(folder, name) for name in names or ())):
        table = _toml(view, file)
        if table is not None:
            files.append(file)
            merged = _deep(merged, table)
    nri = _table(_table(merged, "crio"), "nri")
    flag = process.option("--enable-nri") if process is not None else None
    manager = _table(_table(merged, "crio"), "runtime").get("cgroup_manager")
    return _settings(
        view,
        CRIO,
        files,
        nri,
        is_on=nri.get("enable_nri") if flag is None else flag != "false",
        where=FileLine(files[-1]) if files else NOWHERE,
        systemd_cgroup=None if manager is None else manager == "systemd",
    )


def _toml(view: NodeView, path: str) -> Mapping[str, Any] | None:
    text = view.text(path)
    if isinstance(text, Hidden):
        raise _UnreadError(text)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _UnreadError(BrokenFile(path, str(error).lower())) from None


def _line(view: NodeView, files: Sequence[str], key: str, table: str) -> FileLine:
    """The last place of a key in a table; the main file where none has it."""
    found = FileLine(files[0]) if files else NOWHERE
    for place, line in _lines(view, files, table):
        if line.split("=")[0].strip() == key:
            found = place
    return found


def _lines(view: NodeView, files: Sequence[str], table: str) -> Iterator[tuple[FileLine, str]]:
    """The lines of a table in all files, its heads among them."""
    for path in files:
        text, is_inside = view.text(path), False
        for number, line in enumerate(text.splitlines() if isinstance(text, str) else (), 1):
            if line.lstrip().startswith("["):
                is_inside = table in line and "validator" not in line
            if is_inside:
                yield FileLine(path, number), line.strip()


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = table.get(key)
    return found if isinstance(found, dict) else {}


def _deep(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        merged[key] = _deep(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
