"""What `nri-pin doctor` says of the kubelet: two who pin CPUs would undo each other's work; pure."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from nri_plugin.cli.doctor_findings import Finding, Step, Verdict, fine, not_visible, to_do
from nri_plugin.cli.doctor_migration import OFF, Migration, steps
from nri_plugin.cpuset import CPUSet
from nri_plugin.host.node_evidence import Hidden
from nri_plugin.host.node_evidence_kubelet import CONFIG_FILE, POD_RESOURCES, STATE_FILES, KubeletSettings
from nri_plugin.quantity import parse_cpu_milli
from nri_plugin.topology import Topology

POLICIES = {
    "cpu-manager": ("cpuManagerPolicy", "it would pin CPUs, too, and each would undo the other's work"),
    "memory-manager": ("memoryManagerPolicy", "it would bind memory, too"),
    "topology-manager": ("topologyManagerPolicy", "it would refuse pods by hints of its own"),
}
HAND_OVER = "hand this node over to the agent; each step only after the one before it succeeded"
SEE_STEPS = "the steps above do it: {}"
README = 'README, "From the kubelet\'s static managers", has the steps'
KEPT = ("kubeReserved", "systemReserved")


@dataclass(frozen=True, slots=True)
class KubeletEvidence:
    """What was seen.

    Attributes:
        settings: None when there is no kubelet.
        states: the policy in each of its state files; None where there is no such file.
        pod_resources: whether somebody listens on its PodResources socket: empty when so.
        reserved: what the agent keeps for the system; None where that is not known.
        is_only_observed: the agent carries nothing out, so whatever pins may go on.
        topology: None where the machine is not known.
        config_path: of the agent's configuration.
        has_configuration: whether it is there.
        agent_runs: and answers a runtime.
        restart_runtime: the command that starts an agent that the runtime starts itself; empty for any other.
        in_pod: this is a pod, and not the node itself.
        root: where the node's root is from here.
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
    restart_runtime: str = ""
    in_pod: bool = False
    root: str = "/"

    @property
    def culprit(self) -> str:
        """Which setting has the kubelet pin containers; empty for none."""
        if isinstance(self.settings, KubeletSettings):
            found = self.settings.by_key.get("cpuManagerPolicy")
            is_static = found is not None and found.value.lower() == "static"
            return f"cpuManagerPolicy static, {found.where}" if found and is_static else ""
        by_file = self.states.get(STATE_FILES[0])
        return f"cpuManagerPolicy static, {STATE_FILES[0]}" if by_file == "static" else ""

    @property
    def must_hand_over(self) -> bool:
        """Whether the node has to go through the steps of a migration."""
        settings = self.settings
        if not isinstance(settings, KubeletSettings) or self.is_only_observed:
            return False
        managers = [_policy(check, settings, is_only_observed=False) for check in POLICIES]
        return any(finding.verdict is Verdict.TO_DO for finding in (*managers, *_left_over(self, settings)))


def judge(seen: KubeletEvidence) -> Iterator[Finding]:
    """The findings."""
    settings = seen.settings
    if settings is None:
        yield fine("kubelet", "there is none here, so none pins CPUs")
        return
    if isinstance(settings, Hidden):
        for check in POLICIES:
            yield _by_state(check, seen, settings)
    elif settings.broken:
        yield to_do("kubelet", f"{settings.broken}; the kubelet cannot read it either", "mend it")
    else:
        managers = [_policy(check, settings, is_only_observed=seen.is_only_observed) for check in POLICIES]
        yield from _with_steps([*managers, *_left_over(seen, settings)], seen, settings)
        yield _reserved(settings, seen)
    yield _pod_resources(seen.pod_resources, seen)


