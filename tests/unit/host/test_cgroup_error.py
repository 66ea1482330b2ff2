import errno
import os
from pathlib import Path

import pytest

from nri_plugin.host.cgroup import host_error

MEANINGS = [
    (2, errno.ERANGE, "beyond the CPUs this kernel can ever have"),
    (1, errno.ERANGE, "beyond the CPUs this kernel can ever have"),
    (2, errno.EINVAL, "offline or the list is malformed"),
    (1, errno.EINVAL, "offline or that its parent's 0-1 does not have"),
    (2, errno.ENOSPC, "without a CPU"),
    (2, errno.EROFS, "mounted read-only"),
    (2, errno.EACCES, "run as root"),
    (1, errno.EACCES, "not within its parent's CPUs 0-1"),
    (2, errno.EPERM, "run as root"),
    (1, errno.EBUSY, "shrink that one first"),
    (2, errno.EBUSY, "partition"),
    (2, errno.EIO, "was not taken"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "child").mkdir()
    return tmp_path / "child" / "cpuset.cpus"


@pytest.mark.parametrize(("version", "number", "meaning"), MEANINGS)
def test_refusal_of_the_kernel_is_said_in_words(file: Path, version: int, number: int, meaning: str) -> None:
    error = host_error(str(file), OSError(number, os.strerror(number)), "2-3", version)
    assert error.path == str(file)
    assert meaning in error.detail
    assert os.strerror(number) in error.detail


def test_parent_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    error = host_error(str(tmp_path / "x" / "cpuset.cpus"), OSError(errno.EACCES, "no"), "2", 1)
    assert "(unreadable)" in error.detail
