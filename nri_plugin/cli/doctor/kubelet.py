"""The checks of `nri-pin doctor` on the kubelet; pure.

A kubelet with a static CPU Manager and the agent would undo each other's writes. Where the kubelet pins, the findings
hold the steps that move the node from the kubelet's static managers to the agent: `nri-pin migrate` does it, with what it
needs before. Where the kubelet itself starts the agent (a DaemonSet), the node is cordoned meanwhile.

Source: kubelet v1.36 cm/cpumanager/policy_none.go: the none policy refuses to start with any cpuManagerPolicyOptions.
topologymanager/topology_manager.go and memorymanager/memory_manager.go: none and None read neither
topologyManagerPolicyOptions nor reservedMemory, so these may stay. cpumanager/state, memorymanager/state: a kubelet
does not start on a state file of another policy.
"""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from nri_plugin import __version__
from nri_plugin.cli.doctor.findings import Finding, NextStep, Verdict, fine, named, not_visible, to_do
from nri_plugin.cli.doctor.kubelet_files import (
    CONFIG_FILE,
    CPU_OPTIONS,
    CPU_POLICY,
    MEMORY_POLICY,
    POD_RESOURCES,
    RESERVED_AMOUNTS,
    RESERVED_CPUS,
    RESERVING_CGROUPS,
    STATE_FILES,
    TOPOLOGY_POLICY,
    KubeletSettings,
)
from nri_plugin.cli.doctor.runtime_files import Distribution
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy
from nri_plugin.model.quantity import parse_cpu_milli
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology

OFF: Mapping[str, str] = {
    CPU_POLICY: CPUManagerPolicy.NONE,
    MEMORY_POLICY: MemoryManagerPolicy.NONE,
    TOPOLOGY_POLICY: TopologyManagerPolicy.NONE,
}
"""The value that switches each manager of the kubelet off."""

MIGRATE = "nri-pin migrate to-plugin"
DEBUG = (
    f"kubectl debug node/NODE -it --profile=sysadmin --image=REGISTRY/nri-pin:{__version__} -- {MIGRATE}{{}}"
)
PLAN = "read the plan: every step, and the lines that change; nothing is changed"
DO = "carry it out; a step that fails is undone with those before it, and the kubelet runs as before"

POLICIES = {
    "cpu-manager": (CPU_POLICY, "it would pin CPUs, too, and each would undo the other's work"),
    "memory-manager": (MEMORY_POLICY, "it would bind memory, too"),
    "topology-manager": (TOPOLOGY_POLICY, "it would refuse pods by other hints"),
}
HAND_OVER = "hand this node over to the agent"
SEE_STEPS = "the steps above do it: {}"
GUIDE = "deploy/guide/migrate.md has the steps"


@dataclass(frozen=True, slots=True)
class KubeletEvidence:
    """The evidence about the kubelet.

    Attributes:
        settings: None when there is no kubelet.
        states: the policy in each of its state files; None where there is no such file.
        pod_resources: empty when its PodResources socket accepts connections, else why not.
        reserved: what the agent keeps for the system; None where that is not known.
        is_only_observed: the agent changes nothing, so another program may go on pinning.
        topology: None where the machine is not known.
        config_path: of the agent's configuration.
        has_configuration: whether it is there.
        agent_runs: and answers a runtime.
        has_unit: the agent's unit of systemd is installed.
        restart_runtime: the command that starts an agent that the runtime starts itself; empty for any other.
        in_pod: this is a pod, and not the node itself.
        distribution: starts the kubelet and writes its options; None where a unit of its own does.
        unit: starts the kubelet.
    """

    settings: KubeletSettings | Hidden | None
    states: Mapping[str, str | Hidden | None] = field(default_factory=dict)
    pod_resources: str | Hidden = ""
    reserved: CPUSet | None = None
    is_only_observed: bool = False
    topology: Topology | None = None
    config_path: str = "/etc/nri-pin/config.yaml"
    has_configuration: bool = True
    agent_runs: bool = False
    has_unit: bool = False
    restart_runtime: str = ""
    in_pod: bool = False
    distribution: Distribution | None = None
    unit: str = "kubelet"

    @property
    def culprit(self) -> str:
        """Which setting has the kubelet pin containers; empty for none."""
        if isinstance(self.settings, KubeletSettings):
            found = self.settings.by_key.get(CPU_POLICY)
            is_static = found is not None and found.value.lower() == "static"
            return f"{CPU_POLICY} static, {found.where}" if found and is_static else ""
        by_file = self.states.get(STATE_FILES[0])
        return f"{CPU_POLICY} static, {STATE_FILES[0]}" if by_file == "static" else ""

    @property
    def must_hand_over(self) -> bool:
        """Whether the node has to go through the steps of a migration."""
        settings = self.settings
        if not isinstance(settings, KubeletSettings) or self.is_only_observed:
            return False
        return any(finding.verdict is Verdict.TO_DO for finding in _managers(self, settings))


