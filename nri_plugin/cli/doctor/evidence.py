"""Collects the evidence that `nri-pin doctor` judges: all reads of the node happen here, once."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nri_plugin import __version__
from nri_plugin.agent.status_client import AgentStatus, read_status
from nri_plugin.agent.status_socket import FILE_NAME as STATUS_SOCKET
from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME, OBSERVED_FILE_NAME, read_checkpoint
from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.cli.doctor import node_evidence, service_evidence
from nri_plugin.cli.doctor.agent import NO_CONFIGURATION, AgentEvidence
from nri_plugin.cli.doctor.kubelet import KubeletEvidence
from nri_plugin.cli.doctor.machine import CgroupEvidence, KernelEvidence
from nri_plugin.cli.doctor.node_evidence import Hidden, NodeView, Process, read_tree
from nri_plugin.cli.doctor.runtime import (
    OURS,
    RuntimeEvidence,
    other_plugins,
    restart_of,
    starts_agent,
    version_of,
)
from nri_plugin.config import loading as configuration
from nri_plugin.config.loading import Config
from nri_plugin.core.kernel_settings import partitions
from nri_plugin.host.mounts import is_in_memory
from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import CheckpointError, ConfigError, HostError
from nri_plugin.model.options import Isolation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology

ANSWER_S = 2.0
OUR_PROGRAM = "nri-pin"
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
    kubelet: KubeletEvidence
    cgroups: CgroupEvidence
    kernel: KernelEvidence
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
    processes = view.processes()
    running = () if isinstance(processes, Hidden) else processes
    topology = read_topology(view)
    found = _find_runtime(view, asked, processes)
    plugin = _plugin(view, found.settings)
    config, path, config_error = _configuration(view, asked, running, topology, plugin)
    state_dir = asked.state_dir or (config.state_dir if config else DEFAULT_DIR)
    status, trouble = _status(view, state_dir)
    reserved = _reserved(config, status, topology)
    checkpoint = _checkpoint(
        view, state_dir, OBSERVED_FILE_NAME if status and status.observing else FILE_NAME
    )
    told = service_evidence.read_kubelet(view, service_evidence.find_kubelet(running))
    seen = _runtime(view, found, config, status)
    theirs = replace(
        _kubelet(view, told, processes, status),
        reserved=reserved,
        topology=topology if isinstance(topology, Topology) else None,
        config_path=path,
        restart_runtime=restart_of(seen) if starts_agent(seen) else "",
        has_configuration=not (isinstance(config_error, str) and NO_CONFIGURATION in config_error),
    )
    ours = _agent(view, (path, config_error), state_dir, status, trouble, checkpoint, config, processes)
    return DoctorEvidence(
        seen,
        theirs,
        replace(
            _cgroups(view, told, seen, topology, status, checkpoint),
            asks_partitions=_asks_partitions(config, status),
            may_partition=_may_partition(view, _find_agent(running)),
            culprits=tuple(filter(None, (theirs.culprit, *_rivals(running)))),
        ),
        KernelEvidence(node_evidence.read_kernel(view), topology, reserved, _runs(processes, "irqbalance")),
        replace(
            ours,
            plugin=plugin.file if plugin else "",
            unit="crio" if found.name == service_evidence.CRIO else "containerd",
            must_hand_over=theirs.must_hand_over,
            failed_creations=status.failed_creations if status else 0,
            suspects=(*other_plugins(seen), *_rivals(running)),
        ),
    )


def _kubelet(
    view: NodeView,
    told: service_evidence.KubeletSettings | Hidden | None,
    processes: Sequence[Process] | Hidden,
    status: AgentStatus | None,
) -> KubeletEvidence:
    states = {name: service_evidence.read_state_policy(view, name) for name in service_evidence.STATE_FILES}
    return KubeletEvidence(
        _if_none_seen(view, told, states, processes),
        states,
        view.connects(service_evidence.POD_RESOURCES),
        is_only_observed=status is not None and status.observing,
        agent_runs=status is not None and status.runtime is not None,
        in_pod=view.in_pod,
        root=view.root,
    )


def read_topology(view: NodeView) -> Topology | Hidden | str:
    """The machine; a text when its files make no sense."""
    place = view.find("/sys/devices/system/cpu")
    root = "/" if isinstance(place, Hidden) and view.in_pod else view.root
    if isinstance(place, Hidden) and root != "/":
        return place
    if not os.path.isdir(os.path.join(root, "sys/devices/system/cpu")):
        return view.hidden("/sys")
    try:
        return discover(root)
    except HostError as error:
        return str(error)


def _if_none_seen(
    view: NodeView,
    told: service_evidence.KubeletSettings | Hidden | None,
    states: Mapping[str, str | Hidden | None],
    processes: Sequence[Process] | Hidden,
) -> service_evidence.KubeletSettings | Hidden | None:
    """No file of the kubelet where it usually is says little: it may be a part of another program, as in k3s."""
    if told is None and any(isinstance(policy, str) for policy in states.values()):
        return Hidden(
            service_evidence.CONFIG_FILE,
            why="not there, and the kubelet has left state files: it is set elsewhere",
        )
    if told is None and isinstance(processes, Hidden) and not view.is_copy:
        return processes
    return told


@dataclass(frozen=True, slots=True)
class _Plugin:
    """The agent as the runtime starts it: the executable, and the drop-in that the runtime hands over."""

    file: str
    drop_in: str


def _plugin(
    view: NodeView, settings: service_evidence.NRISettings | Hidden | service_evidence.BrokenFile | None
) -> _Plugin | None:
    """How the runtime starts the agent itself; None where it does not, or where that cannot be seen.

    Source: NRI takes the drop-in of the plugin's whole name, else that of its name without the index.
    """
    known = (
        settings
        if isinstance(settings, service_evidence.NRISettings)
        else service_evidence.NRISettings(service_evidence.CONTAINERD)
    )
    names, drop_ins = view.names(known.plugin_dir), view.names(known.config_dir)
    ours = [name for name in names if OURS.match(name)] if isinstance(names, tuple) else []
    if not ours:
        return None
    candidates = [f"{ours[0]}.conf", f"{OUR_PROGRAM}.conf"]
    there = [name for name in candidates if isinstance(drop_ins, tuple) and name in drop_ins]
    return _Plugin(
        os.path.join(known.plugin_dir, ours[0]), os.path.join(known.config_dir, [*there, *candidates][0])
    )


def _configuration(
    view: NodeView,
    asked: Asked,
    running: Sequence[Process],
    topology: Topology | Hidden | str,
    plugin: _Plugin | None = None,
) -> tuple[Config | None, str, str | Hidden]:
    """The agent's configuration, its path, and why it cannot be used."""
    agent = _find_agent(running)
    if plugin is not None and not asked.config:
        path, place = plugin.drop_in, view.find(plugin.drop_in)
    else:
        path = asked.config or (agent and agent.option("--config")) or configuration.DEFAULT_PATH
        place = asked.config or _place_of(view, agent, path)
    if isinstance(place, Hidden):
        return None, path, place
    try:
        config = configuration.load(place)
        if isinstance(topology, Topology):
            config.node(topology)
    except configuration.NothingConfiguredError as error:
        reserved = str(topology.first_core) if isinstance(topology, Topology) else ""
        return None, path, str(configuration.nothing_configured(error.where, reserved))
    except ConfigError as error:
        return None, path, str(error)
    return config, path, ""


