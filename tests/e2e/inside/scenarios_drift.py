"""Somebody else writes cpusets, and the machine changes: first it is shown to happen, then it is put right."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from .agent import PYTHON
from .foreign import frozen, write
from .laws import check_laws
from .node import Node
from .observe import CGROUPS, cpuset_directory, format_list, parse_list
from .pods import burstable, guaranteed
from .waiting import wait_for

_LIMIT_S = 30
_CPUS = Path("/sys/devices/system/cpu")
_NARROW = "a container ran on a part of its CPUs, because it has the CPU affinity of the runtime"
_SAID = (
    "cpuset drifted and was repaired",
    "another writer changes a cpuset after every repair",
    "the machine changed",
    "a container lost exclusive CPUs",
    "effective cpuset differs from the desired one",
)


def a_foreign_write_is_put_right(node: Node, cpus: int) -> None:
    """A person writes all CPUs to the file of a container with CPUs of its own."""
    pod = node.run(guaranteed("coveted", cpus))
    own, file = node.observe(pod.id).allowed_cpus, cpuset_directory(node.pid(pod.id)) / "cpuset.cpus"
    with frozen(node.agent.pid):
        write(file, format_list(_online()))
        node.equal("the drift happens", node.observe(pod.id).allowed_cpus, _online())
    _until(node, "it runs on its own again", lambda: node.observe(pod.id).allowed_cpus == own)
    time.sleep(2)  # beyond the pause after the first repair
    write(file, format_list(_online()))
    _until(node, "and again", lambda: node.observe(pod.id).allowed_cpus == own)
    _settle(node)
    node.remove(pod)


def a_narrowed_pod_is_widened_again(node: Node, cpus: int) -> None:
    """The kernel tells a watch of the container nothing when a cgroup above it is written."""
    pod = node.run(guaranteed("squeezed", cpus))
    directory = cpuset_directory(node.pid(pod.id))
    own = node.observe(pod.id).allowed_cpus
    above = _pod_directory(directory)
    other = min(_online() - own)
    with frozen(node.agent.pid):
        write(above / "cpuset.cpus", str(other))
        node.equal("the drift happens: it runs on another's CPU", node.observe(pod.id).allowed_cpus, {other})
        node.equal("while its own file is right", node.observe(pod.id).file_cpus, own)
    _until(node, "it runs on its own again", lambda: node.observe(pod.id).allowed_cpus == own)
    _settle(node)
    node.remove(pod)


def files_taken_away_come_back(node: Node, cpus: int) -> None:
    """Somebody takes cpuset out of a living pod's subtree_control: files and values are gone.

    The CPUs come back. Memory nodes do not, by design: on a running container they are never written.
    """
    pod = node.run(guaranteed("stripped", cpus))
    directory = cpuset_directory(node.pid(pod.id))
    own, above = node.observe(pod.id).allowed_cpus, _pod_directory(directory)
    with frozen(node.agent.pid):
        write(above / "cgroup.subtree_control", "-cpuset")
        gone = not (directory / "cpuset.cpus").exists()
        node.expect("the drift happens: the file is gone", gone, directory)
    back = directory / "cpuset.cpus"
    _until(node, "it has its CPUs again", lambda: back.exists() and node.observe(pod.id).allowed_cpus == own)
    node.remove(pod)
    _settle(node)


def systemd_sets_a_property(node: Node, cpus: int) -> None:
    """`systemctl set-property` on the scope, then a daemon-reload and a change in the same slice."""
    pod = node.run(guaranteed("managed", cpus))
    own = node.observe(pod.id).allowed_cpus
    scope = f"cri-containerd-{pod.id}.scope"
    value = f"AllowedCPUs={format_list(_online())}"
    with frozen(node.agent.pid):
        subprocess.run(["systemctl", "set-property", "--runtime", scope, value], check=True, timeout=60)
        node.equal("the drift happens", node.observe(pod.id).allowed_cpus, _online())
    _until(node, "it runs on its own again", lambda: node.observe(pod.id).allowed_cpus == own)
    subprocess.run(["systemctl", "daemon-reload"], check=True, timeout=60)
    happened = node.observe(pod.id).allowed_cpus != own
    node.figure("cpuset put back by daemon-reload alone", "yes" if happened else "no")
    neighbour = node.run(burstable("neighbour"))
    _until(node, "it runs on its own again", lambda: node.observe(pod.id).allowed_cpus == own)
    _settle(node)
    node.remove(neighbour)
    node.remove(pod)


def cpus_go_offline_and_come_back(node: Node, cpus: int) -> None:
    """One CPU of the shared pool, one of an exclusive container, all of them; then all return."""
    shared, pod = node.run(burstable("onlooker")), node.run(guaranteed("owner", cpus))
    own, pool = node.observe(pod.id).allowed_cpus, node.observe(shared.id).allowed_cpus
    first, last = min(own), max(pool)

    def on(identity: str) -> set[int]:
        observed = node.observe(identity)
        return observed.file_cpus if observed.file_cpus == observed.allowed_cpus else set()

    _switch({last}, online=False)
    _until(node, "the pool follows", lambda: on(shared.id) == pool - {last})
    node.equal("the exclusive container keeps its CPUs", node.observe(pod.id).allowed_cpus, own)
    _switch({first}, online=False)
    _until(node, "it runs on what is left of its own", lambda: on(pod.id) == own - {first})
    node.equal("nobody else moved", node.observe(shared.id).allowed_cpus, pool - {last})
    _switch(own, online=False)
    _until(node, "it is confined to the shared pool", lambda: on(pod.id) == pool - {last})
    shown = [one["lost"] for one in node.agent.state()["containers"] if one["id"] == pod.id]
    node.equal("state show says what it lost", shown, [format_list(own)])
    _switch(own | {last}, online=True)
    _until(node, "it has its own CPUs again", lambda: on(pod.id) == own)
    _until(node, "and the pool is whole", lambda: on(shared.id) == pool)
    _settle(node)
    node.remove(pod)
    node.remove(shared)


def release_gives_everything_back(node: Node, cpus: int) -> None:
    """Refused while the agent runs; then all containers have all CPUs, and a new agent keeps its promises."""
    shared, pod = node.run(burstable("freed")), node.run(guaranteed("generous", cpus))
    own, pool = node.observe(pod.id).allowed_cpus, node.observe(shared.id).allowed_cpus
    command = [PYTHON, "-m", "nri_plugin", "release"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    node.expect("it refuses while the agent runs", refused.returncode == 2, refused.stderr)
    node.agent.stop()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    node.expect("it says what it did", done.returncode == 0, done.stdout + done.stderr)
    for identity in (shared.id, pod.id):
        node.equal("a container has all CPUs", node.observe(identity).allowed_cpus, _online())
    late = node.run(burstable("born-after"))
    node.equal("so has one that is born later", node.observe(late.id).allowed_cpus, _online())
    node.agent.start()
    _until(node, "a new agent keeps the promise", lambda: node.observe(pod.id).allowed_cpus == own)
    _until(node, "and the pool", lambda: node.observe(shared.id).allowed_cpus == pool)
    _settle(node)
    for one in (late, shared, pod):
        node.remove(one)


def the_cpu_affinity_of_the_runtime_is_found(node: Node, cpus: int) -> None:
    """The runtime starts with an affinity of CPU 0, as by CPUAffinity=0. An older runc gives it to containers, a newer one resets it."""
    before = os.sched_getaffinity(0)
    joined = node.agent.times_joined()
    node.runtime.stop()
    os.sched_setaffinity(0, {0})
    node.runtime.start()
    os.sched_setaffinity(0, before)
    node.agent.wait_until_joined(joined)
    pods = [node.run(burstable("narrow")), node.run(burstable("narrow-too"))]
    owner = node.run(guaranteed("apart", cpus))
    found = [node.observe(pod.id) for pod in pods]
    is_narrow = found[0].allowed_cpus != found[0].effective_cpus
    node.figure("containers have the CPU affinity of the runtime", "yes" if is_narrow else "no")
    wanted = [{0} if is_narrow else one.effective_cpus for one in found]
    node.equal(
        "both shared containers run on it, or on all their CPUs", [one.allowed_cpus for one in found], wanted
    )
    seen = node.observe(owner.id)
    node.equal("an exclusive container has all its CPUs", seen.allowed_cpus, seen.effective_cpus)
    said = node.agent.doctor()[1]
    node.expect("doctor names the affinity", "has a CPU affinity of CPUs 0" in said, said)
    verdict = node.agent.verdict()
    for name in ("narrow", "narrow-too", "apart"):
        named = re.search(
            rf"\b{name}/main runs on CPUs 0 of \S+: it has the CPU affinity of the runtime", verdict
        )
        is_right = (named is not None) == (is_narrow and name != "apart")
        node.expect(f"state verify names {name} if it runs on a part of its CPUs", is_right, verdict)
    warned = [line for line in node.agent.lines() if _NARROW in line]
    node.expect("the agent warns once, or has no reason to", len(warned) == is_narrow, warned)
    for pod in (*pods, owner):
        node.remove(pod)
    joined = node.agent.times_joined()
    node.runtime.stop()
    node.runtime.start()
    node.agent.wait_until_joined(joined)
    node.agent.excuse([_NARROW])


def _online() -> set[int]:
    return parse_list((CGROUPS / "cpuset.cpus.effective").read_text())


def _switch(cpus: set[int], *, online: bool) -> None:
    for cpu in cpus:
        file = _CPUS / f"cpu{cpu}" / "online"
        if file.read_text().strip() != str(int(online)):
            file.write_text(str(int(online)))


def _pod_directory(directory: Path) -> Path:
    """The pod's cgroup: crun has one more level inside the container's."""
    return next(
        above for above in directory.parents if "pod" in above.name and above.name != "kubepods.slice"
    )


def _until(node: Node, what: str, fact: Callable[[], bool]) -> None:
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        wait_for(fact, _LIMIT_S, what)
    node.expect(what, fact(), f"not within {_LIMIT_S} s")
    node.figure(f"seconds until {what}", round(time.monotonic() - began, 2))


def _settle(node: Node) -> None:
    """All laws hold, and what the agent said of all this was meant."""
    check_laws(node)
    node.agent.excuse(list(_SAID))
