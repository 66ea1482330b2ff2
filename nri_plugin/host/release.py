"""Giving every container all CPUs again, so that nothing of us is left on a node.

Order: partitions end from the leaves up, then sets are widened from the slices down: at no moment has a container
less than before. Nothing is emptied, for the kernel refuses to clear a set of a cgroup that has processes, and no
cgroup that was never given a set gets one; what somebody narrowed above is named and left. Memory nodes stay: taking
pages along would hold processes up.
"""

from dataclasses import dataclass, field

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup import Cgroups, WriteOutcome
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.partitions import end_all
from nri_plugin.kernel_side import QuotaWrite, limits, promised
from nri_plugin.state import CgroupRef, State
from nri_plugin.workload import qos_slices, slice_pattern


@dataclass(slots=True)
class Released:
    """What became of it.

    Attributes:
        widened: cgroups that were given all CPUs.
        already: cgroups that had them.
        gone: containers of the checkpoint that are no more.
        limited: cgroups whose CPU quota was put back.
        failures: one sentence each.
    """

    widened: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def release(cgroups: Cgroups, state: State, online: CPUSet) -> Released:
    """Give `online` to the slices, sandboxes and containers of `state`; whatever fails, the rest is done.

    Quotas that were lifted come back: what runs on everybody's CPUs has the limit it asked for.
    """
    found = Released()
    containers = [record.cgroup for record in state.containers.values() if record.cgroup.path]
    sandboxes = [
        CgroupRef(pod.cgroup_parent, pod.sandbox_path) for pod in state.pods.values() if pod.sandbox_path
    ]
    if cgroups.version == 2:
        found.failures += map(str, end_all(cgroups.tree.directory, promised(state), online))
    for ref in (*slices_of(state), *sandboxes):
        _guarded(found, _widen_if_set, cgroups, ref, online, found)
    for ref in containers:
        _guarded(found, _widen, cgroups, ref, online, found)
    quotas = CPUQuotas.beside(cgroups.tree)
    for write in limits(state) if quotas else ():
        _guarded(found, _limit, quotas, write, found)
    return found


def slices_of(state: State) -> list[CgroupRef]:
    """The Burstable and BestEffort slices of all pods known."""
    patterns = {slice_pattern(pod.cgroup_parent) for pod in state.pods.values()}
    return [ref for pattern in sorted(patterns) for ref in qos_slices(pattern)]


def _guarded(found: Released, step: object, *arguments: object) -> None:
    assert callable(step)
    try:
        step(*arguments)
    except HostError as error:
        found.failures.append(str(error))


def _limit(quotas: CPUQuotas, write: QuotaWrite, found: Released) -> None:
    if quotas.set(write.target, write.quota_us):
        found.limited.append(write.target.path or write.target.parent)


def _widen_if_set(cgroups: Cgroups, ref: CgroupRef, online: CPUSet, found: Released) -> None:
    if cgroups.read_cpus(ref):  # one without a set of its own has its parent's
        _widen(cgroups, ref, online, found)


def _widen(cgroups: Cgroups, ref: CgroupRef, online: CPUSet, found: Released) -> None:
    name = ref.path or ref.parent
    outcome = cgroups.write_cpus(ref, online)
    if outcome is WriteOutcome.MISSING:
        found.gone.append(name)
        return
    (found.widened if outcome is WriteOutcome.WRITTEN else found.already).append(name)
    left = cgroups.read_effective(ref)
    if left is not None and left != online:
        found.failures.append(f"{name} runs on {left} still, not on {online}: something above it holds less")
