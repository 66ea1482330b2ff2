"""The checkpoints that a state directory keeps: the present one, the one before, and damaged ones."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from nri_plugin.cli.cell_table import folded, table
from nri_plugin.cli.output import columns
from nri_plugin.cli.state_source import FailedError
from nri_plugin.errors import CheckpointError
from nri_plugin.host.checkpoint import FILE_NAME, read_checkpoint

NARROW = 80
CHECKSUM = re.compile(rb'"checksum":"crc32:([0-9a-f]{8})"\}\n\Z')


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that is there.

    Attributes:
        file: its name.
        written: when, UTC.
        size: bytes.
        generation: None when it cannot be read.
        checksum: as it stands in the file; None when there is none.
        verdict: `sound`, or what is wrong with it.
    """

    file: str
    written: str
    size: int
    generation: int | None
    checksum: str | None
    verdict: str


def checkpoints(state_dir: str) -> list[Kept]:
    """The checkpoint, the generation before it and damaged ones, the newest first."""
    try:
        names = [name for name in os.listdir(state_dir) if _is_checkpoint(name)]
    except OSError as error:
        raise FailedError(f"{state_dir}: cannot be read: {error.strerror}; run as root") from None
    paths = (os.path.join(state_dir, name) for name in names)
    return sorted(
        (_kept(path) for path in paths if os.path.isfile(path)), key=lambda one: one.written, reverse=True
    )


def _is_checkpoint(name: str) -> bool:
    return name in {FILE_NAME, f"{FILE_NAME}.previous"} or name.startswith(f"{FILE_NAME}.damaged-")


def _kept(path: str) -> Kept:
    status = os.stat(path)
    written = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
    generation, verdict = None, "sound"
    try:
        checkpoint = read_checkpoint(path)
        generation = checkpoint.generation if checkpoint else None
    except CheckpointError as error:
        verdict = error.detail
    return Kept(os.path.basename(path), written, status.st_size, generation, _checksum(path), verdict)


def _checksum(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            match = CHECKSUM.search(file.read())
    except OSError:
        return None
    return match[1].decode() if match else None


def kept_lines(kept: Sequence[Kept], output_format: str) -> list[str]:
    """What `state history` says of them."""
    if output_format == "json":
        return [json.dumps({"what": "checkpoint"} | asdict(one)) for one in kept]
    if not kept:
        return []
    head = ("CHECKPOINT", "WRITTEN", "GENERATION", "BYTES", "CHECKSUM")
    rows = [
        (
            one.file,
            datetime.fromisoformat(one.written).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            "?" if one.generation is None else str(one.generation),
            str(one.size),
            one.checksum or "-",
        )
        for one in kept
    ]
    lines = ["", *table([head, *rows], None)]
    width = columns() or NARROW
    for one in kept:
        if one.verdict != "sound":
            lines += folded(f"{one.file}: {one.verdict}", width, 2)
    return lines
