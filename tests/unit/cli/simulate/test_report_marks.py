"""Numbers, letters, colours and sentences of a report's containers."""

import pytest

from nri_plugin.cli.simulate.report_marks import (
    Marks,
    all_containers,
    letters,
    missing_levels,
    names,
    pool_sentence,
    sentence,
)
from tests import simulation_samples as samples

ALL = {"numa_node": True, "socket": True, "uncore_cache": True, "whole_cores": True}


def row(key: str) -> dict[str, object]:
    return next(row for row in all_containers(samples.sample()) if row["key"] == key)


def test_letters_go_to_containers_with_cpus_of_their_own_in_order() -> None:
    marks = Marks([samples.sample()])
    assert [marks.letter(key) for key in ("net/filter/filter", "shop/web/web", "db/main/db")] == [
        "A",
        "",
        "B",
    ]


def test_a_container_has_one_number_letter_and_colour_in_both_simulations() -> None:
    first = samples.sample(wishes=[("a/a/a", 1), ("b/b/b", 1)])
    second = samples.sample(wishes=[("b/b/b", 1), ("c/c/c", 1)])
    marks = Marks([first, second])
    assert [marks.number(key) for key in ("a/a/a", "b/b/b", "c/c/c", "d/d/d")] == [0, 1, 2, None]
    assert [marks.letter(key) for key in ("a/a/a", "b/b/b", "c/c/c")] == ["A", "B", "C"]
    assert marks.colour("b/b/b") == "k1"


def test_every_colour_that_is_used_has_a_rule() -> None:
    simulation = samples.many(40, "demo", 1)
    marks = Marks([simulation])
    used = {marks.colour(row["key"]) for row in simulation["containers"]} - {""}
    assert {f".{name}{{" for name in used} == {
        line[: line.index("{") + 1] for line in marks.css().splitlines()
    }


def test_sentence_of_cpus_of_its_own() -> None:
    text = "8 CPUs to itself: 1-8; NUMA 0-1; L3 0-2; memory on NUMA 0; not aligned: whole cores"
    assert sentence(row("net/filter/filter")) == text


def test_sentence_of_the_shared_pool() -> None:
    assert sentence(row("shop/web/web")) == "in the shared pool: 9-63; NUMA 0-3"


def test_sentence_of_a_refusal_is_the_whole_text() -> None:
    assert sentence(row("ml/train/train")) == "refused: InsufficientCPU: 1000 wanted, 49 available"


def test_sentence_of_who_was_never_created() -> None:
    skipped = {**row("shop/web/web"), "status": "skipped"}
    assert sentence(skipped) == "never created, for its pod was over before its turn"


def test_sentence_of_who_is_not_in_the_other_simulation() -> None:
    assert sentence(None) == "not part of this simulation"


def test_sentence_of_a_namespace_that_is_never_refused_says_what_was_wrong() -> None:
    tolerated = {**row("shop/web/web"), "refusal": {"reason": "R", "text": "R: no room"}}
    assert sentence(tolerated).endswith("not refused because of its namespace: R: no room")


def test_sentence_names_devices() -> None:
    assert "; gpu: 0, 1" in sentence({**row("net/filter/filter"), "devices": {"gpu": ("0", "1")}})


@pytest.mark.parametrize(
    ("aligned", "words"),
    [
        (ALL, ""),
        ({**ALL, "socket": False, "whole_cores": False}, "socket, whole cores"),
    ],
)
def test_alignment_names_what_is_missing(aligned: dict[str, bool], words: str) -> None:
    assert missing_levels(aligned) == words


def test_pool_is_told_with_its_cpus_and_who_is_in_it() -> None:
    assert pool_sentence(samples.sample()) == "shared pool, 50 CPUs: 0,15-63; 1 container in it"


def test_two_simulations_are_called_a_and_b() -> None:
    pair = [samples.sample(), samples.sample(config="other.yaml")]
    assert names(pair) == ["A: packed.yaml", "B: other.yaml"]
    assert letters(pair) == ["A", "B"]
    assert (names(pair[:1]), letters(pair[:1])) == (["packed.yaml"], [""])


def test_containers_that_ended_are_known_once() -> None:
    simulation = samples.sample()
    simulation["containers"] = simulation["containers"][1:]
    assert sorted(row["key"] for row in all_containers(simulation)) == sorted(
        ["net/filter/filter", "shop/web/web", "db/main/db", "ml/train/train"]
    )
