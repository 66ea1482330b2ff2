"""`nri-pin simulate`: try pods on a described machine; needs neither pods nor machine."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from nri_plugin.cli.output import (
    FOR_PROGRAMS,
    columns,
    echo,
    format_option,
    output_encoding,
    render,
    table,
    told,
    waiting,
)
from nri_plugin.cli.simulate.text import comparison_text, simulation_text
from nri_plugin.cli.topology.machine_view import summary
from nri_plugin.cli.topology.picture import in_encoding
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.simulator.machine.source import SourcedMachine, described_machine, read_machine
from nri_plugin.simulator.simulate.comparison import (
    PodOrder,
    SimulationComparison,
    compare,
    ordered,
    other_orders,
)
from nri_plugin.simulator.simulate.config import Chosen, choose, parse_sets
from nri_plugin.simulator.simulate.plan import PodPlan, read_plan, shipped_scenarios
from nri_plugin.simulator.simulate.rows import read_shape
from nri_plugin.simulator.simulate.simulate import simulate
from nri_plugin.simulator.simulate.simulation import FORMAT, Simulation

EXIT_PROBLEMS = 1

EPILOG = """\b
Examples:
  nri-pin simulate inference
  nri-pin simulate gb200-34-numa pods.yaml
  nri-pin simulate kep693-8-gpus pods.yaml --policy single-numa-node
  nri-pin simulate laptop deployment.yaml --shape cpu=2,memory=1Gi
  nri-pin simulate node7.xml pods.yaml --config a.yaml --compare b.yaml
  kubectl get pods -A -o json | nri-pin simulate node7.json - --node node7
  nri-pin simulate telco --compare topologyManagerPolicy=restricted --html report.html
  nri-pin simulate hpc --order large-first --repeat 20
  nri-pin simulate --list

\b
MACHINE is a name of nri-pin topology --list, a description, a recorded machine,
what nri-pin topology -o json printed on a node, or XML of lstopo; left out where
the scenario names one; - is standard input. SCENARIO is Kubernetes manifests
(YAML or JSON, also as kubectl prints them), the steps of hack/demo, or a list:
  - {pod: db, cpu: 4, memory: 8Gi, count: 20}
  - {pod: infer, cpu: 8, memory: 32Gi, nvidia.com/gpu: 1}
  - {pod: web, requests: {cpu: 250m}, limits: {cpu: 1}}
