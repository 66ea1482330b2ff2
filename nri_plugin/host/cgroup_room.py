"""Making room above a cgroup whose own value is right and does not count, or whose cpuset files were taken away.

Cgroups above are only ever widened, by what the one below should have, never narrowed: they are not ours. The
root of the tree is left alone.
"""

import os
from collections.abc import Callable, Iterator

from nri_plugin import bits
from nri_plugin.host.cgroup_error import host_error
from nri_plugin.host.cgroup_nested import CpusFile


def widen_above(
    open_files: Callable[[str], CpusFile], top: str, directory: str, wanted: int, version: int
) -> None:
    """Let every cgroup between `top` and `directory` hold the mask `wanted`, outermost first.

    On v2 one that was never given a set has its parent's and needs none.

    Raises:
        HostError: the kernel refused a value.
    """
    for above in _above(top, directory):
        path = os.path.join(above, "cpuset.cpus")
        text = ""
        try:
            files = open_files(above)
            held = bits.parse_list(files.cpus)
            if not wanted & ~held or (version == 2 and not held):
                continue
            text = bits.format_list(held | wanted)
            files.cpus = text
        except FileNotFoundError:
            return
        except OSError as error:
            raise host_error(path, error, text, version) from error
        except ValueError:
            continue


def return_files(top: str, directory: str) -> None:
    """Pass cpuset on from `top` to `directory` again, outermost first (cgroup v2).

    Raises:
        HostError: the kernel refused.
    """
    for above in (top, *_above(top, directory)):
        path = os.path.join(above, "cgroup.subtree_control")
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                if "cpuset" in file.read(4096).split():
                    continue
            with open(path, "r+", encoding="ascii") as file:
                file.write("+cpuset")
        except FileNotFoundError:
            return
        except OSError as error:
            raise host_error(path, error, "+cpuset", 2) from error


def _above(top: str, directory: str) -> Iterator[str]:
    """Directories strictly between the two, outermost first."""
    parts = os.path.relpath(directory, top).split("/")[:-1]
    for count in range(1, len(parts) + 1):
        yield os.path.join(top, *parts[:count])
