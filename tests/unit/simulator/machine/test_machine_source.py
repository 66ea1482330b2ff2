"""One word for any machine: known by its content, refused in one sentence."""

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.simulator.machine import source
from nri_plugin.simulator.machine.machine import build_sysfs, load, parse, shipped
from nri_plugin.simulator.machine.source import MachineKind, live_machine, machine_from, read_machine
from tests.conftest import HERE

SMALL = "topology: pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:2(indexes=core)\nnodes:\n  0-1: {hugepages: {2Mi: 4}}\noffline: 7\nisolated: 1"
RECORDED = HERE / "machines" / "vm-2-cpus.json.gz"


def dump_of(text: str, tmp_path: Path) -> bytes:
    """What a node that is such a machine prints."""
    root = tmp_path / "root"
    build_sysfs(parse(text), str(root))
    return json.dumps(live_machine(str(root)).facts()).encode()


@pytest.mark.parametrize("name", sorted(shipped()))
def test_a_shipped_name_is_the_described_machine(name: str) -> None:
    machine = read_machine(name)
    assert (machine.name, machine.kind, machine.description) == (name, MachineKind.DESCRIBED, load(name))


def test_a_described_file_is_named_by_its_file_and_has_its_devices(tmp_path: Path) -> None:
    file = tmp_path / "mine.of.course.yaml"
    file.write_text(SMALL + "\ndevices: [{resource: a/b, count: 1, nodes: 1}]")
    machine = read_machine(str(file))
    assert machine.name == "mine"
    assert machine.description is not None
    assert [device.resource for device in machine.description.devices] == ["a/b"]


def test_a_recorded_machine_is_read_packed_or_not(tmp_path: Path) -> None:
    plain = tmp_path / "no-ending"
    plain.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    machine = read_machine(str(plain))
    assert (machine.name, machine.kind) == ("no-ending", MachineKind.RECORDED)
    assert machine.topology == read_machine(str(RECORDED)).topology


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        "topology: pack:1 numa:1(memory=2GiB) l3:1 core:4 pu:1\nnuma: none\nnodes:\n  0: {hugepages: {1Gi: 2}}",
        "topology: pack:2 l3:1 numa:2(indexes=0,2,4,6) core:2 pu:1\ndistances: none\nsockets: [3, 1]",
        "topology: pack:1 numa:1 l3:1 core:3 pu:1\nnodes:\n  4: {cpus: none, memory: 1Gi}\nwithout_l3: 2",
    ],
)
def test_what_a_node_prints_is_read_back_as_the_node(text: str, tmp_path: Path) -> None:
    data = dump_of(text, tmp_path)
    machine = machine_from(data, "dump.json", "dump")
    assert machine.kind is MachineKind.DUMP
    assert machine.topology == discover(str(tmp_path / "root"))
    assert machine.facts() == json.loads(data)


def test_a_dump_of_a_kernel_that_lists_no_present_cpus_keeps_the_offline_ones(tmp_path: Path) -> None:
    facts = json.loads(dump_of(SMALL, tmp_path)) | {"cpus_present": None}
    assert str(machine_from(json.dumps(facts).encode(), "d", "d").topology.offline) == "7"


def test_cpus_without_a_tick_are_isolated_in_a_dump_as_on_the_node(tmp_path: Path) -> None:
    facts = json.loads(dump_of(SMALL, tmp_path)) | {"cpus_nohz_full": "4-5"}
    assert str(machine_from(json.dumps(facts).encode(), "d", "d").topology.isolated) == "1,4-5"


def test_cpus_without_a_tick_are_isolated_in_a_description_as_on_the_node(tmp_path: Path) -> None:
    text = SMALL + "\nnohz_full: 4-5"
    assert str(machine_from(text.encode(), "d", "d").topology.isolated) == "1,4-5"
    assert json.loads(dump_of(text, tmp_path))["cpus_nohz_full"] == "4-5"


def test_a_described_machine_has_the_facts_of_its_tree(tmp_path: Path) -> None:
    build_sysfs(load("laptop"), str(tmp_path))
    assert read_machine("laptop").facts() == live_machine(str(tmp_path)).facts()


def test_this_machine_is_live() -> None:
    assert live_machine().topology == discover("/")
    assert live_machine().kind is MachineKind.LIVE


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"pack:1 numa:1 l3:1 core:3 pu:1")))
    machine = read_machine("-")
    assert (machine.name, len(machine.topology.online)) == ("machine", 3)


def test_a_mark_of_byte_order_is_passed_over() -> None:
    assert len(machine_from(b"\xef\xbb\xbfpack:1 core:1 pu:1", "f", "f").topology.online) == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "f: is empty; give a description"),
        (b" \n", "f: is empty"),
        (b"\x7fELF\x00\xff", "f: is not text; give a description"),
        (b"two cores", "f:1:1: two: expected"),
        (b"{", "f: begins like JSON and is none"),
        (b"{}", "f: is JSON of something else; a machine is a description"),
        (b'{"format": "nri-pin checkpoint"}', "f: is a checkpoint, which goes with --state"),
        (b'{"files": {"sys/x": 3}}', "f: is no recorded machine: sys/x holds neither text nor a link"),
        (
            b'{"files": {"sys/x": "1"}}',
            "f: holds no whole machine: sys/devices/system/cpu: no such directory",
        ),
        (b'{"cpus_online": "0-1"}', "f: is no whole dump of a machine: 'cpus_offline' is missing"),
        (b'{"cpus_online": 7}', "f: is no whole dump of a machine: expected a list"),
        (b'{"cpus_online": "0-9000"}', "f: has 9001 cpus online, more than the 8192 the kernel can have"),
        (b'{"files": {"sys/devices/system/cpu/online": "0-65535"}}', "f: has 65536 cpus online"),
        (b'{"files": {"sys/devices/system/cpu/cpu99999999999/x": "1"}}', "f: holds no whole machine: "),
        (b"<svg/>", "f: is no topology of lstopo: its outermost element is <svg>"),
        (b"\x1f\x8bnonsense", "f: is gzipped and damaged"),
        (gzip.compress(b"pack:1 numa:1 l3:1 core:1 pu:1", mtime=0)[:-6], "f: is gzipped and ends too early"),
        (b'{"a":' * 100_000, "f: begins like JSON and is none: it nests too deeply"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_the_file_and_what_to_do(data: bytes, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        machine_from(data, "f", "f")
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)


def test_links_that_lead_in_a_circle_are_refused() -> None:
    files = {
        "sys/devices/system/cpu/online": {"link": "present"},
        "sys/devices/system/cpu/present": {"link": "online"},
    }
    with pytest.raises(ConfigError, match="more than 40 links"):
        machine_from(json.dumps({"files": files}).encode(), "f", "f")


def test_a_file_that_is_not_there_names_the_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a file nor the name of a shipped machine; .* --list"):
        read_machine(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        read_machine(str(tmp_path))


def test_what_grows_beyond_any_machine_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source, "LARGEST", 100)
    with pytest.raises(ConfigError, match="unpacks to more than"):
        machine_from(gzip.compress(b" " * 1000, mtime=0), "f", "f")
    file = tmp_path / "big"
    file.write_bytes(b" " * 101)
    with pytest.raises(ConfigError, match="is larger than"):
        read_machine(str(file))


def test_a_root_that_holds_no_machine_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no such directory"):
        live_machine(str(tmp_path))
