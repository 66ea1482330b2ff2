"""The slices before the answer and the files after it, on this kernel: what runs where after every kill.

    python3 -m e2e.inside.pool_floor [kills] [calls] [threads]

No container runtime: this program asks the agent over NRI and makes cgroups as runc does, so that it can look at every
container at every moment, and make thousands of them. It belongs into a guest with cgroup v2 and nothing below kubepods.
The agent is the product; in some lives it ends itself before a chosen step (`_AGENT`).
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources
from tests.lab.runtime.plugin_link import PluginLink, PluginLostError
from tests.lab.runtime.profile import BEHAVIOURS

from .agent import PYTHON
from .observe import parse_list
from .report import Expectations, play, tell
from .waiting import wait_for

_TOP = Path("/sys/fs/cgroup")
_PLACE = Path("/run/pool-floor")
_ARMED = _PLACE / "armed"
_TRACE = Path("/sys/kernel/tracing")
_FUTEX = 202
"""Its number on x86-64; threads of the agent wake each other."""

_NEVER = "1000000000"
_MOST_CALLS = 12
"""Wait, receive, ask for the exporter's socket, look for the checkpoint and append to it, write two slices, answer."""

_ATTEMPTS = 3
"""The least of so many counts: a thread of the agent may wake up in between."""

_CARRIERS = 100
"""Containers that share the threads."""

_STEPS = 12
"""Kills before each of so many steps: the creation below has one save, three writes, a reply and five late writes."""

_PATIENT = replace(BEHAVIOURS["containerd-2.1"].profile, request_timeout=120.0, registration_timeout=60.0)
"""An emulated guest takes more than two seconds to list thousands of containers."""

_AGENT = f"""
import os, signal, sys
from pathlib import Path
from nri_plugin.agent.serving import link as module
from nri_plugin.checkpoint import file
from nri_plugin.host import cgroup_write
from nri_plugin.wire.nri.session import PluginSession
# this program takes long to write down thousands of containers where everything is emulated
PluginSession.__init__.__kwdefaults__["registration_timeout"] = 600.0
left = [0]
def stepping(done):
    def step(*words, **named):
        if not left[0]:
            try:
                left[0] = int(Path("{_ARMED}").read_text())
            except (OSError, ValueError):
                return done(*words, **named)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return done(*words, **named)
    return step
cgroup_write.write_value = stepping(cgroup_write.write_value)
file.CheckpointFile.save = stepping(file.CheckpointFile.save)
module.RuntimeConnection.send = stepping(module.RuntimeConnection.send)
from nri_plugin.__main__ import main
import nri_plugin.agent.agent
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in sys.stdin:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open("/out/agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        main()
    finally:
        os._exit(1)
"""
"""One process forks all agents, because in an emulated guest an agent loads its modules for half a minute."""


