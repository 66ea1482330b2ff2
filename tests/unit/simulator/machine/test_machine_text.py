"""The grammar clause by clause, and what is said when a text does not follow it."""

from dataclasses import replace
from typing import Any

import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.text import Description, Distances, Hugepages, parse

GI = 1 << 20
PLAIN = Description(cores=((1, None),))


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("2 sockets", {"levels": (("socket", 2),)}),
        ("2 Packages each", {"levels": (("socket", 2),)}),
        ("1 NUMA, 2 sockets each", {"levels": (("node", 1), ("socket", 2))}),
        ("2 NUMA nodes each\n4 L3 caches each", {"levels": (("node", 2), ("cache", 4))}),
        ("SMT 2", {"smt": 2}),
        ("2 threads each", {"smt": 2}),
        ("numbering: siblings adjacent", {"are_siblings_adjacent": True}),
        ("siblings split", {"are_siblings_adjacent": False}),
        ("interleaved by sockets", {"interleaved_by": "socket"}),
        ("interleaved over NUMA nodes", {"interleaved_by": "node"}),
        ("socket ids 36,8442", {"socket_ids": (36, 8442)}),
        ("node ids 2,0-1 8", {"node_ids": (2, 0, 1, 8)}),
        ("memory 64Gi each", {"memory_kb": (64 * GI,)}),
        ("memory: 1Gi 512Mi 4Ki 1Ti 0", {"memory_kb": (GI, 512 << 10, 4, 1 << 30, 0)}),
        ("hugepages 512 x 2Mi", {"hugepages": (Hugepages(2048, 512, None),)}),
        ("hugepages 1 x 1Gi on nodes 0,2", {"hugepages": (Hugepages(GI, 1, 0b101),)}),
        ("cpu-less nodes 4-5 memory 8Gi", {"cpuless": ((4, 8 * GI), (5, 8 * GI))}),
        ("CPU-less NUMA node 7", {"cpuless": ((7, 16 * GI),)}),
        ("distances local 10 remote 32", {"distances": Distances(10, 12, 32)}),
        ("distances socket 11 cpu-less 80", {"distances": Distances(10, 11, 21, 80)}),
        ("distances: 10 20 / 21 10", {"distances": Distances(rows=((10, 20), (21, 10)))}),
        ("distances 10 20/\n   21 10", {"distances": Distances(rows=((10, 20), (21, 10)))}),
        ("no distances", {"distances": None}),
        ("offline 3,5-6\noffline 9", {"offline": 0b1001101000}),
        ("isolated CPUs 1", {"isolated": 0b10}),
        ("nohz_full 1-2", {"tickless": 0b110}),
        ("no L3", {"without_l3": -1}),
        ("no L3 on 4-5", {"without_l3": 0b110000}),
        ("no NUMA", {"has_numa": False}),
        ("# a comment only", {"title": ""}),
    ],
)
def test_a_clause_says_one_thing(text: str, changes: dict[str, Any]) -> None:
    described = parse(text + "\n1 core" if "sockets" not in text else text + ", 1 core")
    assert replace(described, title="") == replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("4 cores each", ((4, None),)),
        ("8 cores SMT 2 + 8 cores", ((8, 2), (8, None))),
        ("8 cores each SMT 2 +\n 8 cores each SMT 1", ((8, 2), (8, 1))),
    ],
)
def test_cores_come_in_one_clause_of_one_or_more_kinds(text: str, cores: Any) -> None:
    assert parse(text).cores == cores


def test_clauses_end_at_lines_commas_and_semicolons() -> None:
    one = parse("2 sockets, 2 cores, SMT 2, offline 1,3")
    assert one == parse("2 sockets\n2 cores # two\n\nSMT 2; offline 1,3")


def test_the_first_comment_is_the_title() -> None:
    assert parse("\n# A small one\n# and more\n1 core").title == "A small one"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.txt:1:1: expected a clause such as '4 cores each', found none"),
        ("2 sockets", "m.txt:1:1: expected a clause such as '4 cores each', found none"),
        ("2 sockets,\n 4 coers", "m.txt:2:4: expected sockets, NUMA nodes, L3, cores or threads, found 'coers'"),
        ("² sockets", "m.txt:1:1: expected how many from 1, found '²'"),
        ("2 sockets each each", "m.txt:1:16: expected the end of the clause (a comma and a space, or a new line), found 'each'"),
        ("0 sockets", "m.txt:1:1: expected how many from 1, found '0'"),
        ("2 cores, SMT", "m.txt:1:13: expected threads from 1, found the end of the clause"),
        ("2 cores, SMT 2,4 sockets", "m.txt:1:14: expected threads from 1, found '2,4'"),
        ("2 cores, 2 sockets", "m.txt:1:12: expected a clause that is no level of the shape: cores come last, found 'sockets'"),
        ("2 cores, 2 cores", "m.txt:1:10: expected one clause of cores; write several kinds as '8 cores SMT 2 + 8 cores', found '2'"),
        ("2 nodes, 2 NUMA, 1 core", "m.txt:1:12: expected a level other than node, which is there already, found 'NUMA'"),
        ("memory 64G", "m.txt:1:8: expected a size such as 64Gi or 0, found '64G'"),
        ("hugepages 2 x 0", "m.txt:1:15: expected a page size such as 2Mi, found '0'"),
        ("hugepages 2Mi", "m.txt:1:11: expected how many pages, found '2Mi'"),
        ("distances 9 10", "m.txt:1:11: expected a distance from 10, found '9'"),
        ("distances 10 256", "m.txt:1:14: expected a distance from 10 to 255, found '256'"),
        ("distances far 30", "m.txt:1:11: expected local or socket or remote or cpu-less, found 'far'"),
        ("offline x", "m.txt:1:9: expected cpus such as 0-3,8, found 'x'"),
        ("offline 3-1", "m.txt:1:9: expected cpus such as 0-3,8, found '3-1'"),
        ("offline 1, 2", "m.txt:1:13: expected sockets, NUMA nodes, L3, cores or threads, found the end of the clause"),
        ("node ids 0,0", "m.txt:1:13: expected every id once, found the end of the clause"),
        ("no cache", "m.txt:1:4: expected l3 or numa or distance, found 'cache'"),
    ],
)  # fmt: skip
def test_errors_say_where_what_was_expected_and_what_was_found(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "m", source="m.txt")
    assert str(caught.value) == message


def test_an_unknown_clause_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"expected a number or one of smt, sibling, .*, found 'colour'"):
        parse("colour red")
