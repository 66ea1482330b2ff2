"""Descriptions of earlier releases: the same machine in today's fields, with a note."""

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.description import parse
from nri_plugin.simulator.machine.old_language import convert, is_old


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1 core", "pack:1 numa:1 l3:1 core:1 pu:1"),
        ("2 sockets, 2 NUMA nodes each, 4 L3 each, 4 cores each, SMT 2", "pack:2 numa:2 l3:4 core:4 pu:2(indexes=core)"),
        ("2 Packages\n4 L3 caches each; 3 cores each # comment", "pack:2 numa:1 l3:4 core:3 pu:1"),
        ("1 NUMA, 2 sockets each, 1 core, memory 0", "numa:1(memory=0) pack:2 l3:1 core:1 pu:1"),
        ("2 cores, 2 threads each, numbering: siblings adjacent", "pack:1 numa:1 l3:1 core:2 pu:2"),
        ("2 sockets, 2 cores, SMT 2, interleaved by sockets", "pack:2 numa:1 l3:1 core:2 pu:2(indexes=pack:core)"),
        ("2 sockets, 2 cores, SMT 2, interleaved over NUMA nodes, siblings adjacent", "pack:2 numa:1 l3:1 core:2 pu:2(indexes=1*2:4*2:2*2)"),
        ("2 sockets, 1 core, memory 64Gi each", "pack:2 numa:1(memory=64GiB) l3:1 core:1 pu:1"),
        ("2 sockets, 1 core, node ids 4,1", "pack:2 numa:1(indexes=4,1) l3:1 core:1 pu:1"),
        ("2 sockets, 4 L3 each, 1 core, no L3", "pack:2 numa:1 group:4 core:1 pu:1"),
        ("2 sockets, 1 core, socket ids 36 8442", "pack:2 numa:1 l3:1 core:1 pu:1\nsockets: [36, 8442]"),
        ("8 cores SMT 2 +\n 8 cores", "pack:1 numa:1 l3:1 core:16 pu:2(indexes=core)\nkinds: [{cores: 8, threads: 2}, {cores: 8, threads: 1}]"),
        ("2 sockets, 1 core, memory: 1Gi 512Mi", "pack:2 numa:1 l3:1 core:1 pu:1\nnodes:\n  0: {memory: 1Gi}\n  1: {memory: 512Mi}"),
        ("1 core, hugepages 512 x 2Mi, hugepages 1 x 1Gi on node 0", "pack:1 numa:1 l3:1 core:1 pu:1\nnodes:\n  0: {hugepages: {2Mi: 512, 1Gi: 1}}"),
        ("1 core, cpu-less nodes 4-5 memory 8Gi, CPU-less NUMA node 7", "pack:1 numa:1 l3:1 core:1 pu:1\nnodes:\n  4-5: {cpus: none, memory: 8Gi}\n  7: {cpus: none, memory: 16Gi}"),
        ("1 core, distances socket 11 cpu-less 80", "pack:1 numa:1 l3:1 core:1 pu:1\ndistances: {socket: 11, cpuless: 80}"),
        ("2 sockets, 1 core\ndistances: 10 20 /\n 21 10", "pack:2 numa:1 l3:1 core:1 pu:1\ndistances:\n  - [10, 20]\n  - [21, 10]"),
        ("1 core, no distances, no NUMA", "pack:1 numa:1 l3:1 core:1 pu:1\ndistances: none\nnuma: none"),
        ("9 cores, offline 3,5-6\noffline 7, isolated CPUs 1, nohz_full 1-2, no L3 on 4", "pack:1 numa:1 l3:1 core:9 pu:1\noffline: 3,5-6,7\nisolated: 1\nnohz_full: 1-2\nwithout_l3: 4"),
        ("1 core\ndevices a.b/C 2 on 0 + 1 as device nodes", "pack:1 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a.b/C, count: 2, nodes: 0, as: device}\n  - {resource: a.b/C, count: 1, as: device}"),
        ("2 sockets, 1 core\ndevices a/b 1 named 0000:3b:02.1 on NUMA nodes 0,1 as CDI", 'pack:2 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, ids: ["0000:3b:02.1"], nodes: "0,1", as: cdi}'),
        ("1 core\ndevices a/b 4\nlinks a/b nvlink 0 3 / 1 2\nlinks a/b weight 7 0 1", "pack:1 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, count: 4}\nlinks:\n  - {resource: a/b, weight: nvlink, groups: [[0, 3], [1, 2]]}\n  - {resource: a/b, weight: 7, groups: [[0, 1]]}"),
    ],
)  # fmt: skip
def test_each_clause_has_its_field(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(old, "m") == f"topology: {new}\n"
    assert parse(old) == parse(new if new.count(":") == new.count("\n") else f"topology: {new}")
    assert capsys.readouterr().err.startswith("note: machine is in the old language of machines")


def test_the_title_stays() -> None:
    assert convert("# Mine\n1 core", "m").startswith("# Mine\ntopology: ")


def test_todays_descriptions_are_not_taken_for_old_ones(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "# Two sockets of 4 cores\ntopology: pack:2 core:4 pu:1\nkinds: [{cores: 4, threads: 1}]  # 4 cores\n"
    )
    assert not is_old(text)
    parse(text)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 sockets\n4 cores, 3 wheels", "m.txt:2: expected a clause of the old language, found '3 wheels'"),
        ("distances 10 20 /\n 20 10\n4 cores\nbits", "m.txt:4: expected a clause of the old language, found 'bits'"),
        ("1 core\ndevices a/b 1 near 0", "m.txt:2: expected a clause of the old language, found 'devices a/b 1 near 0'"),
        ("1 core, memory 1Gi 2Gi", "m.txt: 2 memory sizes for 1 NUMA nodes: give one for each"),
    ],
)  # fmt: skip
def test_a_wrong_clause_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "m", source="m.txt")
    assert str(caught.value) == message
