"""A simulated node in a folder: a described machine, a cgroup tree, a runtime, and the real agent as a process.

The agent is started as on a node, with paths in the folder. The agent has no code for simulated nodes.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nri_plugin.checkpoint.directory import require_own_place, unsafe
from nri_plugin.model.errors import ConfigError, NriPinError
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine import machine
from nri_plugin.simulator.machine.devices import Files
from nri_plugin.simulator.simulate.device_manager import DeviceManager
from nri_plugin.simulator.simulate.pods import RuntimeIdentity, Telling, ToldFacts
from nri_plugin.simulator.simulate.steps import Run
from nri_plugin.wire.nri.messages import ContainerUpdate
from tests.lab.runtime.cgroup_mirror import CgroupMirror
from tests.lab.runtime.cgroup_tree import CgroupTree
from tests.lab.runtime.exporter_stand_in import ExporterStandIn
from tests.lab.runtime.plugin_link import NRIServer, PluginLostError
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.runtime.runtime import Runtime
from tests.lab.scenario.scenario import Scenario

AGENT_START_S = 60.0
"""A start takes half a second, and much longer on a busy machine."""
AGENT_STOP_S = 30.0
REQUEST_S = 30.0
"""No scenario tests lateness: the runtime must not drop an agent that a busy machine delays."""


class AgentFailedError(NriPinError):
    """The agent did not start or did not register; `log` is the end of its log."""

    def __init__(self, why: str, log: str) -> None:
        super().__init__(f"the agent failed: {why}{'; its last words: ' if log else ''}{log}")


class Places:
    """Paths of a simulated node.

    Args:
        root: the folder of the node.
        sockets: another folder, because the length of a socket's path is limited.

    Attributes:
        machine: stands for `/`; holds `sys` and `proc`.
        cgroups: stands for `/sys/fs/cgroup`.
        state: the agent's state directory.
        config: the agent's configuration.
        log: the agent's log.
        socket: the runtime's NRI socket.
        exporter: the socket of the exporter's stand-in.
    """

    def __init__(self, root: Path, sockets: Path) -> None:
        self.root, self.sockets = root, sockets
        self.machine = root / "machine"
        self.cgroups = root / "cgroup"
        self.state = root / "state"
        self.config = root / "config.yaml"
        self.log = root / "agent.log"
        self.socket = sockets / "nri.sock"
        self.exporter = sockets / "exporter.sock"


class ScenarioNode:
    """One node for one scenario.

    Attributes:
        topology: the machine as described; the agent discovers it from the files.
        title: of the machine.
        devices: the simulated device manager of the kubelet.
        exporter: reports devices and facts of pods to the agent; None where the scenario has neither.
        facts: of pods, as far as the exporter tells them.
        reserved: CPUs that the configuration reserves for the system.
        runtime: the embedded runtime.
        server: its NRI socket.
        places: where the files are.
        command: how the agent was started.
    """

    def __init__(self, scenario: Scenario, places: Places) -> None:
        description = described(scenario.machine, scenario.file)
        self.places = places
        self.topology: Topology = machine.build_topology(description)
        self.title = description.title or description.name
        self._description = description
        self.devices = DeviceManager(description.devices, description.links)
        self.reserved = CPUSet.parse(str(scenario.config.get("reservedSystemCPUs", "")))
        places.machine.mkdir(parents=True)
        machine.build_sysfs(description, str(places.machine))
        # with devices or facts the agent asks the exporter's stand-in, unless the scenario names another socket
        self.facts = ToldFacts()
        is_told = any(isinstance(step, Run) and step.facts is not Telling.LOST for step in scenario.steps)
        has_exporter = bool(self.devices.devices) or is_told
        asked = {"exporterSocket": str(places.exporter)} if has_exporter else {}
        self._configured = {**asked, **scenario.config}
        self.reconfigure({})
        mirror = CgroupMirror(CgroupTree.of(self.topology, version=scenario.cgroup_version), places.cgroups)
        mirror.materialize()
        behaviour = BEHAVIOURS[scenario.runtime]
        patient = replace(behaviour, profile=replace(behaviour.profile, request_timeout=REQUEST_S))
        self.runtime = Runtime(RuntimeIdentity.on(self.topology, patient, scenario.driver), mirror)
        self.server = NRIServer(self.runtime, places.socket)
        self.exporter = ExporterStandIn(places.exporter, self.devices, self.facts) if has_exporter else None
        self.command = _nri_pin(
            "run",
            {
                "--config": places.config,
                "--nri-socket": places.socket,
                "--state-dir": places.state,
                "--sysfs-root": places.machine,
                "--cgroup-root": places.cgroups,
            },
        )
        self._agent: subprocess.Popen[bytes] | None = None

    @property
    def agent_pid(self) -> int:
        """The agent's process id, 0 while there is none."""
        return self._agent.pid if self._agent else 0

    @property
    def agent_death(self) -> int | None:
        """The exit code of an agent that ended by itself; None if it runs."""
        return self._agent.poll() if self._agent else None

    def start_agent(self) -> tuple[ContainerUpdate, ...]:
        """Start the agent and accept it in the runtime; returns the updates that it asks for.

        Raises:
            AgentFailedError: it ended or did not register in time.
        """
        with self.places.log.open("ab") as log:
            self._agent = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        before, waited = self.server.link, 0.0
        while waited < AGENT_START_S:
            if self._agent.poll() is not None:
                raise AgentFailedError(f"it ended with code {self._agent.returncode}", self.last_words())
            try:
                return self.server.wait_for_plugin(1.0)
            except PluginLostError as error:
                waited += 1.0
                link = (
                    self.server.link
                )  # a link that was lost with an earlier agent does not concern this one
                if link is not None and link is not before and link.session.lost:
                    raise AgentFailedError(str(error), self.last_words()) from error
        raise AgentFailedError(f"it did not connect within {AGENT_START_S:g} s", self.last_words())

    def reconfigure(self, changes: Mapping[str, Any]) -> None:
        """Change keys in the configuration file, which an agent reads when it starts."""
        self._configured = {**self._configured, **changes}
        self.places.config.write_text(yaml.safe_dump(self._configured, sort_keys=False), encoding="utf-8")

    def kill_agent(self) -> None:
        """SIGKILL: the agent ends without any cleanup."""
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
            self._agent = None

    def stop_agent(self) -> int:
        """SIGTERM, as a node does; returns the exit code."""
        if self._agent is None:
            return 0
        self._agent.send_signal(signal.SIGTERM)
        try:
            code = self._agent.wait(AGENT_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill_agent()
            return -signal.SIGKILL
        self._agent = None
        return code

    def machine_files(self, online: CPUSet) -> tuple[Files, Files]:
        """Files and links of the machine with these CPUs online, by path below its root."""
        return machine.machine_files(replace(self._description, online=online.mask))

    def last_words(self, lines: int = 3) -> str:
        """The end of the agent's log."""
        try:
            text = self.places.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return " | ".join(text.splitlines()[-lines:])

    def close(self) -> None:
        """End the agent and the runtime; the files stay."""
        self.kill_agent()
        self.server.close()
        if self.exporter is not None:
            self.exporter.close()

    @property
    def release_command(self) -> list[str]:
        """Undoes the settings of an agent that has ended."""
        options = {
            "--state-dir": self.places.state,
            "--root": self.places.machine,
            "--cgroup-root": self.places.cgroups,
        }
        return _nri_pin("release", options)


@contextmanager
def stage(scenario: Scenario, keep: Path | None = None) -> Iterator[ScenarioNode]:
    """A node for the time of a `with`. Its files are removed afterwards, unless `keep` names a folder for them.

    Raises:
        ConfigError: the folder cannot be used, or the scenario does not fit together.
    """
    temporary = Path(tempfile.mkdtemp(prefix="nri-pin-", dir=_memory_folder()))
    try:
        places = Places(_kept(keep) if keep else temporary / "node", temporary)
        made = ScenarioNode(scenario, places)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def described(text: str, file: str = "machine") -> machine.Description:
    """The machine a scenario names or describes.

    Raises:
        ConfigError: the description is wrong.
        HostError: no machine of that name.
    """
    return machine.parse(text, source=file) if machine.is_description(text) else machine.load(text)


def _nri_pin(command: str, options: Mapping[str, Path]) -> list[str]:
    words = (str(word) for pair in options.items() for word in pair)
    return [sys.executable, "-P", "-m", "nri_plugin", command, *words]


def _kept(folder: Path) -> Path:
    """A folder that nobody else can change: a link that appears in it would be followed.

    Raises:
        ConfigError: it cannot be made, has files, or somebody else can change it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        owner = folder.lstat().st_uid
        if folder.is_symlink() or owner != os.geteuid() or unsafe(str(folder)):
            detail = f"is a link, or others can change it (owner: user {owner}); name a new folder"
            raise ConfigError(str(folder), detail)
        require_own_place(str(folder / "machine"))
        is_empty = not any(folder.iterdir())
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(
            str(folder), f"cannot be made or read: {why}; name a folder that is yours to write"
        ) from error
    if not is_empty:
        raise ConfigError(str(folder), "is not empty; name a new folder")
    return folder.resolve()


def _memory_folder() -> str | None:
    """A folder in memory, like `/run` on a node; None for the default place of temporary files."""
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), "/dev/shm"):
        if folder and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def _environment() -> dict[str, str]:
    """The environment of a service manager, and the path of this package."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    package = str(Path(__file__).parents[3])
    return {**kept, "PYTHONPATH": package, "PYTHONUNBUFFERED": "1"}
