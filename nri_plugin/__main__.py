"""The entry point of `nri-pin`, and the last handler of every error.

Two starts must stay small and quick because container creation waits behind them: `nri-pin run`, and
the start by the runtime itself, which gives no arguments, an empty environment but for `NRI_PLUGIN_*`, and
an open socket. Both are told apart here, before the command line library is loaded. An agent that the runtime starts
gets its supervisor here, while the process is still small; the supervisor starts it again without arguments, too.
"""

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from nri_plugin.model.bounds import visible
from nri_plugin.model.errors import ConfigError, NriPinError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as shells report SIGINT

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STANDARD_OUTPUT = 1

DEBUG_VARIABLE = "NRI_PIN_DEBUG"
LIFE = "NRI_PIN_LIFE"
"""As in `nri_plugin.agent.serving.supervisor`, which commands do not load: an agent with this variable has a supervisor."""


def agent_arguments(args: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
    """The arguments of the agent; None where the command line starts, not the agent.

    Source: NRI starts a plugin it owns without arguments and names the socket in `NRI_PLUGIN_SOCKET`.
    """
    if not args:
        return [] if environment.get("NRI_PLUGIN_SOCKET") or environment.get(LIFE) else None
    return list(args[1:]) if args[0] == "run" else None


def start(args: Sequence[str], environment: Mapping[str, str]) -> int:
    """Hand over to the agent or to the command line; returns the exit code."""
    for_agent = agent_arguments(args, environment)
    if for_agent is not None:
        if not args and not environment.get(LIFE):
            from nri_plugin.agent.serving import supervisor

            os.environ[LIFE] = supervisor.begin(environment)
        from nri_plugin.agent import agent

        return agent.main(for_agent)
    from nri_plugin.cli.main import run_command_line

    return run_command_line(args)


def complain(text: str) -> None:
    """Print one line on standard error, without control characters."""
    sys.stderr.write(f"nri-pin: {visible(' '.join(text.split()))}\n")


def complain_of_configuration(error: ConfigError) -> None:
    """Write one line for the error; further errors and lines to add follow it, indented and otherwise unchanged."""
    complain(error.sentence)
    sys.stderr.writelines(f"  {visible(line)}\n" for line in error.more)


def start_kubectl(args: Sequence[str], _environment: Mapping[str, str]) -> int:
    """Run `kubectl nri-pin`; returns the exit code."""
    from nri_plugin.cli.kubectl import plugin
    from nri_plugin.cli.main import run_command_line

    return run_command_line(args, plugin.group, plugin.PROGRAM)


def kubectl() -> int:
    """The entry point of `kubectl-nri_pin`, which kubectl runs as `kubectl nri-pin`."""
    return main(begin=start_kubectl)


def kubectl_complete() -> int:
    """The entry point of `kubectl_complete-nri_pin`, which kubectl asks for completions."""
    from nri_plugin.cli.kubectl import plugin

    print(visible(plugin.complete(sys.argv[1:])))  # noqa: T201 - names of the cluster, for a shell
    return 0


def main(argv: Sequence[str] | None = None, begin: Callable[..., int] | None = None) -> int:
    """Run `nri-pin`; returns the exit code and lets no error out but those asked for by `NRI_PIN_DEBUG`."""
    try:
        return (begin or start)(sys.argv[1:] if argv is None else argv, os.environ)
    except ConfigError as error:
        complain_of_configuration(error)
        return EXIT_USAGE
    except NriPinError as error:
        complain(str(error))
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None:
            # The rest of the buffer would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT)
            complain(f"the output cannot be written: {(error.strerror or '').lower()}; it is incomplete")
            return EXIT_FAILURE
        if os.environ.get(DEBUG_VARIABLE):
            raise
        complain(
            f"unexpected {type(error).__name__}: {error}; run again with {DEBUG_VARIABLE}=1 and report it"
        )
        return EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
