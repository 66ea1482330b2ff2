"""lstopo's XML, written by hwloc 2.9 for machines that we describe, and for the one recorded beside it."""

import gzip
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.host.sysfs import read_topology
from nri_plugin.model.sets import NO_CPUS
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.hwloc import (
    MAX_DEPTH,
    NotTopologyError,
    bitmap,
    read_hwloc,
    read_topology_element,
)
from nri_plugin.simulator.machine.machine import build_topology, load
from nri_plugin.simulator.machine.source import MachineKind, RecordedFiles, machine_from, read_machine
from tests.conftest import HERE

FOLDER = HERE / "machines" / "lstopo"
DESCRIBED = sorted(
    path.name.removesuffix(".xml.gz")
    for path in FOLDER.glob("*.xml.gz")
    if path.name not in {"vm-2-cpus.xml.gz", "synthetic.xml.gz"}
)
DOCTYPE = '<!DOCTYPE topology SYSTEM "hwloc2.dtd">'


def described(name: str) -> Topology:
    """What our description says of the machine whose tree hwloc was shown."""
    name = name.removesuffix("-v1")
    own = FOLDER / f"{name}.yaml"
    topology = build_topology(load(str(own) if own.is_file() else name))
    return replace(topology, isolated=NO_CPUS)  # which hwloc does not know


def document(objects: str, more: str = "", version: str = ' version="2.0"') -> bytes:
    machine = f'<object type="Machine" complete_cpuset="0x0000001f">{objects}</object>'
    return f"{DOCTYPE}<topology{version}>{machine}{more}</topology>".encode()


def topology_of(data: bytes) -> Topology:
    return read_topology(RecordedFiles(read_hwloc(data)))


def pu(*cpus: int) -> str:
    return "".join(f'<object type="PU" os_index="{cpu}"/>' for cpu in cpus)


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_hwloc_makes_of_a_described_machine_is_read_back_as_described(name: str) -> None:
    machine = read_machine(str(FOLDER / f"{name}.xml.gz"))
    assert machine.kind is MachineKind.LSTOPO
    assert machine.topology == described(name)


def in_version_3(text: str) -> str:
    """The same machine as hwloc 3.0 writes it: objects have an id, and page types are one info of the topology."""
    text = text.replace('<topology version="2.0">', '<topology version="3.0">')
    text = re.sub(r' gp_index="([0-9]+)"', r' gp_index="\1" id="obj\1"', text)
    text = re.sub(r"<page_type [^>]*/>\s*", "", text)
    infos = '<info name="PageSizeNr" value="2"/><info name="PageSizes" value="4096,2097152"/>'
    return text.replace("</topology>", f"{infos}</topology>")


@pytest.mark.parametrize("name", [name for name in DESCRIBED if not name.endswith("-v1")])
def test_what_hwloc_3_writes_is_read_but_for_huge_pages_which_it_does_not_count(name: str) -> None:
    text = in_version_3(gzip.decompress((FOLDER / f"{name}.xml.gz").read_bytes()).decode())
    assert 'version="3.0"' in text
    wanted = described(name)
    without = tuple(replace(node, hugepages=()) for node in wanted.nodes)
    assert topology_of(text.encode()) == replace(wanted, nodes=without)


def test_kinds_of_objects_that_are_not_known_are_passed_over() -> None:
    inside = '<object type="NUMANode" os_index="0" cpuset="0x3" memory_tier="0" local_memory="4096"/>'
    near = f'<object type="MemCache" cpuset="0x3" cache_size="4096">{inside}</object>'
    new = f'<object type="Chiplet" cpuset="0x3" something="new">{near}{pu(0, 1)}</object>'
    topology = topology_of(document(new, '<memtier nr="1"/>', version=' version="3.1"'))
    assert str(topology.online) == "0-1"
    assert [node.memory_bytes for node in topology.nodes] == [4096]


