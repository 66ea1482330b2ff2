"""Layer 2: a root started on this machine itself, in namespaces of its own, with the machine's kernel and CPUs.

Everything written goes to a memory-backed overlay and vanishes with it; the processes end with the namespace; the
cgroups that the runtime left behind are removed afterwards.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .shell import DIES_WITH_US

_CGROUPS = Path("/sys/fs/cgroup")
_ENTER = """
set -e
mount --make-rprivate /
mount -t tmpfs lab "$3"
mkdir "$3/up" "$3/work" "$3/root"
mount -t overlay lab -o "lowerdir=$1,upperdir=$3/up,workdir=$3/work" "$3/root"
r=$3/root
tar -C "$r" -xzf "$2"
mount -t proc proc "$r/proc"
mount --rbind /sys "$r/sys"
mount --rbind /dev "$r/dev"
for d in run tmp var/lib/containerd; do mount -t tmpfs lab "$r/$d"; done
cp -a "$1/var/lib/containerd/." "$r/var/lib/containerd" # an overlay cannot be the upper layer of another one
mount --bind "$4" "$r/out"
shift 4
exec chroot "$r" /usr/bin/env -i PATH=/usr/sbin:/usr/bin HOME=/root "$@"
"""


def run_in_root(root: Path, payload: Path, out: Path, command: list[str], hear: Callable[[str], None]) -> int:
    """Run `command` in `root` with `payload` laid over it; `out` is its /out and survives.

    Every line it prints is given to `hear` as it comes.
    """
    out.mkdir(parents=True, exist_ok=True)
    place = out.with_name(out.name + ".overlay")
    place.mkdir(exist_ok=True)
    before = set(_pod_cgroups())
    words = [
        *DIES_WITH_US,
        "unshare",
        "-m",
        "-p",
        "-f",
        "-u",
        "-i",
        "--kill-child",
        "bash",
        "-c",
        _ENTER,
        "_",
    ]
    started = [*words, str(root), str(payload), str(place), str(out), *command]
    try:
        with subprocess.Popen(
            started, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                hear(line.rstrip("\n"))
        return process.returncode
    finally:
        _remove_cgroups(before)
        place.rmdir()


def _pod_cgroups() -> Iterator[Path]:
    """Directories below any `kubepods`, children first; v1 has one tree per controller."""
    tops = [*_CGROUPS.glob("kubepods*"), *_CGROUPS.glob("*/kubepods*")]
    for top in tops:
        found = [
            Path(path) for path, _, _ in os.walk(top) if path != str(top)
        ]  # others may end their pods meanwhile
        yield from sorted(found, key=lambda path: -len(path.parts))
        yield top


def _remove_cgroups(kept: set[Path], tries: int = 30) -> None:
    """Remove the cgroups that were not there before; killed processes leave them a moment late."""
    for _ in range(tries):
        left = [path for path in _pod_cgroups() if path not in kept]
        if not left:
            return
        for path in left:
            try:
                path.rmdir()
            except OSError:
                time.sleep(0.02)
