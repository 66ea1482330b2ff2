"""Whether this machine has real cpusets of cgroup v1, for the tests that make some."""

import pytest

from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.model.errors import HostError

ROOT = "/sys/fs/cgroup"


def _is_v1() -> bool:
    try:
        tree = find_cpuset_tree(ROOT)
    except HostError:
        return False
    return tree.version == 1 and tree.is_kernel


needs_v1 = pytest.mark.skipif(
    not _is_v1(), reason="needs cgroup v1: boot with systemd.unified_cgroup_hierarchy=0"
)
