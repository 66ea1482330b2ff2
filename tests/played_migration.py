"""A node that a migration works on: a kubelet, an agent and systemd played by files, judged as the real ones judge.

The kubelet reads its configuration files and the words of its command line, made of unit, drop-in and environment file as
systemd makes them. It refuses what a real one refuses, and then pins containers as its state files say. The agent pins
them by its checkpoint. Each effect of the migration may be its last: `kill_at` counts them.
"""

import atexit
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from nri_plugin.agent.start import build_node
from nri_plugin.checkpoint.file import CheckpointFile, read_checkpoint
from nri_plugin.checkpoint.kubelet_export import cpu_file, memory_file
from nri_plugin.checkpoint.kubelet_files import load_refusal, parse
from nri_plugin.checkpoint.kubelet_import import CPU_FILE, MEMORY_FILE, read_allocations
from nri_plugin.cli.doctor.view import NodeView, Process
from nri_plugin.cli.migrate import host as host_module
from nri_plugin.cli.migrate import steps as steps_module
from nri_plugin.cli.migrate.host import Host, MigrationRecord, RecordFile, Systemd
from nri_plugin.cli.migrate.migrate import migrate
from nri_plugin.cli.migrate.planning import Choices
from nri_plugin.config.loading import load_text
from nri_plugin.core.requests import QOSClass
from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.quantity import parse_quantity
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    MemoryBlock,
    Phase,
    PodRecord,
    allocation_key,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.description import parse as parse_machine
from nri_plugin.simulator.machine.machine import build_sysfs

MACHINE = "pack:1 l3:1 numa:2 core:4 pu:1"
GIB = 1 << 30

MEMORY_OFF = b'{"policyName":"None","machineState":{},"checksum":4236770233}'
"""What a kubelet writes whose Memory Manager is off."""

CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
# pinned since 2023
cpuManagerPolicy: static  # for db
cpuManagerPolicyOptions:
  full-pcpus-only: "true"   # whole cores
topologyManagerPolicy: best-effort
memoryManagerPolicy: Static
reservedSystemCPUs: "0"
reservedMemory:
- numaNode: 0
  limits:
    memory: 612Mi
kubeReserved:
  memory: 512Mi
maxPods: 110
"""
UNIT = """\
[Service]
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
DROP_IN = """\
[Service]
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
"""
KUBELET, AGENT = "kubelet.service", "nri-pin.service"
FOLDER = "var/lib/kubelet"

Containers = Mapping[str, tuple[str, str]]
"""By cgroup: pod uid and container name."""


class KilledError(BaseException):
    """The process ends here: nothing of it runs any more."""


@dataclass
class Unit:
    active: bool = False
    enabled: bool = True
    restarts: int = 0


