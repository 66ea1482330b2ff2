"""Run (b): machines of every shape, one after the other, under one real container runtime."""

import shutil
import sys
from pathlib import Path

from . import recorder
from .agent import Agent
from .containerd import Containerd, version
from .node import Node
from .report import play, tell
from .scenarios_described import (
    an_update_by_the_runtime_brings_our_cpuset,
    build_machine,
    what_ends_is_given_back,
    what_runc_is_given_equals_the_checkpoint,
)
from .scenarios_life import the_agent_had_nothing_to_complain_of

_STORY = (
    what_runc_is_given_equals_the_checkpoint,
    an_update_by_the_runtime_brings_our_cpuset,
    what_ends_is_given_back,
)


def config_for(name: str) -> dict[str, object]:
    """Configuration of the agent on one machine; memory is bound, so that mems are judged too."""
    return {
        "reservedSystemCPUs": "0",
        "topologyManagerPolicy": "restricted",
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
        "sysfsRoot": f"/run/lab/machines/{name}",
        "cgroupRoot": recorder.TREE,
        "stateDir": f"/run/lab/state-{name}",
    }


def fresh_tree() -> None:
    """Begin a cgroup tree and a record of their own for the next machine."""
    shutil.rmtree(recorder.TREE, ignore_errors=True)
    recorder.make_tree()
    Path(recorder.RECORD).write_text("")


if __name__ == "__main__":
    tell("runtime", version=version())
    Path("/run/lab").mkdir()
    runtime = Containerd(binary=recorder.__file__)
    runtime.start()
    for machine_name in sys.argv[1:]:
        fresh_tree()
        machine = build_machine(machine_name)
        agent = Agent(runtime, config_for(machine_name))
        node = Node(runtime, agent)
        agent.start()
        play(node, _STORY, node, machine)
        node.remove_all()
        agent.stop()
        play(node, (the_agent_had_nothing_to_complain_of,), node)
    runtime.stop()
