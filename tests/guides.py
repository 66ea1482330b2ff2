"""The documents of the repository as values, and the parts of the guides that are made from the code.

`hack/write-guides` runs this module. A test compares the guides with it.
"""

import contextlib
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import click

from nri_plugin import __main__ as entry
from nri_plugin import __version__
from nri_plugin.agent.observing.metrics import OF_NOISE, ROWS, TIMINGS
from nri_plugin.cli import main as cli
from nri_plugin.cli.doctor.support import support_table
from nri_plugin.cli.kubectl import plugin

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDE = ROOT / "deploy" / "guide"
COMMANDS = GUIDE / "commands.md"
CONFIGURE = GUIDE / "configure.md"
LIMITS = GUIDE / "limits.md"
METRICS = GUIDE / "metrics.md"
RUNBOOK = GUIDE / "runbook.md"
ALERTS = ROOT / "deploy" / "chart" / "files" / "alerts.yaml"
SIMULATE = GUIDE / "simulate.md"
OPERATE = GUIDE / "operate.md"
WIDTH = 80
PROMPTS = ("$ ", "# ")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def operators_documents() -> list[Path]:
    """The README and every guide."""
    return [README, *sorted(GUIDE.glob("*.md"))]


def documents() -> list[Path]:
    """Every Markdown file that somebody wrote, also those for developers."""
    tops = ("hack", "nri_plugin", "tests", "deploy")
    return [README, *sorted(path for top in tops for path in (ROOT / top).rglob("*.md"))]


def everything() -> str:
    """What operators can read, as one text."""
    return "\n".join(path.read_text("utf-8") for path in operators_documents())


def section(path: Path, heading: str) -> str:
    """The text below a heading of any level, as far as the next one of that level or above."""
    text = path.read_text("utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"{path.name} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [found[2] for found in FENCE.finditer(text) if found[1] == language]


def anchors(text: str) -> set[str]:
    """What a link may name after `#`: headings as GitHub spells them."""
    prose = FENCE.sub("", text)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        copies = sum(1 for one in found if one == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", one))
        found.add(f"{slug}-{copies}" if copies else slug)
    return found


def links(text: str) -> list[str]:
    """Where links and pictures lead, without those of code."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    return re.findall(r"\]\(([^)\s]+)\)", prose)


class Quoted(NamedTuple):
    """One line that a reader is told to type.

    Attributes:
        document: the file's name.
        line: without its prompt.
        shown: the first line of the answer, where the document has one.
    """

    document: str
    line: str
    shown: str = ""


def quoted_commands() -> list[Quoted]:
    """Lines of console blocks that begin with a prompt, in the order of the documents."""
    return [
        Quoted(path.name, line[2:], "" if after.startswith(PROMPTS) else after)
        for path in operators_documents()
        for block in blocks(path.read_text("utf-8"), "console")
        for line, after in pairwise([*block.splitlines(), ""])
        if line.startswith(PROMPTS)
    ]


def quoted_files() -> dict[str, str]:
    """Files that a document shows in full: a line that ends with the name, then a block."""
    found = (
        re.findall(
            r"`([\w-]+\.\w+)`:\n\n```\w*\n(.*?)^```$", path.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        for path in operators_documents()
    )
    return dict(chain.from_iterable(found))


# Parts made from the code.


def made(name: str, text: str, body: str) -> str:
    """The text with another body between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    assert mark, f"no marks for {name}"
    return f"{before}{begin}{body}{mark}{after}"


def _printed(words: Iterable[str], begin: Callable[..., int] | None = None) -> str:
    """What a command prints on a terminal of usual width."""
    told = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}),
        contextlib.redirect_stdout(told),
    ):
        entry.main([*words], begin)
    return told.getvalue().strip()


def _commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


def command_reference() -> str:
    """The help of every command, each below a heading of its own."""
    parts = [
        _described(f"{'#' * (len(words) + 1)} nri-pin {' '.join(words)}", _printed((*words, "--help")))
        for words in _commands(cli.group)
    ]
    of_kubectl = [
        (),
        *((name,) for name in plugin.OWN),
        ("show",),
    ]  # the others differ from show in their name
    parts += [
        _described(
            f"{'#' * (3 if words else 2)} {' '.join((plugin.PROGRAM, *words))}",
            _printed((*words, "--help"), entry.start_kubectl),
        )
        for words in of_kubectl
    ]
    return "".join(parts) + "\n"


def write_manual_pages(folder: Path) -> None:
    """The help of every command as a page of its own. Pages have no date, so equal code makes equal bytes."""
    for words in [(), *_commands(cli.group)]:
        name = "-".join(("nri-pin", *words))
        text = _printed((*words, "--help"))
        summary = " ".join(text.split("\n\n")[1].split()).partition(". ")[0].rstrip(".")
        head = f'.TH "{name}" 1 "" "nri-pin {__version__}"\n.SH NAME\n{_roff(name)} \\- {_roff(summary)}\n'
        body = f".SH DESCRIPTION\n.in 0\n.nf\n{_roff(text)}\n.fi\n"
        (folder / f"{name}.1").write_text(head + body, encoding="utf-8")


