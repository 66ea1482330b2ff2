"""Whatever a file holds, it is a machine or one sentence; and what a node prints is read back as the node."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.host.sysfs import read_facts, read_topology
from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.machine import machine_files, parse
from nri_plugin.simulator.machine.source import MachineKind, RecordedFiles, machine_from, read_machine
from tests.conftest import HERE
from tests.property.test_machine import machine_texts

FOLDER = HERE / "machines"
SOUND = [
    gzip.decompress((FOLDER / "lstopo" / "wide-l3.xml.gz").read_bytes()),
    gzip.decompress((FOLDER / "lstopo" / "kep3545-8-numa-v1.xml.gz").read_bytes()),
    gzip.decompress((FOLDER / "vm-2-cpus.json.gz").read_bytes()),
    json.dumps(read_machine("laptop").facts()).encode(),
    b"pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:2(indexes=core)",
]
PIECES = [
    b"",
    b"0",
    b"-1",
    b"99999999999999999999",
    b'"',
    b"<",
    b"{",
    b"\x00",
    b"\xff",
    b"null",
    b"0xf...f",
    b"&a;",
]


def is_machine_or_one_sentence(data: bytes) -> None:
    refusal = ""
    try:
        assert machine_from(data, "f", "f").topology.online
    except ConfigError as error:
        refusal = str(error)
    assert not refusal or refusal.startswith(("f:", "machine f:"))
    assert "\n" not in refusal


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_anything_is_a_machine_or_one_sentence(data: bytes) -> None:
    is_machine_or_one_sentence(data)


@given(st.data(), st.sampled_from(SOUND))
@settings(max_examples=300)
def test_a_damaged_file_is_a_machine_or_one_sentence(data: st.DataObject, sound: bytes) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(sound)))
        end = data.draw(st.integers(start, min(len(sound), start + 40)))
        sound = sound[:start] + data.draw(st.sampled_from(PIECES)) + sound[end:]
    is_machine_or_one_sentence(sound)


@given(st.data(), st.sampled_from([2, 3]))
@settings(max_examples=200)
def test_json_of_another_shape_is_a_machine_or_one_sentence(data: st.DataObject, which: int) -> None:
    found = json.loads(SOUND[which])
    values = (
        st.none()
        | st.integers(-5, 1 << 70)
        | st.text(max_size=5)
        | st.just([])
        | st.just({})
        | st.just([[1]])
    )
    place = found
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(values)
    is_machine_or_one_sentence(json.dumps(found).encode())


@given(machine_texts())
def test_what_any_node_prints_is_read_back_as_the_node(text: str) -> None:
    try:
        files, links = machine_files(parse(text))
    except ConfigError:
        return
    node = RecordedFiles(files | {name: {"link": target} for name, target in links.items()})
    facts = read_facts(node)
    topology = read_topology(node)
    if not facts["nodes"]:
        facts["mem_total_kb"] = (topology.nodes[0].memory_bytes or 0) >> 10
    machine = machine_from(json.dumps(facts).encode(), "node.json", "node")
    assert machine.kind is MachineKind.DUMP
    assert machine.topology == topology


def test_the_sound_ones_are_machines() -> None:
    for data in SOUND:
        assert machine_from(data, "f", "f").topology.online
    with pytest.raises(ConfigError):
        machine_from(SOUND[0][:-20], "f", "f")
