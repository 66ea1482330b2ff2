"""Run (d): a guest with devices that interrupt, movable ones and ones that only the kernel moves."""

import sys

from .agent import Agent
from .containerd import Containerd, version
from .kubepods import make_kubepods
from .node import Node
from .report import play, tell
from .scenarios_life import the_agent_had_nothing_to_complain_of, the_agent_needs_no_capability
from .scenarios_quiet import (
    a_container_keeps_interrupts_on_its_first_core,
    a_cpu_that_goes_offline_throws_its_interrupts_nowhere_quiet,
    a_device_that_is_added_again_stays_away,
    a_foreign_write_is_undone,
    annotations_are_obeyed_in_named_namespaces_only,
    interrupts_leave_exclusive_cpus_and_come_back,
    interrupts_that_only_the_kernel_moves_are_counted,
    killing_the_agent_keeps_them_quiet,
    nobody_asks_and_nothing_is_written,
    release_gives_interrupts_back,
)

_CONFIG = {
    "reservedSystemCPUs": "0",
    "irqs": "exclusive",
    "workqueues": "exclusive",
    "annotationNamespaces": ["trusted"],
    "metricsBindAddress": "127.0.0.1:9900",
}
_FEW_THREADS = {"GOMAXPROCS": "2"}
_EMULATED = {"plugin_registration_timeout": "60s"}

_STORY = (
    nobody_asks_and_nothing_is_written,
    the_agent_needs_no_capability,
    interrupts_leave_exclusive_cpus_and_come_back,
    a_foreign_write_is_undone,
    a_device_that_is_added_again_stays_away,
    a_container_keeps_interrupts_on_its_first_core,
    annotations_are_obeyed_in_named_namespaces_only,
    interrupts_that_only_the_kernel_moves_are_counted,
    release_gives_interrupts_back,
    killing_the_agent_keeps_them_quiet,
    a_cpu_that_goes_offline_throws_its_interrupts_nowhere_quiet,
    the_agent_had_nothing_to_complain_of,
)

if __name__ == "__main__":
    tell("runtime", version=version())
    with_systemd = "--systemd" in sys.argv
    if not with_systemd:
        make_kubepods()
    runtime = Containerd(systemd=with_systemd, nri=_EMULATED, environment=_FEW_THREADS)
    runtime.start()
    agent = Agent(runtime, dict(_CONFIG))
    node = Node(runtime, agent)
    agent.start()
    for scenario in _STORY:
        play(node, (scenario,), node)
        node.remove_all()  # one that broke off leaves its pods
    agent.stop()
    runtime.stop()
