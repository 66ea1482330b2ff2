"""`nri-pin state import` and `export`: a node changes between the kubelet's managers and nri-pin without draining."""

import glob
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from nri_plugin.agent.serving.serving_lease import lock_state_dir
from nri_plugin.agent.start import build_node
from nri_plugin.checkpoint.directory import require_own_place
from nri_plugin.checkpoint.file import FILE_NAME, CheckpointFile, read_checkpoint, write_whole
from nri_plugin.checkpoint.kubelet_export import (
    cpu_file,
    kubelet_doubts,
    kubelet_refusals,
    memory_file,
    needs_pod_level,
)
from nri_plugin.checkpoint.kubelet_import import (
    CPU_FILE,
    MEMORY_FILE,
    KubeletAllocations,
    imported,
    read_allocations,
    shared_within_pods,
)
from nri_plugin.cli.output import FOR_PROGRAMS, echo, format_option, render
from nri_plugin.cli.state.source import FailedError, awaiting_agent, root_option, usage_errors
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import DEFAULT_PATH, Config, load, load_hint_providers
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, Node
from nri_plugin.model.records import allocation_key, is_whole_pod, named
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology
from nri_plugin.model.violations import violations

BY_CRICTL = "--containers FILE, made by `crictl ps -o json > FILE`"
KUBELET_CONFIG = "config.yaml"
RETIRED = "retired"
"""The folder of checkpoints that no agent uses any more."""

IMPORT_EXAMPLES = """\b
Examples:
  nri-pin state import /var/lib/kubelet
  crictl ps -o json > running.json
  nri-pin state import /var/lib/kubelet --containers running.json

\b
From the kubelet's static managers to nri-pin, on a node that goes on working:
  nri-pin migrate to-plugin
"""

EXPORT_EXAMPLES = """\b
Examples:
  nri-pin state export /var/lib/kubelet
  nri-pin state export ./files --force

\b
Back from nri-pin to the kubelet's static managers:
  nri-pin migrate to-kubelet
"""

NEEDS_GATES = (
    "the files have the form of PodLevelResourceManagers (cpu_manager_state version 3, memory_manager_state version 2); "
    "start the kubelet with the feature gates PodLevelResources and PodLevelResourceManagers, or it refuses them"
)

config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help=f"The agent's configuration.  [default: {DEFAULT_PATH}; where there is none, KUBELET_DIR/{KUBELET_CONFIG}]",
)
state_dir_option = click.option("--state-dir", metavar="DIR", help="Replaces stateDir of the configuration.")


@click.command(name="import", epilog=IMPORT_EXAMPLES)
@click.argument("kubelet_dir")
@config_option
@state_dir_option
@root_option
@click.option(
    "--containers",
    metavar="FILE",
    help="The output of `crictl ps -o json`: only these containers are imported.",
)
@click.option(
    "--without-memory",
    is_flag=True,
    help="Leave out allocated memory where memoryManagerPolicy is not Static in the configuration.",
)
@format_option()
def import_command(
    kubelet_dir: str,
    config_path: str | None,
    state_dir: str | None,
    root: str | None,
    containers: str | None,
    *,
    without_memory: bool,
    output_format: str,
) -> None:
    """Import the allocations of the kubelet's static managers from KUBELET_DIR.

    Checksums are verified, and the allocations are checked against this machine and the configuration. Pods with
    resources of their own (PodLevelResourceManagers) keep their CPUs and memory as a whole. The allocations
    go into an empty checkpoint, while no agent runs; the agent finds them when it starts and moves no container.
    An import that no agent has read yet is replaced. A node without a configuration of the agent, as where a
    DaemonSet brings it, is judged by the kubelet's own file.

    Exit code: 0, 1 when the allocations cannot be kept, 2 when a file or the machine cannot be read.
    """
    with usage_errors():
        config, node = _configured(_path(config_path, kubelet_dir), state_dir, root)
        state = importable(config, node, kubelet_dir, containers, without_memory=without_memory)
        save_import(config, node, state)
    _told(state, os.path.join(config.state_dir, FILE_NAME), output_format)


