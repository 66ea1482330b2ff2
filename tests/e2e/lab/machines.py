"""The machines that guests are given, as QEMU arguments.

Sizes are in MiB. The CPU model is one that shows caches, dies and threads to the guest under emulation; models of
another vendor show the last-level cache as one.
"""

from dataclasses import dataclass

CPU_MODEL = "SapphireRapids,check=off"


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine by its shape; CPUs are numbered node by node, thread siblings side by side."""

    sockets: int
    dies: int
    cores: int
    threads: int
    node_memory_mib: int
    distances: tuple[tuple[int, ...], ...]

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return self.sockets * self.dies * self.cores * self.threads

    def arguments(self) -> list[str]:
        """Return what QEMU has to be told."""
        nodes = len(self.distances)
        each = self.cpus // nodes
        smp = f"{self.cpus},sockets={self.sockets},dies={self.dies},cores={self.cores},threads={self.threads}"
        words = ["-smp", smp, "-m", f"{nodes * self.node_memory_mib}M"]
        for node in range(nodes):
            words += ["-object", f"memory-backend-ram,id=m{node},size={self.node_memory_mib}M"]
            cpus = f"{node * each}-{(node + 1) * each - 1}"
            words += ["-numa", f"node,nodeid={node},cpus={cpus},memdev=m{node}"]
        for source, row in enumerate(self.distances):
            for target, distance in enumerate(row):
                words += ["-numa", f"dist,src={source},dst={target},val={distance}"]
        return words


_SUB_NUMA = ((10, 12, 21, 21), (12, 10, 21, 21), (21, 21, 10, 12), (21, 21, 12, 10))

# Two sockets of two NUMA nodes, each node with two cores of two threads and a last-level cache of its own.
FOUR_NODES = Machine(sockets=2, dies=2, cores=2, threads=2, node_memory_mib=512, distances=_SUB_NUMA)