@dataclass
class PlayedNode(Systemd):
    """A node below `root`."""

    root: Path
    kill_at: int = -1
    kill_when: str = ""
    effects: int = 0
    fails: str = ""
    wrecks_kubelet: bool = False
    agent_connects: bool = True
    units: dict[str, Unit] = field(default_factory=lambda: {KUBELET: Unit(), AGENT: Unit(enabled=False)})
    calls: list[str] = field(default_factory=list)
    containers: dict[str, tuple[str, str]] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    said: list[str] = field(default_factory=list)
    started_with: dict[str, Any] = field(default_factory=dict)

    # ---- files

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, text: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def read(self, name: str) -> str:
        return self.path(name).read_text()

    # ---- containers

    def run_container(self, cgroup: str, uid: str, name: str, cpus: str) -> None:
        self.containers[cgroup] = (uid, name)
        self.write(f"sys/fs/cgroup/{cgroup}/cgroup.procs", "1\n")
        self.write(f"sys/fs/cgroup/{cgroup}/cpuset.mems", "0\n")
        self.pin(cgroup, cpus)

    def pin(self, cgroup: str, cpus: object) -> None:
        for name in ("cpuset.cpus", "cpuset.cpus.effective"):
            self.write(f"sys/fs/cgroup/{cgroup}/{name}", f"{cpus}\n")

    def cpusets(self) -> dict[str, str]:
        return {
            cgroup: self.read(f"sys/fs/cgroup/{cgroup}/cpuset.cpus").strip() for cgroup in self.containers
        }

    # ---- effects of the migration

    def effect(self, name: str) -> None:
        """Another effect is about to happen: a process that is killed now has had all those before."""
        self.effects += 1
        if self.effects == self.kill_at or name == self.kill_when:
            self.kill_when = ""
            raise KilledError(name)

    # ---- systemd

    def start(self, unit: str) -> None:
        self._systemctl("start", unit, self._started)

    def stop(self, unit: str) -> None:
        self._systemctl("stop", unit, self._stopped)

    def restart(self, unit: str) -> None:
        self._systemctl("restart", unit, self._restarted)

    def enable(self, unit: str, *, on: bool) -> None:
        self._systemctl(
            "enable" if on else "disable", unit, lambda name: setattr(self.units[name], "enabled", on)
        )

    def reload(self) -> None:
        self._systemctl("daemon-reload", "", lambda _: None)

    def show(self, unit: str, name: str) -> str:
        known = self.units.get(unit)
        if known is None:
            return "not-found" if name == "LoadState" else ""
        return {
            "LoadState": "loaded",
            "ActiveState": "active" if known.active else "inactive",
            "UnitFileState": "enabled" if known.enabled else "disabled",
            "NRestarts": str(known.restarts),
            "MainPID": "100" if unit == KUBELET and known.active else "0",
            "FragmentPath": f"/usr/lib/systemd/system/{unit}",
            "DropInPaths": " ".join(
                f"/{self._drop_in()}" for _ in range(self.path(self._drop_in()).exists())
            ),
        }[name]

    def _systemctl(self, verb: str, unit: str, do: Callable[[str], None]) -> None:
        words = f"{verb} {unit}".strip()
        self.effect(words)
        self.calls.append(words)
        if words == self.fails:
            self.fails = ""
            raise HostError(words, "did not work")
        do(unit)

    def _started(self, unit: str) -> None:
        known = self.units[unit]
        if known.active:
            return
        known.active = True
        if unit == KUBELET:
            refusal = self._start_kubelet()
            if refusal:
                self.said.append(refusal)
                known.active = False
                known.restarts += 1
        elif unit == AGENT:
            self._start_agent()

    def _stopped(self, unit: str) -> None:
        self.units[unit].active = False
        if unit == KUBELET:
            shutil.rmtree(self.path("proc/100"), ignore_errors=True)

    def _restarted(self, unit: str) -> None:
        self.calls.append(f"({unit} again)")
        if self.path("opt/nri/plugins/90-nri-pin").exists():
            self.units[AGENT].active = True
            self._start_agent()
        else:
            self.units[AGENT].active = False

    def _drop_in(self) -> str:
        name = f"{KUBELET}.d/10-kubeadm.conf"
        ours = f"etc/systemd/system/{name}"
        return ours if self.path(ours).exists() else f"usr/lib/systemd/system/{name}"

    # ---- the kubelet

    def command_line(self) -> tuple[str, ...]:
        """As systemd makes it of the unit."""
        unit = f"etc/systemd/system/{KUBELET}"
        unit = unit if self.path(unit).exists() else f"usr/lib/systemd/system/{KUBELET}"
        drop_in = self.read(self._drop_in()) if self.path(self._drop_in()).exists() else ""
        lines = (self.read(unit) + drop_in).splitlines()
        variables: dict[str, str] = {}
        for line in lines:
            key, _, value = line.partition("=")
            if key == "Environment":
                name, _, words = shlex.split(value)[0].partition("=")
                variables[name] = words
        for line in lines:
            key, _, value = line.partition("=")
            path = value.removeprefix("-")
            if key == "EnvironmentFile" and self.path(path).exists():
                for word in shlex.split(self.read(path), comments=True):
                    name, _, words = word.partition("=")
                    variables[name] = words
        start = next(line for line in lines if line.startswith("ExecStart="))
        expanded = re.sub(r"\$(\w+)", lambda found: variables.get(found[1], ""), start.partition("=")[2])
        return tuple(shlex.split(expanded))

    def kubelet_settings(self) -> dict[str, Any]:
        """What counts for a kubelet that starts now; ValueError where it cannot decode it."""
        return decoded(self.root, self.command_line())

    def kubelet_refusal(self) -> str:
        """Why a kubelet does not start now; empty where it does."""
        try:
            settings = self.kubelet_settings()
        except ValueError as error:
            return str(error)
        cpu = settings["cpuManagerPolicy"]
        if self.wrecks_kubelet and cpu == "none":
            return "something else is wrong"
        policies = {CPU_FILE: cpu, MEMORY_FILE: settings["memoryManagerPolicy"]}
        for name, policy in policies.items():
            path = self.path(f"{FOLDER}/{name}")
            refusal = load_refusal(path.read_bytes(), name.partition("_")[0], policy) if path.exists() else ""
            if refusal:
                return refusal
        return ""

    def _start_kubelet(self) -> str:
        refusal = self.kubelet_refusal()
        if refusal:
            return refusal
        settings = self.started_with = self.kubelet_settings()
        self.argv = self.command_line()
        self.write("proc/100/comm", "kubelet\n")
        self.write("proc/100/cmdline", "".join(f"{word}\0" for word in self.argv))
        if settings.get("cpuManagerPolicy") == "static":
            self._pin_as_kubelet()
        for name, policy in ((CPU_FILE, "none"), (MEMORY_FILE, "None")):
            path = self.path(f"{FOLDER}/{name}")
            if not path.exists():
                off = json.dumps({"policyName": policy, "defaultCpuSet": "", "checksum": 0}).encode()
                path.write_bytes(MEMORY_OFF if name == MEMORY_FILE else off)
        return ""

    def _pin_as_kubelet(self) -> None:
        found = read_allocations(str(self.path(FOLDER)))
        default = parse(self.path(f"{FOLDER}/{CPU_FILE}").read_bytes())["defaultCpuSet"]
        for cgroup, (uid, name) in self.containers.items():
            self.pin(cgroup, found.cpus.get(allocation_key(uid, name)) or default)

    # ---- the agent

    def agent_config(self) -> Any:
        path = "etc/nri-pin/config.yaml"
        if not self.path(path).exists():
            path = "etc/nri/conf.d/90-nri-pin.conf"
        config = load_text(self.read(path), path)
        return replace(config, state_dir=str(self.path(config.state_dir)), sysfs_root=str(self.root))

    def _start_agent(self) -> None:
        """It takes its checkpoint, learns what runs, and pins it."""
        config = self.agent_config()
        node = build_node(config, None)
        checkpoint = read_checkpoint(f"{config.state_dir}/state.json")
        state = checkpoint.state if checkpoint else State()
        pods, records = {}, {}
        for cgroup, (uid, name) in self.containers.items():
            parent = "/" + os.path.dirname(cgroup)
            pods[uid] = PodRecord(uid, f"s-{uid}", uid, "default", QOSClass.GUARANTEED, parent)
            number = os.path.basename(cgroup)
            records[number] = ContainerRecord(
                number, uid, name, Phase.RUNNING, CgroupRef(parent, f"/{cgroup}")
            )
        file = CheckpointFile(config.state_dir, node, durable=False)
        os.makedirs(config.state_dir, exist_ok=True)
        file.load()
        state = State(pods, records, state.allocations)
        file.save(state)
        for cgroup, (uid, name) in self.containers.items():
            one = state.allocations.get(allocation_key(uid, name))
            self.pin(cgroup, one.cpus if one and one.cpus else node.topology.online - state.exclusive)

    @property
    def status(self) -> Any:
        """What its status socket tells."""
        if not self.units[AGENT].active:
            return None

        class Status:
            runtime = "containerd" if self.agent_connects else None
            observing = False

        return Status

    # ---- the machine

    def reboot(self) -> None:
        """Containers end and come anew on all CPUs, /run is empty, and what is enabled starts."""
        shutil.rmtree(self.path("run"))
        self.path("run").mkdir()
        shutil.rmtree(self.path("proc/100"), ignore_errors=True)
        before = dict(self.containers)
        shutil.rmtree(self.path("sys/fs/cgroup/kubepods"))
        self.containers.clear()
        for cgroup, (uid, name) in before.items():
            self.run_container(f"{cgroup}-again", uid, name, "0-7")
        self.kill_at = -1
        for unit in (AGENT, KUBELET):
            self.units[unit].active = False
            if self.units[unit].enabled:
                self._started(unit)

    # ---- the migration

    def migrate(
        self,
        direction: str,
        choices: Choices | None = None,
        *,
        yes: bool = True,
        in_pod: bool = False,
        output_format: str = "text",
    ) -> str:
        """The text of the error; empty where there was none."""
        view = View(str(self.root), in_pod=in_pod)
        view.node = self
        clock = iter(range(10_000))
        host = Host(view, self, 5.0, lambda: float(next(clock)), lambda _: None)
        file = Recording(str(self.path("var/lib/nri-pin")))
        file.node = self
        try:
            migrate(direction, host, file, choices or Choices(), yes=yes, output_format=output_format)
        except (NriPinError, OSError) as error:
            return str(error)
        except KilledError as error:
            return f"killed at {error}"
        except Exception as error:  # noqa: BLE001 - errors of the command line library
            return str(getattr(error, "message", error))
        return ""