def test_a_real_machine_is_what_discovery_made_of_its_files() -> None:
    from_xml = read_machine(str(FOLDER / "vm-2-cpus.xml.gz"))
    recorded = read_machine(str(HERE / "machines" / "vm-2-cpus.json.gz"))
    assert recorded.kind is MachineKind.RECORDED
    assert from_xml.topology == recorded.topology
    assert from_xml.facts()["caches"] == recorded.facts()["caches"]
    assert sorted(from_xml.facts()["pci"]) == ["0000:00:02.0", "0000:00:03.0"]


def test_a_synthetic_machine_has_the_levels_that_were_asked_for() -> None:
    topology = read_machine(str(FOLDER / "synthetic.xml.gz")).topology
    counts = [len(groups) for groups in (topology.sockets, topology.nodes, topology.caches, topology.cores)]
    assert (counts, len(topology.online)) == ([2, 4, 8, 32], 64)


def test_memory_that_is_only_near_cpus_takes_none_of_them() -> None:
    near = '<object type="NUMANode" os_index="0" subtype="HBM" cpuset="0x3" local_memory="4096"/>'
    own = '<object type="NUMANode" os_index="1" cpuset="0x3" local_memory="4096"/>'
    nodes = topology_of(document(near + own + pu(0, 1))).nodes
    assert [str(node.cpus) for node in nodes] == ["", "0-1"]


def test_a_wider_node_leaves_cpus_to_a_narrower_one() -> None:
    wide = '<object type="NUMANode" os_index="0" cpuset="0xf" local_memory="4096"/>'
    narrow = "".join(
        f'<object type="NUMANode" os_index="{n}" cpuset="{mask}"/>' for n, mask in ((1, "0x3"), (2, "0xc"))
    )
    nodes = topology_of(document(wide + narrow + pu(0, 1, 2, 3))).nodes
    assert [str(node.cpus) for node in nodes] == ["", "0-1", "2-3"]
    assert [node.memory_bytes for node in nodes] == [4096, 0, 0]


def test_cpus_of_the_complete_cpuset_alone_are_offline() -> None:
    topology = topology_of(document(pu(0, 2)))
    assert (str(topology.online), str(topology.offline)) == ("0,2", "1,3-4")


def test_without_numa_nodes_the_memory_is_the_machine_s() -> None:
    machine = '<object type="Machine" cpuset="0x3" local_memory="8192">' + pu(0, 1) + "</object>"
    nodes = topology_of(f"{DOCTYPE}<topology>{machine}</topology>".encode()).nodes
    assert [(node.id, str(node.cpus), node.memory_bytes) for node in nodes] == [(0, "0-1", 8192)]


def test_packages_without_a_number_are_still_sockets() -> None:
    halves = "".join(f'<object type="Package" cpuset="{mask}"/>' for mask in ("0x3", "0xc"))
    topology = topology_of(document(halves + pu(0, 1, 2, 3)))
    assert [str(cpus) for _, cpus in topology.sockets] == ["0-1", "2-3"]


def test_distances_may_be_indexed_by_the_number_in_the_file() -> None:
    nodes = "".join(
        f'<object type="NUMANode" os_index="{n}" gp_index="{n + 40}" cpuset="{mask}"/>'
        for n, mask in ((0, "0x1"), (5, "0x2"))
    )
    table = (
        '<distances2 type="NUMANode" nbobjs="2" kind="5" indexing="gp"><indexes>45 40</indexes>'
        "<u64values>10 21 </u64values><u64values>31 10</u64values></distances2>"
    )
    rows = [node.distances for node in topology_of(document(nodes + pu(0, 1), table)).nodes]
    assert rows == [(10, 31), (21, 10)]


