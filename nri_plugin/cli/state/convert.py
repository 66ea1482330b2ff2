"""`nri-pin state convert`: the same allocations in another form, offline.

A source (a file, a directory with files, or standard input) is decoded from any form, written in the form that is
asked for, and compared: what the new form cannot hold is named, and allocations are left out only with --lossy.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import click

from nri_plugin.checkpoint.file import FILE_NAME, write_whole
from nri_plugin.checkpoint.format import VERSION, Checkpoint, OtherVersionError, decode
from nri_plugin.checkpoint.forms import (
    Losses,
    RowKind,
    bare_node,
    checkpoint_file,
    kind_of,
    losses_from_kubelet,
    losses_to_cpu,
    losses_to_memory,
    losses_to_version,
)
from nri_plugin.checkpoint.kubelet_export import cpu_file, kubelet_refusals, memory_file, needs_pod_level
from nri_plugin.checkpoint.kubelet_import import (
    CPU_FILE,
    MEMORY_FILE,
    File,
    KubeletAllocations,
    allocations_in,
    imported,
    shared_within_pods,
)
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.cli.output import echo
from nri_plugin.cli.state.source import (
    FailedError,
    WrongUsageError,
    machine_option,
    named_topology,
    need_same_machine,
    node_on,
    refuse_while_agent_runs,
    root_option,
)
from nri_plugin.model.errors import CheckpointError, NriPinError
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.records import allocation_key
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations

STDIO = "-"
BY_CRICTL = "--containers FILE, made by `crictl ps -o json > FILE`"


@dataclass(frozen=True, slots=True)
class ConvertSource:
    """The input: a checkpoint, or the state files of a kubelet."""

    files: Mapping[RowKind, File]
    checkpoint: Checkpoint | None


def read_given(source: str) -> ConvertSource:
    """Read and decode a source.

    Raises:
        CheckpointError: it cannot be read, is damaged, or is none of it.
        WrongUsageError: a directory without such a file.
    """
    files = [File(name, data) for name, data in _inputs(source)]
    found: dict[RowKind, File] = {}
    for file in files:
        kind = kind_of(file.data)
        if kind is None:
            raise CheckpointError(
                file.name, "is neither a checkpoint of nri-pin nor a state file of the kubelet"
            )
        found[kind] = file
    if RowKind.CHECKPOINT not in found:
        return ConvertSource(found, None)
    file = found[RowKind.CHECKPOINT]
    try:
        return ConvertSource(found, decode(file.data))
    except OtherVersionError as error:
        raise CheckpointError(file.name, f"{error}; convert it with the nri-pin that wrote it") from None
    except ValueError as error:
        raise CheckpointError(
            file.name, f"cannot be used: {error}; `nri-pin state repair` shows what can be saved of it"
        ) from None


def _inputs(source: str) -> list[tuple[str, bytes]]:
    """Names and contents."""
    if source == STDIO:
        return [("standard input", sys.stdin.buffer.read())]
    if not os.path.isdir(source):
        return [(source, _content(source))]
    names = [FILE_NAME] if os.path.exists(os.path.join(source, FILE_NAME)) else [CPU_FILE, MEMORY_FILE]
    paths = [path for name in names if os.path.exists(path := os.path.join(source, name))]
    if not paths:
        raise WrongUsageError(
            f"{source}: holds neither {FILE_NAME} nor {CPU_FILE} nor {MEMORY_FILE}; name a file"
        )
    return [(path, _content(path)) for path in paths]


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error


def write_outputs(target: str, outputs: Mapping[str, bytes], *, force: bool) -> list[str]:
    """Write contents by their names; returns the files written, none for standard output.

    Raises:
        CheckpointError: a file cannot be written.
        FailedError: one is there already, or an agent works there.
        WrongUsageError: two contents for one file.
    """
    if target == STDIO:
        if len(outputs) > 1:
            raise WrongUsageError(
                f"standard output takes one file, these are {' and '.join(outputs)}; name one with --to, or a directory"
            )
        sys.stdout.buffer.write(*outputs.values())
        sys.stdout.buffer.flush()
        return []
    is_directory = target.endswith("/") or os.path.isdir(target)
    if len(outputs) > 1 and not is_directory:
        raise WrongUsageError(
            f"{target}: these are two files, {' and '.join(outputs)}; name a directory (with / at its end), or one with --to"
        )
    if is_directory:
        os.makedirs(target, exist_ok=True)
    paths = {os.path.join(target, name) if is_directory else target: data for name, data in outputs.items()}
    _check_free(paths, force=force)
    for path, data in paths.items():
        write_whole(path, data, replace=force)
    return list(paths)


def _check_free(paths: Mapping[str, bytes], *, force: bool) -> None:
    """Before the first is written: none is there, and no agent works where they go."""
    taken = [] if force else [path for path in paths if os.path.lexists(path)]
    if taken:
        raise FailedError(
            f"{', '.join(taken)}: is there already; give another name, or --force to replace it"
        )
    for path in paths:
        if os.path.basename(path) == FILE_NAME:
            refuse_while_agent_runs(os.path.dirname(path) or ".")


FORMS = (
    "checkpoint",
    "checkpoint-v1",
    "checkpoint-v2",
    "checkpoint-v3",
    "kubelet",
    "cpu",
    "cpu-v1",
    "cpu-v2",
    "cpu-v3",
    "cpu-v4",
    "memory",
    "memory-v1",
    "memory-v2",
    "memory-v3",
)

EXAMPLES = """\b
Examples:
  nri-pin state convert /run/nri-pin/state.json ./kubelet-files/
  nri-pin state convert /var/lib/kubelet ./state.json --root /
  nri-pin state convert /var/lib/kubelet/cpu_manager_state - | jq .allocations
  nri-pin state convert - - --to cpu-v3 < state.json
  nri-pin state convert ./state.json ./files/ --machine ./topology.json --config ./config.yaml

