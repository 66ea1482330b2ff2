"""Looks at a node and decides a migration: nothing is changed, and whatever can be checked before a service stops is checked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml
from msgspec import structs

from nri_plugin.agent.start import build_node
from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint
from nri_plugin.checkpoint.kubelet_export import kubelet_doubts, needs_pod_level, restart_refusals
from nri_plugin.cli.doctor.settings import (
    CONFIG_FILE,
    CPU_POLICY,
    MEMORY_POLICY,
    RESERVED_CPUS,
    STATE_FILES,
    NRISettings,
    distribution_of,
    kubelets,
    read_state_policy,
)
from nri_plugin.cli.doctor.view import Hidden, Process
from nri_plugin.cli.install import NAME
from nri_plugin.cli.installed_files import runtime_settings
from nri_plugin.cli.migrate.host import ASIDE, TO_KUBELET, TO_PLUGIN, FileEdit, Host, Plan, why_locked
from nri_plugin.cli.migrate.kubelet import (
    AMOUNTS,
    OFF,
    KubeletFiles,
    agent_part,
    edits_of,
    next_settings,
    read_kubelet_files,
    reserving_cgroup,
    table_of,
    to_kubelet_changes,
    to_plugin_changes,
)
from nri_plugin.cli.state.import_export import NEEDS_GATES, exportable, importable
from nri_plugin.cli.state.source import FailedError, awaiting_agent, read_agent
from nri_plugin.cli.systemd import AGENT
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import DEFAULT_PATH, KIND, Config, load_text
from nri_plugin.model.errors import ConfigError, HostError, NriPinError
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.state import State

POD_LOGS = "/var/log/pods"
"""Directories NAMESPACE_NAME_UID. Source: kubelet 1.36, pkg/kubelet/kuberuntime/helpers.go."""

GUIDE = "deploy/guide/migrate.md"
Way = Literal["unit", "runtime", "daemonset"]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says.

    Attributes:
        way: what starts the agent; None to find it out.
        config: path of the agent's configuration on the node; empty to find it.
        kubelet_unit: of systemd.
        containers: path of the output of crictl.
        without_memory: leave allocated memory out.
    """

    way: Way | None = None
    config: str = ""
    kubelet_unit: str = "kubelet.service"
    containers: str = ""
    without_memory: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan, and what the operator should know of it.

    Attributes:
        plan: to be carried out.
        state: the allocations that change hands.
        names: NAMESPACE/POD by uid, as far as the node knows them.
        notes: sentences.
        before: commands that have to precede it.
        after: commands that have to follow.
    """

    plan: Plan
    state: State
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class _Site:
    """The parts of a node that both directions read."""

    def __init__(self, host: Host, choices: Choices) -> None:
        self.host, self.choices = host, choices
        unit = choices.kubelet_unit
        if host.services.show(unit, "LoadState") != "loaded":
            found = distribution_of(host.view)
            advice = (
                f"{found.name} starts the kubelet, and nri-pin migrate does not edit its files: its options are in "
                f"{found.kubelet_file}, and {GUIDE} has the steps by hand"
                if found
                else f"name the kubelet's with --kubelet-unit, or see {GUIDE}"
            )
            raise HostError(unit, f"is no unit of systemd here; {advice}")
        self.process = _kubelet(host, unit)
        self.kubelet = read_kubelet_files(host.view, self.process, host.services, unit)
        if not self.kubelet.tables and self.process is None:
            raise HostError(unit, f"does not run, and there is no {CONFIG_FILE}: start the kubelet first")
        if flag := self.kubelet.unread_flag():
            raise HostError(
                unit,
                f"does not run, and {flag}, which its files have, may win over {CONFIG_FILE}: start the kubelet first",
            )
        self.now = self.kubelet.effective()
        self.plugin = _plugin(host)
        self.way = _way(host, choices.way, self.plugin)
        self.config_path, self.config_text = self._config()

    def _config(self) -> tuple[str, str | None]:
        """Path and text of the agent's configuration; None for the text where there is none."""
        candidates = [self.choices.config] if self.choices.config else [DEFAULT_PATH]
        if not self.choices.config and self.way == "runtime" and self.plugin is not None:
            candidates = [self.plugin[1]]
        if not self.choices.config and self.way == "daemonset" and not self._is_static:
            # While the kubelet is static, its own options count; the kept file may be of the way back.
            main = next(iter(self.kubelet.texts), CONFIG_FILE)
            candidates.append(f"{main}.{ASIDE}")
        for path in candidates:
            text = self.host.view.text(path)
            if isinstance(text, str):
                return path, text
        return candidates[0], None

    @property
    def _is_static(self) -> bool:
        return str(self.now.get(CPU_POLICY) or "none").lower() == "static"

    def plan(self, direction: Literal["to-plugin", "to-kubelet"], text: str) -> Plan:
        """The plan with all that does not depend on the direction; it edits nothing yet."""
        services, way = self.host.services, self.way
        unit = self.plugin[2] if way == "runtime" and self.plugin else AGENT if way == "unit" else ""
        places = [os.path.join(self.kubelet.folder, os.path.basename(path)) for path in STATE_FILES]
        plugin = self.plugin[0] if way == "runtime" and self.plugin else ""
        plugin_text = self.host.view.text(plugin) if plugin else None
        return Plan(
            direction=direction,
            way=way,
            kubelet_unit=self.choices.kubelet_unit,
            kubelet_dir=self.kubelet.folder,
            kubelet_was_up=self.host.kubelet_is_up(),
            agent_unit=unit,
            agent_was_enabled=bool(unit) and services.show(unit, "UnitFileState") == "enabled",
            agent_runs=False,
            state_dir=load_text(text, self.config_path).state_dir,
            config=text,
            config_path=self.config_path,
            plugin=FileEdit(plugin, plugin_text, None) if isinstance(plugin_text, str) else None,
            state_files=tuple(path for path in places if _allocates(self.host, path)),
            containers=self.choices.containers,
            without_memory=self.choices.without_memory,
            kubelet_edits=(),
            agent_edits=(),
            before=self.host.cpusets(),
            exclusive="",
        )


