"""What a migration is going to do, and the record of how far it came, on a disk that survives a reboot.

The record is written before each step. A process that finds one that is not finished knows what may have been done, and
needs nothing else to finish or undo it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec
from msgspec import Struct

from nri_plugin.checkpoint.directory import sync_directory
from nri_plugin.checkpoint.file import write_whole
from nri_plugin.cli.migrate.kubelet import FileEdit
from nri_plugin.model.errors import CheckpointError

DIRECTORY = "/var/lib/nri-pin"
RECORD, LOCK = "migration.json", "migration.lock"

TO_PLUGIN: Literal["to-plugin"] = "to-plugin"
TO_KUBELET: Literal["to-kubelet"] = "to-kubelet"


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
