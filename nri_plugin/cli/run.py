"""Help for `nri-pin run`; the run itself never comes through here, see `nri_plugin.__main__`."""

import click

EXAMPLES = """\b
Examples:
  nri-pin run
  nri-pin run --config ./config.yaml

\b
The smallest configuration:
  reservedSystemCPUs: "0"
"""


@click.command(
    epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True}
)
@click.option(
    "--config", default="/etc/nri-pin/config.yaml", show_default=True, help="The configuration file."
)
def command(config: str) -> None:
    """Run the agent: connect to the container runtime and place every container it creates."""
    raise click.UsageError(
        f"the agent is started as `nri-pin run --config {config}`, with run as the first word"
    )
