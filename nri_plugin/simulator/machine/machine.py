"""Described machines: shipped by name or read from a file, as a `Topology` or as a sysfs tree.

`build_sysfs` and `discover` undo each other: what is read back from the tree is
`build_topology` of the same description.
"""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from nri_plugin.model import bits
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import NO_CPUS, CoreID, CPUSet, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.model.topology import NUMANode, Topology
from nri_plugin.simulator.machine.layout import Layout, lay_out, write_tree
from nri_plugin.simulator.machine.text import Description, parse

__all__ = ["Description", "build_sysfs", "build_topology", "load", "parse", "shipped", "shipped_text"]

_SUFFIX = ".txt"


def shipped() -> dict[str, Description]:
    """The machines that come with the package, by name."""
    folder = resources.files("nri_plugin.simulator") / "machines"
    found = {
        entry.name.removesuffix(_SUFFIX): entry.read_text("ascii")
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    return {name: parse(found[name], name) for name in sorted(found)}


def shipped_text(name: str) -> str | None:
    """The description of a shipped machine; None when there is none of that name."""
    entry = resources.files("nri_plugin.simulator") / "machines" / (name + _SUFFIX)
    return entry.read_text("ascii") if "/" not in name and entry.is_file() else None


def load(name_or_path: str) -> Description:
    """A shipped machine by its name, else the description in a file.

    Raises:
        ConfigError: the file is no description; names line and column.
        HostError: neither a shipped machine nor a readable file.
    """
    shipped_one = shipped_text(name_or_path)
    if shipped_one is not None:
        return parse(shipped_one, name_or_path)
    path = Path(name_or_path)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as err:
        detail = "is neither a file nor the name of a shipped machine; nri-pin topology --list names them"
        raise HostError(name_or_path, detail) from err
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "is not text"
        raise HostError(name_or_path, f"cannot be read: {(why or 'unknown error').lower()}") from err
    return parse(text, path.stem, source=name_or_path)


def build_topology(description: Description) -> Topology:
    """The machine as placement sees it.

    Raises:
        ConfigError: the clauses do not fit together.
    """
    layout = lay_out(description)
    sockets = _masks((core.socket, core.cpus) for core in layout.cores)
    caches = _masks((core.cache, core.cpus) for core in layout.cores)
    has_l3 = layout.with_l3 & layout.online
    groups = [mask & has_l3 for mask in caches.values()]
    groups += [mask & layout.online & ~has_l3 for mask in sockets.values()]
    return Topology(
        online=CPUSet(layout.online),
        cores=_cores(layout),
        sockets=tuple(
            (SocketID(number), CPUSet(mask & layout.online))
            for number, mask in sorted(sockets.items())
            if mask & layout.online
        ),
        nodes=_nodes(layout),
        caches=tuple(
            (UncoreCacheID(number), CPUSet(mask))
            for number, mask in enumerate(sorted(filter(None, groups), key=bits.lowest))
        ),
        caches_known=bool(has_l3),
        without_l3=CPUSet(layout.online & ~has_l3) if has_l3 else NO_CPUS,
        offline=CPUSet(layout.present & ~layout.online),
        isolated=CPUSet(layout.isolated | layout.tickless),
    )


def build_sysfs(description: Description, destination: str) -> None:
    """Write the machine as `sys` and `proc` trees below a directory.

    Raises:
        ConfigError: the clauses do not fit together.
        HostError: the tree cannot be written, or there is one already.
    """
    write_tree(lay_out(description), description.title or description.name, destination)


def _cores(layout: Layout) -> tuple[tuple[CoreID, CPUSet], ...]:
    masks = [bits.from_ids(core.cpus) & layout.online for core in layout.cores]
    return tuple(
        (CoreID(bits.lowest(mask)), CPUSet(mask)) for mask in sorted(filter(None, masks), key=bits.lowest)
    )


def _nodes(layout: Layout) -> tuple[NUMANode, ...]:
    if not layout.has_numa:
        total_kb = sum(node.memory_kb for node in layout.nodes)
        pages = [dict(node.hugepages) for node in layout.nodes]
        pools = tuple((size_kb, sum(node[size_kb] for node in pages)) for size_kb in pages[0])
        return (NUMANode(NUMANodeID(0), CPUSet(layout.online), total_kb * 1024, pools, (10,)),)
    return tuple(
        NUMANode(
            id=NUMANodeID(node.id),
            cpus=CPUSet(node.cpus & layout.online),
            memory_bytes=node.memory_kb * 1024,
            hugepages=node.hugepages,
            distances=node.distances,
        )
        for node in layout.nodes
    )


def _masks(members: Iterable[tuple[int, tuple[int, ...]]]) -> dict[int, int]:
    masks: dict[int, int] = {}
    for key, cpus in members:
        masks[key] = masks.get(key, 0) | bits.from_ids(cpus)
    return masks
