"""Notes what is, from outside: cpusets of the tree and who is alive (each 30 ms), and the pods of the API server (each 0.4 s).

`python -m tests.e2e.churn.watch NODE CLUSTER_FOLDER PROGRAMS OUT`, in the node's namespaces; only changes are noted.
"""

import http.client
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.node_rig.inside import RIG

from .parts import REAL_KUBEPODS
from .records import Notes, Row

TREE = f"{RIG}/cgroup/kubepods"
TREE_S, PODS_S = 0.03, 0.4


def main(node: str, cluster: str, programs: str, out: str) -> None:
    """Note until killed."""
    notes = Notes(Path(out))
    control = ControlPlane(Path(cluster), Path(programs))
    threading.Thread(target=_follow_pods, args=(node, control, notes), daemon=True).start()
    last: dict[str, list[Any]] = {}
    while True:
        began = time.monotonic()
        found = look()
        changed = {path: row for path, row in found.items() if last.get(path) != row}
        gone = [path for path in last if path not in found]
        if changed or gone:
            notes.add("tree", set=changed, gone=gone, took_s=round(time.monotonic() - began, 3))
        last = found
        time.sleep(max(0.005, TREE_S - (time.monotonic() - began)))


def look() -> dict[str, list[Any]]:
    """By path below kubepods: CPUs, memory nodes, and of containers whether a process lives; None for what cannot be read."""
    found: dict[str, list[Any]] = {}
    for slice_ in ("", "/burstable", "/besteffort"):
        _add(found, slice_, None)
        for pod in _names(TREE + slice_):
            if pod.startswith("pod"):
                _add(found, f"{slice_}/{pod}", None)
                for name in _names(f"{TREE}{slice_}/{pod}"):
                    if len(name) == 64:
                        path = f"{slice_}/{pod}/{name}"
                        _add(found, path, _is_alive(path))
    return found


def _add(found: dict[str, list[Any]], path: str, is_alive: bool | None) -> None:
    cpus = _text(f"{TREE}{path}/cpuset.cpus")
    if cpus is not None:
        found[path] = [cpus, _text(f"{TREE}{path}/cpuset.mems"), is_alive]


def _is_alive(path: str) -> bool:
    """Whether a process of the container runs: runc's own, which waits for the start, does not count."""
    pids = (_text(f"{REAL_KUBEPODS}{path}/cgroup.procs") or "").split()
    return any(not (_text(f"/proc/{pid}/comm") or "runc:").startswith("runc:") for pid in pids)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def _follow_pods(node: str, control: ControlPlane, notes: Notes) -> None:
    seen: dict[str, Row] = {}
    while True:
        try:
            status, answer = control.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={node}")
        except (OSError, http.client.HTTPException):
            status = 0
        if status == 200:
            found = {pod["metadata"]["uid"]: pod_row(pod) for pod in answer["items"]}
            for uid, row in found.items():
                if seen.get(uid) != row:
                    notes.add("pods", **row)
            for uid in set(seen) - set(found):
                notes.add("pods", uid=uid, gone=True)
            seen = found
        time.sleep(PODS_S)


def pod_row(pod: Row) -> Row:
    """What the judge needs of a pod; `uid` is the one in cgroups, which of a static pod is another than its object's."""
    meta, status = pod["metadata"], pod.get("status", {})
    annotations = meta.get("annotations") or {}
    containers = [
        {"name": one["name"], "id": (one.get("containerID") or "").rpartition("/")[2], "state": one.get("state") or {},
         "restarts": one.get("restartCount")}
        for kind in ("initContainerStatuses", "containerStatuses") for one in status.get(kind) or ()
    ]  # fmt: skip
    return {
        "uid": meta["uid"], "cgroup": annotations.get("kubernetes.io/config.hash") or meta["uid"], "name": meta["name"],
        "owner": next((one["uid"] for one in meta.get("ownerReferences") or ()), ""), "spec": pod["spec"], "deleting": bool(meta.get("deletionTimestamp")), "phase": status.get("phase"),
        "reason": status.get("reason"), "message": status.get("message"), "containers": containers,
    }  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
