"""`nri-pin run` for whoever comes through the command line; the quick way in is `nri_plugin.__main__`."""

import click


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(words: tuple[str, ...]) -> int:
    """Run the agent on this node."""
    from nri_plugin.app import agent

    return agent.main(list(words))
