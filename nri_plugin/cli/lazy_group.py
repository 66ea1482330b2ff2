"""Groups of commands whose modules are imported when they are used, never to list them."""

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: where its code is and the line that lists it."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group some of whose members are rows of a table, listed after those that are there already.

    Args:
        entries: the table, by name.
    """

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **more: Any) -> None:
        super().__init__(*args, **more)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """The names in the order of the table."""
        return [*self.commands, *self.entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        """The command, imported now; None when there is no such name."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return self.commands.get(cmd_name)
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.target} is no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word.

        Raises:
            UsageError: there is none; names the one that looks like it.
        """
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(args[0], names, n=1)
            ctx.fail(f"no such command '{args[0]}'" + (f", did you mean '{close[0]}'" if close else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names that begin so, with their lines, without importing what they name; else what click knows."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        lines = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        lines |= {name: entry.summary for name, entry in self.entries.items()}
        return [
            CompletionItem(name, help=line) for name, line in lines.items() if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        """List the table without importing what it names."""
        with formatter.section("Commands"):
            here = [(name, command.get_short_help_str(100)) for name, command in self.commands.items()]
            formatter.write_dl(here + [(name, entry.summary) for name, entry in self.entries.items()])
