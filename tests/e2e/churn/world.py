"""Process 1 of a churn, in a network and process namespace of its own: the control plane, and the nodes.

`python -m tests.e2e.churn.world PLAN`. When it ends, however it ends, the kernel ends everything that was started.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.e2e.cluster.acting import guide_configuration
from tests.e2e.cluster.control_plane import ControlPlane, free_ports, listens, scheduler_command
from tests.e2e.cluster.stage import DEPLOY
from tests.e2e.lab.progress import say, step
from tests.e2e.lab.shell import run
from tests.e2e.node_rig.nodes import Place, start_node

_FAIL_PODS = {
    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "fail-pods"},
    "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
              {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}],
}  # fmt: skip


def main(plan_file: str) -> int:
    """Reap, as process 1 has to, until the world ends; return its status."""
    child = os.fork()
    if child == 0:
        os._exit(_live(json.loads(Path(plan_file).read_text()), plan_file))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _live(plan: dict[str, Any], plan_file: str) -> int:
    run(["mount", "-t", "proc", "proc", "/proc"])
    run(["ip", "link", "set", "lo", "up"])
    for number in range(plan["nodes"]):
        run(["ip", "address", "add", f"10.77.0.{number + 1}/24", "dev", "lo"])
    cluster = ControlPlane(Path(plan["cluster"]), Path(plan["control"]))
    cluster.up(lean=True)
    cluster.kubectl("apply", "-f", str(DEPLOY / "crd.yaml"), "-f", str(DEPLOY / "export-rbac.yaml"))
    cluster.kubectl("apply", "-f", "-", text=json.dumps(_FAIL_PODS))
    cluster.kubectl(
        "create",
        "clusterrolebinding",
        "fail-pods",
        "--clusterrole=fail-pods",
        "--serviceaccount=nri-pin:nri-pin-export",
    )
    if plan["nodes"] > 1:
        with step("starting the extender and its scheduler"):
            _schedule_by_extender(cluster)
    nodes = []
    for number in range(plan["nodes"]):
        folder = Path(plan["folder"]) / f"node-{number}"
        place = Place(
            f"node-{number}", f"{plan['cgroup']}-{number}", plan["machine"], Path(plan["programs"]), folder
        )
        life = [sys.executable, "-P", "-u", "-m", "tests.e2e.churn.life", plan_file, str(number)]
        nodes.append(start_node(place, life))
    status = max(node.wait() for node in nodes)
    cluster.processes.end_all()
    return 1 if status else 0


def _schedule_by_extender(cluster: ControlPlane) -> None:
    """Let the extender filter and score for the cluster's own scheduler, by the guide's configuration."""
    port = free_ports(1)[0]
    command = [
        sys.executable,
        "-P",
        "-m",
        "nri_plugin",
        "extender",
        "--listen",
        f"127.0.0.1:{port}",
        "--kubeconfig",
        cluster.admin,
    ]
    cluster.processes.start("extender", command)
    cluster.until(lambda: listens(port), "the extender listens", program="extender")
    config = guide_configuration()
    extender = config["extenders"][0]
    extender |= {"urlPrefix": f"http://127.0.0.1:{port}", "enableHTTPS": False, "httpTimeout": "30s"}
    extender.pop("tlsConfig", None)
    config["profiles"] = [{"schedulerName": "default-scheduler"}]
    cluster.processes.end("kube-scheduler")
    cluster.processes.start(
        "kube-scheduler",
        scheduler_command(cluster.programs, cluster.scheduler_configuration("scheduler", config)),
    )


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    say("the world begins")
    sys.exit(main(*sys.argv[1:]))
