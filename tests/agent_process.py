"""The agent as a real process, and a runtime in this process that waits for what it says."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nri_plugin.simulator.machine.description import parse
from nri_plugin.simulator.machine.machine import build_sysfs
from nri_plugin.wire.nri.events import NRIEvent
from nri_plugin.wire.nri.messages import Container, Pod
from tests.lab.runtime.profile import (
    CONTAINERD_2_1,
    Answered,
    Configured,
    ConnectionLost,
    PluginRegistered,
    RuntimeEvent,
    Synchronized,
)
from tests.lab.runtime.session import RuntimeSession

REPOSITORY = Path(__file__).parent.parent
SUPERVISOR = "nri-pin-watcher"
"""What the process is called that brings a launched agent back."""

PATIENCE_S = 30.0
"""Only ever waited for by a failing test."""

PATIENT = replace(CONTAINERD_2_1, registration_timeout=PATIENCE_S, request_timeout=2 * PATIENCE_S)
"""The agent refuses a container whose state is not on disk in half of this, and a busy disk takes seconds."""

PATIENT_AGENT = (
    "-c",
    f"""\
import sys
from nri_plugin.__main__ import main
from nri_plugin.agent.serving import pod_facts
pod_facts.EXPORTER_LIMIT_S, pod_facts.SHARE_OF_TIME = {PATIENCE_S}, 1.0
sys.exit(main(sys.argv[1:]))
""",
)
"""`-m nri_plugin`, but an exporter that needs longer than a tenth of a second is waited for."""

MACHINE = "pack:1 numa:2(memory=8GiB) l3:1 core:4 pu:2"


def machine_root(folder: Path) -> Path:
    """A machine of 16 CPUs and an empty cgroup v2 tree."""
    root = folder / "host"
    build_sysfs(parse(MACHINE), str(root))
    cgroups = folder / "cgroup"
    cgroups.mkdir()
    (cgroups / "cgroup.controllers").write_text("cpuset cpu\n")
    for name in ("cpuset.cpus.effective", "cpuset.mems.effective"):
        (cgroups / name).write_text("0-15\n" if "cpus" in name else "0-1\n")
    return root


def config_text(folder: Path, **more: str) -> str:
    """A configuration for `machine_root(folder)`."""
    keys = {
        "reservedSystemCPUs": '"0-1"',
        "stateDir": str(folder / "state"),
        "sysfsRoot": str(folder / "host"),
        "cgroupRoot": str(folder / "cgroup"),
        "nriSocket": str(folder / "nri.sock"),
        "poolFloor": "false",
        **more,
    }
    return "".join(f"{key}: {value}\n" for key, value in keys.items())


class Peer:
    """The runtime's end of the agent's connection; waits with a limit."""

    def __init__(
        self, sock: socket.socket, *, launched_as: tuple[str, str] | None = None, config: str = ""
    ) -> None:
        self.sock = sock
        self.sock.settimeout(PATIENCE_S)
        self.session = RuntimeSession(PATIENT, launched_as=launched_as)
        self.session.accept(time.monotonic())
        self.events: list[RuntimeEvent] = []
        self.config = config
        self.listed: tuple[tuple[Pod, ...], tuple[Container, ...]] = ((), ())

    def wait_for(self, wanted: Callable[[RuntimeEvent], bool]) -> RuntimeEvent:
        """Play the runtime until such an event comes."""
        while True:
            self._flush()
            data = self.sock.recv(1 << 16)
            for event in self.session.receive_data(data, time.monotonic()):
                self.events.append(event)
                self._react(event)
                if wanted(event):
                    self._flush()
                    return event
            assert data, f"the agent closed the connection: {self.events}"

    def synchronize(self) -> None:
        self.wait_for(lambda event: isinstance(event, Synchronized))

    def ask(self, event: NRIEvent) -> Answered:
        call = self.session.call(event, time.monotonic())
        assert call is not None, f"the plugin is not asked about {type(event).__name__}"
        answer = self.wait_for(lambda found: isinstance(found, Answered) and found.call == call)
        assert isinstance(answer, Answered)
        return answer

    def _react(self, event: RuntimeEvent) -> None:
        if isinstance(event, PluginRegistered):
            self.session.configure(time.monotonic(), self.config)
        elif isinstance(event, Configured):
            self.session.synchronize(*self.listed, time.monotonic())
        elif isinstance(event, ConnectionLost):
            self._flush()

    def _flush(self) -> None:
        with suppress(BrokenPipeError):  # the agent closed; the next read tells
            self.sock.sendall(self.session.data_to_send())


class Process:
    """A child with exactly this environment and these descriptors; `lines` is what it says on standard error.

    Args:
        arguments: after the interpreter.
        descriptors: ours by the number the child sees.
        is_heard: False: standard output and error are /dev/null, as a runtime starts plugins.
    """

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        *,
        descriptors: Mapping[int, int] | None = None,
        is_heard: bool = True,
    ) -> None:
        said, says = os.pipe()
        numbers = dict(descriptors or {})
        actions: list[tuple[object, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        for number in (1, 2):
            if is_heard:
                numbers[number] = says
            else:
                actions.append((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0))
        actions += [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in numbers.items()]
        command = [sys.executable, *arguments]
        self.pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions)
        os.close(says)
        self.output = os.fdopen(said)
        self.heard: list[str] = []
        self._code: int | None = None

    def wait_for_line(self, text: str) -> str:
        """Read what it says until a line holds `text`."""
        for line in self.output:
            self.heard.append(line)
            if text in line:
                return line
        raise AssertionError(f"the agent ended and never said {text!r}: {''.join(self.heard)}")

    def wait_for_lines(self, *texts: str) -> None:
        """Read what it says until each text was in a line, in any order: two threads may say them."""
        missing = set(texts)
        while missing:
            line = self.wait_for_line("")
            missing -= {text for text in missing if text in line}

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code; minus the signal that killed it."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.heard += self.output.readlines()
            self.output.close()
        return self._code

    def end(self) -> None:
        """Kill it when it still runs."""
        if self._code is None:
            self.signal(signal.SIGKILL)
            self.wait()


def launcher(yield_s: float) -> str:
    """What the installed plugin file does; the agent that serves has `yield_s` to give up."""
    return f"""\
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from nri_plugin.agent.serving import serving_lease
serving_lease.YIELD_S = {yield_s}
from nri_plugin.__main__ import main
sys.exit(main())
"""


def until(fact: Callable[[], object], what: str) -> None:
    """Wait for something that no descriptor tells of."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