def judge(seen: KubeletEvidence) -> Iterator[Finding]:
    """The findings."""
    settings = seen.settings
    if settings is None:
        yield from named("kubelet", fine("there is none here, so none pins CPUs"))
        return
    if isinstance(settings, Hidden):
        for check in POLICIES:
            yield from named(check, _by_state(check, seen, settings))
    elif settings.broken:
        says = f"{settings.broken}; the kubelet cannot read it either"
        yield from named("kubelet", to_do(says, "mend it"))
    else:
        yield from _with_steps(list(_managers(seen, settings)), seen, settings)
        yield from named("reserved-cpus", _reserved(settings, seen))
    yield from named("pod-resources", _pod_resources(seen.pod_resources, seen))


def _managers(seen: KubeletEvidence, settings: KubeletSettings) -> Iterator[Finding]:
    for check in POLICIES:
        yield from named(check, _policy(check, seen, settings))
    for check, path in zip(POLICIES, STATE_FILES, strict=False):
        yield from named(f"{check}-state", _left_over(check, path, seen, settings))


def _policy(check: str, seen: KubeletEvidence, settings: KubeletSettings) -> Finding:
    key, harm = POLICIES[check]
    found = settings.by_key.get(key)
    if found is not None and found.value.lower() != "none":
        if seen.is_only_observed:
            return fine(f"{found.value}, by {found.where}: stays so while the agent only observes")
        return to_do(f"{found.value}, by {found.where}: {harm}", f"set {key} to {OFF[key]}")
    if key == CPU_POLICY and settings.cpu_options and not seen.is_only_observed:
        where = settings.cpu_options[0].where
        says = f"none, and {CPU_OPTIONS} are set ({where}): the kubelet does not start with both"
        return to_do(says, f"remove {CPU_OPTIONS}")
    if found is None:
        return fine(f"{OFF[key]}, the default: no file and no option of the kubelet says otherwise")
    return fine(f"{found.value}, by {found.where}")


def _left_over(check: str, path: str, seen: KubeletEvidence, settings: KubeletSettings) -> Finding | None:
    """A state file of another policy than the one configured: the kubelet refuses to start on it."""
    policy, now = seen.states.get(path), settings.by_key.get(POLICIES[check][0])
    if not isinstance(policy, str) or policy in ("", "none", "None"):
        return None
    if now is not None and now.value.lower() != "none":
        return None
    return to_do(
        f"{path} is of policy {policy}, and the kubelet is configured with none: it does not start on that",
        "import its allocations and move it away",
    )


def _with_steps(found: list[Finding], seen: KubeletEvidence, settings: KubeletSettings) -> Iterator[Finding]:
    """The first that is to be done says how, for all of them: one way of several steps, and the kubelet starts once."""
    first = next((finding for finding in found if finding.verdict is Verdict.TO_DO), None)
    for finding in found:
        if finding is first:
            yield replace(finding, do=f"{finding.do}: {HAND_OVER}", steps=steps(seen, settings))
        elif finding.verdict is Verdict.TO_DO:
            yield replace(finding, do=SEE_STEPS.format(finding.do))
        else:
            yield finding