def _policy(check: str, settings: KubeletSettings, *, is_only_observed: bool) -> Finding:
    key, harm = POLICIES[check]
    off = OFF[key]
    found = settings.by_key.get(key)
    if found is not None and found.value.lower() != "none":
        if is_only_observed:
            return fine(check, f"{found.value}, by {found.where}: stays so while the agent only observes")
        return to_do(check, f"{found.value}, by {found.where}: {harm}", f"set {key} to {off}")
    if check == "cpu-manager" and settings.cpu_options and not is_only_observed:
        return to_do(
            check,
            f"none, and cpuManagerPolicyOptions are set ({settings.cpu_options[0].where}): the kubelet does not "
            "start with both",
            "remove cpuManagerPolicyOptions",
        )
    if found is None:
        return fine(check, f"{off}, the default: no file and no option of the kubelet says otherwise")
    return fine(check, f"{found.value}, by {found.where}")


def _with_steps(found: list[Finding], seen: KubeletEvidence, settings: KubeletSettings) -> Iterator[Finding]:
    """The first that is to be done says how, for all of them: one way of several steps, and the kubelet starts once."""
    first = next((finding for finding in found if finding.verdict is Verdict.TO_DO), None)
    for finding in found:
        if finding is first:
            plan = steps(_migration(seen, settings))
            yield replace(finding, do=f"{finding.do}: {HAND_OVER}", steps=plan)
        elif finding.verdict is Verdict.TO_DO:
            yield replace(finding, do=SEE_STEPS.format(finding.do))
        else:
            yield finding


def _migration(seen: KubeletEvidence, settings: KubeletSettings) -> Migration:
    return Migration(
        settings,
        tuple(path for path, policy in seen.states.items() if _is_static(policy)),
        seen.config_path,
        has_configuration=seen.has_configuration,
        agent_runs=seen.agent_runs,
        restart_runtime=seen.restart_runtime,
        in_pod=seen.in_pod,
        root=seen.root,
    )


def _is_static(policy: str | Hidden | None) -> bool:
    """Whether a state file is, or may be, that of a manager that keeps promises."""
    return isinstance(policy, Hidden) or bool(policy and policy.lower() != "none")


def _by_state(check: str, seen: KubeletEvidence, hidden: Hidden) -> Finding:
    """The configuration is out of sight; a state file tells at least what the manager ran under last."""
    key, harm = POLICIES[check]
    path = {"cpu-manager": STATE_FILES[0], "memory-manager": STATE_FILES[1]}.get(check, "")
    policy = seen.states.get(path)
    if isinstance(policy, str) and policy and policy.lower() != "none":
        if seen.is_only_observed:
            return fine(check, f"{policy}, by {path}: stays so while the agent only observes")
        options = " and remove cpuManagerPolicyOptions" if check == "cpu-manager" else ""
        return to_do(
            check,
            f"{policy}, by {path}: {harm}",
            f"set {key} to {OFF[key]}{options} in the kubelet's configuration, which is not seen here; {README}",
        )
    if isinstance(policy, str) and policy:
        return fine(check, f"{policy}, by {path}: a kubelet does not start on a file of another policy")
    return not_visible(check, hidden, f"the kubelet's {key} cannot be seen")


def _left_over(seen: KubeletEvidence, settings: KubeletSettings) -> Iterator[Finding]:
    """A state file of another policy than the one configured: the kubelet refuses to start on it."""
    for path, check in zip(STATE_FILES, POLICIES, strict=False):
        policy, key = seen.states.get(path), POLICIES[check][0]
        now = settings.by_key.get(key)
        if (
            isinstance(policy, str)
            and policy not in ("", "none", "None")
            and (now is None or now.value.lower() == "none")
        ):
            yield to_do(
                f"{check}-state",
                f"{path} is of policy {policy}, and the kubelet is configured with none: it does not start on that",
                "take its promises over and move it away",
            )


