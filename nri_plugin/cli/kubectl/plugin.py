"""`kubectl nri-pin`: its command line.

`nodes` makes a table of the cluster. Every other command is the command of `nri-pin` of that name: it runs in the pod of the
agent of a node, which the user names by itself or by one of its pods. All further words and options go to it as they are,
so a command that is new in the table of `nri-pin` needs nothing here.

kubectl runs a plugin with all words after its name; its global options, such as `--context`, are among these words.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from time import sleep
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, ShellComplete

from nri_plugin import __version__
from nri_plugin.cli import main
from nri_plugin.cli.kubectl.agents import (
    NAMESPACE,
    AgentPod,
    agent_of,
    ask_all,
    decoded,
    find_agents,
    target_of,
)
from nri_plugin.cli.kubectl.nodes import LEGEND, NodeRow, cells, node_rows
from nri_plugin.cli.kubectl.transport import ExecAnswer, Kubectl, KubectlError
from nri_plugin.cli.main import CommandEntry, LazyGroup, run_command_line
from nri_plugin.cli.output import (
    CALLED_AS,
    CALLED_ON,
    FOR_PROGRAMS,
    UNLIMITED,
    columns,
    echo,
    format_option,
    render,
    table,
)
from nri_plugin.cli.state import state

PROGRAM = "kubectl nri-pin"
SETTINGS: Mapping[str, Any] = {"help_option_names": ["-h", "--help"]}
AGAIN_S = 10.0
"""Pause of `nodes -w` between two questions to all agents."""

META = "nri_plugin.cli.kubectl."
F = TypeVar("F", bound=Callable[..., Any])


def _kept(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep an option that may stand before and after the name of the command."""
    if value:
        ctx.meta[f"{META}{param.name}"] = value


CONNECTION_HELP = {
    "context": "The context of the kubeconfig file.",
    "kubeconfig": "The kubeconfig file.",
    "cluster": "The cluster of the kubeconfig file.",
    "user": "The user of the kubeconfig file.",
    "as": "The user to impersonate.",
}
"""Options of kubectl that choose cluster and user; they are passed on as they are."""
COMMON_HELP = {
    "namespace": "The namespace of the pod; default: that of the context.",
    "agent-namespace": f"The namespace of the agents; default: {NAMESPACE}. Pods of no other one are asked.",
    **CONNECTION_HELP,
}


def common_options(function: F) -> F:
    """Options that may stand before and after the name of a command; the help of the program lists them."""
    for name, text in reversed(COMMON_HELP.items()):
        function = click.option(
            *(("-n",) if name == "namespace" else ()),
            f"--{name}",
            name.replace("-", "_"),
            metavar="FILE" if name == "kubeconfig" else "NAME",
            help=text,
            expose_value=False,
            callback=_kept,
            hidden=function.__name__ != "group",
        )(function)
    return function


def _option(ctx: click.Context, name: str) -> str:
    return str(ctx.meta.get(f"{META}{name}", ""))


def kubectl_of(ctx: click.Context) -> Kubectl:
    """Return kubectl with the options of the command line."""
    given = ((name, _option(ctx, name)) for name in CONNECTION_HELP)
    return Kubectl(tuple(f"--{name}={value}" for name, value in given if value))


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {PROGRAM} {line}" for line in lines)


# A command of nri-pin on a node


FOLLOWS = {"-f", "--follow", "--live"}
"""Options by which a command goes on until it is interrupted."""

PASSED_ON = """\
TARGET is node/NODE, pod/POD, NAMESPACE/POD, or a name: of a pod of the namespace, else of a node. Further words and
options go to `nri-pin {0}` on the node; its help lists them: nri-pin {0} --help. Options that kubectl has too, such as
-n, need their long form for that. kubectl nri-pin --help lists the options that choose cluster and namespace.
"""