def _roff(text: str) -> str:
    """Lines that roff prints as they are. Source: groff_man(7)."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)


def _described(heading: str, text: str) -> str:
    return f"\n{heading}\n\n```text\n{text}\n```\n"


class Departure(NamedTuple):
    """One `Differs: THEIRS; here: OURS. Why: REASON. Option: NAME.` of the code.

    Attributes:
        where: the module.
        theirs: the behavior of the kubelet, or of another program.
        ours: the behavior here.
        why: the reason.
        option: the option that gives their behavior, or `none`.
    """

    where: str
    theirs: str
    ours: str
    why: str
    option: str

    @property
    def is_from_kubelet(self) -> bool:
        """Whether the agent's decisions depart from the kubelet's; the simulator stands in for a kubelet."""
        return self.theirs.startswith("the kubelet") and not self.where.startswith("simulator/")


ORDER = (
    "policy",
    "core",
    "model",
    "config",
    "agent",
    "host",
    "exporter",
    "extender",
    "kube",
    "wire",
    "simulator",
)
OTHER_FIELD = re.compile(r"(Source|Args|Returns|Raises|Yields|Shapes?|Units?|Attributes|Differs):")


def departures() -> list[Departure]:
    """Every `Differs:` line with the lines that go on with it: placement first, stand-ins of the simulator last."""
    found = [
        departure
        for path in sorted((ROOT / "nri_plugin").rglob("*.py"))
        if "_pb" not in path.parts
        for departure in _departures(path)
    ]
    order = {package: place for place, package in enumerate(ORDER)}
    return sorted(found, key=lambda one: order.get(one.where.split("/")[0], len(order) - 1))


def _departures(path: Path) -> Iterator[Departure]:
    lines = path.read_text("utf-8").splitlines()
    where = path.relative_to(ROOT / "nri_plugin").with_suffix("").as_posix()
    for number, line in enumerate(lines):
        if "Differs:" not in line:
            continue
        words = [line.partition("Differs:")[2]]
        is_comment = line.lstrip().startswith("#")
        for following in lines[number + 1 :]:
            text = following.strip()
            if is_comment != text.startswith("#") or words[-1].rstrip().endswith('"""'):
                break
            text = text.removeprefix("#").strip()
            if not text or text.startswith('"""') or OTHER_FIELD.match(text):
                break
            words.append(text)
        sentence = " ".join(word.strip() for word in words).removesuffix('"""').strip()
        yield departure_of(f"{where}.py:{number + 1}", sentence)


DEPARTURE_MARKS = ("; here: ", ". Why: ", ". Option: ")


def departure_of(place: str, sentence: str) -> Departure:
    """The parts of a departure.

    Args:
        place: `MODULE.py:LINE`.
        sentence: the text after `Differs:`, in one line.

    Raises:
        ValueError: a part is missing, empty or there twice.
    """
    parts, left = [], sentence.removesuffix(".")
    for mark in DEPARTURE_MARKS:
        if sentence.count(mark.strip(";. ")) != 1:
            msg = f"{place}: needs one {mark.strip(';. ')!r}: Differs: THEIRS; here: OURS. Why: REASON. Option: NAME."
            raise ValueError(msg)
        part, _, left = left.partition(mark)
        parts.append(part)
    if not all((*parts, left)) or not sentence.endswith("."):
        msg = f"{place}: a part is empty, or the line has no full stop at its end: {sentence}"
        raise ValueError(msg)
    return Departure(place.partition(".py:")[0], *parts, left)


def departure_tables() -> str:
    """The departures as two tables: from the kubelet, and from other programs."""
    found = departures()
    parts = (
        ("From the kubelet", "the kubelet", [one for one in found if one.is_from_kubelet]),
        ("From other programs", "the other program", [one for one in found if not one.is_from_kubelet]),
    )
    return (
        "".join(
            f"\n### {heading}\n\n| {other} | nri-pin | why | option for the other behavior | module |\n|---|---|---|---|---|\n"
            + "".join(map(_row, rows))
            for heading, other, rows in parts
        )
        + "\n"
    )


def _row(one: Departure) -> str:
    told = (one.theirs, one.ours, one.why, one.option)
    return f"| {' | '.join(_cell(text) for text in told)} | `{one.where}` |\n"


def _cell(text: str) -> str:
    """Text that cannot end a cell or begin HTML or bold type."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("**", "\\*\\*")


ALERTS_HEAD = """\
# Alerts on nri-pin, as a rule file of Prometheus; the chart makes a PrometheusRule of it (metrics.alerts.enabled).
# deploy/guide/runbook.md has a section for each: what it means, how to look, what to do, what happens otherwise.
groups:
  - name: nri-pin
    rules:
