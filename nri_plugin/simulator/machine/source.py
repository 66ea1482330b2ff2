"""Machines by name or file: a shipped description, or a file of one of several formats.

The content of a file tells its format, not its suffix: a description, a machine recorded by `hack/record-machine`, the
dump that `nri-pin topology -o json` prints on a node, or XML of lstopo. Recordings, dumps and XML become kernel files in
memory, which discovery reads like those of a node. A dump holds the kernel's facts before repair, so that discovery
repairs them here, too.

Readers are imported where they are used, because a live machine needs none of them.
"""

import codecs
import json
import os
import posixpath
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nri_plugin.host.sysfs import read_topology
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model import bits
from nri_plugin.model.bounds import values_in
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.topology import Topology

if TYPE_CHECKING:
    from nri_plugin.simulator.machine.description import Description

Entries = Mapping[str, Any]

MAX_LINKS = 40
"""Links that are followed in one path. Source: Linux, MAXSYMLINKS."""


Dump = Mapping[str, Any]

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"
MARK = "cpus_online"
"""A key that every dump has and no other file."""
STDIN = "-"
MOST_VALUES = 1 << 21
"""Of JSON; a machine of 4,096 CPUs has 300,000."""
LARGEST = 64 << 20
"""Bytes, unpacked; the largest recorded machine has 3 MB."""
KINDS = (
    "a description (see nri-pin topology --help), a machine recorded by hack/record-machine, "
    "what 'nri-pin topology -o json' printed, or XML of 'lstopo --of xml'"
)
ONLINE = "sys/devices/system/cpu/online"
_GZIP = b"\x1f\x8b"


class RecordedFiles(KernelFiles):
    """Kernel files in memory, of another machine.

    Args:
        entries: by path below the root, without a leading slash: text, or `{"link": target}`, as `hack/record-machine`
            writes them.
        root: the prefix of a path in errors.
    """

    def __init__(self, entries: Entries, root: str = "/recorded") -> None:
        super().__init__(root)
        self.entries = entries

    def text(self, name: str) -> str | None:
        """The content without surrounding white space and NULs; None when there is no such file."""
        value = self.entries.get(self.resolved(name))
        return value.strip(" \t\r\n\0") if isinstance(value, str) else None

    def names(self, name: str) -> list[str] | None:
        """Entries of a directory; None when there is no such directory."""
        return self.names_by_folder.get(self.resolved(name))

    def numbered(self, name: str, prefix: str) -> list[int]:
        """Numbers up to the highest id that is read; a hostile file can hold higher ones."""
        return [number for number in super().numbered(name, prefix) if number <= bits.MAX_ID]

    def end_of_link(self, name: str) -> str | None:
        """The last name of the path that a link leads to; None when there is no such link."""
        resolved = self.resolved(name)
        return posixpath.basename(resolved) if resolved != name or name in self.entries else None

    @cached_property
    def names_by_folder(self) -> dict[str, list[str]]:
        """Entries by directory."""
        found: dict[str, dict[str, None]] = {}
        for entry in self.entries:
            path = entry
            while path:
                folder, _, name = path.rpartition("/")
                known = found.setdefault(folder, {})
                if name in known:
                    break
                known[name] = None
                path = folder
        return {folder: list(names) for folder, names in found.items()}

    @cached_property
    def has_links(self) -> bool:
        """Whether any entry is a link."""
        return any(isinstance(value, Mapping) for value in self.entries.values())

    def resolved(self, name: str) -> str:
        """The path with every link on the way followed.

        Raises:
            HostError: links form a loop.
        """
        if not self.has_links:
            return name
        done, followed = "", 0
        left = name.split("/")
        while left:
            path = posixpath.join(done, left.pop(0))
            value = self.entries.get(path)
            if isinstance(value, Mapping):
                followed += 1
                if followed > MAX_LINKS:
                    raise HostError(self.path(name), f"leads through more than {MAX_LINKS} links")
                target = posixpath.join("/" + done, value["link"])
                left = posixpath.normpath(target).strip("/").split("/") + left
                done = ""
            else:
                done = path
        return done


def dumped_files(dump: Dump) -> Entries:
    """The kernel files from which discovery would have made this dump.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: a key is missing or holds something else.
    """
    return {name: text for name, text in _files(dump) if text is not None}


def _files(dump: Dump) -> Iterator[tuple[str, str | None]]:
    for name in ("online", "present", "possible", "isolated", "nohz_full"):
        told = dump.get(f"cpus_{name}")
        yield f"{CPU_DIR}/{name}", None if told is None else text_of(told)
    if dump.get("cpus_present") is None:
        for cpu in bits.iterate(bits.parse_list(dump["cpus_offline"])):
            yield f"{CPU_DIR}/cpu{cpu}/online", "0"
    yield from _topology(dump)
    for number, group in enumerate(dump["caches"].get("L3", {}).get("groups", ())):
        for cpu in _cpus(group):
            where = f"{CPU_DIR}/cpu{cpu}/cache/index3"
            yield from ((f"{where}/level", "3"), (f"{where}/type", "Unified"), (f"{where}/id", str(number)))
            yield f"{where}/shared_cpu_list", group
    yield from _nodes(dump)