Exit code: 0, also where pods are refused; 1 when an expectation of the scenario is
not met; 2 for wrong usage.
"""


@click.command(epilog=EPILOG)
@click.argument("words", nargs=-1, metavar="[MACHINE] SCENARIO")
@click.option("--config", metavar="FILE", help="The agent's configuration to decide by.")
@click.option(
    "--compare",
    "compared_with",
    metavar="FILE|KEY=VALUE,...",
    help="Simulate again with this configuration, and show the differences.",
)
@click.option(
    "--policy",
    type=click.Choice(("none", "best-effort", "restricted", "single-numa-node")),
    help="Overrides topologyManagerPolicy of the configuration.",
)
@click.option("--scope", type=click.Choice(("container", "pod")), help="Overrides topologyManagerScope.")
@click.option(
    "--set",
    "sets",
    metavar="KEY=VALUE",
    multiple=True,
    help="Replace a key of the configuration, or name a policy option alone: full-pcpus-only=true, or a feature gate: "
    "featureGates.NAME=true. The policy options of a manager, and the gates, are replaced altogether.",
)
@click.option(
    "--shape",
    "shapes",
    metavar="NAME=AMOUNT,...",
    multiple=True,
    help="Also show how many more pods of this shape fit: cpu=4,memory=8Gi,nvidia.com/gpu=1.",
)
@click.option(
    "--order",
    type=click.Choice(("file", "large-first", "small-first", "shuffle")),
    default="file",
    show_default=True,
    help="The order in which pods arrive.",
)
@click.option(
    "--seed", type=int, metavar="N", default=0, show_default=True, help="Seed of the first shuffle."
)
@click.option(
    "--repeat", type=click.IntRange(1, 1000), metavar="N", help="Also show the results of so many shuffles."
)
@click.option(
    "--node", metavar="NAME", default="", help="Only the pods of this node, where pods come from manifests."
)
@click.option("--html", metavar="FILE", help="Also write a report to open in a browser.")
@click.option("--list", "wants_list", is_flag=True, help="List the scenarios that come with nri-pin.")
@format_option("text", "json")
def command(
    words: tuple[str, ...],
    config: str | None,
    compared_with: str | None,
    policy: str | None,
    scope: str | None,
    sets: tuple[str, ...],
    shapes: tuple[str, ...],
    order: str,
    seed: int,
    repeat: int | None,
    node: str,
    html: str | None,
    wants_list: bool,
    output_format: str,
) -> int:
    """Try pods on a machine: placements, refusals with their reasons, and the capacity that is left.

    The decisions are those of the agent. No node is needed, nothing is started and nothing is changed.
    """
    if wants_list:
        echo(_list(output_format))
        return 0
    machine, plan = _read(words, node)
    if order != "file":
        plan = ordered(plan, PodOrder(order), seed)
    given = _sets(policy, scope, sets)
    choices = _choices(machine, plan, config, given, compared_with)
    simulations = _simulated(machine, plan, choices, shapes)
    if repeat is not None:
        is_shuffled = order == "shuffle"
        seeds = range(seed + is_shuffled, seed + is_shuffled + repeat)
        own = seed if is_shuffled else None
        simulations = _with_orders(simulations, machine, plan, choices, seeds, own)
    comparison = compare(*simulations) if len(simulations) == 2 else None
    if html is not None:
        _write_report(html, machine, simulations, comparison)
    if output_format in FOR_PROGRAMS:
        echo(render(as_dict(simulations, comparison), output_format))
    else:
        _print_text(simulations, comparison)
    if html is not None:
        echo(f"report written to {html}", err=True)
    return EXIT_PROBLEMS if any(one.totals.problems for one in simulations) else 0


def as_dict(simulations: Sequence[Simulation], comparison: SimulationComparison | None) -> dict[str, Any]:
    """The value that `-o json` prints."""
    return {
        "format": FORMAT,
        "simulations": simulations,
        "comparison": comparison,
    }


def _read(words: Sequence[str], node: str) -> tuple[SourcedMachine, PodPlan]:
    if not words or len(words) > 2:
        raise click.UsageError(
            "name a machine and a scenario, such as nri-pin simulate laptop pods.yaml"
            if not words
            else f"expected MACHINE and SCENARIO, found {len(words)} words"
        )
    if words[:-1] == ("-",) and words[-1] == "-":
        raise click.UsageError("only one of MACHINE and SCENARIO can be standard input; write one to a file")
    plan = read_plan(words[-1], node)
    if len(words) == 2:
        return read_machine(words[0]), plan
    if not plan.machine:
        raise click.UsageError(f"{plan.file} names no machine; put one before it, such as laptop {words[0]}")
    return described_machine(plan.machine, plan.file), replace(plan, machine="")


def _sets(policy: str | None, scope: str | None, sets: Sequence[str]) -> dict[str, str]:
    short = {"topologyManagerPolicy": policy, "topologyManagerScope": scope}
    return {key: value for key, value in short.items() if value is not None} | parse_sets(sets)


def _choices(
    machine: SourcedMachine,
    plan: PodPlan,
    config: str | None,
    sets: Mapping[str, str],
    compare: str | None,
) -> list[Chosen]:
    """The configuration, and with --compare the second one."""
    chosen = [choose(machine.topology, config, plan.config, sets, plan.file)]
    if compare is None:
        return chosen
    if "=" in compare and not os.path.exists(compare):
        more = parse_sets(re.split(r",(?=\s*[\w-]+=)", compare), "--compare")
        try:
            return [*chosen, choose(machine.topology, config, plan.config, {**sets, **more}, plan.file)]
        except ConfigError as error:  # what the first one took without a word is not at fault
            raise ConfigError(
                error.where.replace("--set ", "--compare ", 1), error.detail, error.more
            ) from error
    if not os.path.exists(compare):
        raise ConfigError(f"--compare {compare}", "there is no such file; name one, or give KEY=VALUE,...")
    return [*chosen, choose(machine.topology, compare)]


def _simulated(
    machine: SourcedMachine, plan: PodPlan, choices: Sequence[Chosen], shapes: Sequence[str]
) -> list[Simulation]:
    more = [read_shape(text) for text in shapes]
    with waiting(f"simulating {plan.name or 'the scenario'}"):
        return [simulate(machine, plan, one, more, summary=summary(machine.topology)) for one in choices]


def _with_orders(
    simulations: Sequence[Simulation],
    machine: SourcedMachine,
    plan: PodPlan,
    choices: Sequence[Chosen],
    seeds: Sequence[int],
    own: int | None,
) -> list[Simulation]:
    """The simulations, each with a row for every other order of the pods."""
    found = []
    for one, chosen in zip(simulations, choices, strict=True):
        rows = told(other_orders(machine, plan, chosen, seeds, seed=own), "tried {} orders")
        found.append(replace(one, orders=tuple(rows)))
    return found


def _write_report(
    path: str,
    machine: SourcedMachine,
    simulations: Sequence[Simulation],
    comparison: SimulationComparison | None,
) -> None:
    from nri_plugin.cli.simulate import report

    page = report.render(machine, simulations, comparison)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise HostError(path, f"cannot be written: {(error.strerror or 'unknown error').lower()}") from error


def _print_text(simulations: Sequence[Simulation], comparison: SimulationComparison | None) -> None:
    width = columns()
    if comparison is None:
        text = simulation_text(simulations[0], width)
    else:
        text = comparison_text(simulations, comparison, width)
    echo(in_encoding(text, output_encoding()))


def _list(output_format: str) -> str:
    found = shipped_scenarios()
    if output_format in FOR_PROGRAMS:
        return render(found, output_format)
    return "\n".join(table([("NAME", "SHOWS"), *found.items()]))