class Site:
    """A machine, a configuration and a runtime's socket in a folder; ends what it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        machine_root(folder)
        self.config = folder / "config.yaml"
        self.config.write_text(config_text(folder))
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "nri.sock"))
        self.listener.listen()
        self.listener.settimeout(30)
        self.processes: list[Process] = []
        self.peers: list[Peer] = []

    def start(self, *words: str) -> Process:
        environment = {"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]}
        return self.spawn(["-m", "nri_plugin", "run", "--config", str(self.config), *words], environment)

    def spawn(self, arguments: list[str], environment: dict[str, str], **options: object) -> Process:
        self.processes.append(Process(arguments, environment, **options))  # type: ignore[arg-type]
        return self.processes[-1]

    def launch(
        self, config: str = "", name: str = "pin", yield_s: float = PATIENCE_S
    ) -> tuple[Process, Peer]:
        """Start the agent as a runtime does: descriptor 3, three variables, nobody listening."""
        plugin = self.folder / f"10-{name}"
        plugin.write_text(launcher(yield_s))
        ours, theirs = socket.socketpair()
        environment = {"NRI_PLUGIN_NAME": name, "NRI_PLUGIN_IDX": "10", "NRI_PLUGIN_SOCKET": "3"}
        with theirs:
            process = self.spawn(
                ["-I", str(plugin)], environment, descriptors={3: theirs.fileno()}, is_heard=False
            )
        self.peers.append(Peer(ours, launched_as=(name, "10"), config=config or config_text(self.folder)))
        return process, self.peers[-1]

    def relatives(self) -> dict[int, str]:
        """Processes by id that were started from the plugin file, and their names."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"\0{self.folder}/10-".encode() in (place / "cmdline").read_bytes():
                    found[int(place.name)] = (place / "comm").read_text().strip()
        return found

    def accept(self) -> Peer:
        self.peers.append(Peer(self.listener.accept()[0]))
        return self.peers[-1]

    def checkpoint(self) -> str:
        return (self.folder / "state" / "state.json").read_text()

    def close(self) -> None:
        for number, _ in sorted(self.relatives().items(), key=lambda one: one[1] != SUPERVISOR):
            with suppress(ProcessLookupError):  # supervisors first: they would start another agent
                os.kill(number, signal.SIGKILL)
        for process in self.processes:
            process.end()
        for peer in self.peers:
            peer.sock.close()
        self.listener.close()
