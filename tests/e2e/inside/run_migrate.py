"""Run (g): a guest with systemd and a real kubelet, which changes between the kubelet's managers and the agent, and back."""

import json
import sys
from pathlib import Path

from .containerd import Containerd, version
from .report import Expectations, play, tell
from .run_guest import EMULATED, FEW_THREADS
from .scenarios_migrate import (
    a_failed_start_of_the_kubelet_is_undone,
    a_killed_migration_is_undone_and_then_done,
    a_killed_migration_whose_kubelet_has_started_is_finished,
    the_kubelet_pins_its_static_pods,
    the_node_goes_to_the_agent_and_back,
)
from .standalone_kubelet import StandaloneKubelet

AGENT = {
    "reservedSystemCPUs": "0",
    "topologyManagerPolicy": "best-effort",
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
}

if __name__ == "__main__":
    tell("runtime", version=version())
    runtime = Containerd(systemd=True, nri=EMULATED, environment=FEW_THREADS)
    runtime.start()
    Path("/run/nri-pin.yaml").write_text(json.dumps(AGENT))
    kubelet = StandaloneKubelet(int(sys.argv[1]))
    facts = Expectations()
    play(
        facts,
        (
            the_kubelet_pins_its_static_pods,
            the_node_goes_to_the_agent_and_back,
            a_failed_start_of_the_kubelet_is_undone,
            a_killed_migration_is_undone_and_then_done,
            a_killed_migration_whose_kubelet_has_started_is_finished,
        ),
        facts,
        kubelet,
    )
    runtime.stop()
