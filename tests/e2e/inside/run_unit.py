"""Run (f): a guest with systemd, which starts the agent by the unit of `nri-pin install --systemd`."""

from .agent import Agent
from .containerd import Containerd, version
from .node import Node
from .report import play, tell
from .run_guest import CONFIG, EMULATED, FEW_THREADS
from .scenarios_life import the_agent_had_nothing_to_complain_of
from .scenarios_systemd import systemd_starts_the_agent_and_takes_it_away_again

if __name__ == "__main__":
    tell("runtime", version=version())
    runtime = Containerd(systemd=True, nri=EMULATED, environment=FEW_THREADS)
    runtime.start()
    agent = Agent(runtime, dict(CONFIG))
    node = Node(runtime, agent)
    agent.start()
    play(node, (systemd_starts_the_agent_and_takes_it_away_again,), node, 2)
    play(node, (the_agent_had_nothing_to_complain_of,), node)
    agent.stop()
    runtime.stop()