"""


def runbook_sections() -> dict[str, str]:
    """The sections of the runbook by the names of their alerts."""
    text = RUNBOOK.read_text("utf-8")
    return dict(re.findall(r"^## (NriPin\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))


def alerts() -> str:
    """The rule file of Prometheus: the first block of each section of the runbook, with a link to the section."""
    rules = []
    for name, section_text in runbook_sections().items():
        rule = textwrap.indent(blocks(section_text, "yaml")[0], " " * 8)
        link = f"          runbook: deploy/guide/runbook.md#{name.lower()}\n"
        rules.append(f"      - alert: {name}\n{rule}{link}")
    return ALERTS_HEAD + "".join(rules)


MOST_VALUES = 6
"""A label with more values is only named."""


def metric_tables() -> dict[str, str]:
    """The metrics of the agent as three tables: with names of the kubelet, of the agent, and of the noise."""
    tables = {"kubelet metrics": "", "agent metrics": "", "noise metrics": ""}
    for name, (text, _, labels) in TIMINGS.items():
        tables[_table_of(name)] += _metric(name, text, {label: [] for label in labels})
    for name, row in ROWS.items():
        labels: dict[str, list[str]] = {label: [] for label in row.labels}
        for series in filter(None, row.series):
            for label, value in zip(row.labels, series, strict=True):
                labels[label].append(value)
        # The page says above the table of noise which labels all of them have.
        tables[_table_of(name)] += _metric(name, row.help, {} if name in OF_NOISE else labels, row.see)
    head = "\n| metric | counts or measures |\n|---|---|\n"
    return {name: f"{head}{rows}\n" for name, rows in tables.items()}


def _table_of(name: str) -> str:
    if name in OF_NOISE:
        return "noise metrics"
    return "agent metrics" if name.startswith("nri_pin_") else "kubelet metrics"


def _metric(name: str, text: str, labels: dict[str, list[str]], see: str = "") -> str:
    words = []
    for label, every in labels.items():
        values = [f"`{value}`" for value in dict.fromkeys(every)]
        words.append(f"`{label}` ({', '.join(values)})" if 0 < len(values) <= MOST_VALUES else f"`{label}`")
    by = f" Labels: {', '.join(words)}." if words else ""
    return f"| `{name}` | {_cell(text)}{by}{f' See {see}.' if see else ''} |\n"


ANSWERED = (
    "nri-pin explain --machine demo ",
    "nri-pin room --machine ",
    "nri-pin simulate inference\n",
    "nri-pin simulate demo model.yaml ",
)
"""Commands whose whole answer a document shows, and which answer the same everywhere."""


def with_answers(text: str) -> str:
    """The text with the present answers below the commands that are answered in full."""

    def answered(found: re.Match[str]) -> str:
        line, _, _ = found[2].partition("\n")
        if not f"{line[2:]}\n".startswith(ANSWERED):
            return found[0]
        return f"```console\n{line}\n{_printed(shlex.split(line)[2:])}\n```"

    # The commands read files that the documents show.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, shown in quoted_files().items():
            Path(name).write_text(shown, encoding="utf-8")
        return FENCE.sub(answered, text)


def outdated() -> dict[Path, str]:
    """Documents whose made parts are not what the code says, with the text that they should have."""
    metrics = METRICS.read_text("utf-8")
    for name, table in metric_tables().items():
        metrics = made(name, metrics, table)
    wanted = {
        METRICS: metrics,
        ALERTS: alerts(),
        COMMANDS: made("commands", COMMANDS.read_text("utf-8"), command_reference()),
        LIMITS: made(
            "support", made("departures", LIMITS.read_text("utf-8"), departure_tables()), support_table()
        ),
        CONFIGURE: with_answers(CONFIGURE.read_text("utf-8")),
        OPERATE: with_answers(OPERATE.read_text("utf-8")),
        README: made("support", with_answers(README.read_text("utf-8")), support_table()),
        SIMULATE: with_answers(SIMULATE.read_text("utf-8")),
    }
    return {path: text for path, text in wanted.items() if path.read_text("utf-8") != text}


def main(arguments: list[str]) -> int:
    """Write the made parts, or with --check only tell what would change; with --man DIR write the manual pages."""
    if arguments[:1] == ["--man"]:
        write_manual_pages(Path(arguments[1]))
        return 0
    changed = outdated()
    for path, wanted in changed.items():
        if arguments:
            there = path.read_text("utf-8").splitlines()
            name = str(path.relative_to(ROOT))
            difference = difflib.unified_diff(
                there, wanted.splitlines(), name, "hack/write-guides", n=0, lineterm=""
            )
            sys.stderr.write("\n".join(difference) + "\n")
        else:
            path.write_text(wanted, encoding="utf-8")
    return 1 if arguments and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
