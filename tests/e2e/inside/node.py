"""A Kubernetes node without a kubelet: a runtime, an agent, and pods that the tests ask for over CRI."""

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .agent import Agent
from .cri import CRIClient, CRIError
from .observe import CGROUPS, Observed, observe
from .pods import ContainerSpec, PodSpec
from .report import Expectations
from .runtime import Runtime
from .waiting import wait_for

GONE_S = 120
"""Only ever waited for where something keeps a pod's cgroup."""


@dataclass
class Pod:
    """A pod that exists in the runtime; `ids` are its containers' by name."""

    spec: PodSpec
    sandbox: str
    ids: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)

    @property
    def id(self) -> str:
        """Id of its only container."""
        (only,) = self.ids.values()
        return only


@dataclass
class Node(Expectations):
    """What scenarios are given: pods come and go through it, and facts are told to it."""

    runtime: Runtime
    agent: Agent
    cri: CRIClient = field(init=False)
    pods: list[Pod] = field(default_factory=list)
    _pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with nothing told."""
        Expectations.__init__(self)
        self.cri = CRIClient(self.runtime.socket)

    def sandbox(self, spec: PodSpec) -> Pod:
        """Make a pod without containers."""
        config = spec.sandbox_config(self.runtime.systemd)
        pod = Pod(spec, self.cri.call("RunPodSandbox", config=config)["pod_sandbox_id"])
        self.pods.append(pod)
        return pod

    def create(self, pod: Pod, container: ContainerSpec, attempt: int = 0) -> str:
        """Create one container of a pod and do not start it; a further attempt takes the place of the one before."""
        config = pod.spec.container_config(container)
        config["metadata"]["attempt"] = attempt
        asked = config["linux"]["resources"]
        asked["oom_score_adj"] = max(asked["oom_score_adj"], self.runtime.lowest_score)
        sandbox_config = pod.spec.sandbox_config(self.runtime.systemd)
        answer = self.cri.call(
            "CreateContainer", pod_sandbox_id=pod.sandbox, config=config, sandbox_config=sandbox_config
        )
        pod.ids[container.name] = answer["container_id"]
        return pod.ids[container.name]

    def start(self, pod: Pod, name: str = "main") -> None:
        """Start a container that was created."""
        self.cri.call("StartContainer", container_id=pod.ids[name])
        pod.running.add(name)

    def run(self, spec: PodSpec) -> Pod:
        """Make a pod, create and start all its containers."""
        pod = self.sandbox(spec)
        for container in spec.containers:
            self.create(pod, container)
            self.start(pod, container.name)
        return pod

    def end(self, pod: Pod, name: str = "main") -> None:
        """Stop and remove a container, as the kubelet does with a crashed one before it makes the next."""
        self.cri.call("StopContainer", container_id=pod.ids[name], timeout=0)
        self.cri.call("RemoveContainer", container_id=pod.ids.pop(name))
        pod.running.discard(name)

    def refusal_of(self, spec: PodSpec) -> str:
        """Make a pod whose only container must be refused; return the runtime's words, and remove the pod."""
        pod = self.sandbox(spec)
        try:
            self.create(pod, spec.containers[0])
        except CRIError as error:
            return error.reason
        finally:
            self.remove(pod)
        return ""

    def update(self, pod: Pod, **resources: int | str) -> None:
        """Ask the runtime to change resources of a pod's only container, as an in-place resize does."""
        self.cri.call("UpdateContainerResources", container_id=pod.id, linux=resources)

    def remove(self, pod: Pod) -> None:
        """Stop and remove a pod with its containers."""
        for identity in pod.ids.values():
            self.cri.call("StopContainer", container_id=identity, timeout=0)
            self.cri.call("RemoveContainer", container_id=identity)
        self.cri.call("StopPodSandbox", pod_sandbox_id=pod.sandbox)
        self.cri.call("RemovePodSandbox", pod_sandbox_id=pod.sandbox)
        self._remove_cgroups(pod)
        self.pods.remove(pod)

    def _remove_cgroups(self, pod: Pod) -> None:
        """Remove the pod's own cgroup in every hierarchy, as the kubelet does last of all.

        The first try may fail: systemd removes the scopes in it some time after the runtime has answered. The kubelet
        tries until it is gone. It stops the slice first: systemd makes the directory of an active slice anew.
        """
        name = pod.spec.cgroup_parent(self.runtime.systemd).rpartition("/")[2]
        if self.runtime.systemd:
            subprocess.run(["systemctl", "stop", name], check=False, timeout=120)

        def is_gone() -> bool:
            try:
                found = [one for top in CGROUPS.rglob(name) for one in (top, *top.rglob("*")) if one.is_dir()]
            except OSError:  # systemd removed one while it was looked at
                return False
            for directory in reversed(found):
                with suppress(OSError):
                    directory.rmdir()
            return not found

        wait_for(is_gone, GONE_S, f"the cgroups of pod {pod.spec.name} are gone")

    def remove_all(self) -> None:
        """Leave an empty node behind."""
        for pod in [*self.pods]:
            self.remove(pod)

    def pid(self, container: str) -> int:
        """Process id of a running container's first process; it stays the same while the container lives."""
        if container not in self._pids:
            answer = self.cri.call("ContainerStatus", container_id=container, verbose=True)
            self._pids[container] = int(json.loads(answer["info"]["info"])["pid"])
        return self._pids[container]

    def observe(self, container: str) -> Observed:
        """What the kernel says about a running container."""
        return observe(self.pid(container))

    def running(self) -> dict[str, str]:
        """Ids of all running containers by `pod/container`."""
        return {f"{pod.spec.name}/{name}": pod.ids[name] for pod in self.pods for name in sorted(pod.running)}


def content_of(path: Path, limit_s: float = 20) -> bytes:
    """Return what a container writes to a file, as soon as it is there."""
    wait_for(lambda: path.exists() and path.stat().st_size > 0, limit_s, f"{path} holds something")
    return path.read_bytes()