# ---- the kubelet's reading of its configuration, compared with recordings of two releases in test_played_migration.py

STRINGS = {
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "topologyManagerPolicy": "none",
    "topologyManagerScope": "container",
    "reservedSystemCPUs": "",
    "kubeReservedCgroup": "",
    "systemReservedCgroup": "",
}
"""Keys with their defaults."""

MAPS = {
    "cpuManagerPolicyOptions": "=",
    "topologyManagerPolicyOptions": "=",
    "kubeReserved": "=",
    "systemReserved": "=",
    "evictionHard": "<",
}
"""Keys, and what is between name and value on the command line."""

SETTINGS = (*STRINGS, *MAPS, "reservedMemory", "featureGates")
FLAGS = {
    "--cpu-manager-policy": "cpuManagerPolicy",
    "--memory-manager-policy": "memoryManagerPolicy",
    "--topology-manager-policy": "topologyManagerPolicy",
    "--topology-manager-scope": "topologyManagerScope",
    "--reserved-cpus": "reservedSystemCPUs",
    "--kube-reserved-cgroup": "kubeReservedCgroup",
    "--system-reserved-cgroup": "systemReservedCgroup",
    "--cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "--topology-manager-policy-options": "topologyManagerPolicyOptions",
    "--kube-reserved": "kubeReserved",
    "--system-reserved": "systemReserved",
    "--eviction-hard": "evictionHard",
    "--reserved-memory": "reservedMemory",
    "--feature-gates": "featureGates",
}
CPU_OPTIONS = (
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "distribute-cpus-across-cores",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
)
UNKNOWN_GATES = ("CPUManager", "MemoryManager", "TopologyManager")
"""Gates of stable features that the recorded releases do not know any more."""


