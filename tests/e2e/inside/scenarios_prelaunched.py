"""The runtime starts the plugin itself, from its plugin directory, with almost nothing in the environment."""

import subprocess
from pathlib import Path

from .laws import check_exclusive, check_laws
from .node import Node
from .pods import burstable, guaranteed
from .waiting import wait_for

_COMMAND = ("/opt/nri-pin/bin/nri-pin", "install", "--plugin-dir", "/opt/nri/plugins")


def the_runtime_starts_the_plugin_itself(node: Node, cpus: int) -> None:
    """`nri-pin install`, a restart of the runtime, and pods are pinned; needs a node without pods."""
    node.agent.stop()
    node.runtime.stop()
    _call(*_COMMAND, "--config", str(node.agent.config_file))
    node.runtime.start()
    wait_for(lambda: bool(_plugin_processes()), 60, "the runtime has started the plugin")
    (pid,) = _plugin_processes()
    environment = sorted(Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").decode().split("\0"))
    names = [variable.split("=")[0] for variable in environment]
    node.equal(
        "the plugin's environment is the runtime's three",
        names,
        ["NRI_PLUGIN_IDX", "NRI_PLUGIN_NAME", "NRI_PLUGIN_SOCKET"],
    )
    shared = node.run(burstable("beside"))
    exclusive = node.run(guaranteed("by-plugin", cpus))
    check_exclusive(node, "by-plugin/main", cpus)
    check_laws(node)
    node.remove(exclusive)
    node.remove(shared)
    node.runtime.stop()
    _call(*_COMMAND, "--uninstall")
    node.expect("uninstall leaves no plugin behind", not list(Path("/opt/nri/plugins").iterdir()))
    wait_for(lambda: not _plugin_processes(), 20, "the plugin has ended with its runtime")
    node.runtime.start()
    node.agent.start()


def _plugin_processes() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(b"/opt/nri/plugins/") for word in words):
            found.append(int(path.parent.name))
    return found


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with status {done.returncode}: {done.stdout}{done.stderr}"
        )
