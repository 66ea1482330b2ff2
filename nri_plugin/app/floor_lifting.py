"""Opens the Burstable and BestEffort slices again where `poolFloor` has been switched off.

What was written to a slice outlives the agent that wrote it. Left there it would keep containers off promised CPUs
for ever: a Burstable container with exclusive CPUs off its own, and everything else after an uninstall.
"""

import logging
from dataclasses import replace
from typing import Protocol

from nri_plugin.app.logs import say
from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import HostError
from nri_plugin.options import CPUManagerPolicy, Node
from nri_plugin.pool import floor_writes
from nri_plugin.state import CgroupRef, State


class Slices(Protocol):
    """What lifting needs of a cgroup tree."""

    @property
    def version(self) -> int:
        """1 or 2; version 1 has no floor."""

    def read_cpus(self, ref: CgroupRef) -> CPUSet | None:
        """What a cgroup was given; None when it does not exist."""

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet) -> object:
        """Give it something else."""


def lift_floor(cgroups: Slices | None, node: Node, state: State, log: logging.Logger) -> None:
    """Give slices that say what a floor would say all online CPUs; those that say anything else are somebody's own.

    Does nothing while the floor is on.
    """
    if cgroups is None or cgroups.version == 1 or node.options.pool_floor:
        return
    on = replace(node.options, pool_floor=True, cpu_manager_policy=CPUManagerPolicy.STATIC)
    for write in floor_writes(replace(node, options=on), state, state.pods.values()):
        try:
            found = cgroups.read_cpus(write.target)
            if found and is_floor(found, node, state):
                cgroups.write_cpus(write.target, node.topology.online)
                say(log, logging.INFO, "pool floor lifted", cgroup=write.target.parent, was=found)
        except HostError as error:
            say(log, logging.WARNING, "pool floor not lifted", err=error)


def is_floor(cpus: CPUSet, node: Node, state: State) -> bool:
    """Whether `cpus` are narrowed by what is promised, or also by what is reserved, and by nothing else."""
    online, kept = node.topology.online, state.exclusive | node.reserved
    return cpus != online and not cpus & state.exclusive and cpus | kept == online | kept
