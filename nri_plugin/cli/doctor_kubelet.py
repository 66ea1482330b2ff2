"""What `nri-pin doctor` says of the kubelet: two who pin CPUs would undo each other's work; pure."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nri_plugin.cli.doctor_findings import Finding, fine, not_visible, to_do
from nri_plugin.cpuset import CPUSet
from nri_plugin.host.node_evidence import Hidden
from nri_plugin.host.node_evidence_kubelet import POD_RESOURCES, STATE_FILES, KubeletSettings

POLICIES = {
    "cpu-manager": (
        "cpuManagerPolicy",
        "none",
        "it would pin CPUs, too, and each would undo the other's work",
    ),
    "memory-manager": ("memoryManagerPolicy", "None", "it would bind memory, too"),
    "topology-manager": ("topologyManagerPolicy", "none", "it would refuse pods by hints of its own"),
}
IMPORT = "nri-pin state import /var/lib/kubelet"


@dataclass(frozen=True, slots=True)
class KubeletEvidence:
    """What was seen.

    Attributes:
        settings: None when there is no kubelet.
        states: the policy in each of its state files; None where there is no such file.
        pod_resources: whether somebody listens on its PodResources socket: empty when so.
        reserved: what the agent keeps for the system; None where that is not known.
        is_only_observed: the agent carries nothing out, so whatever pins may go on.
    """

    settings: KubeletSettings | Hidden | None
    states: Mapping[str, str | Hidden | None] = field(default_factory=dict)
    pod_resources: str | Hidden = ""
    reserved: CPUSet | None = None
    is_only_observed: bool = False


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
        for check in POLICIES:
            yield _policy(check, settings, is_only_observed=seen.is_only_observed)
        yield _reserved(settings, seen.reserved)
    yield from _left_over(seen)
    yield _pod_resources(seen.pod_resources)


def _policy(check: str, settings: KubeletSettings, *, is_only_observed: bool) -> Finding:
    key, off, harm = POLICIES[check]
    found = settings.by_key.get(key)
    if found is None:
        return fine(check, f"{off}, the default: no file and no option of the kubelet says otherwise")
    if found.value.lower() == "none":
        return fine(check, f"{found.value}, by {found.where}")
    if is_only_observed:
        return fine(check, f"{found.value}, by {found.where}: stays so while the agent only observes")
    return to_do(
        check,
        f"{found.value}, by {found.where}: {harm}",
        f"set {key} to {off}",
        _switch_off(key, off, found.where),
    )


def _switch_off(key: str, off: str, where: str) -> str:
    """A line that takes promises over, switches the manager off and starts the kubelet again."""
    path, _, line = where.rpartition(":")
    if not line.isdecimal():
        return ""
    steps = ["systemctl stop kubelet"]
    if key == "cpuManagerPolicy":
        steps.append(IMPORT)
    steps.append(f"sed -i '{line}s/:.*/: {off}/' {shlex.quote(path)}")
    if key != "topologyManagerPolicy":
        steps.append(f"rm -f {STATE_FILES[key == 'memoryManagerPolicy']}")
    return " && ".join([*steps, "systemctl start kubelet"])


def _by_state(check: str, seen: KubeletEvidence, hidden: Hidden) -> Finding:
    """The configuration is out of sight; a state file tells at least what the manager ran under last."""
    key, _, harm = POLICIES[check]
    path = {"cpu-manager": STATE_FILES[0], "memory-manager": STATE_FILES[1]}.get(check, "")
    policy = seen.states.get(path)
    if isinstance(policy, str) and policy and policy.lower() != "none":
        if seen.is_only_observed:
            return fine(check, f"{policy}, by {path}: stays so while the agent only observes")
        return to_do(
            check, f"{policy}, by {path}: {harm}", f"set {key} to none in the kubelet's configuration"
        )
    if isinstance(policy, str) and policy:
        return fine(check, f"{policy}, by {path}: a kubelet does not start on a file of another policy")
    return not_visible(check, hidden, f"the kubelet's {key} cannot be seen")


def _left_over(seen: KubeletEvidence) -> Iterator[Finding]:
    """A state file of another policy than the one configured: the kubelet refuses to start on it."""
    settings = seen.settings
    if not isinstance(settings, KubeletSettings):
        return
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
                "take its promises over and remove it",
                f"{IMPORT} && rm {path}",
            )


def _reserved(settings: KubeletSettings, ours: CPUSet | None) -> Finding:
    theirs = settings.by_key.get("reservedSystemCPUs")
    if theirs is None:
        return fine(
            "reserved-cpus",
            f"{ours} by the agent; the kubelet names none" if ours else "the kubelet names none",
        )
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
    return to_do(
        "reserved-cpus",
        f"the kubelet keeps CPUs {kept or 'none'} ({theirs.where}), the agent {ours or 'none'}: the scheduler counts "
        "CPUs that are not there, or leaves some unused",
        f'write reservedSystemCPUs: "{kept}" into the agent\'s configuration',
    )


def _pod_resources(socket: str | Hidden) -> Finding:
    if isinstance(socket, Hidden):
        return not_visible("pod-resources", socket, "whether the kubelet tells of devices cannot be seen")
    if socket:
        return to_do(
            "pod-resources",
            f"{POD_RESOURCES}: {socket}, so devices are known by their device nodes only",
            "start the kubelet",
            "systemctl start kubelet",
        )
    return fine("pod-resources", f"{POD_RESOURCES} takes connections")