def decide_to_plugin(host: Host, choices: Choices) -> Decided | None:
    """The way to the agent; None where the node is there already.

    Raises:
        NriPinError: something is missing or wrong; the text says what to do.
        FailedError: the allocations cannot be kept.
    """
    site = _Site(host, choices)
    text = site.config_text or yaml.safe_dump(
        {"kind": KIND, "cpuManagerPolicy": "static", **agent_part(site.now)}, sort_keys=False
    )
    bare = site.plan(TO_PLUGIN, text)
    config = host.config(bare)
    node = _static_node(config)
    status = read_agent(config.state_dir)
    agent_runs = status is not None and status.runtime is not None
    if status is not None and status.observing:
        raise FailedError(
            f"the agent only observes: remove observe from {site.config_path}, stop the agent, and ask again"
        )
    changes = to_plugin_changes(site.now, node.reserved, _amount(site.now))
    if agent_runs and not changes and not bare.state_files:
        return None
    state = _taken_over(site, bare, config, node, agent_runs=agent_runs)
    is_new = site.config_text is None and site.way == "unit"
    plan = structs.replace(
        bare,
        kubelet_edits=edits_of(site.kubelet, changes),
        agent_edits=(FileEdit(site.config_path, None, text),) if is_new else (),
        agent_runs=agent_runs,
        exclusive=str(state.exclusive),
    )
    notes = [*([] if plan.kubelet_was_up else ["the kubelet does not run now"]), *_restart_doubts(site)]
    cgroup, amount = reserving_cgroup(site.now), _amount(site.now)
    if cgroup and amount != len(node.reserved):
        notes.append(
            f"the kubelet goes on reserving {amount} CPUs by {' and '.join(AMOUNTS)}, the agent reserves {node.reserved}: "
            f"{RESERVED_CPUS} is not written, because the kubelet refuses it beside {cgroup}"
        )
    if any(key in changes for key in OFF):
        notes.append(
            "topologyManagerPolicyOptions, topologyManagerScope, reservedMemory and feature gates stay: without managers they have no effect"
        )
    return Decided(plan, state, pod_names(host), tuple(notes), *_kubectl(plan))