def node_command(name: str, entry: CommandEntry) -> click.Command:
    """The command line of a command that runs on a node."""
    command = f"state {name}" if name in state.COMMANDS else name

    @click.command(
        name=name,
        help=f"{entry.summary}\n\n{PASSED_ON.format(command)}",
        epilog=_examples(f"{name} node/node7", f"{name} db-0 -n shop", f"{name} --all-nodes"),
        context_settings={**SETTINGS, "ignore_unknown_options": True},
    )
    @click.argument(
        "words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [WORD]...", shell_complete=_targets
    )
    @click.option("-c", "--container", metavar="NAME", default="", help="The container of the pod.")
    @click.option(
        "--all-nodes",
        "-A",
        "--all-namespaces",
        "all_nodes",
        is_flag=True,
        help="Ask the agents of all nodes, several at a time.",
    )
    @click.option("-o", "--output", "output_format", metavar="FORMAT", default="", help="Output format.")
    @common_options
    @click.pass_context
    def run(
        ctx: click.Context, words: tuple[str, ...], container: str, *, all_nodes: bool, output_format: str
    ) -> int:
        kubectl, namespace = kubectl_of(ctx), _option(ctx, "namespace")
        agents = _option(ctx, "agent_namespace")
        program = [*command.split()]
        if all_nodes:
            if FOLLOWS & {*words}:
                raise click.UsageError(
                    "an answer without an end needs one node: name a pod or node/NODE", ctx
                )
            if namespace and entry.names_pod is not None:
                program += [*entry.names_pod, f"{namespace}/*"]
            if name == "top" and "--once" not in words:
                program.append("--once")  # an agent that goes on would never end the answer
            return _on_all(ctx, find_agents(kubectl, agents), [*program, *words], output_format)
        if not words or words[0].startswith("-"):
            raise click.UsageError("name a pod, node/NODE, or --all-nodes", ctx)
        target = target_of(kubectl, words[0], namespace, container, agents)
        if target.pod and entry.names_pod is not None:
            program += [*entry.names_pod, target.path]
        agent = agent_of(kubectl, target.node, agents)
        if agent.unready:
            echo(f"{PROGRAM}: the agent of node {agent.node} is not ready: {agent.unready}", err=True)
        given = ["-o", output_format] if output_format else []
        has_screen = not given and ("--live" in words or (name == "top" and "--once" not in words))
        answer = kubectl.execute(
            agent.words,
            _as_here(ctx, agent, [*program, *words[1:], *given]),
            captures=False,
            has_terminal=has_screen and sys.stdin.isatty() and sys.stdout.isatty(),
        )
        if answer.complaint:
            echo(answer.complaint, err=True)
        return answer.code

    return run


def _as_here(ctx: click.Context, agent: AgentPod, words: Sequence[str]) -> list[str]:
    """The program in the pod, which knows neither the width of this terminal nor how the user came to it."""
    width = columns()
    names = (*CONNECTION_HELP, "agent-namespace")
    given = [f"--{name}={value}" for name in names if (value := _option(ctx, name.replace("-", "_")))]
    return [
        "env",
        *([] if width == UNLIMITED else [f"COLUMNS={width}"]),
        f"{CALLED_AS}={PROGRAM} {shlex.join(given)}".rstrip(),
        f"{CALLED_ON}=node/{agent.node}",
        "nri-pin",
        *words,
    ]


def _on_all(
    ctx: click.Context, agents: Mapping[str, AgentPod], words: Sequence[str], output_format: str
) -> int:
    """Run a command on all nodes that have an agent; 1 where it failed on one of them."""
    if not agents:
        raise KubectlError(
            "no node has a pod of the agent; helm list -A, or kubectl get nodes -l nri-pin/enabled"
        )
    for_programs = output_format in FOR_PROGRAMS
    given = ["-o", "json" if for_programs else output_format] if output_format else []
    kubectl = kubectl_of(ctx)
    answers = ask_all(
        agents, lambda agent: kubectl.execute(agent.words, _as_here(ctx, agent, [*words, *given]))
    )
    if for_programs:
        items = [_item(node, answer) for node, answer in answers.items()]
        echo(render({"items": items}, output_format))
        return max(int(item["exit_code"]) for item in items)
    if output_format == "name":
        echo("\n".join(said for answer in answers.values() if (said := _said(answer))))
    else:
        echo("\n\n".join(f"node/{node}\n{_said(answer)}" for node, answer in answers.items()))
    return max(1 if isinstance(one, KubectlError) else one.code for one in answers.values())