def _reserved(settings: KubeletSettings, seen: KubeletEvidence) -> Finding:
    ours, topology = seen.reserved, seen.topology
    theirs = settings.by_key.get("reservedSystemCPUs")
    if theirs is None or not theirs.value:
        return _reserved_by_amount(settings, seen)
    try:
        kept = CPUSet.parse(theirs.value)
    except ValueError:
        return to_do(
            "reserved-cpus", f"{theirs.where}: {theirs.value!r} is no list of CPUs", "write one such as 0-1"
        )
    if ours is None:
        return fine("reserved-cpus", f"{kept} by the kubelet; the agent's configuration is not known here")
    if kept == ours:
        return fine("reserved-cpus", f"{ours}, for the kubelet and the agent alike")
    whole = topology.whole_cores(kept) if topology else kept
    both = "both configurations" if whole != kept else "the agent's configuration"
    return to_do(
        "reserved-cpus",
        f"the kubelet keeps CPUs {kept or 'none'} ({theirs.where}), the agent {ours or 'none'}: the scheduler counts "
        "CPUs that are not there, or leaves some unused",
        f'write reservedSystemCPUs: "{whole}" into {both}',
    )


def _reserved_by_amount(settings: KubeletSettings, seen: KubeletEvidence) -> Finding:
    """The kubelet names no CPUs: it keeps the amounts of kubeReserved and systemReserved back.

    Source: kubelet v1.36 cm/container_manager_linux.go and cpumanager/policy_static.go: the amounts add up, and count up
    to the next whole CPU.
    """
    ours, topology = seen.reserved, seen.topology
    milli, where = 0, []
    for key in KEPT:
        found = settings.by_key.get(key)
        amounts = dict(part.partition("=")[::2] for part in found.value.split(",")) if found else {}
        if found is None or "cpu" not in amounts:
            continue
        try:
            milli += parse_cpu_milli(amounts["cpu"])
        except ValueError as error:
            return to_do("reserved-cpus", f"{found.where}: {key}: {error}", "write an amount such as 500m")
        where.append(f"{key} {amounts['cpu']}, {found.where}")
    count = math.ceil(milli / 1000)
    said = f"{count} ({'; '.join(where)})" if where else "none"
    if ours is None:
        return fine("reserved-cpus", f"{said} by the kubelet; the agent's configuration is not known here")
    if count == len(ours):
        return fine("reserved-cpus", f"{ours or 'none'} by the agent; as many by the kubelet: {said}")
    wanted = ours if topology is None else topology.whole_cores(ours) or topology.first_core
    line = f'reservedSystemCPUs: "{wanted}"'
    harm = (
        "the scheduler counts CPUs that no container can have, and sends pods that are refused"
        if count < len(ours)
        else "the scheduler leaves CPUs unused that the agent would give"
    )
    into = "the copy that the steps above make" if seen.must_hand_over else "the kubelet's configuration"
    return to_do(
        "reserved-cpus",
        f"the agent keeps CPUs {ours or 'none'} for the system, the kubelet keeps {said}: {harm}",
        f"let both reserve the same: write {line} into {into}, and into the agent's where it says otherwise",
        steps=() if seen.must_hand_over else tuple(_reserve(settings, line)),
    )


def _reserve(settings: KubeletSettings, line: str) -> Iterator[Step]:
    path = next(iter(settings.files), CONFIG_FILE)
    command = f"sed -i '$a {line}' {shlex.quote(path)}" if path in settings.line_files else ""
    yield Step(f"write the line into {path}", command)
    yield Step("restart the kubelet; containers go on running", "systemctl restart kubelet")


def _pod_resources(socket: str | Hidden, seen: KubeletEvidence) -> Finding:
    if isinstance(socket, Hidden):
        return not_visible("pod-resources", socket, "whether the kubelet tells of devices cannot be seen")
    if socket:
        says = f"{POD_RESOURCES}: {socket}, so devices are known by their device nodes only"
        if seen.must_hand_over:
            return to_do("pod-resources", says, "the steps above end with the kubelet's start")
        return to_do("pod-resources", says, "start the kubelet", "systemctl start kubelet")
    return fine("pod-resources", f"{POD_RESOURCES} takes connections")
