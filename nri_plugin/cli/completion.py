"""Shell completion: the completer that a shell calls, and `nri-pin completion`, which prints the script for the shell.

The metavar of a parameter in the help (MACHINE, SCENARIO, CONTAINER, FILE, DIR) selects its completions, so a new
command is completed without a change here.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources

import click
from click import shell_completion
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from nri_plugin.cli import COMPLETION_VARIABLE, PROGRAM

EXAMPLES = """\b
Examples:
  nri-pin completion bash > /etc/bash_completion.d/nri-pin          for all users
  nri-pin completion bash > ~/.local/share/bash-completion/completions/nri-pin
  nri-pin completion zsh > "${fpath[1]}/_nri-pin"
  nri-pin completion fish > ~/.config/fish/completions/nri-pin.fish
  source <(nri-pin completion bash)                                 for this shell only

\b
Restart open shells.
"""

_WORD = re.compile(r"[A-Z]+")
_FILES = frozenset({"FILE", "CONFIG", "IN", "OUT", "A", "B"})
"""Metavars of files."""


class _Values(ShellComplete):
    """A completer that also completes values: names of machines, scenarios and containers, files and folders."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Completions of the last word."""
        args = [word for word in args if word != "="]  # bash makes three words of --machine=g
        # click has no public function that finds the parameter; its version is locked, and a test runs a real bash.
        context = shell_completion._resolve_context(self.cli, self.ctx_args, self.prog_name, args)  # noqa: SLF001
        word = "" if incomplete == "=" else incomplete
        found, word = shell_completion._resolve_incomplete(context, args, word)  # noqa: SLF001
        if isinstance(found, click.Parameter) and not incomplete.startswith("-"):
            own = list(values(context, found, word))
            if own:
                return own
        return found.shell_complete(context, word)


class _Bash(_Values, BashComplete):
    """Completion in bash."""


class _Zsh(_Values, ZshComplete):
    """Completion in zsh."""


class _Fish(_Values, FishComplete):
    """Completion in fish."""


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def register() -> None:
    """Register these completers with click."""
    for name, completer in SHELLS.items():
        shell_completion.add_completion_class(completer, name)


def values(context: click.Context, parameter: click.Parameter, incomplete: str) -> Iterator[CompletionItem]:
    """Values of a parameter: known names, and files where no known name has the prefix."""
    words = _expected(context, parameter)
    option = parameter.opts[-1].lstrip("-")
    names: dict[str, str] = {}
    if "MACHINE" in words or option == "machine":
        names |= machine_names()
    if "SCENARIO" in words or option == "scenario":
        names |= scenario_names()
    if "CONTAINER" in words or option == "container":
        names |= container_names(context, whole=option != "container")
        if not any(name.startswith(incomplete) for name in names):
            names |= last_parts(names)
    found = [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]
    if not found and (names or words & _FILES):
        found = [CompletionItem(incomplete, type="file")]
    elif not found and ("DIR" in words or option.endswith("dir")):
        found = [CompletionItem(incomplete, type="dir")]
    yield from found


def _expected(context: click.Context, parameter: click.Parameter) -> set[str]:
    """Metavars of the next value: of `[MACHINE] SCENARIO` both, then the second."""
    ordered = _WORD.findall(parameter.metavar or "")
    given = context.params.get(parameter.name or "")
    count = len(given) if parameter.nargs == -1 and isinstance(given, tuple) else 0
    return set(ordered[count:] or ordered[-1:])


def machine_names() -> dict[str, str]:
    """Machines of the package, by the names of their files."""
    return dict.fromkeys(_shipped("machines", ".yaml"), "")


def scenario_names() -> dict[str, str]:
    """Scenarios of the package."""
    return dict.fromkeys(_shipped("scenarios", ".yaml"), "")


def container_names(context: click.Context, *, whole: bool = True) -> dict[str, str]:
    """Containers of the checkpoint; none where it is absent or cannot be read.

    Args:
        context: of the command; its `--state-dir` or `--state` names the checkpoint.
        whole: `namespace/pod/container`, else only the container's name.
    """
    from nri_plugin.checkpoint.file import DEFAULT_DIR, FILE_NAME, read_checkpoint
    from nri_plugin.model.errors import NriPinError

    said = context.params
    folder = said.get("state_dir") or DEFAULT_DIR
    path = said.get("state_file") or said.get("state") or said.get("path") or os.path.join(folder, FILE_NAME)
    try:
        checkpoint = read_checkpoint(str(path))
    except NriPinError:
        return {}
    if checkpoint is None:
        return {}
    pods = checkpoint.state.pods
    rows = [(pods.get(record.pod_uid), record.name) for record in checkpoint.state.containers.values()]
    names = {f"{pod.namespace}/{pod.name}/{name}" if whole else name for pod, name in rows if pod}
    return dict.fromkeys(sorted(names), "")


def last_parts(names: Iterable[str]) -> dict[str, str]:
    """The parts of `namespace/pod/container` behind a slash that identify one container."""
    parts = [name.split("/", count)[count] for name in names for count in range(1, name.count("/") + 1)]
    return {part: "" for part, count in Counter(parts).items() if count == 1}


def _shipped(folder: str, suffix: str) -> list[str]:
    entries = (resources.files("nri_plugin.simulator") / folder).iterdir()
    return sorted(entry.name.removesuffix(suffix) for entry in entries if entry.name.endswith(suffix))


@click.command(name="completion", epilog=EXAMPLES)
@click.argument("shell", metavar="SHELL", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print a script that makes a shell complete commands, options, machines, scenarios and containers.

    SHELL is bash, zsh or fish.
    """
    completer = SHELLS[shell](click.Command(PROGRAM), {}, PROGRAM, COMPLETION_VARIABLE)
    click.echo(ShellComplete.source(completer))
