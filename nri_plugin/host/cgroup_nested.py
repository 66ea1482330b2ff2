"""Moving a v1 cpuset that has cpusets of its own below it, as a container with a runtime inside has.

On v1 a parent holds at all times what its children hold, so such a cpuset can be neither narrowed nor moved by
one write. Afterwards every cgroup below is within the new set; one that was wholly outside has all of it.
"""

import os
from collections.abc import Callable
from typing import Protocol

from nri_plugin import bits
from nri_plugin.host.cgroup_error import GONE


class CpusFile(Protocol):
    """A cgroup's own CPUs as the text of a kernel list."""

    cpus: str


def write_with_children(open_files: Callable[[str], CpusFile], directory: str, wanted: int) -> None:
    """Set the cpuset at `directory` to the mask `wanted`, its children first.

    In between the set is the union of the old and the new one: every step is one the kernel takes.

    Raises:
        OSError: the kernel refused a step.
        ValueError: a cpuset holds no kernel list.
    """
    files = open_files(directory)
    held = bits.parse_list(files.cpus)
    if held | wanted != held:
        files.cpus = bits.format_list(held | wanted)
    for child in _children(directory):
        _narrow(open_files, child, wanted)
    files.cpus = bits.format_list(wanted)


def _narrow(open_files: Callable[[str], CpusFile], directory: str, limit: int) -> None:
    try:
        held = bits.parse_list(open_files(directory).cpus)
        if held & ~limit:
            write_with_children(open_files, directory, held & limit or limit)
    except OSError as error:
        if error.errno not in GONE:
            raise


def _children(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
