"""Messages about pods and containers with all that runtimes tell: labels, annotations, and the kubelet's oom_score_adj.

Source: kubelet v1.36 qos/policy.go (oom_score_adj); containerd's and CRI-O's filling of NRI messages.
"""

from msgspec.structs import replace

from nri_plugin.model.records import QOSClass
from nri_plugin.simulator.simulate import pods
from nri_plugin.simulator.simulate.pods import ContainerSpec, Names, PodSpec, RuntimeIdentity
from nri_plugin.wire.nri.messages import Container, Pod, Resources

OOM_GUARANTEED = -997
OOM_BEST_EFFORT = 1000


_CRI = "io.kubernetes.cri"
_LABEL = "io.kubernetes"


def pod_message(pod: PodSpec, uid: str, sandbox_id: str, who: RuntimeIdentity) -> tuple[Pod, Names]:
    """The sandbox as plugins see it, and its cgroup."""
    message, names = pods.pod_message(pod, uid, sandbox_id, who)
    assert message.resources is not None
    told = _sandbox_annotations(pod, uid, sandbox_id, message.resources, who)
    labels = {**pod.labels, **_pod_labels(pod, uid)}
    return replace(message, labels=labels, annotations={**pod.annotations, **told}), names


def container_message(
    pod: PodSpec, sandbox: Pod, parent: Names, spec: ContainerSpec, container_id: str, who: RuntimeIdentity
) -> tuple[Container, Names]:
    """A container that is about to be created, and where its cgroup will be."""
    message, names = pods.container_message(pod, sandbox, parent, spec, container_id, who)
    whole = replace(
        message,
        labels={**_pod_labels(pod, sandbox.uid), f"{_LABEL}.container.name": spec.name},
        annotations=_container_annotations(pod, sandbox, spec, who),
        oom_score_adj=oom_score_adj(pod.qos, spec.memory_request_bytes, who.memory_bytes),
    )
    return whole, names


def oom_score_adj(qos: QOSClass, memory_request_bytes: int, capacity_bytes: int) -> int:
    """The kubelet's oom_score_adj: the larger the memory request of a Burstable container, the later it is killed."""
    if qos is QOSClass.GUARANTEED:
        return OOM_GUARANTEED
    if qos is QOSClass.BEST_EFFORT:
        return OOM_BEST_EFFORT
    score = 1000 - 1000 * memory_request_bytes // capacity_bytes
    return min(max(score, 1000 + OOM_GUARANTEED), OOM_BEST_EFFORT - 1)


def _pod_labels(pod: PodSpec, uid: str) -> dict[str, str]:
    return {
        f"{_LABEL}.pod.name": pod.name,
        f"{_LABEL}.pod.namespace": pod.namespace,
        f"{_LABEL}.pod.uid": uid,
    }


def _sandbox_annotations(
    pod: PodSpec, uid: str, sandbox_id: str, resources: Resources, who: RuntimeIdentity
) -> dict[str, str]:
    seen = {"kubernetes.io/config.seen": "2026-01-01T00:00:00Z", "kubernetes.io/config.source": "api"}
    if not who.kind.is_containerd:
        return seen
    if who.kind.name != "containerd-1.7":
        seen[f"{_CRI}.podsandbox.image-name"] = "example.com/pause:1"
    return seen | {
        f"{_CRI}.container-type": "sandbox",
        f"{_CRI}.sandbox-id": sandbox_id,
        f"{_CRI}.sandbox-log-directory": f"/var/log/pods/{pod.namespace}_{pod.name}_{uid}",
        f"{_CRI}.sandbox-name": pod.name,
        f"{_CRI}.sandbox-namespace": pod.namespace,
        f"{_CRI}.sandbox-uid": uid,
        f"{_CRI}.sandbox-cpu-period": str(resources.cpu_period_us),
        f"{_CRI}.sandbox-cpu-quota": str(resources.cpu_quota_us),
        f"{_CRI}.sandbox-cpu-shares": str(resources.cpu_shares),
        f"{_CRI}.sandbox-memory": str(resources.memory_limit_bytes),
    }


def _container_annotations(
    pod: PodSpec, sandbox: Pod, spec: ContainerSpec, who: RuntimeIdentity
) -> dict[str, str]:
    if not who.kind.is_containerd:
        return {
            f"{_CRI}-o.ContainerType": "container",
            f"{_CRI}-o.ContainerName": spec.name,
            f"{_CRI}-o.SandboxID": sandbox.id,
            f"{_CRI}-o.SandboxName": pod.name,
            f"{_CRI}-o.Namespace": pod.namespace,
        }
    return {
        f"{_CRI}.container-type": "container",
        f"{_CRI}.container-name": spec.name,
        f"{_CRI}.sandbox-id": sandbox.id,
        f"{_CRI}.sandbox-name": pod.name,
        f"{_CRI}.sandbox-namespace": pod.namespace,
        f"{_CRI}.sandbox-uid": sandbox.uid,
        f"{_CRI}.image-name": "example.com/app:1",
    }
