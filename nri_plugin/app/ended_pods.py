"""Pods that are over although nobody told us.

A runtime that was restarted tells nothing any more of the end of older pods, nor of containers that had
ended before. What such a pod was promised would be held until the next Synchronize. But the kubelet makes
a pod's cgroup before anything else of the pod and removes it after everything else: it is the witness.
"""

from collections.abc import Callable

from nri_plugin.app.loop import Loop
from nri_plugin.app.outcome import Outcome
from nri_plugin.nri.events import RemoveContainer, RemovePodSandbox
from nri_plugin.nri.messages import Pod
from nri_plugin.state import CgroupRef, PodRecord, State, pod_of

LOOK_PAUSE_S = 10.0
"""Between two looks; whoever is refused for want of CPUs makes us look at once."""

SOON_S = 0.5
"""From the removal of a pod's last container to a look: where the pod is over its cgroup goes about then."""


def ended_pods(state: State, is_removed: Callable[[CgroupRef], bool]) -> list[PodRecord]:
    """Pods whose cgroup is gone, of those that were promised something or that only their end would remove."""
    holders = dict.fromkeys(pod_of(key) for key in state.allocations)
    lived_in = {record.pod_uid for record in state.containers.values()}
    left = (uid for uid, pod in state.pods.items() if not pod.run_seen and uid not in lived_in)
    pods = (state.pods[uid] for uid in {**holders, **dict.fromkeys(left)} if uid in state.pods)
    return [pod for pod in pods if pod.cgroup_parent and is_removed(CgroupRef(pod.cgroup_parent))]


def untold_removal(pod: PodRecord) -> RemovePodSandbox:
    """What the runtime should have told."""
    return RemovePodSandbox(Pod(id=pod.sandbox_id, uid=pod.uid, name=pod.name, namespace=pod.namespace))


class EndedPodsWatch:
    """Releases what ended pods hold: by the clock, and soon after the last container of a pod was removed.

    Args:
        release: looks once and releases; see `Handler.release_ended`.
        loop: has the clock.
    """

    def __init__(self, release: Callable[[], bool], loop: Loop) -> None:
        self._release, self._loop = release, loop

    def start(self, pause_s: float = LOOK_PAUSE_S) -> None:
        """Look after `pause_s` and by the clock from then on."""
        self._loop.set_timer("ended pods", self._loop.clock() + pause_s, self._look)

    def __call__(self, outcome: Outcome) -> None:
        """Be told of an outcome: a pod without a container, whose end may go untold, may be over."""
        if not isinstance(outcome.event, RemoveContainer):
            return
        record, after = outcome.before.containers.get(outcome.event.container.id), outcome.decision.state
        pod = after.pods.get(record.pod_uid) if record else None
        if pod is not None and not pod.run_seen and not after.containers_of(pod.uid):
            self.start(SOON_S)

    def _look(self) -> None:
        self._release()
        self.start()
