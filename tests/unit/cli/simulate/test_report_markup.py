"""A page that names cannot break out of."""

import json
import re
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.cli.simulate.report import render
from nri_plugin.cli.simulate.report_marks import showable
from tests import simulation_samples as samples

TAG = re.compile(r"<[^>]*>")


@pytest.mark.parametrize(
    "character", ["\x00", "\x1b", "\x7f", "\u2028", "\u202e", "\u2066", "\ud800", "\uffff"]
)
def test_what_cannot_be_shown_is_replaced(character: str) -> None:
    assert showable(f"a{character}b") == "a\ufffdb"


@settings(max_examples=30)
@given(st.text())
def test_no_text_adds_an_element_or_an_attribute(text: str) -> None:
    def page(name: str) -> str:
        simulation = samples.sample(wishes=[("a/a/a", 2), ("b/b/b", 900)])
        simulation["scenario"], simulation["notes"] = name or "-", (name,)
        simulation["configuration"]["said"] = {"key": name}
        simulation["steps"][0]["problems"] = (name,)
        simulation["devices"] = ({"resource": name, "id": name, "numa_nodes": (0,), "container": ""},)
        written = render([simulation])
        written.encode()
        return written[: written.index('<script type="application/json"')]

    names = [re.sub(r'"[^"]*"', '""', tag) for tag in TAG.findall(page(text))]
    assert names == [re.sub(r'"[^"]*"', '""', tag) for tag in TAG.findall(page("name"))]


@pytest.mark.parametrize("text", ["</script><b>", "<!--<script>", "a&lt;b", "\u2028", "\ud800"])
def test_data_of_the_page_cannot_end_its_script_and_reads_back(text: str) -> None:
    simulation = samples.sample()
    simulation["notes"] = (text,)
    found = re.search(r'id="result">(.*?)</script>', render([simulation]), re.DOTALL)
    assert found
    assert "<" not in found[1]
    assert json.loads(found[1])["simulations"][0]["notes"] == [text]


@pytest.mark.parametrize(("name", "end"), [("report.css", "</style"), ("report.js", "</script")])
def test_own_files_do_not_end_their_element_early(name: str, end: str) -> None:
    content = resources.files("nri_plugin.cli.simulate").joinpath("templates", name).read_text().lower()
    assert end not in content
    assert "<!--" not in content
