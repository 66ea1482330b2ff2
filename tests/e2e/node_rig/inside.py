"""The first program in a node's namespaces: lays the described machine over the real one, prepares containerd, becomes the command.

`python -m tests.e2e.node_rig.inside NAME MACHINE PROGRAMS COMMAND...`: MACHINE is a folder of `build_sysfs`. Of the real
machine's files nothing is changed: all that a node writes lies on file systems in memory, below /run and /var/log.
"""

import os
import sys
from pathlib import Path

from tests.e2e.lab.shell import run

from .cgroups import ROOT, V2_CONTROLLERS, hierarchies, is_v2

RIG = Path("/run/rig")
DISK = Path("/run/disk")
"""What outlives a reboot: images, the kubelet's folder, the static pods."""

CONTAINERD_CONFIG = RIG / "containerd.toml"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_CNI = """#!/bin/sh
# pods talk to nobody: an address is named and nothing is set up
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
ADD) echo "{\\"cniVersion\\":\\"1.0.0\\",\\"interfaces\\":[{\\"name\\":\\"eth0\\",\\"sandbox\\":\\"$CNI_NETNS\\"}],\\"ips\\":[{\\"address\\":\\"10.88.$(($$ / 250 % 250)).$(($$ % 250 + 1))/16\\",\\"interface\\":0}]}" ;;
*) echo '{"cniVersion":"1.0.0"}' ;;
esac
"""
_CONTAINERD = """version = 3
root = "{disk}/containerd"
state = "/run/containerd"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dir = "{rig}/cni"
conf_dir = "{rig}/cni.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{programs}/rig-oci"
SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
disable = false
plugin_path = "{rig}/nri/plugins"
plugin_config_path = "{rig}/nri/conf.d"
"""


def main(name: str, machine: str, programs: str, *command: str) -> None:
    """Do all of it; does not return."""
    run(["mount", "--make-rprivate", "/"])
    run(["hostname", name])
    for folder in ("/run", "/var/log"):
        run(["mount", "-t", "tmpfs", "-o", "size=4g,mode=755", "node", folder])
    DISK.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=8g,mode=755", "node", DISK])
    _mount_cgroups()
    for path in ("sys/devices/system/cpu", "sys/devices/system/node", "sys/kernel/mm/hugepages"):
        if (Path(machine) / path).is_dir() and Path("/", path).is_dir():
            run(["mount", "--bind", Path(machine) / path, f"/{path}"])
    furnish(Path(programs))
    os.environ["PATH"] = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    os.execvp(command[0], command)


def furnish(programs: Path) -> None:
    """Fill /run as a boot does."""
    for folder in (
        RIG / "cgroup",
        RIG / "cni",
        RIG / "cni.d",
        RIG / "nri/plugins",
        RIG / "nri/conf.d",
        Path("/run/lock"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
    system = Path("/sys/devices/system")
    (RIG / "online").write_text((system / "cpu/online").read_text())
    (RIG / "mems").write_text((system / "node/has_memory").read_text())
    for name in ("node", "loopback"):
        (RIG / "cni" / name).write_text(_CNI)
        (RIG / "cni" / name).chmod(0o755)
    (RIG / "cni.d/10-node.conflist").write_text(
        '{"cniVersion":"1.0.0","name":"node","plugins":[{"type":"node"}]}'
    )
    CONTAINERD_CONFIG.write_text(_CONTAINERD.format(disk=DISK, rig=RIG, programs=programs))


def _mount_cgroups() -> None:
    if is_v2():
        run(["mount", "-t", "cgroup2", "cgroup2", ROOT])
        (ROOT / "parts").mkdir()
        (ROOT / "parts/cgroup.procs").write_text(str(os.getpid()))
        (ROOT / "cgroup.subtree_control").write_text(V2_CONTROLLERS)
        return
    found = list(hierarchies())
    run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "cgroups", ROOT])
    for controllers in found:
        folder = ROOT / controllers.removeprefix("name=")
        folder.mkdir()
        run(
            [
                "mount",
                "-t",
                "cgroup",
                "-o",
                f"none,{controllers}" if "=" in controllers else controllers,
                "cgroup",
                folder,
            ]
        )
        for one in controllers.split(",") if "," in controllers else ():
            (ROOT / one).symlink_to(folder.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