def _said(answer: ExecAnswer | KubectlError) -> str:
    if isinstance(answer, KubectlError):
        return f"error: {answer.message}"
    return "\n".join(part for part in (answer.output.rstrip(), answer.complaint) if part)


def _item(node: str, answer: ExecAnswer | KubectlError) -> dict[str, Any]:
    if isinstance(answer, KubectlError):
        return {"node": node, "exit_code": 1, "error": answer.message}
    if not answer.output.strip():
        return {"node": node, "exit_code": answer.code, "error": answer.complaint}
    try:
        return {"node": node, "exit_code": answer.code, "answer": decoded(answer.output, dict[str, Any])}
    except KubectlError as error:
        return {"node": node, "exit_code": answer.code or 1, "error": error.message}


# The table of nodes


@click.command(
    name="nodes",
    context_settings=SETTINGS,
    epilog=LEGEND
    + "\n\n"
    + _examples(
        "nodes",
        "nodes --shape cpu=16,memory=32Gi    which node has room for such a pod",
        "nodes node7 -o wide",
        "nodes -o json | jq '.items[] | select(.health != \"OK\")'",
    ),
)
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=lambda ctx, _, word: _nodes(ctx, word))
@click.option(
    "--shape",
    "shapes",
    metavar="NAME=AMOUNT,...",
    multiple=True,
    help="Also count how many more pods of this shape fit: cpu=4,memory=8Gi. Give it once for each shape.",
)
@click.option("-w", "--watch", is_flag=True, help="Ask again every 10 seconds, and print rows that changed.")
@click.option(
    "-A",
    "--all-nodes",
    "--all-namespaces",
    "_all",
    is_flag=True,
    expose_value=False,
    help="All nodes, the default.",
)
@format_option("text", "wide", "json", "name")
@common_options
@click.pass_context
def nodes(
    ctx: click.Context, names: tuple[str, ...], shapes: tuple[str, ...], *, watch: bool, output_format: str
) -> int:
    """List the nodes that have an agent, with policy, version, health, room, fragmentation, drifts and incomplete pods.

    Reads the pods of the agents and the NodeResourceTopology objects, and asks each agent through kubectl exec, several
    at a time.

    Exit code: 0; 1 when the cluster cannot be read, or an agent cannot be asked.
    """
    kubectl, wanted = kubectl_of(ctx), [name.removeprefix("node/") for name in names]
    rows = node_rows(kubectl, _option(ctx, "agent_namespace"), wanted, shapes)
    if rows or output_format in FOR_PROGRAMS:
        _show(rows, output_format)
    elif output_format != "name":
        echo("no node has an agent or a NodeResourceTopology object")
    while watch:
        sleep(AGAIN_S)
        before, rows = rows, node_rows(kubectl, _option(ctx, "agent_namespace"), wanted, shapes)
        if changed := [row for row in rows if row not in before]:
            _show(changed, output_format, has_head=False)
    return int(any(row.version is None or row.drifts is None for row in rows if row.agent))


def _show(rows: Sequence[NodeRow], output_format: str, *, has_head: bool = True) -> None:
    if output_format == "name":
        lines = [f"node/{row.node}" for row in rows]
    elif output_format in FOR_PROGRAMS:
        lines = [render({"items": rows}, output_format)]
    else:
        lines = table(cells(rows, wide=output_format == "wide"))[0 if has_head else 1 :]
        lines += [f"{row.node}: {row.detail}" for row in rows if row.detail]
    echo("\n".join(lines))
    sys.stdout.flush()


