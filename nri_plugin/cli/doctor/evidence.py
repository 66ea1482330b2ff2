"""The evidence that several checks of `nri-pin doctor` share: a node of which each part is read once, when it is needed.

A part that cannot be seen is `Hidden`; a text stands for evidence that contradicts itself.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_, or_
from pathlib import Path
from typing import NamedTuple

from nri_plugin.agent.observing.status_client import AgentStatus, RuntimeRow, read_status
from nri_plugin.agent.observing.status_socket import FILE_NAME as STATUS_SOCKET
from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME, OBSERVED_FILE_NAME, read_checkpoint
from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.cli.doctor import settings
from nri_plugin.cli.doctor.settings import (
    CONTAINERD,
    CRIO,
    BrokenFile,
    Distribution,
    KubeletSettings,
    NRISettings,
    version_of,
)
from nri_plugin.cli.doctor.support import Version
from nri_plugin.cli.doctor.view import NOT_COPIED, Hidden, NodeView, Process, mounts_of_this_process
from nri_plugin.config import loading as configuration
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import Config
from nri_plugin.core.kernel_settings import partitions
from nri_plugin.host import irqbalance
from nri_plugin.host.cgroup import CPUS, EXCLUSIVE, MENDED
from nri_plugin.host.kernel_work import (
    IRQ,
    KernelThread,
    ReachingInterrupt,
    read_interrupts,
    read_kernel_threads,
)
from nri_plugin.host.mounts import find_cpuset_tree, is_in_memory
from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import CheckpointError, ConfigError, HostError
from nri_plugin.model.options import Isolation
from nri_plugin.model.records import is_whole_pod, named
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology

ANSWER_S = 2.0
OUR_PROGRAM = "nri-pin"
OUR_PLUGIN = re.compile(r"\d\d-nri-pin\Z")
PLUGIN_FILE = re.compile(r"\d\d-.+\Z")
UNIT_PATHS = tuple(f"{folder}/systemd/system/nri-pin.service" for folder in ("/etc", "/usr/lib", "/lib"))
RIVALS = {
    "nri-resource-po": "nri-resource-policy",
    "cri-resmgr": "cri-resource-manager",
    "koordlet": "koordlet",
    "katalyst-agent": "katalyst-agent",
    "dracpu": "dra-driver-cpu",
    "cpumanager": "cpumanager",
}
"""Programs by the first 15 characters of their name, which is what the kernel keeps."""


class Paths(NamedTuple):
    """Paths from the command line.

    Attributes:
        config: the agent's configuration; empty to look for it.
        runtime_config: the runtime's; empty to look for it.
        state_dir: empty for the configuration's.
    """

    config: str = ""
    runtime_config: str = ""
    state_dir: str = ""


class FoundConfig(NamedTuple):
    """The agent's configuration.

    Attributes:
        path: on the node.
        config: None where it cannot be used.
        error: why it cannot be used, empty where it can.
        first_lines: the lines of a first configuration, where there is none.
    """

    path: str
    config: Config | None = None
    error: str | Hidden = ""
    first_lines: tuple[str, ...] = ()


SYSFS_CPUS = "/sys/devices/system/cpu"
ISOLATING = ("isolcpus", "nohz_full", "rcu_nocbs")
BALANCING = "/proc/sys/kernel/numa_balancing"
SYS_ADMIN = 21
"""Source: Linux, include/uapi/linux/capability.h."""

_FLAG = re.compile(r"^[a-z_]+$")
_IN_FORCE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel.

    Attributes:
        release: such as `6.12.48`.
        options: of its command line that concern CPUs: `isolcpus`, `nohz_full`, `rcu_nocbs`.
        unread: options whose value is no plain CPU list, unparsed; by name.
        numa_balancing: None without such a switch.
    """

    release: str
    options: Mapping[str, CPUSet] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    numa_balancing: bool | Hidden | None = None


def read_kernel(view: NodeView) -> Kernel | Hidden:
    """The kernel of the node; every kernel has a command line and a release, so files without them are no evidence."""
    line = view.kernel_text("/proc/cmdline")
    if line is None:
        return Hidden("/proc/cmdline", why=NOT_COPIED)
    if isinstance(line, Hidden):
        return line
    balancing = view.kernel_text(BALANCING)
    version = view.kernel_text("/proc/sys/kernel/osrelease")
    release = version.strip() if isinstance(version, str) else "" if view.is_copy else platform.release()
    known, unread = boot_options(line)
    if isinstance(balancing, str):
        return Kernel(
            release, known, unread, balancing.strip() not in ("", "0") if balancing.strip() else None
        )
    if balancing is None and not isinstance(version, str):
        balancing = Hidden(BALANCING, why=NOT_COPIED)
    return Kernel(release, known, unread, balancing)


