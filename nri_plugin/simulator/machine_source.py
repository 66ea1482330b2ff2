"""One word for any machine: a shipped name, or a file whose content tells what it is.

Recognised by content, never by suffix: a description in our little language, a machine recorded by
`hack/record-machine`, what `nri-pin topology -o json` printed on a node, or lstopo's XML.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from nri_plugin import bits
from nri_plugin.errors import ConfigError, HostError
from nri_plugin.host.sysfs import read_topology
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.simulator.recorded_files import Entries, RecordedFiles
from nri_plugin.topology import Topology

if TYPE_CHECKING:
    from nri_plugin.simulator.machine import Description

STDIN = "-"
LARGEST = 64 << 20
"""Bytes, unpacked; the largest recorded machine has 3 MB."""
KINDS = (
    "a description (see nri-pin topology --help), a machine recorded by hack/record-machine, "
    "what 'nri-pin topology -o json' printed, or XML of 'lstopo --of xml'"
)
ONLINE = "sys/devices/system/cpu/online"
_GZIP = b"\x1f\x8b"
_MARKS = (b"\xef\xbb\xbf",)


class Kind(StrEnum):
    """Where a machine comes from."""

    LIVE = "live"
    DESCRIBED = "described"
    RECORDED = "recorded"
    DUMP = "dump"
    LSTOPO = "lstopo"


@dataclass(frozen=True, slots=True)
class SourcedMachine:
    """A machine and where it comes from.

    Attributes:
        name: what to call it: a shipped name, or the file's name without its endings.
        kind: what the file was recognised as.
        topology: the machine as placement sees it.
        description: what a described machine says, its devices too; None for all others.
        files: its kernel files; None for a described machine and a dump.
        dump: what a dump says, its containers too; None for all others.
    """

    name: str
    kind: Kind
    topology: Topology
    description: "Description | None" = None
    files: KernelFiles | None = field(default=None, repr=False)
    dump: Mapping[str, Any] | None = field(default=None, repr=False)

    def facts(self) -> dict[str, Any]:
        """Everything that is known of it, in the form of `nri-pin topology -o json`."""
        from nri_plugin.host.sysfs_facts import read_facts

        if self.dump is not None:
            return dict(self.dump)
        files = self.files or _described_files(self.description)
        facts = read_facts(files).as_dict()
        return facts if facts["nodes"] else facts | _whole_memory(self.topology)


def read_machine(word: str) -> SourcedMachine:
    """The machine that a word on the command line means.

    Args:
        word: the name of a shipped machine, a file, or `-` for standard input.

    Raises:
        ConfigError: there is no such thing, or it is no machine; says what was expected and what to do.
    """
    from nri_plugin.simulator.machine import shipped_text  # a live node needs none of the language

    text = None if word == STDIN else shipped_text(word)
    if text is not None:
        return _described(text, word, word)
    name = "standard input" if word == STDIN else word
    return machine_from(_read(word), name, _stem(word))


def live_machine(root: str = "/") -> SourcedMachine:
    """The machine whose `sys` and `proc` are below a directory.

    Raises:
        HostError: a file cannot be read or does not hold what it should; names the file.
    """
    files = KernelFiles(root)
    return SourcedMachine(
        "this machine" if root == "/" else root, Kind.LIVE, read_topology(files), files=files
    )


def machine_from(data: bytes, where: str, name: str) -> SourcedMachine:
    """The machine that the content of a file means.

    Args:
        data: the content, as it is or gzipped.
        where: the file, for errors.
        name: what to call the machine.

    Raises:
        ConfigError: it is no machine.
    """
    data = _unpacked(data, where)
    for mark in _MARKS:
        data = data.removeprefix(mark)
    start = data.lstrip()[:1]
    if start == b"<" or data[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return _from_lstopo(data, where, name)
    if start == b"{":
        return _from_json(data, where, name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as err:
        raise ConfigError(where, f"is not text; give {KINDS}") from err
    if not text.strip():
        raise ConfigError(where, f"is empty; give {KINDS}")
    return _described(text, name, where)


def _described(text: str, name: str, where: str) -> SourcedMachine:
    from nri_plugin.simulator.machine import build_topology, parse

    description = parse(text, name, source=where)
    return SourcedMachine(name, Kind.DESCRIBED, build_topology(description), description)


def _from_lstopo(data: bytes, where: str, name: str) -> SourcedMachine:
    from nri_plugin.simulator.hwloc_xml import NotTopologyError
    from nri_plugin.simulator.machine_hwloc import read_hwloc

    try:
        entries = read_hwloc(data)
    except NotTopologyError as err:
        raise ConfigError(
            where, f"is no topology of lstopo: {err}; make it with 'lstopo --of xml FILE'"
        ) from err
    return _from_files(entries, where, name, Kind.LSTOPO)


def _from_json(data: bytes, where: str, name: str) -> SourcedMachine:
    from nri_plugin.simulator.machine_dump import MARK

    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as err:
        what = str(err) if isinstance(err, json.JSONDecodeError) else "it nests too deeply or is not text"
        raise ConfigError(where, f"begins like JSON and is none: {what}; give {KINDS}") from err
    if MARK in found:
        return _from_dump(found, where, name)
    if isinstance(found.get("files"), dict):
        entries = _entries(found, where)
        return _from_files(entries, where, name, Kind.RECORDED)
    what = (
        "a checkpoint, which goes with --state"
        if "checkpoint" in str(found.get("format"))
        else "JSON of something else"
    )
    raise ConfigError(where, f"is {what}; a machine is {KINDS}")


def _entries(found: Mapping[str, Any], where: str) -> Entries:
    derived = found.get("derived", {})
    entries: dict[str, Any] = dict(derived if isinstance(derived, dict) else {}) | found["files"]
    for path, value in entries.items():
        if not isinstance(value, str) and not (
            isinstance(value, dict) and isinstance(value.get("link"), str)
        ):
            what = f"{path[:80]} holds neither text nor a link"
            detail = f"is no recorded machine: {what}; record it with hack/record-machine"
            raise ConfigError(where, detail)
    return entries


def _from_files(entries: Entries, where: str, name: str, kind: Kind) -> SourcedMachine:
    files = RecordedFiles(entries, where)
    try:
        _refuse_too_many(files.id_list(ONLINE) or 0, where)
        return SourcedMachine(name, kind, read_topology(files), files=files)
    except HostError as err:
        raise ConfigError(
            where, f"holds no whole machine: {err.path.removeprefix(where + '/')}: {err.detail}"
        ) from err


def _from_dump(found: Mapping[str, Any], where: str, name: str) -> SourcedMachine:
    from nri_plugin.simulator.machine_dump import MARK, dumped_files, text_of

    try:
        _refuse_too_many(bits.parse_list(text_of(found[MARK])), where)
        files = RecordedFiles(dumped_files(found), where)
        return SourcedMachine(name, Kind.DUMP, read_topology(files), dump=found)
    except (ValueError, TypeError, KeyError, AttributeError, HostError) as err:
        what = f"{err} is missing" if isinstance(err, KeyError) else str(err)
        detail = f"is no whole dump of a machine: {what}; print it again with 'nri-pin topology -o json'"
        raise ConfigError(where, detail) from err


def _refuse_too_many(cpus: int, where: str) -> None:
    from nri_plugin.simulator.machine_text import MAX_CPUS

    if cpus.bit_count() > MAX_CPUS:
        raise ConfigError(
            where, f"has {cpus.bit_count()} cpus online, more than the {MAX_CPUS} the kernel can have"
        )


def _described_files(description: "Description | None") -> RecordedFiles:
    from nri_plugin.simulator.machine_layout import lay_out
    from nri_plugin.simulator.machine_tree import machine_files

    if description is None:
        raise ValueError("a machine has either files, a dump or a description")
    texts, links = machine_files(lay_out(description), description.title or description.name)
    return RecordedFiles(texts | {name: {"link": target} for name, target in links.items()})


def _whole_memory(topology: Topology) -> dict[str, int]:
    """The memory of a kernel without NUMA nodes, which no node's facts hold."""
    only = topology.nodes[0]
    return {} if only.memory_bytes is None else {"mem_total_kb": only.memory_bytes >> 10}


