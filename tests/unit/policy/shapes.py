"""Small machines that the tables name."""

from tests.topology_rows import topology_of_rows


def machine(sockets=1, nodes=1, caches=1, cores=4, threads=2, memory_bytes=None):
    """All parts per next larger part; CPUs of a core are neighbours, cores ascend through the machine."""
    rows, cpu = [], 0
    for socket in range(sockets):
        for node in range(nodes):
            for cache in range(caches):
                for _ in range(cores):
                    first = cpu
                    for _ in range(threads):
                        in_machine = socket * nodes + node
                        rows.append((cpu, first, socket, in_machine, in_machine * caches + cache))
                        cpu += 1
    return topology_of_rows(rows, memory_bytes=memory_bytes)