class Played:
    """A node whose runtime is this program."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, Container] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.exclusive: dict[str, set[int]] = {}
        self.agent = 0  # its process id
        self.link: PluginLink | None = None
        _PLACE.mkdir(parents=True, exist_ok=True)
        # As /run is on a node: in memory, where a checkpoint needs no fsync.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(_PLACE)], check=True)
        for path in ("", "kubepods", "kubepods/burstable", "kubepods/besteffort"):
            (_TOP / path).mkdir(exist_ok=True)
            _put(_TOP / path / "cgroup.subtree_control", "+cpuset")
        config = {
            "reservedSystemCPUs": "0",
            "nriSocket": f"{_PLACE}/nri.sock",
            "stateDir": f"{_PLACE}/state",
        }
        (_PLACE / "config.yaml").write_text(json.dumps(config))
        words = [PYTHON, "-c", _AGENT, "run", "--config", f"{_PLACE}/config.yaml"]
        self._forks = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(f"{_PLACE}/nri.sock")
        self._server.listen(4)

    # ---- the agent

    def start(self) -> None:
        """Start an agent and tell it what there is."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(b"\n")
        self._forks.stdin.flush()
        self.agent = int(self._forks.stdout.readline())
        self._server.settimeout(300)
        connection, _ = self._server.accept()
        self.link = PluginLink(connection, _PATIENT)
        self.link.join(lambda: events.Synchronize(tuple(self.pods.values()), tuple(self.containers.values())))

    def end(self) -> None:
        """End the agent without a word."""
        if self.lives():
            os.kill(self.agent, signal.SIGKILL)
            wait_for(lambda: not self.lives(), 60, "the agent has ended")
        if self.link is not None:
            self.link.close()
        _ARMED.unlink(missing_ok=True)

    def lives(self) -> bool:
        """Whether the agent runs."""
        return self.agent > 0 and Path(f"/proc/{self.agent}").exists()

    def ask(self, event: events.NRIEvent) -> events.NRIResponse | None:
        """The agent's answer; None when it died over it."""
        assert self.link is not None
        with suppress(PluginLostError):
            return self.link.ask(event)
        return None

    # ---- pods

    def sandbox(self, name: str, qos: str) -> Pod:
        """A pod with its cgroup; the agent hears of it."""
        parent = f"/kubepods{qos}/pod{name}"
        directory = _TOP / parent[1:]
        directory.mkdir()
        _put(directory / "cgroup.subtree_control", "+cpuset")
        pod = Pod(id=f"sb-{name}", name=name, uid=name, namespace="default", cgroup_parent=parent, pid=1)
        self.pods[name] = pod
        return pod

    def create(self, pod: Pod, cpu: int, number: int = 0) -> str | None:
        """A container of the pod, with the CPUs that the agent answers; None when it answered nothing."""
        key = f"{pod.uid}-{number}"
        shares = max(2, cpu * 1024)
        quota = (
            {"cpu_quota_us": cpu * 100_000, "cpu_period_us": 100_000, "memory_limit_bytes": 1 << 20}
            if cpu
            else {}
        )
        asked = Container(
            id=key, pod_id=pod.id, name=f"c{number}", state=ContainerState.CREATED,
            resources=Resources(cpu_shares=shares, **quota), cgroups_path=f"{pod.cgroup_parent}/{key}",
        )  # fmt: skip
        answer = self.ask(events.CreateContainer(pod, asked))
        given = getattr(getattr(answer, "resources", None), "cpus", "")
        self.containers[key] = Container(
            id=key, pod_id=pod.id, name=asked.name, state=ContainerState.RUNNING,
            resources=Resources(cpu_shares=shares, cpus=given, **quota), cgroups_path=asked.cgroups_path,
        )  # fmt: skip
        return given or None

    def adopt(self, name: str, number: int) -> None:
        """A shared container that no agent was asked about."""
        pod, key = self.pods[name], f"{name}-{number}"
        self.containers[key] = Container(
            id=key, pod_id=pod.id, name=f"c{number}", state=ContainerState.RUNNING,
            resources=Resources(cpu_shares=2), cgroups_path=f"{pod.cgroup_parent}/{key}",
        )  # fmt: skip

    def begin(self, key: str, *, is_process: bool = True) -> None:
        """Make its cgroup as runc does, and its first process in it; then the agent hears of its start."""
        one = self.containers[key]
        directory = self.directory(key)
        directory.mkdir()
        if one.resources.cpus:
            _put(directory / "cpuset.cpus", one.resources.cpus)
        pod = self.pods[one.pod_id.removeprefix("sb-")]
        if self.link is not None and self.link.is_alive:
            self.ask(events.StartContainer(pod, one))
        if is_process:
            self.processes[key] = subprocess.Popen(["sleep", "3000"])
            _put(directory / "cgroup.procs", str(self.processes[key].pid))

    def forget(self, key: str) -> None:
        """A creation that failed."""
        del self.containers[key]

    def remove(self, name: str) -> None:
        """The pod and all in it; the agent hears of it where it lives."""
        pod = self.pods.pop(name)
        for key in [key for key, one in self.containers.items() if one.pod_id == pod.id]:
            del self.containers[key]
            self.exclusive.pop(key, None)
            process = self.processes.pop(key, None)
            if process is not None:
                process.kill()
                process.wait()
            with suppress(OSError):
                (_TOP / pod.cgroup_parent[1:] / key).rmdir()
        (_TOP / pod.cgroup_parent[1:]).rmdir()
        self.ask(events.StopPodSandbox(pod))
        self.ask(events.RemovePodSandbox(pod))

    # ---- what the kernel says

    def directory(self, key: str) -> Path:
        """The cgroup of a container."""
        return _TOP / self.containers[key].cgroups_path[1:]

    def effective(self, key: str) -> set[int]:
        """The CPUs its processes run on."""
        return parse_list((self.directory(key) / "cpuset.cpus.effective").read_text())

    def overlaps(self) -> list[str]:
        """Containers that run on exclusive CPUs of another one."""
        found = []
        for key in [*self.containers]:
            with suppress(OSError, KeyError):
                seen = self.effective(key)
                found += [
                    f"{key} on {sorted(seen & cpus)} of {other}"
                    for other, cpus in [*self.exclusive.items()]
                    if other != key and seen & cpus
                ]
        return found

    def is_settled(self) -> bool:
        """Whether every container's own file holds what it runs on."""
        return all(
            parse_list((self.directory(key) / "cpuset.cpus").read_text()) == self.effective(key)
            for key in self.containers
        )