def _read(word: str) -> bytes:
    try:
        if word == STDIN:
            data = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with open(word, "rb") as file:
                data = file.read(LARGEST + 1)
    except FileNotFoundError as err:
        detail = "is neither a file nor the name of a shipped machine; nri-pin topology --list names them"
        raise ConfigError(word, detail) from err
    except OSError as err:
        why = (err.strerror or "unknown error").lower()
        raise ConfigError(word, f"cannot be read: {why}; name a file that can, or -") from err
    if len(data) > LARGEST:
        raise ConfigError(word, f"is larger than {LARGEST >> 20} MiB, which no machine is")
    return data


def _unpacked(data: bytes, where: str) -> bytes:
    if not data.startswith(_GZIP):
        return data
    import zlib

    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(data, LARGEST + 1)
    except zlib.error as err:
        raise ConfigError(where, f"is gzipped and damaged: {err}; copy it again") from err
    if len(plain) > LARGEST:
        raise ConfigError(where, f"unpacks to more than {LARGEST >> 20} MiB, which no machine is")
    if not unpacker.eof:
        raise ConfigError(where, "is gzipped and ends too early; copy it again")
    return plain


def _stem(word: str) -> str:
    """The file's name up to its first ending, as in `NAME.json.gz`."""
    name = os.path.basename(word)
    return "machine" if word == STDIN else name.partition(".")[0] or name
