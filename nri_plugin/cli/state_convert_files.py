"""What `nri-pin state convert` reads and writes: files, directories with them, standard input and output."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nri_plugin.cli.state_agent import refuse_while_agent_runs
from nri_plugin.cli.state_source import FailedError, WrongUsageError
from nri_plugin.errors import CheckpointError
from nri_plugin.host.checkpoint import FILE_NAME
from nri_plugin.host.checkpoint_format import Checkpoint, OtherVersionError, decode
from nri_plugin.host.kubelet_state import CPU_FILE, MEMORY_FILE, File
from nri_plugin.host.state_forms import Kind, kind_of
from nri_plugin.host.whole_file import write_whole

STDIO = "-"


@dataclass(frozen=True, slots=True)
class Given:
    """What was read: a checkpoint, or the files of a kubelet."""

    files: Mapping[Kind, File]
    checkpoint: Checkpoint | None


def read_given(source: str) -> Given:
    """What `source` holds.

    Raises:
        CheckpointError: it cannot be read, is damaged, or is none of it.
        WrongUsageError: a directory without such a file.
    """
    files = [File(name, data) for name, data in _inputs(source)]
    found: dict[Kind, File] = {}
    for file in files:
        kind = kind_of(file.data)
        if kind is None:
            raise CheckpointError(
                file.name, "is neither a checkpoint of nri-pin nor a state file of the kubelet"
            )
        found[kind] = file
    if Kind.CHECKPOINT not in found:
        return Given(found, None)
    file = found[Kind.CHECKPOINT]
    try:
        return Given(found, decode(file.data))
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