@contextmanager
def _watched(node: Played) -> Iterator[list[str]]:
    """Look at all containers all the time."""
    found, ended = list[str](), threading.Event()

    def look() -> None:
        while not ended.is_set():
            found.extend(node.overlaps())
            time.sleep(0.02)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def a_new_container_meets_nobody_whenever_the_agent_is_killed(facts: Expectations, node: Played) -> None:
    """Killed before each step of a creation, of its late writes, and of the end of the pod."""
    shared = {"a": "/burstable", "b": "/burstable", "c": "/besteffort", "g": ""}
    node.start()
    for name, qos in shared.items():
        node.create(node.sandbox(name, qos), 0)
        node.begin(f"{name}-0")
    answered = killed = 0
    with _watched(node) as seen:
        for step in range(1, _STEPS + 1):
            _ARMED.write_text(str(step))
            name = f"x{step}"
            given = node.create(node.sandbox(name, ""), 2)
            if given is None:
                node.forget(f"{name}-0")
            else:
                answered += 1
                node.exclusive[f"{name}-0"] = parse_list(given)
                met = node.overlaps()
                facts.expect(
                    f"killed before step {step}: nobody runs on its CPUs at the answer", not met, met
                )
                node.begin(f"{name}-0")
            time.sleep(0.3)
            killed += not node.lives()
            _kill_and_come_back(facts, node, f"born{step}", step)
            _ARMED.write_text(str(step))
            node.remove(name)
            time.sleep(0.3)
            _kill_and_come_back(facts, node, f"late{step}", step)
            for born in (f"born{step}", f"late{step}"):
                node.remove(born)
        facts.expect("at no moment anybody ran on exclusive CPUs of another one", not seen, seen[:5])
    facts.expect(
        "some were answered and some agents were killed", killed > 0 and answered > 0, (killed, answered)
    )
    facts.figure("creations answered although the agent was killed soon", answered)
    for name in shared:
        node.remove(name)
    node.end()


def _kill_and_come_back(facts: Expectations, node: Played, name: str, step: int) -> None:
    """A container is born while no agent is there; the next one puts all files right."""
    node.end()
    node.link = None
    node.sandbox(name, "/burstable")
    node.adopt(name, 0)
    node.begin(f"{name}-0")
    node.start()
    with suppress(TimeoutError):
        wait_for(node.is_settled, 30, "the files are written")
    facts.expect(f"killed before step {step}: the next agent settles all files", node.is_settled())


def an_answer_waits_for_the_slices_alone(facts: Expectations, node: Played) -> None:
    """System calls before the answer to an exclusive creation, beside 30 and 3,000 shared containers."""
    counted = {}
    for name, wanted, guaranteed in (("few", 30, 0), ("many", 3000, 0), ("guaranteed", 3000, 4)):
        node.end()
        node.link = None
        while len(node.containers) < wanted:
            _add_pod(node, f"p{len(node.pods)}", "/burstable", 5)
        for number in range(guaranteed):
            _add_pod(node, f"g{number}", "", 1)
        _ARMED.write_text(_NEVER)  # else the agent asks at every step whether it should end
        node.start()
        wait_for(node.is_settled, 300, "the files are written")
        time.sleep(6)  # beyond the next sweep, which looks at new containers for the first time
        calls = min((_calls_of_a_creation(node, f"{name}{attempt}") for attempt in range(_ATTEMPTS)), key=len)
        counted[name] = len(calls)
        facts.figure(f"system calls before the answer without futex, {name}", f"{len(calls)}: {calls}")
    facts.expect("an answer waits for at most 12", counted["many"] <= _MOST_CALLS, counted)
    facts.equal("3,000 shared containers cost what 30 cost", counted["many"], counted["few"])
    facts.equal("a Guaranteed shared container costs three", counted["guaranteed"] - counted["many"], 12)
    node.end()