\b
Forms, for --to:
  checkpoint (checkpoint-v3)         nri-pin's own; -v1 and -v2 are those of older releases
  kubelet                            both files of a kubelet, as far as there is something for them
  cpu, memory                        one of them
  cpu-v1                             cpu_manager_state by container id, of kubelets before 1.18
  cpu-v2, memory-v1                  of a kubelet without PodLevelResourceManagers: the default
  cpu-v3, memory-v2                  with it: the default where a pod has CPUs or memory as a whole
  cpu-v4, memory-v3                  of Kubernetes 1.37; older kubelets read what cpu-v2, memory-v1 hold

`convert` only reads IN and writes OUT. To take a node over use `state import` and `state export`: they know the
agent's configuration and machine, refuse while an agent runs, and put files where they belong.
"""


@click.command(name="convert", epilog=EXAMPLES)
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option(
    "--to",
    "form",
    type=click.Choice(FORMS),
    default=None,
    help="The form to write: by default kubelet for a checkpoint, and checkpoint for a kubelet's files.",
)
@machine_option
@root_option
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help="A configuration that tells reserved CPUs and reservedMemory.",
)
@click.option(
    "--containers",
    metavar="FILE",
    help="The output of `crictl ps -o json`: names for the container ids of an old file, and the containers that run.",
)
@click.option("--force", is_flag=True, help="Replace OUT where it is there.")
@click.option(
    "--lossy", is_flag=True, help="Convert although allocations are lost; the lost ones are listed."
)
def command(
    source: str,
    target: str,
    form: str | None,
    machine: str | None,
    root: str | None,
    config_path: str | None,
    containers: str | None,
    *,
    force: bool,
    lossy: bool,
) -> None:
    """Write the allocations in IN to OUT in another form: nri-pin's checkpoint, or the kubelet's state files.

    IN is a file, a directory with such files (a state directory, a kubelet's root directory), or - for standard
    input; its content tells its form. OUT is a file, a directory (one that is there, or a name that ends in /), or -
    for standard output. Losses are named; where an allocation would be lost nothing is written.

    Exit code: 0; 1 when IN is damaged, OUT is there already, or an allocation would be lost; 2 when a file, the machine or
    the configuration cannot be read.
    """
    try:
        given = read_given(source)
        form = form or ("kubelet" if given.checkpoint else "checkpoint")
        node = _node(given, machine, root, config_path)
        outputs, losses = _converted(given, form, node, containers)
        _refuse_losses(losses, form, lossy=lossy)
        written = write_outputs(target, outputs, force=force)
    except CheckpointError as error:
        kind = WrongUsageError if isinstance(error.__cause__, OSError) else FailedError
        raise kind(str(error)) from error
    except NriPinError as error:
        raise WrongUsageError(str(error)) from error
    for text in losses.others:
        echo(f"not kept: {text}", err=True)
    if target != STDIO:
        echo(f"written: {', '.join(written)}")


def _node(
    given: ConvertSource, machine: str | None, root: str | None, config_path: str | None
) -> Node | None:
    """The machine with its reserved CPUs; None where neither an option nor the checkpoint names one."""
    topology, name = named_topology(machine, root)
    facts = given.checkpoint.facts if given.checkpoint else None
    if topology is None:
        if config_path is not None:
            raise WrongUsageError(
                "--config needs a machine; name it with --machine, or --root / for this one"
            )
        return facts.as_node() if facts else None
    need_same_machine(facts, topology, name)
    if config_path is None:
        return node_on(topology, facts)
    from nri_plugin.config.checks import Capacity
    from nri_plugin.config.loading import load

    return load(config_path, machine=Capacity.of(topology)).node(topology)


def _converted(
    given: ConvertSource, form: str, node: Node | None, containers: str | None
) -> tuple[dict[str, bytes], Losses]:
    """Contents by the names they have in a directory, and what they do not hold."""
    family, _, version = form.partition("-v")
    number = int(version) if version else None
    if given.checkpoint is None:
        if family != "checkpoint":
            raise WrongUsageError(
                "both are state files of a kubelet; convert to a checkpoint first, and that to the other form"
            )
        return _from_kubelet(given, number or VERSION, node, containers)
    state = given.checkpoint.state
    if family == "checkpoint":
        facts, number = given.checkpoint.facts, number or VERSION
        data = checkpoint_file(state, facts, given.checkpoint.generation, number)
        return {FILE_NAME: data}, losses_to_version(state, number, facts)
    return _to_kubelet(state, family, number, node)


def _from_kubelet(
    given: ConvertSource, version: int, node: Node | None, containers: str | None
) -> tuple[dict[str, bytes], Losses]:
    cpu, memory = given.files.get(RowKind.CPU), given.files.get(RowKind.MEMORY)
    found = named_allocations(allocations_in(cpu, memory), cpu.name if cpu else "", containers)
    state = imported(_keeping_memory(node), found)
    _refuse([str(one) for one in violations(node, state)] if node else [])
    facts = None if node is None else NodeFacts.of(node)
    losses = losses_from_kubelet({kind: file.data for kind, file in given.files.items()}, state, node)
    older = losses_to_version(state, version, facts)
    losses = Losses(older.allocations, (*losses.others, *older.others))
    return {FILE_NAME: checkpoint_file(state, facts, version=version)}, losses


def named_allocations(
    found: KubeletAllocations, cpu_file_name: str, containers: str | None
) -> KubeletAllocations:
    """The allocations by pod and container, of running containers alone where these are named.

    Args:
        found: the kubelet's allocations.
        cpu_file_name: where its exclusive CPUs come from, for errors.
        containers: the output of `crictl ps -o json`; None where it is not given.

    Raises:
        CheckpointError: `containers` cannot be read.
        FailedError: a container is known by its id only, or two containers of a pod share CPUs.
    """
    if containers is not None:
        found = found.of(_running(containers))
    if found.cpus_by_id:
        raise FailedError(
            f"{cpu_file_name} names containers by id, as kubelets before 1.18 did; name their containers with {BY_CRICTL}"
        )
    if shared := shared_within_pods(found):
        raise FailedError(f"{'; '.join(shared)}: one of them has ended; name those that run with {BY_CRICTL}")
    return found


def _running(path: str) -> Mapping[str, str]:
    """Allocation keys by container id, from the output of crictl."""
    try:
        listed = json.loads(_content(path))["containers"]
        return {
            one["id"]: allocation_key(one["labels"]["io.kubernetes.pod.uid"], one["metadata"]["name"])
            for one in listed
        }
    except (ValueError, LookupError, TypeError):
        raise CheckpointError(path, "is not what `crictl ps -o json` prints") from None


def _to_kubelet(
    state: State, family: str, version: int | None, node: Node | None
) -> tuple[dict[str, bytes], Losses]:
    if node is None:
        raise WrongUsageError(
            "the checkpoint does not tell its machine, which the shared pool of a kubelet's file follows from; "
            "name it with --machine"
        )
    has_memory = any(one.memory for one in state.allocations.values())
    wants_memory = family == "memory" or (family == "kubelet" and has_memory)
    node = _keeping_memory(node) if wants_memory else node
    if wants_memory and all(numa.memory_bytes is None for numa in node.topology.nodes if numa.has_memory):
        raise WrongUsageError(
            "a kubelet's file tells the memory of each NUMA node, the checkpoint does not; name the machine with "
            "--machine, or --root / for this one, and what is reserved with --config"
        )
    _refuse(kubelet_refusals(node, state))
    # Pods as wholes need the newer form of both files.
    newer = needs_pod_level(node, state)
    cpu = version if family == "cpu" else None
    memory = version if family == "memory" else None
    cpu, memory = cpu or (3 if newer else 2), memory or (2 if newer else 1)
    files = {}
    if family != "memory":
        files[CPU_FILE] = cpu_file(node, state, cpu)
    if wants_memory:
        files[MEMORY_FILE] = memory_file(node, state, memory)
    losses = (
        losses_to_memory(state, memory)
        if family == "memory"
        else losses_to_cpu(state, cpu, has_memory_file=wants_memory)
    )
    return files, losses


def _keeping_memory(node: Node | None) -> Node:
    if node is None:
        return bare_node()
    options = replace(node.options, memory_manager_policy=MemoryManagerPolicy.STATIC)
    return Node(node.topology, options, node.reserved)


def _refuse(reasons: Sequence[str]) -> None:
    if reasons:
        raise FailedError(f"nothing was written: {'; '.join(reasons)}")


def _refuse_losses(losses: Losses, form: str, *, lossy: bool) -> None:
    if not losses.allocations:
        return
    if not lossy:
        raise FailedError(
            f"nothing was written: the form {form} cannot hold {'; '.join(losses.allocations)}; "
            "--lossy leaves that out"
        )
    for text in losses.allocations:
        echo(f"lost: {text}", err=True)
