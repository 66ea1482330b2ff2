"""The originals of kernel settings on disk: `quiet.json` in the state directory.

The file is written before the first setting is, and is complete at every moment. It is valid for one boot: after the next
one the kernel has its own values again, and numbers of interrupts mean others. It is removed when everything was given
back, so a node on which nobody asks has no such file.

It is no part of the checkpoint of allocations. Other events change it, a thread of its own writes it, and it is far
smaller: about 150 bytes for each interrupt.
"""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from nri_plugin.checkpoint.file import keep_aside, write_whole
from nri_plugin.core.quiet import KeptSetting
from nri_plugin.model.errors import CheckpointError

FILE_NAME = "quiet.json"
FORMAT = 1
LARGEST = 16 << 20
"""Bytes; 100,000 interrupts."""


@dataclass(frozen=True, slots=True)
class Originals:
    """What has to be given back.

    Attributes:
        kept: by name of the setting.
        bans: CPUs that a running irqbalance had banned by itself, by the name of its socket.
    """

    kept: Mapping[str, KeptSetting] = field(default_factory=dict)
    bans: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.kept or self.bans)


class QuietFile:
    """The file of one state directory.

    Args:
        state_dir: the directory.
        boot: the id of this boot.
    """

    def __init__(self, state_dir: str, boot: str) -> None:
        self.path, self._boot = os.path.join(state_dir, FILE_NAME), boot

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.lexists(self.path)

    def load(self) -> Originals:
        """The originals; none where there is no file, or one of another boot.

        Raises:
            CheckpointError: the file is damaged. It was kept aside.
        """
        try:
            with open(self.path, "rb") as file:
                data = file.read(LARGEST)
        except FileNotFoundError:
            return Originals()
        except OSError as error:
            raise CheckpointError(self.path, f"cannot be read: {(error.strerror or '').lower()}") from None
        try:
            boot, originals = _decoded(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            aside = keep_aside(self.path)
            raise CheckpointError(
                self.path,
                f"the values of interrupts before us are lost ({error}); the damaged file is kept as {aside}",
            ) from None
        return originals if boot == self._boot else Originals()

    def save(self, originals: Originals) -> None:
        """Replace the file.

        Raises:
            CheckpointError: it cannot be written.
        """
        body = {
            "format": FORMAT,
            "boot": self._boot,
            "kept": [asdict(one) for one in originals.kept.values()],
            "bans": dict(originals.bans),
        }
        text = json.dumps(body, separators=(",", ":"))
        data = f'{{"checksum":{zlib.crc32(text.encode())},"body":{text}}}\n'
        write_whole(self.path, data.encode(), replace=True)

    def remove(self) -> None:
        """Remove the file: everything was given back.

        Raises:
            CheckpointError: it cannot be removed.
        """
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(self.path, f"cannot be removed: {(error.strerror or '').lower()}") from None


def _decoded(data: bytes) -> tuple[str, Originals]:
    whole = json.loads(data)
    body = whole["body"]
    if zlib.crc32(json.dumps(body, separators=(",", ":")).encode()) != whole["checksum"]:
        raise ValueError("its checksum is wrong")
    if body["format"] != FORMAT:
        raise ValueError(f"its format is {body['format']}, expected {FORMAT}")
    rows = [
        KeptSetting(**{**row, "written": tuple(row["written"]), "actions": tuple(row["actions"])})
        for row in body["kept"]
    ]
    return body["boot"], Originals({row.name: row for row in rows}, dict(body["bans"]))
