"""The node that a migration works on: its files, cgroups, services and sockets. All effects happen here."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from nri_plugin.checkpoint.directory import replace_file, require_own_place, sync_directory
from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.cli.migrate.kubelet import FileEdit
from nri_plugin.cli.migrate.record import Plan
from nri_plugin.cli.migrate.services import Services
from nri_plugin.cli.state.source import FailedError, awaiting_agent, read_agent, refuse_while_agent_runs
from nri_plugin.cli.state.verify import contradictions, live_findings
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import Config, load_text
from nri_plugin.host.cgroup import Cgroups, container_cgroups, is_empty, runs_on
from nri_plugin.model.errors import HostError, NriPinError
from nri_plugin.model.options import Node

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
    services: Services
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
