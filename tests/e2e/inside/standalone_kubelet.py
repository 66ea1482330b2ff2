"""A real kubelet under systemd, without an API server: it runs the static pods of a directory, with its static managers."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from .pod_processes import processes
from .waiting import wait_for

UNIT = "kubelet.service"
CONFIG = Path("/var/lib/kubelet/config.yaml")
PATIENCE_S = 600.0
"""An emulated kubelet takes most of a minute to its first pod."""

_PROGRAM = Path("/usr/bin/kubelet")
_DISK = Path("/dev/vda")
_PODS = Path("/etc/kubernetes/manifests")
_UNITS = Path("/etc/systemd/system")
_UNIT = f"""[Service]
ExecStart={_PROGRAM} --config={CONFIG} --hostname-override=guest --v=2
Environment=GOMAXPROCS=2 HOME=/root PATH=/usr/sbin:/usr/bin
Restart=always
RestartSec=10
StandardOutput=append:/out/kubelet.log
StandardError=append:/out/kubelet.log
[Install]
WantedBy=multi-user.target
"""
_SETTINGS: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cgroupDriver": "systemd",
    "failSwapOn": False,
    "resolvConf": "",
    "makeIPTablesUtilChains": False,
    "localStorageCapacityIsolation": False,
    "staticPodPath": str(_PODS),
    "runtimeRequestTimeout": "10m",
    "cpuManagerPolicy": "static",
    "cpuManagerReconcilePeriod": "5s",
    "topologyManagerPolicy": "best-effort",
    "memoryManagerPolicy": "Static",
    "reservedSystemCPUs": "0",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    "kubeReserved": {"memory": "90Mi"},
    "evictionHard": {"memory.available": "10Mi"},
    "enforceNodeAllocatable": ["pods"],
}
PODS = {"db": ("2", "16Mi"), "cache": ("3", "16Mi"), "web": (None, None)}
"""CPUs and memory of each pod; requests are limits."""
UIDS = frozenset(str(uuid5(NAMESPACE_DNS, name)) for name in PODS)


class StandaloneKubelet:
    """The kubelet of this guest.

    Args:
        size: of the program, which is the guest's second disk as it is.
    """

    def __init__(self, size: int) -> None:
        _call("modprobe", "-a", "virtio_blk")
        wait_for(_DISK.exists, 30, "the disk with the kubelet is there")
        with _DISK.open("rb") as disk, _PROGRAM.open("wb") as program:
            shutil.copyfileobj(disk, program)
            program.truncate(size)
        _PROGRAM.chmod(0o755)
        os.sync()
        for folder in (CONFIG.parent, _PODS):
            folder.mkdir(parents=True, exist_ok=True)
        CONFIG.write_text("# the node of this test\n" + _block_yaml(_SETTINGS))
        (_UNITS / UNIT).write_text(_UNIT)
        for name, (cpu, memory) in PODS.items():
            (_PODS / f"{name}.json").write_text(json.dumps(_pod(name, cpu, memory)))
        _call("systemctl", "daemon-reload")

    def start(self) -> None:
        """Start it, and wait until each pod runs on the CPUs that it is meant for."""
        _call("systemctl", "enable", "--now", UNIT)
        wait_for(lambda: len(self.pinned()) == len(PODS), PATIENCE_S, "the kubelet has started its pods")
        # The kubelet gives shared containers the rest of the CPUs later, in its reconcile loop.
        wait_for(self.is_settled, PATIENCE_S, "the kubelet has given its pods their CPUs")

    def run_pod(self, name: str, spec: dict[str, Any]) -> None:
        """Start another static pod."""
        (_PODS / f"{name}.json").write_text(json.dumps(_of_spec(name, spec)))

    def end_pod(self, name: str) -> None:
        """End such a pod, and wait until none of its processes is left."""
        (_PODS / f"{name}.json").unlink()
        uid = str(uuid5(NAMESPACE_DNS, name))
        wait_for(lambda: all(row["pod"] != uid for row in processes()), PATIENCE_S, f"{name} has ended")

    def pinned(self) -> dict[str, tuple[str, str]]:
        """CPUs and memory nodes of each pod's process, by the kernel."""
        named = ((_pod_of(row), row) for row in processes())
        return {pod: (str(row["cpus"]), str(row["mems"])) for pod, row in named if pod in PODS}

    def is_settled(self) -> bool:
        """Whether no container may run on CPUs of db or cache."""
        found = {name: _numbers(cpus) for name, (cpus, _) in self.pinned().items()}
        return (
            len(found) == len(PODS)
            and {name: len(found[name]) for name in ("db", "cache")} == {"db": 2, "cache": 3}
            and not found["web"] & (found["db"] | found["cache"])
            and not found["db"] & found["cache"]
        )

    def settings(self) -> dict[str, str]:
        """The lines of its configuration that are plain values."""
        lines = (line.partition(": ") for line in CONFIG.read_text().splitlines() if ": " in line)
        return {name: value.strip("'\"") for name, _, value in lines}

    def state_policy(self) -> str:
        """The policy of its CPU Manager's file."""
        return str(json.loads((CONFIG.parent / "cpu_manager_state").read_text())["policyName"])


def unit_is(unit: str) -> str:
    """Its state, by systemd."""
    return _call("systemctl", "show", "--value", "-p", "ActiveState", unit).strip()


def _pod(name: str, cpu: str | None, memory: str | None) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    container: dict[str, Any] = {
        "name": "main",
        "image": "localhost/test:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sleep", "100000"],
        "env": [{"name": "POD", "value": name}],
    }
    if cpu:
        container["resources"] = {"requests": amounts, "limits": amounts}
    return _of_spec(name, {"containers": [container]})


def _of_spec(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": str(uuid5(NAMESPACE_DNS, name))},
        "spec": {"hostNetwork": True, "terminationGracePeriodSeconds": 1, **spec},
    }


def _pod_of(row: dict[str, object]) -> str:
    """Its name; empty for a process that has ended meanwhile, or that the runtime has not made the container's yet."""
    try:
        variables = Path(f"/proc/{row['pid']}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((one.decode()[4:] for one in variables if one.startswith(b"POD=")), "")


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _block_yaml(settings: dict[str, Any]) -> str:
    """Block style on the first level, as people write it; JSON is YAML below."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())


def _call(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with status {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout
