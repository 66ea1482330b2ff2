"""What a scenario plays with: the cluster, nodes that are played, and facts that hold or do not."""

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.agent_process import PATIENT_AGENT, REPOSITORY, Peer, Site, config_text
from tests.builders import container as nri_container
from tests.builders import pod as nri_pod
from tests.e2e.lab.progress import say

from .audit import Asked, read_audit
from .control_plane import ControlPlane, Object, RefusedError
from .guest_node import Guests

DEPLOY = REPOSITORY / "deploy"
NRT_GROUP = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
EXPORTER = "system:serviceaccount:nri-pin:nri-pin-export"

_COME_AGAIN = {f"{verb} noderesourcetopologies 429" for verb in ("list", "watch")}
"""A server asks to come again while it reads the objects of a kind that has just been made."""


@dataclass
class Facts:
    """What held and what did not, of one scenario.

    Attributes:
        held: facts that held.
        failures: what did not, with what was seen instead.
        figures: what was measured; nobody judges it.
        seen: what the report lists beside the table.
        refused: requests of our service accounts that were answered with a status from 400 on, `VERB WHAT STATUS`.
        looks: how often all processes of the real node were looked at.
        shared_exclusive: how many exclusive sets others shared, in all looks.
    """

    held: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    shared_exclusive: int = 0

    def hold(self, fact: object, words: str, detail: object = "") -> None:
        """Note a fact that has to hold; `words` say what is so."""
        if fact:
            self.held.append(words)
        else:
            self.failures.append(f"NOT {words}" + (f": {detail}" if detail != "" else ""))
            say(f"  NOT {words}: {str(detail)[:1000]}")

    def figure(self, what: str, value: str) -> None:
        """Note what was measured; nobody judges it."""
        self.figures[what] = value
        say(f"  {what}: {value}")


class Stage(Facts):
    """One scenario's view of the cluster; leaving it ends what the scenario started.

    Args:
        cluster: it is up.
        folder: for this scenario's files.
        guests: real nodes, booted when a scenario asks for one.
    """

    def __init__(self, cluster: ControlPlane, folder: Path, guests: Guests) -> None:
        super().__init__()
        self.cluster, self.folder, self.guests = cluster, folder, guests
        folder.mkdir(parents=True)
        self._ending = contextlib.ExitStack()
        self._began_at = cluster.audit_log.stat().st_size
        self.expected = set(_COME_AGAIN)

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def played_node(self, name: str, **options: str) -> "PlayedNode":
        """A node whose runtime is played and whose agent is real, registered in the cluster.

        Args:
            name: in the cluster.
            options: of the agent's configuration.
        """
        node = PlayedNode(self, name, options)
        self._ending.callback(node.close)
        return node

    def account(self, node: str, account: str = "nri-pin-export", namespace: str = "nri-pin") -> Path:
        """A kubeconfig with a token of that service account, as it is in a pod of that node."""
        words = ["create", "token", account, "-n", namespace, "--duration=1h"]
        if node:
            words += ["--bound-object-kind=Node", f"--bound-object-name={node}"]
        file = self.folder / f"{node or account}.token"
        file.write_text(self.cluster.kubectl(*words).strip())
        return self.cluster.authority.token_kubeconfig(
            f"{self.folder.name}-{node or account}", self.cluster.server, file
        )

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a program that ends with the scenario."""
        name = f"{self.folder.name}-{name}"
        self.cluster.processes.start(name, command)
        self._ending.callback(self._end, name)

    def log(self, name: str) -> str:
        """What a program of this scenario has said so far."""
        return self.cluster.processes.log(f"{self.folder.name}-{name}").read_text(errors="replace")

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a program before the scenario's end."""
        self.cluster.processes.end(f"{self.folder.name}-{name}", number)

    def _end(self, name: str) -> None:
        if name in self.cluster.processes.names():
            self.cluster.processes.end(name)

    def cleanup(self, *words: str) -> None:
        """Run kubectl with these words at the end, whether it succeeds or not."""

        def run() -> None:
            with contextlib.suppress(Exception):
                self.cluster.kubectl(*words)

        self._ending.callback(run)

    def apply(self, objects: Sequence[Object]) -> str:
        """Apply objects, and delete them at the end; returns what kubectl said."""
        file = self.folder / f"applied-{len(list(self.folder.glob('applied-*')))}.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        self.cleanup("delete", "-f", str(file), "--ignore-not-found", "--wait=false")
        return self.cluster.kubectl("apply", "-f", str(file))

    # What the cluster holds

    def topology(self, node: str) -> Object | None:
        """The NodeResourceTopology of a node."""
        return self.cluster.found(f"{NRT_GROUP}/{node}")

    def available(self, node: str) -> list[str]:
        """Available CPUs by NUMA node; empty without an object."""
        return [zone["available"] for zone in self._cpus(self.topology(node))]

    @staticmethod
    def _cpus(obj: Object | None) -> list[dict[str, str]]:
        zones = (obj or {}).get("zones", ())
        return [one for zone in zones for one in zone["resources"] if one["name"] == "cpu"]

    def until(self, fact: Callable[[], Any], words: str, patience_s: float = 120.0) -> Any:
        """Wait for a fact and note that it came true; returns it."""
        began = time.monotonic()
        try:
            found = self.cluster.until(fact, words, patience_s=patience_s)
        except Exception as error:
            self.hold(False, words, error)
            raise
        self.hold(True, words)
        say(f"  {words}: after {time.monotonic() - began:.1f} s")
        return found

    def asked(self) -> list[Asked]:
        """What the API server was asked since the scenario began."""
        return list(read_audit(self.cluster.audit_log, self._began_at))

    def writes(self, node: str, user: str = EXPORTER) -> list[Asked]:
        """Writes to the object of a node by that user."""
        return [
            one for one in self.asked()
            if one.user == user and one.name == node and one.what == "noderesourcetopologies" and one.verb == "patch"
        ]  # fmt: skip

    def judge_audit(self) -> None:
        """Hold that our service accounts were refused nothing, but for what `expected` lists as `VERB WHAT STATUS`."""
        found = Counter(
            f"{one.verb} {one.what} {one.status}"
            for one in self.asked()
            if one.user.startswith("system:serviceaccount:nri-pin:") and one.status >= 400
        )
        self.refused = dict(sorted(found.items()))
        unexpected = {words: count for words, count in found.items() if words not in self.expected}
        self.hold(not unexpected, "our service accounts are refused nothing unexpected", unexpected)
        answered = Counter(
            one.status for one in self.asked() if one.user.startswith("system:serviceaccount:nri-pin:")
        )
        self.figure(
            "answers to our service accounts",
            ", ".join(f"{count} x {code}" for code, count in sorted(answered.items())) or "none",
        )


