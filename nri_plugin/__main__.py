"""Where every start of `nri-pin` begins, and where every error ends.

Two starts must stay small and quick because container creation waits behind them: `nri-pin run`, and
the start by the runtime itself, which gives no arguments, an empty environment but for `NRI_PLUGIN_*`, and
an open socket. Both are told apart here, before the command line library is loaded.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from nri_plugin.errors import ConfigError, NriPinError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # what shells report for SIGINT

DEBUG_VARIABLE = "NRI_PIN_DEBUG"


def agent_arguments(args: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """The agent's own arguments when this start is the agent's, None when the command line's.

    Source: NRI starts a plugin it owns without arguments and names the socket in `NRI_PLUGIN_SOCKET`.
    """
    if not args:
        return [] if environment.get("NRI_PLUGIN_SOCKET") else None
    return list(args[1:]) if args[0] == "run" else None


def start(args: Sequence[str], environment: Mapping[str, str]) -> int:
    """Hand over to the agent or to the command line; returns the exit code."""
    for_agent = agent_arguments(args, environment)
    if for_agent is not None:
        from nri_plugin.app import agent

        return agent.main(for_agent)
    from nri_plugin.cli.main import run_command_line

    return run_command_line(args)


def complain(text: str) -> None:
    """One line on standard error, whatever the text holds."""
    sys.stderr.write(f"nri-pin: {' '.join(text.split())}\n")


def complain_of_configuration(error: ConfigError) -> None:
    """One line for the first error; what follows it (further errors, lines to add) stands below as it is."""
    first, *others = str(error).splitlines()
    complain(first)
    sys.stderr.writelines(f"  {line}\n" for line in others)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nri-pin`; returns the exit code and lets no error out but those asked for by `NRI_PIN_DEBUG`."""
    try:
        return start(sys.argv[1:] if argv is None else argv, os.environ)
    except ConfigError as error:
        complain_of_configuration(error)
        return EXIT_USAGE
    except NriPinError as error:
        complain(str(error))
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        complain(
            f"unexpected {type(error).__name__}: {error}; run again with {DEBUG_VARIABLE}=1 and report it"
        )
        return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