def _topology(dump: Dump) -> Iterator[tuple[str, str | None]]:
    for cpu in _cpus(dump["cpus_online"]):
        yield f"{CPU_DIR}/cpu{cpu}/topology/core_cpus_list", str(cpu)
    for group in dump["cores"]:
        for cpu in _cpus(group):
            yield f"{CPU_DIR}/cpu{cpu}/topology/core_cpus_list", group
    for group in dump["sockets"]:
        for cpu in _cpus(group):
            yield f"{CPU_DIR}/cpu{cpu}/topology/package_cpus_list", group
    for number, group in dump["package_ids"].items():
        for cpu in _cpus(group):
            yield f"{CPU_DIR}/cpu{cpu}/topology/physical_package_id", str(int(number))


def _nodes(dump: Dump) -> Iterator[tuple[str, str | None]]:
    if not dump["nodes"]:
        memory = dump.get("mem_total_kb")
        yield "proc/meminfo", None if memory is None else f"MemTotal: {int(memory)} kB"
        yield from _pools("sys/kernel/mm/hugepages", dump["hugepages_total"])
        return
    yield f"{NODE_DIR}/online", text_of(dump["nodes_online"])
    for number, node in dump["nodes"].items():
        where = f"{NODE_DIR}/node{int(number)}"
        yield f"{where}/cpulist", text_of(node["cpus_raw"])
        if node["distance"] is not None:
            yield f"{where}/distance", " ".join(str(int(value)) for value in node["distance"])
        if node["mem_total_kb"] is not None:
            yield f"{where}/meminfo", f"Node {number} MemTotal: {int(node['mem_total_kb'])} kB"
        yield from _pools(f"{where}/hugepages", node["hugepages_kb_nr"])


def _pools(where: str, pools: Mapping[str, int]) -> Iterator[tuple[str, str | None]]:
    for size_kb, pages in pools.items():
        yield f"{where}/hugepages-{int(size_kb)}kB/nr_hugepages", str(int(pages))


def _cpus(group: object) -> Iterator[int]:
    return bits.iterate(bits.parse_list(text_of(group)))


def text_of(value: object) -> str:
    """The value as text.

    Raises:
        TypeError: the value is no text.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected a list such as '0-3', found {value!r}")
    return value


class MachineKind(StrEnum):
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
        name: a shipped name, or the file's name without its endings.
        kind: the kind of file.
        topology: the machine as placement sees it.
        description: of a described machine, with its devices; None for all others.
        files: its kernel files; None for a described machine, a dump, and a machine that a history tells.
        dump: the content of a dump, with its containers; None for all others.
    """

    name: str
    kind: MachineKind
    topology: Topology
    description: "Description | None" = None
    files: KernelFiles | None = field(default=None, repr=False)
    dump: Mapping[str, Any] | None = field(default=None, repr=False)

    def facts(self) -> dict[str, Any]:
        """All facts about the machine, in the form of `nri-pin topology -o json`.

        Raises:
            ConfigError: only its topology is known: it is that of a history.
        """
        from nri_plugin.host.sysfs import read_facts

        if self.dump is not None:
            return dict(self.dump)
        files = self.files
        if self.description is not None:
            files = _described_files(self.description)
        if files is None:
            raise ConfigError(
                self.name,
                "holds no kernel files of its machine, which -o json needs; name a file with --machine",
            )
        facts = read_facts(files)
        memory_bytes = self.topology.nodes[0].memory_bytes
        # a kernel without NUMA shows all memory in one place
        return (
            facts if facts["nodes"] or memory_bytes is None else facts | {"mem_total_kb": memory_bytes >> 10}
        )


def read_machine(word: str) -> SourcedMachine:
    """The machine that a word on the command line names.

    Args:
        word: the name of a shipped machine, a file, or `-` for standard input.

    Raises:
        ConfigError: there is no such machine or file, or the file holds no machine; says what to do.
    """
    from nri_plugin.simulator.machine.machine import shipped_text

    text = None if word == STDIN else shipped_text(word)
    if text is not None:
        return described(text, word, word)
    name = "standard input" if word == STDIN else word
    return machine_from(_read(word), name, _stem(word))


