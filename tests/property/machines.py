"""Machines drawn at random, regular and not, as rows (cpu, core, socket, NUMA node, uncore cache)."""

from hypothesis import strategies as st

from tests.topology_rows import topology_of_rows


@st.composite
def regular_rows(draw, max_nodes=4):
    """Every node, cache and core alike; sockets hold nodes or nodes hold sockets; CPU ids of two kinds."""
    nodes = draw(st.integers(1, max_nodes))
    sockets = draw(
        st.sampled_from([n for n in (1, 2, 4) if n <= nodes and nodes % n == 0] + [nodes, 2 * nodes])
    )
    caches = draw(st.integers(1, 2))
    cores = draw(st.integers(1, 3))
    threads = draw(st.sampled_from([1, 2, 2, 4]))
    interleaved = draw(st.booleans())
    units = max(nodes, sockets)
    rows = []
    core = 0
    for unit in range(units):
        for cache in range(caches):
            for _ in range(cores):
                socket, node = unit * sockets // units, unit * nodes // units
                rows += [[thread, core, socket, node, unit * caches + cache] for thread in range(threads)]
                core += 1
    total = core
    return [
        [
            thread * total + c if interleaved else c * threads + thread,
            c if interleaved else c * threads,
            s,
            n,
            k,
        ]
        for thread, c, s, n, k in rows
    ]


@st.composite
def uneven_rows(draw, max_nodes=4):
    """A regular machine of which some CPUs are offline: odd cores, lopsided nodes and caches."""
    rows = draw(regular_rows(max_nodes))
    keep = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    kept = [row for row, stays in zip(rows, keep, strict=True) if stays] or rows[:1]
    lowest = {}
    for row in sorted(kept):
        lowest.setdefault(row[1], row[0])
    return [[row[0], lowest[row[1]], *row[2:]] for row in kept]


@st.composite
def straddled_rows(draw, max_nodes=4):
    """A machine, even or not, whose caches begin and end anywhere: some reach into the next NUMA node."""
    rows = draw(st.one_of(regular_rows(max_nodes), uneven_rows(max_nodes)))
    cores = {core: place for place, core in enumerate(sorted({row[1] for row in rows}))}
    width = draw(st.integers(1, len(cores)))
    return [[*row[:4], cores[row[1]] // width] for row in rows]


def rows_of_any_machine(max_nodes=4):
    return st.one_of(regular_rows(max_nodes), uneven_rows(max_nodes), straddled_rows(max_nodes))


@st.composite
def machine_with_free_cpus(draw, max_nodes=4):
    """(rows, topology, available CPU ids)."""
    rows = draw(rows_of_any_machine(max_nodes))
    cpus = sorted(row[0] for row in rows)
    free = draw(st.lists(st.booleans(), min_size=len(cpus), max_size=len(cpus)))
    if draw(st.booleans()):
        free = [True] * len(cpus)
    return rows, topology_of_rows(rows), {cpu for cpu, is_free in zip(cpus, free, strict=True) if is_free}
