"""The HTML report of a simulation as people meet it: silent, sortable, pointed at, filtered."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from nri_plugin.cli.simulate.report import render
from tests import simulation_samples as samples

from .conftest import Watched

Show = Callable[..., Page]
LIT_CPUS = "all => all.map(cpu => Number(cpu.dataset.cpu)).sort((a, b) => a - b)"


def lit_cpus(page: Page, simulation: int = 0) -> list[int]:
    picture = page.locator(f"[data-simulation='{simulation}'] .cpu.lit")
    return picture.evaluate_all(LIT_CPUS)


def column(page: Page, table: str, place: int) -> list[str]:
    return page.locator(f"#{table} tbody tr:visible td:nth-child({place})").all_inner_texts()


def compared() -> str:
    first, second = (
        samples.many(30, "demo", 3),
        samples.many(30, "demo", 3, config="other.yaml", backwards=True),
    )
    return render([first, second], samples.comparison(first, second))


@pytest.mark.parametrize(
    "html", [render([samples.sample()]), compared(), render([samples.many(200, "gb200-34-numa", 1)])]
)
def test_report_opens_without_a_word_on_the_console_and_asks_for_nothing(
    watch: Callable[..., Watched], html: str
) -> None:
    watched = watch(html)
    assert watched.complaints() == []
    assert watched.asked == [watched.file.as_uri()]
    assert watched.page.locator("h1").is_visible()


def test_policy_of_the_page_lets_nothing_be_loaded_or_run(watch: Callable[..., Watched]) -> None:
    page = watch(render([samples.sample()])).page
    page.evaluate(
        "window.refused = []; addEventListener('securitypolicyviolation', e => refused.push(e.effectiveDirective))"
    )
    page.evaluate("""() => {
        const add = (tag, fields) => document.body.append(Object.assign(document.createElement(tag), fields));
        add("img", {src: "https://example.invalid/a.png"});
        add("script", {textContent: "window.ran = true"});
        add("script", {src: "https://example.invalid/a.js"});
        add("style", {textContent: "body { display: none }"});
        add("iframe", {src: "https://example.invalid/"});
    }""")
    page.wait_for_function("refused.length >= 5")
    assert page.evaluate("[...new Set(refused)].sort()") == [
        "frame-src",
        "img-src",
        "script-src-elem",
        "style-src-elem",
    ]
    assert page.evaluate("window.ran") is None


def test_click_on_a_head_sorts_numbers_as_numbers_and_back(show: Show) -> None:
    page = show(render([samples.sample(wishes=[("a/a/a", 9), ("a/b/b", 10), ("a/c/c", 2), ("a/d/d", 0)])]))
    head = page.locator("#placements-0 th", has_text="Own CPUs")
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    assert (head.get_attribute("aria-sort"), column(page, "placements-0", 3)) == (
        "ascending",
        ["-", "2", "9", "10"],
    )
    head.get_by_role("button").click()
    assert (head.get_attribute("aria-sort"), column(page, "placements-0", 3)) == (
        "descending",
        ["10", "9", "2", "-"],
    )


def test_sorting_by_another_column_takes_the_mark_along(show: Show) -> None:
    page = show(render([samples.many(12, "demo")]))
    for words in ("Own CPUs", "Container"):
        page.locator("#placements-0 th", has_text=words).get_by_role("button").click()
    marks = page.locator("#placements-0 th").evaluate_all(
        "all => all.map(head => head.getAttribute('aria-sort'))"
    )
    assert marks == ["none", "ascending", *["none"] * 6]


def test_names_are_sorted_with_their_numbers_as_numbers(show: Show) -> None:
    page = show(render([samples.sample(wishes=[(f"a/pod-{number}/main", 1) for number in (10, 9, 100, 1)])]))
    page.locator("#placements-0 th", has_text="Container").get_by_role("button").click()
    assert column(page, "placements-0", 2) == [f"a/pod-{number}/main" for number in (1, 9, 10, 100)]


def test_keys_sort_as_a_mouse_does(show: Show) -> None:
    page = show(render([samples.sample(wishes=[("a/a/a", 2), ("a/b/b", 1)])]))
    page.locator("#placements-0 th", has_text="Own CPUs").get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert column(page, "placements-0", 3) == ["1", "2"]
    page.keyboard.press("Space")
    assert column(page, "placements-0", 3) == ["2", "1"]


@pytest.mark.parametrize("table", ["placements-0", "refusals-0", "steps-0", "memory-0"])
def test_every_column_of_every_table_is_sorted_both_ways(show: Show, table: str) -> None:
    page = show(
        render(
            [
                samples.sample(
                    wishes=[("b/b/b", 3), ("x/x/x", 900), ("a/a/a", 1), ("w/w/w", 901), ("c/c/c", 0)]
                )
            ]
        )
    )
    for head in page.locator(f"#{table} th").all():
        place = head.evaluate("head => head.cellIndex + 1")
        head.get_by_role("button").click()
        up = column(page, table, place)
        head.get_by_role("button").click()
        down = column(page, table, place)
        assert sorted(up) == sorted(down)
        assert up == down[::-1] or len(set(up)) < len(up)


def test_pointing_at_a_cpu_shows_the_container_and_lights_all_its_cpus(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator(".cpu[data-cpu='3']").hover()
    detail = page.locator("#detail")
    assert detail.is_visible()
    assert "net/filter/filter" in detail.inner_text()
    assert "8 CPUs to itself: 1-8" in detail.inner_text()
    assert "CPU 3, core 3, L3 0, NUMA 0, socket 0" in detail.inner_text()
    assert lit_cpus(page) == list(range(1, 9))
    assert page.locator("#placements-0 tr.lit").inner_text().split()[1] == "net/filter/filter"


def test_pointing_elsewhere_lets_go(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator(".cpu[data-cpu='3']").hover()
    page.locator("h1").hover()
    assert (lit_cpus(page), page.locator("#detail").is_visible()) == ([], False)


def test_pointing_at_a_row_lights_its_cpus(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator("#placements-0 tbody tr", has_text="db/main/db").hover()
    assert lit_cpus(page) == list(range(9, 15))


def test_pointing_at_a_row_of_the_pool_lights_the_pool(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator("#placements-0 tbody tr", has_text="shop/web/web").hover()
    assert lit_cpus(page) == [0, *range(15, 64)]


def test_pointing_at_a_cpu_of_the_pool_names_the_pool_and_who_is_in_it(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator(".cpu[data-cpu='20']").hover()
    assert "shared pool, 50 CPUs: 0,15-63; 1 container in it" in page.locator("#detail").inner_text()
    assert page.locator("#placements-0 tr.lit").inner_text().split()[1] == "shop/web/web"


def test_pointing_at_a_piece_of_a_plot_lights_the_same_container(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator("#plot-numa .piece.exclusive").first.hover()
    assert lit_cpus(page) == list(range(1, 9))


def test_pointing_at_a_refusal_says_the_whole_sentence(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator("#refusals-0 tbody tr").hover()
    assert "refused: InsufficientCPU: 1000 wanted, 49 available" in page.locator("#detail").inner_text()


def test_pointing_lights_a_container_in_both_simulations_and_says_both(show: Show) -> None:
    page = show(compared())
    page.locator("#placements-0 tbody tr", has_text="team-1/pod-1/main").hover()
    assert (lit_cpus(page, 0), lit_cpus(page, 1)) == ([1, 2, 3], [61, 62, 63])
    detail = page.locator("#detail").inner_text()
    assert "A: 3 CPUs to itself: 1-3" in detail
    assert "B: 3 CPUs to itself: 61-63" in detail


def test_click_keeps_what_is_shown_until_escape(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator(".cpu[data-cpu='3']").click()
    page.locator("h1").hover()
    assert lit_cpus(page) == list(range(1, 9))
    page.keyboard.press("Escape")
    assert lit_cpus(page) == []


def test_arrow_keys_walk_over_cpus_and_show_each(show: Show) -> None:
    page = show(render([samples.sample()]))
    assert page.locator(".cpu[tabindex='0']").count() == 1
    page.locator(".cpu[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.cpu") == "1"
    assert lit_cpus(page) == list(range(1, 9))
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.cpu") == "63"


def test_arrow_keys_walk_over_the_rows_that_the_filter_left(show: Show) -> None:
    page = show(render([samples.sample(wishes=[("a/a/a", 1), ("b/x/x", 2), ("a/c/c", 3)])]))
    page.locator("#filter").fill("a/")
    page.locator("#placements-0 tr[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    assert lit_cpus(page) == [4, 5, 6]


def test_filter_leaves_rows_that_hold_every_word_and_counts_them(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator("#filter").fill("DB 9-14")
    assert column(page, "placements-0", 2) == ["db/main/db"]
    assert column(page, "refusals-0", 2) == []
    assert page.locator("#placements-0 .rows").inner_text() == "1 of 3 rows"
    assert page.locator("#filtered").inner_text() == "2 of 9 rows"
    page.keyboard.press("Escape")
    assert len(column(page, "placements-0", 2)) == 3
    assert page.locator("#filtered").inner_text() == ""


def test_sorting_a_filtered_table_keeps_the_filter(show: Show) -> None:
    page = show(render([samples.many(20, "demo", 1)]))
    page.locator("#filter").fill("team-1/")
    page.locator("#placements-0 th", has_text="Container").get_by_role("button").click()
    assert column(page, "placements-0", 2) == ["team-1/pod-1/main", "team-1/pod-8/main", "team-1/pod-15/main"]


def test_everything_is_there_without_scripts(show: Show) -> None:
    page = show(render([samples.sample()]), java_script_enabled=False)
    assert page.locator(".cpu[data-cpu]").count() == 64
    assert column(page, "placements-0", 2) == ["net/filter/filter", "shop/web/web", "db/main/db"]
    assert page.locator("#plots figure").count() == 4


def test_shares_are_sorted_by_what_they_are_and_not_by_their_digits(show: Show) -> None:
    simulation = samples.sample()
    counts = dict.fromkeys(
        (
            "pods_placed",
            "containers_exclusive",
            "exclusive_cpus",
            "aligned_numa_node",
            "aligned_uncore_cache",
        ),
        1,
    )
    ratios = (0.5, 0.125, 1, 0.0625)
    simulation["orders"] = tuple(
        {"seed": seed, **counts, "fragmentation_numa": ratio} for seed, ratio in enumerate(ratios)
    )
    page = show(render([simulation]))
    page.locator("#orders th", has_text="Fragmentation").get_by_role("button").click()
    assert column(page, "orders", 7) == ["6 %", "12 %", "50 %", "100 %"]


def test_sizes_are_sorted_by_their_bytes(show: Show) -> None:
    simulation = samples.sample()
    promised = (3 << 30, 512 << 20, 64 << 30, 1 << 10)
    simulation["memory"] = tuple(
        {"numa_node": node, "resource": "memory", "allocatable": 1 << 40, "allocated": size}
        for node, size in enumerate(promised)
    )
    page = show(render([simulation]))
    page.locator("#memory-0 th", has_text="Allocated").get_by_role("button").click()
    assert column(page, "memory-0", 3) == ["1Ki", "512Mi", "3Gi", "64Gi"]
