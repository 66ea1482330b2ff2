"""Any machine that can be described is built as a tree that reads back as the same machine."""

import contextlib
import tempfile
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.host.sysfs import discover, read_topology
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.machine.machine import build_sysfs, build_topology, machine_files, parse
from tests.oracles.recordings import RecordedFiles

LEVELS = {"pack": 3, "numa": 3, "l3": 2, "die": 2}


@st.composite
def machine_texts(draw: st.DrawFn) -> str:
    levels = draw(st.permutations(list(LEVELS)))
    counts = {level: draw(st.integers(1, LEVELS[level])) for level in levels if draw(st.booleans())}
    kinds = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 4])), min_size=1, max_size=2))
    cores, threads = sum(count for count, _ in kinds), max(threads for _, threads in kinds)
    loops = draw(st.permutations([*counts, "core"]))[: draw(st.integers(0, 3))]
    indexes = f"(indexes={':'.join(loops)})" if loops and is_complete(counts, loops) else ""
    words = [f"{level}:{count}" for level, count in counts.items()]
    fields = [f"topology: {' '.join(words)} core:{cores} pu:{threads}{indexes}"]
    if len({threads for _, threads in kinds}) > 1:
        shown = ", ".join(f"{{cores: {count}, threads: {threads}}}" for count, threads in kinds)
        fields.append(f"kinds: [{shown}]")
    cpus = prod(counts.values()) * sum(count * threads for count, threads in kinds)
    ids = st.sets(st.integers(0, cpus - 1), min_size=1).map(lambda chosen: str(CPUSet.from_ids(chosen)))
    some = st.sets(st.integers(0, cpus - 1), min_size=1, max_size=max(1, cpus - 1))
    if cpus > 1:
        fields += [f"offline: {CPUSet.from_ids(draw(some))}"] * draw(st.booleans())
    fields += [f"isolated: {draw(ids)}"] * draw(st.booleans())
    fields += [f"without_l3: {draw(ids)}"] * draw(st.booleans())
    fields += draw(
        st.sampled_from([[], ["distances: none"], ["distances: {local: 10, socket: 14, remote: 40}"]])
    )
    nodes = {
        "90-91": "cpus: none, memory: 8Gi",
        "200": "cpus: none, memory: 0",
        "0": "hugepages: {2Mi: 5, 1Gi: 1}",
    }
    about = [f"{node}: {{{said}}}" for node, said in nodes.items() if draw(st.booleans())]
    fields += [f"nodes: {{{', '.join(about)}}}"] * bool(about)
    fields += ["numa: none"] * draw(st.booleans())
    fields += draw(
        st.sampled_from(
            [
                [],
                [
                    "devices: [{resource: a.b/c, count: 2}]",
                    "links: [{resource: a.b/c, weight: nvlink, groups: [[0, 1]]}]",
                ],
                ["devices: [{resource: x/y, count: 3, as: variable}]"],
            ]
        )
    )
    return "\n".join(fields)


def is_complete(counts: dict[str, int], loops: list[str]) -> bool:
    """Whether the loops and one over single CPUs number every CPU: no level between them is left out."""
    order = [*counts, "core"]
    return set(order[: max(map(order.index, loops)) + 1]) == set(loops) or len(loops) == 1


@given(machine_texts())
def test_the_tree_of_a_description_reads_back_as_its_topology(text: str) -> None:
    files, links = machine_files(parse(text))
    entries = files | {name: {"link": target} for name, target in links.items()}
    assert read_topology(RecordedFiles(entries)) == build_topology(parse(text))


@settings(max_examples=2)
@given(machine_texts())
def test_so_does_the_tree_on_disk(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        build_sysfs(parse(text), folder)
        assert discover(folder) == build_topology(parse(text))


@given(machine_texts())
def test_every_online_cpu_is_in_exactly_one_of_each(text: str) -> None:
    topology = build_topology(parse(text))
    for groups in (topology.cores, topology.sockets, topology.caches):
        assert sorted(cpu for _, cpus in groups for cpu in cpus) == list(topology.online)
        assert [number for number, _ in groups] == sorted({number for number, _ in groups})
    assert sorted(cpu for node in topology.nodes for cpu in node.cpus) == list(topology.online)
    assert topology.online.isdisjoint(topology.offline)


@given(st.text("0123456789 packnumolder:()[]{}=*,-#GiB\n", max_size=60))
def test_any_text_is_a_machine_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse(text).online


TREE = machine_files(
    parse("topology: pack:2 numa:1 l3:1 core:2 pu:2(indexes=core)\nnodes:\n  0-1: {hugepages: {2Mi: 1}}")
)[0]


@given(st.sampled_from(sorted(TREE)), st.text("0123456789,-\n kBx\0", max_size=12))
def test_any_damaged_file_is_read_or_named_in_one_line(name: str, text: str) -> None:
    try:
        said = str(read_topology(RecordedFiles(TREE | {name: text})).online)
    except HostError as error:
        said = str(error) if error.path.startswith("/recorded/") else ""
    assert said
    assert "\n" not in said


@given(st.text("0123456789 socketnumaldir,-+/#xGi\n", max_size=60))
def test_any_text_with_cores_is_an_old_machine_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse(f"2 cores\n{text}").online
