"""`nri-pin run` as a row in the table of commands; `nri_plugin.__main__` starts the agent without this package."""

import click
from click.shell_completion import CompletionItem


class RunCommand(click.Command):
    """The agent parses its own arguments; this names its options for shell completion."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options that begin so."""
        from nri_plugin.agent.arguments import NAMES

        return [
            CompletionItem(name) for name in NAMES if name.startswith(incomplete)
        ] or super().shell_complete(ctx, incomplete)


@click.command(cls=RunCommand, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[FILE]...")
def command(words: tuple[str, ...]) -> int:
    """Run the agent on this node."""
    from nri_plugin.agent import agent

    return agent.main(list(words))
