"""`nri-pin doctor`: whether this node meets the requirements of placements, and how to correct it."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import click

from nri_plugin.cli.doctor.findings import Finding, NextStep, Verdict
from nri_plugin.cli.output import columns, echo, format_option, waiting, wants_colour
from nri_plugin.model.bounds import visible

Groups = Mapping[str, Sequence[Finding]]

EXAMPLES = """\b
Examples:
  nri-pin doctor                                 on a node, as root
  nri-pin doctor --config ./config.yaml          before the agent is started with it
  nri-pin doctor --root /host                    in a pod that has the node's files there
  nri-pin doctor -o json | jq '.checks[] | select(.verdict == "TO DO")'

\b
Verdicts:
  OK           correct
  TO DO        wrong; the next step follows
  ADVICE       correct; something could be better
  not visible  the evidence cannot be seen from here; names the mount that would show it; never OK
"""

LABELS = {Verdict.OK: "OK", Verdict.TO_DO: "TO DO", Verdict.ADVICE: "ADVICE", Verdict.NOT_VISIBLE: "?"}
COLOURS = {
    Verdict.OK: "green",
    Verdict.TO_DO: "red",
    Verdict.ADVICE: "yellow",
    Verdict.NOT_VISIBLE: "magenta",
}
WORDS = {
    Verdict.OK: "OK",
    Verdict.TO_DO: "to do",
    Verdict.ADVICE: "with advice",
    Verdict.NOT_VISIBLE: "not visible",
}
INDENT = " " * 9
STEP_INDENT = INDENT + " " * 4
WHOLE_NODE = "kubectl debug node/NODE -it --profile=sysadmin --image=IMAGE -- nri-pin doctor --root /host"
"""A temporary pod that has the whole node below /host."""


@click.command(name="doctor", epilog=EXAMPLES)
@click.option(
    "--root",
    metavar="DIR",
    help="The directory of the node's root file system, or of a part of it.  [default: /host if it holds sys, else /]",
)
@click.option(
    "--config", metavar="FILE", help="The agent's configuration.  [default: that of the agent that runs]"
)
@click.option(
    "--runtime-config",
    metavar="FILE",
    help="The runtime's main file, on the node.  [default: as it was started, else where it usually is]",
)
@click.option("--state-dir", metavar="DIR", help="The agent's state directory.  [default: as configured]")
@click.option(
    "--strict", is_flag=True, help="Exit with 1 also on advice and on evidence that is not visible."
)
@format_option()
@click.pass_context
def command(
    context: click.Context,
    root: str | None,
    config: str | None,
    runtime_config: str | None,
    state_dir: str | None,
    *,
    strict: bool,
    output_format: str,
) -> None:
    """Check whether this node meets the requirements of placements, and say how to correct it.

    Nothing is changed. Exit code: 0 nothing to do, 1 something to do, 2 wrong usage.
    """
    if root is not None and not os.path.isdir(root):
        raise click.UsageError(
            f"--root {root}: there is no such directory; give the one that holds the node's files"
        )
    with waiting("looking at the node"):
        groups = examine(root, config or "", runtime_config or "", state_dir or "")
    if output_format == "json":
        echo(as_json(groups, strict=strict))
    else:
        echo("\n".join(as_text(groups, columns(), colour=wants_colour())), styled=True)
    context.exit(exit_code(groups, strict=strict))


def examine(root: str | None, config: str, runtime_config: str, state_dir: str) -> Groups:
    """Collect the evidence and judge it."""
    from nri_plugin.cli.doctor import agent, kubelet, machine, runtime
    from nri_plugin.cli.doctor.evidence import Asked, collect
    from nri_plugin.cli.doctor.node_evidence import NodeView, is_in_pod
    from nri_plugin.config.checks import HOST_MOUNT, present

    place = root or next(present(HOST_MOUNT, "/sys/devices/system/cpu"), "/")
    view = NodeView(place, in_pod=is_in_pod())
    if runtime_config and view.text(runtime_config) is None:
        raise click.UsageError(
            f"--runtime-config {runtime_config}: the node has no such file; leave it out to look for it"
        )
    seen = collect(view, Asked(config, runtime_config, state_dir))
    return {
        "container runtime": tuple(runtime.judge(seen.runtime)),
        "kubelet": tuple(kubelet.judge(seen.kubelet)),
        "cgroups": tuple(machine.judge_cgroups(seen.cgroups)),
        "kernel and machine": tuple(machine.judge_kernel(seen.kernel)),
        "agent": tuple(agent.judge(seen.agent)),
    }


def exit_code(groups: Groups, *, strict: bool) -> int:
    """0 when there is nothing to do; evidence that is not visible counts only with `strict`."""
    bad = {Verdict.TO_DO, Verdict.ADVICE, Verdict.NOT_VISIBLE} if strict else {Verdict.TO_DO}
    return int(any(finding.verdict in bad for found in groups.values() for finding in found))


def as_text(groups: Groups, width: int | None, *, colour: bool) -> Iterator[str]:
    """A paragraph for each group, and a line that sums up. Commands are never broken, so that they can be pasted."""
    for group, found in groups.items():
        yield group
        for finding in found:
            yield from _lines(finding, width, colour=colour)
        yield ""
    yield summary(groups)
    mounts = sorted({finding.mount for found in groups.values() for finding in found if finding.mount})
    if mounts:
        yield from _wrapped(
            f"To see the rest, mount {', '.join(mounts)} of the node, or, in a cluster:", width, indent=0
        )
        yield f"  {WHOLE_NODE}"


def summary(groups: Groups) -> str:
    """How many of each."""
    counts = count(groups)
    words = [f"{number} {WORDS[verdict]}" for verdict, number in counts.items() if number]
    return f"{sum(counts.values())} checks: {', '.join(words)}"


def count(groups: Groups) -> dict[Verdict, int]:
    """How many findings have each verdict."""
    verdicts = [finding.verdict for found in groups.values() for finding in found]
    return {verdict: verdicts.count(verdict) for verdict in Verdict}


def _lines(finding: Finding, width: int | None, *, colour: bool) -> Iterator[str]:
    label = f"{LABELS[finding.verdict]:<6}"
    if colour:
        label = click.style(label, fg=COLOURS[finding.verdict], bold=finding.verdict is Verdict.TO_DO)
    if finding.verdict is Verdict.NOT_VISIBLE:
        text = f"{finding.check}: not visible: {finding.do} ({finding.says})"
    else:
        text = f"{finding.check}: {finding.says}"
    first, *rest = map(visible, _wrapped(text, width))
    yield f"  {label} {first}"
    yield from (INDENT + line for line in rest)
    if finding.verdict is Verdict.NOT_VISIBLE or not finding.do:
        return
    follows = ":" if finding.command or finding.steps else ""
    yield from (INDENT + visible(line) for line in _wrapped(f"-> {finding.do}{follows}", width))
    if finding.command:
        yield f"{INDENT}   {visible(finding.command)}"
    for number, step in enumerate(finding.steps, 1):
        yield from _step(number, step, width)


def _step(number: int, step: NextStep, width: int | None) -> Iterator[str]:
    label = f"{number}."
    first, *rest = _wrapped(step.do + (":" if step.command else ""), width, len(STEP_INDENT))
    yield f"{INDENT}{label:<{len(STEP_INDENT) - len(INDENT)}}{visible(first)}"
    yield from (STEP_INDENT + visible(line) for line in rest)
    if step.command:
        yield f"{STEP_INDENT}   {visible(step.command)}"
    if step.undo:
        yield f"{STEP_INDENT}if it fails:"
        yield f"{STEP_INDENT}   {visible(step.undo)}"


def _wrapped(text: str, width: int | None, indent: int = len(INDENT)) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width - indent, 20), break_long_words=False, break_on_hyphens=False)


def as_json(groups: Groups, *, strict: bool) -> str:
    """Everything, for programs."""
    checks = [{"group": group} | asdict(finding) for group, found in groups.items() for finding in found]
    counts = {verdict.value: number for verdict, number in count(groups).items()}
    return json.dumps(
        {"exit_code": exit_code(groups, strict=strict), "counts": counts, "checks": checks}, indent=2
    )