def _taken_over(site: _Site, bare: Plan, config: Config, node: Node, *, agent_runs: bool) -> State:
    """The allocations that the agent has, or will have."""
    host, folder = site.host, site.host.place(bare.kubelet_dir)
    checkpoint = read_checkpoint(os.path.join(config.state_dir, FILE_NAME))
    if agent_runs:
        return checkpoint.state if checkpoint else State()
    if reason := why_locked(config.state_dir):
        raise FailedError(reason)
    if checkpoint is not None and checkpoint.state.allocations and not awaiting_agent(checkpoint.state):
        raise FailedError(
            f"{bare.state_dir}/{FILE_NAME}: holds {len(checkpoint.state.allocations)} allocations of an agent that ran "
            "before; where the kubelet has pinned since, move it away, else start the agent; then ask again"
        )
    if not bare.state_files:
        return State()
    containers = host.place(bare.containers) if bare.containers else None
    return importable(config, node, folder, containers, without_memory=bare.without_memory)


def decide_to_kubelet(host: Host, choices: Choices) -> Decided | None:
    """The way back to the kubelet's managers; None where the node is there already.

    Raises:
        NriPinError: something is missing or wrong; the text says what to do.
        FailedError: a kubelet would refuse the allocations.
    """
    site = _Site(host, choices)
    if site.config_text is None:
        raise ConfigError(
            site.config_path,
            "there is no configuration of the agent, whose options the kubelet is to get; name it with --config",
        )
    bare = site.plan(TO_KUBELET, site.config_text)
    config = host.config(bare)
    node = _static_node(config)
    agent = table_of(site.config_text, site.config_path)
    changes = to_kubelet_changes(site.now, agent)
    has_checkpoint = os.path.exists(os.path.join(config.state_dir, FILE_NAME))
    if not changes and not has_checkpoint:
        return None
    if bare.state_files:
        raise FailedError(
            f"{bare.state_files[0]}: the kubelet has allocations of its own, which an export would replace; where "
            f"{bare.state_dir}/{FILE_NAME} is left over, stop the agent and move it away"
        )
    if site.way == "daemonset" and (reason := why_locked(config.state_dir)):
        raise FailedError(
            f"{reason}: kubectl label node NODE nri-pin/enabled-, and wait until its pod has ended"
        )
    state, _ = exportable(config, node)
    _check_next(site.kubelet, changes, node)
    edits = edits_of(site.kubelet, changes)
    plan = structs.replace(bare, kubelet_edits=edits, exclusive=str(state.exclusive))
    gates = [NEEDS_GATES] if needs_pod_level(node, state) else []
    notes = (*kubelet_doubts(node, state), *gates, *_restart_doubts(site))
    return Decided(plan, state, pod_names(host), notes, *_kubectl(plan))


def pod_names(host: Host) -> dict[str, str]:
    """NAMESPACE/POD by uid. The kubelet's state files have uids alone; it names a directory of logs after each pod."""
    found = host.view.names(POD_LOGS)
    parts = (name.split("_") for name in found) if isinstance(found, tuple) else ()
    return {one[2]: f"{one[0]}/{one[1]}" for one in parts if len(one) == 3}


def _restart_doubts(site: _Site) -> list[str]:
    """Why the kubelet may not start again as it is now: a migration that is undone starts it so."""
    now, source = site.now, "the kubelet's configuration"
    policies = str(now.get(CPU_POLICY) or "none"), str(now.get(MEMORY_POLICY) or "None")
    try:
        text = yaml.safe_dump({CPU_POLICY: "none", **agent_part(now)}, sort_keys=False)
        root = site.host.view.root
        config = load_text(text, source, machine=Capacity.below(root))
        node = build_node(replace(config, sysfs_root=root), None)
        found = restart_refusals(node, site.host.place(site.kubelet.folder), *policies)
    except NriPinError as error:
        return [f"not checked whether the kubelet could start again as it is now: {error}"]
    return [
        f"{one}; a migration that is undone would leave the kubelet stopped, so correct this first"
        for one in found
    ]


def _check_next(files: KubeletFiles, changes: dict[str, Any], node: Node) -> None:
    """Check the kubelet's next configuration by the rules that it has in common with ours.

    Raises:
        ConfigError: such a kubelet does not start.
    """
    table = agent_part(next_settings(files, changes))
    config = load_text(yaml.safe_dump(table, sort_keys=False), "the kubelet's next configuration")
    reserved = config.node(node.topology).reserved
    if reserved == node.reserved:
        return
    cgroup = reserving_cgroup(files.effective())
    advice = (
        f"{RESERVED_CPUS} cannot be given to it beside {cgroup}; reserve {reserved or 'by kubeReserved'} in the agent's, or "
        f"remove {cgroup}"
        if cgroup
        else f"write {RESERVED_CPUS} into the agent's"
    )
    raise ConfigError(
        "the kubelet's next configuration", f"reserves other CPUs than the agent's {node.reserved}; {advice}"
    )


