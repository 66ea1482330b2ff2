"""`nri-pin man`: the manual pages, made from the help texts that `--help` prints.

Source: man(7), groff_man(7). A page has no date, so that the same program makes the same bytes.
"""

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from nri_plugin import __version__
from nri_plugin.agent.arguments import HELP as HELP_OF_RUN
from nri_plugin.checkpoint.directory import replace_file
from nri_plugin.cli import PROGRAM
from nri_plugin.cli.output import echo
from nri_plugin.model.errors import HostError

SECTION = "1"
VERBATIM = "\b"
"""A paragraph that begins with this character keeps its lines, as in click."""

EXAMPLES = """\b
Examples:
  nri-pin man --write /usr/local/share/man/man1       all pages; then: man nri-pin-explain
  nri-pin man explain | man -l -                      one page, without installing it
  nri-pin man state show | man -l -
"""


def _escaped(text: str) -> str:
    """Text that roff prints as it is."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in plain.split("\n"))


def _paragraph(text: str) -> Iterator[str]:
    """One paragraph of a help text; the examples become a section."""
    if not text.startswith(VERBATIM):
        yield f".PP\n{_escaped(' '.join(text.split()))}"
        return
    lines = text.removeprefix(VERBATIM).strip("\n").splitlines()
    if lines[0] == "Examples:":
        yield ".SH EXAMPLES"
        del lines[0]
    else:
        yield ".PP"
    yield from (".nf", _escaped("\n".join(lines)), ".fi")


def _body(text: str | None) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph.strip("\n"):
            yield from _paragraph(paragraph.strip("\n"))


def _entries(heading: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    """A section of terms with their texts."""
    if rows:
        yield f".SH {heading}"
    for term, text in rows:
        yield f".TP\n.B {_escaped(term)}\n{_escaped(' '.join(text.split()))}"


def _see_also(words: tuple[str, ...], names: list[str]) -> Iterator[str]:
    above = ["-".join([PROGRAM, *words[:-1]])] if words else []
    below = ["-".join([PROGRAM, *words, name]) for name in names]
    pages = [f".BR {_escaped(page)} ({SECTION})" for page in (*above, *below)]
    if pages:
        yield ".SH SEE ALSO"
        yield " ,\n".join(pages)


def page(words: tuple[str, ...], command: click.Command) -> str:
    """The manual page of a command, in roff.

    Args:
        words: of the command, without the program's name.
        command: what they name.
    """
    name = "-".join([PROGRAM, *words])
    context = click.Context(command, info_name=" ".join([PROGRAM, *words]))
    if words == ("run",):
        # The agent parses its own arguments; its help text is written by hand.
        usage, _, rest = HELP_OF_RUN.partition("\n\n")
        parts = [
            f".B {_escaped(usage.removeprefix('Usage: '))}",
            ".SH DESCRIPTION",
            ".nf",
            _escaped(rest.rstrip()),
            ".fi",
        ]
        return _page(name, command, [*parts, *_see_also(words, [])])
    names = command.list_commands(context) if isinstance(command, click.Group) else []
    options = [row for one in command.get_params(context) if (row := one.get_help_record(context))]
    parts = [
        f".B {_escaped(context.command_path)}\n{_escaped(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
        *_body(command.help),
        *_entries("COMMANDS", _summaries(command, context)),
        *_entries("OPTIONS", options),
        *_body(command.epilog),
        *_see_also(words, names),
    ]
    return _page(name, command, parts)


def _page(name: str, command: click.Command, parts: list[str]) -> str:
    head = [
        f'.TH {_escaped(name.upper())} {SECTION} "" "{PROGRAM} {__version__}" "{PROGRAM}"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
    ]
    return "\n".join([*head, *parts]) + "\n"


def _summaries(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    if not isinstance(command, click.Group):
        return []
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return [(name, one.get_short_help_str(200)) for name, one in found.items() if one is not None]


def pages() -> Mapping[tuple[str, ...], click.Command]:
    """Every command by its words, the program itself first."""
    from nri_plugin.cli.main import group

    return dict(_below(group, ()))


def _below(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _below(found, (*words, name))


def write(folder: Path) -> list[Path]:
    """Write every page; returns the files.

    Raises:
        HostError: the folder cannot be made or written to.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for words, command in pages().items():
            path = folder / f"{'-'.join([PROGRAM, *words])}.{SECTION}"
            replace_file(str(path), page(words, command).encode(), mode=0o644)
            written.append(path)
    except OSError as error:
        raise HostError(str(folder), f"cannot be written: {error.strerror}") from None
    return written


@click.command(name="man", epilog=EXAMPLES)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the pages of all commands to this directory.",
)
@click.pass_context
def command(context: click.Context, words: tuple[str, ...], folder: Path | None) -> None:
    """Print the manual page of a command, or write all pages.

    The pages have the same text as --help. Without COMMAND it is the page of the program.
    """
    if folder is not None:
        if words:
            raise click.UsageError("expected COMMAND or --write, found both", context)
        echo(f"wrote {len(write(folder))} pages to {folder}")
        return
    found = pages().get(words)
    if found is None:
        raise click.UsageError(f"no such command '{' '.join(words)}'", context)
    click.echo(page(words, found), nl=False)
