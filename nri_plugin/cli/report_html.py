"""A simulation as one HTML file: opened from a disk, mailed, printed; it loads nothing from anywhere.

Everything is in the page before any script runs. The script adds what a mouse and keys do, and may be refused.
The policy in the page lets only our own style and script through, by their hashes: markup that got in through a
name would neither load nor run anything, and `report_markup` lets none in.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from nri_plugin import __version__
from nri_plugin.cli import report_tables as tables
from nri_plugin.cli.report_machine import machine
from nri_plugin.cli.report_marks import Marks, Row, letters, names
from nri_plugin.cli.report_markup import NOTHING, Markup, element, escape, joined, raw_element, script_json
from nri_plugin.cli.report_plots import plots

UNNAMED = ("", "machine")
"""Names of a machine that the scenario itself describes."""
FORMAT = 1
"""Of the JSON that stands in the page, as `nri-pin simulate -o json` prints it."""


def render(simulations: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None = None) -> str:
    """The page.

    Args:
        simulations: one, or two of the same pods on the same machine, each as `Simulation.as_dict` says it.
        comparison: what differs between two.

    Raises:
        ValueError: not one or two simulations.
    """
    if len(simulations) not in {1, 2}:
        raise ValueError(f"a report shows one simulation or two, not {len(simulations)}")
    marks = Marks(simulations)
    style = "\n".join([_file("report.css"), marks.css()])
    script = _file("report.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", _title(simulations)),
        raw_element("style", style),
    )
    body = element(
        "body",
        *_body(simulations, comparison, marks),
        *_data(simulations, comparison, marks),
        raw_element("script", script),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _body(simulations: Sequence[Row], comparison: Row | None, marks: Marks) -> list[Markup]:
    return [
        _header(simulations),
        element(
            "main",
            _summary(simulations),
            _machines(simulations, marks),
            tables.differences(comparison, simulations, marks)
            if comparison and len(simulations) == 2
            else NOTHING,
            element(
                "section",
                element("h2", "Plots"),
                element("div", plots(simulations, marks), class_="plots"),
                id="plots",
            ),
            _tables(simulations, marks),
        ),
        element(
            "footer",
            f"Made by nri-pin {__version__} from a simulation; no node was asked and none was changed.",
        ),
        element("aside", class_="detail", id="detail", role="status", hidden=True),
    ]


def _header(simulations: Sequence[Row]) -> Markup:
    places = {"#machine": "Machine", "#plots": "Plots", "#tables": "Tables"}
    if len(simulations) == 2:
        places = {"#machine": "Machine", "#differs": "What differs", "#plots": "Plots", "#tables": "Tables"}
    links = [element("a", words, href=where) for where, words in places.items()]
    return element("header", element("h1", _title(simulations)), element("nav", *links, aria_label="Parts"))


def _title(simulations: Sequence[Row]) -> Markup:
    first = simulations[0]
    scenario = first["scenario"] or first["file"] or "Simulation"
    machine_name = first["machine"]["name"]
    return escape(scenario if machine_name in UNNAMED else f"{scenario} on {machine_name}")


def _summary(simulations: Sequence[Row]) -> Markup:
    first = simulations[0]["machine"]
    titles = names(simulations) if len(simulations) > 1 else [""]
    lead = [
        element("p", *[element("small", title)] * bool(title), element("b", _told(simulation)))
        for simulation, title in zip(simulations, titles, strict=True)
    ]
    facts = [
        ("Machine", _machine_words(first)),
        ("It has", first["summary"]),
    ]
    facts += [
        (f"Configuration{letter and ' ' + letter}", _configuration(simulation["configuration"]))
        for simulation, letter in zip(simulations, letters(simulations), strict=True)
    ]
    facts += [
        (f"Refused{letter and ' ' + letter}", _refused(simulation))
        for simulation, letter in zip(simulations, letters(simulations), strict=True)
        if simulation["refused"]
    ]
    rows = [element("div", element("dt", words), element("dd", value)) for words, value in facts]
    notes = list(dict.fromkeys(note for simulation in simulations for note in simulation["notes"]))
    noted = [element("ul", *(element("li", note) for note in notes), class_="notes")] if notes else []
    told = element("div", element("dl", *rows), *noted)
    return element(
        "section",
        element("div", *lead, class_="lead"),
        element("div", told, tables.figures(simulations), class_="summary"),
        id="summary",
    )


def _machine_words(machine: Row) -> str:
    """Its name and its title, as far as it has them."""
    words = [machine["name"]] * (machine["name"] not in UNNAMED) + [machine["title"]] * bool(machine["title"])
    return ": ".join(words) or "described in the scenario"


def _told(simulation: Row) -> str:
    """The outcome in one sentence."""
    totals = simulation["totals"]
    words = f"{totals['pods_placed']} of {totals['pods']} pods placed"
    if totals["pods_partly"]:
        words += f", {totals['pods_partly']} in part"
    words += f", {totals['pods_refused']} refused" if totals["pods_refused"] else ", none refused"
    return (
        f"{words}; {totals['exclusive_cpus']} CPUs exclusive, {totals['available_cpus']} can still become so."
    )


def _refused(simulation: Row) -> Markup:
    """How many pods of which shape for which reason, the most frequent first."""
    lines = [
        f"{len(_pods(row['containers']))} x {row['reason']}: {simulation['shapes'].get(row['shape'], row['shape'])}"
        for row in simulation["refused"]
    ]
    return element("ul", *(element("li", line) for line in lines), class_="said")


def _pods(containers: Sequence[str]) -> frozenset[str]:
    return frozenset(key.rpartition("/")[0] for key in containers)


def _configuration(configuration: Row) -> Markup:
    said = [element("li", element("code", f"{key}: {value}")) for key, value in _key_values(configuration)]
    reserved = f"Reserved: {configuration['reserved'] or 'no CPU'}; {configuration['why_reserved']}"
    return joined(
        [element("b", configuration["name"]), element("ul", *said, class_="said"), element("p", reserved)]
    )


def _key_values(configuration: Row) -> list[tuple[str, str]]:
    """Texts that repeat their key are told without it."""
    pairs = configuration["said"].items()
    return [(key, str(value).removeprefix(f"{key}: ")) for key, value in pairs]


def _machines(simulations: Sequence[Row], marks: Marks) -> Markup:
    parts = []
    for number, (simulation, name) in enumerate(zip(simulations, names(simulations), strict=True)):
        title = [element("h3", name)] if len(simulations) > 1 else []
        parts.append(
            element(
                "div", *title, machine(simulation, number, marks), class_="simulated", data_simulation=number
            )
        )
    hint = "Point at a CPU, a piece of a plot or a row to see the container everywhere; click to keep it, Esc to let go."
    return element(
        "section",
        element("h2", "The machine at the end"),
        element("p", hint, class_="hint"),
        element("div", *parts, class_="pair"),
        id="machine",
    )


def _tables(simulations: Sequence[Row], marks: Marks) -> Markup:
    box = element(
        "input",
        type="search",
        id="filter",
        placeholder="name, CPU list, reason",
        autocomplete="off",
        aria_controls="tables",
    )
    asked = element(
        "p",
        element("label", "Filter rows ", box),
        element("output", id="filtered", for_="filter"),
        class_="filter",
    )
    numbered = list(zip(range(len(simulations)), simulations, letters(simulations), strict=True))
    parts = [
        *(tables.placements(simulation, number, marks, letter) for number, simulation, letter in numbered),
        *(tables.refusals(simulation, number, marks, letter) for number, simulation, letter in numbered),
        *(tables.devices(simulation, number, marks, letter) for number, simulation, letter in numbered),
        *(tables.memory(simulation, number, letter) for number, simulation, letter in numbered),
        *(tables.happened(simulation, number, letter) for number, simulation, letter in numbered),
    ]
    return element("section", element("h2", "Tables"), asked, *parts, tables.orders(simulations), id="tables")


def _data(simulations: Sequence[Row], comparison: Row | None, marks: Marks) -> list[Markup]:
    """What the script reads, and whoever wants the figures back out of the page."""
    result = {"format": FORMAT, "simulations": simulations, "comparison": comparison}
    said = {"containers": marks.says(), "pools": marks.pools(), "names": letters(simulations)}
    return [
        raw_element("script", script_json(value), type="application/json", id=name)
        for name, value in (("result", result), ("says", said))
    ]


def _policy(style: str, script: str) -> str:
    return f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _file(name: str) -> str:
    return (resources.files("nri_plugin.cli") / "report" / name).read_text(encoding="utf-8")
