"""Run (g): a guest with systemd and a real kubelet, which changes between the kubelet's managers and the agent, and back."""

import json
import sys
from pathlib import Path

from .containerd import Containerd, version
from .report import Expectations, play, tell
from .run_guest import EMULATED, FEW_THREADS
from .scenarios_migrate import (
    AGENT,
    a_failed_start_of_the_kubelet_is_undone,
    a_failure_in_any_step_is_undone,
    a_privileged_pod_migrates_for_the_agent_s_pod,
    sigkill_after_any_step_is_undone_or_finished,
    the_kubelet_pins_its_static_pods,
    the_node_goes_to_the_agent_and_back,
)
from .standalone_kubelet import StandaloneKubelet

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
            a_failure_in_any_step_is_undone,
            sigkill_after_any_step_is_undone_or_finished,
            a_privileged_pod_migrates_for_the_agent_s_pod,
        ),
        facts,
        kubelet,
    )
    runtime.stop()