def _place_of(view: NodeView, agent: Process | None, path: str) -> str | Hidden:
    """Where the agent's file is: as the node has it, or as the agent's container has it."""
    if agent is not None and not view.is_copy:
        proc = "/proc" if view.root == "/" else f"{view.root}/proc"
        inside = f"{proc}/{agent.pid}/root{path}"
        if os.path.isfile(inside):
            return inside
    return view.find(path)


def _find_agent(running: Sequence[Process]) -> Process | None:
    for process in running:
        words = [os.path.basename(word) for word in process.args[:3]]
        if OUR_PROGRAM in words and "run" in process.args[:4]:
            return process
        if any(word.endswith(f"-{OUR_PROGRAM}") for word in words):
            return process
    return None


def _status(view: NodeView, state_dir: str) -> tuple[AgentStatus | None, str | Hidden]:
    path = os.path.join(state_dir, STATUS_SOCKET)
    answer = view.connects(path)
    if isinstance(answer, Hidden):
        return None, answer
    place = view.find(path)
    if answer or isinstance(place, Hidden):
        return None, f"{path}: {answer}"
    try:
        return read_status(place, ANSWER_S), ""
    except HostError as error:
        return None, str(error)


def _reserved(
    config: Config | None, status: AgentStatus | None, topology: Topology | Hidden | str
) -> CPUSet | None:
    if status is not None:
        return status.node.reserved
    if config is None or not isinstance(topology, Topology):
        return None
    try:
        return config.reserved(topology)
    except ConfigError:
        return None


def _checkpoint(view: NodeView, state_dir: str, name: str) -> Checkpoint | Hidden | str | None:
    """The checkpoint; a text says why it cannot be used, None that there is none."""
    place = view.find(os.path.join(state_dir, name))
    if isinstance(place, Hidden):
        return place
    try:
        return read_checkpoint(place)
    except CheckpointError as error:
        if isinstance(error.__cause__, PermissionError):
            return Hidden(place, why="permission denied; run as root")
        return str(error)


@dataclass(frozen=True, slots=True)
class _FoundRuntime:
    """The runtime, before anything is known of the agent."""

    name: str | Hidden
    version: str | Hidden
    settings: service_evidence.NRISettings | Hidden | service_evidence.BrokenFile | None


def _find_runtime(view: NodeView, asked: Asked, processes: Sequence[Process] | Hidden) -> _FoundRuntime:
    process = None if isinstance(processes, Hidden) else service_evidence.find_runtime(processes)
    name = service_evidence.find_name(view, process, asked.runtime_config)
    if name == "" and isinstance(processes, Hidden):
        name = processes
    name_for_files = name if isinstance(name, str) and name else service_evidence.CONTAINERD
    version = service_evidence.read_version(view, process, name_for_files) if name else ""
    known = version_of(version) if isinstance(version, str) else None
    settings = service_evidence.read_settings(
        view, name_for_files, process, asked.runtime_config, merges_keys=known is None or known >= (2, 0, 0)
    )
    return _FoundRuntime(name, version, settings if name else None)


