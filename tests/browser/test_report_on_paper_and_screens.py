"""The report printed, in the dark, on a telephone, large, and made of hostile names."""

import io
import itertools
import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page
from pypdf import PdfReader

from nri_plugin.cli.simulate.report import render
from nri_plugin.cli.topology.palette import contrast
from tests import simulation_samples as samples

Show = Callable[..., Page]
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><script>alert(3)</script>",
    "<!--<script>",
    "]]></style><b>bold</b>",
    "' onmouseover='alert(4)' x='",
    "&lt;i&gt;",
    "javascript:alert(5)",
    "${alert(6)}{{7*7}}",
)
COLOURS = """([element, ground]) => {
    const rgb = colour => '#' + colour.match(/[0-9.]+/g).slice(0, 3).map(n => (+n).toString(16).padStart(2, '0')).join('');
    return [rgb(getComputedStyle(element).color), rgb(getComputedStyle(ground).backgroundColor)];
}"""
WIDE = "all => all.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"


def printed(page: Page) -> list[str]:
    """The text of every page, without the line ends that its width brought in."""
    pages = PdfReader(io.BytesIO(page.pdf(format="A4"))).pages
    return ["".join(sheet.extract_text().split()) for sheet in pages]


def readable(page: Page, selector: str, ground: str) -> float:
    element = page.locator(selector).first.element_handle()
    return contrast(*page.evaluate(COLOURS, [element, page.locator(ground).first.element_handle()]))


def hostile() -> str:
    names = [f"ns/{name.replace('/', chr(0x2215))}/main" for name in HOSTILE]
    wishes = list(zip(names, itertools.cycle((2, 0, 900)), strict=False))
    first = samples.sample("demo", wishes, config="<img src=x onerror=alert(7)>.yaml")
    first["scenario"] = HOSTILE[0]
    first["notes"] = list(HOSTILE)
    first["machine"]["title"] = HOSTILE[1]
    first["containers"][0]["devices"] = {HOSTILE[0]: [HOSTILE[1]]}
    second = samples.sample("demo", wishes, config=HOSTILE[2], backwards=True)
    return render([first, second], samples.comparison(first, second))


def test_print_holds_every_row_and_every_page_of_a_table_its_head(show: Show) -> None:
    wishes = [(f"team/pod-{number}/main", 1 if number % 2 else 700) for number in range(90)]
    sheets = printed(show(render([samples.sample("demo", wishes)])))
    text = "".join(sheets)
    assert len(sheets) > 3
    assert [name for name, _ in wishes if text.count(name) < 1] == []
    assert text.count("InsufficientCPU:700wanted") == 45
    assert sum("PodorcontainerAskedforReason" in sheet for sheet in sheets) > 1


def test_print_ignores_filter_and_pointing_and_leaves_out_what_needs_a_mouse(show: Show) -> None:
    page = show(render([samples.sample()]))
    page.locator("#filter").fill("nothing of that kind")
    page.locator(".cpu[data-cpu='3']").click()
    text = "".join(printed(page))
    assert "net/filter/filter" in text
    assert "1000wanted" in text
    assert "Filterrows" not in text
    assert "8CPUstoitself" not in text
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.locator("#detail").is_hidden()
    assert page.locator(".cpu[data-cpu='40']").evaluate("cpu => getComputedStyle(cpu).opacity") == "1"


