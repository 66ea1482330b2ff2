"""Collects the evidence that `nri-pin doctor` judges: all reads of the node happen here, once."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import NamedTuple

from nri_plugin import __version__
from nri_plugin.agent.status_client import AgentStatus, read_status
from nri_plugin.agent.status_socket import FILE_NAME as STATUS_SOCKET
from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME, OBSERVED_FILE_NAME, read_checkpoint
from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.cli.doctor import affinity, kubelet_files, machine_files, runtime_files
from nri_plugin.cli.doctor.affinity import AffinityEvidence
from nri_plugin.cli.doctor.agent import AgentEvidence
from nri_plugin.cli.doctor.kubelet import KubeletEvidence
from nri_plugin.cli.doctor.kubelet_files import KubeletSettings
from nri_plugin.cli.doctor.machine import CgroupEvidence, KernelEvidence
from nri_plugin.cli.doctor.reach import ReachEvidence
from nri_plugin.cli.doctor.runtime import OURS, RuntimeEvidence, version_of
from nri_plugin.cli.doctor.runtime_files import CONTAINERD, UNITS, BrokenFile, Distribution, NRISettings
from nri_plugin.cli.doctor.view import Hidden, NodeView, Process
from nri_plugin.cli.state.verify import unplaced
from nri_plugin.config import loading as configuration
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import Config
from nri_plugin.core.kernel_settings import partitions
from nri_plugin.host import irqbalance
from nri_plugin.host.kernel_work import IRQ, ReachingInterrupt, read_interrupts, read_kernel_threads
from nri_plugin.host.mounts import is_in_memory
from nri_plugin.model.errors import CheckpointError, ConfigError, HostError
from nri_plugin.model.options import Isolation
from nri_plugin.model.records import is_whole_pod, named
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.model.violations import violations

ANSWER_S = 2.0
OUR_PROGRAM = "nri-pin"
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


@dataclass(frozen=True, slots=True)
class DoctorEvidence:
    """All evidence, by group."""

    runtime: RuntimeEvidence
    affinity: AffinityEvidence
    kubelet: KubeletEvidence
    cgroups: CgroupEvidence
    kernel: KernelEvidence
    reach: ReachEvidence
    agent: AgentEvidence


@dataclass(frozen=True, slots=True)
class Asked:
    """Paths from the command line.

    Attributes:
        config: the agent's configuration; empty to look for it.
        runtime_config: the runtime's; empty to look for it.
        state_dir: empty for the configuration's.
    """

    config: str = ""
    runtime_config: str = ""
    state_dir: str = ""


def collect(view: NodeView, asked: Asked) -> DoctorEvidence:
    """Read the node."""
    return _Collector(view, asked).collect()


class _FoundConfig(NamedTuple):
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


class _Collector:
    """A node, each part of which is read once, when another part or a check needs it."""

    def __init__(self, view: NodeView, asked: Asked) -> None:
        self.view, self.asked = view, asked
        self.processes = view.processes()
        self.running = () if isinstance(self.processes, Hidden) else self.processes

    def collect(self) -> DoctorEvidence:
        return DoctorEvidence(
            self.runtime,
            self._affinity(),
            self.kubelet,
            self._cgroups(),
            KernelEvidence(
                machine_files.read_kernel(self.view),
                self.topology,
                self.reserved,
                None if isinstance(self.processes, Hidden) else self._runs("irqbalance"),
                self._spared(),
                reduce(or_, (self._exclusive() or {}).values(), NO_CPUS),
            ),
            self._reach(),
            self._agent(),
        )

    # ---- the machine

    @cached_property
    def topology(self) -> Topology | Hidden | str:
        return machine_files.read_topology(self.view)

    @cached_property
    def known_topology(self) -> Topology | None:
        return self.topology if isinstance(self.topology, Topology) else None

    def _runs(self, name: str) -> bool:
        return bool(self.view.services(self.running, lambda process: process.name == name)[0])

    @cached_property
    def rivals(self) -> list[str]:
        """Running programs that assign CPUs to containers, most of them in pods."""
        found, _ = self.view.services(
            self.running, lambda process: process.name in RIVALS, in_containers=True
        )
        return sorted({RIVALS[process.name] for process in found})

    # ---- the container runtime

    @cached_property
    def runtime_process(self) -> Process | None:
        return runtime_files.find_runtime(self.view, self.running)

    @cached_property
    def runtime_name(self) -> str | Hidden:
        name = runtime_files.find_name(self.view, self.runtime_process, self.asked.runtime_config)
        return self.processes if name == "" and isinstance(self.processes, Hidden) else name

    @cached_property
    def runtime_version(self) -> str | Hidden:
        if not self.runtime_name:
            return ""
        return runtime_files.read_version(self.view, self.runtime_process, self._files_of)

    @property
    def _files_of(self) -> str:
        """The runtime whose files are read: containerd where the name cannot be seen."""
        name = self.runtime_name
        return name if isinstance(name, str) and name else CONTAINERD

    @cached_property
    def nri(self) -> NRISettings | Hidden | BrokenFile | None:
        if not self.runtime_name:
            return None
        version = version_of(self.runtime_version) if isinstance(self.runtime_version, str) else None
        return runtime_files.read_settings(
            self.view,
            self._files_of,
            self.runtime_process,
            self.asked.runtime_config,
            merges_keys=version is None or version >= (2, 0, 0),
        )

    @cached_property
    def runtime(self) -> RuntimeEvidence:
        known = self.nri if isinstance(self.nri, NRISettings) else None
        default = known or NRISettings(CONTAINERD)
        config, told = self.config.config, self.status.runtime if self.status else None
        socket = known.socket if known else config.nri_socket if config else default.socket
        return RuntimeEvidence(
            self.runtime_name,
            self.runtime_version,
            self.nri,
            told,
            "" if told or not self.runtime_name else self.view.connects(socket),
            config.nri_socket if config else "",
            self.view.names(default.plugin_dir),
            self.view.names(default.config_dir),
            config.plugin_name if config else OUR_PROGRAM,
        )

    def _affinity(self) -> AffinityEvidence:
        topology, status = self.known_topology, self.status
        if topology is None or not self.runtime_name:
            return AffinityEvidence()
        pool = status.state.shared_pool(status.node) if status else topology.online
        return affinity.read(self.view, self.running, self.runtime_process, UNITS[self._files_of], pool)

    @cached_property
    def plugin(self) -> tuple[str, str] | None:
        """The executable by which the runtime starts the agent itself, and its drop-in; None where it does not.

        Source: NRI takes the drop-in of the plugin's whole name, else that of its name without the index.
        """
        known = self.nri if isinstance(self.nri, NRISettings) else NRISettings(CONTAINERD)
        names, drop_ins = self.view.names(known.plugin_dir), self.view.names(known.config_dir)
        ours = [name for name in names if OURS.match(name)] if isinstance(names, tuple) else []
        if not ours:
            return None
        candidates = [f"{ours[0]}.conf", f"{OUR_PROGRAM}.conf"]
        there = [name for name in candidates if isinstance(drop_ins, tuple) and name in drop_ins]
        drop_in = [*there, *candidates][0]
        return os.path.join(known.plugin_dir, ours[0]), os.path.join(known.config_dir, drop_in)

    # ---- the kubelet

    @cached_property
    def kubelet_settings(self) -> KubeletSettings | Hidden | None:
        own, _ = kubelet_files.kubelets(self.view, self.running)
        return kubelet_files.read_kubelet(self.view, own[0] if own else None)

    @cached_property
    def kubelet(self) -> KubeletEvidence:
        states = {
            name: kubelet_files.read_state_policy(self.view, name) for name in kubelet_files.STATE_FILES
        }
        settings = self.kubelet_settings
        # A kubelet without files where they usually are may be a part of another program, as in k3s.
        if settings is None and any(isinstance(policy, str) for policy in states.values()):
            why = "not there, and the kubelet has left state files: it is set elsewhere"
            settings = Hidden(kubelet_files.CONFIG_FILE, why=why)
        elif settings is None and isinstance(self.processes, Hidden) and not self.view.is_copy:
            settings = self.processes
        return KubeletEvidence(
            settings,
            states,
            self.view.connects(kubelet_files.POD_RESOURCES),
            self.reserved,
            is_only_observed=self.status is not None and self.status.observing,
            topology=self.known_topology,
            config_path=self.config.path,
            has_configuration=not self.config.first_lines,
            agent_runs=self.status is not None and self.status.runtime is not None,
            restart_runtime=self.runtime.restart if self.runtime.our_plugins else "",
            has_unit=any(isinstance(self.view.text(path), str) for path in UNIT_PATHS),
            in_pod=self.view.in_pod,
            distribution=self.distribution,
            unit=runtime_files.unit_among(self.view, self.distribution.name, self.distribution.kubelet_units)
            if self.distribution
            else "kubelet",
        )

    @cached_property
    def distribution(self) -> Distribution | None:
        main = self.nri.files[0] if isinstance(self.nri, NRISettings) and self.nri.files else ""
        return runtime_files.distribution_of(self.view, main)

    # ---- the agent

    @cached_property
    def agent_process(self) -> Process | None:
        """The agent: of this host, or the one in a container that listens on its socket in the state directory."""
        socket = os.path.join(self.asked.state_dir or DEFAULT_DIR, STATUS_SOCKET)
        found, _ = self.view.services(self.running, _is_agent, [socket])
        return found[0] if found else None

    @cached_property
    def config(self) -> _FoundConfig:
        agent, asked = self.agent_process, self.asked.config
        if self.plugin is not None and not asked:
            path = self.plugin[1]
            place = self.view.find(path)
        else:
            path = asked or (agent and agent.option("--config")) or configuration.DEFAULT_PATH
            place = asked or self._place_of(path)
        if isinstance(place, Hidden):
            return _FoundConfig(path, error=place)
        topology = self.known_topology
        try:
            config = configuration.load(place, machine=Capacity.below(self.view.root))
            if topology is not None:
                config.node(topology)
        except configuration.NothingConfiguredError as error:
            lines = configuration.first_lines(str(topology.first_core) if topology else "")
            return _FoundConfig(path, None, str(error), tuple(lines.splitlines()))
        except ConfigError as error:
            return _FoundConfig(path, None, str(error))
        return _FoundConfig(path, config)

    def _place_of(self, path: str) -> str | Hidden:
        """Where the agent's file is: as the agent's container has it, else as the node has it."""
        if self.agent_process is not None and not self.view.is_copy:
            inside = f"{self.view.proc}/{self.agent_process.pid}/root{path}"
            if os.path.isfile(inside):
                return inside
        return self.view.find(path)

    @cached_property
    def state_dir(self) -> str:
        config = self.config.config
        return self.asked.state_dir or (config.state_dir if config else DEFAULT_DIR)

    @property
    def status(self) -> AgentStatus | None:
        return self._status[0]

    @cached_property
    def _status(self) -> tuple[AgentStatus | None, str | Hidden]:
        """The status of the running agent, or why it does not answer."""
        path = os.path.join(self.state_dir, STATUS_SOCKET)
        answer = self.view.connects(path)
        if isinstance(answer, Hidden):
            return None, answer
        place = self.view.find(path)
        if answer or isinstance(place, Hidden):
            return None, f"{path}: {answer}"
        try:
            return read_status(place, ANSWER_S), ""
        except HostError as error:
            return None, str(error)

    @cached_property
    def reserved(self) -> CPUSet | None:
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
        observing = self.status is not None and self.status.observing
        place = self.view.find(os.path.join(self.state_dir, OBSERVED_FILE_NAME if observing else FILE_NAME))
        if isinstance(place, Hidden):
            return place
        try:
            return read_checkpoint(place)
        except CheckpointError as error:
            if isinstance(error.__cause__, PermissionError):
                return Hidden(place, why="permission denied; run as root")
            return str(error)

    def _agent(self) -> AgentEvidence:
        status, checkpoint = self.status, self.checkpoint
        place = self.view.find(self.state_dir)
        there = isinstance(place, str) and os.path.isdir(place)
        runtime = status.runtime if status else None
        return AgentEvidence(
            path=self.config.path,
            config_error=self.config.error,
            first_lines=self.config.first_lines,
            unknown_keys=self.config.config.unknown_keys if self.config.config else (),
            state_dir=self.state_dir,
            trouble=self._status[1],
            version=status.agent if status else "",
            runtime=f"{runtime.name} {runtime.version}" if runtime else "",
            own_version=__version__,
            checkpoint=_judged(checkpoint),
            containers=len(checkpoint.state.containers) if isinstance(checkpoint, Checkpoint) else 0,
            unplaced=unplaced(checkpoint.state) if isinstance(checkpoint, Checkpoint) else (),
            in_memory=is_in_memory(str(place)) if there else None,
            free_bytes=machine_files.free_bytes(str(place)) if there else None,
            exporter=self._exporter(),
            pod_level=self.config.config is not None and self.config.config.options.pod_level_managers,
            fights=sorted({row.name for row in status.drifts if row.is_fight}) if status else (),
            rivals=self.processes if isinstance(self.processes, Hidden) else self.rivals,
            observing=status is not None and status.observing,
            untold=status.untold if status else (),
            failed_creations=status.failed_creations if status else 0,
            quiet=status.quiet if status else None,
            suspects=(*self.runtime.other_plugins, *self.rivals),
            must_hand_over=self.kubelet.must_hand_over,
            has_unit=self.kubelet.has_unit,
            plugin=self.plugin[0] if self.plugin else "",
            unit=self.runtime.restart.rpartition(" ")[2],
        )

    def _exporter(self) -> str | Hidden | None:
        """Whether it answers; None where none was set up."""
        config = self.config.config
        default = os.path.join(self.state_dir, configuration.EXPORTER_SOCKET)
        path = config.exporter_socket if config else default
        place = self.view.find(path)
        if isinstance(place, Hidden) or not os.path.lexists(place):
            return None
        answer = self.view.connects(path)
        return f"{path}: {answer}" if isinstance(answer, str) and answer else answer

    # ---- cgroups

    def _cgroups(self) -> CgroupEvidence:
        told, status, agent = self.kubelet_settings, self.status, self.agent_process
        driver = told.by_key.get(kubelet_files.CGROUP_DRIVER) if isinstance(told, KubeletSettings) else None
        state = self.checkpoint.state if isinstance(self.checkpoint, Checkpoint) else None
        if status is not None:
            # An agent that only observes carries nothing of its state out.
            state = None if status.observing else status.state
        return CgroupEvidence(
            machine_files.read_tree(self.view),
            self.known_topology.online if self.known_topology else None,
            driver.value if driver else "",
            self.nri.systemd_cgroup if isinstance(self.nri, NRISettings) else None,
            state.exclusive if state else CPUSet(),
            is_ours=state is not None,
            asks_partitions=self._asks_partitions(),
            # Of a copy no process runs here, so that its capabilities are not seen.
            may_partition=machine_files.is_admin(self.view, agent.pid)
            if agent and not self.view.is_copy
            else None,
            culprits=tuple(filter(None, (self.kubelet.culprit, *self.rivals))),
            has_floor=self._has_floor(),
        )

    def _has_floor(self) -> bool:
        config = self.config.config
        return config is not None and config.options.pool_floor

    # ---- what reaches exclusive CPUs

    def _reach(self) -> ReachEvidence:
        irq = self.view.find(IRQ)
        if isinstance(irq, Hidden) and self.view.is_copy:
            interrupts: Sequence[ReachingInterrupt] | Hidden = irq
        else:
            # The directory says the same in a container, which may read it.
            found = read_interrupts(IRQ if isinstance(irq, Hidden) else irq)
            interrupts = Hidden(IRQ, why="cannot be listed") if found is None else found
        proc = self.view.process_folder()
        threads = proc if isinstance(proc, Hidden) else read_kernel_threads(proc)
        return ReachEvidence(interrupts, threads, self._exclusive())

    def _spared(self) -> CPUSet | None:
        """The CPUs that all running irqbalances leave alone."""
        directory = self.view.find(f"/{irqbalance.DIRECTORY}")
        if isinstance(directory, Hidden):
            return None
        found = irqbalance.running(directory.removesuffix(irqbalance.DIRECTORY))
        try:
            return reduce(and_, (one.banned() for one in found)) if found else None
        except HostError:
            return None

    def _exclusive(self) -> Mapping[str, CPUSet] | None:
        """Exclusive CPUs by container, of the agent that runs, else of its checkpoint."""
        state = self.checkpoint.state if isinstance(self.checkpoint, Checkpoint) else None
        state = self.status.state if self.status is not None else state
        if state is None:
            return None
        return {
            named(state.pods, key): held.in_force
            for key, held in state.allocations.items()
            if held.cpus and not held.is_pod_shared and not is_whole_pod(key)
        }

    def _asks_partitions(self) -> bool:
        """Whether any container should have one: by the configuration, or by its annotation."""
        config, status = self.config.config, self.status
        if status is None:
            return config is not None and config.options.isolation is not Isolation.NONE
        asked = status.node.options.isolation is not Isolation.NONE
        return asked or any(partitions(status.node, status.state))


def _is_agent(process: Process) -> bool:
    words = [os.path.basename(word) for word in process.args[:3]]
    is_command = OUR_PROGRAM in words and "run" in process.args[:4]
    return is_command or any(word.endswith(f"-{OUR_PROGRAM}") for word in words)


def _judged(checkpoint: Checkpoint | Hidden | str | None) -> Sequence[str] | Hidden | None:
    """The errors of a checkpoint, by the machine and options it was written for."""
    if isinstance(checkpoint, str):
        return (checkpoint,)
    if not isinstance(checkpoint, Checkpoint):
        return checkpoint
    if checkpoint.facts is None:
        return ()
    return tuple(map(str, violations(checkpoint.facts.as_node(), checkpoint.state)))