@click.command(name="export", epilog=EXPORT_EXAMPLES)
@click.argument("kubelet_dir")
@config_option
@state_dir_option
@root_option
@click.option("--force", is_flag=True, help="Replace existing files; they are kept as NAME.before-export.")
@format_option()
def export_command(
    kubelet_dir: str,
    config_path: str | None,
    state_dir: str | None,
    root: str | None,
    force: bool,
    output_format: str,
) -> None:
    """Export the allocations to KUBELET_DIR as the state files of the kubelet's static managers.

    Nothing is written that a kubelet with the same options would refuse to start with. Where memory of a NUMA node is
    allocated over different sets of nodes, the kubelet's own check depends on chance; the export warns of it. Where
    the configuration turns PodLevelResourceManagers on, or a pod has CPUs or memory as a whole, the files have the form
    that only a kubelet with this feature gate reads; the export says so. The checkpoint stays; move it away when the
    kubelet has taken over, or an agent that starts later uses it.

    Exit code: 0, 1 when a kubelet would refuse them, 2 when a file or the machine cannot be read or written.
    """
    with usage_errors():
        config, node = _configured(_path(config_path, kubelet_dir), state_dir, root)
        _check_static(config, kubelet_dir)
        if not os.path.isdir(kubelet_dir):
            raise HostError(
                kubelet_dir, "there is no such directory; make it, or name the kubelet's root directory"
            )
        state, files = exportable(config, node)
        for name, data in files.items():
            _write(os.path.join(kubelet_dir, name), data, force=force)
    path = os.path.join(config.state_dir, FILE_NAME)
    where = ", ".join(os.path.join(kubelet_dir, name) for name in files)
    _told(state, where, output_format, {"stays": path, "retire": _retire(path)})
    if output_format == "text":
        echo(
            f"{path} stays; when the kubelet has taken over, retire it, or the next agent uses it and the next import "
            f"is refused: {_retire(path)}"
        )
    if needs_pod_level(node, state):
        echo(f"note: {NEEDS_GATES}", err=True)
    for doubt in kubelet_doubts(node, state):
        echo(f"warning: {doubt}", err=True)


def importable(
    config: Config, node: Node, kubelet_dir: str, containers: str | None, *, without_memory: bool
) -> State:
    """The kubelet's allocations, checked; nothing is written.

    Raises:
        CheckpointError: a file cannot be read, or is damaged.
        FailedError: they cannot be kept.
    """
    allocations = _named(read_allocations(kubelet_dir), containers)
    _check_memory(allocations, node, config, without_memory=without_memory)
    state = imported(node, allocations)
    _refuse([str(one) for one in violations(node, state)])
    return state


def _named(found: KubeletAllocations, containers: str | None) -> KubeletAllocations:
    """The allocations by pod and container, of running containers alone where the output of crictl names these."""
    if containers is not None:
        found = found.of(_running(containers))
    if found.cpus_by_id:
        raise FailedError(
            f"{CPU_FILE} names containers by id, as kubelets before 1.18 did; name their containers with {BY_CRICTL}"
        )
    if shared := shared_within_pods(found):
        raise FailedError(f"{'; '.join(shared)}: one of them has ended; name those that run with {BY_CRICTL}")
    return found


def _running(path: str) -> Mapping[str, str]:
    """Allocation keys by container id, from the output of crictl."""
    try:
        listed = json.loads(Path(path).read_bytes())["containers"]
        return {
            one["id"]: allocation_key(one["labels"]["io.kubernetes.pod.uid"], one["metadata"]["name"])
            for one in listed
        }
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise CheckpointError(path, "is not what `crictl ps -o json` prints") from None


def exportable(config: Config, node: Node) -> tuple[State, dict[str, bytes]]:
    """The agent's allocations and the kubelet's files for them, checked; nothing is written.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
        FailedError: a kubelet with the node's options would not start on them.
    """
    state = _saved(config)
    _refuse(kubelet_refusals(node, state))
    return state, _files(node, state)


def configured_on(path: str, topology: Topology | None) -> Node:
    """The node with the options of a configuration; None for this machine.

    Raises:
        ConfigError: the configuration is wrong or does not fit the machine.
        HostError: the machine cannot be read.
    """
    if topology is None:
        return _configured(path, None, None)[1]
    return replace(
        load(path, machine=Capacity.of(topology)).node(topology), hint_providers=load_hint_providers()
    )


def _path(given: str | None, kubelet_dir: str) -> str:
    """The configuration to go by: where the DaemonSet has the agent's, the node has the kubelet's."""
    theirs = os.path.join(kubelet_dir, KUBELET_CONFIG)
    if given is not None or os.path.exists(DEFAULT_PATH) or not os.path.exists(theirs):
        return given or DEFAULT_PATH
    echo(f"no {DEFAULT_PATH} here: by the options in {theirs}; --config names others", err=True)
    return theirs


