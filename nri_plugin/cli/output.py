"""What the commands share when they print: the format option and the console."""

import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nri_plugin.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


def format_option(*formats: str) -> Callable[[F], F]:
    """The one option `-o`, `--format`; the first of `formats` is the default, `text` and `json` if none is named."""
    choices = formats or ("text", "json")
    return click.option(
        "-o",
        "--format",
        "output_format",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="How the answer is written.",
    )


def echo(text: str, *, err: bool = False, styled: bool = False) -> None:
    """Print text for people: the one way to a terminal.

    Args:
        text: may hold names of pods, of files and of other programs.
        err: to standard error.
        styled: it holds colours of ours, and all else in it has passed `visible` already.
    """
    click.echo(text if styled else visible(text), err=err)


def wants_colour() -> bool:
    """Colours only on a terminal that can show them, and never with NO_COLOR. Source: no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int | None:
    """The width to write for: COLUMNS where it is set, else the terminal's; None where there is no terminal."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def console() -> "Console":
    """A console on standard output: colours only on a terminal and never with NO_COLOR."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)