def a_slice_is_written_beside_many_threads(facts: Expectations, node: Played) -> None:
    """The time of one write to the Burstable slice, by threads below it."""
    keys = _burstable(node)
    while len(keys) < _CARRIERS:
        _add_pod(node, f"t{len(node.pods)}", "/burstable", 5)
        keys = _burstable(node)
    file, wide = _TOP / "kubepods/burstable/cpuset.cpus", (_TOP / "cpuset.cpus.effective").read_text().strip()
    _put(Path("/proc/sys/kernel/threads-max"), "120000")
    _put(Path("/proc/sys/kernel/pid_max"), "200000")
    processes: list[subprocess.Popen[bytes]] = []
    for threads in (3_000, 15_000, 30_000):
        for process in processes:
            process.kill()
            process.wait()
        processes = [_threads(node.directory(key), threads // len(keys)) for key in keys]
        took = []
        for text in ("0-7", wide) * 5:
            began = time.monotonic()
            _put(file, text)
            took.append(time.monotonic() - began)
        facts.figure(
            f"ms for a write to the slice, {threads} threads", round(1000 * statistics.median(took), 1)
        )
    for process in processes:
        process.kill()
        process.wait()


def _burstable(node: Played) -> list[str]:
    found = (key for key, one in node.containers.items() if "/burstable/" in one.cgroups_path)
    return [*islice(found, _CARRIERS)]


def _add_pod(node: Played, name: str, qos: str, containers: int) -> None:
    """A pod whose containers have no process, made while no agent is there."""
    node.sandbox(name, qos)
    for number in range(containers):
        node.adopt(name, number)
        node.begin(f"{name}-{number}", is_process=False)


def _calls_of_a_creation(node: Played, name: str) -> list[int]:
    """What the kernel's trace of the agent holds from our request to its answer."""
    pod = node.sandbox(name, "")
    tasks = os.listdir(f"/proc/{node.agent}/task")
    _put(_TRACE / "set_event_pid", " ".join(tasks))
    _put(_TRACE / "trace", "")
    _put(_TRACE / "events/raw_syscalls/sys_enter/enable", "1")
    node.create(pod, 1)
    _put(_TRACE / "events/raw_syscalls/sys_enter/enable", "0")
    calls = [
        _call_of(line) for line in (_TRACE / "trace").read_text().splitlines() if "sys_enter: NR " in line
    ]
    node.remove(name)
    wait_for(node.is_settled, 300, "the files are written")
    # A thread that wakes the loop sends one byte. The call that waited for our request began before the trace.
    begun = next(
        at for at, (number, length) in enumerate(calls) if number == _RECVFROM and length > _A_WAKE_UP
    )
    answered = next(
        at for at, (number, length) in enumerate(calls) if at > begun and number == _SENDTO and length > 1
    )
    return [_EPOLL_WAIT, *(number for number, _ in calls[begun : answered + 1] if number != _FUTEX)]


def _call_of(line: str) -> tuple[int, int]:
    """The number of a system call, and its third argument."""
    number, _, words = line.partition("sys_enter: NR ")[2].partition(" (")
    return int(number), int(words.rstrip(")").split(", ")[2], 16)


_EPOLL_WAIT, _RECVFROM, _A_WAKE_UP = 232, 45, 4096
_SENDTO = 44
_SLEEPERS = """
import sys, threading
threading.stack_size(32768)
hold = threading.Lock()
hold.acquire()
for _ in range(int(sys.argv[1]) - 1):
    threading.Thread(target=hold.acquire, daemon=True).start()
print("ready", flush=True)
hold.acquire()
"""


def _threads(directory: Path, count: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([PYTHON, "-I", "-S", "-c", _SLEEPERS, str(count)], stdout=subprocess.PIPE)
    _put(directory / "cgroup.procs", str(process.pid))
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _put(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | (os.O_TRUNC if file.name == "trace" else 0))
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def _traced() -> bool:
    if not (_TRACE / "events").is_dir():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(_TRACE)], check=False)
    return (_TRACE / "events/raw_syscalls").is_dir()


def main() -> None:
    """Play everything."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    facts, node = Expectations(), Played()
    tell("runtime", version="", kernel=os.uname().release)
    is_traced = _traced()
    if not is_traced:
        facts.figure("system calls", "not counted: this kernel traces none")
    scenarios: dict[str, Callable[..., None]] = {
        "kills": a_new_container_meets_nobody_whenever_the_agent_is_killed,
        **({"calls": an_answer_waits_for_the_slices_alone} if is_traced else {}),
        "threads": a_slice_is_written_beside_many_threads,
    }
    chosen = [scenario for name, scenario in scenarios.items() if name in (sys.argv[1:] or scenarios)]
    play(facts, chosen, facts, node)


if __name__ == "__main__":
    main()