def live_machine(root: str = "/") -> SourcedMachine:
    """The machine whose `sys` and `proc` are below a directory.

    Raises:
        HostError: a file cannot be read or does not hold what it should; names the file.
    """
    files = KernelFiles(root)
    return SourcedMachine(
        "this machine" if root == "/" else root, MachineKind.LIVE, read_topology(files), files=files
    )


def machine_from(data: bytes, where: str, name: str) -> SourcedMachine:
    """The machine in a file.

    Args:
        data: the content, as it is or gzipped.
        where: the file, for errors.
        name: the name of the machine.

    Raises:
        ConfigError: it is no machine.
    """
    data = _unpacked(data, where).removeprefix(codecs.BOM_UTF8)
    start = data.lstrip()[:1]
    if start == b"<" or data[:2] in {codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE}:
        return _from_lstopo(data, where, name)
    if start == b"{":
        return _from_json(data, where, name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as err:
        raise ConfigError(where, f"is not text; give {KINDS}") from err
    if not text.strip():
        raise ConfigError(where, f"is empty; give {KINDS}")
    return described(text, name, where)


def described(text: str, name: str, where: str) -> SourcedMachine:
    """The machine of a description.

    Raises:
        ConfigError: the description is wrong.
    """
    from nri_plugin.simulator.machine.machine import build_topology, parse

    description = parse(text, name, source=where)
    return SourcedMachine(name, MachineKind.DESCRIBED, build_topology(description), description)


def described_machine(text: str, file: str) -> SourcedMachine:
    """The machine that a scenario names or describes.

    Args:
        text: the name or the description.
        file: the scenario, for errors.

    Raises:
        ConfigError: there is no such machine, or the description is wrong.
    """
    from nri_plugin.simulator.machine.machine import is_description

    return described(text, "machine", file) if is_description(text) else read_machine(text)


def _from_lstopo(data: bytes, where: str, name: str) -> SourcedMachine:
    from nri_plugin.simulator.machine.hwloc import NotTopologyError, read_hwloc

    try:
        entries = read_hwloc(data)
    except NotTopologyError as err:
        raise ConfigError(
            where, f"is no topology of lstopo: {err}; make it with 'lstopo --of xml FILE'"
        ) from err
    return _from_files(entries, where, name, MachineKind.LSTOPO)


def _from_json(data: bytes, where: str, name: str) -> SourcedMachine:
    if values_in(data) > MOST_VALUES:
        raise ConfigError(where, f"has more than {MOST_VALUES} values, which no machine has")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as err:
        what = str(err) if isinstance(err, json.JSONDecodeError) else "it nests too deeply or is not text"
        raise ConfigError(where, f"begins like JSON and is none: {what}; give {KINDS}") from err
    if MARK in found:
        return _from_dump(found, where, name)
    if isinstance(found.get("files"), dict):
        entries = _entries(found, where)
        return _from_files(entries, where, name, MachineKind.RECORDED)
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
        content = value.get("link") if isinstance(value, dict) else value
        if not isinstance(content, str):
            what = f"{path[:80]} holds neither text nor a link"
            detail = f"is no recorded machine: {what}; record it with hack/record-machine"
            raise ConfigError(where, detail)
    return entries


def _from_files(entries: Entries, where: str, name: str, kind: MachineKind) -> SourcedMachine:
    files = RecordedFiles(entries, where)
    try:
        _refuse_too_many(files.id_list(ONLINE) or 0, where)
        return SourcedMachine(name, kind, read_topology(files), files=files)
    except HostError as err:
        raise ConfigError(
            where, f"holds no whole machine: {err.path.removeprefix(where + '/')}: {err.detail}"
        ) from err


def _from_dump(found: Mapping[str, Any], where: str, name: str) -> SourcedMachine:
    try:
        _refuse_too_many(bits.parse_list(text_of(found[MARK])), where)
        files = RecordedFiles(dumped_files(found), where)
        return SourcedMachine(name, MachineKind.DUMP, read_topology(files), dump=found)
    except (ValueError, TypeError, KeyError, AttributeError, HostError) as err:
        what = f"{err} is missing" if isinstance(err, KeyError) else str(err)
        detail = f"is no whole dump of a machine: {what}; print it again with 'nri-pin topology -o json'"
        raise ConfigError(where, detail) from err


def _refuse_too_many(cpus: int, where: str) -> None:
    from nri_plugin.simulator.machine.synthetic import MAX_CPUS

    if cpus.bit_count() > MAX_CPUS:
        raise ConfigError(
            where, f"has {cpus.bit_count()} cpus online, more than the {MAX_CPUS} the kernel can have"
        )


def _described_files(description: "Description") -> RecordedFiles:
    from nri_plugin.simulator.machine.machine import machine_files

    texts, links = machine_files(description)
    return RecordedFiles(texts | {name: {"link": target} for name, target in links.items()})


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
