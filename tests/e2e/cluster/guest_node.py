"""A real node: a guest of the lab that runs containerd and the kubelet, and joins the API server of this machine.

What a node needs lies on a second disk: kubelet, CNI plugins, containerd's store with the images, configuration. Pods have addresses of their own by
the plugin `ptp`; the service address of the API server is forwarded by a small program instead of kube-proxy. What is
judged comes over the guest's command channel: cgroup files and /proc.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nri_plugin.model import bits
from tests.e2e.lab.accelerator import accelerator
from tests.e2e.lab.apt import PackageLists, mirror_of_this_machine
from tests.e2e.lab.direct import run_in_root
from tests.e2e.lab.guest import Guest, boot
from tests.e2e.lab.guest_recipe import GuestRecipe
from tests.e2e.lab.lab_files import machine_named
from tests.e2e.lab.prepare import inside
from tests.e2e.lab.progress import say, step
from tests.e2e.lab.ready import CHECKOUT, KERNEL_FROM, Lab
from tests.e2e.lab.root import unpack
from tests.e2e.lab.setting_up import check_machine, default_work, prepare, take_lock
from tests.e2e.lab.shell import LabError, run

from .components import programs
from .control_plane import ControlPlane, Object, free_ports
from .image import BASE_SUITE, BuiltImage, build_image, commit_before

NODE = "localhost"
"""The API server reaches a kubelet by the Hostname of its Node first; QEMU forwards the kubelet's port from this machine."""

PREVIOUS = "previous"
"""Tag of the image of the product before its last change."""

MACHINE = "four-nodes"
ROOT = "sid"
HOST = "10.0.2.2"
"""This machine, as a guest of QEMU's user network sees it."""

_ADDRESS = "10.0.2.15"
_SERVICE = "10.96.0.1"
_PATIENCE_S = 600.0
_CNI = ("ptp", "host-local", "loopback")
_PLACE = "/opt/node"
_SPARE_MIB = 600
"""For what pods write, and what file systems need for themselves."""

_CONTAINERD = """version = 3
root = "/opt/node/store"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
disable_hugetlb_controller = false
enable_cdi = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/opt/node/cni"]
conf_dir = "/opt/node/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "runc"
SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
disable = false
plugin_registration_timeout = "120s"
plugin_request_timeout = "60s"
"""

