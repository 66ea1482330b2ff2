"""Described machines: shipped by name, in a file or in a scenario, as a `Topology` or as a sysfs tree.

For each description, `discover` reads `build_topology` back from the tree that `build_sysfs` writes.
"""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from nri_plugin.config import yaml_tree
from nri_plugin.config.yaml_tree import Section
from nri_plugin.model import bits
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import NO_CPUS, CoreID, CPUSet, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.model.topology import NUMANode, Topology
from nri_plugin.simulator.machine.description import Description, parse
from nri_plugin.simulator.machine.kernel_files import write_tree

__all__ = [
    "Description",
    "build_sysfs",
    "build_topology",
    "described_in",
    "is_description",
    "load",
    "parse",
    "shipped",
    "shipped_text",
]

_SUFFIX = ".yaml"


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


def is_description(text: str) -> bool:
    """Whether a text describes a machine; otherwise it names one."""
    return any(mark in text for mark in ":,\n")


def described_in(top: Section, text: str) -> str:
    """The machine of a scenario: a name, or the text of a description, on the lines where the scenario has it.

    Args:
        top: the scenario; it has the key `machine`.
        text: the text that `top` was read from.
    """
    value = top.entries["machine"]
    line, column = value.place.line - 1, value.place.column - 1
    if not isinstance(value, Section):
        said = yaml_tree.text(value)
        # a block of text begins on the line after its key
        return (
            "\n" * (line + said.endswith("\n")) + said.strip()
            if is_description(said.strip())
            else said.strip()
        )
    lines = text.split("\n")
    end = min((place.line - 1 for place in top.keys.values() if place.line - 1 > line), default=len(lines))
    return "\n" * line + "\n".join([" " * column + lines[line][column:], *lines[line + 1 : end]])


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


def build_topology(machine: Description) -> Topology:
    """The machine as placement sees it."""
    online = machine.online
    sockets = _masks((core.socket, core.cpus) for core in machine.cores)
    caches = _masks((core.cache, core.cpus) for core in machine.cores)
    has_l3 = machine.with_l3 & online
    # CPUs without an L3 form one group in each socket, as discovery groups them
    groups = [mask & has_l3 for mask in caches.values()]
    groups += [mask & online & ~has_l3 for mask in sockets.values()]
    return Topology(
        online=CPUSet(online),
        cores=_cores(machine),
        sockets=tuple(
            (SocketID(number), CPUSet(mask & online))
            for number, mask in sorted(sockets.items())
            if mask & online
        ),
        nodes=_nodes(machine),
        caches=tuple(
            (UncoreCacheID(number), CPUSet(mask))
            for number, mask in enumerate(sorted(filter(None, groups), key=bits.lowest))
        ),
        caches_known=bool(has_l3),
        without_l3=CPUSet(online & ~has_l3) if has_l3 else NO_CPUS,
        offline=CPUSet(machine.present & ~online),
        isolated=CPUSet(machine.isolated | machine.tickless),
    )


def build_sysfs(machine: Description, destination: str) -> None:
    """Write the machine as `sys` and `proc` trees below a directory.

    Raises:
        HostError: the tree cannot be written, or there is one already.
    """
    write_tree(machine, destination)


def _cores(machine: Description) -> tuple[tuple[CoreID, CPUSet], ...]:
    masks = [bits.from_ids(core.cpus) & machine.online for core in machine.cores]
    return tuple(
        (CoreID(bits.lowest(mask)), CPUSet(mask)) for mask in sorted(filter(None, masks), key=bits.lowest)
    )


def _nodes(machine: Description) -> tuple[NUMANode, ...]:
    if not machine.has_numa:
        total_kb = sum(node.memory_kb for node in machine.nodes)
        pages = [dict(node.hugepages) for node in machine.nodes]
        pools = tuple((size_kb, sum(node[size_kb] for node in pages)) for size_kb in pages[0])
        return (NUMANode(NUMANodeID(0), CPUSet(machine.online), total_kb * 1024, pools, (10,)),)
    return tuple(
        NUMANode(
            id=NUMANodeID(node.id),
            cpus=CPUSet(node.cpus & machine.online),
            memory_bytes=node.memory_kb * 1024,
            hugepages=node.hugepages,
            distances=node.distances,
        )
        for node in machine.nodes
    )


def _masks(members: Iterable[tuple[int, tuple[int, ...]]]) -> dict[int, int]:
    masks: dict[int, int] = {}
    for key, cpus in members:
        masks[key] = masks.get(key, 0) | bits.from_ids(cpus)
    return masks
