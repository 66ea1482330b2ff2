"""`nri-pin state import` and `export`: a node changes between the kubelet's managers and nri-pin without draining."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace

import click

from nri_plugin.app.config import DEFAULT_PATH, Config, load
from nri_plugin.app.startup import build_node, lock_state_dir
from nri_plugin.cli.output import format_option
from nri_plugin.errors import CheckpointError, NriPinError
from nri_plugin.host.checkpoint import FILE_NAME, CheckpointFile, read_checkpoint
from nri_plugin.host.kubelet_state import (
    CPU_FILE,
    MEMORY_FILE,
    KubeletPromises,
    cpu_file,
    imported,
    kubelet_refusals,
    memory_file,
    read_promises,
    shared_within_pods,
)
from nri_plugin.options import MemoryManagerPolicy, Node
from nri_plugin.satisfaction import unsatisfied
from nri_plugin.state import State, allocation_key

EXIT_REFUSED = 1

IMPORT_EXAMPLES = """\b
Examples:
  nri-pin state import /var/lib/kubelet
  crictl ps -o json > running.json
  nri-pin state import /var/lib/kubelet --containers running.json

\b
From the kubelet's static managers to nri-pin, on a node that goes on working:
  1. stop the kubelet; containers go on running
  2. nri-pin state import /var/lib/kubelet
  3. set cpuManagerPolicy, topologyManagerPolicy and memoryManagerPolicy of
     the kubelet to none and remove its cpu_manager_state and
     memory_manager_state
  4. start nri-pin, then the kubelet
"""

EXPORT_EXAMPLES = """\b
Examples:
  nri-pin state export /var/lib/kubelet
  nri-pin state export ./files --force

\b
Back from nri-pin to the kubelet's static managers:
  1. stop the kubelet, then nri-pin
  2. nri-pin state export /var/lib/kubelet --force
  3. give the kubelet the options that nri-pin had, and start it
