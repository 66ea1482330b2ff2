"""The parts of a node: containerd, the rig's kernel, agent, exporter, proxy, kubelet; started, ended, stopped for a while, rebooted.

Runs in the node's namespaces. Every start and end is noted, so that the judge knows what was away.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.cluster.control_plane import ControlPlane, free_ports
from tests.e2e.lab.shell import LabError, run
from tests.e2e.node_rig.cgroups import ROOT, is_v2
from tests.e2e.node_rig.inside import BOOT_ID, CONTAINERD_CONFIG, DISK, RIG, furnish
from tests.e2e.node_rig.programs import FAKETIME

from .records import Notes

STATE = Path("/run/nri-pin")
STATE_SIZE = "16m"
KUBELET_ROOT = DISK / "kubelet"
STATIC_PODS = DISK / "static"
CLOCK = RIG / "clock"
"""What libfaketime adds to the wall clock of agent and exporter; CLOCK_MONOTONIC stays true."""

REAL_KUBEPODS = (ROOT if is_v2() else ROOT / "cpu") / "kubepods"
_PATIENCE_S = 90.0
_END_S = 20.0


class Parts:
    """Args:
    name: of the node.
    number: of the node, from 0: its address is 10.77.0.(number + 1).
    cluster: the control plane.
    notes: where all is noted; its folder gets the logs.
    checkouts: of nri-pin; the first runs, and an upgrade changes to the second.
    is_clocked: the wall clock of agent and exporter can be set.
    """

    def __init__(
        self,
        name: str,
        number: int,
        cluster: ControlPlane,
        notes: Notes,
        *,
        checkouts: list[Path],
        is_clocked: bool,
    ) -> None:
        self.name, self.cluster, self.notes = name, cluster, notes
        self.address = f"10.77.0.{number + 1}"
        self.checkouts = checkouts
        self.is_clocked = is_clocked
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._locks: dict[str, threading.RLock] = {}
        self.config: dict[str, Any] = {}
        self._proxy_port = free_ports(1)[0]
        self.kubeconfig = cluster.authority.kubeconfig(
            f"kubelet-{name}", cluster.server, user=f"system:node:{name}", group="system:nodes"
        )
        self.say_to_proxy({})

    def lock(self, name: str) -> threading.RLock:
        """Held by who ends or stops a part: two faults of one part come one after the other."""
        return self._locks.setdefault(name, threading.RLock())

    # Starting

    def boot(self) -> None:
        """Start containerd and what belongs to the machine; the state directory is small, as it can be full."""
        STATE.mkdir(mode=0o700)
        run(["mount", "-t", "tmpfs", "-o", f"size={STATE_SIZE},mode=700", "state", STATE])
        CLOCK.write_text("+0")
        self._start("kernel", ["rig", "kernel"])
        self.until((RIG / "cgroup/kubepods/besteffort/cgroup.events").exists, "the tree is there")
        self.start_containerd()

    def start_containerd(self) -> None:
        self._start("containerd", ["containerd", "-c", CONTAINERD_CONFIG])

    def load_images(self, folder: Path) -> None:
        self.until(
            lambda: subprocess.run(["ctr", "version"], check=False, capture_output=True).returncode == 0,
            "containerd serves",
        )
        for image in folder.glob("*.tar"):
            subprocess.run(
                ["ctr", "-n", "k8s.io", "images", "import", "--local", image], check=True, capture_output=True
            )

    def start_kubelet(self) -> None:
        STATIC_PODS.mkdir(exist_ok=True)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": self.address, "healthzPort": 0, "cgroupDriver": "cgroupfs", "failCgroupV1": False, "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": str(self.cluster.authority.ca)}},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "reservedSystemCPUs": self.config["reservedSystemCPUs"],
            "cpuManagerPolicy": "none", "topologyManagerPolicy": "none", "memoryManagerPolicy": "None",
            "staticPodPath": str(STATIC_PODS), "fileCheckFrequency": "1s", "syncFrequency": "20s", "resolvConf": "/dev/null",
            "crashLoopBackOff": {"maxContainerRestartPeriod": "4s"}, "evictionHard": {"memory.available": "250Mi"},
            "kubeAPIQPS": 100, "kubeAPIBurst": 200, "serializeImagePulls": False, "maxPods": 400, "podCIDR": "10.100.0.0/24",
        }  # fmt: skip
        file = RIG / "kubelet.json"
        file.write_text(json.dumps(config))
        self._start(
            "kubelet",
            ["kubelet", f"--config={file}", f"--kubeconfig={self.kubeconfig}", f"--hostname-override={self.name}",
             f"--node-ip={self.address}", f"--root-dir={KUBELET_ROOT}", "--v=2"],
        )  # fmt: skip

    def start_agent(self) -> None:
        """Start the agent, and wait for a while until it is registered with the runtime."""
        file = RIG / "agent.yaml"
        file.write_text(yaml.safe_dump(self.config))
        words = [
            "run",
            "--config",
            file,
            "--cgroup-root",
            RIG / "cgroup",
            "--state-dir",
            STATE,
            "--log-level",
            "info",
        ]
        began = time.monotonic()
        process = self._start("agent", self._nri_pin(words), is_ours=True)
        while not self.is_ready() and process.poll() is None and time.monotonic() < began + _PATIENCE_S:
            time.sleep(0.03)
        self.notes.add(
            "faults",
            part="agent",
            what="up",
            ready=self.is_ready(),
            after_s=round(time.monotonic() - began, 2),
        )

    def start_exporter(self) -> None:
        token = self.notes.folder / "exporter.token"
        self.until(lambda: self.cluster.found(f"/api/v1/nodes/{self.name}"), "the Node is there")
        words = ["create", "token", "nri-pin-export", "-n", "nri-pin", "--duration=8h"]
        if not token.exists():
            token.write_text(
                self.cluster.kubectl(
                    *words, "--bound-object-kind=Node", f"--bound-object-name={self.name}"
                ).strip()
            )
        server = f"http://127.0.0.1:{self._proxy_port}"
        config = self.cluster.authority.token_kubeconfig(f"exporter-{self.name}", server, token)
        words = ["export", "--kubeconfig", config, "--node-name", self.name, "--state-dir", STATE, "--on-refusal", "fail-pod",
                 "--kubelet-socket", KUBELET_ROOT / "pod-resources/kubelet.sock"]  # fmt: skip
        self._start("exporter", self._nri_pin(words), is_ours=True)

    def start_proxy(self) -> None:
        words = [self._proxy_port, self.cluster.port, self.cluster.authority.ca, self._proxy_orders]
        self._start("proxy", [sys.executable, "-P", "-m", "tests.e2e.churn.proxy", *words])

    @property
    def _proxy_orders(self) -> Path:
        return self.notes.folder / "proxy.json"

    def say_to_proxy(self, orders: dict[str, Any]) -> None:
        """How the exporter's API server behaves from now on."""
        half = self._proxy_orders.with_suffix(".new")
        half.write_text(json.dumps(orders))
        half.replace(self._proxy_orders)

    def start_all(self) -> None:
        """Start the parts that make pods, in any order that a boot may have."""
        for part in ("agent", "kubelet", "exporter"):
            getattr(self, f"start_{part}")()

    def use_config(self, config: dict[str, Any]) -> None:
        self.config = {
            **config,
            "metricsBindAddress": f"{self.address}:9600",
            "healthProbeBindAddress": f"{self.address}:9601",
        }

    def _nri_pin(self, words: list[Any]) -> list[Any]:
        return [sys.executable, "-P", "-m", "nri_plugin", *words]

    def _start(self, name: str, words: list[Any], *, is_ours: bool = False) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if is_ours:
            environment["PYTHONPATH"] = str(self.checkouts[0])
        if is_ours and self.is_clocked:
            environment |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(CLOCK), "FAKETIME_NO_CACHE": "1",
                            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}  # fmt: skip
        with (self.notes.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                cwd="/" if is_ours else None, start_new_session=True,
            )  # fmt: skip
        self.running[name] = process
        self.notes.add("faults", part=name, what="started", pid=process.pid)
        return process

    # Ending

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a part and wait for it."""
        process = self.running[name]
        had = process.poll()
        self.notes.add("faults", part=name, what="ends", signal=number.name, had=had)
        process.send_signal(number)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.notes.add("faults", part=name, what="did not end", signal=number.name)
        self.notes.add(
            "faults", part=name, what="ended", signal=number.name, status=process.returncode, had=had
        )

    def pause(self, name: str, seconds: float, pid: int | None = None) -> None:
        """Let a part stand still."""
        pid = pid or self.running[name].pid
        self.notes.add("faults", part=name, what="stopped", for_s=seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        self.notes.add("faults", part=name, what="continued")

    def pause_api_server(self, seconds: float) -> None:
        """Let the API server of all nodes stand still."""
        pid = json.loads((self.cluster.folder / "processes.json").read_text())["kube-apiserver"][0]
        self.pause("api", seconds, pid)

    def fill_state_directory(self, seconds: float) -> None:
        """Let the file system of the state directory be full."""
        filler = STATE / "filler"
        self.notes.add("faults", part="disk", what="stopped", for_s=seconds)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(seconds)
        filler.unlink(missing_ok=True)
        self.notes.add("faults", part="disk", what="continued")

    def set_clock(self, offset_s: float) -> None:
        """Set the wall clock of agent and exporter, as an operator or NTP does."""
        half = CLOCK.with_suffix(".new")
        half.write_text(f"{offset_s:+.0f}")
        half.replace(CLOCK)
        self.notes.add("faults", part="clock", what="set", offset_s=offset_s)

    def reboot(self, away_s: float) -> None:
        """End everything at once, with all containers, and empty /run; the disk and the API server stay."""
        self.notes.add("faults", part="node", what="ends")
        for part in ("agent", "exporter", "kubelet", "containerd", "kernel"):
            self.end(part)
        deadline = time.monotonic() + _PATIENCE_S
        while (pids := _pids_of_node()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        _remove_real_cgroups()
        run(["umount", "-l", STATE])
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if line.split()[1].startswith("/run/containerd"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True)
        programs = Path(shutil.which("rig") or "").parent
        oci = (RIG / "oci.jsonl").read_text()
        for entry in Path("/run").iterdir():
            if entry != DISK:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
        furnish(programs)
        (RIG / "oci.jsonl").write_text(oci)
        boot_id = DISK / "boot_id"
        is_first = not boot_id.exists()
        boot_id.write_text(f"{uuid.uuid4()}\n")
        if is_first:
            run(["mount", "--bind", boot_id, BOOT_ID])
        time.sleep(away_s)
        self.boot()
        self.start_all()
        self.notes.add("faults", part="node", what="up")

    # Questions

    def is_ready(self) -> bool:
        """Whether the agent says so."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:9601/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def until(self, fact: Callable[[], Any], what: str, patience_s: float = _PATIENCE_S) -> Any:
        """Wait for a fact.

        Raises:
            LabError: it did not come true.
        """
        deadline = time.monotonic() + patience_s
        while not (found := fact()):
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: waited {patience_s:g} s in vain until {what}")
            time.sleep(0.1)
        return found

    def machine(self) -> dict[str, Any]:
        """The described machine as the judge needs it: online CPUs, CPUs by NUMA node, cores, reserved CPUs, all as lists."""
        system = Path("/sys/devices/system")
        nodes = sorted(system.glob("node/node[0-9]*"), key=lambda path: int(path.name[4:]))
        cores = {
            file.read_text().strip() for file in system.glob("cpu/cpu[0-9]*/topology/thread_siblings_list")
        }
        return {
            "online": (system / "cpu/online").read_text().strip(),
            "nodes": [(node / "cpulist").read_text().strip() for node in nodes],
            "cores": sorted(cores),
            "reserved": (system / "cpu/cpu0/topology/thread_siblings_list").read_text().strip(),
        }


def _pids_of_node() -> set[int]:
    """Processes in pods' cgroups, and the shims that hold them."""
    found = set()
    for file in REAL_KUBEPODS.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            found |= {int(word) for word in file.read_text().split() if word != "0"}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"containerd-shim-runc-v2" in (folder / "cmdline").read_bytes().split(b"\0")[0] and (
                (folder / "ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
            ):
                found.add(int(folder.name))
    return found


def _remove_real_cgroups() -> None:
    tops = [ROOT] if is_v2() else [path for path in ROOT.iterdir() if not path.is_symlink()]
    for top in tops:
        for path in sorted((top / "kubepods").rglob("*"), key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):
                path.rmdir()
