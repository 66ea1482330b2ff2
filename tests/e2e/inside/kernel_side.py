"""What the kernel says of a container beside its cpuset: quota, partition, its pod's sandbox, and where threads run."""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

from .node import Node, Pod
from .observe import CGROUPS, CRUN_LEVEL, format_list, machine_cpus, parse_list
from .waiting import wait_for

_SETTLES_S = 25
_WATCHED_S = 4.0
_WARM_S = 1.0
_ABSENT = "(no file)"
_FORK = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
children = []
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        while True: pass
    children.append(child)
print(*children, flush=True)
sys.stdin.read()
for child in children: os.kill(child, 9)
"""


def judge(node: Node, where: str, pod: Pod, name: str, wanted: dict[str, str]) -> None:
    """Compare with what is wanted, once that had time to come about: it follows an answer, it is no part of it."""
    own = _directory(node.pid(pod.ids[name]))
    leaf = own.parent if own.name == CRUN_LEVEL else own
    files = {
        "quota": own / "cpu.max" if _first(own / "cpu.max") not in ("max", _ABSENT) else leaf / "cpu.max",
        "podQuota": leaf.parent / "cpu.max",
        "partition": leaf / "cpuset.cpus.partition",
        "sandbox": _sandbox(leaf.parent, pod.sandbox) / "cpuset.cpus.effective",
        "root": CGROUPS / "cpuset.cpus.effective",
    }
    for key, word in wanted.items():
        with contextlib.suppress(TimeoutError):
            wait_for(lambda file=files[key], word=word: _says(file, word), _SETTLES_S, f"{key} is {word}")
        seen = _first(files[key])
        node.expect(f"{where}: {key} of {name}", _says(files[key], word), f"seen {seen}, wanted {word}")


def _says(file: Path, word: str) -> bool:
    """Exactly that; of an invalid partition without its reason, which another kernel words in another way."""
    seen = _first(file)
    return seen == word or (word.endswith(" invalid") and seen.startswith(f"{word} ("))


def expect_nothing_apart(node: Node, where: str) -> None:
    """No CPU is out of reach of ordinary cgroups; the agent is given time, if there is one."""
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: not held_apart(), _SETTLES_S, "no CPU is held apart")
    node.equal(f"{where}: no CPU is held apart", held_apart(), {})


def held_apart() -> dict[str, str]:
    """Cgroups of pods that ask for CPUs of their own, or have them, by path below the root: what they say.

    And the root, where it has not all CPUs that are online, or lists more as isolated than the kernel was booted with.
    """
    found = {}
    left = parse_list((CGROUPS / "cpuset.cpus.effective").read_text())
    found["cpuset.cpus.effective"] = "" if left >= machine_cpus() - _isolated_at_boot() else format_list(left)
    isolated = CGROUPS / "cpuset.cpus.isolated"
    more = (parse_list(isolated.read_text()) if isolated.exists() else set()) - _isolated_at_boot()
    found["cpuset.cpus.isolated"] = format_list(more)
    for file in (
        *CGROUPS.glob("kubepods*/**/cpuset.cpus.exclusive"),
        *CGROUPS.glob("kubepods*/cpuset.cpus.exclusive"),
    ):
        found[str(file.relative_to(CGROUPS))] = file.read_text().strip()
    for file in CGROUPS.glob("kubepods*/**/cpuset.cpus.partition"):
        found[str(file.relative_to(CGROUPS))] = file.read_text().strip().removeprefix("member")
    return {path: said for path, said in found.items() if said}


def limit_pod(node: Node, pod: Pod) -> None:
    """Give the pod the quota that a kubelet gives it before its first container: where all of them have a limit.

    Systemd is told to, where it makes the cgroups: it puts that quota back whenever it looks at the slice again.
    """
    limits = [one.limit_milli for one in pod.spec.containers]
    if pod.spec.limit_milli:
        limits = [pod.spec.limit_milli]
    directory = _sandbox_directory(pod)
    if not all(limits) or directory is None:
        return
    if not node.runtime.systemd:
        (directory.parent / "cpu.max").write_text(f"{sum(limits) * 100} 100000")
        return
    quota = f"CPUQuota={sum(limits) / 10:g}%"
    command = ["systemctl", "set-property", "--runtime", directory.parent.name, quota]
    subprocess.run(command, check=True, timeout=120)


def spin(node: Node, where: str, pod: Pod, name: str, on: str) -> None:
    """Fork twice as many spinning processes in the container as it has CPUs, and look where they run."""
    leaf = _directory(node.pid(pod.ids[name]))
    cpus = parse_list((leaf / "cpuset.cpus.effective").read_text())
    command = [sys.executable, "-c", _FORK, str(leaf / "cgroup.procs"), str(2 * len(cpus))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        used = _used(children)
        parent.communicate("", timeout=60)
    what = f"CPUs that {2 * len(cpus)} spinners of {pod.spec.name}/{name} used, {on} of {format_list(cpus)} expected"
    node.figure(what, format_list(used))
    node.expect(f"{where}: spinners stay on the CPUs of {name}", used <= cpus, format_list(used))
    if on == "all":
        node.equal(f"{where}: spinners are balanced over the CPUs of {name}", used, cpus)
    else:
        node.equal(f"{where}: nothing balances spinners of {name}", len(used), 1)


def _used(children: list[int]) -> set[int]:
    used: set[int] = set()
    began = time.monotonic()
    while time.monotonic() - began < _WATCHED_S:
        time.sleep(0.05)
        if time.monotonic() - began > _WARM_S:
            used |= {_processor(child) for child in children}
    return used


def _processor(pid: int) -> int:
    """Field 39 of /proc/PID/stat: the CPU it last ran on."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])


def _directory(pid: int) -> Path:
    line = Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1]
    return CGROUPS / line.partition("::")[2].lstrip("/")


def _isolated_at_boot() -> set[int]:
    """CPUs of isolcpus; the kernel's file has those of partitions among them only where it is newer."""
    found = re.search(r"(?:^| )isolcpus=(?:[a-z_]+,)*([0-9,-]+)", Path("/proc/cmdline").read_text())
    return parse_list(found[1]) if found else set()


def _sandbox_directory(pod: Pod) -> Path | None:
    return next(CGROUPS.glob(f"kubepods*/**/*{pod.sandbox}*"), None)


def _sandbox(above: Path, sandbox: str) -> Path:
    return next(above.glob(f"*{sandbox}*"), above / sandbox)


def _first(file: Path) -> str:
    """The quota without its period, the partition with its reason, or a list."""
    text = file.read_text().strip() if file.exists() else _ABSENT
    return text.split()[0] if file.name == "cpu.max" else text