def _by_state(check: str, seen: KubeletEvidence, hidden: Hidden) -> Finding:
    """The configuration is out of sight; a state file tells at least what the manager ran under last."""
    key, harm = POLICIES[check]
    path = {"cpu-manager": STATE_FILES[0], "memory-manager": STATE_FILES[1]}.get(check, "")
    policy = seen.states.get(path)
    if isinstance(policy, str) and policy and policy.lower() != "none":
        if seen.is_only_observed:
            return fine(f"{policy}, by {path}: stays so while the agent only observes")
        options = f" and remove {CPU_OPTIONS}" if check == "cpu-manager" else ""
        return to_do(
            f"{policy}, by {path}: {harm}",
            f"set {key} to {OFF[key]}{options} in {_place_of_options(seen)}; {GUIDE}",
        )
    if isinstance(policy, str) and policy:
        return fine(f"{policy}, by {path}: a kubelet does not start on a file of another policy")
    return not_visible(hidden, f"the kubelet's {key} cannot be seen")


def _place_of_options(seen: KubeletEvidence) -> str:
    if seen.distribution is None:
        return "the kubelet's configuration, which is not seen here"
    return f"{seen.distribution.kubelet_file}, by hand: nri-pin migrate does not edit the files of {seen.distribution.name}"


def _reserved(settings: KubeletSettings, seen: KubeletEvidence) -> Finding:
    ours, topology = seen.reserved, seen.topology
    theirs = settings.by_key.get(RESERVED_CPUS)
    if theirs is None or not theirs.value:
        return _reserved_by_amount(settings, seen)
    try:
        kept = CPUSet.parse(theirs.value)
    except ValueError:
        return to_do(f"{theirs.where}: {theirs.value!r} is no list of CPUs", "write one such as 0-1")
    if ours is None:
        return fine(f"{kept} by the kubelet; the agent's configuration is not known here")
    if kept == ours:
        return fine(f"{ours}, for the kubelet and the agent alike")
    whole = topology.whole_cores(kept) if topology else kept
    both = "both configurations" if whole != kept else "the agent's configuration"
    return to_do(
        f"the kubelet keeps CPUs {kept or 'none'} ({theirs.where}), the agent {ours or 'none'}: the scheduler counts "
        "CPUs that are not there, or leaves some unused",
        f'write {RESERVED_CPUS}: "{whole}" into {both}',
    )


def _reserved_by_amount(settings: KubeletSettings, seen: KubeletEvidence) -> Finding:
    """The kubelet names no CPUs: it keeps the amounts of kubeReserved and systemReserved back.

    Source: kubelet v1.36 cm/container_manager_linux.go and cpumanager/policy_static.go: the amounts add up, and count up
    to the next whole CPU.
    """
    ours, topology = seen.reserved, seen.topology
    milli, where = 0, []
    for key in RESERVED_AMOUNTS:
        found = settings.by_key.get(key)
        amounts = dict(part.partition("=")[::2] for part in found.value.split(",")) if found else {}
        if found is None or "cpu" not in amounts:
            continue
        try:
            milli += parse_cpu_milli(amounts["cpu"])
        except ValueError as error:
            return to_do(f"{found.where}: {key}: {error}", "write an amount such as 500m")
        where.append(f"{key} {amounts['cpu']}, {found.where}")
    count = math.ceil(milli / 1000)
    said = f"{count} ({'; '.join(where)})" if where else "none"
    if ours is None:
        return fine(f"{said} by the kubelet; the agent's configuration is not known here")
    if count == len(ours):
        return fine(f"{ours or 'none'} by the agent; as many by the kubelet: {said}")
    wanted = ours if topology is None else topology.whole_cores(ours) or topology.first_core
    line = f'{RESERVED_CPUS}: "{wanted}"'
    harm = (
        "the scheduler counts CPUs that no container can have, and sends pods that are refused"
        if count < len(ours)
        else "the scheduler leaves CPUs unused that the agent would give"
    )
    how = (
        f"the migration above writes the agent's into the kubelet's configuration; {line} reserves whole cores"
        if seen.must_hand_over
        else f"write {line} into the kubelet's configuration"
    )
    says = f"the agent keeps CPUs {ours or 'none'} for the system, the kubelet keeps {said}: {harm}"
    cgroups = [settings.by_key[key].where for key in RESERVING_CGROUPS if key in settings.by_key]
    if cgroups:
        do = f"let kubeReserved and systemReserved add up to {len(ours)} CPUs: the kubelet refuses {RESERVED_CPUS} beside"
        return to_do(says, f"{do} a cgroup for the system ({cgroups[0]})")
    return to_do(
        says,
        f"let both reserve the same: {how}, and write it into the agent's where it says otherwise",
        steps=() if seen.must_hand_over else tuple(_reserve(settings, line, seen)),
    )