def _static_node(config: Config) -> Node:
    if config.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        raise ConfigError(
            config.source, f"{CPU_POLICY} is none, so there is nothing to migrate; set it to static"
        )
    return build_node(config, None)


def _kubelet(host: Host, unit: str) -> Process | None:
    """The kubelet's process; None where it does not run.

    Raises:
        HostError: processes cannot be seen, or those called kubelet are not of this unit and host.
    """
    processes = host.view.processes()
    if isinstance(processes, Hidden):
        raise HostError(
            "the kubelet",
            "its process cannot be seen from here; run on the node, or in a pod with its process ids",
        )
    main = host.services.show(unit, "MainPID")
    own, strangers = kubelets(host.view, processes, [int(main)] if main.isdecimal() else [])
    for process in own:
        # Where systemd does not tell, root's kubelet with the host's namespaces is the one.
        if main in ("", str(process.pid)) or host.view.unit_of(process.pid) == unit:
            return process
    for process, why in (*((one, f"it is not of {unit}") for one in own), *strangers):
        raise HostError(
            f"process {process.pid}",
            f"is called {process.name} and is no kubelet of this host: {why}; stop it, or start {unit}, and ask again",
        )
    return None


def _plugin(host: Host) -> tuple[str, str, str] | None:
    """Executable, drop-in and the runtime's unit, where the runtime starts the agent; None where it does not."""
    settings = runtime_settings(host.view) or NRISettings("containerd")
    names = host.view.names(settings.plugin_dir)
    found = [name for name in names or () if name.endswith(f"-{NAME}")] if isinstance(names, tuple) else []
    if not found:
        return None
    drop_in = os.path.join(settings.config_dir, f"{found[0]}.conf")
    return os.path.join(settings.plugin_dir, found[0]), drop_in, f"{settings.unit}.service"


def _way(host: Host, chosen: Way | None, plugin: tuple[str, str, str] | None) -> Way:
    """What starts the agent, which is there before the kubelet stops.

    Raises:
        HostError: it is not.
    """
    has_unit = host.services.show(AGENT, "LoadState") == "loaded"
    if chosen == "unit" and not has_unit:
        raise HostError(AGENT, "is not installed; nri-pin install --systemd installs it")
    if chosen == "runtime" and plugin is None:
        raise HostError("the runtime", "starts no agent; nri-pin install --plugin-dir DIR installs one")
    if chosen is not None:
        return chosen
    if host.view.in_pod:
        return "daemonset"
    if has_unit:
        return "unit"
    if plugin is not None:
        return "runtime"
    raise HostError(
        AGENT,
        "is not installed, and the runtime starts no agent either: nri-pin install --systemd installs the unit; where a "
        "DaemonSet brings the agent, give --agent daemonset",
    )


def _allocates(host: Host, path: str) -> bool:
    """Whether a state file may hold allocations; one that cannot be read may, and is refused where it is read as a whole."""
    policy = read_state_policy(host.view, path)
    return isinstance(policy, str) and policy.lower() != "none"


def _amount(now: dict[str, Any]) -> int:
    """How many CPUs the kubelet keeps by amounts."""
    amounts = {key: now[key] for key in AMOUNTS if now.get(key)}
    if not amounts:
        return 0
    return load_text(
        yaml.safe_dump({"cpuManagerPolicy": "none", **amounts}), "the kubelet"
    ).reserved_cpu_count


def _kubectl(plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where a DaemonSet brings the agent: what needs the API server, before and after."""
    if plan.way != "daemonset":
        return (), ()
    label = "kubectl label node NODE nri-pin/enabled"
    wait = "kubectl -n nri-pin wait --for {} pod --field-selector spec.nodeName=NODE --timeout 120s"
    back = "kubectl uncordon NODE"
    if plan.direction == TO_PLUGIN:
        return ("kubectl cordon NODE",), (f"{label}=true", wait.format("condition=Ready"), back)
    return ("kubectl cordon NODE", f"{label}-", wait.format("delete")), (back,)
