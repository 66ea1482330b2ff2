"""Pods as the kubelet describes them to a runtime: cgroup parents, shares, quotas and limits by QoS class."""

from dataclasses import dataclass, field
from typing import Any

_MIB = 1 << 20
_PERIOD_US = 100_000
_QOS_SCORES = {"guaranteed": -997, "besteffort": 1000}
_BURSTABLE_SCORE = 900  # the kubelet counts it from the request and the node's size; any value between serves
_IMAGE = "localhost/test:1"
_NAMESPACES = {"network": 2, "pid": 1, "ipc": 0}  # the node's, its own, the pod's


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container of a pod.

    Attributes:
        command: what it runs.
        mounts: host directories by container path.
        read_only: which of these container paths cannot be written.
        security: a LinuxContainerSecurityContext, without namespaces.
        limit_milli: None as requested; 0 none.
        memory_bytes: the limit where it is no whole number of MiB, 0 none.
        score: oom_score_adj of a Burstable container.
        hugepages: bytes by page size, as `2MB`.
        environment: `NAME=VALUE`.
        devices: device files of the host.
    """

    name: str
    cpu_milli: int = 0
    memory_mib: int = 64
    command: tuple[str, ...] = ("/bin/sleep", "10000")
    mounts: dict[str, str] = field(default_factory=dict)
    read_only: frozenset[str] = frozenset()
    security: dict[str, Any] = field(default_factory=dict)
    limit_milli: int | None = None
    memory_bytes: int | None = None
    score: int = _BURSTABLE_SCORE
    hugepages: dict[str, int] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod: its QoS class (`guaranteed`, `burstable`, `besteffort`) decides how its containers are described.

    Attributes:
        limit_milli: the CPU limit of a pod with resources of its own; 0 for the sum over its containers.
    """

    name: str
    qos: str
    containers: tuple[ContainerSpec, ...]
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    limit_milli: int = 0

    @property
    def uid(self) -> str:
        """An uid that people can read, in the form the kubelet uses for cgroup names."""
        return f"{self.name}-0000-4000-8000-000000000000"

    def cgroup_parent(self, systemd: bool) -> str:
        """Return the cgroup parent the kubelet would name."""
        level = "" if self.qos == "guaranteed" else self.qos
        if systemd:
            return "-".join(filter(None, ("kubepods", level, f"pod{self.uid.replace('-', '_')}"))) + ".slice"
        return "/".join(filter(None, ("/kubepods", level, f"pod{self.uid}")))

    def sandbox_config(self, systemd: bool) -> dict[str, Any]:
        """Return the PodSandboxConfig; all pods use the network of the node, so none has to be set up."""
        return {
            "metadata": {"name": self.name, "uid": self.uid, "namespace": self.namespace},
            "log_directory": f"/out/pods/{self.name}",
            "labels": {
                **self.labels,
                "io.kubernetes.pod.name": self.name,
                "io.kubernetes.pod.namespace": self.namespace,
                "io.kubernetes.pod.uid": self.uid,
            },
            "annotations": self.annotations,
            "linux": {
                "cgroup_parent": self.cgroup_parent(systemd),
                "security_context": {"namespace_options": _NAMESPACES},
                "resources": self._total(),
            },
        }

    def container_config(self, spec: ContainerSpec) -> dict[str, Any]:
        """Return the ContainerConfig of one of the pod's containers."""
        return {
            "metadata": {"name": spec.name},
            "image": {"image": _IMAGE, "user_specified_image": _IMAGE},
            "command": list(spec.command),
            "labels": {"io.kubernetes.container.name": spec.name, "io.kubernetes.pod.uid": self.uid},
            "log_path": f"{spec.name}.log",
            "mounts": [
                {"container_path": to, "host_path": host, "readonly": to in spec.read_only}
                for to, host in spec.mounts.items()
            ],
            "envs": [
                dict(zip(("key", "value"), pair.split("=", 1), strict=True)) for pair in spec.environment
            ],
            "devices": [
                {"container_path": path, "host_path": path, "permissions": "rw"} for path in spec.devices
            ],
            "linux": {
                "resources": self.resources(spec),
                "security_context": {**spec.security, "namespace_options": _NAMESPACES},
            },
        }

    def resources(self, spec: ContainerSpec) -> dict[str, Any]:
        """Return the container's LinuxContainerResources."""
        score = _QOS_SCORES.get(self.qos, spec.score)
        limits = [{"page_size": size, "limit": limit} for size, limit in spec.hugepages.items()]
        if self.qos == "besteffort":
            return {
                "cpu_shares": 2,
                "cpu_period": _PERIOD_US,
                "oom_score_adj": score,
                "hugepage_limits": limits,
            }
        described: dict[str, Any] = {
            "cpu_shares": max(2, spec.cpu_milli * 1024 // 1000),
            "cpu_period": _PERIOD_US,
            "oom_score_adj": score,
            "hugepage_limits": limits,
        }
        memory = spec.memory_mib * _MIB if spec.memory_bytes is None else spec.memory_bytes
        quota_milli = spec.limit_milli
        if quota_milli is None:
            quota_milli = spec.cpu_milli if self.qos == "guaranteed" else 0
        if memory:
            described["memory_limit_in_bytes"] = memory
        if quota_milli:
            described["cpu_quota"] = quota_milli * _PERIOD_US // 1000
        return described

    def _total(self) -> dict[str, int]:
        parts = [self.resources(spec) for spec in self.containers]
        summed = ("cpu_shares", "cpu_quota", "memory_limit_in_bytes")
        total = {key: sum(part.get(key, 0) for part in parts) for key in summed}
        return {**total, "cpu_period": _PERIOD_US}


def guaranteed(
    name: str, cpus: int, *, memory_mib: int = 64, container: str = "main", **rest: Any
) -> PodSpec:
    """A pod with one container that is owed whole CPUs."""
    return PodSpec(name, "guaranteed", (ContainerSpec(container, 1000 * cpus, memory_mib, **rest),))


def burstable(name: str, milli: int = 250, *, container: str = "main", **rest: Any) -> PodSpec:
    """A pod with one container that has a request and runs in the shared pool."""
    return PodSpec(name, "burstable", (ContainerSpec(container, milli, **rest),))


def best_effort(name: str, *, container: str = "main", **rest: Any) -> PodSpec:
    """A pod with one container that asks for nothing."""
    return PodSpec(name, "besteffort", (ContainerSpec(container, **rest),))
