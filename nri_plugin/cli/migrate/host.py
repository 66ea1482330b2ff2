"""The node that a migration works on: its files, cgroups, services, sockets, and the record of how far a migration came.

All effects happen here. The record is on a disk that survives a reboot, and is written before each step. A process that
finds one that is not finished knows what may have been done, and needs nothing else to finish or undo it.
"""

import difflib
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from msgspec import Struct

from nri_plugin.checkpoint.directory import replace_file, require_own_place, sync_directory
from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint, write_whole
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.cli.state.source import FailedError, awaiting_agent, read_agent, refuse_while_agent_runs
from nri_plugin.cli.state.verify import contradictions, live_findings
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import Config, load_text
from nri_plugin.host.cgroup import Cgroups, container_cgroups, is_empty, runs_on
from nri_plugin.model.errors import CheckpointError, HostError, NriPinError
from nri_plugin.model.options import Node

SYSTEMCTL_S = 180
"""A unit that does not stop is killed by systemd after 90 s."""

NO_SYSTEMD = (
    "cannot reach systemd, and nri-pin migrate works through it; run it on the node as root, or in a pod that sees the "
    "node's files and processes; where another program starts the kubelet, migrate by hand: deploy/guide/migrate.md"
)
IN_CHROOT = "in chroot, ignoring"
"""systemctl says this, does nothing, and ends with exit code 0."""

UNREACHED = ("not been booted with systemd", "failed to connect to", "failed to run command", IN_CHROOT)
"""Parts of what systemctl, or chroot, says where there is no systemd. The exit codes do not tell."""