def boot_options(line: str) -> tuple[dict[str, CPUSet], dict[str, str]]:
    """CPUs by option, and values that are no CPU list, by option (`isolcpus=managed_irq,2-5` has flags before it)."""
    known: dict[str, CPUSet] = {}
    unread: dict[str, str] = {}
    for word in line.split():
        name, _, value = word.partition("=")
        if name not in ISOLATING or not value:
            continue
        lists = ",".join(part for part in value.split(",") if not _FLAG.match(part))
        try:
            known[name] = CPUSet.parse(lists)
        except ValueError:
            unread[name] = value
    return known, unread


def linux_of(release: str) -> tuple[int, int] | None:
    """(major, minor) of a release of Linux; None where there is none to read."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else None


def is_admin(view: NodeView, pid: int) -> bool | None:
    """Whether a process of the node has the capability SYS_ADMIN; None where that cannot be seen."""
    try:
        found = _IN_FORCE.search(Path(view.proc, str(pid), "status").read_text("utf-8", "replace"))
    except OSError:
        return None
    return bool(int(found[1], 16) >> SYS_ADMIN & 1) if found else None


def free_bytes(path: str) -> int | None:
    """The free bytes of the file system of `path`; None when they cannot be read."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


TREE = "/sys/fs/cgroup"
TOPS = ("kubepods.slice", "kubepods")
"""As the systemd and the cgroupfs driver name it."""

LEVELS = 3
"""Below the top: the QoS slices, the pods, their containers; Guaranteed pods are directly below the top."""


@dataclass(frozen=True, slots=True)
class CgroupDir:
    """One cgroup.

    Attributes:
        path: below the root of the tree, empty for the root.
        cpus: what it was given; None without cpuset files, empty when it was never given any.
        effective: what its processes run on.
        passes_on: whether those below have cpuset files (cgroup v2; always so on v1).
        partition: `cpuset.cpus.partition`, empty without.
    """

    path: str
    cpus: CPUSet | None
    effective: CPUSet | None
    passes_on: bool
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree.

    Attributes:
        version: 1 or 2.
        directory: as seen from here.
        top: `kubepods.slice` or `kubepods`, empty when the node has run no pod yet.
        groups: the root, the top, QoS slices and pods, outermost first.
        options: of the mount, such as `nsdelegate`; None where the mount is not seen.
        nests_partitions: whether groups below the root can be partitions; None where no group has cpuset files yet.
        is_spoilt: whether CPUs of a partition had to be mended, after which the agent makes none until the next boot.
    """

    version: int
    directory: str
    top: str = ""
    groups: tuple[CgroupDir, ...] = ()
    options: tuple[str, ...] | None = None
    nests_partitions: bool | None = None
    is_spoilt: bool = False


def read_tree(view: NodeView) -> Tree | Hidden | str:
    """The tree that carries cpusets; a text says why there is none."""
    place = view.find(TREE)
    if isinstance(place, Hidden):
        return place
    if view.in_pod and view.root == "/":
        return view.hidden(TREE)
    try:
        found = find_cpuset_tree(place)
    except HostError as error:
        return view.hidden(TREE) if not os.path.isdir(place) and not view.is_here else error.detail
    top = next((name for name in TOPS if os.path.isdir(os.path.join(found.directory, name))), "")
    paths = ["", *_below(found.directory, top)] if top else [""]
    groups = tuple(_group(found.directory, name, found.version) for name in paths)
    return Tree(
        found.version,
        found.directory,
        top,
        groups,
        _options(found.directory),
        _nests_partitions(os.path.join(found.directory, top)) if top else None,
        os.path.isdir(os.path.join(found.directory, MENDED)),
    )


def _nests_partitions(place: str) -> bool | None:
    """By the file that such a group takes its CPUs from; distributions bring it to older kernels, too."""
    if not os.path.exists(os.path.join(place, CPUS)):
        return None
    return os.path.exists(os.path.join(place, EXCLUSIVE))


def _below(directory: str, top: str, levels: int = LEVELS) -> Iterator[str]:
    """`top` and the groups below it, each before its own."""
    yield top
    if not levels:
        return
    try:
        names = sorted(entry.name for entry in os.scandir(os.path.join(directory, top)) if entry.is_dir())
    except OSError:
        return
    for name in names:
        yield from _below(directory, os.path.join(top, name), levels - 1)


def _group(directory: str, path: str, version: int) -> CgroupDir:
    place = os.path.join(directory, path)
    effective = "cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"
    controllers = (_text(place, "cgroup.subtree_control") or "").split()
    return CgroupDir(
        path,
        parsed(_text(place, "cpuset.cpus")),
        parsed(_text(place, effective)),
        version == 1 or "cpuset" in controllers,
        _text(place, "cpuset.cpus.partition") or "",
    )


def _options(directory: str) -> tuple[str, ...] | None:
    """Of the innermost mount that is the tree itself; those of a bind mount are the file system's."""
    here = [one for one in mounts_of_this_process() if one.point == directory and one.fstype == "cgroup2"]
    return here[-1].super_options if here else None


