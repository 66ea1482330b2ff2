"""Any machine that can be described is built as a tree that reads back as the same machine."""

import contextlib
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.host.sysfs import discover, read_topology
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.machine.layout import lay_out, machine_files
from nri_plugin.simulator.machine.machine import build_sysfs, build_topology, parse
from nri_plugin.simulator.machine.text import Description
from tests.oracles.recordings import RecordedFiles

LEVELS = {"sockets": 3, "NUMA nodes each": 3, "L3 each": 2}


@st.composite
def machine_texts(draw: st.DrawFn) -> str:
    shape = draw(st.permutations(list(LEVELS)))
    counts = {level: draw(st.integers(1, LEVELS[level])) for level in shape if draw(st.booleans())}
    kinds = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 4])), min_size=1, max_size=2))
    clauses = [f"{how_many} {level}" for level, how_many in counts.items()]
    clauses.append(" + ".join(f"{how_many} cores SMT {threads}" for how_many, threads in kinds))
    units = 1
    for how_many in counts.values():
        units *= how_many
    cpus = units * sum(how_many * threads for how_many, threads in kinds)
    ids = st.sets(st.integers(0, cpus - 1), min_size=1).map(lambda chosen: str(CPUSet.from_ids(chosen)))
    some = st.sets(st.integers(0, cpus - 1), min_size=1, max_size=max(1, cpus - 1))
    if cpus > 1:
        clauses += [f"offline {CPUSet.from_ids(draw(some))}"] * draw(st.booleans())
    clauses += [f"isolated {draw(ids)}"] * draw(st.booleans())
    clauses += draw(st.sampled_from([[], ["no L3"], [f"no L3 on {draw(ids)}"]]))
    clauses += draw(
        st.sampled_from([[], ["siblings adjacent"], ["interleaved by sockets"], ["interleaved by nodes"]])
    )
    clauses += draw(st.sampled_from([[], ["no distances"], ["distances local 10 socket 14 remote 40"]]))
    clauses += draw(
        st.sampled_from([[], ["cpu-less nodes 90-91 memory 8Gi"], ["cpu-less node 200 memory 0"]])
    )
    clauses += draw(st.sampled_from([[], ["hugepages 5 x 2Mi"], ["hugepages 5 x 2Mi", "hugepages 1 x 1Gi"]]))
    clauses += ["no NUMA"] * draw(st.booleans())
    clauses += draw(
        st.sampled_from([[], ["devices a.b/c 2", "links a.b/c nvlink 0 1"], ["devices x/y 3 as variable"]])
    )
    return "\n".join(clauses)


def described(text: str) -> Description:
    description = parse(text)
    assert parse(text.replace("\n", ", ")) == description
    return description


@given(machine_texts())
def test_the_tree_of_a_description_reads_back_as_its_topology(text: str) -> None:
    files, links = machine_files(lay_out(described(text)), "any")
    entries = files | {name: {"link": target} for name, target in links.items()}
    assert read_topology(RecordedFiles(entries)) == build_topology(described(text))


@settings(max_examples=2)
@given(machine_texts())
def test_so_does_the_tree_on_disk(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        build_sysfs(described(text), folder)
        assert discover(folder) == build_topology(described(text))


@given(machine_texts())
def test_every_online_cpu_is_in_exactly_one_of_each(text: str) -> None:
    topology = build_topology(described(text))
    for groups in (topology.cores, topology.sockets, topology.caches):
        assert sorted(cpu for _, cpus in groups for cpu in cpus) == list(topology.online)
        assert [number for number, _ in groups] == sorted({number for number, _ in groups})
    assert sorted(cpu for node in topology.nodes for cpu in node.cpus) == list(topology.online)
    assert topology.online.isdisjoint(topology.offline)


@given(st.text("0123456789 socketnumaldir,-+/#xGi\n", max_size=60))
def test_any_text_is_a_machine_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert lay_out(parse(text)).online


TREE = machine_files(lay_out(parse("2 sockets, 2 cores, SMT 2, hugepages 1 x 2Mi")), "any")[0]


@given(st.sampled_from(sorted(TREE)), st.text("0123456789,-\n kBx\0", max_size=12))
def test_any_damaged_file_is_read_or_named_in_one_line(name: str, text: str) -> None:
    try:
        said = str(read_topology(RecordedFiles(TREE | {name: text})).online)
    except HostError as error:
        said = str(error) if error.path.startswith("/recorded/") else ""
    assert said
    assert "\n" not in said
