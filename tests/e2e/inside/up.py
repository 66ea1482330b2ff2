"""For a person in a guest: start containerd and the agent, say where everything is, and leave both running."""

import sys

from .agent import Agent
from .containerd import Containerd, version
from .kubepods import make_kubepods

if __name__ == "__main__":
    with_systemd = "--systemd" in sys.argv
    make_kubepods(systemd=with_systemd)
    binary = "crun" if "--crun" in sys.argv else "runc"
    runtime = Containerd(binary, systemd=with_systemd, nri={"plugin_registration_timeout": "60s"})
    runtime.start()
    agent = Agent(runtime, {"reservedSystemCPUs": "0"})
    agent.start()
    sys.stdout.write(f"containerd {version()} and the agent run (pid {agent.pid}); logs are in /out\n")
