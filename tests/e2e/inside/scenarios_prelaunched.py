"""The runtime starts the plugin itself, from its plugin directory, with almost nothing in the environment.

It starts it once. An agent that ends, or that the runtime drops and kills because it is late, is brought back by its
supervisor as an ordinary plugin. Every scenario needs a node without pods, and leaves it with the ordinary agent.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .laws import check_exclusive, check_laws
from .node import Node
from .pods import best_effort, burstable, guaranteed
from .waiting import wait_for

_COMMAND = ("/opt/nri-pin/bin/nri-pin", "install", "--plugin-dir", "/opt/nri/plugins")
_STUCK_S = 90
"""The supervisor waits 30 s for a sign of life."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    name: str
    variables: frozenset[str]

    @property
    def is_supervisor(self) -> bool:
        return self.name == "nri-pin-watcher"

    @property
    def is_launched(self) -> bool:
        return not self.is_supervisor and "NRI_PLUGIN_SOCKET" in self.variables


def the_runtime_starts_the_plugin_itself(node: Node, cpus: int) -> None:
    """`nri-pin install`, a restart of the runtime, and pods are pinned."""
    with _installed(node) as launched:
        environment = sorted(
            Path(f"/proc/{launched}/environ").read_bytes().rstrip(b"\0").decode().split("\0")
        )
        names = [variable.split("=")[0] for variable in environment]
        node.equal(
            "the plugin's environment is the runtime's three",
            names,
            ["NRI_PLUGIN_IDX", "NRI_PLUGIN_NAME", "NRI_PLUGIN_SOCKET"],
        )
        node.equal("one supervisor stands beside it", _count(lambda one: one.is_supervisor), 1)
        shared = node.run(burstable("beside"))
        exclusive = node.run(guaranteed("by-plugin", cpus))
        check_exclusive(node, "by-plugin/main", cpus)
        check_laws(node)
        node.remove(exclusive)
        node.remove(shared)


def a_killed_plugin_comes_back(node: Node, cpus: int) -> None:
    """SIGKILL, twice: the one that came back comes back, too."""
    with _installed(node) as launched:
        exclusive = node.run(guaranteed("by-plugin", cpus))
        _comes_back(node, lambda: os.kill(launched, signal.SIGKILL), "killed")
        check_exclusive(node, "by-plugin/main", cpus)
        (returned,) = (one.pid for one in _processes() if not one.is_supervisor)
        _comes_back(node, lambda: os.kill(returned, signal.SIGKILL), "killed again")
        check_exclusive(node, "by-plugin/main", cpus)
        node.remove(exclusive)


def a_late_plugin_comes_back(node: Node, cpus: int) -> None:
    """It stands still while the runtime asks: the container is born unpinned, the plugin dropped and replaced."""
    with _installed(node) as launched:
        exclusive = node.run(guaranteed("by-plugin", cpus))

        def be_late() -> None:
            os.kill(launched, signal.SIGSTOP)
            node.run(best_effort("unasked"))

        _comes_back(node, be_late, "late")
        check_exclusive(node, "by-plugin/main", cpus)
        node.remove(exclusive)


def a_stuck_plugin_comes_back_although_nobody_asks_it(node: Node, cpus: int) -> None:
    """It stands still and the runtime has no question: its supervisor hears nothing for 30 s."""
    with _installed(node) as launched:
        exclusive = node.run(guaranteed("by-plugin", cpus))
        _comes_back(node, lambda: os.kill(launched, signal.SIGSTOP), "stuck", asks=False)
        check_exclusive(node, "by-plugin/main", cpus)
        node.remove(exclusive)


