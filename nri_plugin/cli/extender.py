"""`nri-pin extender`: the options of the scheduler extender."""

from pathlib import Path
from typing import Any

import click

from nri_plugin.cli.cluster import (
    SETTINGS,
    Address,
    health_probe_option,
    kubeconfig_option,
    log_level_option,
    need_libraries,
)

EXAMPLES = """\b
Examples:
  nri-pin extender --tls-cert tls.crt --tls-key tls.key
  nri-pin extender --strategy LeastAllocated --weight cpu=2 --weight memory=1
  nri-pin extender --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt --bind --numa-annotation
"""

STRATEGIES = ("LeastNUMANodes", "LeastAllocated", "MostAllocated", "BalancedAllocation")


class Weight(click.ParamType[tuple[str, int]]):
    """`RESOURCE=NUMBER`."""

    name = "resource=number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Resource name and weight."""
        if isinstance(value, tuple):
            return value
        name, _, number = str(value).rpartition("=")
        if not name or not number.isdecimal() or not 1 <= int(number) <= 100:
            self.fail(f"'{value}' is not a weight from 1 to 100 such as cpu=2", param, ctx)
        return name, int(number)


@click.command(epilog=EXAMPLES, context_settings=SETTINGS)
@kubeconfig_option
@click.option(
    "--listen", type=Address(), default=":8888", show_default=True, help="The address for kube-scheduler."
)
@click.option(
    "--tls-cert", type=click.Path(path_type=Path), help="Certificate chain (PEM), read again when it changes."
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key (PEM).")
@click.option(
    "--tls-client-ca",
    type=click.Path(path_type=Path),
    help="Accept only clients with a certificate of these authorities. Probes need none.",
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    default=STRATEGIES[0],
    show_default=True,
    help="The strategy of the scores.",
)
@click.option(
    "--weight",
    "weights",
    type=Weight(),
    multiple=True,
    help="Weight of a resource for LeastAllocated and MostAllocated; others weigh 1.",
)
@click.option(
    "--distance-bonus",
    type=click.Choice(["always", "prefer-closest-numa-nodes"]),
    default="always",
    show_default=True,
    help="The nodes on which close NUMA nodes score higher: all, or those with that option.",
)
@click.option(
    "--scores",
    type=click.Choice(["rank", "raw"]),
    default="rank",
    show_default=True,
    help="rank: scores of 0..10 in order; raw: 0..100 unchanged.",
)
@click.option(
    "--accounting/--no-accounting",
    default=True,
    show_default=True,
    help="Count bound pods that their node does not account for yet.",
)
@click.option(
    "--charge-seconds",
    type=click.FloatRange(1, 3600),
    default=60,
    show_default=True,
    help="Stop counting a running pod after this time, even if its node does not account for it.",
)
@click.option(
    "--guess-seconds",
    type=click.FloatRange(0, 60),
    default=30,
    show_default=True,
    help="Count a pod on the only or best node for at most this time, until its binding is seen; 0: never.",
)
@click.option(
    "--sidecars/--no-sidecars",
    default=True,
    show_default=True,
    help="Count sidecars beside the containers after them. The scheduler plugin does not.",
)
@click.option(
    "--bind",
    "offers_bind",
    is_flag=True,
    help="Offer the bind verb, so that a pod counts from its binding on. Needs all --tls-* options.",
)
@click.option(
    "--numa-annotation",
    is_flag=True,
    help="With --bind: write nri-pin/numa-node on the pod, and count it only on that NUMA node.",
)
@click.option(
    "--max-body-mib",
    type=click.IntRange(1, 1024),
    help="Longest request; default: 5,000 names of nodes and the largest pod, 128 with --node-objects.",
)
@click.option(
    "--node-objects",
    is_flag=True,
    help="Accept requests with whole Node objects, from a kube-scheduler without nodeCacheCapable: true.",
)
@health_probe_option
@log_level_option
def command(**given: Any) -> int:
    """Tell kube-scheduler which nodes fit a pod by NUMA node, and how well.

    Reads NodeResourceTopology objects. A node without such an object passes the filter.
    """
    need_libraries("nri_plugin.extender.process")
    _check(given)
    return _run(given)


def _check(given: dict[str, Any]) -> None:
    if (given["tls_cert"] is None) != (given["tls_key"] is None):
        raise click.UsageError("--tls-cert and --tls-key go together; give both or none")
    if given["tls_client_ca"] is not None and given["tls_cert"] is None:
        raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    if given["offers_bind"] and given["tls_client_ca"] is None:
        raise click.UsageError(
            "--bind needs --tls-cert, --tls-key and --tls-client-ca, because a client that may bind decides where pods run"
        )
    if given["numa_annotation"] and not given["offers_bind"]:
        raise click.UsageError("--numa-annotation needs --bind, which writes it")


def _run(given: dict[str, Any]) -> int:
    from nri_plugin.extender.process import ClusterFeed, ExtenderProcess, api_binder, run
    from nri_plugin.kube.api_client import KubeClient
    from nri_plugin.process.logs import to_stderr

    log = to_stderr(given["log_level"])
    client = KubeClient.connected(given["kubeconfig"])
    feed = ClusterFeed(client, log, with_pods=given["accounting"])
    return run(ExtenderProcess(options_of(given), feed, api_binder(client), log=log))


def options_of(given: dict[str, Any]) -> Any:
    """Return the options of the process from those of the command line."""
    from nri_plugin.extender.answers import ScoreScale
    from nri_plugin.extender.cache import Accounting
    from nri_plugin.extender.cluster_scores import DistanceBonus, Scoring, Strategy
    from nri_plugin.extender.process import ExtenderOptions

    scoring = Scoring(
        Strategy(given["strategy"]), dict(given["weights"]), DistanceBonus(given["distance_bonus"])
    )
    return ExtenderOptions(
        address=given["listen"],
        scoring=scoring,
        scale=ScoreScale(given["scores"]),
        accounting=Accounting(given["accounting"], given["charge_seconds"], given["guess_seconds"]),
        sidecars_stay=given["sidecars"],
        offers_bind=given["offers_bind"],
        sends_to_numa_node=given["numa_annotation"],
        certificate=given["tls_cert"],
        key=given["tls_key"],
        client_ca=given["tls_client_ca"],
        body_bytes=given["max_body_mib"] and given["max_body_mib"] << 20,
        takes_node_objects=given["node_objects"],
        healthz_address=given["health_probe_bind_address"],
    )
