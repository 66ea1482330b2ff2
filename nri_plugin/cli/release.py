"""`nri-pin release`: give every container all CPUs again, before the agent is removed from a node."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from nri_plugin.agent.cpusets import Released, release
from nri_plugin.agent.repair.interrupts import give_back
from nri_plugin.agent.serving.serving_lease import lock_state_dir
from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME, read_checkpoint
from nri_plugin.checkpoint.quiet_file import QuietFile
from nri_plugin.cli.output import FOR_PROGRAMS, echo, format_option, plain, render, waiting
from nri_plugin.core.pool import slices_of
from nri_plugin.host.cgroup import read_reach
from nri_plugin.host.interrupts import KernelSettingFiles, boot_id
from nri_plugin.host.irqbalance import running
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import CheckpointError, NriPinError
from nri_plugin.model.records import Phase
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import to_stderr

EXIT_FAILURES = 1
EXAMPLES = """\b
Examples:
  systemctl stop nri-pin && nri-pin release
  nri-pin release --state-dir /var/lib/nri-pin --cgroup-root /host/sys/fs/cgroup

\b
In this order:
  1. stop the agent, and keep it from being started again; it would
     pin everything again
  2. nri-pin release

Containers keep running. Memory nodes do not change. The runtime still has the cpuset of each creation: a container
that is created and not started, or that the runtime updates later, gets that one again. The checkpoint stays, so an
agent that is started again has the same allocations.
"""


class UnreleasedError(click.ClickException):
    """The release was refused; no container was changed."""

    exit_code = 2


@click.command(name="release", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--state-dir", metavar="DIR", default=DEFAULT_DIR, show_default=True, help="The agent's state directory."
)
@click.option(
    "--cgroup-root",
    metavar="DIR",
    default="/sys/fs/cgroup",
    show_default=True,
    help="The host's cgroup tree.",
)
@click.option("--root", metavar="DIR", default="/", help="The machine whose /sys is below this directory.")
@click.option(
    "--force", is_flag=True, help="Although an agent runs, which will pin everything again within seconds."
)
@format_option()
@click.pass_context
def command(
    context: click.Context, state_dir: str, cgroup_root: str, root: str, *, force: bool, output_format: str
) -> None:
    """Give every container all CPUs again, and leave no trace in the QoS slices, interrupts and masks of the kernel.

    Exit code: 0, 1 when something could not be given back, 2 when nothing was done.
    """
    try:
        given = give_all_back(state_dir, cgroup_root, root, force=force)
    except NriPinError as error:
        raise UnreleasedError(str(error)) from error
    if output_format in FOR_PROGRAMS:
        echo(render(given.facts(), output_format))
    else:
        for line in given.lines():
            echo(line)
    context.exit(EXIT_FAILURES if given.found.failures else 0)


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The result.

    Attributes:
        found: cgroups.
        state: the checkpoint's.
        online: the CPUs that all containers have now.
        settings: interrupts and masks of the kernel that are as before.
    """

    found: Released
    state: State
    online: CPUSet
    settings: int

    @property
    def not_started(self) -> list[str]:
        """Containers that will start on the CPUs of their creation."""
        phases = (Phase.CREATING, Phase.CREATED)
        return [record.id for record in self.state.containers.values() if record.phase in phases]

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "cpus": self.online,
            **plain(self.found),
            "interrupt_settings": self.settings,
            "not_started": self.not_started,
        }

    def lines(self) -> Iterator[str]:
        """For people: failures first."""
        found = self.found
        yield from found.failures
        yield (
            f"{len(found.widened)} cgroups were given CPUs {self.online}, {len(found.already)} had them, {len(found.gone)} are gone"
            + (f"; {len(found.limited)} have their CPU quota again" if found.limited else "")
            + (f"; {self.settings} interrupts and masks are as before" if self.settings else "")
            + (f"; {len(found.failures)} failed" if found.failures else "")
        )
        if self.not_started:
            yield f"{len(self.not_started)} containers are not started yet and will start on the CPUs of their creation"


def give_all_back(state_dir: str, cgroup_root: str, root: str, *, force: bool = False) -> GivenBack:
    """Give every container all CPUs, and interrupts and masks of the kernel their former values.

    Args:
        state_dir: the agent's.
        cgroup_root: where the cgroup tree is mounted.
        root: the machine whose `sys` and `proc` are below this directory.
        force: although an agent runs.

    Raises:
        NriPinError: nothing was done.
    """
    state = _state(os.path.join(state_dir, FILE_NAME))
    lock = None if force else _locked(state_dir)
    online, tree = discover(root).online, find_cpuset_tree(cgroup_root)
    with waiting("giving CPUs back"):
        found = release(tree, state, online, read_reach(tree, slices_of(state), state.exclusive).cpus)
        settings = _give_interrupts_back(state_dir, root, online, found)
    if lock is not None:
        os.close(lock)
    _doubt(found, state, cgroup_root)
    return GivenBack(found, state, online, settings)


def _state(path: str) -> State:
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise CheckpointError(
            path, "there is no checkpoint, so nothing was pinned; name the agent's --state-dir"
        )
    return checkpoint.state


def _locked(state_dir: str) -> int:
    try:
        return lock_state_dir(state_dir)
    except CheckpointError as error:
        raise UnreleasedError(
            f"{error}: it would pin the containers again; stop it first, or give --force"
        ) from error


def _give_interrupts_back(state_dir: str, root: str, online: CPUSet, found: Released) -> int:
    """Give back what interrupts and masks of the kernel were before quiet CPUs; returns how many settings."""
    count, troubles = give_back(
        KernelSettingFiles(root),
        QuietFile(state_dir, boot_id()),
        online,
        to_stderr("error"),
        time.monotonic,
        partial(running, root),
    )
    found.failures.extend(dict.fromkeys(troubles))
    return count


def _doubt(found: Released, state: State, cgroup_root: str) -> None:
    """Report a tree without the cgroup of any running container: most likely it is not the host's."""
    running = sum(record.phase is Phase.RUNNING for record in state.containers.values())
    if running and not (found.widened or found.already or found.failures):
        found.failures.append(
            f"{cgroup_root}: none of the {running} running containers has its cgroup here; where they still run, mount "
            "the host's cgroup tree and name it with --cgroup-root"
        )