_START = f"""set -e
mkdir -p /out {_PLACE} /var/run/nri
mountpoint -q {_PLACE} || {{ modprobe -a virtio_blk virtio_net veth; udevadm settle 2>/dev/null || true
    for try in $(seq 100); do [ -b /dev/vda ] && break; sleep 0.1; done
    mount -t ext4 /dev/vda {_PLACE}; }}
mount --make-rshared /
card=$(basename "$(ls -d /sys/class/net/e* | head -n 1)")
ip addr replace {_ADDRESS}/24 dev "$card"
ip link set "$card" up
ip route replace default via {HOST}
ip addr replace {_SERVICE}/32 dev lo
echo 1 >/proc/sys/net/ipv4/ip_forward
cat {_PLACE}/name >/proc/sys/kernel/hostname
echo "127.0.0.1 localhost" >/etc/hosts
"""


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a guest is made of.

    Attributes:
        lab: with the root and the kernel.
        programs: the folder with the kubelet.
        images: to be imported.
    """

    lab: Lab
    programs: Path
    images: Sequence[BuiltImage]


class GuestNode:
    """A node of the cluster. Leaving the context ends it and takes the Node out of the cluster.

    Args:
        cluster: it is up.
        parts: what the guest is made of.
        name: of the Node.
        folder: for its disk and logs.
        settings: further ones of the kubelet's configuration, for its first start.
    """

    def __init__(
        self,
        cluster: ControlPlane,
        parts: NodeParts,
        name: str,
        folder: Path,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.cluster, self.name, self.folder = cluster, name, folder
        self.parts = parts
        self._settings: Mapping[str, Any] = settings or {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with step(f"making the disk of {name}"):
            disk = self._make_disk()
        machine = machine_named(MACHINE)
        (self._port,) = free_ports(1)
        devices = (
            "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self._port}-:{self._port}", "-device", "virtio-net-pci,netdev=net,bus=pcie.0",
            "-drive", f"if=none,id=node,format=raw,file={disk},snapshot=on,cache=unsafe",
            "-device", "virtio-blk-pci,drive=node,bus=pcie.0",
        )  # fmt: skip
        recipe = GuestRecipe(
            *parts.lab.disks[ROOT, KERNEL_FROM],
            replace(machine, arguments=(*machine.arguments, *devices)),
            accelerator=accelerator(parts.lab, ROOT),
        )
        self.guest: Guest = boot(recipe, folder / "console.log")
        say(f"  {name}: booted in {self.guest.seconds_to_boot} s")

    def __enter__(self) -> "GuestNode":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the guest; its logs are kept in the folder."""
        try:
            self.guest.get_directory("/out", self.folder / "out")
        except (LabError, OSError) as error:
            say(f"  the logs of {self.name} did not come out: {str(error)[:200]}")
        self.guest.close()
        self.cluster.ask("DELETE", f"/api/v1/nodes/{self.name}")

    # The life of the node

    def start(self) -> None:
        """containerd and kubelet; returns when the Node is ready."""
        self.run(_START)
        self.start_containerd()
        self.background(
            "forwarder", f"python3 -S {_PLACE}/api_forwarder.py {_SERVICE} 443 {HOST} {self.cluster.port}"
        )
        self.start_kubelet(**self._settings)
        self.until_ready()

    def until_ready(self) -> None:
        """Wait until the API server has the Node as ready."""
        with step(f"{self.name}: waiting for the Node"):
            self.cluster.until(self.is_ready, f"{self.name} is ready", patience_s=_PATIENCE_S)

    def is_ready(self) -> bool:
        """Whether the kubelet says so."""
        node = self.cluster.found(f"/api/v1/nodes/{self.name}") or {}
        conditions = node.get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def start_containerd(self) -> None:
        """Start containerd and wait for its sockets."""
        self.run("rm -f /run/containerd/containerd.sock /var/run/nri/nri.sock")
        self.background("containerd", f"env GOMAXPROCS=2 containerd -c {_PLACE}/containerd.toml")
        self.run(_until("[ -S /run/containerd/containerd.sock ] && [ -S /var/run/nri/nri.sock ]"))

    def start_kubelet(self, **settings: Any) -> None:
        """Start the kubelet; further settings are those of its configuration."""
        text = json.dumps({**self._kubelet_configuration(), **settings})
        self.run(f"mkdir -p /var/lib/kubelet && cat >/var/lib/kubelet/config.yaml <<'END'\n{text}\nEND")
        words = f"--config=/var/lib/kubelet/config.yaml --kubeconfig={_PLACE}/kubelet.kubeconfig"
        words += f" --hostname-override={self.name} --node-ip={_ADDRESS} --v=2"
        self.background("kubelet", f"env GOMAXPROCS=2 {_PLACE}/kubelet {words}")

    def background(self, name: str, command: str) -> None:
        """Start a program that stays; its output goes to `/out/NAME.log`."""
        self.run(f"cd /; setsid {command} >>/out/{name}.log 2>&1 </dev/null & echo $! >/run/{name}.pid")

    def kill(self, name: str, signal: str = "KILL") -> None:
        """End a program that `background` started, and wait until it is gone."""
        self.run(f"kill -{signal} $(cat /run/{name}.pid)")
        self.run(_until(f"! kill -0 $(cat /run/{name}.pid) 2>/dev/null"))

    def kill_process(self, words: str) -> None:
        """Kill the process whose command line holds these words."""
        self.run(f"kill -KILL $(pgrep -f '[{words[0]}]{words[1:]}')")

    @property
    def payload(self) -> Path:
        """The checkout as the lab packs it for its guests."""
        return self.parts.lab.roots[ROOT].payload

    def put(self, file: Path, target: str) -> None:
        """Copy a file into the guest."""
        self.guest.put(file, target)

    # Questions

    def run(self, text: str) -> list[str]:
        """Run a shell text in the guest; the lines it printed."""
        return self.guest.must_run(text, text.splitlines()[0][:60])

    def processes(self) -> list[dict[str, Any]]:
        """All processes of all pods with their CPUs, from the guest's /proc and cgroup files."""
        return json.loads(self.run(f"python3 -S {_PLACE}/pod_processes.py")[-1])

    @property
    def images(self) -> Sequence[BuiltImage]:
        """What its containerd has beside the lab's images."""
        return self.parts.images

    def numa_nodes(self) -> list[str]:
        """The CPUs of each NUMA node."""
        return self.run("cat /sys/devices/system/node/node[0-9]*/cpulist")

    def all_cpus(self) -> int:
        """The mask of all CPUs."""
        return bits.parse_list(self.run("cat /sys/devices/system/cpu/online")[0])

    def log(self, name: str, lines: int = 40) -> str:
        """The end of a program's log."""
        return "\n".join(self.run(f"tail -n {lines} /out/{name}.log"))

    def _make_disk(self) -> Path:
        stage, disk = self.folder / "disk", self.folder / "node.img"
        (stage / "net.d").mkdir(parents=True)
        shutil.copytree(cni_plugins(self.parts.lab.work), stage / "cni")
        shutil.copy(self.parts.programs / "kubelet", stage / "kubelet")
        shutil.copytree(store_with(self.parts.lab, self.parts.images), stage / "store", symlinks=True)
        programs = CHECKOUT / "tests" / "e2e" / "inside"
        for name in ("api_forwarder.py", "device_plugin.py", "pod_processes.py"):
            shutil.copy(programs / name, stage / name)
        for name, text in self._texts().items():
            (stage / name).write_text(text)
        size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file())
        run(
            [
                "mke2fs",
                "-q",
                "-t",
                "ext4",
                "-O",
                "^has_journal",
                "-m0",
                "-d",
                stage,
                disk,
                f"{(size >> 20) * 5 // 4 + _SPARE_MIB}M",
            ]
        )
        shutil.rmtree(stage)
        return disk

    def _texts(self) -> Mapping[str, str]:
        user = {"user": f"system:node:{self.name}", "group": "system:nodes"}
        server = f"https://{HOST}:{self.cluster.port}"
        kubeconfig = self.cluster.authority.kubeconfig(f"kubelet-{self.name}", server, **user)
        net = {
            "cniVersion": "1.0.0", "name": "pods",
            "plugins": [{"type": "ptp", "ipMasq": False, "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}],
        }  # fmt: skip
        return {
            "name": self.name,
            "containerd.toml": _CONTAINERD,
            "kubelet.kubeconfig": kubeconfig.read_text(),
            "ca.crt": self.cluster.authority.ca.read_text(),
            "net.d/pods.conflist": json.dumps(net),
        }

    def _kubelet_configuration(self) -> Object:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": f"{_PLACE}/ca.crt"}},
            "authorization": {"mode": "Webhook"}, "port": self._port,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs", "failSwapOn": False, "resolvConf": "", "clusterDNS": ["10.96.0.10"], "makeIPTablesUtilChains": False,
            "localStorageCapacityIsolation": False, "evictionHard": {"memory.available": "10Mi"},
            "kubeReserved": {"cpu": "2"}, "enforceNodeAllocatable": ["pods"],
            # emulated CPUs are slow: whoever waits for this node has to wait longer
            "nodeLeaseDurationSeconds": 3600, "runtimeRequestTimeout": "10m",
        }  # fmt: skip


class Guests:
    """The guest of a run: booted when a scenario first asks for it, and ended with the run.

    Args:
        cluster: it is up.
        work: for what is kept from run to run.
    """

    def __init__(self, cluster: ControlPlane, work: Path) -> None:
        self._cluster, self._work = cluster, work
        self._node: GuestNode | None = None
        self._lock: io.TextIOWrapper | None = None

    def node(self) -> GuestNode:
        """The node, which is ready."""
        if self._node is None:
            self._node = GuestNode(self._cluster, self._parts(), NODE, self._work / "nodes" / NODE)
            self._node.__enter__()
        return self._node

    def reboot(self, **settings: Any) -> GuestNode:
        """The same node after its power was cut: nothing that ran is left, and nothing that was written.

        Args:
            settings: further ones of the kubelet's configuration.
        """
        assert self._node is not None
        self._node.guest.close()
        self._node = GuestNode(self._cluster, self._node.parts, NODE, self._work / "nodes" / NODE, settings)
        self._node.__enter__()
        return self._node

    def close(self) -> None:
        """End it, if there is one."""
        if self._node is not None:
            self._node.close()
            self._node = None
        if self._lock is not None:
            self._lock.close()

    def _parts(self) -> NodeParts:
        mirror = check_machine()
        programs(self._cluster.version, ("kubelet",), self._work)
        images = self._work / "images"
        built = [
            build_image("nri-pin", "agent", images),
            build_image("nri-pin-cluster", "cluster", images),
            build_image("nri-pin", "agent", images, tag=PREVIOUS, commit=commit_before()),
        ]
        lab_work = default_work()
        lab_work.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock or take_lock(lab_work / "lock")  # its disks are ours until the run ends
        lab = prepare([ROOT], [ROOT], mirror, lab_work)
        return NodeParts(lab, self._cluster.programs, built)


def store_with(lab: Lab, images: Sequence[BuiltImage]) -> Path:
    """containerd's store with these images beside the lab's own, filled on this machine: a guest would take minutes."""
    key = hashlib.sha256(
        " ".join([lab.roots[ROOT].key, *(one.archive.name for one in images)]).encode()
    ).hexdigest()[:10]
    folder = lab.work / f"node-store-{key}"
    if not folder.exists():
        for old in lab.work.glob("node-store-*"):
            shutil.rmtree(old)
        out = lab.work / "bake-node"
        shutil.rmtree(out, ignore_errors=True)
        (out / "images").mkdir(parents=True)
        for image in images:
            shutil.copy(image.archive, out / "images")
        said: list[str] = []
        with step("loading the images into containerd"):
            root = lab.roots[ROOT]
            if run_in_root(root.root, root.payload, out, inside("bake", "/out/images"), said.append):
                raise LabError(f"containerd did not take the images: {said[-5:]}")
        (out / "store").replace(folder)
        shutil.rmtree(out)
    return folder


def cni_plugins(work: Path) -> Path:
    """A directory with Debian's CNI plugins that the node needs."""
    folder = work / "cni"
    if not folder.exists():
        with step("fetching CNI plugins, once"):
            archives, root = work / "debs-cni", work / "root-cni"
            for path in (archives, root):
                shutil.rmtree(path, ignore_errors=True)
            PackageLists(mirror_of_this_machine(), BASE_SUITE, work / "apt-cni").fetch(
                ["containernetworking-plugins"], archives
            )
            for package in archives.glob("*.deb"):
                if not package.name.startswith("containernetworking"):
                    package.unlink()
            unpack(archives, root)
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            for name in _CNI:
                shutil.copy(root / "usr/lib/cni" / name, new / name)
            new.replace(folder)
            for path in (archives, root):
                shutil.rmtree(path)
    return folder


def _until(test: str) -> str:
    return f"for try in $(seq 1200); do {{ {test}; }} && exit 0; sleep 0.1; done; exit 1"