def _text(place: str, name: str) -> str | None:
    try:
        return Path(place, name).read_text("ascii", "replace").strip()
    except OSError:
        return None


def parsed(text: str | None) -> CPUSet | None:
    """A list of CPUs; None where it is none."""
    try:
        return None if text is None else CPUSet.parse(text)
    except ValueError:
        return None


def read_topology(view: NodeView) -> Topology | Hidden | str:
    """The machine; a text when its files make no sense."""
    place = view.find(SYSFS_CPUS)
    root = "/" if isinstance(place, Hidden) and view.in_pod else view.root
    if isinstance(place, Hidden) and root != "/":
        return place
    if not os.path.isdir(os.path.join(root, SYSFS_CPUS[1:])):
        return view.hidden("/sys")
    try:
        return discover(root)
    except HostError as error:
        return str(error)


class Evidence:
    """A node as the checks see it."""

    def __init__(self, view: NodeView, paths: Paths = Paths()) -> None:  # noqa: B008 - frozen
        self.view = view
        self.paths = paths

    # ---- the machine

    @cached_property
    def processes(self) -> tuple[Process, ...] | Hidden:
        """Those of the node."""
        return self.view.processes()

    @property
    def running(self) -> tuple[Process, ...]:
        """Those that can be seen."""
        return () if isinstance(self.processes, Hidden) else self.processes

    @cached_property
    def topology(self) -> Topology | Hidden | str:
        """The machine."""
        return read_topology(self.view)

    @property
    def known_topology(self) -> Topology | None:
        """The machine; None where it is not known."""
        return self.topology if isinstance(self.topology, Topology) else None

    @cached_property
    def kernel(self) -> Kernel | Hidden:
        """The kernel."""
        return read_kernel(self.view)

    @cached_property
    def tree(self) -> Tree | Hidden | str:
        """The cgroup tree."""
        return read_tree(self.view)

    @cached_property
    def rivals(self) -> list[str]:
        """Running programs that assign CPUs to containers, most of them in pods."""
        found, _ = self.view.services(
            self.running, lambda process: process.name in RIVALS, in_containers=True
        )
        return sorted({RIVALS[process.name] for process in found})

    @cached_property
    def runs_irqbalance(self) -> bool:
        """Whether irqbalance runs."""
        return bool(self.view.services(self.running, lambda process: process.name == "irqbalance")[0])

    @cached_property
    def spared(self) -> CPUSet | None:
        """The CPUs that all running irqbalances leave alone; None where one does not answer."""
        directory = self.view.find(f"/{irqbalance.DIRECTORY}")
        if isinstance(directory, Hidden):
            return None
        found = irqbalance.running(directory.removesuffix(irqbalance.DIRECTORY))
        try:
            return reduce(and_, (one.banned() for one in found)) if found else None
        except HostError:
            return None

    @cached_property
    def interrupts(self) -> Sequence[ReachingInterrupt] | Hidden:
        """Those with a handler."""
        irq = self.view.find(IRQ)
        if isinstance(irq, Hidden) and self.view.is_copy:
            return irq
        # The directory says the same in a container, which may read it.
        found = read_interrupts(IRQ if isinstance(irq, Hidden) else irq)
        return Hidden(IRQ, why="cannot be listed") if found is None else found

    @cached_property
    def kernel_threads(self) -> Sequence[KernelThread] | Hidden:
        """All of them."""
        proc = self.view.process_folder()
        return proc if isinstance(proc, Hidden) else read_kernel_threads(proc)

    # ---- the container runtime

    @cached_property
    def runtime_process(self) -> Process | None:
        """The process of the runtime."""
        return settings.find_runtime(self.view, self.running)

    @cached_property
    def runtime_name(self) -> str | Hidden:
        """`containerd` or `CRI-O`; empty when the node has neither."""
        name = settings.find_name(self.view, self.runtime_process, self.paths.runtime_config)
        return self.processes if name == "" and isinstance(self.processes, Hidden) else name

    @property
    def runtime(self) -> str | Hidden:
        """The same, by the agent where it knows."""
        if self.told is not None:
            return CONTAINERD if self.told.name == "containerd" else CRIO
        return self.runtime_name

    @cached_property
    def runtime_version(self) -> str | Hidden:
        """As it says; empty when it says nothing."""
        if not self.runtime_name:
            return ""
        return settings.read_version(self.view, self.runtime_process, self.files_of)

    @property
    def release(self) -> Version | None:
        """The version, by the agent where it knows; None where it cannot be seen."""
        for text in (self.told.version if self.told else "", self.runtime_version):
            found = version_of(text) if isinstance(text, str) else None
            if found is not None:
                return found
        return (2, 0, 0) if self.known_nri and self.known_nri.format_version >= 3 else None

    @property
    def files_of(self) -> str:
        """The runtime whose files are read: containerd where the name cannot be seen."""
        name = self.runtime_name
        return name if isinstance(name, str) and name else CONTAINERD

    @cached_property
    def nri(self) -> NRISettings | Hidden | BrokenFile | None:
        """None when there is no runtime."""
        if not self.runtime_name:
            return None
        version = version_of(self.runtime_version) if isinstance(self.runtime_version, str) else None
        return settings.read_settings(
            self.view,
            self.files_of,
            self.runtime_process,
            self.paths.runtime_config,
            merges_keys=version is None or version >= (2, 0, 0),
        )

    @property
    def known_nri(self) -> NRISettings | None:
        """The settings; None where they could not be read."""
        return self.nri if isinstance(self.nri, NRISettings) else None

    @property
    def nri_or_default(self) -> NRISettings:
        """The settings; those of containerd where they could not be read."""
        return self.known_nri or NRISettings(CONTAINERD)

    @cached_property
    def nri_answer(self) -> str | Hidden:
        """Empty when the NRI socket accepts connections, else why not."""
        if self.told or not self.runtime_name:
            return ""
        config = self.config.config
        socket = config.nri_socket if config and not self.known_nri else self.nri_or_default.socket
        return self.view.connects(socket)

    @cached_property
    def plugins(self) -> tuple[str, ...] | Hidden | None:
        """Names in the runtime's plugin folder; None when there is no such folder."""
        return self.view.names(self.nri_or_default.plugin_dir)

    @cached_property
    def drop_ins(self) -> tuple[str, ...] | Hidden | None:
        """Names in its folder of configurations."""
        return self.view.names(self.nri_or_default.config_dir)

    @property
    def our_plugins(self) -> list[str]:
        """Files by which the runtime starts the agent itself; none where its folder cannot be seen."""
        names = self.plugins if isinstance(self.plugins, tuple) else ()
        return [name for name in names if OUR_PLUGIN.match(name)]

    @property
    def other_plugins(self) -> list[str]:
        """Plugins that the runtime starts beside the agent; none where its folder cannot be seen."""
        names = self.plugins if isinstance(self.plugins, tuple) else ()
        return [name for name in names if PLUGIN_FILE.match(name) and not OUR_PLUGIN.match(name)]

    @property
    def plugin(self) -> str:
        """The executable by which the runtime starts the agent itself; empty where it does not."""
        return os.path.join(self.nri_or_default.plugin_dir, self.our_plugins[0]) if self.our_plugins else ""

    @property
    def our_drop_ins(self) -> tuple[str, str]:
        """The names of the plugin's drop-in. Source: NRI takes that of the whole name, else that without the index."""
        return f"{self.our_plugins[0]}.conf", f"{OUR_PROGRAM}.conf"

    @property
    def our_drop_in(self) -> str:
        """The one that the runtime hands to the agent; empty for none."""
        names = self.drop_ins if isinstance(self.drop_ins, tuple) else ()
        return next((name for name in self.our_drop_ins if name in names), "")

    @property
    def runtime_unit(self) -> str:
        """The unit of systemd that runs the runtime."""
        default = NRISettings(CRIO if self.runtime_name == CRIO else CONTAINERD)
        return (self.known_nri or default).unit

    # ---- the kubelet

    @cached_property
    def kubelet(self) -> KubeletSettings | Hidden | None:
        """Its settings; None when there is no kubelet."""
        own, _ = settings.kubelets(self.view, self.running)
        found = settings.read_kubelet(self.view, own[0] if own else None)
        # A kubelet without files where they usually are may be a part of another program, as in k3s.
        if found is None and any(isinstance(policy, str) for policy in self.state_policies.values()):
            why = "not there, and the kubelet has left state files: it is set elsewhere"
            return Hidden(settings.CONFIG_FILE, why=why)
        if found is None and isinstance(self.processes, Hidden) and not self.view.is_copy:
            return self.processes
        return found

    @cached_property
    def state_policies(self) -> Mapping[str, str | Hidden | None]:
        """The policy in each of its state files; None where there is no such file."""
        return {name: settings.read_state_policy(self.view, name) for name in settings.STATE_FILES}

    @cached_property
    def pod_resources(self) -> str | Hidden:
        """Empty when its PodResources socket accepts connections, else why not."""
        return self.view.connects(settings.POD_RESOURCES)

    @cached_property
    def distribution(self) -> Distribution | None:
        """Starts the kubelet and writes its options; None where a unit of its own does."""
        main = self.known_nri.files[0] if self.known_nri and self.known_nri.files else ""
        return settings.distribution_of(self.view, main)

    @property
    def kubelet_unit(self) -> str:
        """The unit of systemd that starts the kubelet."""
        one = self.distribution
        return settings.unit_among(self.view, one.name, one.kubelet_units) if one else "kubelet"

    # ---- the agent

    @cached_property
    def agent_process(self) -> Process | None:
        """The agent: of this host, or the one in a container that listens on its socket in the state directory."""
        socket = os.path.join(self.paths.state_dir or DEFAULT_DIR, STATUS_SOCKET)
        found, _ = self.view.services(self.running, _is_agent, [socket])
        return found[0] if found else None

    @cached_property
    def has_unit(self) -> bool:
        """Whether the agent's unit of systemd is installed."""
        return any(isinstance(self.view.text(path), str) for path in UNIT_PATHS)

    @cached_property
    def config(self) -> FoundConfig:
        """The agent's configuration."""
        agent, named = self.agent_process, self.paths.config
        place: str | Hidden
        if self.plugin and not named:
            path = os.path.join(self.nri_or_default.config_dir, self.our_drop_in or self.our_drop_ins[0])
            place = self.view.find(path)
        else:
            path = named or (agent and agent.option("--config")) or configuration.DEFAULT_PATH
            place = named or self._place_of(path)
        if isinstance(place, Hidden):
            return FoundConfig(path, error=place)
        topology = self.known_topology
        try:
            config = configuration.load(place, machine=Capacity.below(self.view.root))
            if topology is not None:
                config.node(topology)
        except configuration.NothingConfiguredError as error:
            lines = configuration.first_lines(str(topology.first_core) if topology else "")
            return FoundConfig(path, None, str(error), tuple(lines.splitlines()))
        except ConfigError as error:
            return FoundConfig(path, None, str(error))
        return FoundConfig(path, config)

    def _place_of(self, path: str) -> str | Hidden:
        """Where the agent's file is: as the agent's container has it, else as the node has it."""
        if self.agent_process is not None and not self.view.is_copy:
            inside = f"{self.view.proc}/{self.agent_process.pid}/root{path}"
            if os.path.isfile(inside):
                return inside
        return self.view.find(path)

    @cached_property
    def state_dir(self) -> str:
        """Where the checkpoint is kept."""
        config = self.config.config
        return self.paths.state_dir or (config.state_dir if config else DEFAULT_DIR)

    @cached_property
    def answer(self) -> AgentStatus | Hidden | str:
        """The status of the running agent; a text says why it does not answer."""
        path = os.path.join(self.state_dir, STATUS_SOCKET)
        answer = self.view.connects(path)
        if isinstance(answer, Hidden):
            return answer
        place = self.view.find(path)
        if answer or isinstance(place, Hidden):
            return f"{path}: {answer}"
        try:
            return read_status(place, ANSWER_S)
        except HostError as error:
            return str(error)

    @property
    def status(self) -> AgentStatus | None:
        """The status; None where the agent does not answer."""
        return self.answer if isinstance(self.answer, AgentStatus) else None

    @property
    def told(self) -> RuntimeRow | None:
        """What the runtime told the running agent of itself."""
        return self.status.runtime if self.status else None

    @property
    def is_observing(self) -> bool:
        """Whether the agent changes nothing, so that another program may go on pinning."""
        return self.status is not None and self.status.observing

    @cached_property
    def reserved(self) -> CPUSet | None:
        """What the agent keeps for the system; None where that is not known."""
        config, topology = self.config.config, self.known_topology
        if self.status is not None:
            return self.status.node.reserved
        if config is None or topology is None:
            return None
        try:
            return config.reserved(topology)
        except ConfigError:
            return None

    @cached_property
    def checkpoint(self) -> Checkpoint | Hidden | str | None:
        """The checkpoint; a text says why it cannot be used, None that there is none."""
        name = OBSERVED_FILE_NAME if self.is_observing else FILE_NAME
        place = self.view.find(os.path.join(self.state_dir, name))
        if isinstance(place, Hidden):
            return place
        try:
            return read_checkpoint(place)
        except CheckpointError as error:
            if isinstance(error.__cause__, PermissionError):
                return Hidden(place, why="permission denied; run as root")
            return str(error)

    @cached_property
    def is_in_memory(self) -> bool | None:
        """Whether the state directory is gone after a reboot; None when it is not there."""
        return is_in_memory(self._state_place) if self._state_place else None

    @cached_property
    def free_bytes(self) -> int | None:
        """Left in the state directory."""
        return free_bytes(self._state_place) if self._state_place else None

    @property
    def _state_place(self) -> str:
        place = self.view.find(self.state_dir)
        return place if isinstance(place, str) and os.path.isdir(place) else ""

    @cached_property
    def exporter(self) -> str | Hidden | None:
        """Empty when its socket accepts connections, else why not; None where none was set up."""
        config = self.config.config
        default = os.path.join(self.state_dir, configuration.EXPORTER_SOCKET)
        path = config.exporter_socket if config else default
        place = self.view.find(path)
        if isinstance(place, Hidden) or not os.path.lexists(place):
            return None
        answer = self.view.connects(path)
        return f"{path}: {answer}" if isinstance(answer, str) and answer else answer

    # ---- its allocations

    @cached_property
    def state(self) -> State | None:
        """The state of the agent that runs, else of its checkpoint."""
        if self.status is not None:
            return self.status.state
        return self.checkpoint.state if isinstance(self.checkpoint, Checkpoint) else None

    @property
    def is_ours(self) -> bool:
        """Whether an agent keeps the cpusets, or has left a checkpoint; one that observes carries nothing out."""
        return self.state is not None and not self.is_observing

    @property
    def allocated(self) -> CPUSet:
        """CPUs that groups may be narrower by, because containers of ours have them to themselves."""
        return self.state.exclusive if self.state and self.is_ours else NO_CPUS

    @cached_property
    def exclusive(self) -> Mapping[str, CPUSet]:
        """Exclusive CPUs by container."""
        if self.state is None:
            return {}
        return {
            named(self.state.pods, key): held.in_force
            for key, held in self.state.allocations.items()
            if held.cpus and not held.is_pod_shared and not is_whole_pod(key)
        }

    @property
    def exclusive_cpus(self) -> CPUSet:
        """Those of all containers."""
        return reduce(or_, self.exclusive.values(), NO_CPUS)

    @cached_property
    def shared_pool(self) -> CPUSet | None:
        """The CPUs of shared containers; all online ones where the agent does not tell."""
        if self.known_topology is None:
            return None
        return self.status.state.shared_pool(self.status.node) if self.status else self.known_topology.online

    @cached_property
    def wants_partitions(self) -> bool:
        """Whether any container should have one: by the configuration, or by its annotation."""
        config, status = self.config.config, self.status
        if status is None:
            return config is not None and config.options.isolation is not Isolation.NONE
        by_option = status.node.options.isolation is not Isolation.NONE
        return by_option or any(partitions(status.node, status.state))

    @cached_property
    def may_partition(self) -> bool | None:
        """Whether the agent that runs has SYS_ADMIN; None where that cannot be seen: on a copy no process runs."""
        agent = None if self.view.is_copy else self.agent_process
        return is_admin(self.view, agent.pid) if agent else None


def _is_agent(process: Process) -> bool:
    words = [os.path.basename(word) for word in process.args[:3]]
    is_command = OUR_PROGRAM in words and "run" in process.args[:4]
    return is_command or any(word.endswith(f"-{OUR_PROGRAM}") for word in words)
