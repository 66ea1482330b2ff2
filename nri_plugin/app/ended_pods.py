"""Pods that are over although nobody told us.

A runtime that was restarted tells nothing any more of the end of older pods, nor of containers that had
ended before. What such a pod was promised would be held until the next Synchronize. But the kubelet makes
a pod's cgroup before anything else of the pod and removes it after everything else: it is the witness.
"""

from collections.abc import Callable

from nri_plugin.nri.events import RemovePodSandbox
from nri_plugin.nri.messages import Pod
from nri_plugin.state import CgroupRef, PodRecord, State

LOOK_PAUSE_S = 10.0
"""Between two looks; whoever is refused for want of CPUs makes us look at once."""


def ended_pods(state: State, is_removed: Callable[[CgroupRef], bool]) -> list[PodRecord]:
    """Pods that were promised something and whose cgroup is gone."""
    holders = {key.partition("/")[0] for key in state.allocations}
    pods = (state.pods[uid] for uid in holders if uid in state.pods)
    return [pod for pod in pods if pod.cgroup_parent and is_removed(CgroupRef(pod.cgroup_parent))]


def untold_removal(pod: PodRecord) -> RemovePodSandbox:
    """What the runtime should have told."""
    return RemovePodSandbox(Pod(id=pod.sandbox_id, uid=pod.uid, name=pod.name, namespace=pod.namespace))