def test_print_is_dark_on_white_also_in_the_dark(show: Show) -> None:
    page = show(render([samples.sample()]), color_scheme="dark")
    page.emulate_media(media="print")
    assert (
        page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert readable(page, "h1", "body") > 15


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_letters_are_readable_in_light_and_dark(show: Show, scheme: str) -> None:
    page = show(render([samples.many(40, "demo", 1)]), color_scheme=scheme)
    white = (
        page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert white == (scheme == "light")
    assert readable(page, "h1", "body") > 7
    assert readable(page, ".hint", "body") > 4.5
    assert readable(page, ".cpu.shared", ".cpu.shared") > 4.5
    letters = page.locator(".cpu.exclusive").all()
    assert min(contrast(*page.evaluate(COLOURS, [cpu.element_handle()] * 2)) for cpu in letters) > 4.5


@pytest.mark.parametrize("width", [320, 380, 768, 1024])
@pytest.mark.parametrize("machine", ["epyc7742-2p-64c-smt-l3-as-numa", "gb200-34-numa"])
def test_body_never_scrolls_sideways(show: Show, width: int, machine: str) -> None:
    first = samples.many(40, machine, 5, config="telco.yaml, topologyManagerPolicy=single-numa-node")
    second = samples.many(40, machine, 5, config="x" * 200, backwards=True)
    page = show(render([first, second], samples.comparison(first, second)), width=width, height=700)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("main td, .cpu, .node, .socket, p, dd, h1, h2").evaluate_all(WIDE) == []


@pytest.mark.parametrize("width", [320, 1024])
def test_names_of_any_length_are_broken_within_the_page(show: Show, width: int) -> None:
    name = "/".join(letter * 253 for letter in "abc")
    page = show(
        render([samples.sample("demo", [(name, 2), (f"d/{name[2:]}", 700)])]), width=width, height=700
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#placements-0 tbody tr").first.hover()
    assert page.locator("#detail").evaluate("detail => detail.scrollWidth <= detail.clientWidth")


def test_narrow_screen_names_the_column_of_every_value(show: Show) -> None:
    page = show(render([samples.sample()]), width=380, height=700)
    cell = page.locator("#placements-0 tbody td").nth(2)
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Own CPUs"'
    page.locator("#placements-0 th", has_text="Own CPUs").get_by_role("button").click()
    assert page.locator("#placements-0 tbody tr").first.inner_text().split()[1] == "shop/web/web"


def test_plots_scroll_by_themselves_where_they_are_too_wide(show: Show) -> None:
    page = show(render([samples.sample()]), width=380, height=700)
    assert page.locator("#plot-steps .scroll").evaluate("box => box.scrollWidth > box.clientWidth")


def test_names_bring_in_neither_markup_nor_script(show: Show) -> None:
    page = show(hostile())  # which also fails on a dialog, a request or a word on the console
    assert page.locator("img, b:text-is('bold'), iframe, object").count() == 0
    assert page.locator("script").evaluate_all("all => all.map(script => script.id || script.type)") == [
        "result",
        "says",
        "",
    ]
    assert page.locator("[onerror], [onmouseover], a[href^='javascript']").count() == 0
    shown = page.locator("#placements-0 td:nth-child(2), #refusals-0 td:nth-child(2)").all_inner_texts()
    assert {name.replace("/", chr(0x2215)) for name in HOSTILE} == {name.split("/")[1] for name in shown}
    assert page.locator("h1").inner_text() == f"{HOSTILE[0]} on demo"


def test_pointing_at_hostile_names_shows_them_as_they_are(show: Show) -> None:
    page = show(hostile())
    page.locator("#placements-0 tbody tr").first.hover()
    detail = page.locator("#detail")
    assert HOSTILE[0].replace("/", chr(0x2215)) in detail.inner_text()
    assert detail.locator("script, img").count() == 0


def test_controls_and_marks_of_direction_in_names_are_replaced(show: Show) -> None:
    page = show(render([samples.sample("demo", [("ns/a\u202eb\x00c\ud800d/main", 2)])]))
    assert page.locator("#placements-0 td:nth-child(2)").inner_text() == "ns/a\ufffdb\ufffdc\ufffdd/main"
    page.locator("#placements-0 tbody tr").hover()
    assert "\u202e" not in page.locator("#detail").inner_text()


def test_figures_can_be_got_back_out_of_the_page(show: Show) -> None:
    first, second = samples.sample(), samples.sample(config="</script>.yaml")
    page = show(render([first, second], samples.comparison(first, second)))
    held = json.loads(page.locator("#result").text_content() or "")
    assert held == json.loads(
        json.dumps(
            {"format": 1, "simulations": [first, second], "comparison": samples.comparison(first, second)}
        )
    )


def test_large_machine_with_many_pods_is_small_enough_to_mail_and_complete(show: Show) -> None:
    first = samples.many(200, "epyc7742-2p-64c-smt-l3-as-numa", 2)
    second = samples.many(200, "epyc7742-2p-64c-smt-l3-as-numa", 2, backwards=True)
    html = render([first, second], samples.comparison(first, second))
    assert len(html.encode()) < 1_500_000
    page = show(html)
    assert page.locator(".cpu[data-cpu]").count() == 512
    page.locator("[data-simulation='1'] .cpu.exclusive").nth(30).hover()
    assert page.locator("[data-simulation='1'] .cpu.lit").count() == 2
