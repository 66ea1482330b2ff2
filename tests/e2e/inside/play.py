"""Plays scenarios that were written down as plain values, one after the other, on one boot of one runtime.

After every step the containers are looked at through the kernel: `Cpus_allowed_list` and `Mems_allowed_list` of their
processes, cpuset files, the pages of `numa_maps`. Where the embedded runtime has given a picture of the same step,
both must be the same; what the agent puts right by itself is given time.

    python3 -m e2e.inside.play PLANS.json [--systemd] [--crun]
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from .agent import Agent
from .complaints import complaints
from .containerd import Containerd, version
from .facts_server import SOCKET, FactsServer
from .kubepods import make_kubepods
from .node import Node
from .player import Player
from .report import tell

# many emulated CPUs share one real one: idle Go threads would spin on it
_FEW_THREADS = {"GOMAXPROCS": "2"}
# emulation on a busy machine is twenty times slower: places are judged here, and times elsewhere
_EMULATED = {"plugin_registration_timeout": "60s", "plugin_request_timeout": "20s"}


def play(node: Node, plan: dict[str, Any], number: int) -> None:
    """Play one scenario with a fresh agent, and leave an empty node."""
    node.scenario = plan["name"]
    agent = Agent(node.runtime, {**plan["config"], "stateDir": f"/run/nri-pin-{number}"})
    facts = FactsServer() if any("facts" in step for step in plan["steps"]) else None
    if facts is not None:
        agent.config["exporterSocket"] = SOCKET
    agent.log = Path(f"/out/agent-{plan['name']}.log")
    node.agent = agent
    player = Player(node, plan, facts)
    try:
        agent.start()
        for step in plan["steps"]:
            player.play(step)
        player.judge_what_is_left()
    finally:
        try:
            player.leave()
        finally:
            agent.stop()
            if facts is not None:
                facts.close()
    said = complaints(agent.lines(), plan["steps"], player.ever_refused, player.sandboxes)
    node.equal("the agent complained of nothing that the steps do not explain", said, [])


def _told(node: Node, plan: dict[str, Any], number: int) -> None:
    """Play it, and tell when it began and how long it took."""
    from .report import play as perform

    def scenario(_node: Node) -> None:
        play(node, plan, number)

    scenario.__name__ = plan["name"]
    perform(node, (scenario,), node)


def main(arguments: list[str]) -> None:
    """Start the runtime, play everything, stop the runtime."""
    with_systemd = "--systemd" in arguments
    plans = json.loads(Path(arguments[0]).read_text())
    tell("runtime", version=version(), kernel=os.uname().release)
    make_kubepods(systemd=with_systemd)
    binary = "crun" if "--crun" in arguments else "runc"
    runtime = Containerd(binary, systemd=with_systemd, nri=_EMULATED, environment=_FEW_THREADS)
    runtime.start()
    node = Node(runtime, Agent(runtime, {}))
    for number, plan in enumerate(plans):
        _told(node, plan, number)
    runtime.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
