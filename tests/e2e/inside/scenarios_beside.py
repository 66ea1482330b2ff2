"""Other parts of NRI beside the agent: a second plugin that sets cpusets, and the validator that asks for the agent."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .agent import PYTHON
from .cri import CRIError
from .laws import check_exclusive, check_laws
from .node import Node, Pod
from .pods import best_effort, guaranteed
from .runtime import NRI_SOCKET
from .waiting import wait_for

_OTHER = "other"
_TOLERATE = "nri-pin/tolerate-missing-plugins"
_VALIDATOR = f"""[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
required_plugins = ["nri-pin"]
tolerate_missing_plugins_annotation = "{_TOLERATE}"
"""
_VALIDATES_FROM = (2, 2)
"""The first release of containerd with this validator."""


def has_validator(release: str) -> bool:
    """Whether this release of containerd can refuse containers without a plugin."""
    return tuple(int(part) for part in release.split(".")[:2]) >= _VALIDATES_FROM


def a_second_plugin_that_sets_cpusets_fails_the_creation_and_nothing_stays_allocated(
    node: Node, cpus: int
) -> None:
    """Two owners of one cpuset: the runtime says who, and the CPUs are free again."""
    beside = node.run(best_effort("beside"))
    before = node.agent.state()["exclusive"]
    with _second_plugin(node):
        said = node.refusal_of(guaranteed("two-owners", cpus))
        node.expect("the creation failed", bool(said))
        node.expect("the runtime names both plugins", "nri-pin" in said and _OTHER in said, said)
        node.equal("no allocation is left of it", node.agent.state()["exclusive"], before)
        check_laws(node)
    exclusive = node.run(guaranteed("one-owner", cpus))
    check_exclusive(node, "one-owner/main", cpus)
    node.remove(exclusive)
    node.remove(beside)


def without_the_agent_the_validator_lets_no_container_start_but_tolerant_ones(node: Node, cpus: int) -> None:
    """`required_plugins` of the guide, with the agent and without it."""
    with _validated(node):
        exclusive = node.run(guaranteed("required", cpus))
        check_exclusive(node, "required/main", cpus)
        node.agent.stop()
        said = node.refusal_of(best_effort("too-early"))
        node.expect("the runtime names the plugin that is missing", "nri-pin" in said, said)
        tolerant = replace(best_effort("tolerant"), annotations={_TOLERATE: "true"})
        tolerated = node.run(tolerant)
        before = _times_connected(node)
        node.agent.start()
        _is_right_again(node, cpus, before, tolerated, exclusive)


def a_stuck_agent_is_dropped_and_its_return_puts_everything_right(node: Node, cpus: int) -> None:
    """The agent stands still while the validator asks for it; then it goes on, and comes back by itself."""
    with _validated(node):
        exclusive = node.run(guaranteed("required", cpus))
        unasked = node.sandbox(best_effort("unasked"))
        before = _times_connected(node)
        os.kill(node.agent.pid, signal.SIGSTOP)
        try:
            said = _started(node, unasked)
            node.figure("the container that found the agent stuck", said or "was created without it")
            said = node.refusal_of(best_effort("too-late"))
            node.expect("from then on nothing is created without the agent", "nri-pin" in said, said)
        finally:
            os.kill(node.agent.pid, signal.SIGCONT)
        _is_right_again(node, cpus, before, unasked, exclusive)


def _is_right_again(node: Node, cpus: int, connected_before: int, *pods: Pod) -> None:
    """The agent comes back, pods are created again, and nobody has CPUs of others; these pods end."""
    wait_for(lambda: _times_connected(node) > connected_before, 60, "the agent is back at the runtime")
    late = node.run(best_effort("late"))
    check_exclusive(node, "required/main", cpus)
    check_laws(node)
    for pod in (late, *pods):
        node.remove(pod)


def _started(node: Node, pod: Pod) -> str:
    """Create and start a pod's only container; return why the runtime did not, empty where it did."""
    try:
        node.create(pod, pod.spec.containers[0])
        node.start(pod)
    except CRIError as error:
        return error.reason
    return ""


@contextmanager
def _second_plugin(node: Node) -> Iterator[None]:
    """A plugin with a later index that gives every container CPU 0."""
    joined = node.agent.times_joined()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [
        PYTHON,
        "-m",
        f"{__package__}.event_recorder",
        str(NRI_SOCKET),
        "/out/other.jsonl",
        _OTHER,
        "90",
    ]
    plugin = subprocess.Popen(words, env=environment)
    try:
        wait_for(
            lambda: node.agent.times_joined() > joined, 60, "the second plugin is among those of the runtime"
        )
        yield
    finally:
        plugin.terminate()
        plugin.wait(20)


@contextmanager
def _validated(node: Node) -> Iterator[None]:
    """A runtime that creates no container without the agent."""
    _restart_with(node, _VALIDATOR)
    try:
        yield
    finally:
        _restart_with(node, "")


def _restart_with(node: Node, tables: str) -> None:
    before = _times_connected(node)
    node.runtime.stop()
    node.runtime.tables = tables
    node.runtime.start()
    wait_for(lambda: _times_connected(node) > before, 60, "the agent is back at the runtime")


def _times_connected(node: Node) -> int:
    """The validator is a plugin of the runtime's own, so the order of plugins is told also before the agent is back."""
    return len(node.runtime.log_lines("nri-pin", "connected and synchronized"))
