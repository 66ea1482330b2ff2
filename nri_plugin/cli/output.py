"""What the commands share when they print: the format option and the console."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

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


def console() -> "Console":
    """A console on standard output: colours only on a terminal and never with NO_COLOR."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)
