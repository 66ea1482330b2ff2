"""What the plots of a report show."""

import re
from typing import Any

import pytest

from nri_plugin.cli.simulate.report import render
from nri_plugin.cli.simulate.report_plots import allocatable
from tests import simulation_samples as samples
from tests.report_pages import part


def pair() -> list[dict[str, Any]]:
    return [samples.sample(), samples.sample(config="other.yaml", backwards=True)]


def texts(page: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", page)


def titles(page: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title>", page)


def bars(page: str, look: str) -> list[float]:
    return [float(width) for width in re.findall(rf'width="([\d.]+)" height="[\d.]+" class="{look}"', page)]


def test_steps_are_a_staircase_to_the_last_count() -> None:
    page = part("plot-steps", samples.sample())
    path = re.search(r'<path d="([^"]*)" class="line s0">', page)
    assert path
    heights = [float(height) for height in re.findall(r"V([\d.]+)", path[1])]
    assert len(heights) == 4
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 2
    assert 'aria-label="packed.yaml: 14 CPUs exclusive after 4 steps"' in page


def test_a_refused_step_has_a_cross_that_says_who() -> None:
    assert titles(part("plot-steps", samples.sample())) == ["step 4: refused ml/train/train"]


def test_a_refused_update_has_a_cross_too() -> None:
    simulation = samples.sample(wishes=[("a/a/a", 2)])
    simulation["steps"][0]["refusal"] = {"reason": "R", "text": "R: no"}
    assert titles(part("plot-steps", simulation)) == ["step 1: refused a/a"]


def test_two_simulations_are_two_lines_with_a_key() -> None:
    page = part("plot-steps", *pair())
    assert page.count('class="line s') == 2
    assert "A: packed.yaml" in page
    assert "B: other.yaml" in page
    assert "key s0" not in part("plot-steps", *pair()[:1])


def test_ceiling_is_what_may_be_exclusive_at_all() -> None:
    assert allocatable(samples.sample()) == 63


def test_columns_are_cut_into_containers_and_say_how_much() -> None:
    simulation = samples.sample()
    assert titles(part("plot-numa", simulation))[:6] == [
        "NUMA 0: net/filter/filter, 7 CPUs",
        "NUMA 0: reserved, 1 CPU",
        "NUMA 0: shared, 8 CPUs",
        "NUMA 1: net/filter/filter, 1 CPU",
        "NUMA 1: db/main/db, 6 CPUs",
        "NUMA 1: shared, 9 CPUs",
    ]


def test_pieces_belong_to_their_container_or_to_the_pool() -> None:
    simulation = samples.sample()
    page = part("plot-numa", simulation)
    assert re.findall(r'class="(piece [^"]*)" data-c="([^"]*)"', page)[:3] == [
        ("piece exclusive k0", "0"),
        ("piece reserved", "p0"),
        ("piece shared", "p0"),
    ]


def test_heights_of_a_column_add_up_to_its_cpus() -> None:
    simulation = samples.sample()
    page = part("plot-numa", simulation)
    pieces = [float(height) for height in re.findall(r'height="([\d.]+)" class="piece', page)]
    assert sum(pieces[:3]) == pytest.approx(sum(pieces[3:6]), abs=0.5)
    assert pieces[0] / pieces[1] == pytest.approx(7, rel=0.05)


def test_many_containers_make_a_column_taller() -> None:
    few, many = samples.many(3, "gb200-34-numa", 2), samples.many(200, "gb200-34-numa", 1)
    heights = [
        int(re.findall(r'width="\d+" height="(\d+)" viewBox', part("plot-numa", one))[0])
        for one in (few, many)
    ]
    assert heights[0] < heights[1] <= 480


def test_fragmentation_has_a_number_over_each_bar_and_says_full() -> None:
    simulation = samples.sample()
    simulation["numa_nodes"][3].update(available=0, fragmentation=0)
    shown = texts(part("plot-fragmentation", simulation))
    assert [word for word in shown if word in {"0", "20", "40", "60", "full"}].count("full") == 1
    assert "40" in shown


def test_fragmentation_leaves_out_nodes_without_cpus() -> None:
    assert len(titles(part("plot-fragmentation", samples.sample("gb200-34-numa", [])))) == 2


def test_capacity_is_the_share_of_the_empty_machine() -> None:
    simulation = samples.sample()
    page = part("plot-capacity", simulation)
    assert bars(page, "area s0") == [201.3, 130]
    assert bars(page, "area pale s0") == [260, 260]
    assert "24, 31 when empty; then InsufficientCPU" in texts(
        part("plot-capacity", samples.sample(wishes=[("a/a/a", 14)]))
    )


def test_capacity_that_was_not_exhausted_says_or_more() -> None:
    simulation = samples.sample()
    simulation["capacity"][1].update(bounded=False)
    assert "3 or more, 6 when empty" in texts(part("plot-capacity", simulation))


def test_capacity_of_a_shape_that_only_one_was_asked_for() -> None:
    first, second = pair()
    second["capacity"] = second["capacity"][:1]
    assert "not tried" in texts(part("plot-capacity", first, second))


def test_long_wishes_go_over_several_lines() -> None:
    simulation = samples.sample()
    simulation["capacity"][0]["text"] = "Guaranteed: " + ", ".join(
        f"example.com/device-{number} 2" for number in range(9)
    )
    assert max(map(len, texts(part("plot-capacity", simulation)))) <= 78


def test_plot_of_capacity_is_left_out_where_nothing_was_tried() -> None:
    simulation = samples.sample()
    simulation["capacity"] = ()
    assert render([simulation]).count("<figure") == 3