@click.command(
    name="help",
    context_settings=SETTINGS,
    epilog=_examples("help", "help nodes"),
)
@click.argument("words", nargs=-1, metavar="[COMMAND]")
def help_command(words: tuple[str, ...]) -> int:
    """Show the help of a command."""
    return run_command_line([*words, "--help"], group, PROGRAM)


# Completion


def _targets(ctx: click.Context, _param: click.Parameter, word: str) -> list[CompletionItem]:
    """Pods of the namespace, and `node/NODE`; nothing where the cluster does not answer."""
    if ctx.params.get("words"):
        return []
    if word.startswith("node/"):
        return [CompletionItem(f"node/{one.value}") for one in _nodes(ctx, word.removeprefix("node/"))]
    namespace = _option(ctx, "namespace")
    try:
        found = kubectl_of(ctx).read("pods", *(("--namespace", namespace) if namespace else ()))["items"]
    except KubectlError:
        return []
    names = (pod["metadata"]["name"] for pod in found)
    return [CompletionItem(name) for name in ("node/", *names) if name.startswith(word)]


def _nodes(ctx: click.Context, word: str) -> list[CompletionItem]:
    try:
        found = find_agents(kubectl_of(ctx), _option(ctx, "agent_namespace"))
    except KubectlError:
        return []
    return [CompletionItem(node) for node in sorted(found) if node.startswith(word)]


DIRECTIVE_NO_FILES = 4
"""Source: cobra's ShellCompDirectiveNoFileComp; kubectl reads it after a colon from the last line."""


def complete(words: Sequence[str]) -> str:
    """What kubectl wants from `kubectl_complete-nri_pin`: a completion on each line, and a directive.

    Args:
        words: those after `kubectl nri-pin`; the last one is to be completed.
    """
    *before, word = words or ("",)
    found = ShellComplete(group, {}, PROGRAM, "").get_completions(list(before), word)
    lines = [f"{one.value}\t{one.help}" if one.help else str(one.value) for one in found]
    return "\n".join([*lines, f":{DIRECTIVE_NO_FILES}"])


# The table of commands


OWN: Mapping[str, CommandEntry] = {
    "nodes": CommandEntry(f"{__name__}:nodes", "List nodes with policy, version, health and room."),
    "help": CommandEntry(f"{__name__}:help_command", "Show the help of a command."),
}
ON_NODE: Mapping[str, CommandEntry] = {
    name: entry
    for name, entry in {**state.COMMANDS, **main.COMMANDS}.items()
    if entry.is_about_node and name not in OWN
}


class PluginGroup(LazyGroup):
    """The commands of this program, and those of `nri-pin` that are about a node with an agent."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        entry = ON_NODE.get(cmd_name)
        return node_command(cmd_name, entry) if entry else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word; `state show` is `show`."""
        is_of_state = len(args) > 1 and args[0] == "state" and args[1] in ON_NODE
        return super().resolve_command(ctx, args[1:] if is_of_state else args)


@click.command(
    name="kubectl-nri_pin",
    cls=PluginGroup,
    entries={"nodes": OWN["nodes"], **ON_NODE, **OWN},
    context_settings=SETTINGS,
    no_args_is_help=True,
    epilog=_examples(
        "nodes",
        "nodes --shape cpu=16,memory=32Gi",
        "show db-0 -n shop",
        "explain db-0 -n shop",
        "history node/node7 --since 1h",
        "doctor --all-nodes",
    ),
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@common_options
def group() -> None:
    """Show and explain, from where kubectl works, what nri-pin does on the nodes of a cluster.

    Every command but `nodes` and `help` is that of `nri-pin`, run in the pod of the agent of one node.
    """