class PlayedNode:
    """A Node object, a machine of 2 NUMA nodes x 8 CPUs (0-1 reserved), a played runtime, a real agent, maybe an exporter."""

    def __init__(self, stage: Stage, name: str, options: dict[str, str]) -> None:
        self._stage, self.name = stage, name
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))  # sockets have short paths, and homes may not
        self.site = Site(self.folder)
        self.site.config.write_text(config_text(self.folder, **options))
        stage.start(
            f"agent-{name}", [sys.executable, "-P", *PATIENT_AGENT, "run", "--config", self.site.config]
        )
        self.register()
        self.runtime: Peer = self.site.accept()
        self.runtime.synchronize()
        self.pods: dict[str, Pod] = {}

    def register(self) -> None:
        """Create the Node as a kubelet does; the API server has none of that name."""
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        amounts = {"cpu": "16", "memory": "16Gi", "pods": "110"}
        node = {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, "played": self._stage.folder.name}},
            "status": {"capacity": amounts, "allocatable": {**amounts, "cpu": "14"}, "conditions": [ready]},
        }  # fmt: skip
        status, answer = self._stage.cluster.ask("POST", "/api/v1/nodes", node)
        if status != 201:
            raise RefusedError(status, str(answer))
        # every new Node has a taint until a controller has seen that it is ready, and there may be no controller
        kind = "application/merge-patch+json"
        status, answer = self._stage.cluster.ask(
            "PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}}, kind
        )
        if status != 200:
            raise RefusedError(status, str(answer))

    def export(self, kubeconfig: Path, *words: str) -> None:
        """Start an exporter beside the agent."""
        self._stage.start(
            f"export-{self.name}",
            [
                sys.executable, "-P", "-m", "nri_plugin", "export", "--node-name", self.name,
                "--state-dir", self.folder / "state", "--kubeconfig", kubeconfig, "--min-interval", "0.2",
                "--kubelet-socket", self.folder / "nothing" / "kubelet.sock", *words,
            ],
        )  # fmt: skip

    def pod(self, namespace: str, name: str, cpu: int) -> Pod:
        """The sandbox of a Guaranteed pod that the cluster holds."""
        uid = self._stage.cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["metadata"]["uid"]
        found = replace(nri_pod(uid, cpu=cpu, namespace=namespace), name=name)
        self.runtime.ask(nri.RunPodSandbox(found))
        self.pods[f"{namespace}/{name}"] = found
        return found

    def create(self, of: Pod, cpu: int, memory: int = 0, name: str = "main") -> str:
        """Create a container of that many CPUs; returns its CPUs, or the refusal."""
        what = nri_container(of, name, cpu=cpu, memory=memory)
        answered = self.runtime.ask(nri.CreateContainer(of, what))
        if not isinstance(answered.response, nri.CreateContainerResponse):
            return f"refused: {answered.error}"
        self.runtime.ask(nri.PostCreateContainer(of, what))
        assert answered.response.resources is not None
        return answered.response.resources.cpus

    def remove(self, of: Pod) -> None:
        """End a pod's sandbox."""
        self.runtime.ask(nri.StopPodSandbox(of))
        self.runtime.ask(nri.RemovePodSandbox(of))

    def close(self) -> None:
        """End the agent, and take the Node out of the cluster."""
        self.site.close()
        self._stage.cluster.ask("DELETE", f"/api/v1/nodes/{self.name}")
        shutil.rmtree(self.folder, ignore_errors=True)


def pod_object(name: str, *, cpu: int, memory: str = "256Mi", node: str = "", **spec: Any) -> Object:
    """A Guaranteed pod of one container."""
    amounts = {"cpu": str(cpu), "memory": memory}
    container = {
        "name": "main",
        "image": "localhost/test:1",
        "resources": {"requests": amounts, "limits": amounts},
    }
    whole = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    if node:
        whole["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