def a_restarted_runtime_starts_a_new_plugin_and_the_old_one_yields(node: Node, cpus: int) -> None:
    """However often: one agent and one supervisor; what came back before makes room for what the runtime starts."""
    with _installed(node) as launched:
        exclusive = node.run(guaranteed("by-plugin", cpus))
        _comes_back(node, lambda: os.kill(launched, signal.SIGKILL), "killed")
        for _ in range(2):
            joined = node.agent.times_joined()
            node.runtime.stop()
            node.runtime.start()
            wait_for(
                lambda: _count(lambda one: one.is_launched) == 1, 60, "the runtime has started the plugin"
            )
            wait_for(lambda: len(_processes()) == 2, 60, "the plugin and its supervisor are all that is left")
            node.agent.wait_until_joined(joined)
            node.equal("it is the one that the runtime started", _count(lambda one: one.is_launched), 1)
            late = node.run(burstable("late"))
            check_exclusive(node, "by-plugin/main", cpus)
            check_laws(node)
            node.remove(late)
        node.remove(exclusive)


def a_plugin_takes_over_from_an_ordinary_agent_that_is_stuck(node: Node, cpus: int) -> None:
    """The ordinary agent stands still with the right to serve; the runtime starts a plugin, which does not wait for it."""
    ordinary = node.agent.pid
    assert ordinary
    node.runtime.stop()
    os.kill(ordinary, signal.SIGSTOP)
    with _installed(node, stop_agent=False):
        exclusive = node.run(guaranteed("by-plugin", cpus))
        check_exclusive(node, "by-plugin/main", cpus)
        check_laws(node)
        node.remove(exclusive)
        node.agent.kill()


def _comes_back(node: Node, end: Callable[[], None], how: str, *, asks: bool = True) -> None:
    """End the agent; soon everything is as promised, without a restart of the runtime.

    Args:
        node: where.
        end: ends it.
        how: for the facts.
        asks: whether a container is born meanwhile.
    """
    joined = node.agent.times_joined()
    began = time.monotonic()
    end()
    orphans = [node.run(burstable("orphan"))] if asks else []
    wait_for(
        lambda: node.agent.times_joined() > joined,
        _STUCK_S,
        f"the {how} plugin is back among the runtime's plugins",
    )
    node.figure(f"seconds until the {how} plugin was back", round(time.monotonic() - began, 2))
    node.equal(
        f"what comes back from {how} was not started by the runtime",
        _count(lambda one: one.is_launched),
        0,
    )
    node.equal("its supervisor is the only one", _count(lambda one: one.is_supervisor), 1)
    wait_for(lambda: _is_synchronized(node), 20, "the plugin was told what exists")
    check_laws(node)
    for pod in [*orphans, *(pod for pod in node.pods if pod.spec.name == "unasked")]:
        node.remove(pod)


def _is_synchronized(node: Node) -> bool:
    """Whether the checkpoint has everything that runs."""
    return {one["id"] for one in node.agent.state()["containers"]} >= set(node.running().values())


@contextmanager
def _installed(node: Node, *, stop_agent: bool = True) -> Iterator[int]:
    """A runtime that has started the plugin, with its process id; afterwards a node with the ordinary agent."""
    if stop_agent:
        node.agent.stop()
        node.runtime.stop()
    _call(*_COMMAND, "--config", str(node.agent.config_file))
    node.runtime.start()
    wait_for(lambda: _count(lambda one: one.is_launched) == 1, 60, "the runtime has started the plugin")
    (launched,) = (one.pid for one in _processes() if one.is_launched)
    try:
        yield launched
    finally:
        _call(*_COMMAND, "--uninstall")
        node.runtime.stop()
    node.expect("uninstall leaves no plugin behind", not list(Path("/opt/nri/plugins").iterdir()))
    wait_for(lambda: not _processes(), 20, "the plugin and its supervisor have ended with their runtime")
    node.runtime.start()
    node.agent.start()


def _count(fact: Callable[[_Process], bool]) -> int:
    return sum(map(fact, _processes()))


def _processes() -> list[_Process]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            if not any(word.startswith(b"/opt/nri/plugins/") for word in words):
                continue
            name = path.with_name("comm").read_text().strip()
            environment = path.with_name("environ").read_bytes().decode().split("\0")
        except OSError:
            continue
        names = frozenset(variable.partition("=")[0] for variable in environment)
        found.append(_Process(int(path.parent.name), name, names))
    return found


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with status {done.returncode}: {done.stdout}{done.stderr}"
        )
