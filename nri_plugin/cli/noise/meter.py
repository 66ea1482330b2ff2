"""Readings of the counters of containers with exclusive CPUs, and the noise between two of them."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nri_plugin.cli.doctor.view import is_in_pod
from nri_plugin.cli.output import to_run
from nri_plugin.cli.state.rows import StateRow
from nri_plugin.cli.state.source import FailedError, Seen
from nri_plugin.config.checks import HOST_MOUNT
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.host.cpu_noise import CPUNoise, noise_of
from nri_plugin.host.kernel_counters import (
    ContainerCounters,
    ContainerFiles,
    CounterFiles,
    NodeCounters,
    read_threads,
)
from nri_plugin.host.kernel_work import ReachingInterrupt, read_interrupts
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import Phase
from nri_plugin.model.sets import NO_CPUS

ID_CHARACTERS = 4
"""A shorter prefix of a container's id does not name it."""


@dataclass(frozen=True, slots=True)
class NoiseReading:
    """All counters at one moment.

    Attributes:
        node: of the node.
        containers: by container id; None where the cgroup is not there.
    """

    node: NodeCounters
    containers: Mapping[str, ContainerCounters | None]


class NoiseMeter:
    """Reads counters.

    Args:
        root: a directory that contains the node's `proc`; None for `/host` and `/`.
        cgroup_root: the node's cgroup tree.
        clock: seconds, monotonic.
    """

    def __init__(
        self, root: str | None, cgroup_root: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._roots = (root,) if root else (HOST_MOUNT, "/")
        self._counters = CounterFiles(self._roots, clock)
        self._proc = _proc_of_node(self._roots)
        try:
            self._files: ContainerFiles | None = ContainerFiles(Cgroups.open(cgroup_root))
        except HostError:
            self._files = None

    def read(self, rows: Sequence[StateRow]) -> NoiseReading:
        """The counters of these containers and of their CPUs."""
        cpus = NO_CPUS
        for row in rows:
            cpus |= row.allocation.in_force
        node = self._counters.read(cpus)
        refs = {row.record.id: row.record.cgroup for row in rows}
        found = {key: self._files.read(ref) if self._files else None for key, ref in refs.items()}
        if self._proc is not None:
            # A container without any thread is not a quiet one: its processes are not seen here.
            threads = read_threads(self._proc, list(refs.values()))
            found = {
                key: one and replace(one, threads=threads.get(refs[key]) or None)
                for key, one in found.items()
            }
        return NoiseReading(node, found)

    def interrupts(self) -> dict[int, ReachingInterrupt]:
        """The interrupts of the node by number; empty where they cannot be seen."""
        folders = (os.path.join(root, "proc/irq") for root in self._roots)
        found = next((one for folder in folders if (one := read_interrupts(folder)) is not None), [])
        return {one.number: one for one in found}


def _proc_of_node(roots: Sequence[str]) -> str | None:
    """A mount of proc that has the node's processes; a container's own has not."""
    for root in roots:
        proc = os.path.join(root, "proc")
        if os.path.isdir(os.path.join(proc, "1")) and not (root == "/" and is_in_pod()):
            return proc
    return None


def noise_between(row: StateRow, before: NoiseReading, after: NoiseReading) -> CPUNoise:
    """The noise of one container between two readings."""
    own = before.containers.get(row.record.id), after.containers.get(row.record.id)
    return noise_of(row.allocation.in_force, before.node, after.node, own, row.numa_nodes)


def measured(rows: Sequence[StateRow], word: str, found: Seen) -> list[StateRow]:
    """The containers to measure: those with exclusive CPUs that run, or the one that the word names.

    Raises:
        FailedError: none or several have this name, or it has no exclusive CPUs.
    """
    if not word:
        return [row for row in rows if is_measured(row)]
    named = [row for row in rows if is_called(row, word)]
    if not named:
        raise FailedError(f"{word}: no container has this name; {to_run('state show')} lists them")
    if len(named) > 1:
        names = ", ".join(sorted(row.name for row in named))
        raise FailedError(f"{word}: several containers have this name: {names}; give namespace/pod/container")
    if not is_measured(named[0]):
        pool = found.state.shared_pool(found.node) if found.node else "the shared pool"
        raise FailedError(
            f"{named[0].name} has no exclusive CPUs but runs on {pool} with others; the noise of a container can be told "
            "only where the CPUs are its own"
        )
    return named


def is_measured(row: StateRow) -> bool:
    """Whether the container runs on exclusive CPUs."""
    return row.is_exclusive and row.record.phase is not Phase.STOPPED


def is_called(row: StateRow, word: str) -> bool:
    """Whether the word is its path, the end or the beginning of it at a slash, or its id or a beginning of that."""
    return (
        f"/{row.name}".endswith(f"/{word}")
        or row.name.startswith(f"{word}/")
        or (len(word) >= ID_CHARACTERS and row.record.id.startswith(word))
    )
