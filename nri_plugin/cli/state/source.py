"""Shared by the `state` commands: the checkpoint that they read, its machine, and the agent that works on it."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nri_plugin.checkpoint.file import (
    DEFAULT_DIR,
    LOCK_FILE,
    OBSERVED_FILE_NAME,
    latest_path,
    read_checkpoint,
)
from nri_plugin.checkpoint.format import Checkpoint, DamagedJournalError, OtherVersionError
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.cli.output import to_run
from nri_plugin.model.errors import CheckpointError, ConfigError, HostError, NriPinError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.recording.file import DIRECTORY

if TYPE_CHECKING:
    from nri_plugin.agent.observing.status_client import AgentStatus, IncompletePodRow, QuietRow, RuntimeRow


F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1
EXIT_USAGE = 2

HERE = "this one"
AS_RECORDED = (
    "as the checkpoint tells it: its cores, sockets and caches are not known here, --machine names it"
)

state_dir_option = click.option(
    "--state-dir", metavar="DIR", default=DEFAULT_DIR, show_default=True, help="The agent's state directory."
)
file_option = click.option(
    "--state",
    "path",
    metavar="FILE",
    default=None,
    help="A checkpoint file, or its directory; overrides --state-dir.",
)
machine_option = click.option(
    "--machine",
    metavar="NAME|FILE",
    default=None,
    help="The machine that the checkpoint is about, if it is not this one: "
    "a name or file as for `nri-pin topology`.",
)
root_option = click.option(
    "--root", metavar="DIR", default=None, help="The machine whose /sys and /proc are below this directory."
)


cgroup_root_option = click.option(
    "--cgroup-root",
    metavar="DIR",
    help="The host's cgroup tree; default: /sys/fs/cgroup, or the one that is mounted below /host.",
)


HOST_TREE = "/host/sys/fs/cgroup"
OWN_TREE = "/sys/fs/cgroup"


def cgroup_root_here() -> str:
    """The host's cgroup tree as a container of ours sees it, else this system's."""
    return HOST_TREE if os.path.isdir(HOST_TREE) else OWN_TREE


class FailedError(click.ClickException):
    """The command is correct and has failed."""

    exit_code = EXIT_FAILED


class WrongUsageError(click.ClickException):
    """The command names a file, a machine or a tree that is not there."""

    exit_code = EXIT_USAGE


@contextmanager
def usage_errors() -> Iterator[None]:
    """Errors of files, machines and trees are wrong usage here: the command line names another one than it should.

    Raises:
        WrongUsageError: in place of an error of ours.
    """
    try:
        yield
    except ConfigError as error:
        # lines to copy into a file are indented, by which the command line tells them from others
        raise WrongUsageError("\n  ".join((error.sentence, *error.more))) from error
    except NriPinError as error:
        raise WrongUsageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Seen:
    """A state and its machine.

    Attributes:
        state: the allocations and containers.
        node: the machine, as far as known; None when it is not.
        has_parts: whether its cores, sockets and caches are known, too.
        machine: where the machine is known from, in words.
    """

    state: State
    node: Node | None
    has_parts: bool = False
    machine: str = ""


def load_checkpoint(path: str) -> Checkpoint:
    """The checkpoint.

    Raises:
        FailedError: it is damaged.
        WrongUsageError: there is none, or it cannot be opened.
    """
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as error:
        is_elsewhere = isinstance(error.__cause__, OSError)
        kind = WrongUsageError if is_elsewhere else FailedError
        raise kind(f"{error}; {what_to_do(error, path)}") from error
    if checkpoint is None and os.path.exists(f"{path}.previous"):
        raise WrongUsageError(
            f"{path}: there is no checkpoint, only the generation before it; {next_start(path)}"
        )
    if checkpoint is None:
        raise WrongUsageError(
            f"{path}: there is no checkpoint; name the agent's --state-dir, or start the agent, "
            "which writes one when the runtime first tells it of a container"
        )
    return checkpoint


def path_of(state_dir: str, path: str | None) -> str:
    """The checkpoint that the options name."""
    if path is None:
        return latest_path(state_dir)
    return latest_path(path) if os.path.isdir(path) else path


def is_observed(source: str) -> bool:
    """Whether it holds the allocations of an agent that only observed."""
    return os.path.basename(source) == OBSERVED_FILE_NAME


def what_to_do(error: CheckpointError, path: str) -> str:
    """The next step for a checkpoint that cannot be read."""
    if isinstance(error.__cause__, PermissionError):
        return "run as root"
    if isinstance(error.__cause__, OtherVersionError):
        return "show it with the nri-pin that wrote it"
    if isinstance(error.__cause__, OSError):
        return "name the agent's --state-dir, or a checkpoint with --state"
    return (
        f"nothing has to be deleted: a running agent writes a new one at its next change; {next_start(path)}"
    )


def next_start(path: str) -> str:
    """What the agent does with the checkpoint at `path` when it starts, as `CheckpointFile.load` does it."""
    kept = f"at its next start the agent keeps it as {os.path.basename(path)}.damaged-N and"
    try:
        found = read_checkpoint(path)
    except CheckpointError as error:
        if isinstance(error.__cause__, DamagedJournalError):
            sound = error.__cause__.sound
            return f"{kept} goes on with the records before the damage, up to generation {sound.generation}"
    else:
        if found is not None:
            unfinished = ", without the unfinished record at its end" if found.is_cut else ""
            return f"at its next start the agent reads it{unfinished}"
        kept = "at its next start the agent"
    with suppress(CheckpointError):
        former = read_checkpoint(f"{path}.previous")
        if former is not None:
            return f"{kept} takes the generation before it, {former.generation}, and what the running containers have"
    return f"{kept} rebuilds the state from the running containers"


def recorded_node(state_dir: str) -> Node | None:
    """The last machine and configuration of the history in a state directory; None where it has none."""
    from nri_plugin.config.loading import load_hint_providers
    from nri_plugin.recording.reader import read

    try:
        entries = read(os.path.join(state_dir, DIRECTORY), load_hint_providers()).entries()
        return next((entry.node for entry in reversed(list(entries)) if entry.node is not None), None)
    except HostError:
        return None


def seen(checkpoint: Checkpoint, machine: str | None = None, root: str | None = None, path: str = "") -> Seen:
    """The checkpoint with its machine: the named one, else this one if it fits, else one that its files know.

    Args:
        checkpoint: is shown.
        machine: a named machine.
        root: of the machine's files.
        path: the file of the checkpoint; a history beside it knows the machine.

    Raises:
        WrongUsageError: the named machine is another one than the checkpoint is about.
        HostError, ConfigError: the named machine cannot be read.
    """
    facts, state = checkpoint.facts, checkpoint.state
    topology, name = named_topology(machine, root)
    if topology is not None:
        need_same_machine(facts, topology, name)
        return Seen(state, node_on(topology, facts), has_parts=True, machine=name)
    if facts is None:
        return Seen(state, None, has_parts=False, machine="not known: the checkpoint does not tell it")
    here = this_machine()
    if here is not None and fits(facts, here):
        return Seen(state, node_on(here, facts), has_parts=True, machine=HERE)
    recorded = recorded_node(os.path.dirname(path)) if path else None
    if recorded is not None and fits(facts, recorded.topology):
        where = f"that of the history beside {path}"
        return Seen(state, node_on(recorded.topology, facts), has_parts=True, machine=where)
    return Seen(state, facts.as_node(), has_parts=False, machine=AS_RECORDED)


def named_topology(machine: str | None, root: str | None) -> tuple[Topology | None, str]:
    """The machine of the options and its name; None where none is named.

    Raises:
        WrongUsageError: both options are given.
        HostError, ConfigError: it cannot be read.
    """
    if machine is not None and root is not None:
        raise WrongUsageError("--machine and --root exclude each other; give one")
    if machine is not None:
        from nri_plugin.simulator.machine.source import read_machine

        found = read_machine(machine)
        return found.topology, found.name
    if root is not None:
        from nri_plugin.host.sysfs import discover

        return discover(root), root
    return None, ""


def node_on(topology: Topology, facts: NodeFacts | None) -> Node:
    """The node with all that is known of the machine and what the checkpoint knows of the configuration and of cgroups."""
    if facts is None:
        return Node(topology, Options(), CPUSet())
    options = Options(strict_cpu_reservation=facts.strict_cpu_reservation)
    return Node(topology.within(facts.online), options, facts.reserved)


def fits(facts: NodeFacts, topology: Topology) -> bool:
    """Whether this can be the machine of the checkpoint, some CPUs on or off since then."""
    cpus_by_node = {node.id: node.cpus for node in topology.nodes}
    present = topology.online | topology.offline
    return (
        facts.online <= present
        and [number for number, _ in facts.numa_nodes] == list(cpus_by_node)
        and all((cpus & topology.online) <= cpus_by_node[number] for number, cpus in facts.numa_nodes)
    )


def need_same_machine(facts: NodeFacts | None, topology: Topology, name: str) -> None:
    """Check that a named machine can be the one of the checkpoint.

    Raises:
        WrongUsageError: it is another machine.
    """
    if facts is not None and not fits(facts, topology):
        raise WrongUsageError(
            f"{name} is another machine than the checkpoint is about, which has CPUs {facts.online} on "
            f"{len(facts.numa_nodes)} NUMA nodes, not {topology.online} on {len(topology.nodes)}; name the right one "
            "with --machine or --root"
        )


def this_machine() -> Topology | None:
    """The machine this runs on; None where it cannot be read."""
    from nri_plugin.host.sysfs import discover

    try:
        return discover("/")
    except (HostError, ConfigError):
        return None


SOCKET = "agent.sock"
ANSWER_S = 2.0
"""An agent that is there tells everything within milliseconds of being asked."""


def look_closer() -> str:
    """Where a reader learns why."""
    return f"{to_run('doctor')} tells why"


NO_RUNTIME = "no runtime is connected to the agent: containers that are created now are not placed"


@dataclass(frozen=True, slots=True)
class AgentNow:
    """The agent at this moment.

    Attributes:
        answers: whether it answers on its status socket.
        runtime: the connected container runtime; None for none.
        incomplete: pods that run in part.
        quiet: quiet CPUs; None where nobody asks for them.
    """

    answers: bool = False
    runtime: "RuntimeRow | None" = None
    incomplete: "tuple[IncompletePodRow, ...]" = ()
    quiet: "QuietRow | None" = None

    @property
    def has_no_runtime(self) -> bool:
        """It answers, and no runtime is connected to it."""
        return self.answers and self.runtime is None


def read_agent(state_dir: str) -> "AgentStatus | None":
    """The status of the agent of a state directory; None where none answers in time."""
    path = os.path.join(state_dir, SOCKET)
    if not os.path.exists(path):
        return None
    from nri_plugin.agent.observing.status_client import read_status

    try:
        return read_status(path, ANSWER_S)
    except HostError:
        return None


def agent_now(state_dir: str) -> AgentNow:
    """The agent of a state directory; one that does not answer in time is none."""
    status = read_agent(state_dir)
    if status is None:
        return AgentNow()
    return AgentNow(True, status.runtime, status.incomplete, status.quiet)


def runtime_facts(runtime: "RuntimeRow | None") -> dict[str, str] | None:
    """A runtime for programs; None for none."""
    return None if runtime is None else {"name": runtime.name, "version": runtime.version}


def refuse_while_agent_runs(state_dir: str) -> None:
    """Check that no agent holds the lock of the directory; a directory without a lock file has no agent.

    Raises:
        FailedError: an agent runs; names it.
    """
    if os.path.lexists(os.path.join(state_dir, LOCK_FILE)):
        with locked(state_dir):
            pass


@contextmanager
def locked(state_dir: str) -> Iterator[None]:
    """Keep agents from starting on the directory meanwhile.

    Raises:
        FailedError: an agent runs; names it.
    """
    path = os.path.join(state_dir, LOCK_FILE)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise FailedError(f"{path}: cannot be opened: {error.strerror}; run as root") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        who = f"the agent with process id {holder}" if holder.isdecimal() else "an agent"
        raise FailedError(f"{state_dir}: {who} works on it; stop it first") from None
    finally:
        os.close(descriptor)


def awaiting_agent(state: State) -> int:
    """The number of imported allocations that no agent has read yet: an agent knows pods, an import knows none."""
    return 0 if state.pods or state.containers else len(state.allocations)
