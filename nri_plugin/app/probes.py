"""The agent's answers to the kubelet's probes; nothing of metrics is loaded for them."""

import threading
from collections.abc import Callable, Mapping

from nri_plugin.app.http_pages import Page, probe
from nri_plugin.app.loop import Loop
from nri_plugin.app.runtime_link import RuntimeLink

ALIVE_WITHIN_S = 5.0
"""The loop that answers the runtime comes round in microseconds; a checkpoint on a slow disk holds it for a second."""


def probe_pages(loop: Loop, link: RuntimeLink) -> Mapping[str, Callable[[], Page]]:
    """`/healthz` and `/readyz`."""
    return {
        "/healthz": probe("alive", lambda: lifeless(loop, link)),
        "/readyz": probe("ready", lambda: unready(link)),
    }


def lifeless(loop: Loop, link: RuntimeLink) -> str:
    """Why only a restart of the agent helps; empty where it works or something else is to be done."""
    if not comes_round(loop):
        return "the event loop does not come round"
    return link.handler.checkpoint.stuck() if link.handler is not None else ""


def unready(link: RuntimeLink) -> str:
    """Why the agent cannot do all of its work; empty where it can."""
    if link.handler is None or not link.is_synchronized:
        return link.waits_for or "not connected to the container runtime"
    return link.handler.checkpoint.unready()


def comes_round(loop: Loop) -> bool:
    """Whether the loop runs what it is given, soon."""
    seen = threading.Event()
    loop.post(seen.set)
    return seen.wait(ALIVE_WITHIN_S)