def _reserve(settings: KubeletSettings, line: str, seen: KubeletEvidence) -> Iterator[NextStep]:
    path = next(iter(settings.files), CONFIG_FILE)
    command = f"sed -i '$a {line}' {shlex.quote(path)}" if path in settings.line_files else ""
    if seen.distribution is not None:
        path, command = f"{seen.distribution.kubelet_file}, as the option --reserved-cpus", ""
    yield NextStep(f"write the line into {path}", command)
    yield NextStep("restart the kubelet; containers go on running", f"systemctl restart {seen.unit}")


def _pod_resources(socket: str | Hidden, seen: KubeletEvidence) -> Finding:
    if isinstance(socket, Hidden):
        return not_visible(socket, "whether the kubelet tells of devices cannot be seen")
    if socket:
        says = f"{POD_RESOURCES}: {socket}, so devices are known by their device nodes only"
        if seen.must_hand_over:
            return to_do(says, "the steps above end with the kubelet's start")
        return to_do(says, "start the kubelet", f"systemctl start {seen.unit}")
    return fine(f"{POD_RESOURCES} takes connections")


def steps(seen: KubeletEvidence, settings: KubeletSettings) -> tuple[NextStep, ...]:
    """The steps from the kubelet's static managers to the agent, in order: what `nri-pin migrate` needs, and the command."""
    if seen.distribution is not None:
        off = ", ".join(f"{key} {value}" for key, value in OFF.items())
        return (NextStep(f"set {off} in {_place_of_options(seen)}; {GUIDE}"),)
    if seen.in_pod:
        return tuple(_of_daemonset())
    return (*_installed(seen, settings), NextStep(PLAN, MIGRATE), NextStep(DO, f"{MIGRATE} --yes"))


def _installed(seen: KubeletEvidence, settings: KubeletSettings) -> Iterator[NextStep]:
    """The agent is to be there before: its configuration, and the unit that starts it."""
    if seen.agent_runs:
        return
    if not seen.has_configuration:
        yield from _first_configuration(seen, settings)
    if not seen.restart_runtime and not seen.has_unit:
        yield NextStep(
            "install the unit that starts the agent; the migration starts it", "nri-pin install --systemd"
        )


def _of_daemonset() -> Iterator[NextStep]:
    """The kubelet starts the agent, so the node is cordoned until it is there."""
    yield NextStep(
        f"{PLAN}: in a pod that sees the node's files and processes; NODE is this node", DEBUG.format("")
    )
    yield NextStep(
        "keep new pods away, because the kubelet has to start before the agent can", "kubectl cordon NODE"
    )
    yield NextStep(DO, DEBUG.format(" --yes"))
    yield NextStep("let the DaemonSet come to this node", "kubectl label node NODE nri-pin/enabled=true")
    yield NextStep(
        "wait for the agent; ask again where there is no such pod yet",
        "kubectl -n nri-pin wait --for condition=Ready pod --field-selector spec.nodeName=NODE --timeout 120s",
    )
    yield NextStep("let pods come again", "kubectl uncordon NODE")


def _first_configuration(seen: KubeletEvidence, settings: KubeletSettings) -> Iterator[NextStep]:
    theirs = settings.files[:1]
    flags = [one.flag for one in settings.by_key.values() if one.flag]
    others = [*settings.files[1:], *flags]
    more = f"; add what {', '.join(others)} of the kubelet say" if others else ""
    if theirs:
        yield NextStep(
            f"give the agent the options that the kubelet has; it takes the kubelet's own file{more}",
            f"install -D -m 0644 {shlex.quote(theirs[0])} {shlex.quote(seen.config_path)}",
        )
    else:
        yield NextStep(
            f"write {seen.config_path} with the options that the kubelet has on its command line ({', '.join(flags)})"
        )
