"""Parts of a rendered report, so that a test sees what a reader of the page sees."""

import re
from typing import Any

from nri_plugin.cli.simulate.report import render
from tests import simulation_samples as samples


def part(id_: str, *simulations: dict[str, Any]) -> str:
    """The table, figure or section with this HTML id; empty where the page has none."""
    comparison = samples.comparison(*simulations) if len(simulations) == 2 else None
    page = render(simulations, comparison)
    found = re.search(rf'<(table|figure|section) id="{id_}".*?</\1>(?=\s*<(?!h5))', page, re.DOTALL)
    return found[0] if found else ""


def machine(simulation: dict[str, Any]) -> str:
    """The picture of the machine with its legend."""
    page = render([simulation])
    return page[page.index('<section id="machine">') : page.index('<section id="plots">')]