class Systemd:
    """systemd of this node, or of the node whose root file system is mounted at `root`; each call may be repeated.

    Below another root the node's own program is called. It reaches the node's systemd by its socket, as long as this
    process sees the processes of the node: otherwise the program takes itself for one in a chroot, and does nothing.
    """

    def __init__(self, root: str = "/") -> None:
        self._prefix = [] if root == "/" else ["chroot", root]

    def start(self, unit: str) -> None:
        """Start it, also after it has failed too often."""
        self._call("reset-failed", unit, is_needed=False)
        self._call("start", unit)

    def stop(self, unit: str) -> None:
        """Stop it."""
        self._call("stop", unit)

    def restart(self, unit: str) -> None:
        """Stop and start it."""
        self._call("restart", unit)

    def enable(self, unit: str, *, on: bool) -> None:
        """Choose whether it starts with the machine."""
        self._call("enable" if on else "disable", unit)

    def reload(self) -> None:
        """Read the unit files again."""
        self._call("daemon-reload")

    def show(self, unit: str, name: str) -> str:
        """A property of a unit; empty where it has none."""
        return self._call("show", "--value", "-p", name, unit).strip()

    def _call(self, *words: str, is_needed: bool = True) -> str:
        command = [*self._prefix, "systemctl", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SYSTEMCTL_S)
        except FileNotFoundError:
            raise HostError(command[0], f"is not there: {NO_SYSTEMD}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(" ".join(command), f"failed: {error}") from None
        if is_needed and (done.returncode or IN_CHROOT in done.stderr):
            raise HostError(" ".join(command), _why(done))
        return done.stdout


def _why(done: "subprocess.CompletedProcess[str]") -> str:
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    is_unreached = any(part in said.lower() for part in UNREACHED)
    return f"{NO_SYSTEMD}; systemctl said: {said}" if is_unreached else said


# ---- the plan and the record

DIRECTORY = "/var/lib/nri-pin"
RECORD, LOCK = "migration.json", "migration.lock"

TO_PLUGIN: Literal["to-plugin"] = "to-plugin"
TO_KUBELET: Literal["to-kubelet"] = "to-kubelet"


class FileEdit(Struct, frozen=True):
    """A file and its new text.

    Attributes:
        path: on the node.
        before: None where there is no such file.
        after: None where the file goes.
    """

    path: str
    before: str | None
    after: str | None

    def diff(self) -> list[str]:
        """The changed lines, with a few around them."""
        before, after = ((text or "").splitlines() for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, self.path, self.path, n=1, lineterm="")
        return list(lines)


class Plan(Struct, frozen=True):
    """A migration, decided. All paths are those of the node, without the root.

    Attributes:
        direction: to the agent, or back.
        way: what starts the agent: a unit of systemd, the runtime, or a DaemonSet.
        kubelet_unit: of the kubelet.
        kubelet_dir: its root directory.
        kubelet_was_up: whether it had started its managers before.
        agent_unit: the unit that starts the agent: its own, or that of the runtime; empty for a DaemonSet.
        agent_was_enabled: whether that unit started with the machine.
        agent_runs: the agent serves the runtime already, and is left alone.
        state_dir: of the agent.
        config: text of the agent's configuration.
        config_path: where that is from.
        plugin: the executable by which the runtime starts the agent; None for another way.
        state_files: the kubelet's state files that are of a policy that allocates.
        containers: the path of the output of crictl; empty for none.
        without_memory: whether allocated memory is left out.
        kubelet_edits: of the kubelet's configuration.
        agent_edits: of the agent's.
        before: the CPUs of each container by cgroup.
        exclusive: CPUs that are exclusive.
    """

    direction: Literal["to-plugin", "to-kubelet"]
    way: Literal["unit", "runtime", "daemonset"]
    kubelet_unit: str
    kubelet_dir: str
    kubelet_was_up: bool
    agent_unit: str
    agent_was_enabled: bool
    agent_runs: bool
    state_dir: str
    config: str
    config_path: str
    plugin: FileEdit | None
    state_files: tuple[str, ...]
    containers: str
    without_memory: bool
    kubelet_edits: tuple[FileEdit, ...]
    agent_edits: tuple[FileEdit, ...]
    before: dict[str, str]
    exclusive: str


class MigrationRecord(Struct, frozen=True):
    """How far a migration came.

    Attributes:
        plan: what it does.
        begun: names of steps that may have been done.
        undoing: whether they are being undone.
    """

    plan: Plan
    begun: tuple[str, ...] = ()
    undoing: bool = False
    version: int = 1


class RecordFile:
    """The record of the one migration of a node.

    Args:
        directory: on a disk.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, RECORD)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other migrations away meanwhile.

        Raises:
            CheckpointError: another one runs, or the directory cannot be made.
        """
        path = os.path.join(self.directory, LOCK)
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise CheckpointError(path, f"cannot be opened: {error.strerror}; run as root") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise CheckpointError(
                path, "another nri-pin migrate works on this node; wait for its end"
            ) from None
        finally:
            os.close(descriptor)

    def read(self) -> MigrationRecord | None:
        """The record of a migration that has not ended; None for none.

        Raises:
            CheckpointError: it is damaged.
        """
        try:
            with open(self.path, "rb") as file:
                return msgspec.json.decode(file.read(), type=MigrationRecord)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(self.path, f"cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, ValueError) as error:
            raise CheckpointError(
                self.path,
                f"is no record of a migration ({error}); the guide has the steps by hand; then remove it",
            ) from None

    def write(self, record: MigrationRecord) -> None:
        """Replace it, on the disk.

        Raises:
            CheckpointError: it cannot be written.
        """
        write_whole(self.path, msgspec.json.encode(record), replace=True)

    def remove(self) -> None:
        """The migration has ended."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        sync_directory(self.directory)


# ---- the node

ASIDE = "before-nri-pin"
"""The end of the names of files that are kept for the way back."""

DEVICE_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"
"""The kubelet listens here after its CPU and Memory Managers have started, whatever its root directory is.

Source: kubelet v1.36 cm/container_manager_linux.go, Start: the managers of CPUs and memory come first, a failure of theirs
ends the kubelet, and the device manager comes last.
"""

POLL_S = 0.5
NEW_FILE_MODE = 0o644
PLUGIN_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Host:
    """A node.

    Attributes:
        view: its files.
        services: its services.
        timeout_s: how long to wait for a service that was started.
        clock: seconds.
        sleep: waits so many seconds.
    """

    view: NodeView
    services: Systemd
    timeout_s: float = 120.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def place(self, path: str) -> str:
        """Where a path of the node is from here.

        Raises:
            HostError: it cannot be seen.
        """
        found = self.view.find(path)
        if isinstance(found, Hidden):
            raise HostError(path, f"cannot be seen from here; mount {found.path} of the node at {found.at}")
        return found

    def config(self, plan: Plan) -> Config:
        """The agent's configuration, with the places where this process sees the node.

        Raises:
            ConfigError: it is wrong.
        """
        root = self.view.root
        return replace(
            load_text(plan.config, plan.config_path, machine=Capacity.below(root)),
            state_dir=self.place(plan.state_dir),
            sysfs_root=root,
            cgroup_root=self.place("/sys/fs/cgroup"),
        )

    # ---- files

    def check(self, edit: FileEdit) -> None:
        """Check that a file is as it was when the migration was planned, or has its new text already.

        Raises:
            HostError: another program has changed it since.
        """
        path = self.place(edit.path)
        if not self._is(path, edit.before) and not self._is(path, edit.after):
            raise HostError(
                path, "was changed since the plan was made; run the command again, for a new plan"
            )

    def edit(self, edit: FileEdit) -> None:
        """Give a file its new text; the present one is kept beside it.

        Raises:
            HostError: another program has changed the file since the plan was made; it keeps that text.
        """
        self.check(edit)
        path = self.place(edit.path)
        if self._is(path, edit.after):
            return
        require_own_place(os.path.join(self.view.root, edit.path.lstrip("/")))
        if edit.before is not None:
            replace_file(f"{path}.{ASIDE}", edit.before.encode(), mode=NEW_FILE_MODE, like=path)
        self._write(path, edit.after)

    def restore(self, edit: FileEdit) -> None:
        """Give a file its former text again, unless another program has changed it since.

        A file that was changed before `edit` came to it has no copy of its former text beside it, and stays.

        Raises:
            HostError: it was changed after `edit`.
        """
        path = self.place(edit.path)
        if self._is(path, edit.before):
            return
        if self._is(path, edit.after):
            self._write(path, edit.before)
        elif self._is(f"{path}.{ASIDE}", edit.before):
            raise HostError(path, f"was changed meanwhile; {path}.{ASIDE} has the former text")

    def _is(self, path: str, text: str | None) -> bool:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read() == text
        except FileNotFoundError:
            return text is None

    def _write(self, path: str, text: str | None, mode: int = NEW_FILE_MODE) -> None:
        if text is not None:
            require_own_place(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            replace_file(path, text.encode(), mode=mode, like=path)
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
            sync_directory(os.path.dirname(path))

    def remove_plugin(self, edit: FileEdit) -> None:
        """Remove the executable: a runtime that starts finds none, and the agent's supervisor ends."""
        self._write(self.place(edit.path), None)

    def restore_plugin(self, edit: FileEdit) -> None:
        """Make it again."""
        self._write(self.place(edit.path), edit.before, PLUGIN_MODE)

    def move(self, source: str, target: str) -> None:
        """Rename a file if it is there."""
        with suppress(FileNotFoundError):
            os.replace(source, target)
            sync_directory(os.path.dirname(target))

    # ---- the kubelet

    def kubelet_is_up(self) -> bool:
        """Whether it has started its managers."""
        return self.view.connects(DEVICE_SOCKET) == ""

    def start_kubelet(self, plan: Plan, *, is_expected: bool = True) -> None:
        """Start it, and wait until its managers have started.

        Raises:
            HostError: it ends again, or they do not start in time.
        """
        unit = plan.kubelet_unit
        self.services.start(unit)
        before = self.services.show(unit, "NRestarts")
        if is_expected:
            self._wait(lambda: self._why_no_kubelet(plan, before), unit)

    def _why_no_kubelet(self, plan: Plan, before: str) -> str:
        """Raise where waiting longer does not help."""
        unit = plan.kubelet_unit
        state = self.services.show(unit, "ActiveState")
        if state == "failed" or self.services.show(unit, "NRestarts") != before:
            raise HostError(unit, f"ended after its start; journalctl -u {unit} -n 30 tells why")
        return (
            "" if self.kubelet_is_up() else f"its managers have not started; journalctl -u {unit} tells why"
        )

    def _wait(self, why_not: Callable[[], str], what: str) -> None:
        ends_at = self.clock() + self.timeout_s
        while reason := why_not():
            if self.clock() >= ends_at:
                raise HostError(what, f"{reason} (after {self.timeout_s:.0f} s)")
            self.sleep(POLL_S)

    # ---- the agent

    def wait_for_agent(self, plan: Plan, node: Node) -> None:
        """Wait until the agent has placed what runs, as its checkpoint says.

        Raises:
            HostError: it does not in time, with the last reason.
        """
        config = self.config(plan)
        self._wait(lambda: _why_no_agent(config, node), plan.agent_unit)

    def wait_for_end_of_agent(self, plan: Plan) -> None:
        """Wait until no agent has the state directory; one that the runtime starts ends seconds after its plugin is gone.

        Raises:
            HostError: one still has it.
        """
        state_dir = self.place(plan.state_dir)
        self._wait(lambda: why_locked(state_dir), plan.agent_unit)

    # ---- cgroups

    def cpusets(self) -> dict[str, str]:
        """The CPUs of each container with a process, by cgroup.

        Raises:
            HostError: there is no cpuset tree.
        """
        cgroups = Cgroups.open(self.place("/sys/fs/cgroup"))
        found = {}
        for one in container_cgroups(cgroups):
            with suppress(HostError):
                if not is_empty(cgroups, one.path):
                    found[one.path] = str(runs_on(cgroups, one.path) or "")
        return found


def why_locked(state_dir: str) -> str:
    """Which agent works on the directory; empty for none."""
    try:
        refuse_while_agent_runs(state_dir)
    except FailedError as error:
        return error.message
    return ""


def _why_no_agent(config: Config, node: Node) -> str:
    """Why the agent has not placed what runs; empty when it has."""
    status = read_agent(config.state_dir)
    if status is None:
        return f"the agent does not answer in {config.state_dir}"
    if status.runtime is None:
        return "no runtime is connected to the agent"
    try:
        checkpoint = read_checkpoint(os.path.join(config.state_dir, FILE_NAME))
        if checkpoint is None or awaiting_agent(checkpoint.state):
            return "the agent has not read the import yet"
        _, live = live_findings(checkpoint.state, node, config.cgroup_root, is_own_tree=True)
        return "; ".join(contradictions(checkpoint.state, node) + live)
    except NriPinError as error:
        return str(error)
