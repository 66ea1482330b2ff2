"""Run (d) with hundreds of interrupts: more than the vector table of one CPU takes, and what they cost a creation."""

import sys

from .agent import Agent
from .containerd import Containerd, version
from .kubepods import make_kubepods
from .node import Node
from .report import play, tell
from .run_quiet import CONFIG, EMULATED, FEW_THREADS
from .scenarios_crowd_of_interrupts import a_full_vector_table_is_survived, creations_wait_for_no_interrupt

_STORY = (a_full_vector_table_is_survived, creations_wait_for_no_interrupt)

if __name__ == "__main__":
    tell("runtime", version=version())
    with_systemd = "--systemd" in sys.argv
    if not with_systemd:
        make_kubepods()
    runtime = Containerd(systemd=with_systemd, nri=EMULATED, environment=FEW_THREADS)
    runtime.start()
    agent = Agent(runtime, dict(CONFIG))
    node = Node(runtime, agent)
    agent.start()
    for scenario in _STORY:
        play(node, (scenario,), node)
        node.remove_all()
    agent.stop()
    runtime.stop()
