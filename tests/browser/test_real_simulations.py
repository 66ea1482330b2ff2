"""What `nri-pin simulate --html` writes, of scenarios that come with it, in the browser."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from nri_plugin.cli.main import run_command_line
from nri_plugin.model import bits
from nri_plugin.simulator.simulate.plan import shipped_scenarios

Show = Callable[..., Page]


def written(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    """The report of a simulation and the JSON that the same command prints."""
    file = tmp_path / "report.html"
    run_command_line(["simulate", *words, "--html", str(file), "-o", "json"])
    return file.read_text(encoding="utf-8"), json.loads(capsys.readouterr().out)


def runs_on(simulation: dict[str, Any], key: str) -> list[int]:
    """Its own CPUs, or the shared pool; none for a container that does not run at the end."""
    own = [owner["cpu"] for owner in simulation["owners"] if owner["container"] == key]
    shares = any(row["key"] == key and not row["exclusive"] for row in simulation["containers"])
    return list(bits.iterate(bits.parse_list(simulation["totals"]["shared_pool"]))) if shares else own


@pytest.mark.parametrize("scenario", sorted(shipped_scenarios()))
def test_report_of_a_shipped_scenario_shows_what_the_command_prints(
    show: Show, tmp_path: Path, capsys: pytest.CaptureFixture[str], scenario: str
) -> None:
    html, printed = written(tmp_path, capsys, scenario)
    page = show(html)
    assert json.loads(page.locator("#result").text_content() or "") == printed
    result = printed["simulations"][0]
    names = page.locator("#placements-0 td:nth-child(2)").all_inner_texts()
    assert names == [row["key"] for row in result["containers"]]
    for row in result["containers"]:
        page.locator(f"#placements-0 tr[data-c='{names.index(row['key'])}']").first.hover()
        assert row["key"] in page.locator("#detail").inner_text()


def test_report_of_a_comparison_marks_the_same_cpus_as_the_table_names(
    show: Show, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, printed = written(tmp_path, capsys, "inference", "--compare", "topologyManagerScope=container")
    page = show(html)
    rows = page.locator("#differing-containers tbody tr")
    assert rows.count() == len(printed["comparison"]["containers"]) > 0
    for row in rows.all():
        key = row.locator("td").first.inner_text()
        row.hover()
        for number, simulation in enumerate(printed["simulations"]):
            lit = page.locator(f"[data-simulation='{number}'] .cpu.lit").evaluate_all(
                "all => all.map(cpu => Number(cpu.dataset.cpu)).sort((a, b) => a - b)"
            )
            assert lit == runs_on(simulation, key)


def test_devices_light_up_with_their_container(
    show: Show, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, printed = written(tmp_path, capsys, "inference")
    page = show(html)
    taken = [device for device in printed["simulations"][0]["devices"] if device["container"]]
    page.locator(".device[data-c]").first.hover()
    lit = page.locator(".device.lit").evaluate_all("all => all.map(device => device.title)")
    first = taken[0]["container"]
    assert lit == [
        f"{device['resource']} {device['id']}: {first}" for device in taken if device["container"] == first
    ]
    assert first in page.locator("#detail").inner_text()
