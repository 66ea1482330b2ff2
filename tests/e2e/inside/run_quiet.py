"""Run (d): a guest with devices that interrupt, movable ones and ones that only the kernel moves."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping

from .agent import Agent
from .containerd import Containerd, version
from .kubepods import make_kubepods
from .node import Node
from .quiet_facts import METRICS
from .report import play, tell
from .scenarios_life import the_agent_had_nothing_to_complain_of, the_agent_needs_no_capability
from .scenarios_quiet import (
    a_container_keeps_interrupts_on_its_first_core,
    a_cpu_that_goes_offline_throws_its_interrupts_nowhere_quiet,
    a_device_that_is_added_again_stays_away,
    a_foreign_write_is_undone,
    a_kill_behind_a_write_loses_nothing,
    a_writer_that_goes_on_is_named,
    annotations_are_obeyed_in_named_namespaces_only,
    interrupts_leave_exclusive_cpus_and_come_back,
    interrupts_that_only_the_kernel_moves_are_counted,
    killing_the_agent_keeps_them_quiet,
    nobody_asks_and_nothing_is_written,
    nothing_asked_is_not_one_write,
    release_gives_interrupts_back,
)
from .scenarios_quiet_others import (
    a_container_gets_cpus_that_share_no_queue,
    a_setting_that_blocks_delays_no_creation,
    an_isolated_partition_stays_one,
    irqbalance_is_told,
    noise_is_gone_where_cpus_are_quiet,
    noise_is_seen_where_cpus_are_not_quiet,
    packets_are_steered_elsewhere,
)
from .scenarios_quiet_pods import the_agent_s_pod_needs_its_mounts

CONFIG = {
    "reservedSystemCPUs": "0",
    "irqs": "exclusive",
    "workqueues": "exclusive",
    "annotationNamespaces": ["trusted"],
    "metricsBindAddress": METRICS,
}
FEW_THREADS = {"GOMAXPROCS": "2"}
EMULATED = {"plugin_registration_timeout": "60s"}

_STORY = (
    nobody_asks_and_nothing_is_written,
    the_agent_needs_no_capability,
    nothing_asked_is_not_one_write,
    interrupts_leave_exclusive_cpus_and_come_back,
    a_foreign_write_is_undone,
    a_writer_that_goes_on_is_named,
    a_device_that_is_added_again_stays_away,
    a_container_keeps_interrupts_on_its_first_core,
    annotations_are_obeyed_in_named_namespaces_only,
    interrupts_that_only_the_kernel_moves_are_counted,
    release_gives_interrupts_back,
    killing_the_agent_keeps_them_quiet,
    a_kill_behind_a_write_loses_nothing,
    a_setting_that_blocks_delays_no_creation,
    irqbalance_is_told,
    an_isolated_partition_stays_one,
    packets_are_steered_elsewhere,
    a_container_gets_cpus_that_share_no_queue,
    noise_is_seen_where_cpus_are_not_quiet,
    noise_is_gone_where_cpus_are_quiet,
    the_agent_s_pod_needs_its_mounts,
    a_cpu_that_goes_offline_throws_its_interrupts_nowhere_quiet,
    the_agent_had_nothing_to_complain_of,
)


def play_story(story: Iterable[Callable[[Node], None]], config: Mapping[str, object] = CONFIG) -> None:
    """Start a runtime and an agent, play scenarios, and stop both."""
    tell("runtime", version=version(), linux=os.uname().release)
    with_systemd = "--systemd" in sys.argv
    if not with_systemd:
        make_kubepods()
    runtime = Containerd(systemd=with_systemd, nri=EMULATED, environment=FEW_THREADS)
    runtime.start()
    agent = Agent(runtime, dict(config))
    node = Node(runtime, agent)
    agent.start()
    for scenario in story:
        play(node, (scenario,), node)
        node.remove_all()  # one that broke off leaves its pods
    agent.stop()
    runtime.stop()


if __name__ == "__main__":
    play_story(_STORY)