def _retire(path: str) -> str:
    """The command that moves a checkpoint away, with the generation before it, which an agent would fall back to."""
    folder = os.path.join(os.path.dirname(path), RETIRED)
    return f"mkdir -p {folder} && mv {path}* {folder}/"


def retire(path: str) -> None:
    """Do what the command does."""
    folder = os.path.join(os.path.dirname(path), RETIRED)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for found in glob.glob(f"{glob.escape(path)}*"):
        os.replace(found, os.path.join(folder, os.path.basename(found)))


def bring_back(path: str) -> None:
    """Undo `retire`; a checkpoint that is there stays."""
    folder, name = os.path.split(path)
    retired = os.path.join(folder, RETIRED, name)
    if not os.path.exists(path) and os.path.exists(retired):
        os.replace(retired, path)


def _configured(path: str, state_dir: str | None, root: str | None) -> tuple[Config, Node]:
    config = load(path, machine=Capacity.below(root) if root is not None else None)
    if state_dir is not None:
        config = replace(config, state_dir=state_dir)
    if root is not None:
        config = replace(config, sysfs_root=root)
    return config, build_node(config, None)


def _check_memory(
    allocations: KubeletAllocations, node: Node, config: Config, *, without_memory: bool
) -> None:
    """Allocated memory is left out only with --without-memory."""
    if (
        without_memory
        or not allocations.memory
        or node.options.memory_manager_policy is MemoryManagerPolicy.STATIC
    ):
        return
    count = sum(1 for key in allocations.memory if not is_whole_pod(key))
    raise FailedError(
        f"nothing was changed: {MEMORY_FILE} holds memory of {count} container{'s' * (count != 1)}, and "
        f"memoryManagerPolicy is not Static in {config.source}; write it there with the kubelet's reservedMemory, or "
        "leave that memory out with --without-memory"
    )


def _check_static(config: Config, kubelet_dir: str) -> None:
    """Under none, which is the default of a kubelet's own file, it refuses to start on what an export writes."""
    is_theirs = config.source == os.path.join(kubelet_dir, KUBELET_CONFIG)
    is_left_out = is_theirs and "cpuManagerPolicy" not in config.written.entries
    if is_left_out or config.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        raise FailedError(
            f"nothing was changed: cpuManagerPolicy is none in {config.source}, and such a kubelet does not start on "
            "allocations; name the configuration that it is to start with: --config FILE"
        )


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise FailedError("nothing was changed: " + "; ".join(reasons))


def save_import(config: Config, node: Node, state: State) -> None:
    """Write an import to the checkpoint.

    Raises:
        CheckpointError: an agent runs, or it cannot be written.
        FailedError: an agent has made allocations there.
        HostError: others can write there.
    """
    require_own_place(os.path.join(config.state_dir, FILE_NAME))
    lock = lock_state_dir(config.state_dir)
    try:
        file = CheckpointFile(config.state_dir, node)
        before = read_checkpoint(file.path)
        if before is not None and before.state.allocations and not awaiting_agent(before.state):
            raise FailedError(
                f"{file.path}: already holds {len(before.state.allocations)} allocations that an agent made; "
                "where the kubelet has made newer ones since, retire these: "
                f"{_retire(file.path)}; else give another --state-dir"
            )
        file.load()
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
        raise FailedError(
            f"{path}: is there already; --force replaces it and keeps it as {path}.before-export"
        )
    aside = f"{path}.before-export"
    try:
        if os.path.lexists(path):
            with suppress(FileNotFoundError):
                os.unlink(aside)
            os.link(path, aside, follow_symlinks=False)
    except OSError as error:
        raise CheckpointError(path, f"cannot be kept as {aside}: {error.strerror}") from None
    write_whole(path, data, replace=True)


def _told(state: State, where: str, output_format: str, more: Mapping[str, str] | None = None) -> None:
    if output_format in FOR_PROGRAMS:
        rows = [
            {"container": key, "cpus": one.cpus, "mems": one.mems} for key, one in state.allocations.items()
        ]
        echo(render({"written": where.split(", "), "allocations": rows, **(more or {})}, output_format))
        return
    for key, one in state.allocations.items():
        mems = f"  mems {one.mems}" if one.mems else ""
        echo(f"{named(state.pods, key)}  CPUs {str(one.cpus) or '-'}{mems}")
    count = len(state.allocations)
    echo(f"{count} allocation{'s' * (count != 1)} written to {where}")
