"""What everybody says at one moment: agent, exporter, kubelet, API server, and the tree."""

import json
import subprocess
from pathlib import Path
from typing import Any

import grpc

from nri_plugin.kube._pb import podresources_pb2
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.stage import NRT_GROUP
from tests.e2e.node_rig.inside import RIG

from .parts import KUBELET_ROOT, STATE, Parts
from .watch import look, pod_row

LIST = "/v1.PodResourcesLister/List"


def dump(what: str, parts: Parts, cluster: ControlPlane, **more: Any) -> None:
    """Note it."""
    shown = nri_pin(parts, "state", "show", "-o", "json", "--state-dir", STATE)
    verified = nri_pin(parts, "state", "verify", "--state-dir", STATE, "--cgroup-root", RIG / "cgroup")
    pods = cluster.get(f"/api/v1/pods?fieldSelector=spec.nodeName={parts.name}")["items"]
    parts.notes.add(
        "dumps", what=what, state=_json(shown), verify=[verified.returncode, (verified.stdout + verified.stderr)[-3000:]],
        topology=cluster.found(f"{NRT_GROUP}/{parts.name}"), pods=[pod_row(one) for one in pods],
        exporter=pod_resources(STATE / "exporter/pod-resources.sock"),
        kubelet=pod_resources(KUBELET_ROOT / "pod-resources/kubelet.sock"), tree=look(),
        usage={name: usage(parts.running[name].pid) for name in ("agent", "exporter")}, **more,
    )  # fmt: skip


def nri_pin(parts: Parts, *words: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of the checkout that runs now."""
    environment = {"PYTHONPATH": str(parts.checkouts[0]), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [str(word) for word in parts._nri_pin(list(words))],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd="/",
    )


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": (done.stdout + done.stderr)[-1000:]}


def pod_resources(socket: Path) -> dict[str, Any]:
    """CPUs by pod and container, as the socket lists them."""
    try:
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            ask = channel.unary_unary(
                LIST, request_serializer=podresources_pb2.ListPodResourcesRequest.SerializeToString,
                response_deserializer=podresources_pb2.ListPodResourcesResponse.FromString,
            )  # fmt: skip
            answer = ask(podresources_pb2.ListPodResourcesRequest(), timeout=10)
    except grpc.RpcError as error:
        return {"error": str(error)[:300]}
    return {
        pod.name: {one.name: sorted(one.cpu_ids) for one in pod.containers} for pod in answer.pod_resources
    }


def usage(pid: int) -> dict[str, int]:
    """Resident KiB and open descriptors of a process."""
    try:
        words = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
        return {"rss_kib": int(words[0]), "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir()))}
    except (OSError, IndexError):
        return {}