@pytest.mark.parametrize(
    "table",
    [
        '<distances2 type="NUMANode" kind="9"><indexes>0 1</indexes><u64values>1 2 3 4</u64values></distances2>',
        '<distances2 type="NUMANode" kind="5"><indexes>0 1</indexes><u64values>1 2 3</u64values></distances2>',
        '<distances2 type="NUMANode" kind="5"><indexes>0 2</indexes><u64values>1 2 3 4</u64values></distances2>',
        '<distances2 type="NUMANode" kind="5"><indexes>0 x</indexes><u64values>1 2 3 4</u64values></distances2>',
    ],
)
def test_tables_of_bandwidths_or_of_other_nodes_are_no_distances(table: str) -> None:
    nodes = "".join(f'<object type="NUMANode" os_index="{n}" cpuset="0x{n + 1}"/>' for n in (0, 1))
    assert [node.distances for node in topology_of(document(nodes + pu(0, 1), table)).nodes] == [None, None]


def test_kinds_of_cores_are_told_apart() -> None:
    kinds = "".join(
        f'<cpukind cpuset="{mask}"><info name="CoreType" value="{kind}"/></cpukind>'
        for mask, kind in (("0x1", "IntelCore"), ("0x2", "IntelAtom"))
    )
    machine = machine_from(document(pu(0, 1), kinds), "f.xml", "f")
    assert machine.facts()["core_types"] == {"cpu_core": "0", "cpu_atom": "1"}


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("0x0", 0),
        ("0x000000ff", 0xFF),
        ("0xffff0000,0x0", 0xFFFF0000 << 32),
        ("0x1,,0x2", 1 << 64 | 2),
        ("0x00000001,0x00000003", 1 << 32 | 3),
    ],
)
def test_bitmaps_are_words_highest_first(text: str, mask: int) -> None:
    assert bitmap(text) == mask


@pytest.mark.parametrize("text", ["0xf...f", "0xf...f,0x0", "0-3", "0x123456789", "0x1" + ",0x1" * 4000])
def test_other_bitmaps_are_refused(text: str) -> None:
    with pytest.raises(NotTopologyError, match="cpuset"):
        bitmap(text)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<svg/>", "its outermost element is <svg>"),
        (b"<topology", "line 1: "),
        (b'<?xml version="1.0" encoding="TF-8"?><topology/>', "names an encoding that cannot be read"),
        (b'<?xml version="1.0" encoding="gb2312"?><topology/>', "names an encoding that cannot be read"),
        (b"<a></b>", "line 1: mismatched tag"),
        (b'<topology version="2.0"/>', "it holds no object"),
        (
            document("", version=' version="4.0"'),
            "XML version 4.0 of lstopo is not yet supported, 1 to 3 are",
        ),
        (document(""), "it holds no PU"),
        (document('<object type="PU"/>'), "no os_index"),
        (document('<object type="PU" os_index="70000"/>'), "no os_index"),
        (document(pu(0) + '<object type="NUMANode" os_index="1"/>' * 2), "NUMA node 1 is there twice"),
        (b"<topology>" + b"<object>" * (MAX_DEPTH + 1), "nest deeper"),
    ],
)
def test_what_is_no_topology_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(NotTopologyError, match=why):
        read_hwloc(data)


def test_entities_are_refused_before_they_grow() -> None:
    bomb = '<!DOCTYPE topology [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><topology>&b;</topology>'
    with pytest.raises(NotTopologyError, match="declares entities"):
        read_topology_element(bomb.encode())


def test_the_doctype_that_hwloc_writes_passes_and_is_not_fetched(tmp_path: Path) -> None:
    outside = tmp_path / "hwloc2.dtd"
    outside.write_text("<!ENTITY x 'y'>")
    text = f'<!DOCTYPE topology SYSTEM "{outside}"><topology version="2.0"/>'
    assert read_topology_element(text.encode()).tag == "topology"


def test_the_real_files_carry_no_address_and_no_name() -> None:
    text = gzip.decompress((FOLDER / "vm-2-cpus.xml.gz").read_bytes())
    assert not [word for word in (b"HostName", b"Address", b"Serial") if word in text]