def _runtime(
    view: NodeView, seen: _FoundRuntime, config: Config | None, status: AgentStatus | None
) -> RuntimeEvidence:
    found = seen.settings if isinstance(seen.settings, service_evidence.NRISettings) else None
    path = found.socket if found else config.nri_socket if config else service_evidence.SOCKET
    is_asked = status is not None and status.runtime is not None
    return RuntimeEvidence(
        seen.name,
        seen.version,
        seen.settings,
        status.runtime if status else None,
        "" if is_asked or not seen.name else view.connects(path),
        config.nri_socket if config else "",
        view.names(found.plugin_dir if found else "/opt/nri/plugins"),
        view.names(found.config_dir if found else "/etc/nri/conf.d"),
        config.plugin_name if config else OUR_PROGRAM,
    )


def _cgroups(
    view: NodeView,
    told: service_evidence.KubeletSettings | Hidden | None,
    seen: RuntimeEvidence,
    topology: Topology | Hidden | str,
    status: AgentStatus | None,
    checkpoint: Checkpoint | Hidden | str | None,
) -> CgroupEvidence:
    driver = told.by_key.get("cgroupDriver") if isinstance(told, service_evidence.KubeletSettings) else None
    settings = seen.settings if isinstance(seen.settings, service_evidence.NRISettings) else None
    state = status.state if status else checkpoint.state if isinstance(checkpoint, Checkpoint) else None
    if status is not None and status.observing:
        state = None  # nothing of it was carried out
    return CgroupEvidence(
        read_tree(view),
        topology.online if isinstance(topology, Topology) else None,
        driver.value if driver else "",
        settings.systemd_cgroup if settings else None,
        state.exclusive if state else CPUSet(),
        is_ours=state is not None,
    )


def _asks_partitions(config: Config | None, status: AgentStatus | None) -> bool:
    """Whether any container should have one: by the configuration, or by its annotation."""
    if status is None:
        return config is not None and config.options.isolation is not Isolation.NONE
    asked = status.node.options.isolation is not Isolation.NONE
    return asked or any(partitions(status.node, status.state))


def _may_partition(view: NodeView, agent: Process | None) -> bool | None:
    """Whether that process has the capability; None where it is not seen."""
    return None if agent is None or view.is_copy else node_evidence.is_admin(view, agent.pid)


def _agent(
    view: NodeView,
    read: tuple[str, str | Hidden],
    state_dir: str,
    status: AgentStatus | None,
    trouble: str | Hidden,
    checkpoint: Checkpoint | Hidden | str | None,
    config: Config | None,
    processes: Sequence[Process] | Hidden,
) -> AgentEvidence:
    place = view.find(state_dir)
    there = isinstance(place, str) and os.path.isdir(place)
    return AgentEvidence(
        path=read[0],
        config_error=read[1],
        state_dir=state_dir,
        trouble=trouble,
        version=status.agent if status else "",
        runtime=f"{status.runtime.name} {status.runtime.version}" if status and status.runtime else "",
        own_version=__version__,
        checkpoint=_judged(checkpoint),
        containers=len(checkpoint.state.containers) if isinstance(checkpoint, Checkpoint) else 0,
        in_memory=is_in_memory(str(place)) if there else None,
        free_bytes=node_evidence.free_bytes(str(place)) if there else None,
        exporter=_exporter(view, config, state_dir),
        fights=sorted({row.name for row in status.drifts if row.is_fight}) if status else (),
        rivals=processes if isinstance(processes, Hidden) else _rivals(processes),
        observing=status is not None and status.observing,
    )


def _judged(checkpoint: Checkpoint | Hidden | str | None) -> Sequence[str] | Hidden | None:
    """What is wrong with it, by the machine and options it was written for."""
    if isinstance(checkpoint, str):
        return (checkpoint,)
    if not isinstance(checkpoint, Checkpoint):
        return checkpoint
    if checkpoint.facts is None:
        return ()
    return tuple(map(str, checkpoint.state.violations(checkpoint.facts.as_node())))


def _exporter(view: NodeView, config: Config | None, state_dir: str) -> str | Hidden | None:
    """Whether it answers; None where none was set up."""
    path = config.exporter_socket if config else os.path.join(state_dir, configuration.EXPORTER_SOCKET)
    place = view.find(path)
    if isinstance(place, Hidden) or not os.path.lexists(place):
        return None
    answer = view.connects(path)
    return f"{path}: {answer}" if isinstance(answer, str) and answer else answer


def _rivals(processes: Sequence[Process]) -> tuple[str, ...]:
    return tuple(sorted({RIVALS[found.name] for found in processes if found.name in RIVALS}))


def _runs(processes: Sequence[Process] | Hidden, name: str) -> bool | None:
    return None if isinstance(processes, Hidden) else any(process.name == name for process in processes)