class GoYAML(yaml.SafeLoader):
    """YAML as the kubelet's library reads it: more words are numbers and booleans."""

    bool_values: ClassVar[Mapping[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}


GoYAML.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("[yYnN]$"), list("yYnN"))
GoYAML.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?$"), list("-+.0123456789")
)


def decoded(root: Path, words: Sequence[str]) -> dict[str, Any]:
    """The settings of a kubelet with this command line, checked as it checks them; ValueError where it does not start."""
    process = Process(1, "kubelet", tuple(words))
    whole = _table(root, process.option("--config") or "")
    folder = process.option("--config-dir")
    for path in _walk(root, folder) if folder else ():
        whole = _patched(whole, _table(root, path))
    typed = {key: _typed(key, whole[key]) for key in SETTINGS if whole.get(key) is not None}
    gates = typed.get("featureGates", {})
    for flag, key in FLAGS.items():
        if (text := process.option(flag)) is not None:
            typed[key] = _from_flag(key, text)
    if gates:
        typed["featureGates"] = {**gates, **typed["featureGates"]}
    found = {**STRINGS, **{key: value for key, value in typed.items() if value != ""}}
    _validate(found)
    return found


def _table(root: Path, path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        found = yaml.load((root / path.lstrip("/")).read_text(), GoYAML)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if (
        not isinstance(found, dict)
        or found.get("kind") != "KubeletConfiguration"
        or "apiVersion" not in found
    ):
        raise ValueError(f"{path}: no apiVersion or kind")
    return found


def _walk(root: Path, folder: str) -> Iterator[str]:
    place = f"{root}/{folder.lstrip('/')}"
    if not os.path.lexists(place):
        raise ValueError(f"{folder}: no such folder")
    if os.path.islink(place):
        return
    for name in sorted(os.listdir(place)):
        if os.path.isdir(f"{place}/{name}") and not os.path.islink(f"{place}/{name}"):
            yield from _walk(root, f"{folder}/{name}")
        elif name.endswith(".conf"):
            yield f"{folder}/{name}"


def _patched(table: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    found = dict(table) if isinstance(table, dict) else {}
    for key, value in patch.items():
        found[key] = None if value is None else _patched(found.get(key), value)
    return {key: value for key, value in found.items() if value is not None}


def _typed(key: str, value: Any) -> Any:
    """A value as it is decoded; ValueError where it has another type."""
    entries = value if isinstance(value, dict) else {}
    right = {
        key in STRINGS: isinstance(value, str),
        key in MAPS: isinstance(value, dict) and all(isinstance(one, str | None) for one in entries.values()),
        key == "featureGates": isinstance(value, dict)
        and all(isinstance(one, bool) for one in entries.values()),
        key == "reservedMemory": isinstance(value, list)
        and all(isinstance(one["numaNode"], int) for one in value),
    }[True]
    if not right:
        raise ValueError(f"cannot unmarshal {value!r} into {key}")
    if key in MAPS:
        return {name: one or "" for name, one in value.items()}
    if key == "reservedMemory":
        return [{**one, "limits": {name: str(size) for name, size in one["limits"].items()}} for one in value]
    return value


def _from_flag(key: str, text: str) -> Any:
    if key in STRINGS:
        return text
    if key == "reservedMemory":
        parts = [part.partition(":") for part in text.split(";")]
        return [{"numaNode": int(node), "limits": _pairs(limits, "=")} for node, _, limits in parts]
    found = _pairs(text, MAPS.get(key, "="))
    return {name: one == "true" for name, one in found.items()} if key == "featureGates" else found


def _pairs(text: str, mark: str) -> dict[str, str]:
    parts = [one.split(mark, 1) for one in text.split(",") if one]
    if any(len(part) < 2 for part in parts):
        raise ValueError(f"malformed pair in {text}")
    return {name.strip(): value.strip() for name, value in parts}


def _validate(found: Mapping[str, Any]) -> None:
    """Refuse what the kubelet's validation and its managers refuse."""
    cpu, options = found["cpuManagerPolicy"], found.get("cpuManagerPolicyOptions", {})
    amounts = {name: found.get(name, {}) for name in ("kubeReserved", "systemReserved")}
    cpus = [parse_quantity(text) for one in amounts.values() for name, text in one.items() if name == "cpu"]
    reserved = found["reservedSystemCPUs"]
    nodes = [(one["numaNode"], name) for one in found.get("reservedMemory", ()) for name in one["limits"]]
    sizes = [size for one in found.get("reservedMemory", ()) for size in one["limits"].values()]
    refusals = {
        "unknown gate": set(found.get("featureGates", {})) & set(UNKNOWN_GATES),
        "unknown policy": cpu not in ("none", "static"),
        "unknown topology policy": found["topologyManagerPolicy"]
        not in ("none", "best-effort", "restricted", "single-numa-node"),
        "unknown scope": found["topologyManagerScope"] not in ("container", "pod"),
        "can't use reservedSystemCPUs with a cgroup": reserved
        and (found["kubeReservedCgroup"] or found["systemReservedCgroup"]),
        "None policy: received unsupported options": cpu == "none" and options,
        "unknown CPU Manager Policy option": set(options) - set(CPU_OPTIONS),
        "the static policy requires CPUs for the system": cpu == "static" and not (reserved or any(cpus)),
        "reserved memory twice": len(set(nodes)) < len(nodes),
        "reserved memory of nothing": any(parse_quantity(size) == 0 for size in sizes),
    }
    CPUSet.parse(reserved)
    for text in (text for one in amounts.values() for text in one.values()):
        parse_quantity(text)
    for why, is_so in refusals.items():
        if is_so:
            raise ValueError(why)


class View(NodeView):
    """Sees the played sockets."""

    node: PlayedNode

    def connects(self, path: str) -> str:
        return (
            ""
            if self.node.units[KUBELET].active and self.node.path("proc/100").exists()
            else "no such socket"
        )


class Recording(RecordFile):
    """Counts its writes among the effects."""

    node: PlayedNode

    def write(self, record: MigrationRecord) -> None:
        self.node.effect(f"record of {record.begun[-1:]}")
        super().write(record)

    def remove(self) -> None:
        self.node.effect("end of the record")
        super().remove()


def allocations() -> State:
    """What the kubelet has given to two containers."""
    block = MemoryBlock(NodeMask.from_ids([0]), "memory", GIB)
    return State(
        allocations={
            "u1/db": Allocation(CPUSet.parse("1-2"), NodeMask.from_ids([0]), memory=(block,)),
            "u2/web": Allocation(CPUSet.parse("4-5"), NodeMask.from_ids([0])),
        }
    )


@cache
def _machine() -> Path:
    """The files of the machine, made once: nothing is written to them."""
    folder = Path(tempfile.mkdtemp(prefix="machine-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build_sysfs(parse_machine(MACHINE, "test"), folder)
    return folder


def played_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: str = CONFIG, **files: str
) -> PlayedNode:
    """A node with the kubelet's static managers, whose agent is installed and does not run."""
    node = PlayedNode(folder)
    for name in ("sys", "proc"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for entry in (_machine() / name).iterdir():
            (folder / name / entry.name).symlink_to(entry)
    for name in ("run", "var/lib", "etc/nri-pin", "usr/lib", "proc/1", "opt", f"{FOLDER}/device-plugins"):
        node.path(name).mkdir(parents=True, exist_ok=True)
    (folder / "sys/fs").mkdir(exist_ok=True)
    node.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n")
    node.write("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n")
    node.write("sys/fs/cgroup/cpuset.mems.effective", "0-1\n")
    node.write(f"usr/lib/systemd/system/{KUBELET}", UNIT)
    node.write(f"usr/lib/systemd/system/{KUBELET}.d/10-kubeadm.conf", DROP_IN)
    if config:
        node.write(f"{FOLDER}/config.yaml", config)
    for name, text in files.items():
        node.write(name, text)
    # The kubelet's files are those of a kubelet with these options.
    agent = yaml.safe_load(CONFIG)
    own = load_text(yaml.safe_dump(agent), "test").node(discover(str(folder)))
    node.path(f"{FOLDER}/{CPU_FILE}").write_bytes(cpu_file(own, allocations()))
    memory = memory_file(own, allocations()) if "Static" in config else MEMORY_OFF
    node.path(f"{FOLDER}/{MEMORY_FILE}").write_bytes(memory)
    node.run_container("kubepods/podu1/c1", "u1", "db", "1-2")
    node.run_container("kubepods/podu2/c2", "u2", "web", "4-5")
    node.run_container("kubepods/burstable/podu3/c3", "u3", "batch", "0,3,6-7")
    node._started(KUBELET)
    assert node.said == []
    _play(node, monkeypatch)
    return node


WRITERS = (
    (host_module, "replace_file"),
    (steps_module, "write_whole"),
    (steps_module, "save_import"),
    (steps_module, "retire"),
)
ORIGINALS = {(module, name): getattr(module, name) for module, name in WRITERS}


def copy_of(node: PlayedNode, folder: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedNode:
    """Another node in the same state."""
    shutil.copytree(node.root, folder, symlinks=True)
    other = PlayedNode(folder, units=deepcopy(node.units), containers=dict(node.containers), argv=node.argv)
    other.started_with = node.started_with
    _play(other, monkeypatch)
    return other


def _play(node: PlayedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's socket is played, and each write to the node counts."""

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            node.effect(f"{name} {args[0]}")
            return function(*args, **more)

        return call

    # Nothing here survives the test, and a disk is slow.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(host_module, "read_agent", lambda _: node.status)
    monkeypatch.setattr("nri_plugin.cli.migrate.planning.read_agent", lambda _: node.status)
    for (module, name), function in ORIGINALS.items():
        monkeypatch.setattr(module, name, counted(name, function))
