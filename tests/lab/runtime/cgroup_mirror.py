"""A simulated cgroup tree as a directory, for processes that expect `/sys/fs/cgroup`.

A directory cannot refuse a write. `absorb` reads all writes since the last call, applies the kernel's rules and corrects
the files. It reports writes that a kernel would have rejected, because the writer saw no error.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from nri_plugin.host.sysfs_files import LONGEST_VALUE
from nri_plugin.model.errors import HostError
from tests.lab.runtime.cgroup_tree import ROOT, V1, V2, CgroupTree, CgroupWriteError, CpusetFile

CONTROLLERS = "cpuset cpu io memory hugetlb pids"

OWN = "cpuset.{resource}"
EFFECTIVE: Mapping[int, str] = {V1: "cpuset.effective_{resource}", V2: "cpuset.{resource}.effective"}


class CgroupMirror:
    """Keeps a directory equal to a tree.

    Attributes:
        tree: the simulated kernel's state.
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
        """The directory of a cgroup."""
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

    def absorb(self) -> None:
        """Apply the writes of other processes by the kernel's rules, and correct the files.

        A file without bytes is left alone: its writer has opened it and not written yet.
        """
        _, rejected = self._look()
        while rejected:
            # A write that makes a rejected one valid may have come before it, but after its file was read here.
            count, rejected = self._look()
            if not count:
                break
        self._written.update({file: error.text for file, error in rejected.items()})
        self.flush()
        self.rejections += rejected.values()

    def flush(self) -> None:
        """Write every file whose text changed."""
        for path in self.tree:
            self._put_sets(path)

    def _look(self) -> tuple[int, dict[Path, CgroupWriteError]]:
        """Apply new writes; returns how many the rules allow, and those that they reject."""
        count, rejected = 0, {}
        for path in list(self.tree):
            for resource in CpusetFile:
                if not (name := self._own_name(path, resource)):
                    continue
                file = self.directory(path) / name
                text = _read(file)
                if text in {self._written.get(file), ""}:
                    continue
                try:
                    self.tree.write(path, resource, text)
                except CgroupWriteError as error:
                    rejected[file] = error
                else:
                    self._written[file] = text
                    count += 1
        return count, rejected

    def _own_name(self, path: str, resource: CpusetFile) -> str:
        """The file of the own set; on v2 the root has none."""
        is_missing = path == ROOT and self.tree.version == V2
        return "" if is_missing else OWN.format(resource=resource)

    def _put_sets(self, path: str) -> None:
        for resource in CpusetFile:
            self._put(path, self._own_name(path, resource), self.tree.text(path, resource))
            effective = EFFECTIVE[self.tree.version].format(resource=resource)
            self._put(path, effective, self.tree.text(path, resource, effective=True))

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
        file = self.directory(path) / name
        known = self._written.get(file)
        if known is not None and known.rstrip("\n") == text:
            return  # if only the line end differs, too: the writer of the file may be about to write again
        try:
            file.write_text(text + "\n", encoding="ascii")
        except OSError as error:
            raise HostError(str(file), f"cannot be written: {error.strerror}") from error
        self._written[file] = text + "\n"


def _read(file: Path) -> str:
    """The text by one read(2). Two reads could return parts of two different values."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, LONGEST_VALUE).decode("ascii", "replace")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HostError(str(file), f"cannot be read: {error.strerror}") from error
