"""The agent as the DaemonSet runs it: its mounts, its read-only root, root without a capability, its configuration.

The container is made here from deploy/daemonset.yaml with a mount namespace; only the image is missing.
"""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_plugin.wire.nri import events as nri
from tests.agent_process import REPOSITORY, Peer, Process, machine_root
from tests.builders import container, pod

pytestmark = pytest.mark.root

OBJECTS = {
    item["kind"]: item for item in yaml.safe_load_all((REPOSITORY / "deploy/daemonset.yaml").read_text())
}
AGENT: dict[str, Any] = OBJECTS["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]

# The machine's own folders stand for the image; what the pod mounts is put over them.
CONTAINER = """
set -eu
root=$1; shift
mount -t tmpfs tmpfs "$root"
for entry in /* /var/*; do
    case $entry in /host | /etc | /run | /var | /var/run) continue ;; esac
    if [ -L "$entry" ]; then cp -P "$entry" "$root$entry"; continue; fi
    [ -d "$entry" ] || continue
    mkdir -p "$root$entry"
    mount --rbind "$entry" "$root$entry"
done
mkdir -p "$root/run" "$root/var"
ln -s ../run "$root/var/run"
while [ "$1" != -- ]; do
    mkdir -p "$(readlink -m "$root$2")" 2>/dev/null || true
    mount --bind "$1" "$root$2"
    [ "$3" = rw ] || mount -o "remount,bind,ro" "$root$2"
    shift 3
done
shift
mount -o remount,ro "$root"
cd "$root"
exec chroot "$root" setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, Path]:
    """A folder for each volume of the pod."""
    machine_root(tmp_path)
    (tmp_path / "host/sys/fs/cgroup").mkdir(parents=True)
    folders = {"sys": tmp_path / "host/sys", "cgroup": tmp_path / "cgroup"}
    for name in ("nri", "state", "config", "root", "cdi-static", "cdi-dynamic"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
    (folders["config"] / "config.yaml").write_text(OBJECTS["ConfigMap"]["data"]["config.yaml"])
    return folders


@pytest.fixture
def agent(stand_ins: dict[str, Path]) -> Iterator[tuple[Process, Peer]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stand_ins["nri"] / "nri.sock"))
        listener.listen()
        listener.settimeout(30)
        words = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            CONTAINER,
            "sh",
            str(stand_ins["root"]),
            *mounts(stand_ins),
            "--",
        ]
        words += [sys.executable, "-P", "-m", "nri_plugin", *AGENT["args"]]
        process = Process(
            ["-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *words],
            {"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        )
        try:
            with listener.accept()[0] as connection:
                yield process, Peer(connection)
        finally:
            process.end()


def mounts(stand_ins: dict[str, Path]) -> Iterator[str]:
    """Source, place and mode of each mount, outer ones first, as a runtime orders them."""
    for mount in sorted(AGENT["volumeMounts"], key=lambda mount: mount["mountPath"].count("/")):
        place = mount["mountPath"].replace("/var/run/", "/run/")
        yield from (str(stand_ins[mount["name"]]), place, "ro" if mount.get("readOnly") else "rw")


def status_of(process: Process) -> dict[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_it_registers_and_places_with_nothing_but_what_the_file_gives_it(agent, stand_ins) -> None:
    process, peer = agent
    peer.synchronize()
    asked = pod("exclusive", cpu=2)
    answer = peer.ask(nri.CreateContainer(asked, container(asked, cpu=2)))
    assert answer.response.resources.cpus == "2-3"
    assert "exclusive" in (stand_ins["state"] / "state.json").read_text()
    status = status_of(process)
    assert status["Uid"].split() == ["0"] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
