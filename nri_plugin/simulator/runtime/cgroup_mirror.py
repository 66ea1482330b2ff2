"""A simulated cgroup tree as a directory, for processes that expect `/sys/fs/cgroup`.

A directory cannot refuse a write. `absorb` reads all writes since the last call, applies the kernel's rules and corrects
the files. It reports writes that a kernel would have rejected, because the writer saw no error.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nri_plugin.host.sysfs_files import LONGEST_VALUE
from nri_plugin.model.errors import HostError
from nri_plugin.simulator.runtime.cgroup_tree import ROOT, V1, V2, CgroupTree, CgroupWriteError, CpusetFile

CONTROLLERS = "cpuset cpu io memory hugetlb pids"

OWN = "cpuset.{resource}"
EFFECTIVE: Mapping[int, str] = {V1: "cpuset.effective_{resource}", V2: "cpuset.{resource}.effective"}


@dataclass(frozen=True, slots=True)
class Accepted:
    """A write from outside that the kernel would have taken."""

    path: str
    resource: CpusetFile
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What `absorb` found."""

    accepted: tuple[Accepted, ...] = ()
    rejected: tuple[CgroupWriteError, ...] = ()


class CgroupMirror:
    """Keeps a directory equal to a tree.

    Attributes:
        tree: the truth.
        root: the directory that stands for `/sys/fs/cgroup`.
        rejections: rejected writes of other processes; the reader empties the list.
    """

    def __init__(self, tree: CgroupTree, root: Path) -> None:
        self.tree = tree
        self.root = root
        self.rejections: list[CgroupWriteError] = []
        self._base = root / "cpuset" if tree.version == V1 else root
        self._written: dict[Path, str] = {}

    def directory(self, path: str) -> Path:
        """Where that cgroup is."""
        return self._base / path if path else self._base

    def materialize(self) -> None:
        """Write the whole tree.

        Raises:
            HostError: a file or directory could not be made.
        """
        for path in self.tree:
            self._make(path)
            self._put_sets(path)

    def add(self, path: str) -> None:
        """Make a cgroup, and those above it, in the tree and in the directory."""
        self.tree.add(path)
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            self._make("/".join(parts[:count]))
            self._put_sets("/".join(parts[:count]))

    def remove(self, path: str) -> None:
        """Remove a cgroup from the tree and from the directory.

        Raises:
            OSError: EBUSY while it has children or processes.
        """
        self.tree.remove(path)
        directory = self.directory(path)
        for file in directory.iterdir():
            self._written.pop(file, None)
            file.unlink()
        directory.rmdir()

    def absorb(self) -> Absorbed:
        """Take over what others wrote, by the kernel's rules, and put every file right.

        A file of no bytes is a writer that has opened it and not written yet: left alone, as the
        kernel would.
        """
        accepted: list[Accepted] = []
        refused = self._look(accepted)
        while refused:
            # A write that makes this one valid may have come before it, but after its file was read here.
            before = len(accepted)
            refused = self._look(accepted)
            if len(accepted) == before:
                break
        self._written.update({file: error.text for file, error in refused.items()})
        self.flush()
        rejected = tuple(refused.values())
        self.rejections += rejected
        return Absorbed(tuple(accepted), rejected)

    def flush(self) -> None:
        """Write every file whose text changed."""
        for path in self.tree:
            self._put_sets(path)

    def _look(self, accepted: list[Accepted]) -> dict[Path, CgroupWriteError]:
        """Take over what the rules allow; returns what they forbid."""
        refused: dict[Path, CgroupWriteError] = {}
        for path in list(self.tree):
            for resource in CpusetFile:
                try:
                    self._absorb_file(path, resource, accepted)
                except CgroupWriteError as error:
                    refused[self.directory(path) / self._own_name(path, resource)] = error
        return refused

    def _absorb_file(self, path: str, resource: CpusetFile, accepted: list[Accepted]) -> None:
        name = self._own_name(path, resource)
        if not name:
            return
        file = self.directory(path) / name
        text = _read(file)
        if text in {self._written.get(file), ""}:
            return
        before = self.tree.text(path, resource)
        self.tree.write(path, resource, text)
        self._written[file] = text
        accepted.append(Accepted(path, resource, before, self.tree.text(path, resource)))

    def _own_name(self, path: str, resource: CpusetFile) -> str:
        """The file of the own set; on v2 the root has none."""
        is_missing = path == ROOT and self.tree.version == V2
        return "" if is_missing else OWN.format(resource=resource)

    def _effective_name(self, resource: CpusetFile) -> str:
        return EFFECTIVE[self.tree.version].format(resource=resource)

    def _effective_text(self, path: str, resource: CpusetFile) -> str:
        return self.tree.text(path, resource, effective=True)

    def _put_sets(self, path: str) -> None:
        for resource in CpusetFile:
            self._put(path, self._own_name(path, resource), self.tree.text(path, resource))
            self._put(path, self._effective_name(resource), self._effective_text(path, resource))

    def _make(self, path: str) -> None:
        directory = self.directory(path)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HostError(str(directory), f"cannot be made: {error.strerror}") from error
        if self.tree.version == V2:
            self._put(path, "cgroup.controllers", CONTROLLERS)
            self._put(path, "cgroup.subtree_control", CONTROLLERS)
        self._put(path, "cgroup.procs", "")

    def _put(self, path: str, name: str, text: str) -> None:
        if not name:
            return
        if (
            path == ROOT
            and name.startswith("cpuset.")
            and self.tree.version == V1
            and "effective" not in name
        ):
            text = self.tree.text(ROOT, CpusetFile(name.removeprefix("cpuset.")), effective=True)
        file = self.directory(path) / name
        known = self._written.get(file)
        if known is not None and known.rstrip("\n") == text:
            return  # nor when only the line end differs: its writer may be about to write again
        try:
            file.write_text(text + "\n", encoding="ascii")
        except OSError as error:
            raise HostError(str(file), f"cannot be written: {error.strerror}") from error
        self._written[file] = text + "\n"


def _read(file: Path) -> str:
    """The text by one read(2): two of them could give the beginning of one value and the end of the next."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, LONGEST_VALUE).decode("ascii", "replace")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HostError(str(file), f"cannot be read: {error.strerror}") from error
