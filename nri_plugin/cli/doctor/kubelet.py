"""The checks of `nri-pin doctor` on the kubelet.

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
from dataclasses import replace

from nri_plugin import __version__
from nri_plugin.cli.doctor.evidence import Evidence
from nri_plugin.cli.doctor.findings import Finding, NextStep, Verdict, fine, not_visible, to_do
from nri_plugin.cli.doctor.settings import (
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
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy
from nri_plugin.model.quantity import parse_cpu_milli
from nri_plugin.model.sets import CPUSet

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

OF_DAEMONSET = (
    NextStep(
        f"{PLAN}: in a pod that sees the node's files and processes; NODE is this node", DEBUG.format("")
    ),
    NextStep(
        "keep new pods away, because the kubelet has to start before the agent can", "kubectl cordon NODE"
    ),
    NextStep(DO, DEBUG.format(" --yes")),
    NextStep("let the DaemonSet come to this node", "kubectl label node NODE nri-pin/enabled=true"),
    NextStep(
        "wait for the agent; ask again where there is no such pod yet",
        "kubectl -n nri-pin wait --for condition=Ready pod --field-selector spec.nodeName=NODE --timeout 120s",
    ),
    NextStep("let pods come again", "kubectl uncordon NODE"),
)
"""Where the kubelet starts the agent, the node is cordoned until it is there."""

POLICIES = {
    "cpu-manager": (CPU_POLICY, "it would pin CPUs, too, and each would undo the other's work"),
    "memory-manager": (MEMORY_POLICY, "it would bind memory, too"),
    "topology-manager": (TOPOLOGY_POLICY, "it would refuse pods by other hints"),
}
HAND_OVER = "hand this node over to the agent"
GUIDE = "deploy/guide/migrate.md has the steps"


def kubelet(seen: Evidence) -> Finding | None:
    """Whether its settings can be judged."""
    if seen.kubelet is None:
        return fine("there is none here, so none pins CPUs")
    if isinstance(seen.kubelet, KubeletSettings) and seen.kubelet.broken:
        return to_do(f"{seen.kubelet.broken}; the kubelet cannot read it either", "mend it")
    return None


def culprit(seen: Evidence) -> str:
    """Which setting has the kubelet pin containers; empty for none."""
    if isinstance(seen.kubelet, KubeletSettings):
        found = seen.kubelet.by_key.get(CPU_POLICY)
        is_static = found is not None and found.value.lower() == "static"
        return f"{CPU_POLICY} static, {found.where}" if found and is_static else ""
    by_file = seen.state_policies.get(STATE_FILES[0])
    return f"{CPU_POLICY} static, {STATE_FILES[0]}" if by_file == "static" else ""


def must_hand_over(seen: Evidence) -> bool:
    """Whether the node has to go through the steps of a migration."""
    if not isinstance(seen.kubelet, KubeletSettings) or seen.is_observing:
        return False
    return any(finding.verdict is Verdict.TO_DO for finding in _managers(seen, seen.kubelet).values())


def manager(check: str, seen: Evidence) -> Finding | None:
    """The finding on a manager or its state file.

    The first that is to be done says how, for all of them: one way of several steps, and the kubelet starts once.
    """
    settings = seen.kubelet
    if isinstance(settings, Hidden):
        return _by_state(check, seen, settings) if check in POLICIES else None
    if settings is None or settings.broken:
        return None
    found = _managers(seen, settings)
    finding = found.get(check)
    if finding is None or finding.verdict is not Verdict.TO_DO:
        return finding
    if finding is next(one for one in found.values() if one.verdict is Verdict.TO_DO):
        return replace(finding, do=f"{finding.do}: {HAND_OVER}", steps=steps(seen, settings))
    return replace(finding, do=f"the steps above do it: {finding.do}")


def _managers(seen: Evidence, settings: KubeletSettings) -> dict[str, Finding]:
    found = {check: _policy(check, seen, settings) for check in POLICIES}
    for check, path in zip(POLICIES, STATE_FILES, strict=False):
        if left_over := _left_over(check, path, seen, settings):
            found[f"{check}-state"] = left_over
    return found


def _policy(check: str, seen: Evidence, settings: KubeletSettings) -> Finding:
    key, harm = POLICIES[check]
    found = settings.by_key.get(key)
    if found is not None and found.value.lower() != "none":
        if seen.is_observing:
            return fine(f"{found.value}, by {found.where}: stays so while the agent only observes")
        return to_do(f"{found.value}, by {found.where}: {harm}", f"set {key} to {OFF[key]}")
    if key == CPU_POLICY and settings.cpu_options and not seen.is_observing:
        where = settings.cpu_options[0].where
        says = f"none, and {CPU_OPTIONS} are set ({where}): the kubelet does not start with both"
        return to_do(says, f"remove {CPU_OPTIONS}")
    if found is None:
        return fine(f"{OFF[key]}, the default: no file and no option of the kubelet says otherwise")
    return fine(f"{found.value}, by {found.where}")


def _left_over(check: str, path: str, seen: Evidence, settings: KubeletSettings) -> Finding | None:
    """A state file of another policy than the one configured: the kubelet refuses to start on it."""
    policy, now = seen.state_policies.get(path), settings.by_key.get(POLICIES[check][0])
    if not isinstance(policy, str) or policy in ("", "none", "None"):
        return None
    if now is not None and now.value.lower() != "none":
        return None
    return to_do(
        f"{path} is of policy {policy}, and the kubelet is configured with none: it does not start on that",
        "import its allocations and move it away",
    )


def _by_state(check: str, seen: Evidence, hidden: Hidden) -> Finding:
    """The configuration is out of sight; a state file tells at least what the manager ran under last."""
    key, harm = POLICIES[check]
    path = {"cpu-manager": STATE_FILES[0], "memory-manager": STATE_FILES[1]}.get(check, "")
    policy = seen.state_policies.get(path)
    if isinstance(policy, str) and policy and policy.lower() != "none":
        if seen.is_observing:
            return fine(f"{policy}, by {path}: stays so while the agent only observes")
        options = f" and remove {CPU_OPTIONS}" if check == "cpu-manager" else ""
        return to_do(
            f"{policy}, by {path}: {harm}",
            f"set {key} to {OFF[key]}{options} in {_place_of_options(seen)}; {GUIDE}",
        )
    if isinstance(policy, str) and policy:
        return fine(f"{policy}, by {path}: a kubelet does not start on a file of another policy")
    return not_visible(hidden, f"the kubelet's {key} cannot be seen")


def _place_of_options(seen: Evidence) -> str:
    if seen.distribution is None:
        return "the kubelet's configuration, which is not seen here"
    return f"{seen.distribution.kubelet_file}, by hand: nri-pin migrate does not edit the files of {seen.distribution.name}"


def reserved_cpus(seen: Evidence) -> Finding | None:
    """Whether kubelet and agent keep the same CPUs for the system."""
    settings, ours = seen.kubelet, seen.reserved
    if not isinstance(settings, KubeletSettings) or settings.broken:
        return None
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
    whole = seen.known_topology.whole_cores(kept) if seen.known_topology else kept
    both = "both configurations" if whole != kept else "the agent's configuration"
    return to_do(
        f"the kubelet keeps CPUs {kept or 'none'} ({theirs.where}), the agent {ours or 'none'}: the scheduler counts "
        "CPUs that are not there, or leaves some unused",
        f'write {RESERVED_CPUS}: "{whole}" into {both}',
    )


def _reserved_by_amount(settings: KubeletSettings, seen: Evidence) -> Finding:
    """The kubelet names no CPUs: it keeps the amounts of kubeReserved and systemReserved back.

    Source: kubelet v1.36 cm/container_manager_linux.go and cpumanager/policy_static.go: the amounts add up, and count up
    to the next whole CPU.
    """
    ours, topology = seen.reserved, seen.known_topology
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
        if must_hand_over(seen)
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
        steps=() if must_hand_over(seen) else tuple(_reserve(settings, line, seen)),
    )


def _reserve(settings: KubeletSettings, line: str, seen: Evidence) -> Iterator[NextStep]:
    path = next(iter(settings.files), CONFIG_FILE)
    command = f"sed -i '$a {line}' {shlex.quote(path)}" if path in settings.line_files else ""
    if seen.distribution is not None:
        path, command = f"{seen.distribution.kubelet_file}, as the option --reserved-cpus", ""
    yield NextStep(f"write the line into {path}", command)
    yield NextStep("restart the kubelet; containers go on running", f"systemctl restart {seen.kubelet_unit}")


def pod_resources(seen: Evidence) -> Finding | None:
    """Whether the kubelet tells of devices."""
    socket = seen.pod_resources
    if seen.kubelet is None:
        return None
    if isinstance(socket, Hidden):
        return not_visible(socket, "whether the kubelet tells of devices cannot be seen")
    if socket:
        says = f"{POD_RESOURCES}: {socket}, so devices are known by their device nodes only"
        if must_hand_over(seen):
            return to_do(says, "the steps above end with the kubelet's start")
        return to_do(says, "start the kubelet", f"systemctl start {seen.kubelet_unit}")
    return fine(f"{POD_RESOURCES} takes connections")


def steps(seen: Evidence, settings: KubeletSettings) -> tuple[NextStep, ...]:
    """The steps from the kubelet's static managers to the agent, in order: what `nri-pin migrate` needs, and the command."""
    if seen.distribution is not None:
        off = ", ".join(f"{key} {value}" for key, value in OFF.items())
        return (NextStep(f"set {off} in {_place_of_options(seen)}; {GUIDE}"),)
    if seen.view.in_pod:
        return OF_DAEMONSET
    return (*_installed(seen, settings), NextStep(PLAN, MIGRATE), NextStep(DO, f"{MIGRATE} --yes"))


def _installed(seen: Evidence, settings: KubeletSettings) -> Iterator[NextStep]:
    """The agent is to be there before: its configuration, and the unit that starts it."""
    if seen.told is not None:
        return
    path = seen.config.path
    flags = [one.flag for one in settings.by_key.values() if one.flag]
    if seen.config.first_lines and settings.files:
        others = [*settings.files[1:], *flags]
        more = f"; add what {', '.join(others)} of the kubelet say" if others else ""
        yield NextStep(
            f"give the agent the options that the kubelet has; it takes the kubelet's own file{more}",
            f"install -D -m 0644 {shlex.quote(settings.files[0])} {shlex.quote(path)}",
        )
    elif seen.config.first_lines:
        yield NextStep(
            f"write {path} with the options that the kubelet has on its command line ({', '.join(flags)})"
        )
    if not seen.our_plugins and not seen.has_unit:
        do = "install the unit that starts the agent; the migration starts it"
        yield NextStep(do, "nri-pin install --systemd")
