"""`kubectl nri-pin`: its command line.

`nodes` makes a table of the cluster. The other commands run the command of `nri-pin` of that name in the pod of the
agent of a node: of the node that is named, or of the node of the pod that is named. Options that this command line does
not know go to that command as they are.

kubectl runs a plugin with all words after its name; its global options, such as `--context`, are among these words.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, ShellComplete

from nri_plugin import __version__
from nri_plugin.cli.kubectl.agents import NAMESPACE, AgentPod, NamedTarget, agent_of, find_agents, target_of
from nri_plugin.cli.kubectl.fleet import ask, ask_all, decoded
from nri_plugin.cli.kubectl.nodes import ANSWER_S, LEGEND, NodeRow, as_facts, cells, node_rows
from nri_plugin.cli.kubectl.transport import ExecAnswer, Kubectl, KubectlError
from nri_plugin.cli.main import CommandEntry, LazyGroup, run_command_line
from nri_plugin.cli.output import NARROW, as_yaml, columns, echo, fold_words, table

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


def common_options(function: F) -> F:
    """Options that may stand before and after the name of a command; the help of the program lists them."""
    for name in reversed(CONNECTION_HELP):
        metavar = "FILE" if name == "kubeconfig" else "NAME"
        function = _common(name, metavar=metavar, help=CONNECTION_HELP[name])(function)
    agents = f"The namespace of the agents; default: {NAMESPACE}. Pods of no other one are asked."
    function = _common("agent-namespace", metavar="NAME", help=agents)(function)
    namespace = "The namespace of the pod; default: that of the context."
    return _common("namespace", "-n", metavar="NAME", help=namespace)(function)


def _common(name: str, *short: str, **settings: Any) -> Callable[[F], F]:
    def add(function: F) -> F:
        is_program = function.__name__ == "group"
        return click.option(
            *short,
            f"--{name}",
            name.replace("-", "_"),
            expose_value=False,
            callback=_kept,
            hidden=not is_program,
            **settings,
        )(function)

    return add


def output_option(*formats: str) -> Callable[[F], F]:
    """`-o`, `--output`, as kubectl has it."""
    return click.option(
        "-o",
        "--output",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format.",
    )


def _option(ctx: click.Context, name: str) -> str:
    return str(ctx.meta.get(f"{META}{name}", ""))


def kubectl_of(ctx: click.Context) -> Kubectl:
    """Return kubectl with the options of the command line."""
    given = ((name, _option(ctx, name)) for name in CONNECTION_HELP)
    return Kubectl(tuple(f"--{name}={value}" for name, value in given if value))


# A command of nri-pin on a node


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """A command of `nri-pin` that runs in the pod of an agent.

    Attributes:
        words: the command.
        summary: its line in the list of commands.
        formats: what `-o` accepts here.
        about: the words that name a pod or container to the command; None where it is about the node.
        examples: of the help.
    """

    words: tuple[str, ...]
    summary: str
    formats: tuple[str, ...]
    about: Callable[[NamedTarget], list[str]] | None
    examples: tuple[str, ...]


def _rows_of_pod(target: NamedTarget) -> list[str]:
    container = ["--container", target.containers[0]] if len(target.containers) == 1 else []
    return ["--namespace", target.namespace, "--pod", target.pod, *container]


def _pod_or_container(target: NamedTarget) -> list[str]:
    return [target.container if len(target.containers) == 1 else f"{target.namespace}/{target.pod}"]


def _one_container(target: NamedTarget) -> list[str]:
    return [target.container]


NODE_COMMANDS: Mapping[str, NodeCommand] = {
    "show": NodeCommand(
        ("state", "show"),
        "List the containers of a node or pod with their CPUs and memory nodes.",
        ("text", "wide", "json", "yaml", "name"),
        _rows_of_pod,
        ("kubectl nri-pin show node/node7", "kubectl nri-pin show db-0 -n shop", "kubectl nri-pin show -A"),
    ),
    "explain": NodeCommand(
        ("explain",),
        "Explain why a container has its CPUs, or was refused.",
        ("text", "json", "yaml"),
        _pod_or_container,
        (
            "kubectl nri-pin explain db-0 -n shop",
            "kubectl nri-pin explain node/node7 --cpu 8 --memory 16Gi",
        ),
    ),
    "who": NodeCommand(
        ("who",),
        "Show who shares cores, caches and memory with a container.",
        ("text", "json", "yaml"),
        _one_container,
        ("kubectl nri-pin who db-0 -n shop -c db", "kubectl nri-pin who node/node7 cache 3"),
    ),
    "noise": NodeCommand(
        ("noise",),
        "Measure what disturbs the exclusive CPUs of a node or container.",
        ("text", "wide", "json", "yaml"),
        _one_container,
        ("kubectl nri-pin noise node/node7", "kubectl nri-pin noise db-0 -n shop -c db --for 30s"),
    ),
    "room": NodeCommand(
        ("room",),
        "Count how many more pods of a shape fit on a node.",
        ("text", "json", "yaml"),
        None,
        (
            "kubectl nri-pin room node/node7 --shape cpu=16,memory=32Gi",
            "kubectl nri-pin room --all-nodes --shape cpu=16,memory=32Gi",
        ),
    ),
    "topology": NodeCommand(
        ("topology",),
        "Draw a node with its containers.",
        ("text", "json", "yaml", "svg"),
        None,
        ("kubectl nri-pin topology node/node7", "kubectl nri-pin topology db-0 -n shop -o svg > node.svg"),
    ),
    "doctor": NodeCommand(
        ("doctor",),
        "Check a node, as far as the pod of its agent sees it.",
        ("text", "json", "yaml"),
        None,
        ("kubectl nri-pin doctor node/node7", "kubectl nri-pin doctor --all-nodes"),
    ),
    "top": NodeCommand(
        ("top",),
        "Watch the containers of a node.",
        ("text", "json"),
        None,
        ("kubectl nri-pin top node/node7", "kubectl nri-pin top --all-nodes --once"),
    ),
}
PASSED_ON = """\
TARGET is node/NODE, pod/POD, NAMESPACE/POD, or a name: of a pod of the namespace, else of a node. Further words and
options go to `nri-pin {}` on the node; its help lists them: nri-pin {} --help.
kubectl nri-pin --help lists the options that choose cluster and namespace.
"""


def node_command(name: str, own: NodeCommand) -> click.Command:
    """The command line of a command that runs on a node."""
    words = " ".join(own.words)

    @click.command(
        name=name,
        help=f"{own.summary}\n\n{PASSED_ON.format(words, words)}",
        epilog=_examples(own.examples),
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
    @output_option(*own.formats)
    @common_options
    @click.pass_context
    def run(
        ctx: click.Context, words: tuple[str, ...], container: str, *, all_nodes: bool, output_format: str
    ) -> int:
        kubectl, namespace = kubectl_of(ctx), _option(ctx, "namespace")
        if all_nodes:
            limits = ("--namespace", namespace) if name == "show" and namespace else ()
            # Agents that went on telling changes would never end the answer.
            once = ("--once",) if name == "top" and "--once" not in words else ()
            asked = _command(own, (*limits, *once, *words), output_format)
            return _on_all(kubectl, _option(ctx, "agent_namespace"), asked, output_format)
        if not words or words[0].startswith("-"):
            raise click.UsageError("name a pod, node/NODE, or --all-nodes", ctx)
        agents = _option(ctx, "agent_namespace")
        target = target_of(kubectl, words[0], namespace, container, agents)
        about = own.about(target) if own.about and target.pod else []
        agent = agent_of(kubectl, target.node, agents)
        if agent.unready:
            echo(f"{PROGRAM}: the agent of node {agent.node} is not ready: {agent.unready}", err=True)
        return _on_one(kubectl, agent, _command(own, (*about, *words[1:]), output_format), output_format)

    return run


def _examples(lines: Sequence[str]) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _command(own: NodeCommand, words: Sequence[str], output_format: str) -> tuple[str, ...]:
    """The words of `nri-pin` on the node."""
    wide = ("--wide",) if own.words == ("state", "show") else ("-o", "wide")
    by_format: Mapping[str, tuple[str, ...]] = {
        "text": (),
        "wide": wide,
        "json": ("-o", "json"),
        "yaml": ("-o", "json"),
        "name": ("-o", "json"),
    }
    return (*own.words, *words, *by_format.get(output_format, ("-o", output_format)))


def _on_one(kubectl: Kubectl, agent: AgentPod, words: Sequence[str], output_format: str) -> int:
    """Run a command on one node; its exit code is ours."""
    program = (*_wide_as_here(), "nri-pin", *words)
    if output_format in {"yaml", "name"}:
        answer = kubectl.execute(agent.words, program)
        if answer.output.strip():
            echo(_converted(decoded(answer.output, dict[str, Any]), output_format))
    else:
        watches = words[0] == "top" and "--once" not in words and output_format == "text"
        has_terminal = watches and sys.stdin.isatty() and sys.stdout.isatty()
        answer = kubectl.execute(agent.words, program, captures=False, has_terminal=has_terminal)
    if answer.complaint:
        echo(answer.complaint, err=True)
    return answer.code


def _wide_as_here() -> tuple[str, ...]:
    """A pod does not know the width of this terminal."""
    width = columns()
    return () if width is None else ("env", f"COLUMNS={width}")


def _on_all(kubectl: Kubectl, namespace: str, words: Sequence[str], output_format: str) -> int:
    """Run a command on all nodes that have an agent; 1 where it failed on one of them."""
    agents = find_agents(kubectl, namespace)
    if not agents:
        raise KubectlError(
            "no node has a pod of the agent; helm list -A, or kubectl get nodes -l nri-pin/enabled"
        )
    program = (*_wide_as_here(), "nri-pin", *words)
    answers = ask_all(agents, lambda agent: kubectl.execute(agent.words, program))
    if output_format in {"text", "wide", "svg"}:
        echo("\n\n".join(_section(node, answer) for node, answer in answers.items()))
        return max(1 if isinstance(one, KubectlError) else one.code for one in answers.values())
    items = [_item(node, answer) for node, answer in answers.items()]
    echo(_converted({"items": items}, output_format))
    return max(int(item["exit_code"]) for item in items)


def _section(node: str, answer: ExecAnswer | KubectlError) -> str:
    said = f"error: {answer.message}" if isinstance(answer, KubectlError) else _said(answer)
    return f"node/{node}\n{said}"


def _said(answer: ExecAnswer) -> str:
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


def _converted(facts: Any, output_format: str) -> str:
    """Facts as JSON, as YAML, or the names of the pods in them."""
    if output_format == "name":
        reports = [one.get("answer", {}) for one in facts["items"]] if "items" in facts else [facts]
        names = (f"pod/{pod['pod']}" for report in reports for pod in report.get("pods", []) if pod["pod"])
        return "\n".join(names)
    if output_format == "yaml":
        return as_yaml(facts)
    return json.dumps(facts, indent=2)


# The table of nodes


@click.command(
    name="nodes",
    context_settings=SETTINGS,
    epilog=LEGEND
    + "\n\n"
    + _examples(
        (
            "kubectl nri-pin nodes",
            "kubectl nri-pin nodes --shape cpu=16,memory=32Gi    which node has room for such a pod",
            "kubectl nri-pin nodes node7 -o wide",
            "kubectl nri-pin nodes -o json | jq '.items[] | select(.health != \"OK\")'",
        )
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
@output_option("text", "wide", "json", "yaml", "name")
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
    _show(rows, output_format)
    while watch:
        sleep(AGAIN_S)
        before, rows = rows, node_rows(kubectl, _option(ctx, "agent_namespace"), wanted, shapes)
        _show([row for row in rows if row not in before], output_format, is_first=False)
    return int(any(row.version is None or row.drifts is None for row in rows if row.agent))


def _show(rows: Sequence[NodeRow], output_format: str, *, is_first: bool = True) -> None:
    if output_format == "name":
        lines = [f"node/{row.node}" for row in rows]
    elif output_format in {"json", "yaml"}:
        lines = (
            [_converted({"items": [as_facts(row) for row in rows]}, output_format)]
            if rows or is_first
            else []
        )
    elif rows:
        # Never folded, as kubectl's own tables: other programs cut their columns.
        lines = table(cells(rows, wide=output_format == "wide"), None)[0 if is_first else 1 :]
        notes = (f"{row.node}: {row.detail}" for row in rows if row.detail)
        lines += [part for note in notes for part in fold_words(note, columns() or NARROW, "  ")]
    else:
        lines = ["no node has an agent or a NodeResourceTopology object"] if is_first else []
    if lines:
        echo("\n".join(lines))
        sys.stdout.flush()


@click.command(
    name="version",
    context_settings=SETTINGS,
    epilog=_examples(("kubectl nri-pin version", "kubectl nri-pin version -o json")),
)
@output_option("text", "json", "yaml")
@common_options
@click.pass_context
def version(ctx: click.Context, output_format: str) -> int:
    """Print the version of this program, and of the agent of each node.

    Exit code: 0; 1 when an agent cannot be asked.
    """
    kubectl = kubectl_of(ctx)
    agents = find_agents(kubectl, _option(ctx, "agent_namespace"))
    answers = ask_all(agents, lambda agent: ask(kubectl, agent, ("--version",), ANSWER_S))
    found = {
        node: {"error": one.message}
        if isinstance(one, KubectlError)
        else {"version": one.rpartition(" ")[2].strip()}
        for node, one in answers.items()
    }
    if output_format != "text":
        echo(_converted({"client": __version__, "agents": found}, output_format))
    else:
        lines = [("client", __version__)]
        lines += [
            (f"node/{node}", f"error: {one['error']}" if "error" in one else one["version"])
            for node, one in found.items()
        ]
        echo("\n".join(table(lines, columns() or NARROW, {1})))
    return int(any("error" in one for one in found.values()))


@click.command(
    name="help",
    context_settings=SETTINGS,
    epilog=_examples(("kubectl nri-pin help", "kubectl nri-pin help nodes")),
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


COMMANDS: Mapping[str, CommandEntry] = {
    "nodes": CommandEntry(f"{__name__}:nodes", "List nodes with policy, version, health and room."),
    **{name: CommandEntry(f"{__name__}:{name}", own.summary) for name, own in NODE_COMMANDS.items()},
    "version": CommandEntry(f"{__name__}:version", "Print the versions of this program and of the agents."),
    "help": CommandEntry(f"{__name__}:help_command", "Show the help of a command."),
}

show, explain, who, noise, room, topology, doctor, top = (
    node_command(name, own) for name, own in NODE_COMMANDS.items()
)


@click.command(
    name="kubectl-nri_pin",
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings=SETTINGS,
    no_args_is_help=True,
    epilog=_examples(
        (
            "kubectl nri-pin nodes",
            "kubectl nri-pin nodes --shape cpu=16,memory=32Gi",
            "kubectl nri-pin show db-0 -n shop",
            "kubectl nri-pin explain db-0 -n shop",
            "kubectl nri-pin doctor --all-nodes",
        )
    ),
)
@common_options
def group() -> None:
    """Show and explain, from where kubectl works, what nri-pin does on the nodes of a cluster."""