"""

config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    default=DEFAULT_PATH,
    show_default=True,
    help="The agent's configuration.",
)
state_dir_option = click.option(
    "--state-dir", metavar="DIR", help="Instead of the stateDir in the configuration."
)
root_option = click.option(
    "--root", metavar="DIR", help="The machine whose /sys and /proc are below this directory."
)


class RefusedError(click.ClickException):
    """Nothing was changed."""

    exit_code = EXIT_REFUSED


class UnusableError(click.ClickException):
    """The question could not be answered."""

    exit_code = 2


@click.command(name="import", epilog=IMPORT_EXAMPLES)
@click.argument("kubelet_dir")
@config_option
@state_dir_option
@root_option
@click.option(
    "--containers",
    metavar="FILE",
    help="What `crictl ps -o json` prints: only these containers are taken over.",
)
@format_option()
def import_command(
    kubelet_dir: str,
    config_path: str,
    state_dir: str | None,
    root: str | None,
    containers: str | None,
    output_format: str,
) -> None:
    """Take over what the kubelet's static managers promised, from KUBELET_DIR.

    Checksums are verified, and the promises are checked against this machine and the configuration. They
    go into an empty checkpoint, while no agent runs; the agent finds them when it starts and moves nobody.

    Exit code: 0, 1 when the promises cannot be kept, 2 when a file or the machine cannot be read.
    """
    try:
        config, node = _configured(config_path, state_dir, root)
        promises = read_promises(kubelet_dir)
        if containers is not None:
            promises = promises.of(running(containers))
        _check(promises)
        state = imported(node, promises)
        _refuse(state.violations(node))
        _save(config, node, state)
    except NriPinError as error:
        raise UnusableError(str(error)) from error
    _told(state, os.path.join(config.state_dir, FILE_NAME), output_format)
    if promises.memory and node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        click.echo("memory was left out: memoryManagerPolicy is not Static in the configuration", err=True)


@click.command(name="export", epilog=EXPORT_EXAMPLES)
@click.argument("kubelet_dir")
@config_option
@state_dir_option
@root_option
@click.option(
    "--force", is_flag=True, help="Replace files that are there; they are kept as NAME.before-export."
)
@format_option()
def export_command(
    kubelet_dir: str,
    config_path: str,
    state_dir: str | None,
    root: str | None,
    force: bool,
    output_format: str,
) -> None:
    """Write the promises to KUBELET_DIR as the state files of the kubelet's static managers.

    Nothing is written that a kubelet with the same options would not start on.

    Exit code: 0, 1 when a kubelet would refuse them, 2 when a file or the machine cannot be read or written.
    """
    try:
        config, node = _configured(config_path, state_dir, root)
        state = _saved(config)
        _refuse(kubelet_refusals(node, state))
        files = _files(node, state)
        for name, data in files.items():
            _write(os.path.join(kubelet_dir, name), data, force=force)
    except NriPinError as error:
        raise UnusableError(str(error)) from error
    _told(state, ", ".join(os.path.join(kubelet_dir, name) for name in files), output_format)


def would_refuse(state: State, config_path: str, root: str | None) -> list[str]:
    """What a kubelet with the options of this configuration would find wrong with our promises.

    Raises:
        ConfigError: the configuration is wrong or does not fit the machine.
        HostError: the machine cannot be read.
    """
    return kubelet_refusals(_configured(config_path, None, root)[1], state)


def would_not_make(state: State, config_path: str, root: str | None) -> list[str]:
    """Running placements that this configuration would not have made.

    Raises:
        ConfigError: the configuration is wrong or does not fit the machine.
        HostError: the machine cannot be read.
    """
    return unsatisfied(_configured(config_path, None, root)[1], state)


def _configured(path: str, state_dir: str | None, root: str | None) -> tuple[Config, Node]:
    config = load(path)
    if state_dir is not None:
        config = replace(config, state_dir=state_dir)
    if root is not None:
        config = replace(config, sysfs_root=root)
    return config, build_node(config, None)


def running(path: str) -> Mapping[str, str]:
    """Allocation keys by container id, from what crictl printed."""
    try:
        with open(path, encoding="utf-8") as file:
            listed = json.load(file)["containers"]
        return {
            one["id"]: allocation_key(one["labels"]["io.kubernetes.pod.uid"], one["metadata"]["name"])
            for one in listed
        }
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise CheckpointError(path, "is not what `crictl ps -o json` prints") from None


def _check(promises: KubeletPromises) -> None:
    if promises.cpus_by_id:
        raise RefusedError(
            f"{CPU_FILE} names containers by id, as kubelets before 1.18 did; "
            "tell whose they are with --containers FILE, made by `crictl ps -o json > FILE`"
        )
    shared = shared_within_pods(promises)
    if shared:
        raise RefusedError(
            f"{'; '.join(shared)}: one of them has ended; "
            "name those that run with --containers FILE, made by `crictl ps -o json > FILE`"
        )


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise RefusedError("nothing was changed: " + "; ".join(reasons))


def _save(config: Config, node: Node, state: State) -> None:
    lock = lock_state_dir(config.state_dir)
    try:
        file = CheckpointFile(config.state_dir, node)
        before = read_checkpoint(file.path)
        if before is not None:
            if before.state.allocations:
                raise RefusedError(
                    f"{file.path}: already holds {len(before.state.allocations)} promises of its own; "
                    "give another --state-dir, or move the file away if they are of no worth"
                )
            file.generation = before.generation
        file.save(state)
    finally:
        os.close(lock)


def _saved(config: Config) -> State:
    path = os.path.join(config.state_dir, FILE_NAME)
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise CheckpointError(path, "there is no checkpoint; name the agent's --state-dir")
    return checkpoint.state


def _files(node: Node, state: State) -> dict[str, bytes]:
    files = {CPU_FILE: cpu_file(node, state)}
    if node.options.memory_manager_policy is MemoryManagerPolicy.STATIC:
        files[MEMORY_FILE] = memory_file(node, state)
    return files


def _write(path: str, data: bytes, *, force: bool) -> None:
    """Replace `path` as a whole; what was there is kept beside it."""
    if os.path.lexists(path) and not force:
        raise RefusedError(
            f"{path}: is there already; --force replaces it and keeps it as {path}.before-export"
        )
    new = f"{path}.new"
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.lexists(path):
            os.replace(path, f"{path}.before-export")
        os.replace(new, path)
    except OSError as error:
        raise CheckpointError(path, f"cannot be written: {error.strerror}") from None


def _told(state: State, where: str, output_format: str) -> None:
    if output_format == "json":
        rows = [
            {"container": key, "cpus": str(one.cpus), "mems": str(one.mems)}
            for key, one in state.allocations.items()
        ]
        click.echo(json.dumps({"written": where.split(", "), "promises": rows}, indent=2))
        return
    for key, one in state.allocations.items():
        mems = f"  mems {one.mems}" if one.mems else ""
        click.echo(f"{key}  CPUs {str(one.cpus) or '-'}{mems}")
    count = len(state.allocations)
    click.echo(f"{count} promise{'s' * (count != 1)} written to {where}")
