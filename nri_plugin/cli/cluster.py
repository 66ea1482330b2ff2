"""Options and checks of both `nri-pin export` and `nri-pin extender`."""

import importlib
from typing import Any

import click

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Address(click.ParamType[tuple[str, int]]):
    """`HOST:PORT`, `:PORT` for every address, or `[IPv6]:PORT`."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Host and port."""
        if isinstance(value, tuple):
            return value
        from nri_plugin.config.values import host_and_port

        text = str(value)
        try:
            return host_and_port(f":{text}" if text.isdecimal() else text)
        except ValueError:
            self.fail(f"'{value}' is not an address such as :8888 or 127.0.0.1:8888", param, ctx)


kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False),
    help="The kubeconfig file of the cluster; default: the pod's service account, else KUBECONFIG.",
)
health_probe_option = click.option(
    "--health-probe-bind-address",
    type=Address(),
    help="The address of /healthz and /readyz for the kubelet's probes: plain HTTP, on a separate port; default: none.",
)
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level that is logged.",
)


def need_libraries(module: str) -> None:
    """Import a module that needs the libraries of the extra `cluster`.

    Raises:
        ClickException: one of them is missing; says how to install it.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the module {error.name} is missing; install nri-pin[cluster], in a checkout: pip install '.[cluster]'"
        ) from None
